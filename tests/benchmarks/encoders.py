"""Encoding beside `tokenizers.encode_batch_fast` on one thread: the speed on the same texts, in turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import zstandard
from tokenizers import Tokenizer

from datapipe.tokens import Encoder, tiktoken
from datapipe.tokens.training import train_tokenizer
from tests.benchmarks.tables import Bound, Settings, Table, both_best_s
from tests.benchmarks.texts import made_up_texts, read_texts

_RUNS = 3
_CORPORA = {
    "English web pages": ("prose/cleaneval_web.jsonl.zst", "text"),
    "novels": ("prose/novels.jsonl.zst", "text"),
    "Java": ("code/codexglue_concode_dev.jsonl.zst", "code"),
    "sentences in 75 languages": ("lang/lingua_sentences.jsonl.zst", "text"),
}
_TOKENIZERS = {"GPT-2": "tokenizers/gpt2/tokenizer.json.zst", "cl100k": "tokenizers/cl100k_base.tiktoken.zst"}
_MOST_BYTES = 3_000_000


def tables(settings: Settings) -> Iterator[Table]:
    yield _speed(settings)


def bounds(folder: Path) -> Iterator[Bound]:
    texts = made_up_texts(300)
    ours_s, library_s = measure(texts, train_tokenizer([texts], 3_000), 2)
    yield Bound(name="encoding, times as fast as tokenizers", ratio=library_s / ours_s, least=6)
    once, twice = Encoder(train_tokenizer([texts], 3_000)), pa.concat_arrays([texts, texts])
    one_s, two_s = both_best_s(lambda: once.encode(texts), lambda: once.encode(twice), _RUNS)
    yield Bound(name="encoding, twice the text", ratio=two_s / one_s, most=3)


def measure(texts: pa.Array, content: bytes, num_runs: int) -> tuple[float, float]:
    """CPU seconds of ours and of the library, in turn; the ids are equal."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    encoder, library = Encoder(content), Tokenizer.from_buffer(content)
    library.encode_special_tokens = True
    listed = texts.to_pylist()
    ids, _ = encoder.encode(texts)
    expected = library.encode_batch_fast(listed, add_special_tokens=False)
    assert ids.tolist() == [number for encoding in expected for number in encoding.ids]
    return both_best_s(
        lambda: encoder.encode(texts), lambda: library.encode_batch_fast(listed, add_special_tokens=False), num_runs
    )


def _speed(settings: Settings) -> Table:
    contents = {name: _content(settings.data / path) for name, path in _TOKENIZERS.items()}
    num_runs, most_bytes = (1, _MOST_BYTES // 40) if settings.quick else (_RUNS, _MOST_BYTES)
    rows = []
    for corpus, (path, field) in _CORPORA.items():
        texts = read_texts(settings.data / path, field, most_bytes)
        mb = pc.sum(pc.binary_length(texts)).as_py() / 1e6  # pyright: ignore[reportAttributeAccessIssue]
        cells = [f"{corpus}, {mb:.1f} MB"]
        for content in contents.values():
            ours_s, library_s = measure(texts, content, num_runs)
            cells += [f"{mb / ours_s:.1f}", f"{mb / library_s:.2f}", f"{library_s / ours_s:.0f}"]
        rows.append(cells)
    return Table(
        title="Encoding, beside `tokenizers`",
        note="`Encoder.encode` and `tokenizers.encode_batch_fast` on one thread, the same ids; CPU time, the best of "
        f"{num_runs}.",
        header=("text", *(cell for name in contents for cell in (f"{name} MB/s", "`tokenizers`", "ratio"))),
        rows=rows,
    )


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    content = zstandard.ZstdDecompressor().stream_reader(content).read() if path.suffix == ".zst" else content
    return tiktoken.convert(content) if tiktoken.is_rank_file(content) else content
