"""The JSON of a lineage: equal after a round trip, small, and refused where it was tampered with."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import SnapshotError
from datapipe.loader import Loader
from datapipe.loader.order.lineage import Lineage
from datapipe.loader.order.saved_lineage import lineage_json, read_lineage
from datapipe.loader.order.state import sealed
from datapipe.shards.manifest import SNAPSHOT, Phase, Snapshot, SourceEntry, TokenizerEntry
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage import Root
from tests.support import loader_rows


def publish(folder: Path, rows: dict[str, int], *, edition: dict[str, int] | None = None, weights: Any = None) -> Path:
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
    chosen = weights or dict.fromkeys(rows, 1)
    snapshot = Snapshot(
        name="only-a-manifest",
        seed=5,
        sequence_length=16,
        shard_format="arrow",
        tokenizer=TokenizerEntry(path="tokenizer.json", fingerprint="xxh3_128:t", vocab_size=1000, eos_id=0),
        sources={name: SourceEntry(weight=chosen[name], max_epochs=4.5 if name == "capped" else None) for name in rows},
        phases=(Phase(until_tokens=None, weights=chosen),),
        exhausted="redistribute",
        shards=tuple(shards),
    )
    Root(str(folder)).write_atomic(SNAPSHOT, snapshot.sealed().to_json())
    return folder


def through_json(lineage: Lineage) -> Lineage:
    return read_lineage(lineage_json(lineage), 3)


resumed = partial(loader_rows.resumed, migrate=True)


NAMES = ["a", "b", "c", "d", "capped", "é 世"]


def random_history(folder: Path, draw: random.Random, length: int) -> Iterator[Loader]:
    """Loaders of one run, each resumed from the one before it: at later and at earlier steps, with other sources, rows,
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
        loader = resumed(loader, output, mixture=mixture, restart=there, global_batch_size=size, skip=skip)
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
    other = resumed(loader, second, restart=["a"])
    assert dict(other.batch_order.lineage.mixtures[1].num_drawn) == {"b": 20}
    back = resumed(other, first)  # at the same step: of `a`, no sample was drawn since
    assert dict(back.batch_order.lineage.mixtures[1].num_drawn) == {"b": 20}
    assert json.loads(back.state_dict()["lineage"])["mixtures"][1]["places"] == {"a": 0}
    assert through_json(back.batch_order.lineage) == back.batch_order.lineage


@pytest.mark.medium
def test_state_of_many_sources_takes_about_40_bytes_a_source_and_a_migration_what_it_changes(tmp_path: Path) -> None:
    names = [f"source-{number:03d}" for number in range(500)]
    output = publish(tmp_path, {name: 40_000 + number for number, name in enumerate(names)})
    loader = Loader(output, global_batch_size=64, prefetch=0)
    sizes = [len(json.dumps(loader.state_dict()))]
    assert sizes[0] <= 2048 + 40 * len(names)
    weights = dict.fromkeys(names, 1)
    for number in range(10):
        loader.seek(loader.step + 1000)
        weights[names[7 * number]] = 5
        loader = resumed(loader, output, mixture=weights)
        sizes.append(len(json.dumps(loader.state_dict())))
    assert max(after - before for before, after in zip(sizes, sizes[1:])) <= 150
    assert len(loader.batch_order.lineage.mixtures) == 11


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Loader]:
    """The state of a run of six sources that changed once, whose mixture has all keys that a mixture can have; and a loader
    that takes it."""
    folder, rows = tmp_path_factory.mktemp("changed"), dict.fromkeys(NAMES, 40)
    loader = Loader(publish(folder / "1", rows), global_batch_size=5, prefetch=0, skip=[(3, 4)])
    loader.seek(10)
    output = publish(folder / "2", {**rows, "e": 9}, edition={"a": 1})
    options: dict[str, Any] = {"global_batch_size": 6, "mixture": [(800, {"a": 1, "b": 2}), (None, {"c": 1})]}
    state = resumed(loader, output, restart=["a"], **options).state_dict()
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
    ("sources", ["a"] * 7),
    ("mixtures.0.sizes", [1, 2]),
    ("mixtures.1.phases.0.1", {"web": 3}),
    ("mixtures.0", {"step": 0, "sample": 0}),
    ("mixtures.1.places", {"a": 10**6}),
    ("mixtures.0.phases.0.1", [0] * 7),
    ("mixtures.1.phases.1.0", 900),
    ("batches.1.1", 49),
]


def test_lineage_that_was_tampered_with_is_refused(changed: tuple[dict[str, Any], Loader]) -> None:
    state, loader = changed
    taken = []
    for where, value in TAMPERED:
        with suppress(SnapshotError):
            loader.load_state_dict(replaced(state, where, value))
            taken.append((where, value))
    for lineage in ("", "{}", "[]", '{"batches": [], "mixtures": [], "skip": {}}', "nonsense"):
        with suppress(SnapshotError):
            loader.load_state_dict(sealed({**state, "lineage": lineage}))
            taken.append((lineage, None))
    assert not taken
    assert loader.state_dict() == state


def paths(content: Any, prefix: str = "") -> Iterator[str]:
    for name, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield f"{prefix}{name}"
        if isinstance(value, (dict, list)):
            yield from paths(value, f"{prefix}{name}.")


@pytest.mark.medium
def test_lineage_with_any_value_replaced_is_read_or_refused_as_a_state(changed: tuple[dict[str, Any], Loader]) -> None:
    state, loader = changed
    for where in paths(json.loads(state["lineage"])):
        for value in (*NONSENSE, 0, 7, 10**6, 1 << 61, {}, {"b": 3}):
            with suppress(SnapshotError):
                loader.load_state_dict(replaced(state, where, value))
    loader.load_state_dict(state)
