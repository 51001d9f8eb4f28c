"""States, positions, ends and copies of a loader. That a restored one continues exactly: `tests/conformance/test_loader.py`."""

import copy
import gc
import pickle
import re
import shutil
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice, pairwise
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import DroppedRowsWarning, SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.order.state import sealed
from datapipe.service.serve import Running, ServeOptions
from tests.support.loader_rows import first_tokens, resumed, steps_of
from tests.support.snapshots import make_growing_snapshots, make_snapshot

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

S = 16
VALIDATION: dict[str, Any] = {"split": "validation"}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    phases = [(S * 700, {"code": 1, "web": 3}), (None, {"code": 2, "web": 1})]
    validation = {"code": 4, "web": 9}
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83}, phases=phases, validation=validation)


@pytest.mark.parametrize(
    "change",
    [
        *({"seed": 18}, {"split": "validation"}, {"window_shards": 1}, {"tokenizer": "xxh3_128:another"}),
        *({"sequence_length": S + 1}, {"step": -1}, {"step": "3"}, {"version": 1}, {"version": 5}),
    ],
)
def test_state_of_another_order_or_shape_is_refused(output: Path, change: dict[str, Any]) -> None:
    loader = Loader(output, global_batch_size=4)
    state = sealed({**loader.state_dict(), **change})
    with pytest.raises(SnapshotError, match=next(iter(change)).replace("_", " ")):
        loader.load_state_dict(state)


@pytest.mark.parametrize("state", [{}, {"version": 1}, {"version": 2, "step": 3}, None, 3, "x", []])
def test_what_is_no_state_is_refused(output: Path, state: Any) -> None:
    with pytest.raises(SnapshotError):
        Loader(output, global_batch_size=4).load_state_dict(state)


@pytest.mark.parametrize("field", ["step", "seed", "global_batch_size", "snapshot", "lineage", "checksum"])
def test_state_with_a_flipped_bit_in_any_field_is_refused(output: Path, field: str) -> None:
    loader = Loader(output, global_batch_size=4)
    state = loader.state_dict()
    value = state[field]
    flipped = value ^ 1 if isinstance(value, int) else value[:-1] + chr(ord(value[-1]) ^ 1)
    with pytest.raises(SnapshotError, match="damaged"):
        loader.load_state_dict({**state, field: flipped})
    assert loader.state_dict() == state


def test_iteration_continues_at_a_state_loaded_during_it_and_after_a_seek(output: Path) -> None:
    loader = Loader(output, global_batch_size=4, fields=("input_ids", "step"), prefetch=4)
    other = Loader(output, global_batch_size=4, skip=[(1, 4)])
    batches = iter(loader)
    first = next(batches)
    next(batches)
    loader.load_state_dict(other.state_dict())
    assert steps_of(batches, 3) == [0, 4, 5]
    loader.seek(0)
    assert first_tokens([next(batches)]) == first_tokens([first])


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
    options: dict[str, Any] = {"split": "validation", "global_batch_size": 5, "fields": ("step",)}
    loader = Loader(output, **options)
    assert [steps_of(loader, count) for count in (2, 9, 1)] == [[0, 1], [0, 1, 2], [0]]
    loader.load_state_dict(loader.state_dict())
    assert [steps_of(loader, 9), steps_of(loader, 9)] == [[1, 2], [0, 1, 2]]
    loader.seek(2)
    assert [steps_of(loader, 9), steps_of(loader, 9)] == [[2], [0, 1, 2]]
    loader = Loader(output, **options)
    assert [next(loader)["step"] for _ in range(3)] == [0, 1, 2]
    assert next(loader, None) is next(loader, None) is None
    assert steps_of(loader) == [0, 1, 2]


def test_validation_state_at_its_end_fits_another_batch_size(output: Path) -> None:
    ended = Loader(output, split="validation", global_batch_size=5)
    assert len(list(ended)) == 3
    other = resumed(ended, output, split="validation", global_batch_size=2)
    assert other.step == other.num_steps


