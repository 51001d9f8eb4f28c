"""Encoding beside bare fastokens and `tokenizers.encode_batch_fast`, on one thread: the speed on texts that each sees first."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard
from tokenizers import Tokenizer

from datapipe.tokens import Encoder, tiktoken
from datapipe.tokens.engines import Fastokens, Reference
from tests.benchmarks.tables import Bound, Settings, Table
from tests.benchmarks.texts import made_up_texts, read_texts
from tests.support.tokenizer_files import train_tokenizer

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
    texts = made_up_texts(3_000)
    ours_s, bare_s, library_s = measure(texts, train_tokenizer([texts], 3_000), _RUNS)
    yield Bound(name="encoding, times the speed of tokenizers", ratio=library_s / ours_s, least=4)
    yield Bound(name="encoding, of the speed of bare fastokens", ratio=bare_s / ours_s, least=0.7)


def measure(texts: pa.Array, content: bytes, num_runs: int) -> tuple[float, float, float]:
    """CPU seconds of ours, of fastokens with a list of `str`, and of the library: the least of several runs, each with a
    tokenizer that is new, and loaded. The ids are equal."""
    tokenizer, listed = Tokenizer.from_buffer(content), texts.to_pylist()
    tokenizer.encode_special_tokens = True
    choice = Encoder(content).proof.choice
    ours_s, bare_s, library_s = [], [], []
    for _ in range(num_runs):
        encoder, bare, library = Encoder(content, choice=choice), Fastokens(tokenizer), Reference(tokenizer)
        encoder.load()
        bare.encode(["a"])
        found = [
            _timed(bare_s, lambda bare=bare: bare.encode(listed)),
            _timed(ours_s, lambda encoder=encoder: encoder.encode(texts)),
            _timed(library_s, lambda library=library: library.encode(listed)),
        ]
        assert all(np.array_equal(ids, found[0][0]) for ids, _ in found)
    return min(ours_s), min(bare_s), min(library_s)


def _timed(seconds: list[float], encode: Callable[[], Any]) -> Any:
    started = time.process_time()
    encoded = encode()
    seconds.append(time.process_time() - started)
    return encoded


def _speed(settings: Settings) -> Table:
    contents = {name: _content(settings.data / path) for name, path in _TOKENIZERS.items()}
    num_runs, most_bytes = (1, _MOST_BYTES // 40) if settings.quick else (_RUNS, _MOST_BYTES)
    rows = []
    for corpus, (path, field) in _CORPORA.items():
        texts = read_texts(settings.data / path, field, most_bytes)
        mb = pc.sum(pc.binary_length(texts)).as_py() / 1e6  # pyright: ignore[reportAttributeAccessIssue]
        cells = [f"{corpus}, {mb:.1f} MB"]
        for content in contents.values():
            ours_s, bare_s, library_s = measure(texts, content, num_runs)
            cells += [f"{mb / ours_s:.1f}", f"{mb / bare_s:.1f}", f"{mb / library_s:.2f}"]
        rows.append(cells)
    return Table(
        title="Encoding, beside `tokenizers`",
        note="`Encoder.encode`, bare fastokens with a list of `str`, and `tokenizers.encode_batch_fast` on one thread, the "
        f"same ids; CPU time on texts that the tokenizer sees first, the best of {num_runs}.",
        header=("text", *(cell for name in contents for cell in (f"{name} MB/s", "fastokens", "`tokenizers`"))),
        rows=rows,
    )


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    content = zstandard.ZstdDecompressor().stream_reader(content).read() if path.suffix == ".zst" else content
    return tiktoken.convert(content) if tiktoken.is_rank_file(content) else content
