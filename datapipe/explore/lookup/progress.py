"""The progress of the look-up file: documents, rate and time left."""

from __future__ import annotations

from typing import TextIO

_TERMINAL_EVERY_S = 0.5
_FIRST_S = 1.0


class Progress:
    """Writes progress to a terminal, in place, or to a log, each time that the seconds have doubled."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._is_terminal = stream, stream.isatty()
        self._next_s, self._has_line = _FIRST_S, False

    def __call__(self, done: int, total: int, seconds: float) -> None:
        """Tells that `done` of `total` documents are in the file after some seconds."""
        if seconds >= self._next_s and done < total:
            self._next_s = seconds + _TERMINAL_EVERY_S if self._is_terminal else 2 * seconds
            rate = done / seconds
            line = f"look-up file: {done:,} of {total:,} documents, {rate:,.0f}/s, {_time((total - done) / rate)} left"
            self._stream.write(f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")
            self._has_line = True
        elif done == total and self._has_line:
            self._stream.write("\r\x1b[K" if self._is_terminal else "")
            self._stream.write(f"look-up file: sorting {total:,} documents\n")
        self._stream.flush()


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
