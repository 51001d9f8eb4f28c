"""The state of a loader in a checkpoint: the next step, the data, the order, and the history of the run.

    {"version": 4, "step": 1200, "global_batch_size": 32, "split": "train", "seed": 17,
     "window_shards": 8, "tokenizer": …, "snapshot": …, "lineage": "{…}", "checksum": "xxh3_128:…"}

The step counts the batches handed out; skipped steps count as if they had been. The record is flat, and the lineage is
one JSON string in it (`order/saved_lineage.py`), since torch.distributed.checkpoint restores lists item by item into the
existing ones and would silently lose items. The checksum covers all other fields, because a bit that flips in the step
gives another step.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from datapipe.errors import SnapshotError
from datapipe.loader.order.batch_order import BatchOrder, RunSteps, check_same_rows
from datapipe.loader.order.layout import Split
from datapipe.loader.order.lineage import Lineage
from datapipe.loader.order.sample_order import Inventory, num_samples_of
from datapipe.loader.order.saved_lineage import read_lineage
from datapipe.loader.order.steps import MOST_STEPS, Steps
from datapipe.records.checksum import bytes_checksum
from datapipe.shards.manifest import Snapshot

VERSION = 4

_ADVICE = {
    "tokenizer": "Open the output that this state was saved with: tokens of two tokenizers cannot be mixed.",
    "sequence_length": "Open the loader with that `sequence_length`: rows of another length are other rows.",
    "split": "Open the loader with that split.",
    "seed": "Open the loader with that seed.",
    "window_shards": "Open the loader with that `window`: it is part of the order.",
    "order": "Open the loader with that `shuffle`: False for the stored order, True for the shuffled one.",
}
"""The data first: with other tokens, no argument of the loader helps."""


class LoaderState(BaseModel, frozen=True, strict=True, extra="forbid"):
    """The state of a loader, ready for JSON."""

    version: int = VERSION
    step: Annotated[int, Field(ge=0, lt=MOST_STEPS)]
    global_batch_size: Annotated[int, Field(ge=1)]  # rows of the next step over all ranks
    split: str
    seed: int
    window_shards: int
    sequence_length: int
    tokenizer: str
    snapshot: str
    lineage: str
    order: str = "shuffled"  # "shuffled"; or "stored", for the rows of each source in the order of its shards

    def as_dict(self) -> dict[str, Any]:
        """The record, sealed; `order` is in it where it is not the usual one."""
        return sealed({name: value for name, value in self if (name, value) != ("order", "shuffled")})


def state_at(step: int, run: RunSteps) -> LoaderState:
    key, snapshot = run.key, run.key.snapshot
    return LoaderState(
        step=step,
        global_batch_size=run.lineage.global_batch_size,
        split=key.split,
        seed=key.seed,
        window_shards=key.window_shards,
        sequence_length=snapshot.sequence_length,
        tokenizer=snapshot.tokenizer.fingerprint,
        snapshot=snapshot.fingerprint,
        lineage=run.lineage_json,
        order="shuffled" if key.shuffle else "stored",
    )


def checked_mapping(state: object) -> Mapping[str, Any]:
    """`state`, if it is a dict with a version. Raises SnapshotError for anything else, such as a whole checkpoint."""
    if not isinstance(state, Mapping):
        raise _no_state(type(state).__name__)
    if "version" not in state:
        raise _no_state(f"a dict of {', '.join(map(str, list(state)[:9])) or 'nothing'}")
    return state


def read_state(state: Mapping[str, Any]) -> tuple[LoaderState, Lineage]:
    """The record in `state` and its lineage. Raises SnapshotError for another version or another shape."""
    state = checked_mapping(state)
    if state["version"] != VERSION:
        raise SnapshotError(
            f"the loader state has version {state['version']!r}; this datapipe reads version {VERSION}. "
            f"Resume with the release that wrote it, or start without a state."
        )
    try:
        saved = LoaderState.model_validate(verified(state))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise _no_state(f"{first['loc'][0]}: {first['msg']}") from None
    try:
        lineage = read_lineage(saved.lineage)
        if lineage.global_batch_size != saved.global_batch_size:
            raise ValueError(f"its batches have {lineage.global_batch_size} rows, and the state's {saved.global_batch_size}")
        check_batches(lineage, saved.split)
        if Steps(lineage.batches, (), None, drop_last=True).samples(saved.step)[1] >= 1 << 62:
            raise ValueError(f"step {saved.step} begins beyond sample 2^62")
    except ValueError as error:
        raise _no_state(f"its lineage cannot be read ({error})") from error
    return saved, lineage


def _no_state(what: str) -> SnapshotError:
    return SnapshotError(f"not a loader state: {what}. Give what `state_dict()` returned, unchanged.")


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with the checksum of all its other fields."""
    others = {name: value for name, value in record.items() if name != "checksum"}
    return {**others, "checksum": _checksum(others)}


def verified(state: Mapping[str, Any]) -> dict[str, Any]:
    """A record without its checksum. Raises SnapshotError where a field is not what it was when the record was sealed."""
    record = {name: value for name, value in state.items() if name != "checksum"}
    if state.get("checksum") != _checksum(record):
        raise SnapshotError(
            f"the loader state is damaged, or was edited: its checksum should be {_checksum(record)}, and is "
            f"{state.get('checksum')!r}. Give what `state_dict()` returned, unchanged. "
            f"`loader.seek(step)` moves to another step."
        )
    return record


def _checksum(record: Mapping[str, Any]) -> str:
    named = {str(name): value for name, value in record.items()}
    return bytes_checksum(json.dumps(named, sort_keys=True, default=repr).encode())


def check_batches(lineage: Lineage, split: str) -> None:
    """Raises ValueError for batches of one size that do not lead to those of the next."""
    for era, later in zip(lineage.batches, lineage.batches[1:]):
        due, sample = era.sample + (later.step - era.step) * era.size, later.sample
        if sample < due:  # a run may go on after its end, whose last step had fewer rows
            is_end = split == "validation" or (sample > 0 and num_samples_of(lineage.mixture_at(sample - 1)) == sample)
            due = sample if is_end else due
        if sample != due:
            raise ValueError(f"batches of {era.size} rows from step {era.step} on do not lead to sample {later.sample}")


def saved_order(saved: LoaderState, lineage: Lineage, snapshot: Snapshot) -> BatchOrder:
    """The order of a saved run over the rows of `snapshot`. Raises SnapshotError if the run drew from others."""
    split: Split = "train" if saved.split == "train" else "validation"
    inventory = Inventory(snapshot, split, saved.seed, saved.window_shards, shuffle=saved.order == "shuffled")
    check_same_rows(lineage, inventory)
    order = BatchOrder(inventory, lineage)
    counts_last = order.num_steps is not None and saved.step > order.num_steps  # a smaller last batch
    return BatchOrder(inventory, lineage, drop_last=False) if counts_last else order


def check_same_order(saved: LoaderState, here: LoaderState) -> None:
    for name, advice in _ADVICE.items():
        value, expected = getattr(saved, name), getattr(here, name)
        if value != expected:
            shown = name.replace("_", " ")
            raise SnapshotError(
                f"the loader state is of another {shown}: {value}, and the loader was opened with {expected}. {advice}"
            )
