"""Documents on which the tokenizer fails: quarantined, one by one; and the memory that encoding takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datapipe.errors import DatapipeError, EncodingError
from datapipe.explore.documents import DocumentQuery, Inspector
from datapipe.tasks.encoding import encode
from datapipe.tokens import Encoder
from datapipe.tokens.engines import Fastokens
from tests.support import runs, tokenizer_files
from tests.support.global_stages import batch_of


@pytest.fixture
def panics(monkeypatch: pytest.MonkeyPatch) -> None:
    """fastokens fails on texts with the word "panic"."""
    real = Fastokens.encode

    def failing(engine: Fastokens, texts: list[str]) -> Any:
        if any("panic" in text for text in texts):
            raise EncodingError("fastokens cannot encode a text: panic: index out of bounds")
        return real(engine, texts)

    monkeypatch.setattr(Fastokens, "encode", failing)


@pytest.mark.usefixtures("panics")
@pytest.mark.parametrize("bad", [[], [0], [6], [2, 3], list(range(7))])
def test_encode_leaves_out_the_documents_that_fail_and_no_others(bad):
    texts = [f"a panic {row}" if row in bad else f"text {row}" for row in range(7)]
    encoder = Encoder(tokenizer_files.byte_level())
    batch, ids, offsets, failed = encode(encoder, batch_of(texts))
    assert [document.row for document in failed] == bad
    good = [text for text in texts if "panic" not in text]
    assert batch.texts.to_pylist() == good
    expected, expected_offsets = encoder.encode(pa.array(good, pa.large_string()))
    assert (ids.tolist(), offsets.tolist()) == (expected.tolist(), expected_offsets.tolist())


def _mixture(folder: Path, max_quarantined: str) -> Path:
    (folder / "tokenizer.json").write_bytes(tokenizer_files.byte_level())
    lines = [json.dumps({"text": f"a panic of text {row}" if row == 7 else f"text {row}"}) for row in range(40)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    tail = f"tokenizer: {{path: {folder}/tokenizer.json}}\npack: {{sequence_length: 16}}\nmax_quarantined: {max_quarantined}\n"
    return runs.write_mixture(folder, f"  web: {{path: {folder}/a.jsonl}}", "", tail)


@pytest.mark.medium
@pytest.mark.usefixtures("panics")
def test_run_counts_lists_and_leaves_out_a_document_that_the_tokenizer_fails_on(tmp_path):
    finished = runs.run_mixture(_mixture(tmp_path, "10%"), make_engine=runs.InProcess)
    counts = finished.report["total"]["documents"]
    assert (counts["read"], counts["kept"], counts["quarantined"]) == (40, 39, 1)
    assert list(counts["quarantine_reasons"]) == ["tokenize: fastokens cannot encode a text: panic: index out of bounds"]
    inspector = Inspector.open(str(tmp_path / "out"))
    [found] = inspector.find(DocumentQuery(outcome="quarantined"))
    kept = inspector.find(DocumentQuery(outcome="kept", count=99))
    assert len(kept) == 39 and found.key not in [each.key for each in kept]
    assert inspector.find_document(found.key) == found
    assert (found.path, found.position) == ("a.jsonl", sum(len(f'{{"text": "text {row}"}}\n') for row in range(7)))


@pytest.mark.medium
@pytest.mark.usefixtures("panics")
def test_run_stops_where_the_tokenizer_fails_on_more_documents_than_allowed(tmp_path):
    with pytest.raises(DatapipeError, match=r"1 of 40 documents quarantined.*The first, by tokenize: web/a\.jsonl:"):
        runs.run_mixture(_mixture(tmp_path, "0.1%"), make_engine=runs.InProcess)


_MEMORY = """
import sys
import numpy as np, pyarrow as pa
from datapipe.memory import peak_bytes
from datapipe.tokens import Encoder
encoders = [Encoder(open(path, "rb").read()) for path in sys.argv[1:]]
for encoder in encoders:
    encoder.encode(pa.array(["a text"], pa.large_string()))
before = peak_bytes()
for number in range(100):  # 10^7 words of 9 letters
    letters = np.random.default_rng(number).integers(97, 123, (100_000, 10), np.uint8)
    letters[:, 0] = 32
    for encoder in encoders:
        encoder.encode(pa.array([letters.tobytes().decode()], pa.large_string()))
print(peak_bytes() - before)
"""


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("names", [["gpt2"], ["gpt2", "gpt-neox-olmo"]])
def test_ten_million_distinct_words_take_bounded_memory_with_one_tokenizer_and_two(real_data, tmp_path, names):
    paths = []
    for name in names:
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_bytes(pa.CompressedInputStream(str(real_data / f"tokenizers/{name}/tokenizer.json.zst"), "zstd").read())
    done = subprocess.run([sys.executable, "-c", _MEMORY, *paths], capture_output=True, check=True, text=True)
    assert int(done.stdout) < 256 << 20  # what a task may take beyond its buckets
