"""Linear models over hashed n-grams: their files, and the scores of many texts per call, without the GIL.

    texts  ─ slices ─▶  without case (`case_folding.py`)  ─▶  sums (`linear_scores.py`)  ─▶  probabilities, or a number

Memory: a few times a slice, or the longest text, and a byte and a half a slot. A file is Arrow IPC, one record batch:

    schema metadata "datapipe.linear"   JSON: version, kind, labels, word_bits, character_bits, scales, biases, checksum
    column "0", "1", …                  int32, entries of `kernels/learned/linear_scores.py`, a row a slot

The checksum covers the metadata without it and the columns. Numbers of float64 are written as hexadecimal text, exactly.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import xxhash

from datapipe.columns import byte_slices
from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.kernels.dedup.case_folding import fold_texts, visible_folding
from datapipe.kernels.learned import linear_scores as kernels
from datapipe.kernels.learned.text_features import character_kinds, room_for_counting
from datapipe.kernels.text.replace import copy_spans
from datapipe.kernels.types import input_record

SLICE_BYTES = 1 << 22  # bytes of text that are folded at once; a longer text is a slice by itself
MAGIC = b"ARROW1"  # the first bytes of an Arrow IPC file
MOST_BITS = 26
_KEY, _VERSION = b"datapipe.linear", 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearFile:
    kind: Literal["classes", "number"]
    labels: tuple[str, ...]  # of the classes; one name where a number is predicted
    # word_bits, character_bits: 2^bits slots, 0 for none
    word_bits: int
    character_bits: int
    # (num_slots, num_columns) int32: one column for two classes or a number, else one for each class
    entries: np.ndarray
    # scales, biases: (num_columns,) float64
    scales: np.ndarray
    biases: np.ndarray


def num_columns(kind: str, labels: tuple[str, ...]) -> int:
    """Columns of weights: one separates two classes."""
    return 1 if kind == "number" or len(labels) == 2 else len(labels)


def file_bytes(file: LinearFile) -> bytes:
    """The bytes of a model file, the same for the same model."""
    columns = [np.ascontiguousarray(column) for column in file.entries.T]
    metadata: dict[str, Any] = {
        "version": _VERSION,
        "kind": file.kind,
        "labels": list(file.labels),
        "word_bits": file.word_bits,
        "character_bits": file.character_bits,
        "scales": [float(scale).hex() for scale in file.scales],
        "biases": [float(bias).hex() for bias in file.biases],
    }
    metadata["checksum"] = _checksum(metadata, columns)
    fields = [pa.field(str(number), pa.int32(), nullable=False) for number in range(len(columns))]
    schema = pa.schema(fields, {_KEY: json.dumps(metadata, ensure_ascii=False).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(column) for column in columns], schema=schema))
    return sink.getvalue().to_pybytes()


def _checksum(metadata: dict[str, Any], columns: list[np.ndarray]) -> str:
    digest = xxhash.xxh3_128(json.dumps(metadata, ensure_ascii=False, sort_keys=True).encode())
    for column in columns:
        digest.update(column.tobytes())
    return digest.hexdigest()


def read_file(path: Path) -> LinearFile:
    """Reads and checks a model file. Raises UserError."""
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            content = (reader.schema.metadata or {}).get(_KEY)
            if content is None:
                raise _refusal(path, "an Arrow file without the metadata of a model")
            if reader.num_record_batches != 1:
                raise _refusal(path, f"{reader.num_record_batches} record batches, expected 1")
            batch = reader.get_batch(0)
            batch.validate(full=True)
            metadata = json.loads(content)
            columns = [_column(path, column) for column in batch.columns]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _refusal(path, str(error).partition("\n")[0]) from error
    return _checked(path, metadata, columns)


def _column(path: Path, column: pa.Array) -> np.ndarray:
    if column.type != pa.int32() or column.null_count:
        raise _refusal(path, f"a column of {column.type}, expected int32 without nulls")
    return column.to_numpy().copy()


def _checked(path: Path, metadata: Any, columns: list[np.ndarray]) -> LinearFile:
    if not isinstance(metadata, dict) or metadata.get("version") != _VERSION:
        version = metadata.get("version") if isinstance(metadata, dict) else None
        raise _refusal(path, f"version {version!r} of the format, expected {_VERSION}. A newer datapipe may have written it")
    checksum = metadata.pop("checksum", None)
    if checksum != _checksum(metadata, columns):
        raise _refusal(path, "its checksum differs: the file is damaged. Copy or train it again")
    try:
        file = LinearFile(
            kind=metadata["kind"],
            labels=tuple(metadata["labels"]),
            word_bits=metadata["word_bits"],
            character_bits=metadata["character_bits"],
            entries=np.ascontiguousarray(np.stack(columns, axis=1)) if columns else np.empty((0, 0), np.int32),
            scales=np.array([float.fromhex(scale) for scale in metadata["scales"]]),
            biases=np.array([float.fromhex(bias) for bias in metadata["biases"]]),
        )
        if not _fits(file):
            raise _refusal(path, "its labels, bits and numbers do not fit together")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refusal(path, f"metadata of another form: {error}") from error
    return file


def _fits(file: LinearFile) -> bool:
    """Whether the kernels stay within the arrays of a model."""
    columns, bits = num_columns(file.kind, file.labels), (file.word_bits, file.character_bits)
    return (
        (len(file.labels) == 1 if file.kind == "number" else file.kind == "classes" and len(file.labels) > 1)
        and all(type(number) is int and 0 <= number <= MOST_BITS for number in bits)
        and file.entries.shape == (sum(1 << number for number in bits if number), columns)
        and file.scales.shape == file.biases.shape == (columns,)
        and bool(np.isfinite([*file.scales, *file.biases]).all())
    )


def _refusal(path: Path, why: str) -> UserError:
    return UserError(f"{path} is no linear model ({why}). Expected a file that `datapipe classifier train` wrote.")


def folded_slices(starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Texts in the form that features are counted in, in slices: their numbers, offsets (num_docs + 1,) int64, and bytes."""
    for first, last in byte_slices(stops - starts, SLICE_BYTES):
        yield slice(first, last), *fold_texts(*_contiguous(starts[first:last], stops[first:last], data), visible_folding())


