"""Runs with stages that break their contract: reported once, with the line of code and the document, never retried."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datapipe.engine import retries as retries_module
from datapipe.errors import DatapipeError, StageError
from datapipe.explore.documents import Inspector
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

_HEAD = """
import os
import sys

import numpy as np
import pyarrow as pa

from datapipe.stage import Filter, FilterResult, Global, Map, Rule
from datapipe.stage.segmentation.words import words
from datapipe.stage.tables import DROP_SCHEMA, Exchange

BAD = "the bad one"
"""
_TAIL = """

class Scores(Map):
    def process(self, batch):
        return {"score": pa.array(np.arange(batch.num_docs))}
"""
_MAP = """
class Own(Map):
    def process(self, batch):
        bad = BAD in batch.texts.to_pylist()
        BODY
        return {}
"""
_FILTER = """
class Own(Filter):
    def rules(self):
        return [Rule(name="odd", limit=1.0)]

    def process(self, batch):
        return FilterResult.from_rules(self.rules(), [np.zeros(batch.num_docs)])
"""
_GLOBAL = """
ROWS = pa.schema([pa.field("hash", pa.uint64(), nullable=False), pa.field("key", pa.binary(16), nullable=False)])


class Own(Global):
    def emits(self):
        return {"rows": ROWS}

    def emit(self, batch):
        hashes = pa.array(np.arange(batch.num_docs, dtype=np.uint64))
        return {"rows": pa.RecordBatch.from_arrays([hashes, batch.keys], schema=ROWS)}

    def exchanges(self):
        return [Exchange(name="match", inputs=("rows",), outputs={"drops": DROP_SCHEMA})]

    def reduce(self, exchange, bucket):
        BODY
"""
_METHOD = """
class Own(Map):
    def process(self, batch):
        return {}

    def METHOD(self, *arguments):
        BODY
"""
_OPEN = _METHOD.replace("METHOD", "open")
_SETSTATE = _METHOD.replace("METHOD", "__setstate__")
_NUM_DOCS, _BAD = 60, 41
"""Documents in each file, and the one of the second file that the stages dislike."""


@pytest.fixture
def sources(tmp_path: Path) -> str:
    for name in ("a", "b"):
        texts = [f"the text number {n} of {name}" for n in range(_NUM_DOCS)]
        if name == "b":
            texts[_BAD] = "the bad one"
        corpora.write_jsonl(tmp_path / f"{name}.jsonl", [{"text": text, "id": f"id-{n}"} for n, text in enumerate(texts)])
    return f"  web: {{path: {tmp_path}/*.jsonl}}\n"


class Breach:
    """A run of a stage of one's own that fails, and the places that its message should name."""

    def __init__(self, folder: Path, sources: str, code: str, body: str, **options: Any) -> None:
        self.module = f"own_{folder.name}".replace("-", "_")
        self.path, self.output, self.watcher = folder / f"{self.module}.py", folder / "out", runs.Watcher()
        self.path.write_text(_HEAD + code.replace("BODY", body) + _TAIL)
        self.position = (folder / "b.jsonl").read_bytes().index(b"the bad one") - len('{"text": "')
        before = "".join(f"  - {name.replace('Scores', f'{self.module}:Scores')}\n" for name in options.pop("before", ()))
        mixture = runs.write_mixture(folder, sources, f"stages:\n{before}  - {self.module}:Own\n")
        with pytest.raises(options.pop("error", StageError)) as caught:
            runs.run_mixture(mixture, watcher=self.watcher, **{"make_engine": runs.InProcess, **options})
        self.message = str(caught.value)

    def names_line(self, words: str) -> bool:
        lines = self.path.read_text().splitlines()
        return f"{self.path}:{next(number for number, line in enumerate(lines, 1) if words in line)}, " in self.message

    @property
    def names_bad(self) -> bool:
        return f"id-{_BAD} (web/b.jsonl:{self.position})" in self.message


@pytest.fixture
def breach(tmp_path: Path, sources: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Breach]:
    monkeypatch.syspath_prepend(tmp_path)
    return lambda code, body="", **options: Breach(tmp_path, sources, code, body, **options)


_TOO_SHORT = "return {'score': pa.array([len(text) for text in batch.texts.to_pylist() if text != BAD])}"
_WRITES = "[batch.buffers[1].__setitem__(0, 84) for text in batch.texts.to_pylist() if text == BAD]"


