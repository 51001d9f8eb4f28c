"""Reads and checks the model files of fastText 0.9, `.ftz` and `.bin`.

A file holds, in this order: magic and version; the options of training; the dictionary (words, then labels, each with its
count) and the buckets that pruning left; the input matrix; the output matrix. A dense matrix stays in the mapped file, so the
workers of a machine share its pages. Inconsistent files are refused, so that the kernels can trust the numbers.
"""

import math
import mmap
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.errors import UserError

MAGIC, _VERSIONS = 793712314, (11, 12)
SUPERVISED = 3
LABEL = b"__label__"  # the prefix of labels in the file
NO_COUNT = 10**15  # fastText's count of a tree node without a count yet. All real counts are lower.
LOSSES = range(1, 5)
TREE, NEGATIVES, SOFTMAX, ONE_VS_ALL = LOSSES  # the losses of training, as numbered in the file
_CENTROIDS = 256
_MOST_DIMENSIONS = 1 << 31
_AFTER_WORD = 1 + 8 + 1  # the NUL, the count, the kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    dim: int
    run_words: int
    loss: int
    num_buckets: int
    min_chars: int
    max_chars: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Dictionary:
    # starts, stops: (num_entries,) int64, in the file
    starts: np.ndarray
    stops: np.ndarray
    kinds: np.ndarray  # (num_entries,) uint8, 1 for labels
    num_words: int  # the number of words; the entries after them are labels
    counts: np.ndarray  # (num_labels,) int64, the occurrences of each label in training
    # (num_left, 2) int32, the buckets that pruning left and their rows after the words; None without pruning
    pruned: np.ndarray | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """Rows of float32: dense (num_rows, dim), or `centroids[codes]` times `norms`, and dense is (0, dim)."""

    dense: np.ndarray
    codes: np.ndarray  # (num_rows, parts) uint8
    centroids: np.ndarray  # (parts, 256, dim of a part) float32
    norms: np.ndarray  # (num_rows,) float32

    @property
    def num_rows(self) -> int:
        return max(len(self.dense), len(self.codes))

    def directions(self) -> np.ndarray:
        """The rows without their norms, (num_rows, dim) float32, aligned."""
        if len(self.dense):
            return np.array(self.dense, np.float32)
        parts = [self.centroids[part, self.codes[:, part]] for part in range(self.codes.shape[1])]
        return np.ascontiguousarray(np.concatenate(parts, axis=1)[:, : self.dense.shape[1]])


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFile:
    """The content of a model file: `data` is the mapped file, into which the dictionary holds offsets; rows of `matrix` are
    those of words, then of buckets, of `output` those of labels, or of inner nodes."""

    path: Path
    data: np.ndarray
    labels: tuple[str, ...]
    options: Options
    dictionary: Dictionary
    matrix: Matrix
    output: Matrix


class _File:
    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0
        try:
            with path.open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file
            raise self.refusal(getattr(error, "strerror", None) or "it is empty") from error
        self.data = np.frombuffer(self.map, np.uint8)

    def refusal(self, why: str) -> UserError:
        return UserError(f"{self.path} is no fastText model ({why}). Expected a .ftz or .bin file such as lid.176.ftz.")

    def numbers(self, layout: str) -> tuple[Any, ...]:
        """The next numbers, as `struct` names them."""
        return struct.unpack(f"<{layout}", self.array(np.uint8, struct.calcsize(f"<{layout}")).tobytes())

    def array(self, dtype: Any, *shape: int) -> np.ndarray:
        """The next array: a view of the file, possibly unaligned."""
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if min(shape) < 0 or self.offset + num_bytes > len(self.data):
            raise self.refusal(f"its {len(self.data):,} bytes end early")
        array = np.ndarray(shape, dtype, self.map, self.offset)
        self.offset += num_bytes
        return array


def read_labels(path: Path) -> tuple[str, ...]:
    """The labels of a model without fastText's prefix, in the order of the file. Reads no matrix. Raises UserError."""
    status = path.stat() if path.is_file() else None
    return _labels(path, (status.st_mtime_ns, status.st_size) if status else ())


@lru_cache(maxsize=8)
def _labels(path: Path, _stamp: tuple[int, ...]) -> tuple[str, ...]:
    file = _File(path)
    _read_options(file)
    return _labels_of(file, _read_dictionary(file))


def _labels_of(file: _File, dictionary: Dictionary) -> tuple[str, ...]:
    spans = zip(dictionary.starts[dictionary.num_words :].tolist(), dictionary.stops[dictionary.num_words :].tolist())
    return tuple(file.map[start:stop].removeprefix(LABEL).decode("utf-8", "replace") for start, stop in spans)


def read_model(path: Path) -> ModelFile:
    """Reads a model file. Raises UserError."""
    file = _File(path)
    options, dictionary = _read_options(file), _read_dictionary(file)
    quantised = bool(file.numbers("B")[0])
    matrix = _read_matrix(file, quantised)
    output = _read_matrix(file, bool(file.numbers("B")[0]) and quantised)
    _check(file, options, dictionary, matrix, output)
    labels = _labels_of(file, dictionary)
    return ModelFile(
        path=path, data=file.data, labels=labels, options=options, dictionary=dictionary, matrix=matrix, output=output
    )


