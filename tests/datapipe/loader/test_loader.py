"""A batch is a function of (snapshot, seed, step, rank, world size); a loader restored at any step continues exactly there."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import DroppedRowsWarning, SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.batches import BatchBuilder
from datapipe.loader.order.state import sealed
from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

S = 16


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    phases = [(S * 700, {"code": 1, "web": 3}), (None, {"code": 2, "web": 1})]
    validation = {"code": 4, "web": 9}
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83}, phases=phases, validation=validation)


@pytest.mark.medium
def test_state_every_step_and_any_world_size_continues_exactly(output: Path) -> None:
    loader = Loader(output, global_batch_size=5)
    states, batches = [loader.state_dict()], []
    for batch in islice(loader, 203):
        states.append(json.loads(json.dumps(loader.state_dict())))
        batches.append(batch)
    for world_size in (1, 2, 3, 8):
        ranks = [
            Loader(output, global_batch_size=5, rank=rank, world_size=world_size, prefetch=0) for rank in range(world_size)
        ]
        for step in range(200):
            for rank in ranks:
                rank.load_state_dict(states[step])
            for expected, *parts in zip(batches[step : step + 2], *ranks):
                for field in ("input_ids", "labels"):
                    np.testing.assert_array_equal(np.concatenate([part[field] for part in parts]), expected[field])


def test_state_counts_batches_handed_out_not_those_prefetched(output: Path) -> None:
    loader = Loader(output, global_batch_size=4, prefetch=8)
    assert loader.state_dict()["step"] == 0
    for step, _ in zip(range(1, 10), loader):
        assert loader.state_dict()["step"] == step


def test_state_other_global_batch_size_goes_on_with_the_next_sample_at_the_same_step(output: Path) -> None:
    rows = np.concatenate([batch["input_ids"] for batch in islice(Loader(output, global_batch_size=1), 60)])
    loader = Loader(output, global_batch_size=6)
    seen = [batch["input_ids"] for batch in islice(loader, 4)]
    larger = Loader(output, global_batch_size=9)
    larger.load_state_dict(loader.state_dict())
    assert larger.step == 4
    seen += [batch["input_ids"] for batch in islice(larger, 2)]
    smaller = Loader(output, global_batch_size=4)
    smaller.load_state_dict(larger.state_dict())
    seen += [batch["input_ids"] for batch in islice(smaller, 3)]
    np.testing.assert_array_equal(np.concatenate(seen), rows[: 24 + 18 + 12])
    for step, batch in enumerate(seen):  # every earlier step too, each with the size it had
        np.testing.assert_array_equal(smaller.batch(step)["input_ids"], batch)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"seed": 18}, "another seed"),
        ({"split": "validation"}, "another split"),
    ],
)
def test_state_of_another_order_is_refused(output: Path, other: dict[str, Any], reason: str) -> None:
    state = Loader(output, global_batch_size=4).state_dict()
    with pytest.raises(SnapshotError, match=reason):
        Loader(output, global_batch_size=4, **other).load_state_dict(state)


def test_state_of_other_data_is_refused(tmp_path: Path) -> None:
    first = make_snapshot(tmp_path / "a", {"web": 20})
    more = make_snapshot(tmp_path / "b", {"web": 21})
    reweighted = make_snapshot(tmp_path / "c", {"web": 20}, weights={"web": 2})
    state = Loader(first, global_batch_size=4).state_dict()
    with pytest.raises(SnapshotError, match="another snapshot"):
        Loader(more, global_batch_size=4).load_state_dict(state)
    with pytest.raises(SnapshotError, match="another mixture"):
        Loader(reweighted, global_batch_size=4).load_state_dict(state)


@pytest.mark.parametrize("broken", [{}, {"version": 1}, {"version": 2, "step": 3}, {"version": 2, "step": -1}])
def test_state_of_another_shape_is_refused(output: Path, broken: dict[str, Any]) -> None:
    with pytest.raises(SnapshotError, match=r"version|not a loader state"):
        Loader(output, global_batch_size=4).load_state_dict(broken)


def test_state_with_a_negative_step_is_refused(output: Path) -> None:
    loader = Loader(output, global_batch_size=4)
    with pytest.raises(SnapshotError, match="step -1"):
        loader.load_state_dict(sealed({**loader.state_dict(), "step": -1}))


@pytest.mark.parametrize("field", ["step", "seed", "global_batch_size", "snapshot", "lineage", "checksum"])
def test_state_with_a_flipped_bit_in_any_field_is_refused(output: Path, field: str) -> None:
    loader = Loader(output, global_batch_size=4)
    state = loader.state_dict()
    value = state[field]
    flipped = value ^ 1 if isinstance(value, int) else value[:-1] + chr(ord(value[-1]) ^ 1)

    with pytest.raises(SnapshotError, match="the loader state is damaged, or was edited"):
        loader.load_state_dict({**state, field: flipped})
    assert loader.state_dict() == state


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 8])
def test_ranks_slices_make_up_the_global_batch(output: Path, world_size: int) -> None:
    whole = Loader(output, global_batch_size=7).batch(3)["input_ids"]
    parts = [Loader(output, global_batch_size=7, rank=rank, world_size=world_size).batch(3) for rank in range(world_size)]
    sizes = [len(part["input_ids"]) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    np.testing.assert_array_equal(np.concatenate([part["input_ids"] for part in parts]), whole)
    assert all(part["labels"].shape == (size, S) for part, size in zip(parts, sizes))


def test_batch_size_per_rank_multiplies_to_the_global_batch(output: Path) -> None:
    loader = Loader(output, batch_size=3, rank=1, world_size=4)
    assert loader.global_batch_size == 12
    whole = Loader(output, global_batch_size=12).batch(5)["input_ids"]
    np.testing.assert_array_equal(loader.batch(5)["input_ids"], whole[3:6])


def test_batch_any_step_equals_iteration(output: Path) -> None:
    loader = Loader(output, global_batch_size=4, prefetch=3)
    for step, batch in enumerate(islice(loader, 30)):
        np.testing.assert_array_equal(batch["input_ids"], Loader(output, global_batch_size=4).batch(step)["input_ids"])


def test_iteration_after_a_break_continues_where_it_stopped(output: Path) -> None:
    expected = [batch["input_ids"] for batch in islice(Loader(output, global_batch_size=4), 9)]
    loader = Loader(output, global_batch_size=4)
    found = [batch["input_ids"] for _ in range(3) for batch in islice(loader, 3)]
    np.testing.assert_array_equal(np.stack(found), np.stack(expected))


def test_iteration_continues_at_a_state_loaded_during_it(output: Path) -> None:
    loader = Loader(output, global_batch_size=4)
    batches = iter(loader)
    first, state = next(batches)["input_ids"], loader.state_dict()
    second = next(batches)["input_ids"]
    next(batches)
    loader.load_state_dict(state)
    np.testing.assert_array_equal(next(batches)["input_ids"], second)
    loader.seek(0)
    np.testing.assert_array_equal(next(batches)["input_ids"], first)


def test_iteration_over_both_sources_draws_each_sequence_evenly(output: Path) -> None:
    rows = np.concatenate([batch["input_ids"][:, 0] for batch in islice(Loader(output, global_batch_size=10), 70)]) // S
    web = rows[rows >= 31]
    assert len(web) in (524, 525, 526)
    assert np.bincount(web - 31).min() >= 6  # 525 / 83
    assert np.bincount(web - 31).max() <= 7


def test_training_at_its_end_stays_there(tmp_path: Path) -> None:
    loader = Loader(make_snapshot(tmp_path, {"web": 20}, total_tokens=S * 11), global_batch_size=4)
    assert loader.num_steps == 2
    assert len(list(loader)) == 2
    assert list(loader) == []
    with pytest.raises(UserError, match="step 2 is not in this run"):
        loader.batch(2)


def test_max_epochs_end_training_before_the_step_that_would_pass_it(tmp_path: Path) -> None:
    loader = Loader(make_snapshot(tmp_path, {"web": 10}, max_epochs={"web": 2}), global_batch_size=3)
    rows = np.concatenate([batch["input_ids"][:, 0] for batch in loader]) // S
    assert loader.num_steps == 6
    assert np.bincount(rows).max() <= 2


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_validation_gives_every_sequence_once_and_starts_again(output: Path, world_size: int) -> None:
    loaders = [
        Loader(output, split="validation", global_batch_size=5, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    for _ in range(2):
        parts = [[batch["input_ids"][:, 0] // S for batch in loader] for loader in loaders]
        steps = [np.concatenate(step) for step in zip(*parts)]
        assert [len(step) for step in steps] == [5, 5, 3]
        assert np.concatenate(steps).tolist() == list(range(31 + 83, 31 + 83 + 13))


def test_validation_starts_over_after_a_break_unless_its_position_was_set(output: Path) -> None:
    loader = Loader(output, split="validation", global_batch_size=5, fields=("step",))

    def steps(count: int) -> list[int]:
        return [batch["step"] for batch in islice(loader, count)]

    assert [steps(2), steps(9), steps(1)] == [[0, 1], [0, 1, 2], [0]]
    loader.load_state_dict(loader.state_dict())
    assert [steps(9), steps(9)] == [[1, 2], [0, 1, 2]]
    loader.seek(2)
    assert [steps(9), steps(9)] == [[2], [0, 1, 2]]


def test_validation_state_at_its_end_fits_another_batch_size(output: Path) -> None:
    ended = Loader(output, split="validation", global_batch_size=5)
    for batch in ended:
        del batch
    other = Loader(output, split="validation", global_batch_size=2)
    other.load_state_dict(ended.state_dict())
    assert other.step == other.num_steps


@pytest.mark.parametrize("shard_format", ["arrow", "parquet"])
@pytest.mark.parametrize("vocab_size", [1000, 1 << 20])
def test_loader_formats_and_widths_give_the_same_rows(tmp_path: Path, shard_format: Any, vocab_size: int) -> None:
    folder = make_snapshot(tmp_path, {"web": 40}, shard_format=shard_format, vocab_size=vocab_size)
    reference = Loader(make_snapshot(tmp_path / "reference", {"web": 40}), global_batch_size=8).batch(7)["input_ids"]
    np.testing.assert_array_equal(Loader(folder, global_batch_size=8).batch(7)["input_ids"], reference % vocab_size)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "exactly one"),
        ({"global_batch_size": 4, "batch_size": 4}, "exactly one"),
        ({"global_batch_size": 0}, "at least 1"),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "rank 2 of a world of 2"),
        ({"batch_size": 4, "fields": ["input_id"]}, "Did you mean 'input_ids'"),
        ({"batch_size": 4, "labels": "moved"}, "shifted or unshifted"),
        ({"batch_size": 4, "split": "test"}, "train or validation"),
        ({"batch_size": 4, "dtype": "float32"}, "int64 or int32"),
        ({"batch_size": 4, "prefetch": -1}, "prefetch=-1"),
        ({"batch_size": np.int64(4)}, "batch_size=.*of type int64: expected an int"),
        ({"global_batch_size": 4.0}, "global_batch_size=4.0 of type float"),
        ({"batch_size": 4, "seed": np.int64(3)}, "seed=.*of type int64"),
        ({"batch_size": 4, "skip": [(1.5, 3)]}, "not a range of steps"),
        ({"batch_size": 4, "skip": [(1, 2, 3)]}, "not a range of steps"),
        ({"batch_size": 4, "skip": [(3, 1 << 60)]}, "not a range of steps"),
        ({"batch_size": 4, "restart": ["wbe"]}, "restart: no source 'wbe'.*Did you mean 'web'"),
        ({"batch_size": 4, "restart": "web"}, "without migrate=True"),
    ],
)
def test_loader_wrong_arguments_are_refused(output: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        Loader(output, **options)


def test_loader_folder_without_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"snapshot\.json"):
        Loader(tmp_path, global_batch_size=4)


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 50 rows: 6 whole batches of 8, and 2 rows."""
    return make_snapshot(tmp_path_factory.mktemp("ending"), {"code": 31, "web": 83}, total_tokens=S * 50 + 3)