def _contiguous(starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if np.array_equal(starts[1:], stops[:-1]):
        return np.append(starts, stops[-1:]).astype(np.int64), data
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(stops - starts)])
    out = np.empty(int(offsets[-1]), np.uint8)
    copy_spans(np.ascontiguousarray(starts), np.ascontiguousarray(stops), data, out)
    return offsets, out


class LinearModel:
    def __init__(self, file: LinearFile) -> None:
        self.labels = file.labels
        self.kind: Literal["classes", "number"] = file.kind
        self._bits = max(file.word_bits, file.character_bits)
        fields = (character_kinds(), file.word_bits, file.character_bits, file.entries, file.scales, file.biases)
        self._weights = input_record(kernels.Weights, fields)

    def sums(self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> np.ndarray:
        """What the features of each text sum up to, (num_docs, num_columns) float64; arguments as for `scores`."""
        sums, scratch = np.empty((len(starts), len(self._weights.biases))), room_for_counting(self._bits)
        for part, offsets, folded in folded_slices(starts, stops, data):
            kernels.weigh_texts(offsets, folded, self._weights, scratch, sums[part])
        return sums

    def scores(self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> np.ndarray:
        """The scores of texts `data[starts[i] : stops[i]]`, one column for each label: (num_docs,
        num_labels) float32. They follow from the text and the model alone."""
        sums = self.sums(starts, stops, data)
        if self.kind == "number":
            return sums.astype(np.float32)
        scores = np.empty((len(starts), len(self.labels)), np.float32)
        kernels.sigmoids(sums, scores)
        return scores
