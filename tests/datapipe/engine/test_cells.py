"""A source that is split: its cells are those of a slow oracle, whatever ran them, and equal to those of separate runs."""

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from datapipe.errors import UserError
from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage.root import Root
from tests.support import cell_runs, corpora, runs

pytestmark = pytest.mark.medium

IN_PROCESS: dict[str, Any] = {"make_engine": runs.InProcess}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("crawl")
    cell_runs.write_corpus(folder)
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory, corpus) -> runs.Finished:
    return runs.run_mixture(cell_runs.write_mixture(tmp_path_factory.mktemp("reference"), corpus), **IN_PROCESS)


@pytest.fixture(scope="module")
def kept(reference) -> cell_runs.Kept:
    return cell_runs.Kept(Root(reference.mixture.output), reference)


def test_cells_and_their_documents_are_those_of_a_slow_oracle(reference, kept):
    root, of_document = Root(reference.mixture.output), kept.cells()
    cells = reference.snapshot.sources["crawl"].cells
    assert cells is not None
    assert list(cells.names) == sorted(set(of_document.values()))
    assert len({name.split("/")[0] for name in cells.names}) == 39  # with `none`
    assert [Fraction(times) for times in cells.repeats] == list(map(cell_runs.repeat_of, cells.names))
    tokenizer = Tokenizer.from_buffer(root.read_bytes("tokenizer.json"))
    lengths = {key: len(tokenizer.encode(row["text"]).ids) + 1 for key, row in kept.documents.items()}
    for length in (32, 64):
        found, tokens, held_out = cell_runs.in_shards(root, reference.snapshot, length)
        expected: dict[tuple[str, bool], set[bytes]] = {}
        for key in of_document.keys() - held_out:
            cell = of_document[key]
            expected.setdefault((cell, cell_runs.is_again(key, cell_runs.repeat_of(cell))), set()).add(key)
        assert found == expected
        totals = {
            cell: sum(lengths[key] for key in of_document.keys() - held_out if of_document[key] == cell) for cell in tokens
        }
        assert tokens == totals
    assert verify_snapshot(root, reference.snapshot) == []


def test_counts_of_cells_are_those_of_separate_runs(tmp_path, corpus, reference):
    """Each of a few cells by itself: a source whose filters keep its documents alone, with the same tokenizer."""
    root = Root(reference.mixture.output)
    cells = reference.snapshot.sources["crawl"].cells
    assert cells is not None
    borders = [-np.inf, *(cells.axes[2].bounds or ()), np.inf]
    _, tokens, _ = cell_runs.in_shards(root, reference.snapshot, 32)
    model = Path(reference.mixture.output).parent / "quality.bin"
    for cell in ("am/science/3", "ak/sport/0"):
        language, topic, part = cell.split("/")
        least, most = borders[int(part)], np.nextafter(borders[int(part) + 1], -np.inf)
        limits = ", ".join(
            f"{name}: {value}" for name, value in (("min_score", least), ("max_score", most)) if np.isfinite(value)
        )
        stages = f"""stages:
  - dedup.exact
  - filter.field: {{field: language, keep: [{language}], as: language}}
  - filter.field: {{field: topic, keep: [{topic}], as: topic}}
  - filter.classifier: {{model: {model}, {limits}}}
"""
        source = f"  crawl: {{path: {corpus}/crawl/*.jsonl, keep: [language, topic]}}"
        tail = cell_runs.TAIL.replace("train: {vocab_size: 300, sample_bytes: 64KiB}", f"path: {root.url}/tokenizer.json")
        alone = runs.run_mixture(runs.write_mixture(tmp_path, source, stages, tail), output=tmp_path / language, **IN_PROCESS)
        entries = [entry for entry in alone.snapshot.shards if entry.split == "train"]
        assert sum(entry.tokens for entry in entries) == tokens[cell]


