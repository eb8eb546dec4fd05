def install(exit_code: int, /) -> None:
    """Let SIGABRT, SIGBUS and SIGSEGV inside `enter` and `leave` end the process with this code.

    The handlers that were there before get the signals that come anywhere else.
    """

def enter(message: bytes, mark: bytes, /) -> None:
    """From now on a signal that meets this thread creates the file `mark` and prints `message`.

    `mark` is a path without a null byte; `message` goes to standard error as it is.
    """

def leave() -> None:
    """This thread has nothing to tell any more."""
