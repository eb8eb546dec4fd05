"""Takes checks out of every Python process that has this folder in PYTHONPATH, to prove that a test
notices.

`DIESELFS_TAKEN_OUT=module:name=what`, `name` a function or `Class.method` of the module *where it
is called*; `what` is what it does instead: `none` returns None, `true` and `false` that, `first`
its first argument (of a method: the first after self). Several are joined by ` + `.
"""

import importlib.abc
import importlib.util
import os
import sys

WHAT = {
    "none": lambda *arguments, **named: None,
    "true": lambda *arguments, **named: True,
    "false": lambda *arguments, **named: False,
    "first": lambda *arguments, **named: arguments[0],
}


class TakeOut(importlib.abc.MetaPathFinder):
    """Loads one module as usual and then replaces a name in it."""

    def __init__(self, wanted: str) -> None:
        self.module, _, rest = wanted.partition(":")
        self.name, _, self.what = rest.partition("=")

    def find_spec(self, fullname, path, target=None):
        if fullname != self.module:
            return None
        sys.meta_path.remove(self)  # the next finder does it, and this one never again
        spec = importlib.util.find_spec(fullname)
        load = spec.loader.exec_module

        def load_and_take_out(module):
            load(module)
            self.take_out(module)

        spec.loader.exec_module = load_and_take_out
        return spec

    def take_out(self, module) -> None:
        *owners, name = self.name.split(".")
        owner = module
        for part in owners:
            owner = getattr(owner, part)
        getattr(owner, name)
        instead = WHAT[self.what]
        if owners and self.what == "first":
            instead = lambda this, *arguments, **named: arguments[0]  # noqa: E731
        setattr(owner, name, instead)


if "DIESELFS_TAKEN_OUT" in os.environ:
    sys.meta_path[:0] = map(TakeOut, os.environ["DIESELFS_TAKEN_OUT"].split(" + "))
