"""The folders of the product import each other one way, and the table below says why.

A folder is what lies in it directly: `dieselfs/cache/wire` is another one than `dieselfs/cache`. A
module directly in `dieselfs/` stands for itself. Imports in functions and under TYPE_CHECKING count
too. Every arrow has its reason; no arrows make a circle.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = ROOT / "dieselfs"

# Whoever needs them imports them: they say nothing of each other but this.
GROUND = {"errors", "config"}

# folder -> what it imports: why
ARROWS = {
    "allocation": {"cache.ssd": "sizes and rates are read as other commands read them"},
    "allocation.directory": {
        "allocation": "a declared job is told to policies",
        "cache.jobs": "names of jobs; records of others are read with the same doubts",
        "cache.node": "a node's directory is in shared memory, in files as job records are",
        "cache.ssd": "sizes in annotations are read as other commands read them",
    },
    "allocation.simulation": {
        "cache.advice": "what known orders bring is compared with Belady's optimum",
        "cache.node": "replays ask the eviction policies of node memory",
        "allocation": "jobs and what a policy gives them",
    },
    "allocation.policies": {"allocation": "jobs, allocations and the estimator"},
    "allocation.readers": {
        "allocation": "how fast a job could read is measured as the estimator takes it",
        "allocation.directory": "what is allocated, and the leases of a job's readers",
        "cache.jobs": "a thread that beats; names of jobs",
        "cache.ports": "a master asks who pays for its members",
        "prefetch": "the position in a known order says what warm reads have read",
    },
    "allocation.allocator": {
        "allocation": "jobs, allocations",
        "allocation.directory": "who reads, and where decisions are published",
        "allocation.policies": "what nobody needs is divided max-min too",
        "cache.cluster": "the cache to divide may be that of a cache cluster",
        "cache.ssd": "sizes are told",
    },
    "allocation.administration": {
        "allocation": "the present is explained as a plan is",
        "allocation.allocator": "jobs are shown as an allocator sees them",
        "allocation.directory": "what is in force, who reads, and where decisions are published",
        "cache.jobs": "names of jobs are checked",
        "cache.ssd": "sizes are told",
    },
    "allocation.kubernetes": {
        "allocation.directory": "jobs of pods are declared there, and told what it decides",
        "cache.jobs": "a pod's job is named as its readers name it",
        "snapshots": "sizes of datasets, as the store has them",
    },
    "shuffle": {},
    "dataset": {},
    "prefetch": {
        "cache.ports": "what is fetched and expected: blocks of node memory",
        "shuffle": "a plan may be a shuffled order, and is refused by what its groups need",
    },
    "snapshots": {
        "dataset": "snapshots are built from a dataset's index",
    },
    "recovery": {
        "snapshots": "a dataset that was made again is published as a snapshot",
    },
    "checking": {
        "dataset": "repairs write to the index",
        "recovery": "what the store alone knows: commits, chunks and what is missing",
        "snapshots": "snapshots are checked too",
    },
    "packing": {
        "dataset": "what is packed is written, committed and indexed",
        "housekeeping.purge": "chunks that another put has replaced are retired",
        "snapshots": "a put ends with a published snapshot",
    },
    "housekeeping": {
        "dataset": "a name without a dataset is told with the nearest one",
        "recovery": "garbage is what no commit knows",
        "snapshots": "snapshots keep chunks, and are garbage themselves",
    },
    "housekeeping.purge": {
        "dataset": "a purge moves files, which is a commit",
        "housekeeping": "retired chunks are deleted by the rules of retention",
        "recovery": "chunks are read ahead as a recovery reads heads",
        "snapshots": "snapshots of puts that keep retired chunks are replaced",
    },
    # The cache: each folder imports those above it.
    "cache.ports": {},
    "cache.advice": {},
    "cache.wire": {
        "cache.ports": "messages name blocks and members; sockets come from the runtime",
    },
    "cache.node": {
        "cache.ports": "what a master keeps, and how it is asked",
        "cache.wire": "members reach their master by packets",
        "prefetch": "a master tells how far its plans are",
    },
    "cache.membership": {
        "cache.ports": "members",
        "cache.wire": "pings; the roll that rank 0 leads",
    },
    "cache.jobs": {
        "cache.node": "a node's registry is in shared memory, in a private folder as tasks' are",
        "prefetch": "a job record says which order is read, and how far",
    },
    "cache.peers": {
        "cache.membership": "who is there, and which chunk is whose",
        "cache.node": "peers are served from this node's memory; a share is loaded into it",
        "cache.ports": "blocks, members, sources",
        "cache.wire": "peers are asked and answered",
        "snapshots": "a node's share is of the chunks that its snapshots name",
    },
    "cache.ssd": {
        "cache.node": "a tier is not in the folder of node memory; what is pinned for a task names it",
        "snapshots": "a pinned blob is verified by its snapshot",
    },
    "cache.cluster": {
        "allocation.directory": "a cache node keeps its part of what is allocated to datasets",
        "allocation.readers": "a cache node keeps decisions that its directory has lost",
        "cache.jobs": "a thread that beats",
        "cache.membership": "cache nodes are found as members are",
        "cache.peers": "a client of a cluster reads as a reader of a task does",
        "cache.ports": "blocks, members, sources",
        "cache.ssd": "a cache node serves an SSD tier",
        "cache.wire": "the peer cache's wire",
        "snapshots": "chunks are asked for by the lengths in snapshots",
    },
    "cache.warmup": {
        "cache.cluster": "a cluster is warmed",
        "cache.membership": "a cache node's share of a dataset",
        "cache.peers": "a cluster's nodes are asked as peers are",
        "cache.ports": "blocks",
        "cache.ssd": "what is warmed",
        "shuffle": "the chunks of an epoch, in its order",
        "snapshots": "a cache node finds a dataset's chunks in its newest snapshot",
    },
    "cache.task": {
        "cache.membership": "whose share a block is",
        "cache.node": "who leads has the master; its folder is where all meet",
        "cache.peers": "who leads brings the node's part in the peer cache",
        "cache.ports": "the master's port, blocks, settings",
        "cache.wire": "members talk to their master",
        "prefetch": "clients' plans are followed by the process that leads",
    },
    # The mount.
    "fuse.requests": {
        "cache.ports": "which chunks are read by blocks",
    },
    "fuse.pages": {
        "cache.ports": "how much memory is free",
        "fuse.requests": "FUSE_NOTIFY_STORE, and bytes to store",
        "prefetch": "pages are filled along a plan, and dropped behind its readers",
        "shuffle": "how many chunks are under way beside a group",
    },
    "fuse.mounts": {
        "fuse.pages": "EROFS reads files directly from the size on that no filler takes",
    },
    "fuse.supervision": {
        "fuse.mounts": "a running mount is found in the kernel's table and told to refresh",
    },
    "fuse.service": {
        "fuse.mounts": "the service mounts, by the messages that its clients use",
    },
    "fuse.control": {
        "fuse.mounts": "names of the control files; which front was chosen, shown",
        "fuse.requests": "control files are asked for by the kernel's requests",
        "prefetch": "readers write plans into the control directory",
        "shuffle": "shuffled orders are files",
    },
    "fuse.serving": {
        "fuse.control": "the tree shows the control directory",
        "fuse.mounts": "what blobs and the control directory are called",
        "fuse.requests": "what is answered",
    },
    "fuse.fronts": {
        "fuse.control": "every front shows the control directory",
        "fuse.mounts": "fronts are mounted",
        "fuse.pages": "each front has its filler",
        "fuse.requests": "connections to the kernel",
        "fuse.serving": "what serves behind a front",
        "fuse.supervision": "descriptors that the supervisor hands over",
        "shuffle": "a mount's options name an order",
    },
    "fuse.starting": {
        "allocation.readers": "whose share the mount has",
        "cache": "the settings of what a mount reads through",
        "cache.cluster": "options of a request",
        "cache.membership": "options of a request",
        "cache.node": "a policy of a request",
        "cache.ports": "a secret prevents core dumps",
        "cache.jobs": "the job's name",
        "cache.ssd": "options of a request; pinned blobs",
        "cache.warmup": "what the SSD has is mounted without the store",
        "dataset": "the first mount makes a snapshot of a dataset",
        "fuse.fronts": "a local mount; options",
        "fuse.mounts": "mountpoints, and mounts that are shared",
        "fuse.supervision": "the daemon is started",
        "prefetch": "a plan must fit into memory",
        "shuffle": "the order of a request",
        "snapshots": "the snapshot is chosen",
    },
    "fuse": {
        "cache.ports": "plans expect blocks of node memory",
        "fuse.control": "a server from its beginning to its end has all of these",
        "fuse.fronts": "the front is made",
        "fuse.mounts": "the mountpoint is checked",
        "fuse.pages": "the page cache is filled along plans",
        "fuse.requests": "reads",
        "fuse.supervision": "handed over, and ended in time",
        "prefetch": "the plans of a mount's readers",
        "shuffle": "orders that readers take from lists",
    },
    # Doors: they call what they need of the above, and none is called by it.
    "config.shared": {
        "cache.cluster": "names of cache clusters are checked",
        "cache.membership": "addresses of cache nodes are checked",
        "cache.ssd": "sizes are checked",
        "dataset": "a dataset that has settings exists",
    },
    "assembly": {
        "config.shared": "the settings in the store say where the index is",
    },
    "cache": {
        "cache.advice": "requests are recorded for `dlcmd advise`",
        "allocation.readers": "what is allocated to the process, which pays for what it reads",
        "cache.cluster": "a part of the stack, and its settings",
        "cache.jobs": "the job's name, as the environment gives it",
        "cache.membership": "the task and its peers, as the environment names them",
        "cache.node": "where the task's memory is, and how much",
        "cache.peers": "a part of the stack",
        "cache.ports": "settings of peers; what a source is",
        "cache.ssd": "a part of the stack, and its settings",
        "cache.task": "a part of the stack: node memory",
        "cache.warmup": "the SSD is warmed behind readers",
        "snapshots": "chunks are verified by what snapshots say",
    },
    "client.extraction": {
        "dataset": "filters say which files are copied",
    },
    "client": {
        "cache": "the settings of what it reads through",
        "cache.ports": "settings of peers are arguments",
        "cache.ssd": "an SSD tier is an argument",
        "cache.cluster": "a cache cluster is filled ahead of reads",
        "cache.jobs": "a reader with a job pays for what it reads of the store",
        "cache.task": "samples are read from node memory",
        "cache.warmup": "tiers are filled ahead of reads",
        "dataset": "puts, deletes, listings",
        "client.extraction": "a folder is filled with files",
        "housekeeping": "a dataset in use is not removed",
        "housekeeping.purge": "DL_purge",
        "prefetch": "its shuffled orders are plans",
        "shuffle": "DL_shuffle",
        "snapshots": "DL_save_meta, DL_load_meta",
    },
    "integrations": {
        "cache.task": "samples are read from node memory",
        "client": "a dataset without a mount is opened as a client",
        "prefetch": "samplers write plans",
        "cache": "node memory is opened",
        "shuffle": "samplers take shuffled orders",
        "snapshots": "samples are verified by their snapshot",
    },
    "__main__": {"cli": "`python -m dieselfs` is `dlcmd`"},
    # The command line: within it one way; of the product it may import everything.
    "cli.values": {},
    "cli.rendering": {"cli.values": "sizes and times"},
    "cli": {"cli.rendering": "output, errors", "cli.values": "options' types"},
    "cli.arguments": {"cli": "options are declared"},
    "cli.mounting": {
        "cli": "its context",
        "cli.rendering": "what it says",
        "cli.values": "sizes",
    },
    "cli.commands": {
        "cli": "commands are declared",
        "cli.arguments": "what several take",
        "cli.mounting": "`mount`, and who starts `dlcmd` again",
        "cli.rendering": "what they say",
        "cli.values": "what they take",
    },
}
"""`cli` finds its commands by name, when they are used: that is no import."""


def folder_of(module: str) -> str:
    """`cache.wire` of `dieselfs.cache.wire.frames`; `client` of `dieselfs.client`."""
    path = ROOT / module.replace(".", "/")
    parts = module.split(".")[1:]
    return ".".join(parts if path.is_dir() or len(parts) == 1 else parts[:-1])


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if is_module(name) else str(node.module)


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def folders() -> dict[str, set[str]]:
    """Each folder, and those that it imports."""
    found: dict[str, set[str]] = {}
    for file in sorted(PRODUCT.rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        folder = folder_of(module)
        if module == "dieselfs" or folder in GROUND:
            continue
        names = {folder_of(name) for name in imported(file) if name.startswith("dieselfs.")}
        found.setdefault(folder, set()).update(names - {folder} - GROUND - {"assembly"})
    return found


def test_folders_import_what_the_table_says() -> None:
    found = folders()
    assert ARROWS.keys() <= found.keys()
    for folder, names in found.items():
        if folder.partition(".")[0] == "cli":  # what the command line can do, a Python user can
            names = {name for name in names if name.partition(".")[0] == "cli"}
        if names or not is_empty(folder):
            assert names == set(ARROWS.get(folder, {})), folder


def is_empty(folder: str) -> bool:
    """Return True if the folder holds nothing but folders, as `cache` does."""
    path = PRODUCT / folder.replace(".", "/")
    return path.is_dir() and {file.name for file in path.glob("*.py")} == {"__init__.py"}


def test_no_folders_import_each_other_in_a_circle() -> None:
    left = folders()
    while left:
        free = [folder for folder, names in left.items() if not names & left.keys()]
        assert free, f"a circle among {sorted(left)}"
        for folder in free:
            del left[folder]


def test_the_ground_lies_below_everything() -> None:
    for file in (PRODUCT / "errors.py", *(PRODUCT / "config").glob("*.py")):
        names = {folder_of(name) for name in imported(file) if name.startswith("dieselfs.")}
        assert names <= GROUND, file


def entries(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name != "__pycache__"]


def test_the_architecture_says_what_each_folder_is_for() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text.partition("\n## The folders of dieselfs\n")[2].partition("\n## ")[0]
    explained = {"cache", "fuse", "allocation"}  # whose folders are explained one by one
    for folder in PRODUCT.glob("*/"):
        shown = folder.glob("*/") if folder.name in explained else ()
        for each in (folder, *shown):
            assert each.name == "__pycache__" or f"`{each.name}/`" in table, each


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    assert len(entries(PRODUCT)) <= 20
    assert len(set(entries(PRODUCT / "cli")) - {"commands"}) <= 14


def test_tests_lie_in_folders_named_as_those_of_what_they_test() -> None:
    for package in ("chunkstore", "metadata", "dieselfs"):
        for file in (ROOT / "tests" / package).rglob("test_*.py"):
            assert (ROOT / file.parent.relative_to(ROOT / "tests")).is_dir(), file
