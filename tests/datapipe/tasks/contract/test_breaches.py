"""Runs with stages that break their contract: told once, with the line of the stage's code and the document, never retried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from datapipe.engine import retries as retries_module
from datapipe.errors import DatapipeError, StageError
from datapipe.inspect.documents import DocumentQuery, Inspector
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

_HEAD = """
import sys

import numpy as np
import pyarrow as pa

from datapipe.stage import DocumentBatch, Filter, FilterResult, Map, Rule


"""
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


def _position(folder: Path) -> int:
    """The byte offset of the bad document."""
    return (folder / "b.jsonl").read_bytes().index(b"the bad one") - len('{"text": "')


def _run(folder: Path, sources: str, code: str, monkeypatch: pytest.MonkeyPatch, stages: str = "", **options) -> runs.Watcher:
    module = f"own_{folder.name}".replace("-", "_")
    (folder / f"{module}.py").write_text(_HEAD + code)
    monkeypatch.syspath_prepend(folder)
    watcher = runs.Watcher()
    stages = f"stages:\n{stages}  - {module}:Own\n"
    options = {"make_engine": runs.InProcess, **options}
    runs.run_mixture(runs.write_mixture(folder, sources, stages), watcher=watcher, **options)
    return watcher


def _line(folder: Path, words: str) -> str:
    """ "/…/own.py:12": file and line of the code that holds the words."""
    (file,) = folder.glob("own_*.py")
    number = next(number for number, line in enumerate(file.read_text().splitlines(), 1) if words in line)
    return f"{file}:{number}, "


_EXITS = """
class Own(Map):
    def process(self, batch):
        if "the bad one" in batch.texts.to_pylist():
            sys.exit(7)
        return {}
"""
_TOO_SHORT = """
class Own(Map):
    def process(self, batch):
        return {"score": pa.array([len(text) for text in batch.texts.to_pylist() if text != "the bad one"])}
"""
_WRONG_TYPE = """
class Own(Map):
    def process(self, batch):
        is_bad = "the bad one" in batch.texts.to_pylist()
        return [1] if is_bad else {}
"""
_NO_SIDE = """
class Own(Filter):
    def rules(self):
        return [Rule(name="odd", limit=1.0)]

    def process(self, batch):
        return FilterResult.from_rules(self.rules(), [np.zeros(batch.num_docs)])
"""
_WRITES = """
class Own(Map):
    def process(self, batch):
        offsets, data = batch.buffers
        for row, text in enumerate(batch.texts.to_pylist()):
            if text == "the bad one":
                data[offsets[row]] = ord("T")
        return {}
"""


@pytest.mark.parametrize(
    ("code", "what", "line", "names_bad"),
    [
        (_EXITS, "it ends the process by sys.exit(7)", "sys.exit(7)", True),
        (
            _TOO_SHORT,
            f"column 'score': expected {2 * _NUM_DOCS} entries, one per document, found {2 * _NUM_DOCS - 1}",
            "def process",
            True,
        ),
        (_WRONG_TYPE, "expected a dict of Arrow arrays by column name, found list", "def process", True),
        (_NO_SIDE, "the rule 'odd' has no side", "from_rules", False),
        (_WRITES, "it writes into the batch, which is read-only", "data[offsets[row]]", True),
    ],
)
def test_stage_that_breaks_its_contract_is_told_with_code_and_document(
    code, what, line, names_bad, tmp_path, sources, monkeypatch
):
    with pytest.raises(StageError) as caught:
        _run(tmp_path, sources, code, monkeypatch)
    message = str(caught.value)
    assert f"breaks its contract: {what}" in message
    assert f"The code is {_line(tmp_path, line)}" in message
    place = f"web/b.jsonl:{_position(tmp_path)}" if names_bad else "web/a.jsonl:0"
    assert re.search(rf"Found with the document id-\d+ \({re.escape(place)}\)\. ", message)


@pytest.mark.parametrize("code", [_EXITS, _TOO_SHORT])
def test_stage_that_breaks_its_contract_in_a_worker_is_not_tried_again(code, tmp_path, sources, monkeypatch):
    watcher = runs.Watcher()
    monkeypatch.setattr(runs, "Watcher", lambda: watcher)
    with pytest.raises(StageError, match=r"The traceback is in .*work/failure.txt") as caught:
        _run(tmp_path, sources, code, monkeypatch, make_engine=None, workers=1)
    assert f"web/b.jsonl:{_position(tmp_path)}" in str(caught.value)
    assert watcher.retries == []
    assert "own_" in (tmp_path / "out/work/failure.txt").read_text()


def test_stage_that_breaks_its_contract_after_a_global_one_names_the_input_file(tmp_path, sources, monkeypatch):
    with pytest.raises(StageError) as caught:
        _run(tmp_path, sources, _EXITS, monkeypatch, stages="  - dedup.exact\n")
    assert f"Found with the document id-41 (web/b.jsonl:{_position(tmp_path)}). " in str(caught.value)


_RAISES = """
class Own(Map):
    def process(self, batch):
        if "the bad one" in batch.texts.to_pylist():
            raise ValueError("I do not like it")
        return {}
