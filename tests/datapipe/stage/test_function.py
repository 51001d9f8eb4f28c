"""A stage that is a function: what it gets, what it may return, its options, and what a run makes of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.config import catalogue
from datapipe.config.stage_use import parse_stage
from datapipe.errors import StageError, UserError
from datapipe.explore.documents import Inspector
from datapipe.stage import Filter
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.function import FunctionStage, function_stage
from datapipe.steps.results import checked_filter
from tests.support import corpora, runs
from tests.support.global_stages import batch_of

HEAD = '''
"""Functions of a user."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from own_words import WORDS


'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the module own_words in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "own_words.py").write_text("WORDS = ('spam',)\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield folder
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def _write(folder: Path, code: str) -> None:
    (folder / "own_functions.py").write_text(HEAD + code)
    sys.modules.pop("own_functions", None)


def _built(entry: Any) -> FunctionStage:
    stage = catalogue.build_stage(parse_stage(entry))
    assert isinstance(stage, FunctionStage)
    return stage


def _refusal(entry: Any) -> str:
    with pytest.raises(UserError) as caught:
        catalogue.build_stage(parse_stage(entry))
    return str(caught.value)


def _batch(texts: list[str], **more: pa.Array) -> DocumentBatch:
    batch = batch_of(texts, **more)
    batch.make_read_only()
    return batch


def _process(function: Any, batch: DocumentBatch) -> Any:
    return checked_filter(function_stage("own_module", "own", function)(), batch)


def test_function_gets_text_id_and_columns_as_python_values_and_only_decides():
    seen: list[dict[str, Any]] = []

    def look(record):
        seen.append(dict(record))
        return True

    result = _process(look, _batch(["a", ""], url=pa.array(["u", None]), tags=pa.array([["x"], []])))
    assert result.columns == {}
    assert seen == [{"id": "0", "text": "a", "url": "u", "tags": ["x"]}, {"id": "1", "text": "", "url": None, "tags": []}]
    _process(look, _batch(["a"], at=pa.array([1_500], pa.timestamp("ns")), took=pa.array([2_500], pa.duration("ns"))))
    assert seen[-1] == {"id": "0", "text": "a", "at": datetime(1970, 1, 1, microsecond=1), "took": timedelta(microseconds=2)}


def test_function_drops_by_the_rule_false_and_replaces_texts():
    def mixed(record):
        if record["text"] == "drop":
            return np.bool_(False)
        return True if record["text"] == "keep" else record["text"].upper()

    result = _process(mixed, _batch(["keep", "drop", "other"]))
    assert result.keep.tolist() == [True, False, True]
    assert (result.rule.tolist(), result.value.tolist()) == ([-1, 0, -1], [1.0, 0.0, 1.0])
    assert result.columns["text"].to_pylist() == ["keep", "drop", "OTHER"]


def test_function_columns_are_typed_and_null_where_nothing_was_returned():
    def scored(record):
        return True if record["text"] == "b" else {**record, "score": len(record["text"]), "url": "new"}

    scored.columns = {"score": float, "url": str}  # type: ignore[attr-defined]
    result = _process(scored, _batch(["aaa", "b"], url=pa.array(["x", "y"])))
    assert result.columns["score"].equals(pa.array([3.0, None]))
    assert result.columns["url"].to_pylist() == ["new", "y"]
    assert "text" not in result.columns
    assert _process(scored, _batch([], url=pa.array([], pa.string()))).columns["score"].type == pa.float64()


def _declaring(function: Any, columns: dict[str, type]) -> Any:
    function.columns = columns
    return function


def _changes_the_record(record):
    record["text"] = ""
    return True


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda record: None, "None for a document"),
        (lambda record: len(record["text"]), "int for a document"),
        (lambda record: [record["text"]], "list for a document"),
        (lambda record: {"text": None}, "'text': found None"),
        (lambda record: {**record, "id": "other"}, "another 'id'"),
        (lambda record: {"score": 1.0}, "the column 'score', which it does not declare"),
        (_declaring(lambda record: {"score": "high"}, {"score": float}), "'score': found str, expected float"),
        (_declaring(lambda record: {"score": True}, {"score": int}), "'score': found bool, expected int"),
        (_changes_the_record, "changes the record"),
        (lambda record: record.update(text=""), "changes the record"),
        (lambda record: record.text, 'Write record["text"]'),
        (lambda record: record["url"] != "", "no column 'url'. They have id, text"),
    ],
    ids=range(12),
)
def test_function_that_returns_or_does_the_wrong_thing_breaks_the_contract(function, expected):
    with pytest.raises(StageError) as caught:
        _process(function, _batch(["a"]))
    assert expected in str(caught.value)


OPTIONS = """
def matches(
    record,
    least: Annotated[int, Field(ge=0, description="Fewest words.")],
    words: tuple[str, ...] = WORDS,
    *,
    unit: Literal["word", "line"] = "word",
    anything=None,
) -> bool:
    \"\"\"Keeps documents with some words.

    More is said here.
    \"\"\"
    return sum(word in record["text"] for word in words) >= least and unit == "word" and anything is None
"""


