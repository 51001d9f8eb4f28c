"""What a checkpoint keeps of a loader: where it stands, and which data that refers to.

    {"version": 1, "step": 1200, "global_batch_size": 32, "split": "train", "seed": 17, "snapshot": …, "mixture": …}

The step counts batches handed out, never those prefetched. Rank and world size are no part of it, so one rank's state serves
all ranks of any later world. Applied to other data it is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from datapipe.errors import SnapshotError

VERSION = 1

_TYPES = {"step": int, "global_batch_size": int, "split": str, "seed": int, "snapshot": str, "mixture": str}
_MOST_STEPS = 1 << 48
"""More steps than any run has; beyond, sample numbers would leave int64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderState:
    """The position of a loader. JSON holds it as it is.

    Attributes:
        version: of this record.
        step: the next global batch.
        global_batch_size: rows of a global batch; `step * global_batch_size` is the next sample.
        split: train or validation.
        seed: of the permutations.
        snapshot: fingerprint of the snapshot.
        mixture: digest of its mixture, to tell changed weights from changed data.
    """

    version: int = VERSION
    step: int
    global_batch_size: int
    split: str
    seed: int
    snapshot: str
    mixture: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_state(state: Mapping[str, Any]) -> LoaderState:
    """The record in `state`. Raises SnapshotError for one of another version or shape."""
    if state.get("version") != VERSION:
        raise SnapshotError(
            f"loader state of version {state.get('version')!r}; this datapipe reads version {VERSION}. "
            f"Resume with the release that wrote it, or start without a state."
        )
    names = {field.name for field in fields(LoaderState)}
    if set(state) != names:
        differing = ", ".join(sorted(names ^ set(state)))
        raise SnapshotError(
            f"not a loader state: {differing} missing or unknown. Give what `state_dict()` returned, unchanged."
        )
    wrong = [name for name, kind in _TYPES.items() if type(state[name]) is not kind]
    if wrong:
        shown = ", ".join(f"{name} is {state[name]!r}" for name in wrong)
        raise SnapshotError(f"not a loader state: {shown}. Give what `state_dict()` returned, unchanged.")
    found = LoaderState(**state)
    if not 0 <= found.step < _MOST_STEPS or found.global_batch_size < 1:
        raise SnapshotError(
            f"not a loader state: step {found.step}, global batch size {found.global_batch_size}. "
            f"Give what `state_dict()` returned, unchanged."
        )
    return found


def resume_step(saved: LoaderState, here: LoaderState, num_samples: int | None) -> int:
    """The step at which a loader whose own state is `here` continues `saved`: exactly the next sample.

    Args:
        num_samples: where the loader ends; None if never.
    """
    for name, meaning, advice in (
        (
            "mixture",
            "mixture",
            "Weights, phases, seed or sequence length changed; open the output that this state was saved with.",
        ),
        ("snapshot", "snapshot", "Its shards or its manifest changed; open the output that this state was saved with."),
        ("split", "split", "Open the loader with that split."),
        ("seed", "seed", "Open the loader with that seed."),
    ):
        found, expected = getattr(saved, name), getattr(here, name)
        if found != expected:
            raise SnapshotError(f"the loader state is of another {meaning}: {found}, and this loader's is {expected}. {advice}")
    samples = saved.step * saved.global_batch_size
    if num_samples is not None and samples >= num_samples:
        return -(-num_samples // here.global_batch_size)  # at the end, whatever the size of the last batch
    step, rest = divmod(samples, here.global_batch_size)
    if rest == 0:
        return step
    raise SnapshotError(
        f"the loader state stands at sample {samples} (step {saved.step} of {saved.global_batch_size} rows), which is inside a "
        f"global batch of {here.global_batch_size}. Resume with a global batch size that divides {samples}, such as "
        f"{saved.global_batch_size}."
    )
