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


def test_plan_view_shows_the_match_probabilities_of_every_minhash_stage(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "web.jsonl", corpora.documents(1, 10))
    near = "{as: near, bands: 2, rows: 1}"
    stages = f"stages:\n  - dedup.exact\n  - dedup.minhash\n  - dedup.minhash: {near}\n"
    mixture = load_mixture(runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web.jsonl}}\n", stages))
    shown = Console(file=io.StringIO(), width=200)
    shown.print(plan_view(mixture, *planned(mixture)))
    lines = shown.file.getvalue().splitlines()  # type: ignore[attr-defined]
    (default,) = [index for index, line in enumerate(lines) if "14 bands of 8 rows, 112 permutations" in line]
    (other,) = [index for index, line in enumerate(lines) if "2 bands of 1 rows, 2 permutations" in line]
    assert lines[default + 2].split()[-6:] == ["5.3%", "21.1%", "56.5%", "92.4%", "100.0%", "100.0%"]
    assert lines[other + 2].split()[-6:] == ["75.0%", "84.0%", "91.0%", "96.0%", "99.0%", "100.0%"]


def test_plan_view_shows_which_sources_are_not_compared_and_why(tmp_path: Path) -> None:
    sources = ""
    for name, keep in (("web", "longest"), ("books", "longest"), ("code", "first")):
        corpora.write_jsonl(tmp_path / f"{name}.jsonl", corpora.documents(1, 10))
        sources += f"  {name}:\n    path: {tmp_path}/{name}.jsonl\n    stages: [dedup.exact: {{keep: {keep}}}]\n"
    mixture = load_mixture(runs.write_mixture(tmp_path, sources, ""))
    shown = Console(file=io.StringIO(), width=200)
    shown.print(plan_view(mixture, *planned(mixture)))
    notes = [line.strip(" │├─└") for line in shown.file.getvalue().splitlines() if "not compared" in line]  # type: ignore[attr-defined]
    assert [line.partition(" (")[0] for line in notes] == [
        "not compared with code, where keep differs",
        "not compared with web, books, where keep differs",
    ]


def test_plan_view_shows_the_strata_of_a_source(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "web.jsonl", [{"text": f"text {number}", "score": number} for number in range(9)])
    strata = "strata: {by: score, bounds: [2, 4.5], repeat: [1, 2, 3], order: ascending}"
    mixture = load_mixture(
        runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web.jsonl, keep: [score], {strata}}}\n", "")
    )
    shown = Console(file=io.StringIO(), width=200)
    shown.print(plan_view(mixture, *planned(mixture)))
    wanted = "strata by score, ascending, in an epoch: below 2 once; 2 to below 4.5 twice; from 4.5 3 times"
    assert wanted in shown.file.getvalue()  # type: ignore[attr-defined]


def test_plan_view_tells_what_a_stage_that_is_a_function_costs(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "web.jsonl", corpora.documents(1, 10))
    stages = "stages:\n  - tests.support.function_stages:reverses: {as: turned}\n  - dedup.exact\n"
    mixture = load_mixture(runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web.jsonl}}\n", stages))
    shown = Console(file=io.StringIO(), width=200)
    shown.print(plan_view(mixture, *planned(mixture)))
    assert "turned: a Python call for each document" in shown.file.getvalue()  # type: ignore[attr-defined]


def test_plan_view_says_once_of_a_source_that_steps_wait(tmp_path: Path) -> None:
    sources = ""
    for name in ("web", "books"):
        corpora.write_jsonl(tmp_path / f"{name}.jsonl", corpora.documents(1, 10))
        sources += f"  {name}: {{path: {tmp_path}/{name}.jsonl}}\n"
    mixture = load_mixture(runs.write_mixture(tmp_path, sources, "stages: [dedup.exact, normalize.unicode]\n"))
    shown = Console(file=io.StringIO(), width=200)
    shown.print(plan_view(mixture, *planned(mixture)))
    lines = [line.strip(" │├─└") for line in shown.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    for group in ("web", "books", "dedup.exact", "tokenizer"):
        start = next(number for number, line in enumerate(lines) if line.partition(":")[0] == group)
        steps = lines[start + 1 : start + 3]
        assert sum("after the steps before" in line for line in steps) == 1
    assert sum("after the steps before" in line for line in lines) == 4


def test_estimated_time_counts_the_start_of_workers_and_steps_on_any_number_of_cores() -> None:
    expected = Estimate(bytes=10, core_seconds=2.0, unknown=(), is_all_kept=False, start_seconds=7.0)
    assert "take about 8 seconds on 2 cores" in estimate_text(expected, None, 2)
    assert "take about 7 seconds on 64 cores" in estimate_text(expected, None, 64)
