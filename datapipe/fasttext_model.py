"""fastText model files, and the best labels of many texts by one of them.

    .ftz, .bin  ->  open_model  ->  CompiledModel    arrays for the kernels of `kernels/fasttext.py`
                            or  ->  LibraryModel     fasttext-predict, one text a call, for the models the kernels cannot do

Both answer `best(starts, stops, data, k)` alike: labels equal, scores equal to 4 digits. In a text the word `</s>`, fastText's
own mark of an end, is passed over, and a newline is white space like any other, so that nothing hides the rest of a text.

A file holds, in this order: magic and version; the options of training; the dictionary (words, then labels, each with its
count) and what pruning left of its buckets; the input matrix; the output matrix. A matrix is dense or product-quantised.
The file is mapped, and a dense input matrix stays there, so the workers of a machine share its pages. A quantised one is made
dense where that takes at most `MAX_DENSE_BYTES`, and is else decoded row by row while texts are judged.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.errors import UserError
from datapipe.kernels import fasttext as kernels

MAX_DENSE_BYTES = 64 << 20

_MAGIC, _VERSIONS = 793712314, (11, 12)
_SUPERVISED = 3
_TREE, _NEGATIVES, _SOFTMAX, _ONE_VS_ALL = 1, 2, 3, 4
_MOST_CHARS, _MOST_RUN, _MOST_BUCKETS = 100, 100, 1 << 27  # what `embed` has room for; real models have 6, 5, 2 million
_CENTROIDS = 256
_AFTER_WORD = 1 + 8 + 1  # the NUL, the count, the kind
_NO_COUNT = 10**15  # what fastText gives a node of its tree that has no count yet
_LABEL, _END_OF_LINE = b"__label__", b"</s>"
_WHITE_SPACE = re.compile(rb"[ \n\r\t\v\f\0]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What a model was trained with, as far as it matters for judging."""

    dim: int
    run_words: int
    loss: int
    num_buckets: int
    min_chars: int
    max_chars: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Dictionary:
    """The words and labels of a model.

    Attributes:
        starts, stops: (num_entries,) int64, in the file.
        kinds: (num_entries,) uint8, 1 for labels.
        num_words: entries from here on are labels.
        counts: (num_labels,) int64, how often each label was seen.
        pruned: (num_left, 2) int32, bucket and row behind the words; None where nothing was pruned.
    """

    starts: np.ndarray
    stops: np.ndarray
    kinds: np.ndarray
    num_words: int
    counts: np.ndarray
    pruned: np.ndarray | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """Rows of float32: `dense` (num_rows, dim), or where that is (0, dim) `codes` of `centroids`, times `norms`.

    Attributes:
        codes: (num_rows, parts) uint8.
        centroids: (parts, 256, dim of a part) float32.
        norms: (num_rows,) float32.
    """

    dense: np.ndarray
    codes: np.ndarray
    centroids: np.ndarray
    norms: np.ndarray

    @property
    def num_rows(self) -> int:
        return max(len(self.dense), len(self.codes))

    def directions(self) -> np.ndarray:
        """The rows without their norms, (num_rows, dim) float32, aligned."""
        if len(self.dense):
            return np.array(self.dense, np.float32)
        parts = [self.centroids[part, self.codes[:, part]] for part in range(self.codes.shape[1])]
        return np.ascontiguousarray(np.concatenate(parts, axis=1)[:, : self.dense.shape[1]])


class _File:
    """A model file, mapped, read from its start on."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0
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
        """The next array: a view of the file, aligned or not."""
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if min(shape) < 0 or self.at + num_bytes > len(self.data):
            raise self.refusal(f"its {len(self.data):,} bytes end early")
        found = np.ndarray(shape, dtype, self.map, self.at)
        self.at += num_bytes
        return found


# ---------------------------------------------------------------------------------------------------- reading


def read_labels(path: Path) -> tuple[str, ...]:
    """The labels of a model without fastText's prefix, in the order of the file; its matrices stay unread. Raises UserError."""
    status = path.stat() if path.is_file() else None
    return _labels(path, (status.st_mtime_ns, status.st_size) if status else ())


@lru_cache(maxsize=8)
def _labels(path: Path, _stamp: tuple[int, ...]) -> tuple[str, ...]:
    file = _File(path)
    _read_options(file)
    return _labels_of(file, _read_dictionary(file))


