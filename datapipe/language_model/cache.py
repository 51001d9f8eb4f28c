"""Answers on disk: one file that is appended to, and a lock.

    CACHE/answers.jsonl    one line an answer:  checksum (16 hex digits)  space  JSON object with `key`  newline

    key of a request ─▶ `get` ─▶ Answer or None          answer ─▶ `put` ─▶ appended and fsynced, and only then does it exist

The key covers the whole body of the request and how often it was asked before. Answers that come during
a sync are written together by the next one. A killed process leaves at most a line without an end,
which the next one cuts off. A line without its checksum is skipped and counted; its answer is asked for
again. Memory: an index of about 150 bytes an answer. A second process at the same cache is refused.
"""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

import xxhash

from datapipe.dataclass import asdict, dataclass
from datapipe.errors import UserError
from datapipe.machine.files import lock_file, sync, write_at

_FILE = "answers.jsonl"
_CHECKSUM_CHARS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A model's answer. `finish_reason`: "stop", "length" where it was cut off, or another word of
    the API; None, as of tokens, where the server does not send it."""

    content: str
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


def request_key(body: Mapping[str, Any]) -> str:
    """The identity of a request: 32 hex digits."""
    canonical = json.dumps([body, 0], ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(canonical.encode("utf-8", "surrogatepass"))


class AnswerCache:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.num_damaged = 0
        self._file = file
        self._offsets: dict[bytes, int] = {}
        self._pending: list[tuple[str, bytes]] = []
        self._writing = asyncio.Lock()
        self._failure: OSError | None = None

    def load(self) -> Self:
        """Reads the file once for its index, and cuts off what a killed process left of a line."""
        offset = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                os.ftruncate(self._file.fileno(), offset)
                break
            record = _checked(line)
            if record is None:
                self.num_damaged += 1
            else:
                self._offsets[bytes.fromhex(record["key"])] = offset
            offset += len(line)
        return self

    def get(self, key: str) -> Answer | None:
        offset = self._offsets.get(bytes.fromhex(key))
        if offset is None:
            return None
        self._file.seek(offset)
        record = _checked(self._file.readline())
        if record is None or record["key"] != key:  # changed since it was loaded
            del self._offsets[bytes.fromhex(key)]
            self.num_damaged += 1
            return None
        return Answer(**{name: value for name, value in record.items() if name != "key"})

    async def put(self, key: str, answer: Answer) -> None:
        """Stores an answer. It is on disk when this returns. Raises OSError, then and at every later call."""
        text = json.dumps({"key": key, **asdict(answer)}, ensure_ascii=True).encode()
        self._pending.append((key, f"{xxhash.xxh3_64_hexdigest(text)} ".encode() + text + b"\n"))
        async with self._writing:
            if self._failure is not None:
                raise self._failure
            if self._pending:  # else the holder before has written it, too
                lines, self._pending = self._pending, []
                await asyncio.shield(asyncio.to_thread(self._append, lines))

    def _append(self, lines: list[tuple[str, bytes]]) -> None:
        descriptor = self._file.fileno()
        try:
            offset = os.fstat(descriptor).st_size  # no seek: `get` reads by the position of the same file
            write_at(descriptor, b"".join(line for _, line in lines), offset)
            os.fsync(descriptor)
        except OSError as error:
            self._failure = error
            raise
        for key, line in lines:
            self._offsets[bytes.fromhex(key)] = offset
            offset += len(line)


@contextmanager
def open_cache(folder: Path) -> Iterator[AnswerCache]:
    """The cache in a folder, which is made where it is missing. Raises UserError where another process uses it."""
    path = folder / _FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = lock_file(path)
    except BlockingIOError as error:
        raise UserError(
            f"{path}: another process writes answers here. Wait for it to end, stop it, or give another --cache"
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}. Expected a folder on a local disk") from error
    with open(descriptor, "r+b") as file:
        sync(folder)
        yield AnswerCache(path, file).load()


def _checked(line: bytes) -> dict[str, Any] | None:
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if len(checksum) != _CHECKSUM_CHARS or checksum != xxhash.xxh3_64_hexdigest(text).encode():
        return None
    return json.loads(text)
