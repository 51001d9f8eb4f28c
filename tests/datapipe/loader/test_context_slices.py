"""Documents split over context ranks: attention by their parts is attention over whole rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import UserError
from datapipe.loader import Loader
from datapipe.loader.context_slices import num_borders, slice_documents
from datapipe.loader.share import Mesh
from tests.oracles import batch as batch_oracle
from tests.oracles import context_attention as attention
from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.medium

S = 24
"""A multiple of two parts for each of up to four ranks."""

ROWS, LAYOUTS = ("contiguous", "zigzag"), ("document_contiguous", "document_zigzag")
PER_TOKEN = ("input_ids", "labels", "position_ids", "segment_ids")
FIELDS = (*PER_TOKEN, "cu_seqlens", "max_seqlen", "sources", "global_target_tokens")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83}, sequence_length=S)


def meshes(layout: Any, size: int, **data: int) -> list[Mesh]:
    data = {"data_rank": 0, "data_size": 1, **data}
    return [Mesh(context_rank=rank, context_size=size, layout=layout, **data) for rank in range(size)]


def parts_of(layout: str, size: int) -> list[list[int]]:
    """The parts of a run that each rank has, as Megatron-LM and TransformerEngine deal them."""
    return [[rank, 2 * size - 1 - rank] if layout == "document_zigzag" and size > 1 else [rank] for rank in range(size)]


def vectors(tokens: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values (n, 8) of a model with positions: functions of a token and its position in its document."""
    angles = np.outer(tokens, np.sqrt([2, 3, 5, 7])) + np.outer(positions, np.sqrt([11, 13, 17, 19]))
    features = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return features, features[:, ::-1] * 1.5, np.roll(features, 3, axis=1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_attention_by_parts_of_documents_is_attention_over_whole_rows(output: Path, size: int, layout: str) -> None:
    whole = Loader(output, global_batch_size=5, fields=FIELDS)
    ranks = [Loader(output, global_batch_size=5, mesh=mesh, fields=FIELDS) for mesh in meshes(layout, size)]
    for step in range(4):
        rows = whole.batch(step)
        expected: dict[int, np.ndarray] = {}
        for tokens, positions, segments in zip(rows["input_ids"], rows["position_ids"], rows["segment_ids"]):
            out = attention.within_documents(*vectors(tokens, positions), segments)
            expected |= {token: out[t] for t, token in enumerate(tokens.tolist()) if segments[t]}
        batches = [rank.batch(step) for rank in ranks]
        flat = [vectors(batch["input_ids"][0], batch["position_ids"][0]) for batch in batches]
        for method in (attention.by_gathered_keys, attention.by_ring):
            seen: dict[int, np.ndarray] = {}
            for batch, out in zip(batches, method(flat, batches[0]["cu_seqlens"], parts_of(layout, size))):
                document = batch["segment_ids"][0] > 0
                seen |= {token: out[t] for t, token in enumerate(batch["input_ids"][0].tolist()) if document[t]}
            assert seen.keys() == expected.keys()
            np.testing.assert_allclose([seen[token] for token in expected], list(expected.values()), rtol=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_hold_every_token_of_the_batch_once_with_its_label_and_position(output: Path, layout: str, size: int) -> None:
    key = Loader(output, global_batch_size=9, fields=("document_keys",)).batch(3)["document_keys"][0].tobytes().hex()
    for data_rank, skipped in ((0, []), (1, []), (0, [key])):
        options: dict[str, Any] = {"global_batch_size": 9, "fields": FIELDS, "skip_documents": skipped}
        whole = Loader(output, rank=data_rank, world_size=2, **options).batch(3)
        parts = [
            Loader(output, mesh=mesh, **options).batch(3) for mesh in meshes(layout, size, data_rank=data_rank, data_size=2)
        ]
        in_rows = np.stack([whole[field].reshape(-1) for field in PER_TOKEN[:3]], axis=1)
        expected = in_rows[whole["segment_ids"].reshape(-1) > 0]
        held = np.concatenate([np.stack([part[field][0] for field in PER_TOKEN[:3]], axis=1) for part in parts])
        segments = np.concatenate([part["segment_ids"][0] for part in parts])
        in_documents = held[segments > 0]  # each token is the number of its place in the snapshot
        np.testing.assert_array_equal(in_documents[np.argsort(in_documents[:, 0])], expected[np.argsort(expected[:, 0])])
        assert (held[segments == 0, :2] == [0, -100]).all()  # padding is the end of text, without a label
        assert len(np.unique(segments[segments > 0])) == sum(len(np.unique(row[row > 0])) for row in whole["segment_ids"])
        for part in parts:
            np.testing.assert_array_equal(part["cu_seqlens"], parts[0]["cu_seqlens"])
            np.testing.assert_array_equal(part["sources"], whole["sources"])
            assert part["cu_seqlens"][-1] == part["input_ids"].shape[1]
            assert part["max_seqlen"] == np.diff(part["cu_seqlens"]).max()
            assert part["global_target_tokens"] == whole["global_target_tokens"]
        own = len(parts_of(layout, size)[0])
        lengths = -(-np.diff(whole["cu_seqlens"]) // (size * own)) * own
        np.testing.assert_array_equal(np.diff(parts[0]["cu_seqlens"]), lengths)


@given(
    rows=st.lists(st.lists(st.integers(1, S), max_size=6).filter(lambda lengths: sum(lengths) <= S), max_size=5),
    size=st.integers(1, 4),
    layout=st.sampled_from(LAYOUTS),
    spare=st.none() | st.integers(0, 30),
)
def test_any_runs_are_split_completely_and_fit_the_fixed_shape(rows: Any, size: int, layout: str, spare: int | None) -> None:
    borders = np.array(batch_oracle.borders(rows, S), np.int32)
    num_runs = None if spare is None else max(1, len(borders) - 1 + spare)
    parts = [slice_documents(borders, mesh, S, num_runs) for mesh in meshes(layout, size)]
    held = np.concatenate([np.delete(part.token_indices, part.filled) for part in parts])
    assert sorted(held.tolist()) == list(range(len(rows) * S))
    for part in parts:
        lengths = np.diff(part.cu_seqlens)
        assert lengths.max(initial=0) <= S // size
        assert part.positions.max(initial=0) < S
        np.testing.assert_array_equal(part.cu_seqlens, parts[0].cu_seqlens)
        if num_runs is not None:
            mesh = meshes(layout, size)[0]
            assert len(part.cu_seqlens) <= num_borders(mesh, S, num_runs)
            most = num_runs * (mesh.num_parts - 1) // mesh.num_parts * mesh.num_parts
            assert part.cu_seqlens[-1] * size == len(rows) * S + most


@pytest.mark.parametrize(("layout", "size"), [("contiguous", 1), *((layout, size) for layout in LAYOUTS for size in (1, 4))])
def test_padded_borders_give_every_batch_the_same_shapes(output: Path, layout: Any, size: int) -> None:
    mesh = meshes(layout, size)[-1]
    free = Loader(output, global_batch_size=5, mesh=mesh, fields=FIELDS)
    room = free.most_runs(40)
    fixed = Loader(output, global_batch_size=5, mesh=mesh, fields=FIELDS, pad_cu_seqlens=room, dtype="int32")
    shapes = set()
    for step in range(40):
        expected, batch = free.batch(step), fixed.batch(step)
        num_tokens, num_known = expected["input_ids"].shape[-1], len(expected["cu_seqlens"])
        borders = batch["cu_seqlens"]
        assert (borders[:num_known].tolist(), borders.dtype) == (expected["cu_seqlens"].tolist(), np.int32)
        assert (np.diff(borders) >= 0).all()
        assert np.diff(borders).max() <= batch["max_seqlen"] == S // size
        assert borders[-1] == batch["input_ids"].size
        if layout == "contiguous":
            assert len(borders) == room + 1
        for field, filler in zip(PER_TOKEN, (0, -100, None, 0)):
            np.testing.assert_array_equal(batch[field][:, :num_tokens], expected[field])
            assert filler is None or (batch[field][:, num_tokens:] == filler).all()
        shapes.add(tuple(np.shape(batch[field]) for field in FIELDS))
    assert len(shapes) == 1


def test_rank_without_rows_has_the_shapes_of_no_documents(output: Path) -> None:
    for layout in LAYOUTS:
        mesh = Mesh(data_rank=0, data_size=3, context_rank=1, context_size=2, layout=layout)
        batch = Loader(output, global_batch_size=2, mesh=mesh, fields=FIELDS).batch(0)
        assert [batch[field].shape for field in PER_TOKEN] == [(1, 0)] * 4
        assert (batch["cu_seqlens"].tolist(), batch["max_seqlen"]) == ([0], 0)
        fixed = Loader(output, global_batch_size=2, mesh=mesh, fields=FIELDS, pad_cu_seqlens=7).batch(0)
        assert fixed["cu_seqlens"][-1] == fixed["input_ids"].size
        assert (fixed["labels"] == -100).all()


@pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")
@pytest.mark.parametrize("world_size", [1, 3])
def test_most_runs_are_those_of_the_richest_of_the_next_batches_of_all_ranks(output: Path, world_size: int) -> None:
    options: dict[str, Any] = {"global_batch_size": 7, "fields": ("cu_seqlens",), "skip": [(3, 5)]}
    ranks = [Loader(output, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    runs = {step: max(len(rank.batch(step)["cu_seqlens"]) - 1 for rank in ranks) for step in (*range(3), *range(5, 40))}
    for rank in ranks:
        assert rank.most_runs(1) == runs[0]
        assert rank.most_runs(6) == max(runs[step] for step in (0, 1, 2, 5, 6, 7))
        rank.seek(4)
        assert rank.most_runs(2) == max(runs[5], runs[6])
        assert (rank.step, rank.most_runs(35)) == (5, max(runs[step] for step in range(5, 40)))


def test_most_runs_of_a_run_with_an_end_are_those_of_all_steps(tmp_path: Path) -> None:
    folder = make_snapshot(tmp_path, {"web": 40}, validation={"web": 11}, sequence_length=S)
    loader = Loader(folder, split="validation", global_batch_size=4, fields=("cu_seqlens",))
    assert loader.most_runs() == max(len(batch["cu_seqlens"]) - 1 for batch in loader)
    with pytest.raises(UserError, match="no end"):
        Loader(folder, global_batch_size=4).most_runs()
    with pytest.raises(UserError, match="num_steps=0"):
        loader.most_runs(0)


def test_more_runs_than_there_is_room_for_are_an_error_that_a_state_survives(output: Path) -> None:
    free = Loader(output, global_batch_size=5, fields=("cu_seqlens",))
    borders = [free.batch(step)["cu_seqlens"].tolist() for step in range(40)]
    room = min(map(len, borders)) - 1
    loader = Loader(output, global_batch_size=5, fields=("cu_seqlens",), pad_cu_seqlens=room)
    first = next(step for step, found in enumerate(borders) if len(found) - 1 > room)
    assert len([next(loader) for _ in range(first)]) == first
    with pytest.raises(UserError, match=f"step {first}: .* has {len(borders[first]) - 1} runs"):
        next(loader)
    assert loader.step == first
    larger = Loader(output, global_batch_size=5, fields=("cu_seqlens",), pad_cu_seqlens=loader.most_runs(1))
    larger.load_state_dict(loader.state_dict())
    assert next(larger)["cu_seqlens"][: len(borders[first])].tolist() == borders[first]


CONTEXT: dict[str, Any] = {"context_rank": 1, "context_size": 2}
RUNS = {"fields": ("cu_seqlens",)}


@pytest.mark.parametrize(
    ("mesh", "options"),
    [
        *(({**CONTEXT, "layout": layout}, {"fields": (field,)}) for layout in ROWS for field in ("cu_seqlens", "max_seqlen")),
        *(({**CONTEXT, "layout": layout}, {"labels": "unshifted"}) for layout in (*ROWS, *LAYOUTS)),
        ({"layout": "document_contiguous"}, {"labels": "unshifted"}),
        ({**CONTEXT, "layout": "document_zigzag", "context_size": 5}, {}),
        ({}, {"pad_cu_seqlens": 64}),
        ({}, {**RUNS, "pad_cu_seqlens": 3}),
        ({}, {**RUNS, "pad_cu_seqlens": True}),
    ],
)
def test_fields_that_a_layout_does_not_have_are_refused(output: Path, mesh: dict[str, Any], options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Loader(output, global_batch_size=4, mesh=Mesh(**{"data_rank": 0, "data_size": 1, **mesh}), **options)
