"""The sequences of a run: each source in its own order, until its end, while mixture, sources, batch size or skips change.

That each source goes on in its own order over any such history: `tests/conformance/test_loader.py`. The JSON of its lineage is
equal after a round trip, small, and refused where it was tampered with.
"""

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.document_name import document_name
from datapipe.errors import SnapshotError
from datapipe.loader import Loader
from datapipe.loader.order.batch_order import begin_run
from datapipe.loader.order.layout import Split
from datapipe.loader.order.lineage import Lineage, Skips
from datapipe.loader.order.recipe import recipe_of
from datapipe.loader.order.sample_order import Inventory, SampleOrder
from datapipe.loader.order.saved_lineage import lineage_json, read_lineage
from datapipe.loader.order.state import sealed
from datapipe.loader.trace import trace_document, trace_step
from datapipe.shards.manifest import Phase, Snapshot, TokenizerEntry, read_snapshot
from datapipe.shards.shard_table import ShardEntry
from datapipe.shards.source_entry import SourceEntry, Strata
from datapipe.storage.root import Root
from tests.support.loader_rows import assert_joined, assert_no_row_early, resumed, rows_by_source
from tests.support.snapshots import make_snapshot, write_manifest

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


def test_other_weights_without_migrate_are_refused_with_what_differs(output: Path) -> None:
    loader = opened(output)
    next(loader)
    with pytest.raises(SnapshotError, match=r"\{code: 1, web: 3\} -> \{code: 1, web: 1\}.*migrate=True"):
        resumed(loader, output, mixture={"code": 0.5, "web": 0.5})
    other = resumed(loader, output, mixture={"code": 1, "web": 1}, migrate=True)
    with pytest.raises(SnapshotError):
        resumed(other, output)  # with the first mixture, which the run has left
    assert resumed(other, output, mixture={"code": 0.5, "web": "0.5"}).step == 1


@pytest.mark.medium
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


def test_share_too_small_to_count_is_reported_and_not_lost(output: Path) -> None:
    with pytest.warns(UserWarning, match="changes that of 'code' from 1e-30 to 9.09e-13"):
        loader = opened(output, mixture={"code": 1e-30, "web": 1})
    lineage = json.loads(loader.state_dict()["lineage"])
    assert (lineage["sources"], lineage["mixtures"][0]["phases"]) == (["code", "web"], [[None, [1, 2**40 - 1]]])


def test_unshuffled_rows_come_in_the_order_of_the_shards_and_sources_by_their_quota(output: Path) -> None:
    loader, shuffled = opened(output, shuffle=False), opened(output)
    batches = list(islice(loader, 70))
    for source, first in enumerate((0, 31)):
        rows, size = rows_by_source(batches)[source], SIZES[loader.sources[source]]
        assert [(token - 1) // S - first for token in rows] == [number % size for number in range(len(rows))]
    for batch, other in zip(batches, shuffled):
        np.testing.assert_array_equal(batch["sources"], other["sources"])
    for one, other in ((shuffled, loader), (loader, shuffled)):
        with pytest.raises(SnapshotError, match="another order"):
            one.load_state_dict(other.state_dict())


def open_order(folder: Path, split: Split = "train", seed: int = 17) -> SampleOrder:
    snapshot = read_snapshot(Root(str(folder)))
    return begin_run(Inventory(snapshot, split, seed, 0), recipe_of(snapshot), 1, Skips()).sample_order


def test_order_new_source_disturbs_no_permutation_and_another_seed_does(tmp_path: Path) -> None:
    alone = make_snapshot(tmp_path / "a", {"web": 40})
    joined = open_order(make_snapshot(tmp_path / "b", {"code": 20, "web": 40})).addresses_of(np.arange(80))
    expected = open_order(alone).addresses_of(np.arange(40)).tolist()
    assert (joined[joined >= 20] - 20).tolist() == expected
    assert open_order(alone, seed=1).addresses_of(np.arange(40)).tolist() != expected


def test_order_of_nothing_is_refused_unless_nothing_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="'empty'"):
        open_order(make_snapshot(tmp_path / "a", {"empty": 0, "web": 5}))
    folder = make_snapshot(tmp_path / "b", {"empty": 0, "web": 5}, weights={"empty": 0, "web": 1})
    assert sorted(open_order(folder).addresses_of(np.arange(5)).tolist()) == list(range(5))
    with pytest.raises(SnapshotError, match="validation"):
        open_order(folder, "validation")
    order = open_order(make_snapshot(tmp_path / "c", {"web": 5}, validation={"web": 9}), "validation")
    assert (order.num_samples, order.addresses_of(np.arange(9)).tolist()) == (9, list(range(9)))
    assert order.samples_of(4, num_epochs=3) == [(0, 4)]


