"""A new file with the checksum of the bytes written to it, so that nothing has to be read back.
A store may store a file while its answer is lost: `close` then looks the file up, and raises only where it is not there.
"""

from collections.abc import Callable, Iterable
from typing import Any, Self

import pyarrow as pa
import xxhash

LookUp = Callable[[int, str], bool]  # (bytes, checksum) -> whether the file is there with this content


def checksum_of(hasher: xxhash.xxh3_128) -> str:
    return f"xxh3_128:{hasher.hexdigest()}"


def chunks_checksum(chunks: Iterable[Any]) -> tuple[str, int]:
    hasher, num_bytes = xxhash.xxh3_128(), 0
    for chunk in chunks:
        hasher.update(chunk)
        num_bytes += len(chunk)
    return checksum_of(hasher), num_bytes


class _Sink:
    def __init__(self, stream: Any, look_up: LookUp) -> None:
        self._stream, self._look_up = stream, look_up
        self.hasher, self.num_bytes = xxhash.xxh3_128(), 0

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def write(self, content: Any) -> int:
        self._stream.write(content)
        self.hasher.update(content)
        self.num_bytes += len(content)
        return len(content)

    def tell(self) -> int:
        return self.num_bytes

    def flush(self) -> None:
        self._stream.flush()

    def abandon(self) -> None:
        if not isinstance(self._stream, pa.NativeFile):  # a local file stays, without a reader
            self._stream.abandon()

    def close(self) -> None:
        try:
            self._stream.close()
        except OSError:
            if not self._look_up(self.num_bytes, checksum_of(self.hasher)):
                raise


class OutputStream(pa.PythonFile):
    """A stream to a new file; made by `to`. `num_bytes` and `checksum` are of the bytes written so far."""

    def __init__(self, sink: _Sink, mode: str) -> None:
        self.sink = sink

    @classmethod
    def to(cls, stream: Any, look_up: LookUp) -> Self:
        return cls(_Sink(stream, look_up), mode="w")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # an object of a part of the content never appears
            self.sink.abandon()
        self.close()

    @property
    def num_bytes(self) -> int:
        return self.sink.num_bytes

    @property
    def checksum(self) -> str:
        return checksum_of(self.sink.hasher)
