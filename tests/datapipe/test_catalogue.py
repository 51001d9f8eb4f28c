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


class Derived(Lower):
    """As its parent, and more."""


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
    return str(caught.value)


# ------------------------------------------------------------------------------------------------ classes of the user


@pytest.mark.usefixtures("own")
def test_own_class_in_the_working_directory_is_found():
    assert issubclass(catalogue.stage_class("own_stages:DropShort"), Filter)


@pytest.mark.usefixtures("own")
def test_own_stage_is_built_with_its_options():
    built = catalogue.build_stage(use("own_stages:DropShort", min_lines=3, words=["x"], ratio=1))
    assert built.model_dump() == {"mode": "drop", "min_lines": 3, "words": ("x",), "ratio": 1.0, "unit": "line"}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"min_lines": 1, "min_line": 2},
            f"{WHERE}.own_stages:DropShort.min_line: unknown key. Did you mean 'min_lines'? "
            "Expected one of: mode, min_lines, words, ratio, unit.",
        ),
        ({}, f"{WHERE}.own_stages:DropShort.min_lines: missing. Expected: fewest lines that are kept."),
        ({"min_lines": "3"}, f"{WHERE}.own_stages:DropShort.min_lines: found '3', expected a whole number."),
        ({"min_lines": True}, f"{WHERE}.own_stages:DropShort.min_lines: found true, expected a whole number."),
        ({"min_lines": 1, "words": "x"}, f"{WHERE}.own_stages:DropShort.words: found 'x', expected a list."),
        ({"min_lines": 1, "words": [3]}, f"{WHERE}.own_stages:DropShort.words[0]: found 3, expected text: put it in quotes."),
        ({"min_lines": 1, "ratio": 0}, f"{WHERE}.own_stages:DropShort.ratio: found 0, expected more than 0."),
        ({"min_lines": 1, "ratio": float("nan")}, f"{WHERE}.own_stages:DropShort.ratio: found nan, expected a finite number."),
        (
            {"min_lines": 1, "unit": "lines"},
            f"{WHERE}.own_stages:DropShort.unit: found 'lines', expected one of: line, word. Did you mean 'line'?",
        ),
    ],
)
def test_wrong_option_is_refused_in_one_line(options: dict[str, Any], expected: str):
    assert refusal(catalogue.build_stage, use("own_stages:DropShort", **options)) == expected


def test_own_name_that_is_no_stage_is_refused(own: Path):
    (own / "own_broken.py").write_text("import own_stages\n1 / 0\n")
    (own / "own_syntax.py").write_text("def f(:\n")
    (own / "own_needy.py").write_text("import not_installed_at_all\n")
    expected = {
        "own_stages:DropShrt": "own_stages:DropShrt: own_stages has no class or function DropShrt. Did you mean "
        "'DropShort'? Expected one of: DropShort, Lower, Derived, function.",
        "own_stages:NoStage": "own_stages:NoStage: found a class derived from object, "
        "expected a function of a document, or a class derived from datapipe.stage.Filter, "
        "datapipe.stage.Map or datapipe.stage.Global.",
        "own_stages:function": "own_stages:function: found def function(), expected the document as the first parameter.",
        "own_stages:Filter": "own_stages:Filter: found a class derived from Stage, "
        "expected a function of a document, or a class derived from datapipe.stage.Filter, "
        "datapipe.stage.Map or datapipe.stage.Global.",
        "own_nothing:X": "own_nothing:X: found no module own_nothing. "
        f"Expected one that is installed or in the working directory {own}.",
        "own_stages.deep:X": "own_stages.deep:X: found no module own_stages.deep. "
        f"Expected one that is installed or in the working directory {own}.",
        "own_broken:X": "own_broken:X: importing own_broken failed: ZeroDivisionError: division by zero.",
        "own_syntax:X": "own_syntax:X: importing own_syntax failed: SyntaxError: invalid syntax (own_syntax.py, line 1).",
        "own_needy:X": "own_needy:X: importing own_needy failed: No module named 'not_installed_at_all'. "
        "Install the missing module.",
    }
    for name, text in expected.items():
        assert refusal(catalogue.stage_class, name, WHERE) == f"{WHERE}: {text}"


# ------------------------------------------------------------------------------------------------ names


def test_unknown_stage_names_the_nearest():
    name = catalogue.stage_names()[0]
    expected = (
        f"{WHERE}: unknown stage '{name}x'. Did you mean '{name}'? Expected one of: {', '.join(catalogue.stage_names())}; "
    )
    assert refusal(catalogue.stage_class, f"{name}x", WHERE).startswith(expected)


def test_own_stage_with_a_dot_for_the_colon_is_told_the_colon():
    with pytest.raises(UserError, match=r"unknown stage 'my\.module\.keep'\. Did you mean 'my\.module:keep'\? Expected one of"):
        catalogue.stage_class("my.module.keep")