def _labels_of(file: _File, dictionary: Dictionary) -> tuple[str, ...]:
    spans = zip(dictionary.starts[dictionary.num_words :].tolist(), dictionary.stops[dictionary.num_words :].tolist())
    return tuple(file.map[start:stop].removeprefix(_LABEL).decode("utf-8", "replace") for start, stop in spans)


def open_model(path: Path) -> CompiledModel | LibraryModel:
    """The model of a file. Raises UserError."""
    file = _File(path)
    options, dictionary = _read_options(file), _read_dictionary(file)
    labels, unusual = _labels_of(file, dictionary), _unusual(options, dictionary)
    if unusual:
        return LibraryModel(path, labels, unusual)
    quantised = bool(file.numbers("B")[0])
    matrix = _read_matrix(file, quantised)
    output = _read_matrix(file, bool(file.numbers("B")[0]) and quantised)
    _check(file, options, dictionary, matrix, output)
    return CompiledModel(file.data, labels, options, dictionary, _made_dense(matrix), output)


def _read_options(file: _File) -> Options:
    magic, version = file.numbers("2i")
    if magic != _MAGIC:
        raise file.refusal("it begins otherwise")
    if version not in _VERSIONS:
        raise file.refusal(f"version {version} of the format, expected 11 or 12")
    dim, _, _, _, _, run_words, loss, kind, num_buckets, min_chars, max_chars, _, _ = file.numbers("12id")
    if kind != _SUPERVISED:
        raise file.refusal("it holds vectors of words and tells no labels")
    if version == 11:  # trained without n-grams of characters, whatever it says
        max_chars = 0
    return Options(dim=dim, run_words=run_words, loss=loss, num_buckets=num_buckets, min_chars=min_chars, max_chars=max_chars)


def _read_dictionary(file: _File) -> Dictionary:
    num_entries, num_words, num_labels, _, num_left = file.numbers("3i2q")
    if num_words < 0 or num_labels < 1 or num_entries != num_words + num_labels:
        raise file.refusal(f"{num_words} words and {num_labels} labels in {num_entries} entries")
    stops, at, find = np.empty(min(num_entries, len(file.data)), np.int64), file.at, file.map.find
    for entry in range(num_entries):
        stop = find(b"\0", at)
        if stop < 0 or stop + _AFTER_WORD > len(file.data):
            raise file.refusal("it ends within its dictionary")
        stops[entry] = stop
        at = stop + _AFTER_WORD
    starts, file.at = np.concatenate([[file.at], stops[:-1] + _AFTER_WORD]), at
    places = stops[num_words:, None] + np.arange(1, 9)  # (num_labels, 8): the bytes of each count
    return Dictionary(
        starts=starts,
        stops=stops,
        kinds=file.data[stops + _AFTER_WORD - 1],
        num_words=num_words,
        counts=file.data[places].view("<i8")[:, 0],
        pruned=None if num_left < 0 else file.array("<i4", num_left, 2),
    )


def _unusual(options: Options, dictionary: Dictionary) -> str:
    """Why the kernels cannot judge by such a model; empty where they can."""
    if not (0 <= options.min_chars <= _MOST_CHARS and 0 <= options.max_chars <= _MOST_CHARS):
        return f"n-grams of {options.min_chars} to {options.max_chars} characters"
    if options.run_words > _MOST_RUN:
        return f"runs of {options.run_words} words"
    if options.loss not in (_TREE, _NEGATIVES, _SOFTMAX, _ONE_VS_ALL):
        return f"loss {options.loss}"
    if dictionary.pruned is not None and options.num_buckets > _MOST_BUCKETS:
        return f"{options.num_buckets:,} buckets that are pruned"
    if dictionary.kinds[: dictionary.num_words].any() or not dictionary.kinds[dictionary.num_words :].all():
        return "labels among the words"
    return ""


def _read_matrix(file: _File, quantised: bool) -> Matrix:
    if not quantised:
        dense = file.array("<f4", *file.numbers("2q"))
        nothing = np.empty((1, 1, 1), np.float32)
        return Matrix(dense=dense, codes=np.empty((0, 0), np.uint8), centroids=nothing, norms=np.ones(len(dense), np.float32))
    has_norms, num_rows, dim, num_codes = file.numbers("B2qi")
    codes = file.array(np.uint8, num_codes)
    centroids = _read_centroids(file)
    if min(num_rows, dim) < 0 or len(centroids) * num_rows != num_codes:
        raise file.refusal(f"{num_codes:,} codes for {num_rows:,} rows of {dim} dimensions")
    norms = np.ones(num_rows, np.float32)
    if has_norms:
        norm_codes = file.array(np.uint8, num_rows)
        norms = _read_centroids(file)[0, norm_codes, 0]
    codes = codes.reshape(num_rows, len(centroids))
    return Matrix(dense=np.empty((0, dim), np.float32), codes=codes, centroids=centroids, norms=norms)


