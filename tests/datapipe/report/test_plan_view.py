"""The notes of `datapipe plan`."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from datapipe.config import load_mixture
from datapipe.engine.run import planned
from datapipe.plan.estimate import Estimate
from datapipe.report.plan_view import estimate_text, plan_view
from tests.support import corpora, runs


def _shown(folder: Path, stages: str, *sources: str) -> list[str]:
    """The lines of the plan of a mixture, without the lines of its tree."""
    listed = ""
    for source in sources or ("web: {}",):
        name, _, options = source.partition(": ")
        rows = [{**row, "score": number} for number, row in enumerate(corpora.documents(1, 10))]
        corpora.write_jsonl(folder / f"{name}.jsonl", rows)
        listed += f"  {name}: {{path: {folder}/{name}.jsonl, {options[1:]}\n"
    mixture = load_mixture(runs.write_mixture(folder, listed, f"stages: {stages}"))
    stream = io.StringIO()
    Console(file=stream, width=200).print(plan_view(mixture, *planned(mixture)))
    return [line.strip(" │├─└") for line in stream.getvalue().splitlines()]


def test_plan_view_shows_the_match_probabilities_of_every_minhash_stage(tmp_path: Path) -> None:
    lines = _shown(tmp_path, "[dedup.exact, dedup.minhash, dedup.minhash: {as: near, bands: 2, rows: 1}]")
    (default,) = [index for index, line in enumerate(lines) if "14 bands of 8 rows, 112 permutations" in line]
    (other,) = [index for index, line in enumerate(lines) if "2 bands of 1 rows, 2 permutations" in line]
    assert lines[default + 2].split()[-6:] == ["5.3%", "21.1%", "56.5%", "92.4%", "100.0%", "100.0%"]
    assert lines[other + 2].split()[-6:] == ["75.0%", "84.0%", "91.0%", "96.0%", "99.0%", "100.0%"]


def test_plan_view_shows_which_sources_are_not_compared_and_why(tmp_path: Path) -> None:
    kept = (("web", "longest"), ("books", "longest"), ("code", "first"))
    lines = _shown(tmp_path, "[]", *(f"{name}: {{stages: [dedup.exact: {{keep: {keep}}}]}}" for name, keep in kept))
    assert [line.partition(" (")[0] for line in lines if "not compared" in line] == [
        "not compared with code, where keep differs",
        "not compared with web, books, where keep differs",
    ]


def test_plan_view_shows_strata_and_what_a_stage_that_is_a_function_costs(tmp_path: Path) -> None:
    strata = "{keep: [score], strata: {by: score, bounds: [2, 4.5], repeat: [1, 2, 3], order: ascending}}"
    shown = "\n".join(_shown(tmp_path, "[tests.support.function_stages:reverses: {as: turned}, dedup.exact]", f"web: {strata}"))
    assert "strata by score, ascending, in an epoch: below 2 once; 2 to below 4.5 twice; from 4.5 3 times" in shown
    assert "turned: a Python call for each document" in shown


def test_plan_view_says_once_of_a_source_that_steps_wait(tmp_path: Path) -> None:
    lines = _shown(tmp_path, "[dedup.exact, normalize.unicode]", "web: {}", "books: {}")
    for group in ("web", "books", "dedup.exact", "tokenizer"):
        start = next(number for number, line in enumerate(lines) if line.partition(":")[0] == group)
        assert sum("after the steps before" in line for line in lines[start + 1 : start + 3]) == 1
    assert sum("after the steps before" in line for line in lines) == 4


def test_estimated_time_counts_the_start_of_workers_and_steps_on_any_number_of_cores() -> None:
    expected = Estimate(bytes=10, core_seconds=2.0, unknown=(), is_all_kept=False, start_seconds=7.0)
    assert "take about 8 seconds on 2 cores" in estimate_text(expected, None, 2)
    assert "take about 7 seconds on 64 cores" in estimate_text(expected, None, 64)
