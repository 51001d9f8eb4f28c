"""A stage that is a function: what it gets, what it may return, its options, and what a run makes of it."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe import catalogue, columns
from datapipe.config.stage_use import parse_stage
from datapipe.errors import DatapipeError, StageError, UserError
from datapipe.inspect.documents import DocumentQuery, Inspector
from datapipe.stage import Filter
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from datapipe.stage.function import FunctionStage, function_stage
from datapipe.tasks.contract.results import checked_filter
from tests.support import corpora, runs

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
    arrays = [
        columns.make_keys(7, np.arange(len(texts), dtype=np.uint64)),
        pa.array([f"id-{number}" for number in range(len(texts))], pa.large_string()),
        pa.array(texts, pa.large_string()),
    ]
    fields = [*BASE_FIELDS, *(pa.field(name, column.type) for name, column in more.items())]
    batch = DocumentBatch(pa.RecordBatch.from_arrays([*arrays, *more.values()], schema=pa.schema(fields)))
    batch.make_read_only()
    return batch


def _process(function: Any, batch: DocumentBatch) -> Any:
    return checked_filter(function_stage("own_module", function.__name__, function)(), batch)


# ------------------------------------------------------------------------------------------------ what it gets and returns


def test_function_gets_text_id_and_columns_as_python_values():
    seen: list[dict[str, Any]] = []

    def look(record):
        seen.append(dict(record))
        return True

    _process(look, _batch(["a", ""], url=pa.array(["u", None]), tags=pa.array([["x"], []])))
    assert seen == [
        {"id": "id-0", "text": "a", "url": "u", "tags": ["x"]},
        {"id": "id-1", "text": "", "url": None, "tags": []},
    ]


def test_function_drops_by_the_rule_false_and_replaces_texts():
    def mixed(record):
        if record["text"] == "drop":
            return np.bool_(False)
        return True if record["text"] == "keep" else record["text"].upper()

    result = _process(mixed, _batch(["keep", "drop", "other"]))
    assert result.keep.tolist() == [True, False, True]
    assert result.rule.tolist() == [-1, 0, -1]
    assert result.value.tolist() == [1.0, 0.0, 1.0]
    assert result.columns["text"].to_pylist() == ["keep", "drop", "OTHER"]


def test_function_that_only_decides_returns_no_columns():
    def keep(record):
        return True

    assert _process(keep, _batch(["a", "b"])).columns == {}


def test_function_columns_are_typed_and_null_where_nothing_was_returned():
    def scored(record):
        return True if record["text"] == "b" else {**record, "score": len(record["text"]), "url": "new"}

    scored.columns = {"score": float, "url": str}  # type: ignore[attr-defined]
    result = _process(scored, _batch(["aaa", "b"], url=pa.array(["x", "y"])))
    assert result.columns["score"].equals(pa.array([3.0, None]))
    assert result.columns["url"].to_pylist() == ["new", "y"]
    assert "text" not in result.columns
    assert _process(scored, _batch([], url=pa.array([], pa.string()))).columns["score"].type == pa.float64()


@given(st.lists(st.tuples(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.booleans()), max_size=20))
def test_function_of_each_document_is_the_function_of_the_batch(documents: list[tuple[str, bool]]):
    def decide(record):
        return False if record["flag"] else record["text"][::-1]

    batch = _batch([text for text, _ in documents], flag=pa.array([flag for _, flag in documents], pa.bool_()))
    result = _process(decide, batch)
    assert result.keep.tolist() == [not flag for _, flag in documents]
    texts = result.columns.get("text", batch.texts).to_pylist()
    assert texts == [text if flag else text[::-1] for text, flag in documents]


def _nothing(record):
    len(record["text"])


def _a_number(record):
    return len(record["text"])


def _a_list(record):
    return [record["text"]]


def _no_text(record):
    return {"text": None}


def _another_id(record):
    return {**record, "id": "other"}


def _undeclared(record):
    return {"score": 1.0}


def _wrong_type(record):
    return {"score": "high"}


_wrong_type.columns = {"score": float}  # type: ignore[attr-defined]


def _true_as_number(record):
    return {"score": True}


_true_as_number.columns = {"score": int}  # type: ignore[attr-defined]


def _changes_the_record(record):
    record["text"] = ""
    return True


def _updates_the_record(record):
    record.update(text="")
    return True


def _attribute(record):
    return record.text


def _no_such_column(record):
    return record["url"] != ""


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (_nothing, "it returned None for a document, expected True or False, a text, or a dict of columns. A `return` may be"),
        (_a_number, "it returned int for a document, expected True or False"),
        (_a_list, "it returned list for a document"),
        (_no_text, "column 'text': found None, expected str"),
        (_another_id, "it returned another 'id', which belongs to the engine"),
        (_undeclared, "it returned the column 'score', which it does not declare. Declare the columns"),
        (_wrong_type, "column 'score': found str, expected float, as the stage declares it"),
        (_true_as_number, "column 'score': found bool, expected int"),
        (_changes_the_record, "it changes the record that it got, which has no effect. Return the new text"),
        (_updates_the_record, "it changes the record that it got, which has no effect"),
        (_attribute, 'it reads record.text, and a record is a dict. Write record["text"]'),
        (_no_such_column, "it reads record['url'], and documents have no column 'url'. They have id, text. Name the field"),
    ],
)
def test_function_that_returns_or_does_the_wrong_thing_breaks_the_contract(function, expected):
    with pytest.raises(StageError) as caught:
        _process(function, _batch(["a"]))
    assert str(caught.value).startswith(expected)


# ------------------------------------------------------------------------------------------------ options

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
    where = "own_functions:matches"
    assert _refusal({where: {}}) == f"{where}.least: missing. Expected: fewest words."
    assert _refusal({where: {"least": -1}}) == f"{where}.least: found -1, expected at least 0."
    assert _refusal({where: {"least": "1"}}) == f"{where}.least: found '1', expected a whole number."
    assert _refusal({where: {"least": 1, "unit": "words"}}).startswith(
        f"{where}.unit: found 'words', expected one of: word, line"
    )
    assert _refusal({where: {"least": 1, "lest": 1}}).startswith(f"{where}.lest: unknown key. Did you mean 'least'?")


def test_function_is_described_with_its_options_and_cost(own: Path):
    _write(own, OPTIONS)
    description = catalogue.describe("own_functions:matches")
    assert description.kind == "function, a Python call for each document"
    assert description.summary == "Keeps documents with some words."
    assert [(option.name, option.type, option.default) for option in description.options[1:]] == [
        ("least", "whole number", "required"),
        ("words", "list of text", '["spam"]'),
        ("unit", "word | line", '"word"'),
        ("anything", "anything", "null"),
    ]
    assert _built({"own_functions:matches": {"least": 1}}).notes() == ("a Python call for each document",)


def test_function_stage_makes_a_round_trip_through_pickle(own: Path):
    _write(own, OPTIONS)
    stage = _built({"own_functions:matches": {"least": 1, "words": ["a"]}})
    again = pickle.loads(pickle.dumps(stage))
    assert again == stage
    assert type(again) is type(stage)
    assert again.process(_batch(["a", "b"])).keep.tolist() == [True, False]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f(): return True", "found def f(), expected the document as the first parameter"),
        ("def f(*, record): return True", "found def f(*, record), expected the document as the first parameter"),
        ("def f(record, *rest): return True", "found the parameter *rest, expected parameters by name after the document"),
        ("def f(record, **options): return True", "found the parameter **options, expected parameters by name"),
        ("def f(record, mode='x'): return True", "an option cannot be named 'mode'. Choose another name"),
        ("def f(record, process=1): return True", "an option cannot be named 'process'"),
        ("def f(record, function=1): return True", "an option cannot be named 'function'"),
        ("def f(record, _n=1): return True", "an option cannot be named '_n'"),
        ("def f(record, n: missing = 1): return True", "its annotations cannot be read: NameError: name 'missing'"),
        ("class A: pass\ndef f(record, n: A = None): return True", "its options cannot be checked: Unable to generate"),
        ("async def f(record): return True", "found a coroutine or a generator, expected a plain function"),
        ("def f(record): yield True", "found a coroutine or a generator"),
        ("def f(record): return True\nf.columns = ['a']", "f.columns: found list, expected a dict such as"),
        ("def f(record): return True\nf.columns = {'id': str}", "f.columns: 'id' cannot be declared"),
        ("def f(record): return True\nf.columns = {'a': list}", "f.columns: a: found <class 'list'>, expected str, int, float"),
        ("f = len", "found a builtin_function_or_method, expected a function of a document, or a class derived from"),
    ],
)
def test_function_that_cannot_be_a_stage_is_refused_with_its_name(code: str, expected: str, own: Path):
    _write(own, code)
    assert _refusal("own_functions:f").startswith(f"own_functions:f: {expected}")


def test_function_of_the_program_itself_is_refused():
    assert _refusal("__main__:f").startswith("__main__:f: no worker can import __main__, which is the program or notebook")


# ------------------------------------------------------------------------------------------------ the code that counts

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


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("LIMIT = 3", "LIMIT = 4", True),
        ('count("a")', 'count("b")', True),
        ("return True", "return False", False),
        ('"n": int', '"n": float', True),
        ("LIMIT = 3", "LIMIT = 3  # three", False),
    ],
)
def test_function_digest_covers_what_it_reaches(old: str, new: str, counts: bool, own: Path):
    _write(own, CODE)
    before = catalogue.code_digest(_built("own_functions:keep"))
    _write(own, CODE.replace(old, new))
    assert (catalogue.code_digest(_built("own_functions:keep")) != before) == counts


def test_function_that_is_imported_from_another_file_is_covered(own: Path):
    _write(own, CODE)
    (own / "own_recipe.py").write_text("from own_functions import keep\n")
    before = catalogue.code_digest(_built("own_recipe:keep"))
    _write(own, CODE.replace("LIMIT = 3", "LIMIT = 4"))
    assert catalogue.code_digest(_built("own_recipe:keep")) != before


# ------------------------------------------------------------------------------------------------ runs

RUN = """
def longer(record, least: int = 10):
    return len(record["text"]) >= least