@pytest.mark.parametrize(
    ("code", "body", "what", "line"),
    [
        (_MAP, "if bad: sys.exit(7)", "sys.exit(7)", "sys.exit(7)"),
        (_MAP, "if bad: open('/proc/self/no-such-file')", "FileNotFoundError", "no-such-file"),
        (_MAP, "if bad: open('/proc/self/stat/x')", "NotADirectoryError", "stat/x"),
        (_MAP, "if bad: os.read(1 << 20, 1)", "OSError: [Errno 9]", "os.read"),
        (_MAP, "if bad: raise PermissionError('not for you')", "PermissionError: not for you", "not for you"),
        (_MAP, "if bad: no_such_name", "NameError", "no_such_name"),
        (_MAP, _TOO_SHORT, f"column 'score': expected {2 * _NUM_DOCS} entries", "def process"),
        (_MAP, "return [1] if bad else {}", "found list", "def process"),
        (_MAP, _WRITES, "read-only", "__setitem__"),
        (_FILTER, "", "'odd'", "from_rules"),
        (_GLOBAL, "return {'drop': bucket['rows']}", "'drop'", "def reduce"),
        (_GLOBAL, "return {'drops': bucket['rows']}", "'drops'", "def reduce"),
        (_GLOBAL, "return 1 / 0", "ZeroDivisionError", "1 / 0"),
        (_GLOBAL, "sys.exit('no')", "sys.exit('no')", "sys.exit"),
        (_OPEN, "{'model': 1}['modle']", "KeyError: 'modle'", "modle"),
    ],
)
def test_stage_that_breaks_its_contract_is_reported_with_its_code_and_the_document_that_shows_it(
    breach, code, body, what, line
):
    found = breach(code, body, before=["dedup.exact"] if what == "sys.exit(7)" else ())
    assert what in found.message
    assert found.names_line(line)
    assert found.names_bad == (code == _MAP)


_BY_BUFFER = "np.frombuffer(batch.texts.buffers()[2], np.uint8)"
_BY_COLUMN = "batch.record.column('score').to_numpy()"
_BY_RAW_COLUMN = "np.frombuffer(batch.record.column('score').buffers()[1], np.int64)"


@pytest.mark.parametrize(
    ("array", "write", "before"),
    [
        *((array, "array[0] = 65", ["Scores"]) for array in (_BY_BUFFER, _BY_COLUMN, _BY_RAW_COLUMN, "words(batch).starts")),
        *((array, "array.flags.writeable = True", ["Scores"]) for array in (_BY_BUFFER, "batch.buffers[1]", _BY_COLUMN)),
        (_BY_RAW_COLUMN, "np.add(array, 1, out=array)", ["Scores", "dedup.exact"]),
        ("batch.buffers[0]", "array.sort()", ["Scores", "dedup.exact"]),
    ],
)
def test_stage_that_writes_into_a_batch_fails_as_the_stages_error(breach, array, write, before):
    found = breach(_MAP, f"array = {array}\n        {write}", before=before)
    assert "read-only" in found.message
    assert found.names_line(write)


def test_quarantine_of_a_stage_names_the_input_file(breach):
    body = "if bad: raise ValueError('I do not like it')"
    found = breach(_MAP, body, before=["dedup.exact"], error=DatapipeError)
    assert f"web/b.jsonl:{found.position}: ValueError: I do not like it" in found.message
    assert found.names_line("raise ValueError")
    (seen,) = Inspector.open(str(found.output)).find(outcome="quarantined", count=9)
    assert (seen["path"], seen["position"]) == ("b.jsonl", found.position)


@pytest.mark.parametrize("code", ["sys.exit(0)", _METHOD.replace("METHOD", "columns_read")])
def test_stage_that_exits_before_anything_runs_does_not_end_the_run_without_a_word(breach, code):
    found = breach(code, "sys.exit(0)", error=DatapipeError)
    assert "SystemExit: 0" in found.message or found.names_line("sys.exit")


@pytest.mark.parametrize(
    ("code", "body", "what"),
    [
        (_MAP, "if bad: sys.exit(7)", "sys.exit(7)"),
        pytest.param(_MAP, "raise KeyboardInterrupt", "KeyboardInterrupt", marks=pytest.mark.slow),
        pytest.param(_SETSTATE, "raise ValueError('not here')", "ValueError: not here", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_stage_that_breaks_its_contract_in_a_worker_is_reported_once_and_not_tried_again(breach, code, body, what):
    found = breach(code, body, make_engine=None, workers=1)
    assert what in found.message
    assert found.watcher.retries == []
    assert code != _MAP or found.names_line(body)
    if "bad" in body:
        assert found.names_bad
        assert found.module in (found.output / "work/failure.txt").read_text()
        assert "work/failure.txt" in found.message


@pytest.mark.slow
@pytest.mark.parametrize("code", [_MAP, _OPEN], ids=["process", "open"])
def test_stage_that_wants_more_memory_than_there_is_is_tried_a_few_times_and_reported_with_its_code(breach, monkeypatch, code):
    monkeypatch.setattr(retries_module, "POLICY", replace(retries_module.POLICY, first_s=0.0))
    found = breach(code, "np.empty(1 << 60, np.uint8)", make_engine=None, workers=1, error=DatapipeError)
    assert "memory does not suffice" in found.message
    assert found.names_line("1 << 60")
    assert len(found.watcher.retries) == 3