_UNUSABLE = """
from datapipe.stage import Filter, Map

class WithInit(Filter):
    def __init__(self, least):
        self.least = least

class WithoutProcess(Map):
    def filter(self, document):
        return True
"""


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "WithInit",
            "the class has an __init__ of its own, and a stage is a frozen record of options. Declare options as fields",
        ),
        (
            "WithoutProcess",
            r"the class has no method process\. Define process\(self, batch: DocumentBatch\) -> dict\[str, pa\.Array\]",
        ),
    ],
)
def test_own_class_of_which_no_stage_can_be_made_is_told_why(tmp_path, monkeypatch, name: str, problem: str):
    (tmp_path / "unusable_stages.py").write_text(_UNUSABLE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=problem):
        catalogue.stage_class(f"unusable_stages:{name}")


def test_reader_is_no_stage():
    format_name = catalogue.formats()[0]
    assert refusal(catalogue.build_stage, use(f"read.{format_name}")) == (
        f"{WHERE}: read.{format_name} is a reader, expected a stage. Choose a reader in a source: `format: {format_name}`."
    )


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


# ------------------------------------------------------------------------------------------------ readers


@pytest.mark.parametrize("name", catalogue.formats())
def test_every_reader_is_built_described_and_found_by_its_endings(name: str):
    reader = catalogue.build_reader(parse_format(name), WHERE)
    assert isinstance(reader, Reader)
    assert catalogue.describe(f"read.{name}").kind == "reader"
    for ending in reader.extensions:
        for path in (f"data/a{ending}", f"a.b{ending}.gz", f"S3://bucket/A{ending.upper()}.zst", f"s3://b/a{ending}?region=x"):
            assert catalogue.reader_for(path, WHERE) == reader


def test_reader_is_built_with_the_options_of_its_format():
    reader = catalogue.build_reader(parse_format({"jsonl": {"max_line_bytes": 1024}}), WHERE)
    assert reader.model_dump()["max_line_bytes"] == 1024
    assert refusal(catalogue.build_reader, parse_format({"jsonl": {"max_line_bites": 7}}), WHERE).startswith(
        f"{WHERE}.jsonl.max_line_bites: unknown key. Did you mean 'max_line_bytes'?"
    )


def test_unknown_format_names_the_nearest():
    name = catalogue.formats()[0]
    known = ", ".join(["auto", *catalogue.formats()])
    assert refusal(catalogue.build_reader, parse_format(f"{name}x"), WHERE) == (
        f"{WHERE}: unknown format '{name}x'. Did you mean '{name}'? Expected one of: {known}."
    )


def test_unknown_ending_names_file_endings_and_formats():
    text = refusal(catalogue.reader_for, "data/a.xyz.gz", "m.yaml:4: sources.web.path")
    assert text.startswith(
        "m.yaml:4: sources.web.path: cannot infer the format of data/a.xyz.gz from its ending. Expected one of: ."
    )
    assert text.endswith(f"Otherwise set the source's `format:` to one of: {', '.join(catalogue.formats())}.")


# ------------------------------------------------------------------------------------------------ descriptions and digests


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


def _digest(name: str) -> str:
    return catalogue.code_digest(catalogue.stage_class(name)())


def test_code_digest_follows_the_code_and_neither_options_nor_prose(own: Path):
    built = [catalogue.build_stage(use("own_stages:DropShort", min_lines=lines)) for lines in (1, 2)]
    before = [catalogue.code_digest(stage) for stage in built]
    assert before[0] == before[1]
    assert before[0] != _digest("own_stages:Lower")
    (own / "own_stages.py").write_text(
        OWN_STAGES.replace("Words that count", "Other words").replace("few lines", "no lines") + "# a"
    )
    assert catalogue.code_digest(built[0]) == before[0]
    (own / "own_stages.py").write_text(OWN_STAGES.replace("gt=0", "ge=0"))
    assert catalogue.code_digest(built[0]) != before[0]


def test_code_digest_covers_the_parent_in_another_file(own: Path):
    (own / "own_child.py").write_text("from own_stages import Lower\n\n\nclass Child(Lower):\n    pass\n")
    before = _digest("own_child:Child")
    (own / "own_stages.py").write_text(OWN_STAGES.replace('("numpy",)', '("numpy", "pyarrow")'))
    assert _digest("own_child:Child") != before


OWN_CALLS = """
from datapipe.stage import Map


class Calls(Map):
    def process(self, batch):
        return {}

    def label(self, name):
        return getattr(self, name)


def unused():
    return 1
"""


