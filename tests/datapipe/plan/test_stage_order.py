"""Orders of stages that the documentation advises against are told, and others are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.config import load_mixture
from datapipe.config.stage_use import StageUse, parse_stage
from datapipe.plan.stage_order import order_warnings

ROOT = Path(__file__).resolve().parents[3]


def _uses(*names: str | dict[str, dict[str, object]]) -> list[StageUse]:
    return [parse_stage(name) for name in names]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("filter.gopher_quality", "normalize.unicode"),
        ("dedup.minhash", "normalize.unicode"),
        ("redact.secrets", "normalize.unicode"),
        ("filter.gopher_repetition", "filter.language"),
        ("dedup.minhash", "filter.length"),
        ("dedup.minhash", "dedup.exact"),
        ("dedup.lines", "dedup.exact"),
        ("dedup.substring", "dedup.minhash"),
        ("dedup.lines", "filter.c4_quality"),
        ("redact.pii", "dedup.exact"),
        ("decontaminate.ngram", "dedup.minhash"),
        ("redact.pii", "decontaminate.ngram"),
    ],
)
def test_order_advised_against_is_told_with_both_stages_and_the_other_way_round_is_not(first: str, second: str) -> None:
    [warning] = order_warnings({"web": _uses(first, "my.own:Stage", second)})
    assert (warning.kind, warning.source) == ("stage_order", "web")
    assert f"source 'web': {second} stands after {first}. Put it before, because " in warning.text
    assert order_warnings({"web": _uses(second, "my.own:Stage", first)}) == []


@pytest.mark.parametrize(
    "names",
    [
        ["dedup.lines", "dedup.minhash"],  # templates of sites are cut before pages are compared
        ["filter.length", "dedup.minhash", {"filter.length": {"as": "again"}}],
        ["dedup.minhash", {"filter.length": {"mode": "tag"}}],
        ["dedup.minhash", {"filter.classifier": {"keep_share": "10%"}}],
        [{"dedup.exact": {"by": "field", "field": "url"}}, "normalize.unicode", "dedup.minhash"],
        ["dedup.minhash", "dedup.lines", "filter.length"],  # what is left of cut pages
        ["filter.url", "filter.language", "normalize.unicode", "filter.length"],
    ],
)
def test_order_with_a_purpose_is_not_told(names: list[str | dict[str, dict[str, object]]]) -> None:
    assert order_warnings({"web": _uses(*names)}) == []


def test_order_names_aliases_and_sources_share_a_warning() -> None:
    wrong = _uses({"dedup.minhash": {"as": "near"}}, {"dedup.exact": {"as": "equal"}})
    [warning] = order_warnings({f"s{number}": wrong for number in range(5)} | {"right": wrong[::-1]})
    assert warning.text.startswith("5 sources ('s0', 's1', 's2' and 2 more): equal stands after near. ")
    assert warning.to_json()["sources"] == ["s0", "s1", "s2", "s3", "s4"]
    assert warning.to_json()["source"] is None


@pytest.mark.parametrize("path", sorted((ROOT / "mixtures").glob("*.yaml")), ids=lambda path: path.stem)
def test_order_of_the_mixtures_to_copy_is_the_one_advised(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CRAWL", "CODE", "WARC", "WET"):
        monkeypatch.setenv(name, "folder")
    mixture = load_mixture(path)
    assert order_warnings({name: mixture.stages_of(name) for name in mixture.sources}) == []
