"""What becomes of a snapshot whose source is split: drawn, grown, taken down, exported, and mixed into another output."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.config import load_mixture
from datapipe.engine.following.follow import Follower
from datapipe.engine.run import Run
from datapipe.engine.run_report import run_and_report
from datapipe.errors import UserError
from datapipe.loader import Loader
from datapipe.shards.manifest import Snapshot, read_snapshot, read_tokens
from datapipe.snapshots.export.export import ExportRequest, export_snapshot
from datapipe.snapshots.takedown import take_down
from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage.root import Root
from tests.support import cell_runs, runs

pytestmark = pytest.mark.medium

IN_PROCESS: dict[str, Any] = {"make_engine": runs.InProcess}


def _follow(mixture: Path, *overrides: str) -> Snapshot:
    def run_one(mixture, generation) -> None:
        run_and_report(Run(mixture, runs.Watcher(), make_engine=runs.InProcess, generation=generation)).raise_problem()

    loaded = load_mixture(mixture, overrides)
    Follower(loaded, 1.0, run_one, lambda event: None, wait=lambda seconds: None).follow(2)
    return read_snapshot(Root(loaded.output))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cells")
    cell_runs.write_corpus(folder, [0, 1])
    _follow(cell_runs.write_mixture(folder, folder))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy in the same place, since the mixture names it."""
    shutil.copytree(made, tmp_path / "before")
    yield made
    shutil.rmtree(made)
    shutil.copytree(tmp_path / "before", made)


def test_a_source_that_grows_keeps_its_cells_and_borders(folder):
    root = Root(str(folder / "out"))
    before, mixture = read_snapshot(root), folder / "mixture.yaml"
    cell_runs.write_corpus(folder, [2])
    with (folder / "crawl/2.jsonl").open("a") as stream:
        stream.write('{"id": "new", "text": "a new language", "language": "aa", "topic": "sport"}\n')
    after = _follow(mixture)
    then, now = (snapshot.sources["crawl"].cells for snapshot in (before, after))
    assert then is not None
    assert now is not None
    new = now.names[len(then.names) :]
    assert now.names[: len(then.names)] == then.names
    assert new == tuple(sorted(new))
    assert any(name.startswith("aa/") for name in new)
    assert now.axes == then.axes
    for length in (32, 64):
        found, _, _ = cell_runs.in_shards(root, after, length)
        assert found.keys() >= cell_runs.in_shards(root, before, length)[0].keys()
        assert all(
            cell_runs.is_again(key, cell_runs.repeat_of(cell)) == again for (cell, again), keys in found.items() for key in keys
        )
    assert verify_snapshot(root, after) == []
    cell_runs.write_corpus(folder, [3])
    for option, change in (
        ("by", "sources.crawl.split.by=[language, topic, {column: quality, quantiles: 5}]"),
        ("repeat", "sources.crawl.split.repeat={default: 1.5}"),
    ):
        with pytest.raises(UserError, match=rf"made with another split\.{option}"):
            _follow(mixture, change)


def test_cells_that_grow_keep_what_is_published_and_get_what_is_left_of_their_budgets(tmp_path):
    split = """
      by: [topic]
      max_tokens: {sport: 6k, science: 1M}
"""
    mixture, root = cell_runs.write_mixture(tmp_path, tmp_path, split), Root(str(tmp_path / "out"))
    tokens, paths = list[Counter[str]](), set[str]()
    for number in range(3):
        cell_runs.write_corpus(tmp_path, [number], 80)
        snapshot = _follow(mixture)
        tokens.append(cell_runs.in_shards(root, snapshot, 32)[1])
        now = {entry.path for entry in snapshot.shards}
        assert paths < now
        paths = now
        assert verify_snapshot(root, snapshot) == []
    assert 0 < tokens[0]["sport"] < tokens[1]["sport"] <= tokens[2]["sport"] <= 6000
    assert tokens[2]["science"] > 6000 < tokens[2]["a%2Fb"]


