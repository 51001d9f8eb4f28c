"""Reads and writes the files of linear models: Arrow IPC, one record batch, with a checksum.

    schema metadata "datapipe.linear"   JSON: version, kind, labels, word_bits, character_bits, scales, biases, checksum
    column "0", "1", …                  int32, entries of `kernels/learned/linear_scores.py`, a row a slot

The checksum covers the metadata without it and the columns. Numbers of float64 are written as hexadecimal text, exactly.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import xxhash

from datapipe.errors import UserError

MAGIC = b"ARROW1"
"""The first bytes of an Arrow IPC file."""

MOST_BITS = 26
_KEY, _VERSION = b"datapipe.linear", 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearFile:
    """The content of a model file.

    Attributes:
        kind: "classes" or "number".
        labels: of the classes; one name where a number is predicted.
        word_bits, character_bits: 2^bits slots, 0 for none.
        entries: (num_slots, num_columns) int32: one column for two classes or a number, else one for each class.
        scales, biases: (num_columns,) float64.
    """

    kind: Literal["classes", "number"]
    labels: tuple[str, ...]
    word_bits: int
    character_bits: int
    entries: np.ndarray
    scales: np.ndarray
    biases: np.ndarray


def num_columns(kind: str, labels: tuple[str, ...]) -> int:
    """Columns of weights: one tells two classes apart."""
    return 1 if kind == "number" or len(labels) == 2 else len(labels)


def file_bytes(file: LinearFile) -> bytes:
    """The bytes of a model file, the same for the same model."""
    columns = [np.ascontiguousarray(column) for column in file.entries.T]
    told: dict[str, Any] = {
        "version": _VERSION,
        "kind": file.kind,
        "labels": list(file.labels),
        "word_bits": file.word_bits,
        "character_bits": file.character_bits,
        "scales": [float(scale).hex() for scale in file.scales],
        "biases": [float(bias).hex() for bias in file.biases],
    }
    told["checksum"] = _checksum(told, columns)
    fields = [pa.field(str(number), pa.int32(), nullable=False) for number in range(len(columns))]
    schema = pa.schema(fields, {_KEY: json.dumps(told, ensure_ascii=False).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(column) for column in columns], schema=schema))
    return sink.getvalue().to_pybytes()


def _checksum(told: dict[str, Any], columns: list[np.ndarray]) -> str:
    digest = xxhash.xxh3_128(json.dumps(told, ensure_ascii=False, sort_keys=True).encode())
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
            told = json.loads(content)
            columns = [_column(path, column) for column in batch.columns]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _refusal(path, str(error).partition("\n")[0]) from error
    return _checked(path, told, columns)


def _column(path: Path, column: pa.Array) -> np.ndarray:
    if column.type != pa.int32() or column.null_count:
        raise _refusal(path, f"a column of {column.type}, expected int32 without nulls")
    return column.to_numpy().copy()


def _checked(path: Path, told: Any, columns: list[np.ndarray]) -> LinearFile:
    """The model that metadata and columns describe. Raises UserError where they are inconsistent."""
    if not isinstance(told, dict) or told.get("version") != _VERSION:
        version = told.get("version") if isinstance(told, dict) else None
        raise _refusal(path, f"version {version!r} of the format, expected {_VERSION}. A newer datapipe may have written it")
    checksum = told.pop("checksum", None)
    if checksum != _checksum(told, columns):
        raise _refusal(path, "its checksum differs: the file is damaged. Copy or train it again")
    try:
        file = LinearFile(
            kind=told["kind"],
            labels=tuple(told["labels"]),
            word_bits=told["word_bits"],
            character_bits=told["character_bits"],
            entries=np.ascontiguousarray(np.stack(columns, axis=1)) if columns else np.empty((0, 0), np.int32),
            scales=np.array([float.fromhex(scale) for scale in told["scales"]]),
            biases=np.array([float.fromhex(bias) for bias in told["biases"]]),
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