def first_tokens(batches: Iterable[dict[str, Any]]) -> list[int]:
    return [token for batch in batches for token in batch["input_ids"][:, 0].tolist()]


def test_len_is_the_batches_of_the_run_wherever_the_loader_is(ending: Path, output: Path) -> None:
    for options, expected in (
        ({}, 6),
        ({"drop_last": False}, 7),
        ({"skip": [(1, 3), (5, 90)]}, 3),
        ({"skip": [(0, 90)]}, 0),
        ({"split": "validation"}, 2),
    ):
        loader = Loader(output if "split" in options else ending, global_batch_size=8, **options)
        assert len(loader) == expected
        assert len(list(loader)) == len(loader) == expected
        assert bool(loader)


def test_len_of_a_run_without_end_is_a_type_error_that_says_what_to_do(output: Path) -> None:
    loader = Loader(output, global_batch_size=5)
    with pytest.raises(TypeError, match="this run has no end"):
        len(loader)
    with pytest.raises(UserError, match="Count steps in the training loop"):
        len(loader)
    assert bool(loader)
    assert length_hint(loader, 7) == 7  # what `list` asks for


@pytest.mark.parametrize("prefetch", [0, 3])
def test_next_and_for_move_one_position(ending: Path, prefetch: int) -> None:
    expected = first_tokens(Loader(ending, global_batch_size=8))
    loader = Loader(ending, global_batch_size=8, prefetch=prefetch)
    batches = [next(loader), next(loader)]
    assert loader.state_dict()["step"] == 2
    batches += islice(loader, 2)
    batches += [next(loader)]
    batches += loader
    assert first_tokens(batches) == expected
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(loader)
    loader.seek(4)  # after the end, too
    assert first_tokens([next(loader), next(loader)]) == expected[32:]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """The garbage collector is off, so that only reference counts free anything."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("asks", [next, lambda loader: next(iter(loader)), list])
def test_threads_end_with_the_last_reference_to_a_loader(
    ending: Path, no_collector: None, asks: Callable[[Loader], object]
) -> None:
    before = threading.active_count()
    loader = Loader(ending, global_batch_size=8)
    asks(loader)
    asked = weakref.ref(loader)
    del loader
    assert asked() is None
    assert threading.active_count() == before


def test_next_goes_on_with_the_history_of_a_loaded_state(ending: Path) -> None:
    smaller, loader = Loader(ending, global_batch_size=4), Loader(ending, global_batch_size=8)
    expected = first_tokens(Loader(ending, global_batch_size=2))
    first = [next(smaller), next(smaller), next(smaller)]
    next(loader)
    loader.load_state_dict(smaller.state_dict())
    assert first_tokens([*first, next(loader), next(loader)]) == expected[: 3 * 4 + 2 * 8]


def test_next_of_a_validation_ends_and_the_next_for_starts_over(output: Path) -> None:
    loader = Loader(output, split="validation", global_batch_size=8)
    rows = first_tokens([next(loader), next(loader)])
    assert next(loader, None) is next(loader, None) is None
    assert first_tokens(loader) == rows


def test_next_after_an_error_goes_on_and_does_not_end(ending: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(ending, global_batch_size=8, prefetch=0)
    expected = first_tokens(Loader(ending, global_batch_size=8))
    build_many, calls = BatchBuilder.build_many, []

    def fails_once(builder: BatchBuilder, steps: Sequence[int]) -> Any:
        calls.append(steps)
        if len(calls) == 2:
            raise OSError("the store is away")
        return build_many(builder, steps)

    monkeypatch.setattr(BatchBuilder, "build_many", fails_once)
    batches = [next(loader)]
    with pytest.raises(OSError, match="away"):
        next(loader)
    batches += [next(loader), next(loader)]
    assert first_tokens(batches) == expected[:24]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_last_batch_is_kept_dropped_or_told(ending: Path, world_size: int) -> None:
    def rows(rank: int, **options: Any) -> list[list[int]]:
        loader = Loader(ending, global_batch_size=8, rank=rank, world_size=world_size, **options)
        return [batch["input_ids"][:, 0].tolist() for batch in loader]

    def run(**options: Any) -> list[int]:
        ranks = [rows(rank, **options) for rank in range(world_size)]
        assert len({len(batches) for batches in ranks}) == 1
        return [row for batch in zip(*ranks) for part in batch for row in part]

    everything = first_tokens(Loader(ending, global_batch_size=5))
    assert len(everything) == 50
    assert run(drop_last=False) == everything
    with warnings.catch_warnings():
        warnings.simplefilter("error", DroppedRowsWarning)
        assert run(drop_last=True) == everything[:48]
        if world_size > 1:
            rows(1)  # rank 0 tells
        list(Loader(ending, global_batch_size=5, rank=0))
    with pytest.warns(DroppedRowsWarning, match=r"ends with 2 rows that make no whole batch of 8.*drop_last=False"):
        rows(0)


@pytest.mark.parametrize("asks", [iter, lambda loader: loader])
def test_rows_that_are_left_out_are_told_with_the_last_batch_and_cost_no_batch(
    ending: Path, asks: Callable[[Loader], Iterator[Any]]
) -> None:
    """A trainer that counts batches does not ask for another; and one for which warnings are errors asks for the same again."""
    expected = [list(batch["input_ids"][:, 0]) for batch in Loader(ending, global_batch_size=8, drop_last=True)]
    loader = Loader(ending, global_batch_size=8)
    batches = asks(loader)
    found = [next(batches) for _ in range(5)]
    with pytest.warns(DroppedRowsWarning):
        found.append(next(batches))
    assert [list(batch["input_ids"][:, 0]) for batch in found] == expected
    loader = Loader(ending, global_batch_size=8)
    found = list(islice(loader, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DroppedRowsWarning)
        with pytest.raises(DroppedRowsWarning):
            next(asks(loader))
    found += loader
    assert [list(batch["input_ids"][:, 0]) for batch in found] == expected


@pytest.mark.parametrize("ask", [next, list])
def test_warning_of_dropped_rows_names_the_file_of_the_trainer(ending: Path, ask: Callable[[Loader], object]) -> None:
    loader = Loader(ending, global_batch_size=8)
    loader.seek(5)
    with pytest.warns(DroppedRowsWarning) as told:
        ask(loader)
    assert [each.filename for each in told] == [__file__]


def test_run_that_goes_on_after_its_smaller_last_batch_loses_no_row(ending: Path, tmp_path: Path) -> None:
    longer = make_snapshot(tmp_path, {"code": 31, "web": 83}, total_tokens=S * 90)
    expected = first_tokens(Loader(longer, global_batch_size=1))
    for size in (8, 6):
        loader = Loader(ending, global_batch_size=8, drop_last=False)
        batches = list(loader)
        assert loader.step == 7
        more = Loader(longer, global_batch_size=size, migrate=True, drop_last=False)
        more.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        batches += more
        assert first_tokens(batches) == expected
        assert first_tokens(more.batch(step) for step in range(more.step)) == expected  # each step as it was
        last = Loader(longer, global_batch_size=size, drop_last=False)
        last.load_state_dict(more.state_dict())
        assert (last.step, list(last)) == (more.step, [])
        again = Loader(longer, global_batch_size=size, drop_last=False)
        again.load_state_dict(last.state_dict())
        assert again.state_dict() == last.state_dict()


@pytest.mark.parametrize(
    ("step", "options", "is_past"),
    [
        (6, {}, False),
        (7, {}, True),  # it counts 2 rows that this loader leaves out
        (7, {"drop_last": False}, False),
        (8, {"drop_last": False}, True),
        (8, {}, True),
        (50, {"skip": [(6, 50)]}, False),
        (51, {"skip": [(6, 50)]}, True),
        (50, {"skip": [(7, 50)]}, True),
    ],
)
def test_state_past_the_end_is_refused(ending: Path, step: int, options: dict[str, Any], is_past: bool) -> None:
    loader = Loader(ending, global_batch_size=8, **options)
    state = sealed({**loader.state_dict(), "step": step})
    if is_past:
        with pytest.raises(SnapshotError, match=rf"at step {step}, past the end of this run, which has 50 rows"):
            loader.load_state_dict(state)
        assert loader.step == 0
    else:
        loader.load_state_dict(state)
        assert list(loader) == []


def test_state_of_a_longer_run_is_past_the_end_of_a_shorter_one(ending: Path, tmp_path: Path) -> None:
    longer = make_snapshot(tmp_path, {"code": 31, "web": 83}, total_tokens=S * 90)
    loader = Loader(longer, global_batch_size=8)
    loader.seek(7)
    for size in (8, 4, 16):
        with pytest.raises(SnapshotError, match="past the end of this run, which has 50 rows"):
            Loader(ending, global_batch_size=size, migrate=True).load_state_dict(loader.state_dict())


def test_position_never_passes_the_end(ending: Path) -> None:
    loader = Loader(ending, global_batch_size=8, skip=[(4, 1000)])
    loader.seek(10**6)
    assert loader.step == loader.state_dict()["step"] == 6
    loader.seek(3)
    next(loader)
    assert loader.state_dict()["step"] == 6
    loader.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_copy_of_a_loader_goes_on_from_the_same_position_of_the_same_history(
    output: Path, copied: Callable[[Loader], Loader]
) -> None:
    first = Loader(output, global_batch_size=4)
    first.seek(3)
    loader = Loader(
        output, global_batch_size=6, rank=1, world_size=2, skip=[(9, 11)], mixture={"code": 0.1, "web": 1}, migrate=True
    )
    loader.load_state_dict(first.state_dict())
    loader.seek(20)
    loader.load_state_dict(loader.state_dict())
    loader.seek(2)  # before the last change of the history
    batches = iter(loader)
    for _ in range(6):
        next(batches)
    other = copied(loader)
    assert other.state_dict() == loader.state_dict()
    assert other.batch_order.lineage == loader.batch_order.lineage
    for _ in range(4):
        np.testing.assert_array_equal(next(other)["input_ids"], next(batches)["input_ids"])
    assert other.step == loader.step == 14
    np.testing.assert_array_equal(other.batch(1)["input_ids"], loader.batch(1)["input_ids"])
    next(other)
    assert loader.step == 14  # each has its own position


def test_copy_whose_snapshot_is_gone_is_refused(tmp_path: Path) -> None:
    folder = make_snapshot(tmp_path, {"web": 20})
    content = pickle.dumps(Loader(folder, global_batch_size=4))
    assert len(content) < 10_000
    make_snapshot(tmp_path, {"web": 30})
    with pytest.raises(SnapshotError, match="of another snapshot: source 'web' holds other rows"):
        pickle.loads(content)
