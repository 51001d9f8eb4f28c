"""Stages and readers by name: found, built, described, digested, and in the JSON Schema of mixtures."""

import functools
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from datapipe import catalogue
from datapipe.config import StageUse, starter_mixture
from datapipe.config.stage_use import parse_format, parse_stage
from datapipe.config.yaml import parse_yaml
from datapipe.errors import UserError
from datapipe.mixture_schema import mixture_schema
from datapipe.stage import Filter, Reader
from stages.filter.language import bundled_model

WHERE = "m.yaml:23: stages[2]"

OWN_STAGES = '''
"""Stages of a user."""

from typing import ClassVar, Literal

from pydantic import Field

from datapipe.stage import Filter, Map


class DropShort(Filter):
    """Drops documents of few lines.

    More is said here.
    """

    min_lines: int = Field(description="Fewest lines that are kept.")
    words: tuple[str, ...] = Field(default=("a", "b"), description="Words that count.")
    ratio: float | None = Field(default=0.5, gt=0, description="Largest share.")
    unit: Literal["line", "word"] = Field(default="line", description="What is counted.")

    def process(self, batch):
        return {}


class Lower(Map):
    """Lower case."""

    libraries: ClassVar[tuple[str, ...]] = ("numpy",)

    def process(self, batch):
        return {}


class WithInit(Filter):
    def __init__(self, least):
        self.least = least


class WithoutProcess(Map):
    def filter(self, document):
        return True


def function():
    return None


class NoStage:
    pass
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the module own_stages in it, found as a user's would be."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "own_stages.py").write_text(OWN_STAGES)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield folder
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def use(name: str, **options: Any) -> StageUse:
    return StageUse(name=name, alias=name, options=options, where=WHERE)


def refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------ names and options


@pytest.mark.usefixtures("own")
def test_own_stage_in_the_working_directory_is_built_with_its_options():
    assert issubclass(catalogue.stage_class("own_stages:DropShort"), Filter)
    built = catalogue.build_stage(use("own_stages:DropShort", min_lines=3, words=["x"], ratio=1))
    assert built.model_dump() == {"mode": "drop", "min_lines": 3, "words": ("x",), "ratio": 1.0, "unit": "line"}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"min_lines": 1, "min_line": 2}, ".min_line: unknown key. Did you mean 'min_lines'?"),
        ({}, ".min_lines: missing. Expected: fewest lines that are kept."),
        ({"min_lines": True}, ".min_lines: found true, expected a whole number."),
        ({"min_lines": 1, "words": [3]}, ".words[0]: found 3, expected text: put it in quotes."),
        ({"min_lines": 1, "ratio": 0}, ".ratio: found 0, expected more than 0."),
        ({"min_lines": 1, "unit": "lines"}, ".unit: found 'lines', expected one of: line, word. Did you mean 'line'?"),
    ],
)
def test_wrong_option_is_refused_in_one_line(options: dict[str, Any], expected: str):
    text = refusal(catalogue.build_stage, use("own_stages:DropShort", **options))
    assert text.startswith(f"{WHERE}.own_stages:DropShort{expected}")


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("own_stages:DropShrt", "Did you mean 'DropShort'?"),
        ("own_stages:NoStage", "derived from object"),
        ("own_stages:function", "def function()"),
        ("own_stages:Filter", "derived from Stage"),
        ("own_stages:WithInit", "__init__"),
        ("own_stages:WithoutProcess", "no method process"),
        ("own_nothing:X", "no module own_nothing"),
        ("own_stages.deep:X", "no module own_stages.deep"),
        ("own_broken:X", "ZeroDivisionError: division by zero"),
        ("own_syntax:X", "own_syntax.py, line 1"),
        ("own_needy:X", "Install the missing module"),
        ("my.module.keep", "Did you mean 'my.module:keep'?"),
        ("filter.lenght", "Did you mean 'filter.length'?"),
    ],
)
def test_name_of_no_stage_is_refused_with_the_cause(own: Path, name: str, cause: str):
    (own / "own_broken.py").write_text("import own_stages\n1 / 0\n")
    (own / "own_syntax.py").write_text("def f(:\n")
    (own / "own_needy.py").write_text("import not_installed_at_all\n")
    text = refusal(catalogue.stage_class, name, WHERE)
    assert text.startswith(f"{WHERE}: ")
    assert cause in text


def test_names_are_the_files_below_stages():
    root = Path(__file__).resolve().parents[2] / "stages"
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in root.rglob("*.py")
        if path.parent != root and not any(part.startswith("_") for part in path.relative_to(root).parts)
    }
    readers = {f"read.{name}" for name in catalogue.formats()}
    assert set(catalogue.stage_names()) | readers == files
    assert catalogue.stage_names() == sorted(catalogue.stage_names())


NEEDED: dict[str, dict[str, Any]] = {
    "filter.classifier": {"model": str(bundled_model()), "label": "en", "min_score": 0.5},
    "filter.toxicity": {"model": str(bundled_model()), "label": "de"},
    "filter.url": {"domains": ["example.com"]},
}
"""Options of stages that are refused without any, though none of them is required."""


@pytest.mark.medium
@pytest.mark.parametrize("name", catalogue.stage_names())
def test_every_stage_is_built_described_and_digested(name: str):
    found = catalogue.stage_class(name)
    description = catalogue.describe(name)
    assert description.kind in ("filter", "map", "global")
    assert description.summary
    assert [option.name for option in description.options] == [field.alias or key for key, field in found.model_fields.items()]
    assert all(option.description for option in description.options)
    if all(option.default != "required" for option in description.options):
        stage = catalogue.build_stage(use(name, **NEEDED.get(name, {})))
        assert pickle.loads(pickle.dumps(stage)) == stage
        assert len(catalogue.code_digest(stage)) == 32


@pytest.mark.usefixtures("own")
def test_description_tells_kind_summary_and_options():
    description = catalogue.describe("own_stages:DropShort")
    assert (description.kind, description.summary) == ("filter", "Drops documents of few lines.")
    assert [(option.name, option.type, option.default, option.description) for option in description.options[1:]] == [
        ("min_lines", "whole number", "required", "Fewest lines that are kept."),
        ("words", "list of text", '["a", "b"]', "Words that count."),
        ("ratio", "number | null", "0.5", "Largest share."),
        ("unit", "line | word", '"line"', "What is counted."),
    ]


# ------------------------------------------------------------------------------------------------ readers


@pytest.mark.parametrize("name", catalogue.formats())
def test_every_reader_is_built_described_and_found_by_its_endings(name: str):
    reader = catalogue.build_reader(parse_format(name), WHERE)
    assert isinstance(reader, Reader)
    assert catalogue.describe(f"read.{name}").kind == "reader"
    assert f"`format: {name}`" in refusal(catalogue.build_stage, use(f"read.{name}"))
    for ending in reader.extensions:
        for path in (f"data/a{ending}", f"a.b{ending}.gz", f"S3://bucket/A{ending.upper()}.zst", f"s3://b/a{ending}?region=x"):
            assert catalogue.reader_for(path, WHERE) == reader


@pytest.mark.parametrize(
    ("form", "cause"),
    [
        ({"jsonl": {"max_line_bites": 7}}, ".jsonl.max_line_bites: unknown key. Did you mean 'max_line_bytes'?"),
        ("jsonlx", ": unknown format 'jsonlx'. Did you mean 'jsonl'?"),
    ],
)
def test_wrong_format_is_refused_with_the_nearest(form: Any, cause: str):
    assert refusal(catalogue.build_reader, parse_format(form), WHERE).startswith(f"{WHERE}{cause}")
    reader = catalogue.build_reader(parse_format({"jsonl": {"max_line_bytes": 1024}}), WHERE)
    assert reader.model_dump()["max_line_bytes"] == 1024


def test_unknown_ending_names_the_file_and_the_formats():
    text = refusal(catalogue.reader_for, "data/a.xyz.gz", WHERE)
    assert text.startswith(f"{WHERE}: ") and "data/a.xyz.gz" in text
    assert all(name in text for name in catalogue.formats())


# ------------------------------------------------------------------------------------------------ digests


def _digest(name: str) -> str:
    return catalogue.code_digest(catalogue.stage_class(name)())


def test_code_digest_follows_the_code_and_neither_options_nor_prose(own: Path):
    built = [catalogue.build_stage(use("own_stages:DropShort", min_lines=lines)) for lines in (1, 2)]
    before = [catalogue.code_digest(stage) for stage in built]
    assert before[0] == before[1]
    assert before[0] != _digest("own_stages:Lower")
    prose = OWN_STAGES.replace("Words that count", "Other words").replace("few lines", "no lines") + "# a"
    (own / "own_stages.py").write_text(prose)
    assert catalogue.code_digest(built[0]) == before[0]
    (own / "own_child.py").write_text("from own_stages import Lower\n\n\nclass Child(Lower):\n    pass\n")
    child = _digest("own_child:Child")
    (own / "own_stages.py").write_text(OWN_STAGES.replace("gt=0", "ge=0").replace('("numpy",)', '("numpy", "pyarrow")'))
    assert catalogue.code_digest(built[0]) != before[0]
    assert _digest("own_child:Child") != child  # of a parent in another file


_MAP = "from datapipe.stage import Map\n\n\n"
_PROCESS = "    def process(self, batch): return {}\n"
_LOOKS_UP = (
    f"{_MAP}class Own(Map):\n{_PROCESS}    def label(self, name): return getattr(self, name)\n\n\ndef unused(): return 1\n"
)


@pytest.mark.parametrize(
    ("source", "before", "after", "is_covered"),
    [
        (f"{_MAP}class Mix:\n{_PROCESS}\n\nclass Own(Mix, Map):\n    pass\n", "{}", "{'text': batch.texts}", True),
        (_LOOKS_UP, "return 1", "return 2", True),  # a name is computed, so all of the file counts
        (_LOOKS_UP.replace("(Map):\n", "(Map):\n    reaches = ()\n"), "return 1", "return 2", False),
    ],
    ids=["a base that is no stage", "computed names", "declared"],
)
def test_code_digest_covers_what_the_stage_can_reach(own: Path, source: str, before: str, after: str, is_covered: bool):
    (own / "own_one.py").write_text(source)
    digest = _digest("own_one:Own")
    (own / "own_one.py").write_text(source.replace(before, after))
    assert (_digest("own_one:Own") != digest) == is_covered


def test_segmentations_that_options_choose_are_covered():
    english, unicode = (catalogue.build_stage(use("filter.gopher_quality", words=words)) for words in ("english", "unicode"))
    assert {"words_by", "english_words", "words"} <= catalogue.covered_segmentations(english)
    assert "unicode_words" not in catalogue.covered_segmentations(english)
    assert "unicode_words" in catalogue.covered_segmentations(unicode)
    assert catalogue.code_digest(english) != catalogue.code_digest(unicode)


def test_code_digest_names_a_library_that_is_not_installed(own: Path):
    (own / "own_needs.py").write_text(f"{_MAP}class Needs(Map):\n    libraries = ('not-there-at-all',)\n{_PROCESS}")
    assert "pip install not-there-at-all" in refusal(catalogue.code_digest, catalogue.stage_class("own_needs:Needs")())


# ------------------------------------------------------------------------------------------------ JSON Schema

GOOD = """
name: a
output: b
max_quarantined: 0.1%
sources:
  web: {path: [a, b], format: auto, weight: 70%, max_epochs: 4}
  code: {path: c, weight: 1/3, stages: [my.own:Stage]}
stages: STAGES
tokenizer: {path: t.json}
pack: {sequence_length: 512, method: concat}
shards: {format: parquet, target_bytes: 64MiB}
mixture: {tokens: 2.5M, phases: [{until: 80%, weights: {web: 1}}, {until: 1, weights: {code: 2}}]}
"""


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    schema = mixture_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def schema_problems(text: str) -> list[str]:
    stages = [*catalogue.stage_names(), "my.own:Stage", "{my.other:Stage: {k: 1, as: x}}"]
    data = parse_yaml(text.replace("STAGES", f"[{', '.join(stages)}]"), "m.yaml").data
    return [error.json_path for error in validator().iter_errors(data)]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        ("", "", None),
        ("name: a", "nmae: a", "$"),
        ("weight: 70%", "wieght: 70%", "$.sources.web"),
        ("weight: 70%", "weight: heavy", "$.sources.web.weight"),
        ("max_quarantined: 0.1%", "max_quarantined: 2", "$.max_quarantined"),
        ("target_bytes: 64MiB", "target_bytes: lots", "$.shards.target_bytes"),
        ("stages: STAGES", "stages: [filter.nothing_of_the_kind]", "$.stages[0]"),
        ("stages: STAGES", "stages: [{my.own:Stage: 3}]", "$.stages[0]"),
        ("format: auto", "format: docx", "$.sources.web.format"),
        ("format: auto", "format: {jsonl: {max_line_bites: 1}}", "$.sources.web.format"),
        ("path: c", "path: 3", "$.sources.code.path"),
    ],
)
def test_schema_takes_a_good_mixture_and_refuses_a_bad_one_at_its_place(before: str, after: str, path: str | None):
    problems = schema_problems(GOOD.replace(before, after) if before else GOOD)
    assert path in problems if path else problems == []


@pytest.mark.medium
def test_schema_knows_the_options_of_every_stage():
    for name in catalogue.stage_names():
        needed = [option.name for option in catalogue.describe(name).options if option.default == "required"]
        if not needed:
            assert schema_problems(GOOD.replace("STAGES", f"[{{{name}: {{as: x}}}}]")) == []
        assert schema_problems(GOOD.replace("STAGES", f"[{{{name}: {{no_such_option: 1}}}}]")) == ["$.stages[0]"]


def test_starter_is_good_by_the_schema_and_names_stages_and_options_that_there_are():
    data = parse_yaml(starter_mixture(), "starter").data
    given = {key: value for key, value in data.items() if value is not None}
    assert list(validator().iter_errors(given)) == []
    assert {source["format"] for source in data["sources"].values()} <= set(catalogue.formats())
    lines = re.findall(r"^  (?:# )?- ([a-z]+\.[a-z_]+(?:: \{.*\})?|\{.*\})(?:  +#.*)?$", starter_mixture(), re.MULTILINE)
    entries = [parse_yaml(line, "starter").data for line in lines]
    uses = [parse_stage(entry) for entry in entries if "until" not in entry]
    assert len(uses) > 5
    for one in uses:
        assert catalogue.build_stage(one).model_dump(include=set(one.options)).keys() == one.options.keys()
