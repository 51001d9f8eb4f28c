"""Warnings of runs: each with a run that causes it, and with one that does not."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from datapipe.config import load_mixture
from datapipe.config.stage_use import StageUse, parse_stage
from datapipe.plan import warnings
from datapipe.plan.warnings import RunWarning, named, order_warnings
from datapipe.report.mixture_shares import epoch_warnings
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

ROOT = Path(__file__).resolve().parents[3]
_TAIL = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 16}\n"


def _run(folder: Path, rows: list[dict[str, Any]], stages: str = "[]", tail: str = _TAIL, **options: Any) -> runs.Finished:
    corpora.write_jsonl(folder / "web.jsonl", rows)
    path = runs.write_mixture(folder, f"  web: {{path: {folder}/web.jsonl}}", f"stages: {stages}", tail)
    return runs.run_mixture(path, make_engine=runs.InProcess, **options)


def _rows(count: int) -> list[dict[str, Any]]:
    return [{"text": corpora.prose(random.Random(number))} for number in range(count)]


def _of_kind(finished: runs.Finished, kind: str) -> list[dict[str, Any]]:
    report = json.loads(json.dumps(finished.report))
    return [warning for warning in report["warnings"] if warning["kind"] == kind]


def test_run_as_it_should_be_warns_of_nothing(tmp_path: Path) -> None:
    assert _run(tmp_path, _rows(20)).report["warnings"] == []


@pytest.mark.parametrize(("short", "is_told"), [(96, True), (95, False)])
def test_source_of_which_less_than_a_twentieth_is_kept_is_told(tmp_path: Path, short: int, is_told: bool) -> None:
    rows = [{"text": "short"}] * short + _rows(100 - short)
    told = _of_kind(_run(tmp_path, rows, "[filter.length: {min_words: 5}]"), "few_kept")
    assert bool(told) == is_told
    for warning in told:
        assert (warning["source"], warning["kept"], warning["read"]) == ("web", 4, 100)
        assert "4 of 100 documents kept (4.00%). filter.length:too_few_words took 96." in warning["text"]


def test_vocabulary_smaller_than_asked_is_told_with_both_sizes(tmp_path: Path) -> None:
    finished = _run(tmp_path, [{"text": "a few words"}], tail=_TAIL.replace("300", "50000"))
    [warning] = _of_kind(finished, "small_vocabulary")
    assert warning["asked"] == 50_000
    assert warning["vocab_size"] == finished.snapshot.tokenizer.vocab_size < 300
    assert f"the tokenizer has {warning['vocab_size']} of the 50,000 tokens asked for" in warning["text"]


@pytest.mark.parametrize(("limit", "is_told"), [(5, True), (6, True), (7, False), (None, False)])
def test_documents_left_out_by_a_limit_are_told(tmp_path: Path, limit: int | None, is_told: bool) -> None:
    told = _of_kind(_run(tmp_path, _rows(6), limit=limit), "limited")
    assert [warning["text"] for warning in told] == (
        [f"--limit: only the first {limit} documents of source 'web' were read."] if is_told else []
    )


@pytest.mark.parametrize(("epochs", "is_told"), [(3.9, False), (95, True)])
def test_source_drawn_more_than_four_times_is_told_with_the_number(tmp_path: Path, epochs: float, is_told: bool) -> None:
    one = _run(tmp_path, _rows(12)).report["mixture"]
    assert one["tokens"] is None  # an endless run has no number of epochs
    tokens = int(epochs * one["sources"]["web"]["epoch_tokens"])
    finished = _run(tmp_path, _rows(12), overrides=[f"mixture.tokens={tokens}"])
    told = _of_kind(finished, "many_epochs")
    assert bool(told) == is_told
    for warning in told:
        assert warning["epochs"] == finished.report["mixture"]["sources"]["web"]["epochs"]
        assert f"drawn {warning['epochs']:.1f} times" in warning["text"]
        assert "max_epochs to 4" in warning["text"]


def test_epochs_over_phases_are_those_of_the_whole_run(tmp_path: Path) -> None:
    """A source that is drawn in the last tenth of a run alone: its epochs follow from the phases, not from its own weight."""
    for name, count in (("web", 30), ("small", 2)):
        corpora.write_jsonl(tmp_path / f"{name}.jsonl", _rows(count))
    sources = "\n".join(f"  {name}: {{path: {tmp_path}/{name}.jsonl}}" for name in ("web", "small"))
    path = runs.write_mixture(tmp_path, sources, "stages: []", _TAIL)
    sizes = runs.run_mixture(path, make_engine=runs.InProcess).report["mixture"]["sources"]
    tokens = 20 * sizes["small"]["epoch_tokens"]
    for last, is_told in (("90%", False), ("50%", True)):
        phases = f"[{{until: {last}, weights: {{web: 1, small: 0}}}}, {{until: 100%, weights: {{web: 0, small: 1}}}}]"
        done = runs.run_mixture(
            path, make_engine=runs.InProcess, overrides=[f"mixture.tokens={tokens}", f"mixture.phases={phases}"]
        )
        assert ("small" in [warning["source"] for warning in _of_kind(done, "many_epochs")]) == is_told


def test_kept_report_of_the_snapshot_has_the_same_warnings(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    corpora.write_jsonl(tmp_path / "web.jsonl", [{"text": "short"}] * 60 + _rows(1))
    corpora.write_jsonl(tmp_path / "none.jsonl", [{"text": "short"}])
    sources = f"  web: {{path: {tmp_path}/web.jsonl}}\n  none: {{path: {tmp_path}/none.jsonl}}"
    path = runs.write_mixture(tmp_path, sources, "stages: [filter.length: {min_words: 5}]", _TAIL)

    def note(plan: Any, snapshot: Any, warnings: Any) -> bytes:
        seen.append([warning.kind for warning in warnings])
        return b"{}"

    finished = runs.run_mixture(path, make_engine=runs.InProcess, report=note)
    assert seen == [["nothing_to_draw"]]
    assert [(warning["kind"], warning["source"]) for warning in finished.report["warnings"]] == [
        ("few_kept", "web"),
        ("nothing_to_draw", "none"),
    ]


def test_warning_holds_no_credentials_and_its_own_names_stay() -> None:
    warning = RunWarning(kind="k", source="s", text="look at s3://KEY:SECRET@bucket/a", details={"kind": "other"})
    assert warning.to_json() == {"kind": "k", "source": "s", "text": "look at s3://***@bucket/a"}
    assert "SECRET" not in str(warning)


@pytest.mark.parametrize(
    ("count", "text"),
    [(2, "2 sources ('s0', 's1')"), (3, "3 sources ('s0', 's1', 's2')"), (50, "50 sources ('s0', 's1', 's2' and 47 more)")],
)
def test_named_sources_are_three_at_most(count: int, text: str) -> None:
    assert named([f"s{number}" for number in range(count)]) == text


def test_broken_link_that_a_pattern_passes_over_is_told(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in" / "web.jsonl", _rows(3))
    path = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/in/*}}", "stages: []", _TAIL)
    assert _of_kind(runs.run_mixture(path, make_engine=runs.InProcess), "broken_links") == []
    for name in ("a", "b"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "nowhere")
    [told] = _of_kind(runs.run_mixture(path, make_engine=runs.InProcess), "broken_links")
    assert told["text"].startswith(f"source 'web': {tmp_path}/in/a and 1 more cannot be read: a broken link")


def test_stages_in_an_odd_order_are_told_by_the_run(tmp_path: Path) -> None:
    told = _of_kind(_run(tmp_path, _rows(3), "[filter.length: {min_words: 5}, normalize.unicode]"), "stage_order")
    assert [(warning["kind"], warning["source"]) for warning in told] == [("stage_order", "web")]
    assert "normalize.unicode stands after filter.length" in told[0]["text"]


def test_table_of_kinds_is_that_of_the_code() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in Path(warnings.__file__).parents[1].rglob("*.py"))
    used = set(re.findall(r'(?:RunWarning\(\s*kind=|RunWarning\.of_sources\()"(\w+)"', code))
    assert warnings.__doc__ is not None
    assert used == set(re.findall(r"^(\w+) {2,}\S", warnings.__doc__.partition("---\n")[2], re.M))


@pytest.mark.parametrize(
    ("documents", "epochs", "told"), [(2, 0.9, "4.5 times"), (2, 0.8, ""), (0, 0.9, ""), (0, 4.1, "4.1 times")]
)
def test_stratum_that_epochs_repeat_counts_as_often_as_it_is_drawn(documents: int, epochs: float, told: str) -> None:
    strata = [{"documents": 7, "repeat": 1}, {"documents": documents, "repeat": 5}]
    texts = [warning.text for warning in epoch_warnings({"sources": {"web": {"epochs": epochs, "strata": strata}}})]
    assert len(texts) == bool(told) and all(told in text for text in texts)


# ---- the order of stages


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
