"""A hook of mkdocs: pages outside docs/ and all decisions are part of the site, with their links.

mkdocs takes pages from docs/ alone. A link to another file of the checkout, such as a unit of
systemd, becomes plain text, since the site does not have the file.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

CHECKOUT = Path(__file__).resolve().parents[1]
TOP_PAGES = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/RESULTS.md"]
LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config):
    """List the decisions at the end of the navigation."""
    decisions = sorted((CHECKOUT / "docs/decisions").glob("*.md"))
    config.nav.append({"Decisions": [f"decisions/{page.name}" for page in decisions]})
    return config


def on_files(files, config):
    """Add the pages of TOP_PAGES to the site."""
    for name in TOP_PAGES:
        files.append(File.generated(config, Path(name).name, abs_src_path=str(CHECKOUT / name)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Let links lead to where the site has their pages."""
    name = page.file.src_uri
    source = next((top for top in TOP_PAGES if Path(top).name == name), f"docs/{name}")
    folder = posixpath.dirname(source)

    def replaced(link):
        is_image, text, path, anchor = link.groups()
        target = posixpath.normpath(posixpath.join(folder, path))
        in_site = (
            posixpath.basename(target) if target in TOP_PAGES else target.removeprefix("docs/")
        )
        if target not in TOP_PAGES and not target.startswith("docs/"):
            return text
        relative = posixpath.relpath(in_site, posixpath.dirname(name) or ".")
        return f"{is_image}[{text}]({relative}{anchor or ''})"

    return LINK.sub(replaced, markdown)
