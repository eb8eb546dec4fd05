"""The guardian itself, a program of its own: waits for the death of the process that started it, then aborts one
FUSE connection. `python -I -S guardian_process.py DAEMON_PID CONNECTION`

Having the connection's controls in hand, it also lets more READs wait at a time than the kernel's own 12: that many readers that wait for a store
would else keep all others from what is in memory.

Imports as little as it can: it lives as long as the mount. Its one line on stdout says whether it is on guard:
`armed`, or why not. Why it works as it does: see `dieselfs.fuse.guardian`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_libc = ctypes.CDLL(None, use_errno=True)
MAX_BACKGROUND = 128
"""READs ahead that the kernel sends before the first is answered; their readers may be as many."""
_FUSECTL = "/sys/fs/fuse/connections"
_DEATH = signal.SIGUSR1
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT)

# <linux/prctl.h>, <linux/mount.h>. The numbers of system calls this young (Linux 5.2) are the same on all processors.
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_FSOPEN = 430
_FSCONFIG = 431
_FSMOUNT = 432
_FSCONFIG_CMD_CREATE = 6
_CLOEXEC = 1


def main() -> int:
    daemon, connection = int(sys.argv[1]), sys.argv[2]
    try:
        _ask_for_signal(daemon)
        switch = _open_control(connection, "abort")
        _let_wait(connection)
    except OSError as error:
        _report(error.strerror or "unknown error")
        return 1
    _report("armed")
    # Anybody with our user id may send the signal; only the kernel, or the daemon itself, in the daemon's name.
    while signal.sigwaitinfo([_DEATH]).si_pid != daemon:
        pass
    os.write(switch, b"1")  # nothing happens if the connection has ended
    os.write(2, f"guardian: connection {connection} of daemon {daemon} is aborted\n".encode())
    return 0


def _ask_for_signal(daemon: int) -> None:
    """Let the kernel send us `_DEATH` when the daemon's main thread dies."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [_DEATH])
    _libc.prctl(_PR_SET_NAME, b"dlcmd-guardian")
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, int(_DEATH)))
    if os.getppid() != daemon:  # it died before we asked
        raise ProcessLookupError(0, "the daemon is gone")


def _open_control(connection: str, name: str) -> int:
    """A descriptor of a file of the connection, in the system's fusectl or in one mounted nowhere."""
    try:
        return os.open(f"{_FUSECTL}/{connection}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        if os.geteuid() != 0:
            raise type(error)(
                error.errno, f"{error.filename}: {error.strerror} (is fusectl mounted?)"
            ) from None
    root = _detached_fusectl()
    try:
        return os.open(f"{connection}/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=root)
    finally:
        os.close(root)


def _let_wait(connection: str) -> None:
    """Above the system's limit for ordinary users (fuse.max_user_bgreq) nothing changes."""
    try:
        control = _open_control(connection, "max_background")
        try:
            os.write(control, b"%d" % MAX_BACKGROUND)
        finally:
            os.close(control)
    except OSError:
        pass


def _detached_fusectl() -> int:
    """A descriptor of a fusectl's root that is in no mount namespace: nobody sees it, and it pins no other mount."""
    context = _checked(_libc.syscall(_FSOPEN, b"fusectl", _CLOEXEC))
    try:
        _checked(_libc.syscall(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0))
        return _checked(_libc.syscall(_FSMOUNT, context, _CLOEXEC, 0))
    finally:
        os.close(context)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"fusectl: {os.strerror(number)}")
    return result


def _report(text: str) -> None:
    """Say it, and that nothing more will follow."""
    os.write(1, f"{text}\n".encode())
    os.dup2(2, 1)


if __name__ == "__main__":
    sys.exit(main())