def test_function_parameters_are_options(own: Path):
    _write(own, OPTIONS)
    stage = _built({"own_functions:matches": {"least": 1, "words": ["a", "b"]}})
    assert isinstance(stage, Filter)
    assert stage.model_dump() == {"mode": "drop", "least": 1, "words": ("a", "b"), "unit": "word", "anything": None}
    assert stage.process(_batch(["xa", "x"])).keep.tolist() == [True, False]
    for options, said in (
        ({}, "least: missing"),
        ({"least": -1}, "least: found -1"),
        ({"least": "1"}, "least: found '1'"),
        ({"least": 1, "unit": "words"}, "unit: found 'words', expected one of: word, line"),
        ({"least": 1, "lest": 1}, "lest: unknown key. Did you mean 'least'?"),
    ):
        assert _refusal({"own_functions:matches": options}).startswith(f"own_functions:matches.{said}")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f(): return True", "def f()"),
        ("def f(*, record): return True", "def f(*, record)"),
        ("def f(record, *rest): return True", "the parameter *rest"),
        ("def f(record, **options): return True", "the parameter **options"),
        ("def f(record, mode='x'): return True", "'mode'"),
        ("def f(record, process=1): return True", "'process'"),
        ("def f(record, function=1): return True", "'function'"),
        ("def f(record, _n=1): return True", "'_n'"),
        ("def f(record, n: missing = 1): return True", "name 'missing'"),
        ("class A: pass\ndef f(record, n: A = None): return True", "its options cannot be checked"),
        ("async def f(record): return True", "a coroutine or a generator"),
        ("def f(record): yield True", "a coroutine or a generator"),
        ("def f(record): return True\nf.columns = ['a']", "f.columns: found list"),
        ("def f(record): return True\nf.columns = {'id': str}", "f.columns: 'id'"),
        ("def f(record): return True\nf.columns = {'a': list}", "f.columns: a: found <class 'list'>"),
        ("f = len", "a builtin_function_or_method"),
    ],
)
def test_function_that_cannot_be_a_stage_is_refused_with_its_name(code: str, expected: str, own: Path):
    _write(own, code)
    refusal = _refusal("own_functions:f")
    assert refusal.startswith("own_functions:f: ") and expected in refusal


def test_function_of_the_program_itself_is_refused():
    assert _refusal("__main__:f").startswith("__main__:f: no worker can import __main__")


CODE = """
LIMIT = 3

def count(text):
    return text.count("a")

def keep(record):
    return count(record["text"]) >= LIMIT

def other(record):
    return True

keep.columns = {"n": int}
"""


@pytest.mark.medium
@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("LIMIT = 3", "LIMIT = 4", True),
        ('count("a")', 'count("b")', True),
        ("return True", "return False", True),
        ('"n": int', '"n": float', True),
        ("LIMIT = 3", "LIMIT = 3  # three", False),
    ],
)
def test_function_digest_covers_its_module(old: str, new: str, counts: bool, own: Path):
    _write(own, CODE)
    before = catalogue.code_digest(_built("own_functions:keep"))
    _write(own, CODE.replace(old, new))
    assert (catalogue.code_digest(_built("own_functions:keep")) != before) == counts


@pytest.mark.medium
def test_function_that_is_imported_from_another_file_is_covered(own: Path):
    _write(own, CODE)
    (own / "own_recipe.py").write_text("from own_functions import keep\n")
    before = catalogue.code_digest(_built("own_recipe:keep"))
    _write(own, CODE.replace("LIMIT = 3", "LIMIT = 4"))
    assert catalogue.code_digest(_built("own_recipe:keep")) != before


RUN = """
def longer(record, least: int = 10):
    return len(record["text"]) >= least


def scored(record):
    if record["url"] == "u-5":
        raise ValueError("I do not like it")
    return {"text": record["text"] + " indeed", "score": 0.5}


scored.columns = {"score": float}
"""


@pytest.fixture
def web(own: Path) -> str:
    _write(own, RUN)
    corpora.write_jsonl(own / "a.jsonl", [{"text": "word " * number, "url": f"u-{number}"} for number in range(20)])
    return f"  web: {{path: {own}/*.jsonl, keep: [url]}}\nmax_quarantined: 10%\n"


@pytest.mark.medium
def test_function_stages_run_and_one_document_that_raises_is_quarantined(own: Path, web: str):
    stages = "stages:\n  - own_functions:longer: {least: 15, as: long}\n  - own_functions:scored\n"
    total = runs.run_mixture(runs.write_mixture(own, web, stages), make_engine=runs.InProcess).report["total"]
    reasons = total["documents"].pop("quarantine_reasons")
    assert total["documents"] == {"read": 20, "kept": 16, "dropped": {"long:false": 3}, "quarantined": 1}
    assert total["kept_bytes"] == sum(5 * number + len(" indeed") for number in range(3, 20) if number != 5)
    (seen,) = Inspector.open(str(own / "out")).find(outcome="quarantined", count=9)
    line = (own / "own_functions.py").read_text().splitlines().index('        raise ValueError("I do not like it")') + 1
    assert seen["error"].endswith(f"ValueError: I do not like it ({own}/own_functions.py:{line}, in scored)")
    [(reason, count)] = reasons.items()
    assert reason.startswith("own_functions:scored: ValueError: I do not like it (") and count == 1
