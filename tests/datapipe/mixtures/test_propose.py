"""The swarm of weights obeys caps and bounds, and a loader and a run take its rows."""

import csv
import random
from pathlib import Path

import pytest

from datapipe.loader import Loader
from tests.support import corpora, runs
from tests.support.command_line import datapipe

TAIL = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 16}\nmixture: {tokens: 20K}"


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of about 9,000, 3,000 and 1,000 tokens, the last one with a cap."""
    folder, rng = tmp_path_factory.mktemp("mixture"), random.Random(5)
    lines = []
    for name, count, more in (("web", 9, ""), ("code", 3, ""), ("books", 1, ", max_epochs: 2"), ("spare", 1, ", weight: 0")):
        corpora.write_jsonl(folder / f"{name}.jsonl", [{"text": corpora.prose(rng, 200)} for _ in range(count)])
        lines.append(f"  {name}: {{path: {folder}/{name}.jsonl{more}}}")
    path = runs.write_mixture(folder, "\n".join(lines), "stages: []", TAIL)
    runs.run_mixture(path, make_engine=runs.InProcess)
    return path


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def propose(mixture: Path, folder: Path, *more: str) -> list[dict[str, str]]:
    done = datapipe(["mixtures", "propose", "--around", str(mixture), "--to", str(folder), "--runs", "20", *more])
    assert done.returncode == 0, done.stderr
    return table(folder / "weights.csv")


def test_runs_obey_caps_and_bounds_and_depend_on_the_seed_alone(mixture: Path, tmp_path: Path) -> None:
    bound = ("--bound", "c*=20%:40%")
    rows = propose(mixture, tmp_path / "a", *bound)
    loader = Loader(mixture.parent / "out", batch_size=1)
    cap = 2 * sum(shard.sequences for shard in loader.snapshot.shards_of("books", "train")) * 16 / 20_000

    shares = [[float(row[name]) for name in ("web", "code", "books")] for row in rows]
    assert set(rows[0]) == {"run", "web", "code", "books"}
    assert all(row[2] / sum(row) <= cap and 0.1999 < row[1] / sum(row) < 0.4001 for row in shares)
    assert len({row[0] for row in shares}) > 5
    assert propose(mixture, tmp_path / "b", *bound) == rows
    assert propose(mixture, tmp_path / "c", *bound, "--seed", "1")[1:] != rows[1:]


def test_loader_takes_a_row_and_the_run_of_a_file_gives_its_batches(mixture: Path, tmp_path: Path) -> None:
    row = propose(mixture, tmp_path / "swarm")[3]
    run = row.pop("run")

    runs.run_mixture(tmp_path / f"swarm/{run}.yaml", make_engine=runs.InProcess)

    by_row = Loader(mixture.parent / "out", batch_size=4, mixture=row)
    by_file = Loader(tmp_path / "swarm" / run, batch_size=4)
    assert all((by_row.batch(step)["input_ids"] == by_file.batch(step)["input_ids"]).all() for step in range(40))


def test_cells_of_a_source_are_drawn_as_sources(tmp_path: Path) -> None:
    rng = random.Random(5)
    documents = [{"text": corpora.prose(rng, 200), "topic": "ab"[number % 2]} for number in range(8)]
    corpora.write_jsonl(tmp_path / "web.jsonl", documents)
    corpora.write_jsonl(tmp_path / "code.jsonl", documents[:1])
    split = "split: {by: [topic], weights: {a: 3}, max_epochs: {b: 2}}"
    sources = f"  web: {{path: {tmp_path}/web.jsonl, keep: [topic], {split}}}\n  code: {{path: {tmp_path}/code.jsonl}}"
    path = runs.write_mixture(tmp_path, sources, "stages: []", TAIL)
    runs.run_mixture(path, make_engine=runs.InProcess)

    rows = propose(path, tmp_path / "swarm", "--bound", "web/*=10%:")

    shares = {name: float(rows[0][name]) for name in ("code", "web/a", "web/b")}
    assert shares == pytest.approx({"code": 0.5, "web/a": 0.375, "web/b": 0.125}, rel=1e-4)
    loader = Loader(tmp_path / "out", batch_size=1, mixture={name: row for name, row in rows[3].items() if name != "run"})
    cap = 2 * sum(run.rows for shard in loader.snapshot.shards for run in shard.cells or () if run.cell == 1) * 16 / 20_000
    assert all(0.0999 < float(row["web/b"]) <= cap for row in rows)
    assert not [*(tmp_path / "swarm").glob("*.yaml")]


def test_results_beside_the_weights_are_not_overwritten(mixture: Path, tmp_path: Path) -> None:
    propose(mixture, tmp_path)
    done = datapipe(["mixtures", "propose", "--around", str(mixture), "--to", str(tmp_path)])
    assert done.returncode == 2
    assert "may hold your results" in done.stderr


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--bound", "wbe=0:1"], "no source 'wbe' with a weight. Did you mean 'web'?"),
        (["--bound", "web=20"], "expected SOURCE=LEAST:MOST"),
        (["--bound", "web=60%:40%"], "'web': found a smallest share of 60"),
        (["--bound", "*=0:20%"], "no shares are within the limits: the smallest shares add up to 0.0%, the largest to"),
        (["--tokens", "many"], "--tokens many: expected"),
    ],
)
def test_limits_that_nothing_obeys_are_refused(mixture: Path, tmp_path: Path, more: list[str], problem: str) -> None:
    done = datapipe(["mixtures", "propose", "--around", str(mixture), "--to", str(tmp_path), *more])
    assert done.returncode == 2
    assert problem in done.stderr


def test_without_a_snapshot_there_are_weights_and_no_caps(mixture: Path, tmp_path: Path) -> None:
    done = datapipe(
        ["mixtures", "propose", "--around", str(mixture), "--to", str(tmp_path), "--set", f"output={tmp_path}/none"]
    )
    assert "has no snapshot: no source is limited by its size" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["weights.csv"]
    assert len(table(tmp_path / "weights.csv")) == 64