def made_with(factory: pytest.TempPathFactory, total_tokens: int) -> Path:
    return make_snapshot(factory.mktemp("ending"), {"code": 31, "web": 83}, total_tokens=total_tokens)


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 50 rows: 6 whole batches of 8, and 2 rows."""
    return made_with(tmp_path_factory, S * 50 + 3)


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with 90 rows."""
    return made_with(tmp_path_factory, S * 90)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 6), ({"drop_last": False}, 7), ({"skip": [(1, 3), (5, 90)]}, 3), ({"skip": [(0, 90)]}, 0), (VALIDATION, 2)],
)
def test_len_is_the_batches_of_the_run_wherever_the_loader_is(
    ending: Path, output: Path, options: dict[str, Any], expected: int
) -> None:
    loader = Loader(output if "split" in options else ending, global_batch_size=8, **options)
    assert len(loader) == expected
    assert len(list(loader)) == len(loader) == expected
    assert bool(loader)
    with pytest.raises(UserError):
        loader.batch(7)


def test_len_of_a_run_without_end_is_a_type_error(output: Path) -> None:
    loader = Loader(output, global_batch_size=5)
    for kind in (TypeError, UserError):
        with pytest.raises(kind):
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


@pytest.mark.slow
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


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_last_batch_is_kept_dropped_or_reported(ending: Path, world_size: int) -> None:
    def run(**options: Any) -> list[int]:
        options |= {"global_batch_size": 8, "world_size": world_size}
        loaders = [Loader(ending, rank=rank, **options) for rank in range(world_size)]
        return first_tokens(part for batch in zip(*map(list, loaders), strict=True) for part in batch)

    everything = first_tokens(Loader(ending, global_batch_size=5))
    assert len(everything) == 50
    assert run(drop_last=False) == everything
    with warnings.catch_warnings():
        warnings.simplefilter("error", DroppedRowsWarning)
        assert run(drop_last=True) == everything[:48]
    with pytest.warns(DroppedRowsWarning, match="2 rows") as told:
        assert run() == everything[:48]
    assert len([each for each in told if each.category is DroppedRowsWarning]) == 1  # by rank 0