def _read_centroids(file: _File) -> np.ndarray:
    """(parts, 256, dim of a part) float32; the last part may be narrower and is filled up with zeros."""
    dim, parts, size, last = file.numbers("4i")
    if min(dim, parts, size, last) < 1 or last > size or (parts - 1) * size + last != dim:
        raise file.refusal(f"{parts} parts of {size} dimensions, the last of {last}, for {dim}")
    values = file.array("<f4", dim * _CENTROIDS)
    whole = (parts - 1) * _CENTROIDS * size
    found = np.zeros((parts, _CENTROIDS, size), np.float32)
    found[:-1] = values[:whole].reshape(parts - 1, _CENTROIDS, size)
    found[-1, :, :last] = values[whole:].reshape(_CENTROIDS, last)
    return found


def _check(file: _File, options: Options, dictionary: Dictionary, matrix: Matrix, output: Matrix) -> None:
    """Raises UserError where the parts of a file do not fit together."""
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
    if dictionary.counts.min() < 0 or dictionary.counts.sum(dtype=np.float64) >= _NO_COUNT:
        raise file.refusal("counts of labels that cannot be")
    if matrix.num_rows < dictionary.num_words + behind:
        raise file.refusal(f"{matrix.num_rows:,} rows, expected {dictionary.num_words + behind:,}")
    if output.num_rows != len(dictionary.counts) or {matrix.dense.shape[1], output.dense.shape[1]} != {options.dim}:
        raise file.refusal(f"an output of {output.num_rows} x {output.dense.shape[1]}")


def _made_dense(matrix: Matrix) -> Matrix:
    """The matrix, dense where it is small. Each value is what fastText adds: norm times centroid, rounded to float32."""
    if len(matrix.dense) or matrix.num_rows * matrix.dense.shape[1] * 4 > MAX_DENSE_BYTES:
        return matrix
    dense = matrix.directions() * matrix.norms[:, None]
    return Matrix(dense=dense, codes=matrix.codes[:0], centroids=matrix.centroids, norms=matrix.norms)


# ---------------------------------------------------------------------------------------------------- judging


