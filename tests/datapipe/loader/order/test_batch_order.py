"""A run whose mixture, sources, batch size or skips change. No row repeats before its source's epoch ends."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.document_name import document_name
from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.order.state import sealed
from datapipe.loader.trace import trace_document, trace_step
from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

S = 16
SIZES = {"code": 31, "web": 83}
FIELDS = ("input_ids", "labels", "sources", "document_keys", "piece_offsets", "piece_lengths")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), SIZES, weights={"code": 1, "web": 3})


def resumed(loader: Loader, output: Path, **options: Any) -> Loader:
    """Another loader, restored from the state of `loader` through JSON."""
    other = Loader(output, **{"global_batch_size": loader.global_batch_size, "fields": FIELDS, "prefetch": 0, **options})
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    return other


def rows_by_source(batches: list[dict[str, Any]], loader: Loader) -> dict[str, list[int]]:
    """By source, the first token of every row in order, which identifies the row."""
    found: dict[str, list[int]] = {}
    for batch in batches:
        for source, row in zip(batch["sources"], batch["input_ids"][:, 0].tolist()):
            found.setdefault(loader.sources[source], []).append(row)
    return found


def assert_full_epochs(rows: list[int], size: int) -> None:
    """Every whole epoch in `rows` has each row once, and the rest repeats no row."""
    for start in range(0, len(rows), size):
        assert len(set(rows[start : start + size])) == len(rows[start : start + size])


@pytest.mark.parametrize("step", [0, 1, 17, 40])
def test_new_weights_continue_every_source(output: Path, step: int) -> None:
    before = Loader(output, global_batch_size=5, fields=FIELDS, prefetch=0)
    batches = list(islice(before, step))
    after = resumed(before, output, mixture={"code": 3, "web": 1}, migrate=True)
    batches += list(islice(after, 40))
    again = resumed(after, output, mixture=[(S * 500, {"web": 1}), (None, {"code": 1})], migrate=True)
    batches += list(islice(again, 60))
    rows = rows_by_source(batches, before)
    unchanged = rows_by_source(list(islice(Loader(output, global_batch_size=5, fields=FIELDS), 400)), before)
    for source, size in SIZES.items():
        assert_full_epochs(rows[source], size)
        assert rows[source] == unchanged[source][: len(rows[source])]  # the source's own order, without a gap
    shares = Counter(source for batch in batches[step : step + 40] for source in batch["sources"].tolist())
    assert abs(shares[0] - 150) <= 3
    for number, batch in enumerate(batches):  # the lineage gives every earlier step
        np.testing.assert_array_equal(again.batch(number)["input_ids"], batch["input_ids"])
    lineage = json.loads(again.state_dict()["lineage"])
    assert [era["step"] for era in lineage["mixtures"]] == sorted({0, step, step + 40})


def test_other_weights_without_migrate_are_refused_with_what_differs(output: Path) -> None:
    loader = Loader(output, global_batch_size=5)
    next(iter(loader))
    with pytest.raises(
        SnapshotError, match=r"another mixture: weights \{code: 1, web: 3\} -> \{code: 1, web: 1\}.*migrate=True"
    ):
        resumed(loader, output, mixture={"code": 0.5, "web": 0.5})
    other = resumed(loader, output, mixture={"code": 1, "web": 1}, migrate=True)
    with pytest.raises(SnapshotError, match="another mixture"):
        resumed(other, output)  # with the first mixture, which the run has left
    assert resumed(other, output, mixture={"code": 0.5, "web": "0.5"}).step == 1


def test_sources_that_come_and_go_continue(tmp_path: Path, output: Path) -> None:
    wider = make_snapshot(tmp_path / "wider", {**SIZES, "zeta": 20})
    narrower = make_snapshot(tmp_path / "narrower", {"code": 31})
    loaders = [Loader(output, global_batch_size=5, fields=FIELDS, prefetch=0)]
    batches = [list(islice(loaders[0], 10))]
    for folder in (wider, narrower, wider):
        loaders.append(resumed(loaders[-1], folder, migrate=True))
        batches.append(list(islice(loaders[-1], 10)))
    rows: dict[str, list[int]] = {}
    for loader, some in zip(loaders, batches):
        for source, found in rows_by_source(some, loader).items():
            rows.setdefault(source, []).extend(found)
    for source, size in {**SIZES, "zeta": 20}.items():
        assert_full_epochs(rows[source], size)
    with pytest.raises(
        SnapshotError, match=r"before step 10, this run drew source 'web' from rows that this snapshot does not hold"
    ):
        resumed(loaders[2], narrower).batch(0)
    with pytest.raises(SnapshotError, match="source 'zeta' is new"):
        resumed(loaders[0], wider)


def test_a_source_with_other_rows_is_refused_or_started_over(tmp_path: Path, output: Path) -> None:
    grown = make_snapshot(tmp_path, {"code": 31, "web": 90}, weights={"code": 1, "web": 3})
    loader = Loader(output, global_batch_size=5, fields=FIELDS, prefetch=0)
    first = list(islice(loader, 10))
    with pytest.raises(SnapshotError, match=r"another snapshot: source 'web' holds other rows"):
        resumed(loader, grown)
    with pytest.raises(
        SnapshotError, match=r"'web' does not hold the rows that this run drew \d+ samples from.*restart=\['web'\]"
    ):
        resumed(loader, grown, migrate=True)
    other = resumed(loader, grown, migrate=True, restart=["web"])
    later = list(islice(other, 24))
    assert_full_epochs(rows_by_source(first, loader)["code"] + rows_by_source(later, other)["code"], 31)
    fresh = rows_by_source(list(islice(Loader(grown, global_batch_size=5, fields=FIELDS), 60)), other)["web"]
    again = rows_by_source(later, other)["web"]
    assert again == fresh[: len(again)]


def test_more_tokens_extend_a_run_without_repeating(tmp_path: Path) -> None:
    short = make_snapshot(tmp_path / "short", SIZES, total_tokens=S * 42)
    longer = make_snapshot(tmp_path / "longer", SIZES, total_tokens=S * 90)
    loader = Loader(short, global_batch_size=5, fields=FIELDS)
    batches = list(loader)
    assert len(batches) == 8
    more = resumed(loader, longer, migrate=True)
    batches += list(more)
    assert len(batches) == 18
    whole = list(islice(Loader(longer, global_batch_size=5, fields=FIELDS), 18))
    for source, rows in rows_by_source(batches, loader).items():
        assert rows == rows_by_source(whole, loader)[source]


def test_skipped_steps_are_left_out_and_all_others_are_unchanged(output: Path) -> None:
    plain = Loader(output, global_batch_size=5, fields=("input_ids", "step"), prefetch=0)
    expected = {batch["step"]: batch["input_ids"] for batch in islice(plain, 50)}
    early = Loader(output, global_batch_size=5, fields=("input_ids", "step"))
    seen = [batch["step"] for batch in islice(early, 12)]
    loader = resumed(early, output, fields=("input_ids", "step"), skip=[(20, 25), (8, 14), (24, 27)])
    for batch in islice(loader, 20):
        seen.append(batch["step"])
        np.testing.assert_array_equal(batch["input_ids"], expected[batch["step"]])
    assert seen == [*range(12), *range(14, 20), *range(27, 41)][:32]  # steps handed out before do not change
    later = resumed(loader, output, fields=("input_ids", "step"))  # the state holds the skips
    later.seek(18)
    assert [batch["step"] for batch in islice(later, 4)] == [18, 19, 27, 28]
    assert json.loads(later.state_dict()["lineage"])["skip"]["steps"] == [[12, 14], [20, 27]]


@pytest.mark.medium
@pytest.mark.parametrize("world_size", [1, 3])
def test_skipped_shards_are_replaced_by_rows_of_their_source(output: Path, world_size: int) -> None:
    plain = Loader(output, global_batch_size=6, fields=FIELDS, prefetch=0)
    gone = [shard.path for shard in plain.snapshot.shards if shard.source == "web"][2:5]
    start = resumed(plain, output, skip_shards=gone)
    first, stop = (
        next(int(at) for at in np.flatnonzero([s.path == p for s in start.batch_order.layout.shards]))
        for p in (gone[0], gone[-1])
    )
    parts: list[Loader] = []
    for step in range(60):
        parts = (
            [
                Loader(
                    output, global_batch_size=6, fields=FIELDS, prefetch=0, skip_shards=gone, rank=rank, world_size=world_size
                )
                for rank in range(world_size)
            ]
            if step % 20 == 0
            else parts
        )
        rows = np.concatenate([part.batch(step)["input_ids"] for part in parts])
        expected = plain.batch(step)
        addresses = plain.batch_order.locate(plain.batch_order.samples(step))
        shards = plain.batch_order.layout.find(addresses)[0]
        hit = (shards >= first) & (shards <= stop)
        np.testing.assert_array_equal(rows[~hit], expected["input_ids"][~hit])
        found = start.batch_order.layout.find(start.batch_order.locate(start.batch_order.samples(step)))[0]
        assert not np.isin(found, np.arange(first, stop + 1)).any()
        np.testing.assert_array_equal(np.concatenate([part.batch(step)["sources"] for part in parts]), expected["sources"])


def test_skipped_documents_are_padding_from_the_step_they_are_skipped_at(output: Path) -> None:
    plain = Loader(output, global_batch_size=6, fields=FIELDS, prefetch=0)
    state = resumed(plain, output)
    state.seek(3)
    traced = trace_step(output, 5, global_batch_size=6)[4]
    key = traced.key
    seen = trace_document(output, key, global_batch_size=6, num_epochs=4)
    without = resumed(state, output, skip_documents=[key])
    by_name = resumed(state, output, skip_documents=[document_name(traced.source, traced.path, traced.position)])
    assert by_name.state_dict() == without.state_dict()
    left = trace_document(output, key, state=without.state_dict(), num_epochs=4)
    assert left == [one for one in seen if one.step < 3]
    assert {one.step for one in seen} - {one.step for one in left}
    for step in {one.step for one in seen} | {0, 1}:
        before, after = plain.batch(step), without.batch(step)
        mask = np.zeros((6, S), bool)
        for one in seen:
            if one.step == step >= 3:
                row = slice(*before["piece_offsets"][one.row : one.row + 2])
                at = int(before["piece_lengths"][row][: one.piece].sum())
                mask[one.row, at : at + one.num_tokens] = True
        np.testing.assert_array_equal(after["input_ids"], np.where(mask, 0, before["input_ids"]))
        np.testing.assert_array_equal(after["labels"], np.where(mask, -100, before["labels"]))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"skip": [(4, 4)]}, "not a range of steps"),
        ({"skip_shards": ["shards/web/train-0000-0000.arow"]}, "no shard"),
        ({"skip_documents": ["12"]}, "expected SOURCE/PATH:POSITION"),
        ({"skip_documents": ["web/none.jsonl:12"]}, "this snapshot has no such file"),
        ({"mixture": {"wbe": 1}}, "Did you mean 'web'"),
        ({"mixture": {"web": -1}}, "at least 0"),
        ({"mixture": {"web": 0}}, "at least one above 0"),
        ({"mixture": {"web": "much"}}, "expected a number"),
        ({"mixture": [(100, {"web": 1})]}, "None"),
        ({"mixture": [(100, {"web": 1}), (90, {"web": 2}), (None, {"web": 1})]}, "ascending"),
        ({"window": -1}, "window=-1"),
    ],
)
def test_wrong_arguments_are_refused(output: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        Loader(output, global_batch_size=4, **options)


@pytest.mark.parametrize("name", ["window_shards", "tokenizer", "sequence_length"])
def test_states_of_another_order_are_refused(output: Path, name: str) -> None:
    loader = Loader(output, global_batch_size=4)
    state = loader.state_dict()
    other = sealed({**state, name: state[name] + (1 if isinstance(state[name], int) else "0")})
    with pytest.raises(SnapshotError, match=f"another {name.replace('_', ' ')}"):
        loader.load_state_dict(other)


@pytest.mark.parametrize("lineage", ["", "{}", "[]", '{"batches": [], "mixtures": [], "skip": {}}', "nonsense"])
def test_states_with_a_broken_lineage_are_refused(output: Path, lineage: str) -> None:
    loader = Loader(output, global_batch_size=4)
    with pytest.raises(SnapshotError, match="lineage cannot be read"):
        loader.load_state_dict(sealed({**loader.state_dict(), "lineage": lineage}))


def test_a_state_loaded_under_a_running_iterator_changes_what_comes_next(output: Path) -> None:
    loader = Loader(output, global_batch_size=5, fields=("input_ids", "step"), prefetch=4)
    iterator = iter(loader)
    next(iterator)
    other = Loader(output, global_batch_size=5, fields=("input_ids", "step"), skip=[(1, 4)])
    other.seek(0)
    loader.load_state_dict(other.state_dict())
    assert [next(iterator)["step"] for _ in range(3)] == [0, 4, 5]


def test_another_mixture_from_before_the_last_change_continues_from_the_counts_of_that_step(output: Path) -> None:
    document = Loader(output, global_batch_size=5, fields=FIELDS, prefetch=0).batch(30)["document_keys"][0].tobytes().hex()
    loader = Loader(output, global_batch_size=5, fields=FIELDS, prefetch=0)
    loader.seek(10)
    expected = resumed(loader, output, mixture={"code": 9, "web": 1}, migrate=True)
    loader.seek(50)
    changed = resumed(loader, output, mixture={"code": 1, "web": 9}, migrate=True, skip_documents=[document])
    changed.seek(10)
    found = resumed(changed, output, mixture={"code": 9, "web": 1}, migrate=True, skip_documents=[document])
    lineage, wanted = (json.loads(one.state_dict()["lineage"]) for one in (found, expected))
    assert lineage["mixtures"] == wanted["mixtures"]
    assert lineage["skip"]["documents"] == {document: 10}  # and not from step 50 on


def test_states_that_contradict_their_lineage_are_refused(output: Path) -> None:
    loader = Loader(output, global_batch_size=5, prefetch=0)
    loader.seek(10)
    state = resumed(loader, output, global_batch_size=6).state_dict()
    other = Loader(output, global_batch_size=6, prefetch=0)
    lineage = json.loads(state["lineage"])
    assert lineage["batches"] == [[0, 0, 5], [10, 50, 6]]
    for wrong in ([[0, 0, 5], [10, 49, 6]], [[0, 0, 5], [10, 50, 7]]):
        with pytest.raises(SnapshotError, match="lineage cannot be read"):
            other.load_state_dict(sealed({**state, "lineage": json.dumps({**lineage, "batches": wrong})}))
    for wrong_state in (None, 3, "x", []):
        with pytest.raises(SnapshotError, match="not a loader state"):
            other.load_state_dict(wrong_state)  # type: ignore[arg-type]


def test_softmax_of_any_floats_is_a_mixture_and_its_state_is_the_same_everywhere(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(5)]
    folder = make_snapshot(tmp_path, dict.fromkeys(names, 20))
    powers = np.exp(np.array([0.3, -1.2, 2.5, 0.01, 1.7]))
    shares = dict(zip(names, powers / powers.sum()))
    loader = Loader(folder, global_batch_size=8, fields=FIELDS, prefetch=0, mixture=shares)
    drawn = Counter(source for batch in islice(loader, 250) for source in batch["sources"].tolist())
    for number, name in enumerate(names):
        assert abs(drawn[number] - 2000 * shares[name]) <= 3
    as_floats = {name: float(share) for name, share in reversed(shares.items())}
    assert resumed(loader, folder, mixture=as_floats).state_dict() == loader.state_dict()


def test_share_too_small_to_count_is_told_and_not_lost(output: Path) -> None:
    with pytest.warns(UserWarning, match=r"2\^-40 of the whole, which changes that of 'code' from 1e-30 to 9.09e-13"):
        loader = Loader(output, global_batch_size=5, mixture={"code": 1e-30, "web": 1})
    lineage = json.loads(loader.state_dict()["lineage"])
    assert (lineage["sources"], lineage["mixtures"][0]["phases"]) == (["code", "web"], [[None, [1, 2**40 - 1]]])


def test_unshuffled_rows_come_in_the_order_of_the_shards_and_sources_by_their_quota(output: Path) -> None:
    loader = Loader(output, global_batch_size=5, fields=FIELDS, prefetch=0, shuffle=False)
    batches = list(islice(loader, 70))
    rows = rows_by_source(batches, loader)
    first = {"code": 0, "web": SIZES["code"]}  # numbers of the sources' first rows
    for source, found in rows.items():
        assert [(token - 1) // S - first[source] for token in found] == [number % SIZES[source] for number in range(len(found))]
    shuffled = Loader(output, global_batch_size=5, fields=FIELDS, prefetch=0)
    for batch, other in zip(batches, shuffled):
        np.testing.assert_array_equal(batch["sources"], other["sources"])


def test_unshuffled_run_is_traced_migrated_and_kept_apart_from_a_shuffled_one(output: Path) -> None:
    loader = Loader(output, global_batch_size=5, fields=FIELDS, prefetch=0, shuffle=False)
    batches = list(islice(loader, 30))
    changed = resumed(loader, output, shuffle=False, mixture={"code": 3, "web": 1}, migrate=True)
    batches += islice(changed, 30)
    code = [(token - 1) // S for token in rows_by_source(batches, loader)["code"]]
    assert code == [number % SIZES["code"] for number in range(len(code))]  # without a gap
    state = json.loads(json.dumps(changed.state_dict()))
    assert state["order"] == "stored"
    key = batches[0]["document_keys"][0].tobytes().hex()
    expected = [step for step, batch in enumerate(batches) if key in {one.tobytes().hex() for one in batch["document_keys"]}]
    assert [one.step for one in trace_document(output, key, state=state)] == expected
    assert [row.key for row in trace_step(output, 40, state=state)] == [
        one.tobytes().hex() for one in batches[40]["document_keys"]
    ]
    shuffled = Loader(output, global_batch_size=5, fields=FIELDS, prefetch=0)
    with pytest.raises(SnapshotError, match=r"another order: stored, and the loader was opened with shuffled.*`shuffle`"):
        shuffled.load_state_dict(state)
    with pytest.raises(SnapshotError, match="another order: shuffled, and the loader was opened with stored"):
        changed.load_state_dict(shuffled.state_dict())
    assert "order" not in shuffled.state_dict()