@pytest.mark.parametrize(("stratum", "repeats", "words"), [(None, (1, 1), "00001"), (2, (1, 1), "00001"), (0, (0, 3), "web")])
def test_strata_without_their_shards_or_without_any_row_are_refused(
    tmp_path: Path, stratum: int | None, repeats: tuple[int, int], words: str
) -> None:
    root = Root(str(make_snapshot(tmp_path, {"web": 20})))
    snapshot = read_snapshot(root)
    strata = Strata(column="score", bounds=(1.0,), repeats=repeats)
    shards = [shard.model_copy(update={"stratum": 0}) for shard in snapshot.shards]
    shards[1] = shards[1].model_copy(update={"stratum": stratum})
    sources = {"web": snapshot.sources["web"].model_copy(update={"strata": strata})}
    changed = snapshot.model_copy(update={"shards": tuple(shards), "sources": sources})
    with pytest.raises(SnapshotError, match=words):
        begin_run(Inventory(changed, "train", 17, 0), recipe_of(changed), 1, Skips())


def publish(folder: Path, rows: dict[str, int], *, edition: dict[str, int] | None = None) -> Path:
    """A manifest without shards: the order of a run follows from it alone. Another edition of a source has other rows."""
    shards = [
        ShardEntry(
            path=f"shards/{name}/part-{number:05d}-00000.arrow",
            source=name,
            split="train",
            sequences=count,
            tokens=count,
            documents=count,
            bytes=count,
            checksum=f"xxh3_128:{name}-{number}-{(edition or {}).get(name, 0)}",
        )
        for name, count in rows.items()
        for number in range(3)
    ]
    snapshot = Snapshot(
        name="only-a-manifest",
        seed=5,
        sequence_length=16,
        shard_format="arrow",
        tokenizer=TokenizerEntry(path="tokenizer.json", fingerprint="xxh3_128:t", vocab_size=1000, eos_id=0),
        sources={name: SourceEntry(weight=1, max_epochs=4.5 if name == "capped" else None) for name in rows},
        phases=(Phase(until_tokens=None, weights=dict.fromkeys(rows, 1)),),
        exhausted="redistribute",
        shards=tuple(shards),
    )
    write_manifest(Root(str(folder)), snapshot.sealed())
    return folder


NAMES = ["a", "b", "c", "d", "capped", "é 世"]


def migrated(loader: Loader, output: Path, **options: Any) -> Loader:
    return resumed(loader, output, migrate=True, **options)


def through_json(lineage: Lineage) -> Lineage:
    return read_lineage(lineage_json(lineage))


def random_history(folder: Path, draw: random.Random, length: int) -> Iterator[Loader]:
    """Loaders of one run, each migrated from the one before it: at later and at earlier steps, with other sources, rows,
    weights, phases, batch sizes and skips."""
    rows = {name: draw.randrange(5, 60) for name in NAMES}
    loader = Loader(publish(folder / "0", rows), global_batch_size=4, prefetch=0)
    yield loader
    editions = dict.fromkeys(NAMES, 0)
    for number in range(1, length):
        loader.seek(draw.choice([0, loader.step, loader.step + draw.randrange(40), draw.randrange(80)]))
        there = draw.sample(NAMES, draw.randrange(2, len(NAMES) + 1))
        renewed = [name for name in there if draw.random() < 0.2]
        editions.update({name: draw.randrange(3) for name in renewed})
        output = publish(folder / str(number), {name: rows[name] for name in there}, edition=editions)
        drawn = [{name: draw.randrange(1, 9) for name in draw.sample(there, draw.randrange(1, len(there) + 1))} for _ in "ab"]
        mixture = drawn[0] if draw.random() < 0.6 else [(draw.randrange(16, 4000), drawn[0]), (None, drawn[1])]
        size, skip = draw.choice([4, 4, 6]), [(start := draw.randrange(90), start + 2)]
        loader = migrated(loader, output, mixture=mixture, restart=there, global_batch_size=size, skip=skip)
        yield loader


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(10))
def test_lineage_of_a_random_history_is_equal_after_a_round_trip(tmp_path: Path, seed: int) -> None:
    for loader in random_history(tmp_path, random.Random(seed), 9):
        lineage = loader.batch_order.lineage
        assert asdict(through_json(lineage)) == asdict(lineage)


def test_lineage_of_a_source_that_started_over_and_came_back_keeps_its_count(tmp_path: Path) -> None:
    rows = {"a": 50, "b": 50}
    first, second = publish(tmp_path / "1", rows), publish(tmp_path / "2", rows, edition={"a": 1})
    loader = Loader(first, global_batch_size=4, prefetch=0)
    loader.seek(10)
    other = migrated(loader, second, restart=["a"])
    back = migrated(other, first)  # at the same step: of `a`, no sample was drawn since
    for each in (other, back):
        assert dict(each.batch_order.lineage.mixtures[1].num_drawn) == {"b": 20}
    assert json.loads(back.state_dict()["lineage"])["mixtures"][1]["places"] == {"a": 0}
    assert through_json(back.batch_order.lineage) == back.batch_order.lineage