def test_code_digest_covers_all_of_a_file_of_the_users_that_looks_up_computed_names(own: Path):
    (own / "own_calls.py").write_text(OWN_CALLS)
    before = _digest("own_calls:Calls")
    (own / "own_calls.py").write_text(OWN_CALLS.replace("return 1", "return 2"))
    assert _digest("own_calls:Calls") != before
    declared = OWN_CALLS.replace("(Map):\n", "(Map):\n    reaches = ()\n")
    (own / "own_calls.py").write_text(declared)
    before = _digest("own_calls:Calls")
    (own / "own_calls.py").write_text(declared.replace("return 1", "return 2"))
    assert _digest("own_calls:Calls") == before


def test_segmentations_that_options_choose_are_covered():
    english, unicode = (catalogue.build_stage(use("filter.gopher_quality", words=words)) for words in ("english", "unicode"))
    assert {"words_by", "english_words", "words"} <= catalogue.covered_segmentations(english)
    assert "unicode_words" not in catalogue.covered_segmentations(english)
    assert "unicode_words" in catalogue.covered_segmentations(unicode)
    assert catalogue.code_digest(english) != catalogue.code_digest(unicode)


def test_code_digest_names_a_library_that_is_not_installed(own: Path):
    (own / "own_needs.py").write_text(
        "from datapipe.stage import Map\n\n\nclass Needs(Map):\n    libraries = ('not-there-at-all',)\n"
        "    def process(self, batch): ...\n"
    )
    assert refusal(catalogue.code_digest, catalogue.stage_class("own_needs:Needs")()) == (
        "own_needs:Needs needs not-there-at-all, which is not installed. Run: pip install not-there-at-all"
    )


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
def test_schema_takes_a_good_mixture():
    assert schema_problems(GOOD) == []


@pytest.mark.medium
@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        ("name: a", "nmae: a", "$"),
        ("weight: 70%", "wieght: 70%", "$.sources.web"),
        ("weight: 70%", "weight: heavy", "$.sources.web.weight"),
        ("max_quarantined: 0.1%", "max_quarantined: 2", "$.max_quarantined"),
        ("target_bytes: 64MiB", "target_bytes: lots", "$.shards.target_bytes"),
        ("method: concat", "method: first", "$.pack.method"),
        ("stages: STAGES", "stages: [filter.nothing_of_the_kind]", "$.stages[0]"),
        ("stages: STAGES", "stages: [{my.own:Stage: 3}]", "$.stages[0]"),
        ("format: auto", "format: docx", "$.sources.web.format"),
        ("format: auto", "format: {jsonl: {max_line_bites: 1}}", "$.sources.web.format"),
        ("path: c", "path: 3", "$.sources.code.path"),
    ],
)
def test_schema_refuses_a_bad_mixture_at_the_place(before: str, after: str, path: str):
    assert path in schema_problems(GOOD.replace(before, after))


@pytest.mark.medium
def test_schema_knows_the_options_of_every_stage():
    for name in catalogue.stage_names():
        needed = [option.name for option in catalogue.describe(name).options if option.default == "required"]
        if not needed:
            assert schema_problems(GOOD.replace("STAGES", f"[{{{name}: {{as: x}}}}]")) == []
        assert schema_problems(GOOD.replace("STAGES", f"[{{{name}: {{no_such_option: 1}}}}]")) == ["$.stages[0]"]


def starter_stages() -> list[StageUse]:
    """Every stage the starter mixture names, those in comments too, but for the class of somebody else's."""
    lines = re.findall(r"^  (?:# )?- ([a-z]+\.[a-z_]+(?:: \{.*\})?|\{.*\})(?:  +#.*)?$", starter_mixture(), re.MULTILINE)
    entries = [parse_yaml(line, "starter").data for line in lines]
    return [parse_stage(entry) for entry in entries if "until" not in entry]


@pytest.mark.parametrize("use", starter_stages(), ids=lambda use: use.alias)
def test_starter_names_stages_and_options_that_there_are(use: StageUse):
    assert catalogue.build_stage(use).model_dump(include=set(use.options)).keys() == use.options.keys()


def test_starter_is_good_by_the_schema():
    data = parse_yaml(starter_mixture(), "starter").data
    given = {key: value for key, value in data.items() if value is not None}
    assert list(jsonschema.Draft202012Validator(mixture_schema()).iter_errors(given)) == []
    for source in data["sources"].values():
        assert source["format"] in catalogue.formats()


def test_code_digest_covers_members_of_a_base_that_is_no_stage(own: Path):
    mixin = "class Mix:\n    def process(self, batch): return {}\n"
    source = f"from datapipe.stage import Map\n\n\n{mixin}\n\nclass Mixed(Mix, Map):\n    pass\n"
    (own / "own_mixed.py").write_text(source)
    before = _digest("own_mixed:Mixed")
    (own / "own_mixed.py").write_text(source.replace("return {}", "return {'text': batch.texts}"))
    assert _digest("own_mixed:Mixed") != before
