"""The records of a ledger in memory: each compressed against another one of its step, 0.6 kB where its objects take 7 kB.

A driver has the records of all tasks of a run, so their size decides how many tasks a run may have.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from sys import intern
from typing import Any

import numpy as np
import xxhash
import zstandard
from pydantic_core import from_json

from datapipe.dataclass import dataclass, field
from datapipe.metrics import TaskMetrics
from datapipe.records.commit_files import Line, outputs_of, sealed
from datapipe.records.outputs import Content, Outputs, Record

_LEVEL = 3
_MOST_PATTERNS = 4  # of a step


class _Pattern:
    """Compresses texts that are like a first one."""

    def __init__(self, text: bytes) -> None:
        self.dictionary = zstandard.ZstdCompressionDict(text, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        self.text_of(self.packed(text))  # so that threads find the dictionary prepared

    def packed(self, text: bytes) -> bytes:
        # a compressor has 180 kB, too much for each step of a plan, and is made in 0.01 ms
        compressor = zstandard.ZstdCompressor(level=_LEVEL, dict_data=self.dictionary, write_dict_id=False)
        return memoryview(compressor.compress(text)).tobytes()  # the compressor's own object keeps room for more

    def text_of(self, packed: bytes) -> bytes:
        return zstandard.ZstdDecompressor(dict_data=self.dictionary).decompress(packed)  # threads may not share one


@dataclass(frozen=True, slots=True)
class PackedLine:
    """A line of the ledger; the content of its record is decoded when it is asked for."""

    fingerprint: str
    pattern: _Pattern
    packed: bytes

    @property
    def line(self) -> Line:
        attempt, _, content = self.pattern.text_of(self.packed).partition(b"\t")
        return sealed(self.fingerprint, attempt.decode(), content)

    @property
    def attempt(self) -> str:
        return self.pattern.text_of(self.packed).partition(b"\t")[0].decode()

    @property
    def outputs(self) -> Outputs:
        return outputs_of(self._json())

    @property
    def metrics(self) -> TaskMetrics:
        return TaskMetrics.from_json(self._json()["metrics"])

    @property
    def content(self) -> Content:
        data = self._json()
        return Content(outputs_of(data), TaskMetrics.from_json(data["metrics"]))

    def record(self) -> Record:
        return self.record_and_files()[0]

    def record_and_files(self) -> tuple[Record, list[tuple[str, int]]]:
        """The record, and the path and the bytes of each of its files."""
        data = self._json()
        files = [(file["path"], file["bytes"]) for group in data["outputs"].values() for file in group]
        return Record(intern(data["step"]), self.fingerprint, self, intern(data.get("versions", ""))), files

    def _json(self) -> Mapping[str, Any]:
        return from_json(self.pattern.text_of(self.packed).partition(b"\t")[2])


@dataclass(slots=True)
class Packer:
    """Packs lines, for one thread."""

    _patterns: dict[str, list[_Pattern]] = field(default_factory=dict)  # by step, the newest last

    def packed(self, line: Line) -> PackedLine:
        """A line that has little in common with the pattern of its step becomes the pattern of those that follow."""
        text = line.attempt.encode() + b"\t" + line.content
        patterns = self._patterns.setdefault(line.attempt.rpartition("/")[0], [])
        packed = patterns[-1].packed(text) if patterns else text
        if 2 * len(packed) > len(text) and len(patterns) < _MOST_PATTERNS:
            patterns.append(_Pattern(text))
            packed = patterns[-1].packed(text)
        return PackedLine(line.fingerprint, patterns[-1], packed)


class Hashes:
    """A set of so many texts that their 64-bit hashes alone are kept, 8 bytes each. One of 10^8 texts is taken for another one
    with a probability of 10^-11."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        hashes = np.fromiter(map(_hash, texts), np.uint64)
        self._sorted = array("Q", np.sort(hashes).tobytes())

    def __contains__(self, text: str) -> bool:
        digest = _hash(text)
        place = bisect_left(self._sorted, digest)
        return place < len(self._sorted) and self._sorted[place] == digest


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogateescape"))