@pytest.mark.parametrize("asks", [iter, lambda loader: loader])
def test_rows_that_are_left_out_are_reported_with_the_last_batch_and_cost_no_batch(
    ending: Path, asks: Callable[[Loader], Iterator[Any]]
) -> None:
    """A trainer that counts batches does not ask for another; and one for which warnings are errors asks for the same again."""
    expected = first_tokens(Loader(ending, global_batch_size=8, drop_last=True))
    batches = asks(Loader(ending, global_batch_size=8))
    found = [next(batches) for _ in range(5)]
    with pytest.warns(DroppedRowsWarning) as told:
        found.append(next(batches))
    assert first_tokens(found) == expected
    assert [each.filename for each in told] == [__file__]  # the file of the trainer
    loader = Loader(ending, global_batch_size=8)
    found = list(islice(loader, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DroppedRowsWarning)
        with pytest.raises(DroppedRowsWarning):
            next(asks(loader))
    assert first_tokens([*found, *loader]) == expected


@pytest.mark.parametrize(("size", "drop_last", "num_taken"), [(8, False, 50), (6, False, 50), (8, True, 48)])
def test_run_that_goes_on_after_its_end_loses_no_row(
    ending: Path, longer: Path, size: int, drop_last: bool, num_taken: int
) -> None:
    expected = first_tokens(Loader(longer, global_batch_size=1))
    loader = Loader(ending, global_batch_size=8, drop_last=drop_last)
    batches = list(loader)
    assert len(first_tokens(batches)) == num_taken
    more = resumed(loader, longer, global_batch_size=size, migrate=True, drop_last=False)
    batches += more
    assert first_tokens(batches) == expected
    assert first_tokens(more.batch(step) for step in range(more.step)) == expected  # each step as it was
    last = resumed(more, longer, drop_last=False)
    assert (last.step, list(last)) == (more.step, [])
    assert resumed(last, longer, drop_last=False).state_dict() == last.state_dict()


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
    with pytest.raises(SnapshotError, match=f"at step {step}, past the end") if is_past else nullcontext():
        loader.load_state_dict(state)
    assert loader.step == 0 if is_past else list(loader) == []


def test_position_never_passes_the_end(ending: Path) -> None:
    loader = Loader(ending, global_batch_size=8, skip=[(4, 1000)])
    loader.seek(10**6)
    assert loader.step == loader.state_dict()["step"] == 6
    loader.seek(3)
    next(loader)
    assert loader.state_dict()["step"] == 6
    loader.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("skip", [[], [(1, 3), (5, 6)]])
def test_state_of_a_step_is_the_one_that_was_taken_there(ending: Path, skip: list[tuple[int, int]]) -> None:
    """For trainers that take batches ahead."""
    loader = Loader(ending, global_batch_size=8, fields=("step",), drop_last=False, skip=skip)
    start = loader.state_dict()
    states = [(batch["step"], loader.state_dict()) for batch in loader]
    assert all(loader.state_dict(np.int64(step + 1)) == state for step, state in states)
    assert loader.state_dict(step=0) == start
    for (_, state), (following, _) in pairwise(states):
        loader.load_state_dict(state)
        assert next(loader)["step"] == following


def test_state_of_a_step_before_a_change_of_the_run_restores_the_change(output: Path) -> None:
    before = Loader(output, global_batch_size=6)
    before.seek(4)
    changed = resumed(before, output, global_batch_size=4)
    expected = first_tokens(islice(changed, 3))
    again = Loader(output, global_batch_size=4)
    again.load_state_dict(changed.state_dict(step=5))
    assert first_tokens(islice(again, 2)) == expected[4:]


@pytest.mark.parametrize("step", [-1, 4, 1.0, True, "2"])
def test_state_of_a_step_that_was_not_handed_out_is_refused(output: Path, step: Any) -> None:
    loader = Loader(output, global_batch_size=4)
    list(islice(loader, 3))
    with pytest.raises(UserError, match="from 0 to 3"):
        loader.state_dict(step=step)


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_copy_of_a_loader_goes_on_from_the_same_position_of_the_same_history(
    output: Path, copied: Callable[[Loader], Loader]
) -> None:
    first = Loader(output, global_batch_size=4)
    first.seek(3)
    options: dict[str, Any] = {"skip": [(9, 11)], "mixture": {"code": 0.1, "web": 1}, "migrate": True}
    loader = resumed(first, output, global_batch_size=6, rank=1, world_size=2, prefetch=8, **options)
    loader.seek(2)  # before the change of the history
    batches = iter(loader)
    list(islice(batches, 6))
    other = copied(loader)
    assert other.state_dict() == loader.state_dict()
    assert first_tokens(islice(other, 4)) == first_tokens(islice(batches, 4))
    assert other.step == loader.step == 14
    assert first_tokens([other.batch(1)]) == first_tokens([loader.batch(1)])
    next(other)
    assert loader.step == 14  # each has its own position


def test_copy_whose_snapshot_is_gone_is_refused(tmp_path: Path) -> None:
    content = pickle.dumps(Loader(make_snapshot(tmp_path, {"web": 20}), global_batch_size=4))
    assert len(content) < 10_000
    make_snapshot(tmp_path, {"web": 30})
    with pytest.raises(SnapshotError, match="another snapshot"):
        pickle.loads(content)


@pytest.fixture
def growing(tmp_path: Path) -> tuple[Path, str]:
    """An output, and its first snapshot of two."""
    return tmp_path / "out", make_growing_snapshots(tmp_path / "out", {"web": [40, 30], "code": [20]})[0]


def check_that_the_error_names_the_snapshot(output: str, earlier: str) -> None:
    """The call in the message opens the snapshot of the state."""
    before = Loader(output, batch_size=4, snapshot=earlier)
    next(before)
    state, expected = before.state_dict(), next(before)["input_ids"]
    with pytest.raises(SnapshotError) as caught:
        Loader(output, batch_size=4).load_state_dict(state)
    found = re.search(r'Loader\("([^"]+)", snapshot="([0-9a-f]{12})", …\)', str(caught.value))
    assert found
    loader = Loader(found[1], snapshot=found[2], batch_size=4)
    loader.load_state_dict(state)
    np.testing.assert_array_equal(next(loader)["input_ids"], expected)
    for each in (before, loader):
        each.close()


def test_state_of_an_earlier_snapshot_is_refused_with_the_call_that_opens_it(growing: tuple[Path, str]) -> None:
    folder, earlier = growing
    check_that_the_error_names_the_snapshot(str(folder), earlier)
    state = Loader(folder, batch_size=4, snapshot=earlier).state_dict()
    shutil.rmtree(folder / "snapshots" / earlier)
    with pytest.raises(SnapshotError, match="does not list it, the state is of another output"):
        Loader(folder, batch_size=4).load_state_dict(state)


@pytest.mark.medium
def test_error_of_a_service_has_the_call_that_opens_the_snapshot_of_the_state(
    growing: tuple[Path, str], tmp_path: Path
) -> None:
    server = Running([f"web={growing[0]}"], ServeOptions(port=0, shares_files=False, cache_folder=str(tmp_path)))
    check_that_the_error_names_the_snapshot(f"{server.location}/web", growing[1])
    server.close()
