"""What the page copies for a threshold, pasted into the mixture, decides what its slider shows: over every kind of slider."""

import json
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from ruamel.yaml import YAML

from datapipe.config import catalogue
from datapipe.config.stage_use import StageUse, parse_stage
from datapipe.stage.base import BELOW_SHARE, Filter
from tests.support import browsed, corpora, runs
from tests.support.browsed import Browsed
from tests.support.fasttext_files import Recipe
from tests.support.finished import finish
from tests.support.global_stages import batch_of

pytestmark = pytest.mark.medium


@cache
def _texts() -> list[str]:
    rng = random.Random(5)
    words = ["the", "and", "der", "ça", "of", "be", "to", "that", "have", "with", "river", "#", "•", "light..."]
    texts = [" ".join(rng.choices(words, k=rng.randrange(1, 90))) for _ in range(100)]
    return [text.replace(" river ", "\n") for text in texts] + ["with river light " * 16, "a b"]


_STAGES = (
    "filter.length: {min_words: 5, max_words: 60, min_chars: 3, max_chars: 500, MODE}",
    "filter.length: {min_bytes: 30, as: short, MODE}",
    "filter.gopher_quality: {min_words: 3, stop_words: [the, and, of, with], min_stop_words: 1, MODE}",
    'filter.gopher_quality: {profile: datatrove, bullets: "{threshold}•", MODE}',
    "filter.gopher_repetition: {MODE}",
    "filter.fineweb_quality: {MODE}",
    "filter.code_quality: {profile: the_stack, max_line_length: 200, MODE}",
)
_SCORES = ("keep_share: 25%", "keep_share: 25%, share_of: bytes, min_score: 0.1", "min_score: 0.5")
_MODES = ("mode: drop", "mode: tag")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Browsed:
    """An output with a source for each stage in each mode, and some more."""
    folder = tmp_path_factory.mktemp("sweeps")
    model = Recipe(words=("</s>", "the", "and", "der", "ça", "of"), labels=("0", "hq"), scale=0.5).write(folder / "m.bin")
    scored = [f"filter.classifier: {{model: {model}, {share}, MODE}}" for share in _SCORES]
    stages = {
        f"{name}-{number}-{mode[6:]}": [stage.replace("MODE", mode)]
        for name, listed in (("plain", _STAGES), ("score", scored))
        for number, stage in enumerate(listed)
        for mode in _MODES
    }
    stages["twice"] = ["filter.length: {min_words: 5}", "filter.length: {max_words: 8, as: again}"]
    rows = [{"id": f"{number}", "text": text, "score": number} for number, text in enumerate(_texts())]
    corpora.write_jsonl(folder / "a.jsonl", rows)
    sources = "".join(
        f"  {name}:\n    path: {folder}/a.jsonl\n    keep: [score]\n    stages:\n"
        + "".join(f"      - {stage}\n" for stage in listed)
        for name, listed in stages.items()
    )
    finish(runs.write_mixture(folder, sources, "", "tokenizer: none"))
    return browsed.browse(folder / "out")


def _pasted(swept: Mapping[str, Any], point: Mapping[str, Any]) -> StageUse:
    """The stage of the line that the page copies at a point, as it writes numbers."""
    threshold = point["threshold"]
    if swept["as_it_is"] and threshold == swept["in_force"]:
        line = swept["as_it_is"]
    else:
        start, found, end = swept["yaml"].rpartition("{threshold}")
        assert found
        line = f"{start}{int(threshold) if float(threshold).is_integer() else repr(threshold)}{end}"
    [entry] = YAML(typ="safe", pure=True).load(line)
    return parse_stage(entry)


def _kept(use: StageUse, rule: str) -> tuple[int, int]:
    """How many documents one of the rules of a stage keeps by itself, and how many the stage does."""
    stage = catalogue.build_stage(use)
    assert isinstance(stage, Filter)
    result = stage.process(batch_of(_texts()))
    index = [each.name for each in stage.rules()].index(rule)
    return int((~stage.rules()[index].failed(result.measured[index])).sum()), int(result.keep.sum())


def _checked(shown: Browsed, rule: Mapping[str, Any]) -> int:
    """Compares points of a slider with what the line decides. Returns how many."""
    swept = shown.get("sweep", **_named(rule))
    points = swept["points"]
    chosen = {0, len(points) - 1, *range(0, len(points), max(1, len(points) // 8))}
    chosen |= {number for number, point in enumerate(points) if point["threshold"] == swept["in_force"]}
    for number in sorted(chosen) if swept["yaml"] else ():
        pasted, point = _pasted(swept, points[number]), points[number]
        alone, together = _kept(pasted, rule["rule"])
        assert point["documents"] == alone and point["together"] in (None, together), (rule, point)
        assert (point["together"] is None) == (rule["mode"] == "drop")
    return len(chosen) if swept["yaml"] else 0


def _rules(shown: Browsed, source: str) -> dict[str, dict[str, Any]]:
    return {rule["rule"]: rule for rule in shown.get("output")["rules"] if rule["has_sweep"] and rule["source"] == source}


def _named(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {name: rule[name] for name in ("source", "stage", "rule")}


@pytest.mark.parametrize("mode", ["drop", pytest.param("tag", marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", range(len(_STAGES)))
def test_pasted_line_decides_what_the_slider_shows(shown: Browsed, number: int, mode: str) -> None:
    rules = _rules(shown, f"plain-{number}-{mode}").values()
    assert sum(_checked(shown, rule) for rule in rules) > 5
    assert all(rule["option"] or not shown.get("sweep", **_named(rule))["yaml"] for rule in rules)


@pytest.mark.parametrize("mode", ["drop", "tag"])
def test_pasted_line_of_a_score_is_a_least_score(shown: Browsed, mode: str) -> None:
    for number in range(2):
        rule = _rules(shown, f"score-{number}-{mode}")[BELOW_SHARE]
        swept = shown.get("sweep", **_named(rule))
        model = str(shown.folder / "m.bin")
        assert swept["yaml"] == f"- filter.classifier: {{model: {json.dumps(model)}, min_score: {{threshold}}}}"
        if mode == "drop":
            assert '{"model"' not in swept["as_it_is"] and f"keep_share: {json.dumps('25%')}" in swept["as_it_is"]
        for point in swept["points"][:: max(1, len(swept["points"]) // 12)]:
            if mode == "tag" or point["threshold"] != swept["in_force"]:
                assert _kept(_pasted(swept, point), "low_score")[0] == point["documents"]
        assert swept["in_force"] in [point["threshold"] for point in swept["points"]]
    assert _checked(shown, _rules(shown, f"score-2-{mode}")["low_score"]) > 1


def test_just_kept_are_those_that_the_run_kept(shown: Browsed) -> None:
    sides = shown.get("borderline", source="twice", stage="filter.length", rule="too_few_words")
    assert {row["key"] for row in sides["kept"]} == {row["key"] for row in shown.listed(source="twice", fate="kept")}
    assert {row["fate"] for row in sides["kept"]} == {"kept"}
    assert {row["fate"] for row in sides["dropped"]} == {"dropped"}
    assert sides["dropped_later"] > 0
    sides = shown.get("borderline", source="plain-0-tag", stage="filter.length", rule="too_few_words")
    assert sides["mode"] == "tag"
    assert {row["fate"] for row in [*sides["kept"], *sides["dropped"]]} == {"kept"}