def _read_options(file: _File) -> Options:
    magic, version = file.numbers("2i")
    if magic != MAGIC:
        raise file.refusal("its first bytes differ")
    if version not in _VERSIONS:
        raise file.refusal(f"version {version} of the format, expected 11 or 12")
    dim, _, _, _, _, run_words, loss, kind, num_buckets, min_chars, max_chars, _, _ = file.numbers("12id")
    if kind != SUPERVISED:
        raise file.refusal("it holds vectors of words and no labels")
    if loss not in LOSSES:
        raise file.refusal(f"loss {loss}, expected {LOSSES.start} to {LOSSES.stop - 1}")
    if version == 11:  # version 11 never uses n-grams of characters
        max_chars = 0
    return Options(dim=dim, run_words=run_words, loss=loss, num_buckets=num_buckets, min_chars=min_chars, max_chars=max_chars)


def _read_dictionary(file: _File) -> Dictionary:
    num_entries, num_words, num_labels, _, num_left = file.numbers("3i2q")
    if num_words < 0 or num_labels < 1 or num_entries != num_words + num_labels:
        raise file.refusal(f"{num_words} words and {num_labels} labels in {num_entries} entries")
    stops, offset, find = np.empty(min(num_entries, len(file.data)), np.int64), file.offset, file.map.find
    for entry in range(num_entries):
        stop = find(b"\0", offset)
        if stop < 0 or stop + _AFTER_WORD > len(file.data):
            raise file.refusal("it ends within its dictionary")
        stops[entry] = stop
        offset = stop + _AFTER_WORD
    starts, file.offset = np.concatenate([[file.offset], stops[:-1] + _AFTER_WORD]), offset
    count_offsets = stops[num_words:, None] + np.arange(1, 9)  # (num_labels, 8): the bytes of each count
    return Dictionary(
        starts=starts,
        stops=stops,
        kinds=file.data[stops + _AFTER_WORD - 1],
        num_words=num_words,
        counts=file.data[count_offsets].view("<i8")[:, 0],
        pruned=None if num_left < 0 else file.array("<i4", num_left, 2),
    )


def _read_matrix(file: _File, quantised: bool) -> Matrix:
    if not quantised:
        num_rows, dim = file.numbers("2q")
        if not 1 <= dim < _MOST_DIMENSIONS:  # rows without values may be many
            raise file.refusal(f"{num_rows:,} rows of {dim} dimensions")
        dense = file.array("<f4", num_rows, dim)
        nothing = np.empty((1, 1, 1), np.float32)
        return Matrix(dense=dense, codes=np.empty((0, 0), np.uint8), centroids=nothing, norms=np.ones(len(dense), np.float32))
    has_norms, num_rows, dim, num_codes = file.numbers("B2qi")
    codes = file.array(np.uint8, num_codes)
    centroids = _read_centroids(file)
    if num_rows < 0 or not 1 <= dim < _MOST_DIMENSIONS or len(centroids) * num_rows != num_codes:
        raise file.refusal(f"{num_codes:,} codes for {num_rows:,} rows of {dim} dimensions")
    norms = np.ones(num_rows, np.float32)
    if has_norms:
        norm_codes = file.array(np.uint8, num_rows)
        norms = _read_centroids(file)[0, norm_codes, 0]
    codes = codes.reshape(num_rows, len(centroids))
    return Matrix(dense=np.empty((0, dim), np.float32), codes=codes, centroids=centroids, norms=norms)


def _read_centroids(file: _File) -> np.ndarray:
    """(parts, 256, dim of a part) float32; a narrower last part is padded with zeros."""
    dim, parts, size, last = file.numbers("4i")
    if min(dim, parts, size, last) < 1 or last > size or (parts - 1) * size + last != dim:
        raise file.refusal(f"{parts} parts of {size} dimensions, the last of {last}, for {dim}")
    values = file.array("<f4", dim * _CENTROIDS)
    size = size if parts > 1 else last
    whole = (parts - 1) * _CENTROIDS * size
    centroids = np.zeros((parts, _CENTROIDS, size), np.float32)
    centroids[:-1] = values[:whole].reshape(parts - 1, _CENTROIDS, size)
    centroids[-1, :, :last] = values[whole:].reshape(_CENTROIDS, last)
    return centroids


def _check(file: _File, options: Options, dictionary: Dictionary, matrix: Matrix, output: Matrix) -> None:
    has_grams = options.max_chars > 0 or options.run_words > 1
    behind = options.num_buckets if has_grams else 0
    if dictionary.pruned is not None:
        behind = int(dictionary.pruned[:, 1].max(initial=-1)) + 1
        if dictionary.pruned.min(initial=0) < 0:
            raise file.refusal("a negative bucket")
        if not len(matrix.codes) and matrix.num_rows:
            raise file.refusal("its dictionary is pruned and its matrix is dense")
    if options.dim < 1 or (has_grams and options.num_buckets < 1):
        raise file.refusal(f"{options.dim} dimensions and {options.num_buckets} buckets")
    if dictionary.counts.min() < 0 or dictionary.counts.sum(dtype=np.float64) >= NO_COUNT:
        raise file.refusal("impossible counts of labels")
    if matrix.num_rows < dictionary.num_words + behind:
        raise file.refusal(f"{matrix.num_rows:,} rows, expected {dictionary.num_words + behind:,}")
    if output.num_rows != len(dictionary.counts) or {matrix.dense.shape[1], output.dense.shape[1]} != {options.dim}:
        raise file.refusal(f"an output of {output.num_rows} x {output.dense.shape[1]}")
    if not (np.isfinite(output.directions()).all() and np.isfinite(output.norms).all()):
        raise file.refusal("an output of values that are no numbers")