class CompiledModel:
    """A model whose texts are judged by kernels, many a call, without the GIL."""

    unusual = ""
    """Why the kernels cannot judge by it: they can."""

    def __init__(
        self,
        data: np.ndarray,
        labels: tuple[str, ...],
        options: Options,
        dictionary: Dictionary,
        matrix: Matrix,
        output: Matrix,
    ) -> None:
        self.labels, self._options, self._dictionary, self._matrix = labels, options, dictionary, matrix
        self._words = _indexed(data, dictionary)
        self._buckets = _bucket_rows(options, dictionary)
        self._norms = output.norms if len(output.codes) else np.ones(len(labels), np.float32)
        is_tree = options.loss == _TREE
        self._output = output.directions() if is_tree else np.ascontiguousarray(output.directions().T)
        self._tree = _huffman(dictionary.counts.tolist()) if is_tree else None

    @cached_property
    def _end_of_line(self) -> int:
        """The entry of `</s>`, -1 where there is none."""
        starts, stops, data = self._words[:3]
        near = np.flatnonzero(stops[: self._dictionary.num_words] - starts[: self._dictionary.num_words] == len(_END_OF_LINE))
        found = [entry for entry in near.tolist() if data[starts[entry] : stops[entry]].tobytes() == _END_OF_LINE]
        return found[-1] if found else -1

    def best(self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The best labels of each text, as indices in `labels` (num_docs, k) int32, and their scores (num_docs, k) float64.

        The best stands first; -1 and 0 stand where there is none: all along for a text without words.
        """
        options, matrix = self._options, self._matrix
        longest = int((stops - starts).max(initial=0))
        prunes_all = self._dictionary.pruned is not None and not len(self._dictionary.pruned)
        max_chars, run_words = (0, 1) if prunes_all else (options.max_chars, options.run_words)
        settings = [self._dictionary.num_words, self._end_of_line, options.min_chars, max_chars, run_words]
        settings.append(max(options.num_buckets, 1))
        rows = [matrix.dense, matrix.codes, matrix.centroids, matrix.norms]
        scratch = [np.empty(longest + 2 + options.max_chars + kernels.LANES, np.uint32), np.empty(longest // 2 + 2, np.uint64)]
        means, num_rows = np.empty((len(starts), options.dim), np.float32), np.empty(len(starts), np.int64)
        kernels.embed(starts, stops, data, *self._words, *self._buckets, *settings, *rows, *scratch, means, num_rows)
        labels, scores = np.empty((len(starts), k), np.int32), np.empty((len(starts), k), np.float64)
        best, num_labels = np.empty(k, np.float32), len(self.labels)
        if self._tree:
            paths = [np.empty(num_labels + 1, np.int32), np.empty(num_labels + 1, np.float32)]
            kernels.tree_labels(means, num_rows, self._output, self._norms, *self._tree, *paths, best, labels, scores)
        else:
            kind = kernels.SOFTMAX if options.loss == _SOFTMAX else kernels.SIGMOID
            chances = np.empty(num_labels, np.float32)
            kernels.flat_labels(means, num_rows, self._output, self._norms, kind, _sigmoids(), chances, best, labels, scores)
        return labels, scores


def _indexed(data: np.ndarray, dictionary: Dictionary) -> tuple[np.ndarray, ...]:
    """The dictionary as `embed` takes it, with its hash table at most half full."""
    hashes = np.empty(len(dictionary.starts), np.uint32)
    table = np.full(1 << (2 * len(hashes)).bit_length(), -1, np.int32)
    kernels.index_words(dictionary.starts, dictionary.stops, data, hashes, table)
    return dictionary.starts, dictionary.stops, data, hashes, table


def _bucket_rows(options: Options, dictionary: Dictionary) -> tuple[np.ndarray, np.ndarray]:
    """The row of every bucket, and a bit for each that has one; both empty where nothing was pruned."""
    if dictionary.pruned is None:
        return np.empty(0, np.int32), np.empty(0, np.uint8)
    left = dictionary.pruned[dictionary.pruned[:, 0] < options.num_buckets]
    rows = np.full(max(options.num_buckets, 1), -1, np.int32)
    rows[left[:, 0]] = dictionary.num_words + left[:, 1]
    return rows, np.packbits(rows >= 0, bitorder="little")


def _huffman(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Left and right child of every node of fastText's tree over labels, -1 for the labels themselves.

    The two nodes seen least are joined until one is left. fastText takes labels from the last on, as if they were sorted.
    """
    num_labels = len(counts)
    totals = counts + [_NO_COUNT] * (num_labels - 1)
    children = np.full((2, 2 * num_labels - 1), -1, np.int32)
    leaf, inner = num_labels - 1, num_labels
    for node in range(num_labels, 2 * num_labels - 1):
        for side in range(2):
            if leaf >= 0 and totals[leaf] < totals[inner]:
                children[side, node], leaf = leaf, leaf - 1
            else:
                children[side, node], inner = inner, inner + 1
        totals[node] = totals[children[0, node]] + totals[children[1, node]]
    return children[0], children[1]


@lru_cache(maxsize=1)
def _sigmoids() -> np.ndarray:
    """fastText's table of the sigmoid at 513 places from -8 to 8: (513,) float32."""
    places = (np.arange(513) / 32 - 8).tolist()
    return np.array([1.0 / (1.0 + float(np.float32(math.exp(-place)))) for place in places], np.float32)


class LibraryModel:
    """A model that the kernels do not know, judged by fasttext-predict under the GIL."""

    def __init__(self, path: Path, labels: tuple[str, ...], unusual: str) -> None:
        import fasttext

        self.labels, self.unusual = labels, unusual
        try:
            self._model = fasttext.load_model(str(path)).f
        except ValueError as error:
            raise UserError(
                f"{path} is no fastText model ({error}). Expected a .ftz or .bin file such as lid.176.ftz."
            ) from error
        self._numbers = {label: number for number, label in enumerate(labels)}

    def best(self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `CompiledModel.best`."""
        labels, scores = np.full((len(starts), k), -1, np.int32), np.zeros((len(starts), k), np.float64)
        for document, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            words = [word for word in _WHITE_SPACE.split(data[start:stop].tobytes()) if word not in (b"", _END_OF_LINE)]
            found = self._model.predict(b" ".join(words) + b"\n", k, 0.0, "replace") if words else []
            for place, (score, label) in enumerate(found):
                labels[document, place] = self._numbers[label.removeprefix(_LABEL.decode())]
                scores[document, place] = min(round(score, kernels.SCORE_DIGITS), 1.0)
        return labels, scores
