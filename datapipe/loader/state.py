"""What a checkpoint keeps of a loader: where it stands, of which data and in which order, and how it came there.

    {"version": 2, "step": 1200, "global_batch_size": 32, "split": "train", "seed": 17, "window_shards": 8,
     "tokenizer": …, "snapshot": …, "lineage": "{…}"}

The step counts batches handed out, never those prefetched; skipped ones are counted as if they had been. Rank and world size
are no part of it, so one rank's state serves all ranks of any later world. The record is flat, and the lineage (`lineage.py`)
one string of JSON in it, since torch.distributed.checkpoint restores lists of records item by item into what is there already,
and would lose some of them without a word. Applied to other data it is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from datapipe.errors import SnapshotError
from datapipe.loader.order.lineage import Lineage, read_lineage
from datapipe.loader.order.steps import MOST_STEPS, Steps

VERSION = 2

_ADVICE = {
    "split": "Open the loader with that split.",
    "seed": "Open the loader with that seed.",
    "window_shards": "Open the loader with that `window`: it is part of the order.",
    "tokenizer": "Tokens of two tokenizers cannot be mixed; open the output that this state was saved with.",
    "sequence_length": "Rows of another length are other rows; open the output that this state was saved with.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderState:
    """The position of a loader. JSON holds it as it is.

    Attributes:
        version: of this record.
        step: the next global batch.
        global_batch_size: its rows.
        split: train or validation.
        seed: of the permutations.
        window_shards: shards of a source that are mixed at a time.
        sequence_length: tokens of a row.
        tokenizer, snapshot: fingerprints.
        lineage: as JSON.
    """

    version: int = VERSION
    step: int
    global_batch_size: int
    split: str
    seed: int
    window_shards: int
    sequence_length: int
    tokenizer: str
    snapshot: str
    lineage: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_state(state: Mapping[str, Any]) -> tuple[LoaderState, Lineage]:
    """The record in `state`, and its lineage. Raises SnapshotError for one of another version or shape."""
    if not isinstance(state, Mapping):
        raise SnapshotError(f"not a loader state: {type(state).__name__}. Give what `state_dict()` returned, unchanged.")
    if state.get("version") != VERSION:
        raise SnapshotError(
            f"loader state of version {state.get('version')!r}; this datapipe reads version {VERSION}. "
            f"Resume with the release that wrote it, or start without a state."
        )
    kinds = {field.name: int if field.type == "int" else str for field in fields(LoaderState)}
    if set(state) != set(kinds):
        differing = ", ".join(sorted(set(kinds) ^ set(state)))
        raise SnapshotError(
            f"not a loader state: {differing} missing or unknown. Give what `state_dict()` returned, unchanged."
        )
    wrong = [name for name, kind in kinds.items() if type(state[name]) is not kind]
    if wrong:
        shown = ", ".join(f"{name} is {state[name]!r}" for name in wrong)
        raise SnapshotError(f"not a loader state: {shown}. Give what `state_dict()` returned, unchanged.")
    found = LoaderState(**state)
    if not 0 <= found.step < MOST_STEPS or found.global_batch_size < 1:
        raise SnapshotError(
            f"not a loader state: step {found.step}, global batch size {found.global_batch_size}. "
            f"Give what `state_dict()` returned, unchanged."
        )
    try:
        lineage = read_lineage(found.lineage)
        _check_agrees(found, lineage)
    except ValueError as error:
        raise SnapshotError(
            f"not a loader state: its lineage cannot be read ({error}). Give what `state_dict()` returned, unchanged."
        ) from error
    return found, lineage


def _check_agrees(state: LoaderState, lineage: Lineage) -> None:
    """Raises ValueError where a record and its lineage tell of different runs."""
    if lineage.global_batch_size != state.global_batch_size:
        raise ValueError(f"batches of {lineage.global_batch_size} rows, and the state says {state.global_batch_size}")
    for era, later in zip(lineage.batches, lineage.batches[1:]):
        due = era.sample + (later.step - era.step) * era.size
        if later.sample > due or (later.sample < due and state.split == "train"):  # the last step of a validation is short
            raise ValueError(f"batches of {era.size} rows from step {era.step} on do not lead to sample {later.sample}")
    if Steps(lineage.batches, (), None, drop_last=True).samples(state.step)[1] >= 1 << 62:
        raise ValueError(f"step {state.step} begins beyond sample 2^62")


def check_same_order(saved: LoaderState, here: LoaderState) -> None:
    """Raises SnapshotError where two loaders' orders have nothing to do with each other."""
    for name, advice in _ADVICE.items():
        found, expected = getattr(saved, name), getattr(here, name)
        if found != expected:
            shown = name.replace("_", " ")
            raise SnapshotError(f"the loader state is of another {shown}: {found}, and this loader's is {expected}. {advice}")
