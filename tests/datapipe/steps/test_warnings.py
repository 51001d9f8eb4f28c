"""Warnings of runs: each with a run that causes it, and with one that does not."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from datapipe.config import load_mixture
from datapipe.engine.prepare import prepare
from datapipe.report.records import MixtureShares, SourceShare, Stratum
from datapipe.report.summary import epoch_warnings
from datapipe.steps.warnings import RunWarning
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

_TAIL = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 16}\n"


def _run(folder: Path, rows: list[dict[str, Any]], stages: str = "[]", tail: str = _TAIL, **options: Any) -> runs.Finished:
    corpora.write_jsonl(folder / "web.jsonl", rows)
    path = runs.write_mixture(folder, f"  web: {{path: {folder}/web.jsonl}}", f"stages: {stages}", tail)
    return runs.run_mixture(path, make_engine=runs.InProcess, **options)


def _planned(folder: Path, sources: str, tail: str = _TAIL) -> tuple[RunWarning, ...]:
    """The warnings of a mixture without stages before it runs."""
    return prepare(load_mixture(runs.write_mixture(folder, sources, "stages: []", tail))).warnings


def _written(folder: Path, counts: dict[str, int], **options: object) -> str:
    """Writes a file for each source; returns the `sources:` part of a mixture."""
    for name, count in counts.items():
        corpora.write_jsonl(folder / f"{name}.jsonl", _rows(count))
    own = {name: f", weight: {options[name]}" if name in options else "" for name in counts}
    return "".join(f"  {name}: {{path: {folder}/{name}.jsonl{own[name]}}}\n" for name in counts)


def _rows(count: int) -> list[dict[str, Any]]:
    return [{"text": corpora.prose(random.Random(number))} for number in range(count)]


def _of_kind(finished: runs.Finished, kind: str) -> list[dict[str, Any]]:
    report = json.loads(json.dumps(finished.report))
    return [warning for warning in report["warnings"] if warning["kind"] == kind]


def _texts(*texts: str, short: int = 0, prose: int = 0) -> list[dict[str, Any]]:
    return [*({"text": text} for text in texts), *({"text": f"short {number}"} for number in range(short)), *_rows(prose)]


_LENGTH, _LONG = "[filter.length: {min_words: 5}]", "[dedup.exact, filter.length: {as: long, min_words: 5}]"
_TWO = "[filter.length: {as: one, min_words: 2}, filter.length: {as: two, min_words: 5}]"
_FEW = "[filter.length: {max_words: 1}, dedup.exact]"
_BLANK = ("", " \n\t", "\u3000\u00a0")


@pytest.mark.parametrize(
    ("rows", "stages", "kind", "details"),
    [
        (_texts(short=96, prose=4), _LENGTH, "few_kept", {"kept": 4, "read": 100}),
        (_texts(short=95, prose=5), _LENGTH, "few_kept", {}),
        (_texts(short=91, prose=9), _LONG, "lost_to_stage", {"stage": "long", "dropped": 91, "reached": 100}),
        (_texts(short=90, prose=10), _LONG, "lost_to_stage", {}),
        (_texts(*["copy"] * 50, short=42, prose=8), "[dedup.exact, filter.length: {min_words: 10}]", "lost_to_stage", {}),
        (_texts(*["x"] * 40, short=54, prose=6), _TWO, "lost_to_stage", {}),  # of the 60 that reach it
        (_texts(*["x"] * 40, short=55, prose=5), _TWO, "lost_to_stage", {"stage": "two", "dropped": 55, "reached": 60}),
        (_texts(*["a copy"] * 94, prose=7), "[dedup.exact: {max_dropped: 95%}]", "lost_to_stage", {}),
        (_texts(*["a copy"] * 94, prose=7), "[dedup.exact]", "lost_to_stage", {"stage": "dedup.exact", "dropped": 93}),
        (_texts(*["copy"] * 13, short=87), _FEW, "lost_to_stage", {"stage": "dedup.exact", "dropped": 12, "reached": 13}),
        (_texts(*["copy"] * 99, short=1), _FEW, "lost_to_stage", {}),  # few_kept names it
        (_texts(*_BLANK * 4, prose=11), "[]", "empty_documents", {"empty": 12, "kept": 23}),
        (_texts(*_BLANK * 4, prose=12), "[]", "empty_documents", {}),
    ],
)
def test_loss_is_reported_from_its_limit_on_with_its_numbers(
    tmp_path: Path, rows: list[dict[str, Any]], stages: str, kind: str, details: dict[str, Any]
) -> None:
    told = _of_kind(_run(tmp_path, rows, stages, "tokenizer: none\n"), kind)
    assert len(told) == bool(details)
    for warning in told:
        assert {name: warning[name] for name in details} == details
        assert warning["source"] == "web" and all(str(value) in warning["text"] for value in details.values())


def test_vocabulary_smaller_than_asked_is_reported_with_both_sizes(tmp_path: Path) -> None:
    finished = _run(tmp_path, [{"text": "a few words"}], tail=_TAIL.replace("300", "50000"))
    [warning] = _of_kind(finished, "small_vocabulary")
    assert warning["asked"] == 50_000
    assert warning["vocab_size"] == finished.snapshot.tokenizer.vocab_size < 300
    assert f"the tokenizer has {warning['vocab_size']} of the 50,000 tokens asked for" in warning["text"]


@pytest.mark.parametrize(("limit", "is_told"), [(5, True), (6, True), (7, False), (None, False)])
def test_documents_left_out_by_a_limit_are_reported(tmp_path: Path, limit: int | None, is_told: bool) -> None:
    told = _of_kind(_run(tmp_path, _rows(6), limit=limit), "limited")
    assert [warning["text"] for warning in told] == (
        [f"--limit: only the first {limit} documents of source 'web' were read."] if is_told else []
    )


@pytest.mark.parametrize(("epochs", "is_told"), [(3.9, False), (95, True)])
def test_source_drawn_more_than_four_times_is_reported_with_the_number(tmp_path: Path, epochs: float, is_told: bool) -> None:
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
    path = runs.write_mixture(tmp_path, _written(tmp_path, {"web": 30, "small": 2}), "stages: []", _TAIL)
    sizes = runs.run_mixture(path, make_engine=runs.InProcess).report["mixture"]["sources"]
    tokens = 20 * sizes["small"]["epoch_tokens"]
    for last, is_told in (("90%", False), ("50%", True)):
        phases = f"[{{until: {last}, weights: {{web: 1, small: 0}}}}, {{until: 100%, weights: {{web: 0, small: 1}}}}]"
        done = runs.run_mixture(
            path, make_engine=runs.InProcess, overrides=[f"mixture.tokens={tokens}", f"mixture.phases={phases}"]
        )
        assert ("small" in [warning["source"] for warning in _of_kind(done, "many_epochs")]) == is_told


def test_warning_holds_no_credentials_and_its_own_names_stay() -> None:
    warning = RunWarning(kind="k", source="s", text="look at s3://KEY:SECRET@bucket/a", details={"kind": "other"})
    assert warning.to_json() == {"kind": "k", "source": "s", "text": "look at s3://***@bucket/a"}
    assert "SECRET" not in str(warning)


def test_broken_link_that_a_pattern_passes_over_is_reported(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in" / "web.jsonl", _rows(3))
    sources = f"  web: {{path: {tmp_path}/in/*}}"
    assert _planned(tmp_path, sources) == ()
    for name in ("a", "b"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "nowhere")
    [told] = _planned(tmp_path, sources)
    assert told.kind == "broken_links"
    assert told.text.startswith(f"source 'web': {tmp_path}/in/a and 1 more cannot be read: a broken link")


def test_stages_in_an_odd_order_are_reported_by_the_run(tmp_path: Path) -> None:
    [told] = _of_kind(_run(tmp_path, _rows(3), "[filter.length: {min_words: 5}, normalize.unicode]"), "stage_order")
    assert told["source"] == "web" and "normalize.unicode stands after filter.length" in told["text"]


@pytest.mark.parametrize(
    ("documents", "epochs", "told"), [(2, 0.9, "4.5 times"), (2, 0.8, ""), (0, 0.9, ""), (0, 4.1, "4.1 times")]
)
def test_stratum_that_epochs_repeat_counts_as_often_as_it_is_drawn(documents: int, epochs: float, told: str) -> None:
    counts = {"tokens": 1, "sequences": 1}
    strata = (Stratum(documents=7, repeat=1, **counts), Stratum(documents=documents, repeat=5, **counts))
    source = SourceShare(share=1, tokens=9, epoch_tokens=9, epochs=epochs, max_epochs=None, strata=strata)
    drawn = MixtureShares(tokens=9, asked_tokens=9, phases=1, exhausted="stop", window=1, sources={"web": source}, schedule=())
    texts = [warning.text for warning in epoch_warnings(drawn, {})]
    assert len(texts) == bool(told) and all(told in text for text in texts)


@pytest.mark.parametrize("share", ["8/100", "3/100"])
def test_loss_that_a_share_to_keep_asks_for_is_not_reported(tmp_path: Path, share: str) -> None:
    rows = [{**row, "score": number} for number, row in enumerate(_rows(100))]
    corpora.write_jsonl(tmp_path / "web.jsonl", rows)
    sources = f"  web: {{path: {tmp_path}/web.jsonl, keep: [score]}}"
    stages = f"stages: [tests.support.ranked_stages:ByScore: {{keep_share: {share}}}]"
    finished = runs.run_mixture(runs.write_mixture(tmp_path, sources, stages, _TAIL), make_engine=runs.InProcess)
    assert finished.report["sources"]["web"]["documents"]["kept"] == int(share[0])
    assert finished.report["warnings"] == []


@pytest.mark.parametrize(
    ("weights", "became"),
    [
        (["0.5", "0.4"], "'a' 55.56%, 'b' 44.44%"),
        (["70%", "20%"], "'a' 77.78%, 'b' 22.22%"),
        (["0.8", "0.8"], "'a' 50.00%, 'b' 50.00%"),
        (["1", "1/2"], "'a' 66.67%, 'b' 33.33%"),
        (["0.3", "0.7"], ""),
        (["3", "1"], ""),
        (["1", "1"], ""),
        (["2.5", "0.5"], ""),
        (["0.333", "0.667"], ""),
        (["0", "1"], ""),
    ],
)
def test_weights_that_look_like_shares_and_are_none_are_reported_with_what_they_became(
    tmp_path: Path, weights: list[str], became: str
) -> None:
    found = _planned(tmp_path, _written(tmp_path, {"a": 1, "b": 1}, **dict(zip("ab", weights))))
    assert [became in warning.text for warning in found] == [True] * bool(became)
    assert [warning.kind for warning in found] == ["normalized_weights"] * bool(became)


def test_weights_of_a_phase_that_are_no_shares_are_reported_with_its_key(tmp_path: Path) -> None:
    phases = "[{until: 50%, weights: {a: 0.5, b: 0.5}}, {until: 100%, weights: {a: 0.9, b: 0.3}}]"
    tail = f"{_TAIL}mixture: {{tokens: 1000, phases: {phases}}}\n"
    [warning] = _planned(tmp_path, _written(tmp_path, {"a": 1, "b": 1}), tail)
    assert warning.text.startswith("mixture.phases[1].weights add up to 1.2, ")
    assert "'a' 75.00%, 'b' 25.00%" in warning.text


def test_weight_of_a_source_without_documents_is_reported_with_what_the_others_became(tmp_path: Path) -> None:
    sources = _written(tmp_path, {"a": 0, "b": 1, "c": 1}, a=1, b=2, c=3)
    finished = runs.run_mixture(runs.write_mixture(tmp_path, sources, "stages: []", _TAIL), make_engine=runs.InProcess)
    [warning] = _of_kind(finished, "nothing_to_draw")
    assert "'b' 40.00%, 'c' 60.00%. Why: no document is in its input: a.jsonl." in warning["text"]


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_file_that_two_sources_read_is_reported_when_planning(tmp_path: Path, link: Any) -> None:
    for number in range(3):
        corpora.write_jsonl(tmp_path / f"one/{number}.jsonl", _rows(3))
    (tmp_path / "two").mkdir()
    for number in range(2):
        if link is not None:
            link(tmp_path / f"one/{number}.jsonl", tmp_path / f"two/x{number}.jsonl")
    path = f"{tmp_path}/two/*.jsonl" if link is not None else f"[{tmp_path}/one/0.jsonl, {tmp_path}/one/1.jsonl]"
    sources = f"  a: {{path: {tmp_path}/one/*.jsonl}}\n  b: {{path: {path}}}\n"
    [warning] = _planned(tmp_path, sources)
    assert (warning.kind, warning.details["sources"], warning.details["count"]) == ("same_file", ["a", "b"], 2)
    assert f"read 2 times, by 'a' ({tmp_path}/one/0.jsonl) and 'b' (" in warning.text
    assert "and so is 1 more file" in warning.text
    if link is not None:
        [of_one] = _planned(tmp_path, f"  a: {{path: [{tmp_path}/one/0.jsonl, {tmp_path}/two/x0.jsonl]}}\n")
        assert (of_one.kind, of_one.source) == ("same_file", "a")


def test_files_that_only_look_alike_and_other_fields_of_one_file_are_not_reported(tmp_path: Path) -> None:
    for name in ("one", "two"):
        corpora.write_jsonl(tmp_path / f"{name}.jsonl", [{"text": "some words", "title": "others"}])
        os.utime(tmp_path / f"{name}.jsonl", ns=(7, 7))
    sources = f"  a: {{path: {tmp_path}/*.jsonl}}\n  b: {{path: {tmp_path}/one.jsonl, text: title}}\n"
    assert _planned(tmp_path, sources) == ()