"""


@pytest.mark.parametrize("stages", ["", "  - dedup.exact\n"])
def test_quarantine_of_a_stage_names_the_input_file(stages, tmp_path, sources, monkeypatch):
    with pytest.raises(DatapipeError) as caught:
        _run(tmp_path, sources, _RAISES, monkeypatch, stages=stages)
    raised = f"ValueError: I do not like it ({_line(tmp_path, 'raise ValueError')}in process)."
    assert f"web/b.jsonl:{_position(tmp_path)}: {raised}" in str(caught.value)
    (seen,) = Inspector.open(str(tmp_path / "out")).find(DocumentQuery(outcome="quarantined", count=9))
    assert (seen.path, seen.position) == ("b.jsonl", _position(tmp_path))


_OPENS = """
class Own(Map):
    def open(self, context):
        {"model": 1}["modle"]

    def process(self, batch):
        return {}
"""


def test_stage_that_cannot_be_opened_is_told_with_its_code(tmp_path, sources, monkeypatch):
    with pytest.raises(StageError, match="it raises KeyError: 'modle'") as caught:
        _run(tmp_path, sources, _OPENS, monkeypatch)
    assert f"The code is {_line(tmp_path, 'modle')}in open." in str(caught.value)


_REDUCES = """
from datapipe.stage import Global
from datapipe.stage.tables import DROP_SCHEMA, Exchange

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
        RESULT
"""


@pytest.mark.parametrize(
    ("result", "what", "line"),
    [
        ("return {'drop': bucket['rows']}", "table 'drop' is not declared. Expected some of: drops", "def reduce"),
        ("return {'drops': bucket['rows']}", "table 'drops': expected the columns", "def reduce"),
        ("return 1 / 0", "it raises ZeroDivisionError: division by zero", "1 / 0"),
        ("sys.exit('no')", "it ends the process by sys.exit('no')", "sys.exit"),
    ],
)
def test_stage_that_breaks_its_contract_in_reduce_is_told_with_its_code(result, what, line, tmp_path, sources, monkeypatch):
    with pytest.raises(StageError) as caught:
        _run(tmp_path, sources, _REDUCES.replace("RESULT", result), monkeypatch)
    assert f"breaks its contract: {what}" in str(caught.value)
    assert f"The code is {_line(tmp_path, line)}" in str(caught.value)


_BY_BUFFER = "np.frombuffer(batch.texts.buffers()[2], np.uint8)"
_BY_COLUMN = "batch.record.column('score').to_numpy()"
_BY_RAW_COLUMN = "np.frombuffer(batch.record.column('score').buffers()[1], np.int64)"


_FIRST, _LATE = "  - SCORES\n", "  - SCORES\n  - filter.length: {min_chars: 1}\n  - dedup.exact\n"


@pytest.mark.parametrize(
    ("array", "write", "stages"),
    [
        *((array, "array[0] = 65", _FIRST) for array in (_BY_BUFFER, _BY_COLUMN, _BY_RAW_COLUMN, "batch.words.starts")),
        *((array, "array.flags.writeable = True", _FIRST) for array in (_BY_BUFFER, "batch.buffers[1]", _BY_COLUMN)),
        (_BY_RAW_COLUMN, "np.add(array, 1, out=array)", _LATE),
        ("batch.buffers[0]", "array.sort()", _LATE),
    ],
)
def test_stage_that_writes_into_a_batch_fails_as_the_stages_error(array, write, stages, tmp_path, sources, monkeypatch):
    code = f"""
class Scores(Map):
    def process(self, batch):
        return {{"score": pa.array(np.arange(batch.num_docs))}}


