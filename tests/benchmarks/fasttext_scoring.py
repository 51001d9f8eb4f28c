"""MB/s of fastText models in the kernels and in fasttext-predict, in one run.

    python -m tests.benchmarks.fasttext_scoring TEXTS

TEXTS are JSON lines with a field `text`, such as ../shared/data/prose/govuk_news.jsonl.zst. Beside lid.176.ftz, the models have
the words of the texts and random numbers: training changes neither the size of a model nor which rows a text adds. Both are
timed by the process's CPU time on the same texts, in turn, and the best of several counts.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from datapipe.stage.models.fasttext import CompiledModel, open_model
from stages.filter.language import bundled_model
from tests.benchmarks.tables import Settings, Table

_RUNS = 5
_MOST_BYTES = 4_000_000
_BUCKETS = 100_000
_MODELS = {
    "50 dimensions, pairs of words": (50, (0, 0)),
    "100 dimensions, pairs of words": (100, (0, 0)),
    "50 dimensions, pairs of words, 3 to 5 characters": (50, (3, 5)),
}


def write_model(path: Path, texts: list[bytes], dim: int, chars: tuple[int, int]) -> Path:
    """A model of two labels with the words of the texts, the most frequent first, and random rows."""
    words = [b"</s>", *(word for word, _ in Counter(word for text in texts for word in text.split()).most_common())]
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(struct.pack("<2i12id", 793712314, 12, dim, 5, 5, 1, 5, 2, 3, 3, _BUCKETS, *chars, 100, 1e-4))
        file.write(struct.pack("<3i2q", len(words) + 2, len(words), 2, 1000, -1))
        for word in words:
            file.write(word + b"\0" + struct.pack("<qb", 1, 0))
        for label in (b"a", b"b"):
            file.write(b"__label__" + label + b"\0" + struct.pack("<qb", 500, 1))
        for num_rows in (len(words) + _BUCKETS, 2):
            file.write(b"\0" + struct.pack("<2q", num_rows, dim))
            file.write((rng.random((num_rows, dim), np.float32) - np.float32(0.5)).tobytes())
    return path


def rates(path: Path, texts: list[bytes], num_runs: int) -> tuple[float, float]:
    """MB of text a second of the kernels and of the library; their labels are equal but for one text in a hundred."""
    import fasttext

    model, library = open_model(path), fasttext.load_model(str(path)).f
    assert isinstance(model, CompiledModel)
    stops = np.cumsum(list(map(len, texts)), dtype=np.int64)
    starts, data = stops - list(map(len, texts)), np.frombuffer(b"".join(texts), np.uint8)
    model.best(starts[:1], stops[:1], data, 1)
    ours_s = library_s = float("inf")
    for _ in range(num_runs):
        began = time.process_time()
        labels, _ = model.best(starts, stops, data, 1)
        between = time.process_time()
        expected = [library.predict(text + b"\n", 1, 0.0, "replace")[0][1] for text in texts]
        ours_s, library_s = min(ours_s, between - began), min(library_s, time.process_time() - between)
    equal = np.mean([f"__label__{model.labels[label]}" == other for label, other in zip(labels[:, 0], expected)])
    assert equal > 0.99, f"{equal:.1%} of the labels are equal"
    return len(data) / 1e6 / ours_s, len(data) / 1e6 / library_s


def rows(path: Path, num_runs: int) -> list[tuple[str, ...]]:
    """A row for each kind of model, on whole texts up to `_MOST_BYTES` in all, each on one line."""
    with pa.input_stream(str(path), compression="detect") as stream:
        documents = pj.read_json(stream, pj.ReadOptions(block_size=256 << 20))["text"].to_pylist()
    texts = [b" ".join(text.encode().split()) for text in documents if text.split()]
    texts = texts[: 1 + int(np.searchsorted(np.cumsum(list(map(len, texts))), _MOST_BYTES))]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        models = [("lid.176.ftz", bundled_model())]
        models += [(name, write_model(Path(folder) / f"{name}.bin", texts, *kind)) for name, kind in _MODELS.items()]
        for name, model in models:
            ours, library = rates(model, texts, num_runs)
            found.append((name, f"{ours:,.1f}", f"{library:,.1f}", f"{ours / library:,.2f}"))
    return found


def table(settings: Settings) -> Table:
    """All models on English web text."""
    return Table(
        title="fastText models, beside fasttext-predict",
        note="English web text, the best label of each document; CPU time. Models apart from lid.176.ftz have the words of the "
        f"text, {_BUCKETS:,} buckets and random numbers.",
        header=("model", "datapipe MB/s", "fasttext-predict MB/s", "ratio"),
        rows=rows(settings.web, 1 if settings.quick else _RUNS),
    )


def main() -> None:
    for name, ours, library, ratio in rows(Path(sys.argv[1]), _RUNS):
        print(f"{name:<50}{ours:>8} MB/s, fasttext-predict {library:>6} MB/s, ratio {ratio}")


if __name__ == "__main__":
    main()
