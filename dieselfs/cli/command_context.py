"""The context of one run of `dlcmd`: the common options, resolved, and ways to open a dataset."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dieselfs.cli.rendering.output import Output
from dieselfs.cli.rendering.progress import progress_of
from dieselfs.config import Config, Setting, default_config, load_config

if TYPE_CHECKING:
    from chunkstore.progress import Progress
    from chunkstore.stores.object_store import ObjectStore
    from chunkstore.stores.resilient import ResilientStore
    from dieselfs.cache.ssd.settings import SsdSettings
    from dieselfs.client import Client
    from dieselfs.dataset.address import DatasetAddress
    from metadata.kv.key_value_store import KeyValueStore


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The first argument of every command."""

    config: Config
    output: Output
    show_progress: bool = True

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, needs_config: bool) -> CommandContext:
        """Build the context from the values of the common options that were given.

        A command that does not need the configuration gets the default one.
        """
        if needs_config:
            config = load_config(options.get("store"), options.get("index"), options.get("profile"))
        else:
            config = default_config()
        if config.holds_secret:
            from dieselfs.cache.ports.core_dumps import prevent_core_dumps

            prevent_core_dumps()
        terminal = sys.stdout.isatty()
        output = Output(
            json=options.get("json", False),
            quiet=options.get("quiet", False),
            terminal=terminal,
            wide=options.get("wide", False),
            color=_wants_color(options.get("color", "auto"), terminal),
        )
        if output.quiet:
            import logging

            # Without a handler, notices of the library (a store is new) go to stderr.
            logging.getLogger().addHandler(logging.NullHandler())
        elif output.json and not options.get("debug"):
            from dieselfs.cli.rendering.json_logs import log_as_json

            log_as_json()
        show_progress = not (options.get("no_progress") or output.quiet)
        return cls(config, output, show_progress)

    def at(self, store: str | None, index: str | None, profile: str | None) -> CommandContext:
        """Return the same context with other places, as an fstab line gives them.

        A place that is None stays as the flags gave it.
        """
        if store is index is profile is None:
            return self
        store = store or _flag(self.config.store)
        index = index or _flag(self.config.index)
        profile = profile or self.config.profile
        return replace(self, config=load_config(store, index, profile))

    def shared(self, dataset: str | None = None) -> CommandContext:
        """Return the same context with the settings in the store, for the dataset if one is given.

        A store that does not answer is no error here: `dieselfs.config.shared.stored`.
        """
        from dieselfs.assembly import config_of_store

        return replace(self, config=config_of_store(self.config, dataset))

    @property
    def snapshot_folder(self) -> Path:
        """The folder of local snapshots."""
        from dieselfs.assembly import private_snapshot_folder

        return private_snapshot_folder(self.config)

    def progress(self, action: str, what: str = "files") -> AbstractContextManager[Progress]:
        """Return the progress display of an action. `what` names the items that it counts."""
        return progress_of(
            action, silent=not self.show_progress, as_json=self.output.json, what=what
        )

    @contextmanager
    def places(self) -> Iterator[tuple[ObjectStore, KeyValueStore]]:
        """Yield the store and the index, open.

        A user watches, so the store's operations fail soon if it does not answer.
        """
        from dieselfs.assembly import open_places

        store, index = open_places(self.config, patience_s=None)
        try:
            yield store, index
        finally:
            index.close()

    def store(self, patience_s: float | None = None) -> ResilientStore:
        """Open the store alone, for commands that need no index.

        `patience_s` is that of `dieselfs.assembly.open_store`. A store that is missing fails at its
        first use: what is on this machine can do without it.
        """
        from dieselfs.assembly import open_configured_store

        return open_configured_store(self.config, patience_s)

    def ssd(self) -> SsdSettings | None:
        """Return the SSD tier that variables, profile and store name, or None."""
        if self.config.ssd is None:
            return None
        from dieselfs.cache.ssd.settings import configured, ssd_settings

        return ssd_settings(configured(self.config))

    @contextmanager
    def client(self, address: DatasetAddress) -> Iterator[Client]:
        """Yield a client of the address's dataset.

        It reads the address's snapshot, or the current state if the address names none.
        """
        from dieselfs.assembly import check_default_store, open_configured_index, shared_config
        from dieselfs.client import Client

        check_default_store(self.config)
        store = self.store()
        config = shared_config(self.config, store, address.dataset)
        with closing(open_configured_index(config)) as index:
            client = Client.connect(
                address.dataset,
                store=store,
                index=index,
                snapshot_folder=self.snapshot_folder,
                ssd=replace(self, config=config).ssd(),
                config=config,
            )
            with client:
                self.load_snapshot(client, address)
                yield client

    def load_snapshot(self, client: Client, address: DatasetAddress) -> None:
        """Make the client read the address's snapshot, if it names one."""
        if address.snapshot:
            from dieselfs.snapshots.snapshot_choice import find_snapshot

            folder, store = self.snapshot_folder, client.dataset.store
            path = find_snapshot(address.snapshot, address.dataset, folder, store)
            client.load_meta(path, check_fresh=False)


def _wants_color(when: str, terminal: bool) -> bool:
    """Return True if names are coloured.

    A variable NO_COLOR that is not empty turns `auto` off (https://no-color.org).
    """
    if when != "auto":
        return when == "always"
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _flag(setting: Setting) -> str | None:
    return setting.value if setting.origin.startswith("--") else None
