"""`dlcmd alloc run`: divide a cluster's cache and remote IO among the jobs that are present."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from dieselfs.cli.arguments.cluster_resources import policy_option
from dieselfs.cli.command import command, log_to_stderr, size_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.stop_signals import StopSignals
from dieselfs.errors import RegistryUnavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dieselfs.allocation.allocator.allocator import Allocated, Allocator
    from dieselfs.allocation.directory.port import AllocationDirectory
    from dieselfs.allocation.kubernetes.kubernetes_jobs import KubernetesJobs

log = logging.getLogger(__name__)


@command(
    name="run",
    examples=[
        "dlcmd alloc run --remote-io 4GB/s --cache 2TiB",
        "dlcmd alloc run --policy max-min --remote-io 4GB/s",
        "dlcmd alloc run --remote-io 24MB/s --cache 300MiB --system quiver",
        "dlcmd alloc run --remote-io 4GB/s --cache 2TiB --kubernetes --namespace training",
    ],
)
@policy_option
@click.option(
    "--system",
    metavar="NAME",
    help="Whose cache: silod, algorithm-2, quiver or coordl (default: silod).",
)
@click.option(
    "--remote-io",
    metavar="RATE",
    required=True,
    help="What the store gives to the whole cluster.",
)
@size_option("--cache", help_text="The cache to divide (default: that of the cache cluster).")
@click.option(
    "--kubernetes",
    is_flag=True,
    help="Take the jobs of annotated pods, and annotate them with their shares.",
)
@click.option(
    "--namespace", metavar="NAME", help="The pods' namespace (default: that of this process)."
)
@click.option(
    "--annotation-prefix",
    metavar="PREFIX",
    envvar="DIESELFS_ANNOTATION_PREFIX",
    default="dieselfs.io/",
    show_default=True,
    help="The beginning of the names of annotations.",
)
def run_command(
    context: CommandContext,
    policy: str,
    system: str | None,
    remote_io: str,
    cache: int | None,
    kubernetes: bool,
    namespace: str | None,
    annotation_prefix: str,
) -> None:
    """Divide cache and remote IO among the jobs that read now, until it is interrupted.

    A job is present while one of its mounts or clients runs. It is known by --job, DIESELFS_JOB,
    SLURM_JOB_ID or the name of its task. How fast a job is and how often it reads its dataset is
    measured, or declared by `dlcmd alloc job add`. Decisions by hand stay.

    With --kubernetes, pods with the annotation dieselfs.io/dataset declare jobs by annotations, and
    are told their shares the same way.

    One allocator leads; others wait, and one of them takes over within 5 s when it is gone. Nothing
    depends on it: without any, all readers keep what they have. `dlcmd alloc show` shows what that
    is.
    """
    from dieselfs.allocation.allocator.allocator import Allocator, directory_readers
    from dieselfs.allocation.allocator.capacity import capacity_of
    from dieselfs.allocation.directory.directories import allocation_directory
    from dieselfs.allocation.job_table import byte_rate
    from dieselfs.allocation.policies.naming import named_policy

    if system == "alluxio":
        raise UsageError(
            "alluxio has no quotas to publish", "run no allocator: then the caches are LRU pools"
        )
    if namespace is not None and not kubernetes:
        raise UsageError("--namespace is that of the pods", "add --kubernetes")
    chosen = named_policy(policy, system)
    context = context.shared()
    capacity = capacity_of(context.config, cache, byte_rate("--remote-io", remote_io))
    log_to_stderr()
    pods = _connected(context, namespace, annotation_prefix) if kubernetes else None
    readers = directory_readers if pods is None else pods.leases
    allocator = Allocator(chosen, capacity, readers=readers)
    directory = allocation_directory(context.config.index.value)
    stop = StopSignals()
    context.output.line(f"allocating, in {directory}")
    try:
        if pods is not None:
            pods.start()
        _run(allocator, directory, pods, stop, lambda found: _report(context, found))
    finally:
        allocator.end(directory)
        directory.close()
        if pods is not None:
            pods.close()


def _connected(context: CommandContext, namespace: str | None, prefix: str) -> KubernetesJobs:
    from dieselfs.allocation.kubernetes.connection import connect

    return connect(context.config, namespace, prefix)


def _run(
    allocator: Allocator,
    directory: AllocationDirectory,
    pods: KubernetesJobs | None,
    stop: StopSignals,
    report: Callable[[Allocated], None],
) -> None:
    """Allocate until `stop` is received; a directory that is away is logged, and asked again."""
    from dieselfs.allocation.allocator.allocator import BEAT_S

    leader: str | None = None
    is_out = False
    while not stop.is_received:
        try:
            found = allocator.beat(directory)
            if pods is not None and not isinstance(found, str):
                pods.beat(directory)
        except RegistryUnavailable as error:
            if not is_out:
                log.warning("nothing is allocated now, and readers keep what they have: %s", error)
            is_out = True
        else:
            if is_out:
                log.warning("the directory answers again")
            is_out = False
            if isinstance(found, str):
                if pods is not None:
                    pods.rest()
                if found != leader:
                    log.warning("another allocator leads: %s; this one waits for its end", found)
                leader = found
            else:
                leader = None
                if found is not None:
                    report(found)
        stop.wait(BEAT_S)


def _report(context: CommandContext, found: Allocated) -> None:
    from dieselfs.cli.rendering.allocator_report import print_allocated

    print_allocated(context.output, found)
