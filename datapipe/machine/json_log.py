"""One JSON object a line for each event, for programs that collect logs.

{"time": "2026-11-23T09:00:00.123Z", "event": "task_committed", "step": "web/read", "seconds": 1.25}
"""

import json
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from datapipe.credentials import masked
from datapipe.errors import UserError


class JsonLog:
    """A log without credentials, in a file or for "-" on stdout. A disk that fails ends it."""

    def __init__(self, where: str) -> None:
        self._stream: TextIO | None = sys.stdout if where == "-" else None
        self._where = where
        self.is_on_stdout = where == "-"
        if not self.is_on_stdout:
            try:
                self._stream = open(Path(where), "a", encoding="utf-8")  # noqa: SIM115  # closed by `close`
            except OSError as error:
                raise UserError(f"--log-json {where}: {error.strerror}. Expected a file that can be written, or -.") from error

    def write(self, event: str, **facts: Any) -> None:
        if self._stream is None:
            return
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        try:
            line = masked(json.dumps({"time": time, "event": event, **facts}, ensure_ascii=False))
            self._stream.write(line.encode("utf-8", "backslashreplace").decode() + "\n")
            self._stream.flush()
        except OSError as error:
            self._stream = None
            warnings.warn(f"the log {self._where} ends here: {error.strerror}", stacklevel=2)

    def close(self) -> None:
        if not self.is_on_stdout and self._stream is not None:
            self._stream.close()
