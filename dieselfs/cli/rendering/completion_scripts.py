"""The scripts by which bash, zsh and fish complete `dlcmd`, and what they are told.

click parses the words and asks each parameter. Its own scripts offer local files either alone or
not at all, and its script for bash sees `imagenet:train` as three words. These scripts offer files
beside names, and none adds a blank after a name that goes on: one that ends with / or a colon.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

from click.shell_completion import (
    BashComplete,
    FishComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

_GOES_ON: Final = ("/", ":", "@")
_NEEDS_QUOTES: Final = re.compile(r"[^\w@%+=:,./~-]")
_BASH: Final = """\
%(complete_func)s() {
    local type value files=
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            plain) COMPREPLY+=("$value") ;;
            nospace) compopt -o nospace ;;
            file) files=1 ;;
            dir) compopt -o dirnames ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
    if [[ $files && ${#COMPREPLY[@]} -eq 0 ]]; then
        compopt -o default
    elif [[ $files ]]; then
        compopt -o filenames
        while IFS= read -r value; do
            COMPREPLY+=("$value")
        done < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
    fi
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
_ZSH: Final = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local -a whole begun response
    local type key descr
    (( ! $+commands[%(prog_name)s] )) && return 1
    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \\
        %(complete_var)s=zsh_complete %(prog_name)s 2>/dev/null)}")
    for type key descr in ${response}; do
        case $type in
            plain) [[ $key == *[/:@] ]] && begun+=("$key") || whole+=("$key") ;;
            dir) _path_files -/ ;;
            file) _path_files -f ;;
        esac
    done
    (( $#whole )) && compadd -U -V unsorted -a whole
    (( $#begun )) && compadd -U -V unsorted -S '' -a begun
    return 0
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""


class Bash(BashComplete):
    """The completion of bash, which gets the line up to the cursor."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one at the cursor, and that word as far as it is typed."""
        # With a letter behind it, the word at the cursor is never empty.
        *words, last = split_arg_string(os.environ["COMP_LINE"] + "x")
        return words[1:], last[:-1]

    def complete(self) -> str:
        """Return what the script reads: a line for each name, or for what bash completes itself."""
        arguments, begun = self.get_completion_args()
        items = self.get_completions(arguments, begun)
        names = [item.value for item in items if item.type == "plain"]
        others = sorted({item.type for item in items} - {"plain"})
        is_open = _has_open_quote(os.environ["COMP_LINE"])
        if not is_open:
            # bash replaces only what follows the last of these characters.
            breaks = set(os.environ["COMP_WORDBREAKS"]) - set(" \t\n'\"")
            head = begun[: max((at for at, c in enumerate(begun, 1) if c in breaks), default=0)]
            names = [name.removeprefix(head) for name in names]
        if not (is_open or others):  # where files are offered too, bash puts the quotes
            names = [_NEEDS_QUOTES.sub(r"\\\g<0>", name) for name in names]
        goes_on = bool(names) and all(name.endswith(_GOES_ON) for name in names)
        return "\n".join(_lines(names, ["nospace"] * goes_on + others))


class Zsh(ZshComplete):
    """The completion of zsh."""

    source_template = _ZSH


def register() -> None:
    """Let click answer the three shells with these classes."""
    for kind in (Bash, Zsh, FishComplete):
        add_completion_class(kind)


def _lines(names: Sequence[str], others: Sequence[str]) -> list[str]:
    return [f"plain,{name}" for name in names] + [f"{other}," for other in others]


def _has_open_quote(line: str) -> bool:
    quote = ""
    escaped = False
    for character in line:
        if escaped:
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
    return bool(quote)
