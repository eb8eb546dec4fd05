from collections.abc import Iterator

import pytest

from metadata import path_lookup


@pytest.fixture(scope="module", params=["compiled", "python"])
def each_path_lookup(request: pytest.FixtureRequest) -> Iterator[None]:
    """Snapshots that are opened in the module look up paths in C first, then in Python."""
    assert path_lookup.extension is not None, "build it: scripts/setup.sh"
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(path_lookup, "extension", None)
        yield
