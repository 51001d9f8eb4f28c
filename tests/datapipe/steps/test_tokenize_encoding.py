"""Documents on which the tokenizer fails: quarantined, one by one; and the memory that encoding takes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fastokens
import pyarrow as pa
import pytest

from datapipe.errors import DatapipeError
from datapipe.explore.documents import Inspector
from datapipe.steps.tokenize import encode
from datapipe.tokens import Encoder
from datapipe.tokens.segments import Encoded
from tests.support import runs, tokenizer_files
from tests.support.global_stages import batch_of

VERSION = version("fastokens")


class PanicException(BaseException):
    """As Rust's panics reach Python from both libraries: no Exception, of a class that cannot be imported."""


class Panicking:
    """A tokenizer of fastokens that panics at texts with the word "panic", and from then on at every text."""

    real = fastokens.Tokenizer

    def __init__(self, file: str) -> None:
        self._loaded, self._is_poisoned = self.real.from_json_str(file), False

    @classmethod
    def from_json_str(cls, file: str) -> Panicking:
        return cls(file)

    def encode_batch_flat(self, texts: list[str], **options: bool) -> Any:
        if self._is_poisoned or any("panic" in text for text in texts):
            cause, self._is_poisoned = "poisoned" if self._is_poisoned else "index out of bounds", True
            raise PanicException(cause)
        return self._loaded.encode_batch_flat(texts, **options)


@pytest.fixture
def panics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastokens, "Tokenizer", Panicking)


@pytest.mark.usefixtures("panics")
@pytest.mark.parametrize("bad", [[], [0], [6], [2, 3], list(range(7))])
def test_encode_leaves_out_the_documents_that_fail_and_no_others(bad):
    texts = [f"a panic {row}" if row in bad else f"text {row}" for row in range(7)]
    encoder = Encoder(tokenizer_files.byte_level())
    batch, encoded, failed = encode(batch_of(texts), lambda batch: Encoded(*encoder.encode(batch.texts), None))
    message = f"fastokens {VERSION} cannot encode a text: panic: index out of bounds"
    assert failed == dict.fromkeys(bad, message)
    good = [text for text in texts if "panic" not in text]
    assert batch.texts.to_pylist() == good
    expected, expected_offsets = encoder.encode(pa.array(good, pa.large_string()))
    assert (encoded.ids.tolist(), encoded.offsets.tolist()) == (expected.tolist(), expected_offsets.tolist())


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
    assert list(counts["quarantine_reasons"]) == ["tokenize: fastokens N cannot encode a text: panic: index out of bounds"]
    inspector = Inspector.open(str(tmp_path / "out"))
    [found] = inspector.find(outcome="quarantined")
    kept = inspector.find(outcome="kept", count=99)
    assert len(kept) == 39 and found["key"] not in [each["key"] for each in kept]
    assert inspector.find_document(found["key"]) == found
    assert (found["path"], found["position"]) == ("a.jsonl", sum(len(f'{{"text": "text {row}"}}\n') for row in range(7)))


@pytest.mark.medium
@pytest.mark.usefixtures("panics")
def test_run_stops_where_the_tokenizer_fails_on_more_documents_than_allowed(tmp_path):
    with pytest.raises(DatapipeError, match=r"1 of 40 documents quarantined.*The first, by tokenize: web/a\.jsonl:"):
        runs.run_mixture(_mixture(tmp_path, "0.1%"), make_engine=runs.InProcess)


_MEMORY = """
import sys
import numpy as np, pyarrow as pa
from datapipe.machine.memory import peak_bytes
from datapipe.tokens import Encoder
texts = [pa.array(["a text"], pa.large_string())]
for number in range(20):  # 2 * 10^6 words of 9 letters; the cache is full after 1.3 * 10^6
    letters = np.random.default_rng(number).integers(97, 123, (100_000, 10), np.uint8)
    letters[:, 0] = 32
    texts.append(pa.array([letters.tobytes().decode()], pa.large_string()))
encoders = (Encoder(open(path, "rb").read()) for path in sys.argv[1:])  # as in a worker: one at a time
encoder = next(encoders)
encoder.encode(texts[0])
before = peak_bytes()
while encoder is not None:
    for text in texts:
        encoder.encode(text)
    encoder = next(encoders, None)
print(peak_bytes() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_two_million_distinct_words_take_bounded_memory_with_one_tokenizer_and_another(tmp_path, count):
    files = [tokenizer_files.byte_level(), tokenizer_files.byte_level(added="<s> $A")][:count]
    for number, content in enumerate(files):
        (tmp_path / f"{number}.json").write_bytes(content)
    done = subprocess.run([sys.executable, "-c", _MEMORY, *tmp_path.iterdir()], capture_output=True, check=True, text=True)
    assert int(done.stdout) < 256 << 20  # what a task may take beyond its buckets