SMALL = ["execution.split_bytes=8KiB", "execution.bucket_bytes=4KiB"]
LARGE = ["execution.split_bytes=1MiB", "execution.bucket_bytes=16MiB"]


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        pytest.param(SMALL, {"make_engine": runs.LastFirst}, id="small-turned"),
        pytest.param(LARGE, IN_PROCESS, id="large"),
        pytest.param(LARGE, {"workers": 2}, id="large-2-workers", marks=pytest.mark.slow),
        pytest.param(SMALL, {"workers": 4}, id="small-4-workers", marks=pytest.mark.slow),
        pytest.param([], {"workers": 1}, id="1-worker", marks=pytest.mark.slow),
    ],
)
def test_snapshot_does_not_depend_on_how_it_was_made(tmp_path, monkeypatch, corpus, reference, overrides, options):
    if options == {"make_engine": runs.LastFirst}:  # more rounds, files that are merged, and files that are added up
        monkeypatch.setattr("datapipe.steps.cut.SUMMARY_PAIRS", 8)
        monkeypatch.setattr("datapipe.steps.runs.MOST_RUNS", 2)
        monkeypatch.setattr("datapipe.steps.fold.MOST_FILES", 2)
    mixture = cell_runs.write_mixture(tmp_path, corpus)
    done = runs.run_mixture(mixture, overrides=[*overrides, f"output={tmp_path}/out"], **options)
    assert done.snapshot == reference.snapshot
    if options == {"make_engine": runs.LastFirst}:
        kinds = {(step.kind, step.id) for step in done.plan.steps}
        assert {("merge", "crawl/pack.merge-1"), ("fold", "crawl/tokenize.fold-1"), ("cells", "crawl/cells-of-parts")} <= kinds
        assert ("rank", "crawl/rank-split.quality-2") in kinds


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(["pack.method=concat"], marks=pytest.mark.slow),
        ["pack.method=buckets", "execution.keep_work=none"],
        ["pack.pool_documents=3", "shards.format=parquet"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_cells_have_the_same_documents_however_they_are_packed(tmp_path, corpus, reference, overrides):
    packed = runs.run_mixture(cell_runs.write_mixture(tmp_path, corpus), overrides=overrides, **IN_PROCESS)
    roots = [Root(done.mixture.output) for done in (packed, reference)]
    found, expected = (cell_runs.in_shards(root, done.snapshot, 32) for root, done in zip(roots, (packed, reference)))
    assert found == expected
    assert verify_snapshot(roots[0], packed.snapshot) == []


def test_a_changed_weight_runs_nothing_and_a_changed_repeat_packs_its_cells(tmp_path, corpus):
    first = runs.run_mixture(cell_runs.write_mixture(tmp_path, corpus), **IN_PROCESS)
    other = cell_runs.SPLIT.replace("default: 1", "default: 2").replace('"*/*/0": 0.5', '"*/*/0": 7.5')
    second = runs.run_mixture(cell_runs.write_mixture(tmp_path, corpus, other), **IN_PROCESS)
    assert second.watcher.steps == []
    assert second.snapshot.shards == first.snapshot.shards
    assert second.snapshot != first.snapshot
    third = runs.run_mixture(cell_runs.write_mixture(tmp_path, corpus, other.replace("1.25", "1.5")), **IN_PROCESS)
    assert set(third.watcher.steps) == {"crawl/pack", "crawl/pack-64"}
    num_tasks = len(third.plan.of_kind("pack")[0].tasks or ())
    assert third.watcher.steps.count("crawl/pack") < num_tasks / 2


def test_a_table_and_a_rule_weigh_cells(tmp_path, corpus, reference):
    cells = reference.snapshot.sources["crawl"].cells
    assert cells is not None
    (tmp_path / "weights.csv").write_text(
        "language,topic,quality,weight,repeat\nal,a/b,1,0.25,\nal,sport,1,0.5,2\nxx,sport,1,0.5,\n"
    )
    by = "by: [language, topic, {column: quality, quantiles: 4}]"
    table = cell_runs.write_mixture(tmp_path, corpus, f"\n      {by}\n      weights: {tmp_path}/weights.csv")
    weighed = runs.run_mixture(table, **IN_PROCESS)
    made = weighed.snapshot.sources["crawl"].cells
    assert made is not None
    assert {name: weight for name, weight in zip(made.names, made.weights) if weight} == {"al/a%2Fb/1": 1, "al/sport/1": 2}
    assert made.repeats[made.names.index("al/sport/1")] == "2"
    (unknown,) = [warning for warning in weighed.told if "name no cell" in warning or "names no cell" in warning]
    assert "1 entry of split.weights names no cell: xx/sport/1" in unknown
    (tmp_path / "weights.csv").unlink()  # the mixture that the output keeps has the numbers
    kept = tmp_path / "out/mixture.yaml"
    kept = kept if kept.exists() else next((tmp_path / "out/snapshots").glob("*/mixture.yaml"))
    assert runs.run_mixture(kept, **IN_PROCESS).snapshot == weighed.snapshot
    ruled = cell_runs.write_mixture(tmp_path, corpus, f"\n      {by}\n      weights: documents * (1 + quality)^2")
    made = runs.run_mixture(ruled, **IN_PROCESS).snapshot.sources["crawl"].cells
    assert made is not None
    numbers = [
        sum(run.documents for entry in weighed.snapshot.shards for run in entry.cells or () if run.cell == cell)
        * (1 + int(name[-1])) ** 2
        for cell, name in enumerate(made.names)
    ]
    assert np.gcd.reduce(numbers) * np.array(made.weights) == pytest.approx(numbers)


REFUSED = [
    ("[language, colour]", "crawl.split.by: documents have no column 'colour'"),
    ("[{column: topic, bounds: [2]}]", "the field 'topic' holds no numbers"),
    ("[number]", "column 'number' holds double, expected text"),
    ("[id_of, {column: hash, quantiles: 2}]", "found 10,0.. cells or more"),
    ("[places]", "column 'places' holds list.*true and false. Name another column"),
    ("[id_of, language]", "found 10,0.. cells or more, expected at most 10,000: id_of has .* values, language has .* values"),
]


@pytest.mark.parametrize(("by", "message"), REFUSED)
def test_columns_that_make_no_cells_are_refused(tmp_path, by, message):
    documents = [
        {"id": str(number), "text": "a", "number": number / 7, "id_of": f"n{number}", "topic": "x", "language": "en"}
        | {"hash": 2**53 + 1 + number, "places": [number]}
        for number in range(10_050 if "id_of" in by else 50)
    ]
    corpora.write_jsonl(tmp_path / "crawl.jsonl", documents)
    keep = "[number, id_of, topic, language, hash, places]"
    source = f"  crawl: {{path: {tmp_path}/crawl.jsonl, keep: {keep}, split: {{by: {by}}}}}"
    mixture = runs.write_mixture(tmp_path, source, "", cell_runs.TAIL)
    with pytest.raises(UserError, match=message):
        runs.run_mixture(mixture, overrides=["execution.split_bytes=16MiB"], **IN_PROCESS)


def test_budget_of_a_source_with_cells_keeps_the_first_documents_of_the_shuffle_of_all_cells(tmp_path, corpus, reference, kept):
    mixture = cell_runs.write_mixture(tmp_path, corpus)
    run = runs.run_mixture(mixture, overrides=["sources.crawl.max_tokens=9k"], **IN_PROCESS)
    root, of_document = Root(run.mixture.output), kept.cells()
    tokenizer = Tokenizer.from_buffer(root.read_bytes("tokenizer.json"))
    lengths = {key: len(tokenizer.encode(row["text"]).ids) + 1 for key, row in kept.documents.items()}
    found, tokens, held_out = cell_runs.in_shards(root, run.snapshot, 32)
    chosen, used = set[bytes](), 0
    for key in sorted(of_document.keys() - held_out, key=cell_runs.shuffled):
        used += lengths[key]
        if used > 9000:
            break
        chosen.add(key)
    assert set().union(*found.values()) == chosen and len(chosen) < len(of_document) - len(held_out)
    assert all(of_document[key] == cell for (cell, _), keys in found.items() for key in keys)
    for (cell, again), keys in found.items():
        assert {cell_runs.is_again(key, cell_runs.repeat_of(cell)) for key in keys} == {again}
    assert sum(tokens.values()) == sum(lengths[key] for key in chosen)
    assert verify_snapshot(root, run.snapshot) == []


def _budgeted(folder: Path, corpus: Path, tokens: int, *overrides: str, make_engine: Any = runs.InProcess) -> runs.Finished:
    split = f"""
      by: [topic, {{column: quality, quantiles: 2}}]
      repeat: {{"*/1": 2.5}}
      max_tokens: {{default: 3k, "science/*": 1, "sport/1": {tokens}, "a%2Fb/1": 1M}}
"""
    mixture = cell_runs.write_mixture(folder, corpus, split)
    return runs.run_mixture(mixture, overrides=["shards.target_bytes=4KiB", *overrides], make_engine=make_engine)


def test_budgets_of_cells_keep_the_first_documents_of_each_in_the_order_of_the_shuffle(tmp_path, corpus, reference, kept):
    run = _budgeted(tmp_path, corpus, 4800)
    budgets = {"science/0": 1, "science/1": 1, "sport/0": 3000, "sport/1": 4800, "a%2Fb/0": 3000, "a%2Fb/1": 10**6}
    parts = {key: cell.split("/")[1:] for key, cell in kept.cells().items()}
    of_document = {key: f"{topic}/{int(part) // 2}" for key, (topic, part) in parts.items()}
    root = Root(run.mixture.output)
    tokenizer = Tokenizer.from_buffer(root.read_bytes("tokenizer.json"))
    lengths = {key: len(tokenizer.encode(row["text"]).ids) + 1 for key, row in kept.documents.items()}
    for length in (32, 64):
        found, _, held_out = cell_runs.in_shards(root, run.snapshot, length)
        expected: dict[tuple[str, bool], set[bytes]] = {}
        used, over = dict.fromkeys(of_document.values(), 0), Counter[str]()
        for key in sorted(of_document.keys() - held_out, key=cell_runs.shuffled):
            cell = of_document[key]
            used[cell] += lengths[key]
            over[cell] += used[cell] > budgets[cell]
            if used[cell] <= budgets[cell]:
                again = cell_runs.is_again(key, Fraction(5, 2) if cell.endswith("1") else Fraction(1))
                expected.setdefault((cell, again), set()).add(key)
        assert found == expected
        assert [cell for cell in budgets if not over[cell]] == ["a%2Fb/1"]
        documents = run.summary.total.documents
        dropped = {"tokenize:over_max_tokens": over.total()}
        assert documents.dropped == reference.summary.total.documents.dropped | dropped
        assert documents.read == documents.kept + sum(documents.dropped.values())
    assert verify_snapshot(root, run.snapshot) == []


def test_another_budget_of_a_cell_repeats_the_search_and_its_packing(tmp_path, corpus):
    first = _budgeted(tmp_path, corpus, 4800)
    second = _budgeted(tmp_path, corpus, 3700)
    kinds = {step.partition("/")[2].partition("-")[0] for step in second.watcher.steps}
    assert kinds == {"stops", "limit", "pack"}
    num_tasks = len(second.plan.of_kind("pack")[0].tasks or ())
    assert 0 < second.watcher.steps.count("crawl/pack") == second.watcher.steps.count("crawl/pack-64") < num_tasks / 4
    before, after = ({entry.path for entry in run.snapshot.shards} for run in (first, second))
    assert 0 < len(before - after) < len(before) / 4
    elsewhere = (*SMALL, f"output={tmp_path}/other", "execution.keep_work=none")
    assert _budgeted(tmp_path, corpus, 3700, *elsewhere, make_engine=runs.LastFirst).snapshot == second.snapshot
