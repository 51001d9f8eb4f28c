"""Budgets of tokens: the greatest prefix of documents in the order of their shuffle, whatever found it and packed it."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import full_schema
from datapipe.exchange.ranges import HASH_SPACE, read_slices
from datapipe.exchange.tables import TableWriter
from datapipe.explore.documents import Inspector
from datapipe.records.outputs import ExchangeFile, TableFile, typed
from datapipe.report.card.provenance import provenance
from datapipe.snapshots.verify import verify_snapshot
from datapipe.steps.cells import CELL_SHIFT
from datapipe.steps.stops import Span, StopsMetrics, StopsTask
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.chat_tokenizer import chat_tokenizer

pytestmark = pytest.mark.medium

STAGES = "stages: [dedup.exact]"
Sizes = dict[str, tuple[int, int]]
"""By key, the shuffle hash and the tokens of documents to train on."""


def _mixture(folder: Path, options: str, files: range, tail: str = "") -> Path:
    for number in files:
        rows = corpora.documents(number, 40, exact=0.1, near=0, short=0.1)
        scored = [row | {"score": place % 3, "terms": ["MIT", "ISC"][place % 2]} for place, row in enumerate(rows)]
        corpora.write_jsonl(folder / f"web/{number}.jsonl", scored)
    (folder / "tokenizer.json").write_text(chat_tokenizer().to_str())
    source = f"  web: {{path: {folder}/web/*.jsonl, keep: [score], license_field: terms{options}}}\n"
    tail = (
        f"tokenizer: {{path: {folder}/tokenizer.json, eos: </s>}}\npack: {{sequence_length: 64}}\nvalidation: 10%\n"
        f"shards: {{target_bytes: 16KiB}}\nexecution: {{split_bytes: 16KiB, bucket_bytes: 16KiB}}\n{tail}"
    )
    return runs.write_mixture(folder, source, STAGES, tail)


def _run(folder: Path, options: str = "", files: range = range(4), tail: str = "", **how: Any) -> runs.Finished:
    how = {"make_engine": runs.InProcess, **how}
    return runs.run_mixture(_mixture(folder, options, files, tail), **how)


def _sizes(run: runs.Finished) -> Sizes:
    root, sizes = Root(str(run.mixture.output)), Sizes()
    for step in run.plan.of_kind("tokenize"):
        tables = ["train", *(f"train-stratum-{number:02d}" for number in range(3))]
        for file in (file for name in tables for file in step.outputs(name, ExchangeFile)):
            for rows in read_slices(root, (file,), (0,), (HASH_SPACE,)) if file.rows else ():
                for row in rows.to_pylist():
                    sizes[row["key"].hex()] = row["hash"], len(row["tokens"])
    return sizes


def _prefix(sizes: Sizes, budget: int) -> set[str]:
    """The documents before the first one that does not fit."""
    chosen, tokens = set[str](), 0
    for key, (_, size) in sorted(sizes.items(), key=lambda item: item[1]):
        tokens += size
        if tokens > budget:
            break
        chosen.add(key)
    return chosen


def _packed(run: runs.Finished, split: str = "train") -> set[str]:
    rows = Inspector.open(str(run.mixture.output)).database.rows(f"select distinct key from packed where split = '{split}'")
    return {row["key"] for row in rows}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> runs.Finished:
    return _run(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("share", [0.02, pytest.param(0.3, marks=pytest.mark.slow), 0.9])
def test_budget_packs_the_greatest_prefix_that_fits_and_drops_the_rest_by_name(
    tmp_path: Path, whole: runs.Finished, share: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("datapipe.steps.stops._GROUPS", 0)  # a task for each file
    sizes = _sizes(whole)
    budget = int(share * sum(size for _, size in sizes.values()))
    run = _run(tmp_path, f", max_tokens: {budget}")
    chosen = _prefix(_sizes(run), budget)
    assert _sizes(run) == sizes and _packed(run) == chosen
    assert _packed(run, "validation") == _packed(whole, "validation")
    before, after = whole.summary.total, run.summary.total
    over = sizes.keys() - chosen
    assert after.documents.dropped == before.documents.dropped | {"tokenize:over_max_tokens": len(over)}
    assert after.documents.kept == before.documents.kept - len(over)
    assert before.tokens - after.tokens == sum(sizes[key][1] for key in over)
    assert before.kept_bytes > after.kept_bytes
    output = Inspector.open(str(run.mixture.output))
    dropped = output.database.rows("select key, value, id, fate from documents where rule = 'over_max_tokens'")
    assert {row["key"]: row["value"] for row in dropped} == {key: sizes[key][1] for key in over}
    [fates] = output.database.rows("select count(*) as rows, count(distinct key) as keys from facts")
    assert fates["rows"] == fates["keys"] and all(row["id"] and row["fate"] == "dropped" for row in dropped)
    summed = "select terms, count(*)::int as documents, sum(bytes)::int as bytes from facts where fate = 'kept' group by 1"
    kept = output.database.rows(summed)
    licenses = provenance(run.mixture, run.plan, run.summary).licenses
    assert {row["terms"]: (row["documents"], row["bytes"]) for row in kept} == {
        name: (each.documents, each.bytes) for name, each in licenses.items()
    }
    assert sum(each.tokens or 0 for each in licenses.values()) == after.tokens
    assert verify_snapshot(Root(str(run.mixture.output)), run.snapshot) == []


def test_budget_that_all_tokens_fit_into_changes_nothing(tmp_path: Path, whole: runs.Finished):
    run = _run(tmp_path, ", max_tokens: 1B")
    assert list(run.checksums.values()) == list(whole.checksums.values())
    assert {step.kind for step in run.plan.steps} == {step.kind for step in whole.plan.steps}


def test_another_budget_tokenizes_nothing_again_and_splits_and_their_order_change_nothing(tmp_path: Path):
    path, watcher = _mixture(tmp_path, ", max_tokens: 4k", range(4)), runs.Watcher()
    smaller = _packed(runs.run_mixture(path, make_engine=runs.InProcess))
    run = runs.run_mixture(path, overrides=["sources.web.max_tokens=6k"], make_engine=runs.InProcess, watcher=watcher)
    assert smaller < _packed(run)
    kinds = {task.kind for task in watcher.tasks}
    assert "limit" in kinds and not kinds & {"map", "reduce", "tokenize", "size"}
    overrides = ["sources.web.max_tokens=6k", "execution.split_bytes=8KiB", "execution.keep_work=none"]
    other = runs.run_mixture(path, overrides=overrides, output=tmp_path / "other", make_engine=runs.LastFirst)
    assert list(other.checksums.values()) == list(run.checksums.values())


def test_growing_source_keeps_a_prefix_of_what_it_had(tmp_path: Path):
    before = _run(tmp_path, ", max_tokens: 6k", range(2))
    after = _run(tmp_path, ", max_tokens: 6k", range(4), output=tmp_path / "after")
    old = {key for key in _packed(after) if key in _sizes(before)}
    chosen = sorted(_packed(before), key=lambda key: _sizes(before)[key])
    assert old and old == set(chosen[: len(old)]) and len(old) < len(chosen)


def test_budget_holds_for_all_strata_of_a_source(tmp_path: Path):
    run = _run(tmp_path, ", strata: {by: score, bounds: [1, 2]}, max_tokens: 5k")
    sizes = _sizes(run)
    assert _packed(run) == _prefix(sizes, 5000) and len(_prefix(sizes, 5000)) < len(sizes)


@pytest.mark.parametrize("seed", range(8))
def test_stops_of_many_cells_are_found_together_and_each_by_its_documents_alone(tmp_path: Path, seed: int):
    rng, root = np.random.default_rng(seed), Root(str(tmp_path))
    cells, tokens = rng.integers(0, 9, 900).astype(np.uint64), rng.integers(0, 9, 900)
    hashes = rng.integers(0, 1 << int(rng.integers(4, 50)), 900).astype(np.uint64)  # equal ones are of one document here
    budgets = {cell: int(rng.integers(0, 500)) for cell in range(0, 9, 2)}
    schema = full_schema(hash=pa.uint64(), tokens=pa.int64())
    files: list[TableFile] = []
    for number, part in enumerate(np.array_split(np.arange(900), 5)):
        writer = TableWriter(root, f"{number}.arrow")
        writer.add(pa.record_batch([cells[part] << np.uint64(CELL_SHIFT) | hashes[part], tokens[part]], schema=schema))
        files += writer.finish()
    alone = _stops(root, files, {4: budgets[4]})
    found = _stops(root, files, budgets)
    assert found.get(4) == alone.get(4)
    for cell, budget in budgets.items():
        own = cells == cell
        kept = hashes[own] < np.uint64(found.get(cell, 1 << CELL_SHIFT))
        fits = [stop for stop in [*hashes[own].tolist(), 1 << CELL_SHIFT] if tokens[own][hashes[own] < stop].sum() <= budget]
        assert (kept == (hashes[own] < np.uint64(max(fits)))).all()
        assert (cell in found) == (not kept.all())


def _stops(root: Root, files: list[TableFile], budgets: dict[int, int]) -> dict[int, int]:
    common: dict[str, Any] = {"step": "s", "seed": 3, "source": "web", "budget_of": "each"}
    spans, found = tuple(Span(cell=cell, bits=CELL_SHIFT, left=left) for cell, left in budgets.items()), dict[int, int]()
    while spans:
        make = partial(StopsTask, **common, spans=spans)
        parts = [make(sizes=(file,), is_last=False).run(root, f"part-{number}") for number, file in enumerate(files)]
        sums = tuple(file for outputs, _ in parts for file in typed(outputs["sums"], TableFile))
        outputs, metrics = make(sums=sums, is_last=True).run(root, "last")
        at_once = make(sizes=tuple(files), is_last=True).run(root, "at-once")[1]
        assert metrics.own == at_once.own
        assert sum(file.rows for file in outputs["stops"]) == sum(not span.bits for span in metrics.of(StopsMetrics).spans)
        narrowed = metrics.of(StopsMetrics).spans
        found |= {span.cell: span.start for span in narrowed if not span.bits}
        spans = tuple(span for span in narrowed if span.bits)
    return found