class Own(Map):
    def process(self, batch):
        array = {array}
        {write}
        return {{}}
"""
    module = f"own_{tmp_path.name}".replace("-", "_")
    with pytest.raises(StageError, match="it writes into the batch, which is read-only") as caught:
        _run(tmp_path, sources, code, monkeypatch, stages=stages.replace("SCORES", f"{module}:Scores"))
    assert f"The code is {_line(tmp_path, write)}in process." in str(caught.value)


_EXITS_AT = {
    "import": "sys.exit(0)",
    "planning": """
class Own(Map):
    def columns_read(self):
        sys.exit(0)

    def process(self, batch):
        return {}
""",
}


@pytest.mark.parametrize("moment", _EXITS_AT)
def test_stage_that_exits_before_anything_runs_does_not_end_the_run_without_a_word(moment, tmp_path, sources, monkeypatch):
    with pytest.raises(
        DatapipeError, match="SystemExit: 0" if moment == "import" else r"sys.exit\(0\): .*own_.*, in columns_read"
    ):
        _run(tmp_path, sources, _EXITS_AT[moment], monkeypatch)


_NOT_LOADED = """
class Own(Map):
    def __setstate__(self, state):
        raise ValueError("not here")

    def process(self, batch):
        return {}
"""


def test_stage_that_a_worker_cannot_load_is_told_once(tmp_path, sources, monkeypatch):
    with pytest.raises(StageError, match="a worker cannot load the stages of the task: ValueError: not here"):
        _run(tmp_path, sources, _NOT_LOADED, monkeypatch, make_engine=None, workers=1)


_INTERRUPTS = """
class Own(Map):
    def process(self, batch):
        raise KeyboardInterrupt
"""


def test_stage_that_interrupts_a_worker_is_told_with_its_code(tmp_path, sources, monkeypatch):
    with pytest.raises(StageError) as caught:
        _run(tmp_path, sources, _INTERRUPTS, monkeypatch, make_engine=None, workers=1)
    assert "breaks its contract: it raises KeyboardInterrupt, which ends programs. " in str(caught.value)
    line = _line(tmp_path, "raise KeyboardInterrupt")
    assert f"The code is {line}in process. Found with the document id-0 (web/a.jsonl:0)." in str(caught.value)


_REFUSED = """
class Own(Map):
    def process(self, batch):
        if "the bad one" in batch.texts.to_pylist():
            ACTION
        return {}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "what"),
    [
        ("open('/proc/self/no-such-file')", "it raises FileNotFoundError: [Errno 2]"),
        ("open('/proc/self/stat/x')", "it raises NotADirectoryError: [Errno 20]"),
        ("__import__('os').read(1 << 20, 1)", "it raises OSError: [Errno 9]"),
        ("raise PermissionError('not for you')", "it raises PermissionError: not for you"),
    ],
)
def test_stage_that_asks_for_what_the_system_refuses_is_told_at_once(action, what, tmp_path, sources, monkeypatch):
    watcher = runs.Watcher()
    monkeypatch.setattr(runs, "Watcher", lambda: watcher)
    with pytest.raises(StageError) as caught:
        _run(tmp_path, sources, _REFUSED.replace("ACTION", action), monkeypatch, make_engine=None, workers=1)
    assert f"breaks its contract: {what}" in str(caught.value)
    assert f"The code is {_line(tmp_path, action)}in process." in str(caught.value)
    assert watcher.retries == []


@pytest.mark.slow
@pytest.mark.parametrize("method", ["process", "open"])
def test_stage_that_wants_more_memory_than_there_is_is_tried_a_few_times_and_told_with_its_code(
    method, tmp_path, sources, monkeypatch
):
    monkeypatch.setattr(retries_module, "FIRST_PAUSE_S", 0.0)
    watcher = runs.Watcher()
    monkeypatch.setattr(runs, "Watcher", lambda: watcher)
    code = f"""
class Own(Map):
    def process(self, batch):
        return {{}}

    def {method}(self, argument):
        np.empty(1 << 60, np.uint8)
"""
    with pytest.raises(
        DatapipeError, match=r"failed 4 times, the last time with: stage own_.* memory does not suffice"
    ) as caught:
        _run(tmp_path, sources, code, monkeypatch, make_engine=None, workers=1)
    assert f"The code is {_line(tmp_path, '1 << 60')}in {method}; the process has " in str(caught.value)
    assert len(watcher.retries) == 3
