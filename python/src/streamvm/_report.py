"""Why streams were idle, of a trace."""

import json
from os import PathLike
from typing import Any

from ._core import Recording


class Report:
    """What the trace of a run tells: how each stream spent its time, why it was idle, the critical path, and whose the memory was.

    `str()` has what `streamvm report` prints, `data` what it prints with `--json`. A notebook shows the text.
    """

    data: dict[str, Any]

    def __init__(self, trace: str | PathLike[str], before: str | PathLike[str] | None = None) -> None:
        self._recording = Recording(trace)
        self._text, data = self._recording.report(None if before is None else Recording(before))
        self.data = json.loads(data)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._text

    def write_page(self, file: str | PathLike[str]) -> None:
        """Writes a page for the browser: the report of `trace`, and a card for each of its instructions. It is one file that needs no network.

        Raises OSError if it cannot be written, ValueError if it would overwrite the trace.
        """
        self._recording.write_page(file)


def report(trace: str | PathLike[str], *, before: str | PathLike[str] | None = None) -> Report:
    """Reads the trace in a file, which an engine has written; with `before` the report compares it with that of an earlier run.

    Raises OSError if a file cannot be read, ValueError if it is no trace.
    """
    return Report(trace, before)