def test_an_epoch_of_each_cell_has_its_rows_as_often_as_it_is_repeated(made):
    root = Root(str(made / "out"))
    snapshot = read_snapshot(root).of_length(None)
    cells = snapshot.sources["crawl"].cells
    assert cells is not None
    runs_of = [run for entry in snapshot.shards for run in entry.cells or ()]
    cell = max(range(len(cells.names)), key=lambda cell: sum(run.rows for run in runs_of if run.cell == cell and run.again))
    assert cells.repeats[cell] == "5/2"
    num_rows = sum(run.rows * cells.times(run) for run in runs_of if run.cell == cell)
    loader = Loader(root.url, batch_size=num_rows, mixture={f"crawl/{cells.names[cell]}": 1})
    drawn = Counter(row.tobytes() for row in np.asarray(next(iter(loader))["input_ids"]).astype(np.int64))
    expected = Counter[bytes]()
    for entry in snapshot.shards:
        batches = [row["tokens"] for batch in cell_runs.shard_batches(root, snapshot, (entry,)) for row in batch.to_pylist()]
        for run, start, stop in entry.runs_between(0, entry.sequences):
            if run.cell == cell:
                for row in batches[start:stop]:
                    expected[np.array(row, np.int64).tobytes()] += cells.times(run)
    assert drawn == expected


def test_takedown_and_export_keep_the_cells_of_the_other_documents(folder, tmp_path):
    root = Root(str(folder / "out"))
    before = read_snapshot(root)
    found, _, held_out = cell_runs.in_shards(root, before, 32)
    (cell, again), gone = min(found.items(), key=lambda item: (len(item[1]), item[0]))
    keys = sorted(gone) + sorted(set().union(*found.values()) - gone)[:20]
    after, _ = take_down(root, [key.hex() for key in keys])
    assert after.shards == before.shards
    target = Root(str(tmp_path / "export"))
    export_snapshot(root, read_tokens(root), target, ExportRequest(format="arrow"))
    exported = read_snapshot(target)
    left, _, still_held_out = cell_runs.in_shards(target, exported, 32)
    assert left == {place: rest for place, own in found.items() if (rest := own - set(keys))}
    assert still_held_out == held_out
    assert (cell, again) not in left
    assert verify_snapshot(target, exported) == []
    assert len(next(iter(Loader(target.url, batch_size=4)))["input_ids"]) == 4


def test_another_output_mixes_the_cells_as_they_are(made, tmp_path):
    with pytest.raises(UserError, match=r"names a cell of 'old'. Name the one source of that snapshot"):
        runs.run_mixture(_mixed(made, tmp_path, sources=""), **IN_PROCESS)
    done = runs.run_mixture(_mixed(made, tmp_path, sources=", sources: [crawl], max_epochs: 1000"), **IN_PROCESS)
    then, now = read_snapshot(Root(str(made / "out"))).sources["crawl"].cells, done.snapshot.sources["old"].cells
    assert then is not None
    assert now is not None
    assert now == then.model_copy(update={"max_epochs": (1000.0,) * len(then.names)})
    first, second = done.snapshot.phases
    assert first.weights == {"old": 1}
    assert second.weights == {"old": 0, "old/*/*/3": 2, "old/al/*/*": 1}
    assert any("leaves them out: old/zz/*/*" in text for text in done.told)
    loader = Loader(done.mixture.output, batch_size=64, fields=["sources"])
    shares = [Counter[str](), Counter[str]()]
    for step, batch in zip(range(20), loader):
        shares[step >= 10].update(loader.sources[number] for number in np.asarray(batch["sources"]).tolist())
    assert all(name.endswith("/3") or name.startswith("old/al/") for name in shares[1])
    assert not all(name.endswith("/3") or name.startswith("old/al/") for name in shares[0])
    of_al = sum(count for name, count in shares[1].items() if name.startswith("old/al/"))
    assert of_al == pytest.approx(640 / 3, abs=len(shares[1]))


def _mixed(made: Path, folder: Path, sources: str) -> Path:
    source = f"  old: {{snapshot: {made}/out{sources}}}\n"
    phases = '[{until: 50%, weights: {old: 1}}, {until: 100%, weights: {"old/*/*/3": 2, "old/al/*/*": 1, "old/zz/*/*": 1}}]'
    tail = f"pack: {{sequence_length: [32, 64]}}\nmixture: {{tokens: {20 * 64 * 32}, phases: {phases}}}\n"
    return runs.write_mixture(folder, source, "", tail)