@pytest.mark.slow
def test_state_of_many_sources_takes_about_40_bytes_a_source_and_a_migration_what_it_changes(tmp_path: Path) -> None:
    names = [f"source-{number:03d}" for number in range(500)]
    output = publish(tmp_path, {name: 40_000 + number for number, name in enumerate(names)})
    loader = Loader(output, global_batch_size=64, prefetch=0)
    sizes = [len(json.dumps(loader.state_dict()))]
    assert sizes[0] <= 2048 + 40 * len(names)
    weights = dict.fromkeys(names, 1)
    for number in range(6):
        loader.seek(loader.step + 1000)
        weights[names[7 * number]] = 5
        loader = migrated(loader, output, mixture=weights)
        sizes.append(len(json.dumps(loader.state_dict())))
    assert max(after - before for before, after in zip(sizes, sizes[1:])) <= 150
    assert len(loader.batch_order.lineage.mixtures) == 7


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Loader]:
    """The state of a run of six sources that changed once, whose mixture has all keys that a mixture can have; and a loader
    that takes it."""
    folder, rows = tmp_path_factory.mktemp("changed"), dict.fromkeys(NAMES, 40)
    loader = Loader(publish(folder / "1", rows), global_batch_size=5, prefetch=0, skip=[(3, 4)])
    loader.seek(10)
    output = publish(folder / "2", {**rows, "e": 9}, edition={"a": 1})
    options: dict[str, Any] = {"global_batch_size": 6, "mixture": [(800, {"a": 1, "b": 2}), (None, {"c": 1})]}
    state = migrated(loader, output, restart=["a"], **options).state_dict()
    other = Loader(output, prefetch=0, **options)
    other.load_state_dict(state)
    return state, other


NONSENSE = (None, True, -1, 1.5, float("nan"), 1 << 63, "x", [], [[]], {"a": -1}, {"a": "x"}, {"unknown": 1}, [1] * 6, [1] * 8)
WHERE = (
    "sequence_length", "sources", "sources.0", "batches", "batches.1", "batches.0.0", "batches.1.0", "batches.1.1",
    "batches.1.2", "mixtures", "mixtures.1", "mixtures.0.sample", "mixtures.1.step", "mixtures.1.exhausted",
    "mixtures.0.phases", "mixtures.0.phases.0", "mixtures.0.phases.0.1", "mixtures.1.phases.0.1.0", "mixtures.0.data",
    "mixtures.0.data.2", "mixtures.0.sizes", "mixtures.1.places", "skip", "skip.steps", "skip.steps.0.1", "skip.documents",
    "skip.shards",
)  # fmt: skip
VALID: dict[str, list[Any]] = {"mixtures.0.data.2": [None], "skip.steps": [[]], "skip.shards": [{"unknown": 1}]}
"""What is accepted."""


def replaced(state: dict[str, Any], where: str, value: object) -> dict[str, Any]:
    """The state with another value at a place of its lineage."""
    content = json.loads(state["lineage"])
    *parents, last = [int(name) if name.isdigit() else name for name in where.split(".")]
    inner: Any = content
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return sealed({**state, "lineage": json.dumps(content)})


TAMPERED: list[tuple[str, Any]] = [
    *((where, value) for where in WHERE for value in NONSENSE if value not in VALID.get(where, [])),
    *(("sources", ["a"] * 7), ("mixtures.0.sizes", [1, 2]), ("mixtures.1.phases.0.1", {"web": 3})),
    *(("mixtures.0", {"step": 0, "sample": 0}), ("mixtures.1.places", {"a": 10**6}), ("mixtures.0.phases.0.1", [0] * 7)),
    *(("mixtures.1.phases.1.0", 900), ("batches.1.1", 49)),
]


def test_lineage_that_was_tampered_with_is_refused(changed: tuple[dict[str, Any], Loader]) -> None:
    state, loader = changed
    texts = ("", "{}", "[]", '{"batches": [], "mixtures": [], "skip": {}}', "nonsense")
    states = [*(replaced(state, where, value) for where, value in TAMPERED)]
    taken = []
    for each in [*states, *(sealed({**state, "lineage": text}) for text in texts)]:
        with suppress(SnapshotError):
            loader.load_state_dict(each)
            taken.append(each["lineage"])
    assert not taken
    assert loader.state_dict() == state


def places_in(content: Any, prefix: str = "") -> Iterator[str]:
    for name, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield f"{prefix}{name}"
        if isinstance(value, (dict, list)):
            yield from places_in(value, f"{prefix}{name}.")


@pytest.mark.medium
def test_lineage_with_any_value_replaced_is_read_or_refused_as_a_state(changed: tuple[dict[str, Any], Loader]) -> None:
    state, loader = changed
    for where in places_in(json.loads(state["lineage"])):
        for value in (*NONSENSE, 0, 7, 10**6, 1 << 61, {}, {"b": 3}):
            with suppress(SnapshotError):
                loader.load_state_dict(replaced(state, where, value))
    loader.load_state_dict(state)
