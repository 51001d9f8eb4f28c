"""Reads files through a reader, as the engine does, into plain Python."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from datapipe.errors import DamagedInputError, UnsplittableInputError
from datapipe.stage import FieldNames, InputFile, OpenInput, Reader, Split
from datapipe.stage.decoding import COMPRESSION_OF_ENDING
from datapipe.storage.root import open_input


@dataclass
class ReadResult:
    """What a reader made of a file: (place, text, id) of each document, (place, error) of each reject, kept columns."""

    documents: list[tuple[int, str, str | None]] = field(default_factory=list)
    rejected: list[tuple[int, str]] = field(default_factory=list)
    is_damage: list[bool] = field(default_factory=list)
    """Of each reject, whether it is damage of the file."""

    extra: dict[str, list[Any]] = field(default_factory=dict)
    excerpts: list[bytes] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    batch_bytes: list[int] = field(default_factory=list)
    input_bytes: int = 0
    passed_over: Counter[str] = field(default_factory=Counter)

    @property
    def texts(self) -> list[str]:
        return [text for _, text, _ in self.documents]

    @property
    def ids(self) -> list[str | None]:
        return [one for _, _, one in self.documents]

    @property
    def places(self) -> list[int]:
        return [place for place, _, _ in self.documents]

    @property
    def rejected_places(self) -> list[int]:
        return [place for place, _ in self.rejected]

    @property
    def told(self) -> tuple[object, ...]:
        """All but how the documents come in batches."""
        return self.documents, self.rejected, self.is_damage, self.excerpts, self.extra, self.input_bytes, self.passed_over


def text_at(
    reader: Reader, file: InputFile, position: int, fields: FieldNames | None = None, open_input: OpenInput = open_input
) -> str | None:
    """The text of the document at a position, of a page its bytes as text; None where there is none."""
    found = reader.find(file, position, fields or FieldNames(), open_input)
    text = None if found is None else found[1].content[found[2]].as_py()
    return text.decode() if isinstance(text, bytes) else text


def input_file(path: Path, content: bytes | None = None, reader: Reader | None = None) -> InputFile:
    """The file as planning sees it, written first where content is given."""
    if content is not None:
        path.write_bytes(content)
    compression = COMPRESSION_OF_ENDING.get(path.suffix)
    found = InputFile(
        url=str(path), path=path.name, num_bytes=path.stat().st_size, stamp="", compression=compression, row_groups=()
    )
    if reader is None:
        return found
    try:
        return reader.probe(found, open_input)
    except DamagedInputError as error:
        return replace(found, damage=str(error))


def read_splits(
    reader: Reader, splits: Sequence[Split], fields: FieldNames | None = None, opened: OpenInput | None = None
) -> ReadResult:
    """All that a reader finds in some splits, one after the other. A page is decoded as UTF-8."""
    found = ReadResult()
    for split in splits:
        for batch in reader.read(split, fields or FieldNames(), opened or open_input):
            assert len(batch.positions) == len(batch.content) == len(batch.ids)
            assert batch.ids.type == pa.large_string()
            assert batch.content.type == (pa.large_string() if reader.gives == "text" else pa.large_binary())
            for column in (batch.content, batch.ids, *batch.extra.values()):
                column.validate(full=True)
                assert len(column) == len(batch.positions)
            contents = [text if isinstance(text, str) else text.decode(errors="replace") for text in batch.content.to_pylist()]
            found.documents += zip(batch.positions.tolist(), contents, batch.ids.to_pylist())
            found.rejected += [(one.position, one.error) for one in batch.rejected]
            found.is_damage += [one.is_file_damage for one in batch.rejected]
            found.excerpts += [one.excerpt for one in batch.rejected]
            found.batch_sizes.append(len(batch.positions))
            found.batch_bytes.append(batch.content.nbytes)
            found.input_bytes += batch.input_bytes
            found.passed_over.update(batch.passed_over)
            for name, column in batch.extra.items():
                found.extra.setdefault(name, []).extend(column.to_pylist())
    return found


def read_file(reader: Reader, file: InputFile, fields: FieldNames | None = None) -> ReadResult:
    return read_splits(reader, [Split(file=file)], fields)


def in_ranges(
    reader: Reader,
    file: InputFile,
    borders: Sequence[int],
    fields: FieldNames | None = None,
    *,
    is_of_content: bool = False,
) -> tuple[object, ...] | None:
    """All that ranges with these borders hold; None where one says that the file cannot be cut there."""
    ends = pairwise([0, *borders, None if is_of_content else file.num_bytes])
    splits = [Split(file=file, start=start or 0, stop=stop, is_of_content=is_of_content) for start, stop in ends]
    try:
        return read_splits(reader, splits, fields).told
    except UnsplittableInputError:
        return None


def broken_storage(fails_at: int) -> OpenInput:
    """Opens files on a disk that gives nothing from byte `fails_at` on."""

    class Failing:
        closed = False

        def __init__(self, url: str) -> None:
            self.stream = open(url, "rb")  # noqa: SIM115

        def read(self, num_bytes: int = -1) -> bytes:
            at = self.stream.tell()
            if num_bytes < 0 or at + num_bytes > fails_at:
                raise OSError(5, "the disk is gone")
            return self.stream.read(num_bytes)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.stream, name)

    def opened(url: str) -> pa.NativeFile:
        return pa.PythonFile(Failing(url), mode="r")

    return opened
