"""Fits to laws that are known: the found mixture is near the best one, obeys its limits, and noise tells nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from datapipe.config import load_mixture
from datapipe.errors import UserError
from datapipe.mixtures.draws import dirichlet, normals, within
from datapipe.mixtures.fit import Fit, fit
from datapipe.mixtures.limits import Limits
from datapipe.mixtures.printed import with_weights
from datapipe.mixtures.propose import table_of
from datapipe.mixtures.results import Results
from tests.support.command_line import datapipe

pytestmark = [pytest.mark.needs("sklearn"), pytest.mark.medium]

NAMES = ("web", "code", "books", "papers", "spam", "crawl/en/science/19")
EFFECTS = np.array([-1.2, -0.4, 0.3, 0.2, 1.0, 0.0])
NOW = np.full(6, 1 / 6)
FREE = Limits(names=NAMES, shares=NOW, low=np.zeros(6), high=np.ones(6), reasons={})
RUNS = np.concatenate([NOW[None], dirichlet(NAMES, np.ones(6), 47, seed=5)])


def log_linear(shares: np.ndarray) -> np.ndarray:
    """A loss with an interaction: half of web and half of code is best."""
    return 2 + np.exp(shares @ EFFECTS - 2 * shares[:, 0] * shares[:, 1])


def fitted(values: np.ndarray, limits: Limits = FREE, shares: np.ndarray = RUNS, **options: bool) -> Fit:
    metrics = tuple(f"loss_{number}" for number in range(values.shape[1]))
    results = Results(names=NAMES, metrics=metrics, shares=shares, values=values, num_open=0)
    return fit(results, limits, [1.0] * len(metrics), **options)


def regret(found: Fit, law: Callable[[np.ndarray], np.ndarray], limits: Limits = FREE) -> float:
    """What the found mixture lacks, as a part of what there is to win over the mixture now within the limits."""
    best = law(within(dirichlet(NAMES, np.full(6, 0.5), 20_000, seed=9), limits.low, limits.high)).min()
    return float((law(found.shares[None])[0] - best) / (law(NOW[None])[0] - best))


def test_found_mixture_is_near_the_best_of_a_log_linear_law() -> None:
    noise = 0.05 * normals(1, len(RUNS), "noise")  # a fifth of the spread of the runs

    found = fitted((log_linear(RUNS) + noise)[:, None])

    assert found.tells
    assert regret(found, log_linear) < 0.1
    low, high = found.found_interval
    assert low < found.found < high < log_linear(NOW[None])[0]
    assert found.shares.sum() == pytest.approx(1)
    assert all(low <= share <= high for share, (low, high) in zip(found.shares[:2], found.share_intervals))


def test_found_mixture_obeys_limits_and_stays_within_the_runs() -> None:
    limits = replace(FREE, high=np.array([0.3, 0.35, 1, 1, 1, 1]), low=np.array([0, 0, 0, 0, 0.05, 0]), reasons={"web": "cap"})
    runs = within(RUNS, limits.low, limits.high)

    found = fitted(log_linear(runs)[:, None], limits, runs)

    assert found.tells
    assert found.shares[0] == pytest.approx(0.3, abs=0.02)
    assert (found.shares <= np.minimum(limits.high, runs.max(axis=0)) + 1e-9).all()
    assert (found.shares >= np.maximum(limits.low, runs.min(axis=0)) - 1e-9).all()
    assert regret(found, log_linear, limits) < 0.1
    assert any(note.startswith("at the largest share that a run had") and "web" not in note for note in found.notes)


@pytest.mark.slow
def test_several_metrics_are_added_and_may_be_maximized() -> None:
    values = np.stack([-log_linear(RUNS), 0.5 * RUNS[:, 2]], axis=1)

    found = fitted(values, maximizes=True)

    assert found.tells
    assert found.found > found.now
    assert found.difference_interval[0] > 0
    assert regret(found, lambda shares: log_linear(shares) - 0.5 * shares[:, 2]) < 0.1


def test_noise_tells_nothing() -> None:
    found = fitted(normals(3, 20, "noise")[:, None], shares=RUNS[:20])
    assert not found.tells
    assert "no model predicts runs" in found.doubts[0]


@pytest.mark.slow
def test_mixture_that_is_the_best_already_is_not_improved() -> None:
    best = replace(FREE, shares=np.array([0.5, 0.5, 0, 0, 0, 0]))
    found = fitted((log_linear(RUNS) + 0.1 * normals(1, len(RUNS), "noise"))[:, None], best)
    assert any("is not better than the mixture now" in doubt for doubt in found.doubts)


@pytest.mark.slow
def test_hundreds_of_sources_are_searched_and_too_few_runs_are_named() -> None:
    names = tuple(f"crawl/en/{number // 20}/{number % 20}" for number in range(200))
    quality = (np.arange(200) % 20) / 10 - 1  # cells of the same quality are alike
    shares = dirichlet(names, np.ones(200), 96, seed=4)
    limits = Limits(
        names=names,
        shares=np.full(200, 1 / 200),
        low=np.zeros(200),
        high=np.full(200, 0.05),
        reasons=dict.fromkeys(names, "cap"),
    )
    results = Results(names=names, metrics=("loss",), shares=shares, values=3 - (shares @ quality)[:, None], num_open=0)

    found = fit(results, limits, [1.0])

    assert any("96 runs cannot identify" in note for note in found.notes)
    assert found.tells
    assert found.shares @ quality > shares.mean(axis=0) @ quality + 0.1


def test_constant_columns_are_named_and_few_runs_are_refused() -> None:
    shares = RUNS[:20].copy()
    shares[:, 3] = 0.0
    shares /= shares.sum(axis=1, keepdims=True)
    found = fitted(np.ones((20, 1)), shares=shares)
    assert found.notes[:2] == (
        "the same share in all runs, which says nothing of them: papers",
        "the same value in all runs: loss_0",
    )
    assert not found.tells
    with pytest.raises(UserError, match="found 5 runs with results, expected at least 8"):
        fitted(np.ones((5, 1)), shares=RUNS[:5])


def test_command_writes_the_mixture_with_its_comments_the_report_and_its_picture(tmp_path: Path) -> None:
    names = [name for name in NAMES if "/" not in name]
    runs = RUNS[:23, :5] / RUNS[:23, :5].sum(axis=1, keepdims=True)
    loss = 2 + np.exp(runs @ EFFECTS[:5])
    weights = [dict(zip(names, map(str, row))) for row in runs.tolist()]
    labels = [f"run-{number}" for number in range(23)]
    (tmp_path / "weights.csv").write_text(table_of(labels, weights))
    results = tmp_path / "results.csv"
    results.write_text("run,loss\n" + "".join(f"{label},{value}\n" for label, value in zip(labels, loss.tolist())))
    sources = "".join(f"  {name}: {{path: {name}/*.jsonl, weight: 1}}   # of {name}\n" for name in names)
    (tmp_path / "mine.yaml").write_text(f"name: mine   # the name\noutput: {tmp_path}/out\nsources:\n{sources}")

    done = datapipe(
        ["mixtures", "fit", str(results), "--mixture", str(tmp_path / "mine.yaml"), "--to", str(tmp_path / "found")]
    )

    assert done.returncode == 0, done.stderr
    assert "weights: {web: " in done.stdout
    text = (tmp_path / "found/mixture.yaml").read_text()
    assert "name: mine   # the name" in text
    assert "# of spam" in text
    assert "weight: 1}" not in text
    assert (tmp_path / "found/shares.svg").read_text().startswith('<svg xmlns="http://www.w3.org/2000/svg" ')
    assert "| source | now | found |" in (tmp_path / "found/report.md").read_text()
    again = datapipe(["mixtures", "propose", "--around", str(tmp_path / "found/mixture.yaml"), "--to", str(tmp_path / "next")])
    assert again.returncode == 0, again.stderr


def test_a_mixture_file_has_the_weights_of_cells(tmp_path: Path) -> None:
    split = "by: [language, {column: quality, quantiles: 2}]   # two columns\n      weights: sqrt(tokens)"
    source = f"path: x.jsonl\n    keep: [language, quality]\n    split:\n      {split}"
    (tmp_path / "mine.yaml").write_text(
        f"name: mine\noutput: out\nsources:\n  crawl:\n    {source}\n  web: {{path: y.jsonl}}\n"
    )
    weights = {"crawl/de/1": "0.1", "web": "0.6", "crawl/a%2Fb/0": "0.2", "crawl/none/0": "0.1"}

    (tmp_path / "found.yaml").write_text(with_weights(tmp_path / "mine.yaml", weights))

    crawl, web = load_mixture(tmp_path / "found.yaml").sources.values()
    assert (crawl.weight, web.weight) == (Fraction("0.4"), Fraction("0.6"))
    assert crawl.split is not None
    found = {"default": 0, "de/1": Fraction("0.1"), "a%2Fb/0": Fraction("0.2"), "none/0": Fraction("0.1")}
    assert crawl.split.weights == found
    assert "# two columns" in (tmp_path / "found.yaml").read_text()
