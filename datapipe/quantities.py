"""Numbers in words: sizes, durations, rates, counts with their nouns."""

from collections.abc import Sequence
from itertools import pairwise


def rate_mb_per_s(num_bytes: int, seconds: float) -> float | None:
    """Millions of bytes per second, or None where nothing was timed."""
    return num_bytes / 1e6 / seconds if seconds > 0 else None


def size(num_bytes: float) -> str:
    """Bytes with a unit, in steps of 1,000: "1.2 MB"."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000 or unit == "TB":
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1000
    raise AssertionError


def duration(seconds: float) -> str:
    """1:05, or 2:03:04."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def rough_duration(seconds: float) -> str:
    """A time with one unit: "20 seconds", "3 hours"."""
    units = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
    unit, length = next(((unit, length) for unit, length in units if seconds >= 1.5 * length), units[-1])
    return counted(max(1, round(seconds / length)), unit)


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: "1 file", "1,200 files". A plural that is not the noun with an s is given."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def spans(borders: Sequence[float]) -> list[str]:
    """The intervals between ascending borders: "below 2", "2 to below 10", "from 10"."""
    listed = [f"{border:g}" for border in borders]
    return [f"below {listed[0]}", *(f"{low} to below {high}" for low, high in pairwise(listed)), f"from {listed[-1]}"]
