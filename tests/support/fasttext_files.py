"""Small fastText model files, written from nothing, and fasttext-predict as the oracle of models."""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TREE, NEGATIVES, SOFTMAX, ONE_VS_ALL = 1, 2, 3, 4


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A random model.

    Attributes:
        words: the dictionary's, `</s>` first as fastText has it.
        labels: without fastText's prefix, the most frequent first.
        pruned: how many buckets are left; None: the file is not pruned.
        part: dimensions of a part of a quantised matrix.
    """

    words: Sequence[str] = ("</s>", "the", "and", "der", "ça", "__label__in_text")
    labels: Sequence[str] = ("en", "de", "fr", "zh", "ga")
    dim: int = 6
    loss: int = SOFTMAX
    num_buckets: int = 100
    chars: tuple[int, int] = (2, 4)
    longest_run: int = 1
    quantised: bool = False
    quantised_output: bool = False
    has_norms: bool = True
    pruned: int | None = None
    part: int = 4
    version: int = 12
    kind: int = 3
    scale: float = 1.0
    seed: int = 0

    def write(self, path: Path) -> Path:
        path.write_bytes(self.content())
        return path

    def content(self) -> bytes:
        rng = np.random.default_rng(self.seed)
        return b"".join([self._options(), self._dictionary(rng), *self._matrices(rng)])

    def _options(self) -> bytes:
        trained = (self.dim, 5, 5, 1, 5, self.longest_run, self.loss, self.kind, self.num_buckets, *self.chars, 100)
        return struct.pack("<2i12id", 793712314, self.version, *trained, 1e-4)

    def _dictionary(self, rng: np.random.Generator) -> bytes:
        left = -1 if self.pruned is None else self.pruned
        num_entries = len(self.words) + len(self.labels)
        parts = [struct.pack("<3i2q", num_entries, len(self.words), len(self.labels), 1000, left)]
        parts += [word.encode() + b"\0" + struct.pack("<qb", 10, 0) for word in self.words]
        for place, label in enumerate(self.labels):
            parts.append(f"__label__{label}".encode() + b"\0" + struct.pack("<qb", 1000 // (place + 1), 1))
        buckets = rng.permutation(self.num_buckets)[: max(left, 0)]
        return b"".join(parts) + np.stack([buckets, rng.permutation(len(buckets))], axis=1).astype("<i4").tobytes()

    def _matrices(self, rng: np.random.Generator) -> list[bytes]:
        num_rows = len(self.words) + (self.num_buckets if self.pruned is None else self.pruned)
        matrices = [self._matrix(rng, num_rows, self.quantised)]
        matrices.append(self._matrix(rng, len(self.labels), self.quantised and self.quantised_output))
        flags = bytes([self.quantised]), bytes([self.quantised_output])
        return [flags[0], matrices[0], flags[1], matrices[1]]

    def _matrix(self, rng: np.random.Generator, num_rows: int, quantised: bool) -> bytes:
        if not quantised:
            values = rng.standard_normal((num_rows, self.dim)) * self.scale
            return struct.pack("<2q", num_rows, self.dim) + values.astype("<f4").tobytes()
        parts = -(-self.dim // self.part)
        codes = rng.integers(0, 256, num_rows * parts).astype(np.uint8)
        found = struct.pack("<B2qi", self.has_norms, num_rows, self.dim, len(codes)) + codes.tobytes()
        found += _quantiser(rng, self.dim, self.part)
        if self.has_norms:
            found += rng.integers(0, 256, num_rows).astype(np.uint8).tobytes() + _quantiser(rng, 1, 1)
        return found


def _quantiser(rng: np.random.Generator, dim: int, part: int) -> bytes:
    parts = -(-dim // part)
    values = rng.standard_normal(dim * 256).astype("<f4")
    return struct.pack("<4i", dim, parts, part, dim - (parts - 1) * part) + values.tobytes()


class LibraryModel:
    """What fasttext-predict predicts for texts, as `CompiledModel` gives it; labels by their numbers in `labels`."""

    def __init__(self, path: Path, labels: Sequence[str]) -> None:
        import fasttext

        self._model, self._numbers = fasttext.load_model(str(path)).f, {label: number for number, label in enumerate(labels)}

    def best(self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        labels, scores = np.full((len(starts), k), -1, np.int32), np.zeros((len(starts), k), np.float64)
        for document, rank, score, number in self._predictions(starts, stops, data, k):
            labels[document, rank], scores[document, rank] = number, min(round(score, 4), 1.0)
        return labels, scores

    def scores(self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> np.ndarray:
        scores = np.zeros((len(starts), len(self._numbers)), np.float32)
        for document, _, score, number in self._predictions(starts, stops, data, len(self._numbers)):
            scores[document, number] = min(score, 1.0)
        return scores

    def _predictions(
        self, starts: np.ndarray, stops: np.ndarray, data: np.ndarray, k: int
    ) -> Iterator[tuple[int, int, float, int]]:
        for document, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            words = [word for word in re.split(rb"[ \n\r\t\v\f\0]+", data[start:stop].tobytes()) if word not in (b"", b"</s>")]
            found = self._model.predict(b" ".join(words) + b"\n", k, 0.0, "replace") if words else []
            for rank, (score, label) in enumerate(found):
                yield document, rank, score, self._numbers[label.removeprefix("__label__")]
