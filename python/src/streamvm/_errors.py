"""The exceptions of the package. All but those of plain Python misuse (TypeError, ValueError, IndexError) have the base Error."""


class Error(Exception):
    """Any error of the engine."""


class UsageError(Error, ValueError):
    """A call was refused, and nothing was issued: shapes, dtypes or devices do not fit."""


class DTypeError(UsageError, TypeError):
    """An operation does not take tensors of this dtype."""


class OperationError(Error):
    """An operation failed after it was issued. Whoever waits for what it should have written gets this error, each time.

    `operation` names it, `stream` is where it ran, and `filename` and `lineno` are the line that issued it. The exception of a Python function is its `__cause__`.
    """

    operation: str
    stream: str
    filename: str
    lineno: int


class DeviceLostError(OperationError):
    """A device is gone. Nothing more runs on it; others go on."""


class OutOfMemoryError(Error, MemoryError):
    """There is not enough memory for a tensor."""


class ClosedError(Error):
    """The engine takes nothing more: it was closed, or this process was forked from the one that made it."""


class LentError(UsageError, BufferError):
    """A tensor cannot be changed while another library reads its memory."""


class StalledError(Error):
    """Pending work cannot go on."""


class DeadlockError(Error):
    """A function that the engine runs waits for work that may come after it."""


class RankError(Error):
    """Ranks cannot communicate: one did not join, is gone, or runs another version; MPI or NCCL is missing or refuses."""


class WaitTimeoutError(Error, TimeoutError):
    """A wait took longer than its limit. The work goes on."""
