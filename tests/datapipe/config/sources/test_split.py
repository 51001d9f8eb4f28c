"""The `split:` of a source: what a mixture may say of cells, with the places of what it may not; rules of weights."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from datapipe.cell_names import chosen_values, last_matches, part_of, value_of
from datapipe.config import load_mixture
from datapipe.config.sources.weight_rule import NoWeightError, parse_rule
from datapipe.engine.cell_tables import with_cell_tables
from datapipe.errors import UserError
from datapipe.shards.shard_table import inside_path

README = Path(__file__).resolve().parents[4] / "mixtures/README.md"
BASE = """name: grid
output: out
sources:
  crawl:
    path: x.jsonl
    keep: [language, topic, quality]
    split: {SPLIT}
  old: {snapshot: other}
mixture: {tokens: 1M, phases: [{until: 100%, weights: {WEIGHTS}}]}
"""
GOOD = "{by: [language, {column: quality, quantiles: 4}]}"


def _loaded(folder: Path, split: str = GOOD, weights: str = "{crawl: 1}"):
    path = folder / "mixture.yaml"
    path.write_text(BASE.replace("{SPLIT}", split).replace("{WEIGHTS}", weights))
    return load_mixture(path)


def test_example_of_the_readme_loads_and_survives_its_own_yaml(tmp_path):
    section = README.read_text(encoding="utf-8").partition("## One source, many cells")[2].partition("\n## ")[0]
    example = re.search(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert example is not None
    path = tmp_path / "mixture.yaml"
    path.write_text(f"name: grid\noutput: out\n{example[1]}")
    mixture = load_mixture(path)
    (tmp_path / "again.yaml").write_text(mixture.resolved_yaml())
    assert load_mixture(tmp_path / "again.yaml") == mixture
    split = yaml.safe_load(mixture.resolved_yaml())["sources"]["crawl"]["split"]
    assert split["by"] == ["language", "topic", {"column": "quality", "quantiles": 10}]
    assert split["repeat"] == {"*/*/9": 2.5}


WRONG = [
    ("{by: []}", "split.by: found an empty list, expected a length of at least 1"),
    ("{by: [text]}", "split.by[0].column: found 'text', expected a column"),
    ("{by: [topic, topic]}", "split.by: found 'topic' twice"),
    ("{by: [{column: quality, bounds: [2, 2]}]}", "split.by[0].bounds: found [2.0, 2.0], expected numbers in ascending order"),
    ("{by: [{column: quality, bounds: [2], quantiles: 3}]}", "split.by[0].quantiles: found beside bounds"),
    ("{by: [{colum: quality}]}", "split.by[0].colum: unknown key"),
    ("{by: [language, topic], max_tokens: {'*': 1B}}", "split.max_tokens.*: found 1 parts, expected 2: {language}/{topic}."),
    ("{by: [language, topic], max_tokens: {default: 0}}", "split.max_tokens.default: found 0, expected"),
    ("{by: [language, topic], repeat: {en: 2}}", "split.repeat.en: found 1 parts, expected 2: {language}/{topic}."),
    ("{by: [language], weights: {en: -1}}", "split.weights.en: found -1, expected a number of at least 0"),
    ("{by: [language], weights: {default: 0}}", "split.weights: every weight is 0"),
    ("{by: [language], weights: tokens ** 2}", None),
    ("{by: [language], weights: tokens * languge}", "split.weights: unknown name 'languge'. Did you mean 'language'?"),
    ("{by: [language], weights: exp(tokens)}", "split.weights: found exp(tokens) in 'exp(tokens)', expected numbers, names"),
    ("{by: [language], weights: 'tokens[0]'}", "split.weights: found tokens[0] in 'tokens[0]', expected numbers"),
    ("{by: [language], weights: tokens *}", "split.weights: found 'tokens *', expected numbers"),
]


@pytest.mark.parametrize(("split", "problem"), WRONG)
def test_problems_of_a_split_name_their_place(tmp_path, split, problem):
    if problem is None:
        assert _loaded(tmp_path, split)
        return
    with pytest.raises(UserError, match=re.escape(f"mixture.yaml:7: sources.crawl.{problem}")):
        _loaded(tmp_path, split)


WEIGHTS = [
    ("{crawl/en/*: 1}", None),
    ("{crawl/en: 1}", "weights.crawl/en: found 1 parts, expected 2: {language}/{quality}"),
    ("{crowl/en/1: 1}", "weights.crowl/en/1: unknown source 'crowl'. Did you mean 'crawl'?"),
    ("{old/en: 1}", "weights.old/en: names a cell of 'old'. Name the one source of that snapshot that has cells"),
]


@pytest.mark.parametrize(("weights", "problem"), WEIGHTS)
def test_phases_name_cells_of_sources_that_have_any(tmp_path, weights, problem):
    if problem is None:
        mixture = _loaded(tmp_path, weights=weights)
        assert mixture.weight_phases()[0].weights == {"crawl": 0, "old": 0, "crawl/en/*": 1}
        assert mixture.average_shares() == {"crawl": 1, "old": 0}
        return
    with pytest.raises(UserError, match=re.escape(problem)):
        _loaded(tmp_path, weights=weights)


def test_names_and_patterns_of_cells():
    for value in (
        "science",
        "a/b",
        "100%",
        "*",
        "x?[y]",
        "tab\there",
        "日本",
        "é\x85",
        "a\\b",
        ".",
        "..",
        "...",
        "default",
        "none",
        "%6Eone",
        "nones",
    ):
        assert value_of(part_of(value)) == value
        assert not set(part_of(value)) & set("/*?[\t\x85")
        inside_path(f"crawl/{part_of(value)}/1")  # as the states of a loader have it
    assert part_of("") == "none" != part_of("none")
    assert part_of(" x ") == "%20x%20"
    assert len(part_of("x" + " " * 200_000 + "x")) <= 100  # not in quadratic time
    long = [part_of(f"{head}{tail}") for head in ("日" * 90, "/" * 90) for tail in ("a" * 200, "b" * 200)]
    assert len({*long}) == 4 and max(map(len, long)) <= 100 and long[0].startswith("日" * 80)
    names = ["de/1", "en/1", "en/12", "en/2", "e.n/1"]
    assert last_matches(["en/*", "default", "*/1?", "fr/1"], names)[0].tolist() == [1, 0, 2, 0, 1]
    assert last_matches(["en/*", "fr/1", "fr/*"], names)[1] == ["fr/1", "fr/*"]
    assert chosen_values({"e?n/1": 1, "en/1": 2, "en/?": 3}, names, 0) == [0, 3, 0, 3, 1]


VALUES = {"tokens": Fraction(10**15), "documents": Fraction(7), "filter.hq.score": Fraction(3), "quality": Fraction(0)}
RULES = [
    ("tokens / documents", Fraction(10**15, 7)),
    ("0.1 * tokens - 2 * -3", Fraction(10**14 + 6)),
    ("2 ^ 3 ^ 2", Fraction(512)),
    ("filter.hq.score ^ -2 + max(quality, 1, min(2, 5))", Fraction(1, 9) + 2),
    ("sqrt(tokens * 10) - 10^8", Fraction(0)),
    ("(1 + quality) ^ 0.5", Fraction(1)),
    ("quality ^ 0.5", Fraction(0)),
    ("log(1)", Fraction(0)),
    ("max(quality) + min(2)", Fraction(2)),
]


@pytest.mark.parametrize(("rule", "weight"), RULES)
def test_rules_are_exact(rule, weight):
    assert parse_rule(rule).weight(VALUES) == weight


def test_roots_have_sixty_digits():
    assert abs(parse_rule("2 ^ 0.5").weight({}) ** 2 - 2) < Fraction(1, 10**58)
    assert abs(parse_rule("(tokens ^ 32) ^ 16").weight(VALUES) / Fraction(10 ** (15 * 512)) - 1) < Fraction(1, 10**50)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("log(quality)", "0 has no logarithm"),
        ("1 / quality", "divides by 0"),
        ("quality - 1", "it is -1, and"),
        ("quality ^ -1", "divides by 0"),
        ("(0 - 2) ^ 0.5", "-2 has no logarithm"),
        ("sqrt(0 - 2)", "-2 has no root"),
        ("0 - (10 ^ 64) ^ 20", r"it is -1\.00000e\+1280"),
        ("(tokens ^ 64) ^ 64", "more than 10,000 digits"),
    ],
)
def test_rules_without_a_weight_are_refused(rule, problem):
    with pytest.raises(NoWeightError, match=problem):
        parse_rule(rule).weight(VALUES)


TABLES = [
    ("cell,weight\nen/1,2\nde/*,1/3\n", {"default": 0, "en/1": 2, "de/*": Fraction(1, 3)}),
    ("\ufefflanguage, quality ,weight,repeat\nx/y,1,2,0.5\n\n,3,1,\n", {"default": 0, "x%2Fy/1": 2, "none/3": 1}),
    ("cell,weight\ndefault,1\nen/1,0\n", {"default": 1, "en/1": 0}),
    ("language,quality,weight,max_tokens\ndefault,none,2,1K\nnone,0,1,\n", {"default": 0, "%64efault/none": 2, "%6Eone/0": 1}),
    ("cell,weight\ren/1,2\r", {"default": 0, "en/1": 2}),
    (f"cell,weight\n{'x' * 200_000},2\n", "field larger than field limit"),
    ("cell,weight,max_epochs\nen/1,2,0\n", "line 2: max_epochs: found '0', expected a number above 0"),
    ("language,quality,weight\nen,a/b,2\n", "line 2: cell 'en/a/b': found 3 parts, expected 2"),
    ("cell,weight,repeat\nen/1,2,1e13\n", "line 2: repeat: found '1e13', expected a number below 2^40"),
    ("cell,weight,max_tokens\nen/1,2,1.5\n", "line 2: max_tokens: found '1.5', expected a"),
    ("", "no column language"),
    ("cell,weight\nen,2\n", "line 2: cell 'en': found 1 parts, expected 2: {language}/{quality}"),
    ("cell,weigth\nen/1,2\n", "no column weight, found cell, weigth"),
    ("cell,weight,loss\nen/1,2,3\n", "column 'loss' is unknown."),
    ("cell,weight\nen/1,2,3\n", "line 2: found 3 values, expected 2"),
    ("cell,weight\nen/1,x\n", "line 2: weight: found 'x', expected a number of at least 0"),
    ("cell,weight\nen/1,1\nen/1,2\n", "line 3: found the cell en/1 twice"),
    ("cell,weight\nen/1,0\n", "found no weight above 0"),
]


@pytest.mark.parametrize(("table", "expected"), TABLES)
def test_tables_become_weights_by_name(tmp_path, table, expected):
    (tmp_path / "weights.csv").write_text(table, newline="")
    mixture = _loaded(tmp_path, GOOD.replace("}]}", f"}}], weights: {tmp_path}/weights.csv}}"))
    if isinstance(expected, str):
        with pytest.raises(UserError, match=re.escape(expected)):
            with_cell_tables(mixture)
        return
    split = with_cell_tables(mixture).sources["crawl"].split
    assert split is not None
    assert split.weights == expected
    assert split.repeat == ({"x%2Fy/1": Fraction(1, 2)} if "repeat" in table else {})
    assert split.max_tokens == ({"%64efault/none": 1000} if "max_tokens" in table else {})


def test_a_table_has_no_budgets_beside_that_of_the_source(tmp_path):
    (tmp_path / "weights.csv").write_text("cell,weight,max_tokens\nen/1,2,1K\n")
    mixture = _loaded(tmp_path, GOOD.replace("}]}", f"}}], weights: {tmp_path}/weights.csv}}\n    max_tokens: 5K"))
    with pytest.raises(UserError, match="found max_tokens beside that of the source"):
        with_cell_tables(mixture)
