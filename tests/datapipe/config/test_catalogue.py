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

from datapipe.cli.stages import mixture_schema
from datapipe.config import StageUse, catalogue, starter_mixture
from datapipe.config.stage_use import parse_format, parse_stage
from datapipe.config.yaml import parse_yaml
from datapipe.errors import UserError
from datapipe.stage import Filter, Reader
from stages.filter.language import bundled_model

WHERE = "m.yaml:23: stages[2]"

OWN_STAGES = '''
"""Stages of a user."""

from typing import ClassVar

from pydantic import Field

from datapipe.stage import Filter, Map


class DropShort(Filter):
    """Drops documents of few lines."""

    min_lines: int = Field(description="Fewest lines that are kept.")
    words: tuple[str, ...] = Field(default=("a", "b"), description="Words that count.")
    ratio: float | None = Field(default=0.5, gt=0, description="Largest share.")

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


@pytest.mark.usefixtures("own")
def test_own_stage_in_the_working_directory_is_built_with_its_options():
    assert issubclass(catalogue.stage_class("own_stages:DropShort"), Filter)
    built = catalogue.build_stage(use("own_stages:DropShort", min_lines=3, words=["x"], ratio=1))
    assert built.model_dump() == {"mode": "drop", "min_lines": 3, "words": ("x",), "ratio": 1.0}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"min_lines": 1, "min_line": 2}, ".min_line: unknown key."),
        ({}, ".min_lines: missing."),
        ({"min_lines": 1, "words": [3]}, ".words[0]: found 3, expected text"),
    ],
)
def test_wrong_option_is_refused_in_one_line(options: dict[str, Any], expected: str):
    text = refusal(catalogue.build_stage, use("own_stages:DropShort", **options))
    assert text.startswith(f"{WHERE}.own_stages:DropShort{expected}")


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("own_stages:DropShrt", "Did you mean 'DropShort'?"),
        ("own_stages:function", "def function()"),
        ("own_stages:WithInit", "__init__"),
        ("own_stages:WithoutProcess", "no method process"),
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
    root = Path(__file__).resolve().parents[3] / "stages"
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


@pytest.mark.parametrize("name", catalogue.formats())
def test_every_reader_is_built_described_and_found_by_its_endings(name: str):
    reader = catalogue.build_reader(parse_format(name), WHERE)
    assert isinstance(reader, Reader)
    assert catalogue.describe(f"read.{name}").kind == "reader"
    assert f"`format: {name}`" in refusal(catalogue.build_stage, use(f"read.{name}"))
    for ending in reader.extensions:
        for path in (f"data/a{ending}", f"a.b{ending}.gz", f"S3://bucket/A{ending.upper()}.zst", f"s3://b/a{ending}?region=x"):
            assert catalogue.reader_for(path, WHERE) == reader


def test_a_format_that_is_no_ending_is_unknown():
    for name in ("a.text", "a.webdataset", "jsonl"):
        assert "cannot infer the format" in refusal(catalogue.reader_for, name, WHERE)


def test_every_ending_is_that_of_its_reader_and_no_longer_one_ends_with_the_name_of_another_format():
    """A file is read by the format of its last part, before longer endings are looked at."""
    for name, reader in catalogue.readers().items():
        for ending in reader.extensions:
            assert isinstance(catalogue.reader_for(f"a{ending}", WHERE), reader)
            assert ending.rpartition(".")[2] not in {*catalogue.formats()} - {name}


def test_format_with_options_is_built_and_a_wrong_one_is_refused_with_the_nearest():
    reader = catalogue.build_reader(parse_format({"jsonl": {"max_line_bytes": 1024}}), WHERE)
    assert reader.model_dump()["max_line_bytes"] == 1024
    for form, nearest in (({"jsonl": {"max_line_bites": 7}}, "max_line_bytes"), ("jsonlx", "jsonl")):
        text = refusal(catalogue.build_reader, parse_format(form), WHERE)
        assert text.startswith(WHERE) and f"Did you mean '{nearest}'?" in text


def test_unknown_ending_names_the_file_and_the_formats():
    text = refusal(catalogue.reader_for, "data/a.xyz.gz", WHERE)
    assert all(name in text for name in [WHERE, "data/a.xyz.gz", *catalogue.formats()])


def _digest(name: str) -> str:
    return catalogue.code_digest(catalogue.stage_class(name)())


def test_code_digest_follows_the_code_and_neither_options_nor_prose(own: Path):
    built = [catalogue.build_stage(use("own_stages:DropShort", min_lines=lines)) for lines in (1, 2)]
    before = [catalogue.code_digest(stage) for stage in built]
    assert before[0] == before[1]
    prose = OWN_STAGES.replace("Words that count", "Other words").replace("few lines", "no lines") + "# a"
    (own / "own_stages.py").write_text(prose)
    assert catalogue.code_digest(built[0]) == before[0]
    (own / "own_mix.py").write_text("class Mix:\n    def process(self, batch): return {}\n")
    (own / "own_child.py").write_text("from own_mix import Mix\nfrom own_stages import Lower\nclass Child(Mix, Lower): ...\n")
    child = _digest("own_child:Child")
    (own / "own_stages.py").write_text(OWN_STAGES.replace("gt=0", "ge=0").replace('("numpy",)', '("numpy", "pyarrow")'))
    assert catalogue.code_digest(built[0]) != before[0]
    children = [child, _digest("own_child:Child")]  # of a parent in another file
    (own / "own_mix.py").write_text("class Mix:\n    def process(self, batch): return {'text': batch.texts}\n")
    children.append(_digest("own_child:Child"))  # of a base that is no stage
    assert len(set(children)) == 3


def test_libraries_of_a_stage_are_its_own_and_of_a_users_also_those_that_any_code_may_call(own: Path):
    assert catalogue.libraries_of(catalogue.build_stage(use("filter.length"))) == ()
    assert catalogue.libraries_of(catalogue.build_stage(use("normalize.unicode"))) == ("pyarrow",)
    of_user = catalogue.libraries_of(catalogue.build_stage(use("own_stages:DropShort", min_lines=1)))
    assert of_user == ("numba.any", "numpy.any", "pyarrow.any")


def test_libraries_of_names_one_that_is_not_installed(own: Path):
    needs = "class Needs(Map):\n    libraries = ('not-there-at-all',)\n    def process(self, batch): ...\n"
    (own / "own_needs.py").write_text(f"from datapipe.stage import Map\n{needs}")
    assert "pip install not-there-at-all" in refusal(catalogue.libraries_of, catalogue.stage_class("own_needs:Needs")())


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
        if all(option.default != "required" for option in catalogue.describe(name).options):
            assert schema_problems(GOOD.replace("STAGES", f"[{{{name}: {{as: x}}}}]")) == []
        assert schema_problems(GOOD.replace("STAGES", f"[{{{name}: {{no_such_option: 1}}}}]")) == ["$.stages[0]"]


@pytest.mark.medium
def test_starter_is_good_by_the_schema_and_names_stages_and_options_that_there_are():
    data = parse_yaml(starter_mixture(), "starter").data
    assert list(validator().iter_errors({key: value for key, value in data.items() if value is not None})) == []
    lines = re.findall(r"^  (?:# )?- ([a-z]+\.[a-z_]+(?:: \{.*\})?|\{.*\})(?:  +#.*)?$", starter_mixture(), re.MULTILINE)
    entries = [parse_yaml(line, "starter").data for line in lines]
    uses = [parse_stage(entry) for entry in entries if "until" not in entry]
    assert len(uses) > 5
    for each in uses:
        assert catalogue.build_stage(each).model_dump(include=set(each.options)).keys() == each.options.keys()
