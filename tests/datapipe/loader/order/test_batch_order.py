"""A run whose mixture, sources, batch size or skips change: what may change, and what then comes.

That each source goes on in its own order over any such history: `tests/conformance/test_loader.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.document_name import document_name
from datapipe.errors import SnapshotError
from datapipe.loader import Loader
from datapipe.loader.order.state import sealed
from datapipe.loader.trace import trace_document, trace_step
from tests.support.loader_rows import assert_joined, assert_no_row_early, resumed, rows_by_source, steps_of
from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

S = 16
SIZES = {"code": 31, "web": 83}
FIELDS = ("input_ids", "labels", "sources", "document_keys", "piece_offsets", "piece_lengths", "step")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), SIZES, weights={"code": 1, "web": 3})


def opened(output: Path, **options: Any) -> Loader:
    return Loader(output, **{"global_batch_size": 5, "fields": FIELDS, "prefetch": 0, **options})


def numbers(batch: dict[str, Any]) -> np.ndarray:
    """The number of each row in its snapshot."""
    return (batch["input_ids"][:, 0] - 1) // S


def test_new_weights_hold_from_their_step_on_and_eras_are_kept(output: Path) -> None:
    before = opened(output)
    list(islice(before, 17))
    after = resumed(before, output, fields=FIELDS, mixture={"code": 3, "web": 1}, migrate=True)
    drawn = Counter(source for batch in islice(after, 40) for source in batch["sources"].tolist())
    assert abs(drawn[0] - 150) <= 3
    again = resumed(after, output, mixture=[(S * 500, {"web": 1}), (None, {"code": 1})], migrate=True)
    lineage = json.loads(again.state_dict()["lineage"])
    assert [era["step"] for era in lineage["mixtures"]] == [0, 17, 57]


def test_other_weights_without_migrate_are_refused_with_what_differs(output: Path) -> None:
    loader = opened(output)
    next(loader)
    with pytest.raises(SnapshotError, match=r"weights \{code: 1, web: 3\} -> \{code: 1, web: 1\}.*migrate=True"):
        resumed(loader, output, mixture={"code": 0.5, "web": 0.5})
    other = resumed(loader, output, mixture={"code": 1, "web": 1}, migrate=True)
    with pytest.raises(SnapshotError):
        resumed(other, output)  # with the first mixture, which the run has left
    assert resumed(other, output, mixture={"code": 0.5, "web": "0.5"}).step == 1


def test_sources_that_come_and_go_continue(tmp_path: Path, output: Path) -> None:
    sizes = {**SIZES, "zeta": 20}
    wider = make_snapshot(tmp_path / "wider", sizes)
    narrower = make_snapshot(tmp_path / "narrower", {"code": 31})
    loaders, rows = [opened(output)], dict[str, list[int]]()
    for folder in (output, wider, narrower, wider):
        if folder != output:
            loaders.append(resumed(loaders[-1], folder, fields=FIELDS, migrate=True))
        for source, found in rows_by_source(islice(loaders[-1], 10)).items():
            rows.setdefault(loaders[-1].sources[source], []).extend(found)
    for source, size in sizes.items():
        assert_no_row_early(rows[source], size)
    with pytest.raises(SnapshotError, match="before step 10, this run drew source 'web' from rows"):
        resumed(loaders[2], narrower).batch(0)
    with pytest.raises(SnapshotError, match="source 'zeta' is new"):
        resumed(loaders[0], wider)


def test_a_source_with_other_rows_is_refused_or_started_over(tmp_path: Path, output: Path) -> None:
    grown = make_snapshot(tmp_path, {"code": 31, "web": 90}, weights={"code": 1, "web": 3})
    loader = opened(output)
    first = rows_by_source(islice(loader, 10))
    with pytest.raises(SnapshotError, match="source 'web' holds other rows"):
        resumed(loader, grown)
    with pytest.raises(SnapshotError, match=r"restart=\['web'\]"):
        resumed(loader, grown, migrate=True)
    later = rows_by_source(islice(resumed(loader, grown, fields=FIELDS, migrate=True, restart=["web"]), 24))
    assert_no_row_early(first[0] + later[0], 31)
    assert later[1] == rows_by_source(islice(opened(grown), 60))[1][: len(later[1])]


def test_skipped_steps_are_left_out_and_all_others_are_unchanged(output: Path) -> None:
    expected = {batch["step"]: batch["input_ids"] for batch in islice(opened(output), 50)}
    early = opened(output)
    seen = steps_of(early, 12)
    loader = resumed(early, output, fields=FIELDS, skip=[(20, 25), (8, 14), (24, 27)])
    for batch in islice(loader, 20):
        seen.append(batch["step"])
        np.testing.assert_array_equal(batch["input_ids"], expected[batch["step"]])
    assert seen == [*range(12), *range(14, 20), *range(27, 41)][:32]  # steps handed out before do not change
    later = resumed(loader, output, fields=FIELDS)  # the state holds the skips
    later.seek(18)
    assert steps_of(later, 4) == [18, 19, 27, 28]
    assert json.loads(later.state_dict()["lineage"])["skip"]["steps"] == [[12, 14], [20, 27]]


@pytest.mark.medium
@pytest.mark.parametrize("world_size", [1, 3])
def test_skipped_shards_are_replaced_by_rows_of_their_source(output: Path, world_size: int) -> None:
    plain = opened(output, global_batch_size=6)
    paths = [shard.path for shard in plain.snapshot.shards if shard.source == "web"][2:5]
    gone = range(31 + 2 * 7, 31 + 5 * 7)  # numbers of their rows
    options: dict[str, Any] = {"global_batch_size": 6, "skip_shards": paths, "world_size": world_size}
    ranks = [opened(output, rank=rank, **options) for rank in range(world_size)]
    for step in range(60):
        expected, parts = plain.batch(step), [rank.batch(step) for rank in ranks]
        rows, kept = np.concatenate([numbers(part) for part in parts]), ~np.isin(numbers(expected), gone)
        assert rows[kept].tolist() == numbers(expected)[kept].tolist()
        assert not np.isin(rows, gone).any()
        assert_joined(parts, expected, ["sources"])


def test_skipped_documents_are_padding_from_the_step_they_are_skipped_at(output: Path) -> None:
    plain = opened(output, global_batch_size=6)
    plain.seek(3)
    traced = trace_step(output, 5, global_batch_size=6)[4]
    seen = trace_document(output, traced.key, global_batch_size=6, num_epochs=4)
    without = resumed(plain, output, fields=FIELDS, skip_documents=[traced.key])
    by_name = resumed(plain, output, skip_documents=[document_name(traced.source, traced.path, traced.position)])
    assert by_name.state_dict() == without.state_dict()
    left = trace_document(output, traced.key, state=without.state_dict(), num_epochs=4)
    assert left == [one for one in seen if one.step < 3]
    assert {one.step for one in seen} - {one.step for one in left}
    for step in {one.step for one in seen} | {0, 1}:
        before, after = plain.batch(step), without.batch(step)
        mask = np.zeros((6, S), bool)
        for one in seen:
            if one.step == step >= 3:
                pieces = slice(*before["piece_offsets"][one.row : one.row + 2])
                at = int(before["piece_lengths"][pieces][: one.piece].sum())
                mask[one.row, at : at + one.num_tokens] = True
        np.testing.assert_array_equal(after["input_ids"], np.where(mask, 0, before["input_ids"]))
        np.testing.assert_array_equal(after["labels"], np.where(mask, -100, before["labels"]))


def test_another_mixture_from_before_the_last_change_continues_from_the_counts_of_that_step(output: Path) -> None:
    loader = opened(output)
    document = loader.batch(30)["document_keys"][0].tobytes().hex()
    options: dict[str, Any] = {"migrate": True, "mixture": {"code": 9, "web": 1}}
    loader.seek(10)
    expected = resumed(loader, output, **options)
    loader.seek(50)
    changed = resumed(loader, output, mixture={"code": 1, "web": 9}, migrate=True, skip_documents=[document])
    changed.seek(10)
    found = resumed(changed, output, **options, skip_documents=[document])
    lineage, wanted = (json.loads(one.state_dict()["lineage"]) for one in (found, expected))
    assert lineage["mixtures"] == wanted["mixtures"]
    assert lineage["skip"]["documents"] == {document: 10}  # and not from step 50 on


def test_states_that_contradict_their_lineage_are_refused(output: Path) -> None:
    loader = opened(output)
    loader.seek(10)
    other = opened(output, global_batch_size=6)
    state = resumed(loader, output, global_batch_size=6).state_dict()
    lineage = json.loads(state["lineage"])
    assert lineage["batches"] == [[0, 0, 5], [10, 50, 6]]
    for wrong in ([[0, 0, 5], [10, 49, 6]], [[0, 0, 5], [10, 50, 7]]):
        with pytest.raises(SnapshotError):
            other.load_state_dict(sealed({**state, "lineage": json.dumps({**lineage, "batches": wrong})}))


def test_softmax_of_any_floats_is_a_mixture_and_its_state_is_the_same_everywhere(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(5)]
    folder = make_snapshot(tmp_path, dict.fromkeys(names, 20))
    powers = np.exp(np.array([0.3, -1.2, 2.5, 0.01, 1.7]))
    shares = dict(zip(names, powers / powers.sum()))
    loader = opened(folder, mixture=shares)
    drawn = Counter(source for batch in islice(loader, 400) for source in batch["sources"].tolist())
    assert all(abs(drawn[number] - 2000 * shares[name]) <= 3 for number, name in enumerate(names))
    as_floats = {name: float(share) for name, share in reversed(shares.items())}
    assert resumed(loader, folder, mixture=as_floats).state_dict() == loader.state_dict()


def test_share_too_small_to_count_is_told_and_not_lost(output: Path) -> None:
    with pytest.warns(UserWarning, match="changes that of 'code' from 1e-30 to 9.09e-13"):
        loader = opened(output, mixture={"code": 1e-30, "web": 1})
    lineage = json.loads(loader.state_dict()["lineage"])
    assert (lineage["sources"], lineage["mixtures"][0]["phases"]) == (["code", "web"], [[None, [1, 2**40 - 1]]])


def test_unshuffled_rows_come_in_the_order_of_the_shards_and_sources_by_their_quota(output: Path) -> None:
    loader = opened(output, shuffle=False)
    batches = list(islice(loader, 70))
    for source, (rows, first) in enumerate(zip((rows_by_source(batches)[at] for at in range(2)), (0, 31))):
        size = SIZES[loader.sources[source]]
        assert [(token - 1) // S - first for token in rows] == [number % size for number in range(len(rows))]
    shuffled = opened(output)
    for batch, other in zip(batches, shuffled):
        np.testing.assert_array_equal(batch["sources"], other["sources"])
    state = loader.state_dict()
    assert state["order"] == "stored" and "order" not in shuffled.state_dict()
    for one, other in ((shuffled, loader), (loader, shuffled)):
        with pytest.raises(SnapshotError, match="another order"):
            one.load_state_dict(other.state_dict())