def scored(record):
    if record["url"] == "u-5":
        raise ValueError("I do not like it")
    return {"text": record["text"] + " indeed", "score": 0.5}


scored.columns = {"score": float}


def forgets(record):
    record["text"].strip()
"""


@pytest.fixture
def web(own: Path) -> str:
    _write(own, RUN)
    corpora.write_jsonl(own / "a.jsonl", [{"text": "word " * number, "url": f"u-{number}"} for number in range(20)])
    return f"  web: {{path: {own}/*.jsonl, keep: [url]}}\nmax_quarantined: 10%\n"


@pytest.mark.medium
def test_function_stages_run_in_workers_and_one_document_that_raises_is_quarantined(own: Path, web: str):
    stages = "stages:\n  - own_functions:longer: {least: 15, as: long}\n  - own_functions:scored\n"
    total = runs.run_mixture(runs.write_mixture(own, web, stages), workers=1).report["total"]
    reasons = total["documents"].pop("quarantine_reasons")
    assert total["documents"] == {"read": 20, "kept": 16, "dropped": {"long:false": 3}, "quarantined": 1}
    assert total["kept_bytes"] == sum(5 * number + len(" indeed") for number in range(3, 20) if number != 5)
    (seen,) = Inspector.open(str(own / "out")).find(DocumentQuery(outcome="quarantined", count=9))
    line = (own / "own_functions.py").read_text().splitlines().index('        raise ValueError("I do not like it")') + 1
    assert seen.error.endswith(f"ValueError: I do not like it ({own}/own_functions.py:{line}, in scored)")
    [(reason, count)] = reasons.items()
    assert reason.startswith("own_functions:scored: ValueError: I do not like it (") and count == 1


@pytest.mark.medium
def test_function_in_tag_mode_keeps_every_document(own: Path, web: str):
    stages = "stages:\n  - own_functions:longer: {least: 15, mode: tag}\n"
    done = runs.run_mixture(runs.write_mixture(own, web, stages), make_engine=runs.InProcess)
    assert done.report["total"]["documents"]["dropped"] == {} and done.report["total"]["documents"]["kept"] == 20
    (output,) = [
        output for record in done.watcher.records if record.step == "web/read" for output in record.outputs["documents"]
    ]
    with pa.ipc.open_stream(str(own / "out" / output.path)) as stored:
        rules = stored.read_all().column("own_functions:longer.rule").to_pylist()
    assert sorted(rule or "" for rule in rules) == [""] * 17 + ["false"] * 3


@pytest.mark.medium
def test_function_that_forgets_to_return_ends_the_run_with_its_line(own: Path, web: str):
    with pytest.raises(DatapipeError) as caught:
        runs.run_mixture(runs.write_mixture(own, web, "stages: ['own_functions:forgets']"), workers=1)
    line = (own / "own_functions.py").read_text().splitlines().index("def forgets(record):") + 1
    message = str(caught.value)
    assert message.startswith("stage own_functions:forgets breaks its contract: it returned None for a document")
    assert f"The code is {own}/own_functions.py:{line}, forgets. Found with the document web/a.jsonl:0." in message
    assert "`datapipe/stage/function.py` says what it gets and must return." in message
