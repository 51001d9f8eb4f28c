"""From steps to addresses and back: all the arithmetic of one run, its lineage included. Nothing here reads a shard.

step ─▶ steps.Steps ─▶ samples ─▶ order.SampleOrder ─▶ addresses ─▶ (layout) shard and row
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from datapipe.errors import SnapshotError, UserError, suggest
from datapipe.loader.order.lineage import Lineage, MixtureEra, Skips
from datapipe.loader.order.recipe import Recipe, differences
from datapipe.loader.order.sample_order import Inventory, SampleOrder, places_at
from datapipe.loader.order.steps import BatchEra, Steps

_KEY = re.compile(r"[0-9a-f]{32}")


class Course:
    """One run over a split.

    Attributes:
        supply, lineage: what there is, and what is drawn of it when.
        order, steps: samples to addresses, and steps to samples.
    """

    def __init__(self, inventory: Inventory, lineage: Lineage) -> None:
        self.inventory, self.lineage, self.layout = inventory, lineage, inventory.layout
        self.order = SampleOrder(inventory, lineage.mixtures)
        skips = lineage.skips
        self.steps = Steps(lineage.batches, skips.steps, self.order.num_samples, drop_last=inventory.split == "train")
        since = {path: self.steps.samples(step)[0] for path, step in skips.shards.items()}
        shards = self.layout.shards if since else ()
        self._left_out = {number: since[shard.path] for number, shard in enumerate(shards) if shard.path in since}

    @property
    def num_steps(self) -> int | None:
        """How many steps there are, counting those that are skipped; None if there is no end."""
        return self.steps.num_steps

    def samples(self, step: int) -> np.ndarray:
        """The global sample numbers of a step: (global_batch_size,) int64; fewer where the samples end within the step."""
        return np.arange(*self.steps.samples(step), dtype=np.int64)

    def locate(self, samples: np.ndarray, attempt: int = 0) -> np.ndarray:
        """The address of each sample: (n,) int64. Rows of shards that are left out are replaced.

        Args:
            attempt: above 0, the address that takes the place of one that cannot be had.
        """
        return self.order.locate_without(samples, self._left_out, attempt)

    def samples_of(self, address: int, num_epochs: int | None) -> list[tuple[int, int]]:
        """(epoch, sample) wherever the sequence at `address` comes up; see `SampleOrder.samples_of`.

        Args:
            num_epochs: of its source; None for all of a run that has an end, and one of an endless run.
        """
        end = self.order.num_samples
        if num_epochs is None and end is not None and self.inventory.split == "train":
            num_epochs = self.order.epochs_until(int(self.layout.source_of(np.array([address]))[0]), end)
        return self.order.samples_of(address, 1 if num_epochs is None else num_epochs, self._left_out)

    def left_out_documents(self, step: int) -> frozenset[bytes]:
        """Keys of the documents that are padding at `step`."""
        return frozenset(bytes.fromhex(key) for key, since in self.lineage.skips.documents.items() if since <= step)

    def check_step(self, step: int) -> None:
        """Raises UserError for a step that is not there."""
        if step < 0 or (self.num_steps is not None and step >= self.num_steps):
            end = "without end" if self.num_steps is None else f"and {self.num_steps} of them"
            raise UserError(f"there is no step {step}: this run's steps count from 0, {end}.")


def era_at(inventory: Inventory, recipe: Recipe, step: int, sample: int) -> MixtureEra:
    """A recipe that holds from a step on, no source having given anything before."""
    return MixtureEra(
        step=step,
        sample=sample,
        recipe=recipe,
        places={},
        data=inventory.data,
        sizes=inventory.sizes,
        snapshot=inventory.snapshot.fingerprint,
    )


def begin(inventory: Inventory, recipe: Recipe, global_batch_size: int, skips: Skips) -> Course:
    """A run from its first step. Raises UserError for documents and shards to leave out that cannot be."""
    _check_skips(inventory, skips)
    batches = (BatchEra(step=0, sample=0, size=global_batch_size),)
    return Course(inventory, Lineage(batches=batches, mixtures=(era_at(inventory, recipe, 0, 0),), skips=skips))


def resume(saved: Lineage, step: int, here: Course, *, migrate: bool, restart: frozenset[str]) -> Course:
    """The course of a run that was saved before `step`, going on with the data, mixture and batch size of `here`.

    Args:
        here: the run that would begin with them.
        migrate: whether the mixture or the data may be others than before; each source goes on from its place.
        restart: sources that may hold other rows than before, and begin again.

    Raises SnapshotError, with what differs, where something changed and may not.
    """
    inventory, wanted = here.inventory, here.lineage.mixtures[-1].recipe
    sample = _next_sample(saved, step, inventory)
    lineage = saved
    held = saved.mixture_at(sample)
    changes = _changes(saved.mixtures[-1], wanted, inventory)
    if changes:
        if not migrate:
            kind = "snapshot" if any(change.startswith("source") for change in changes) else "mixture"
            raise SnapshotError(
                f"the loader state is of another {kind}: {'; '.join(changes)}. Open the output, and give the mixture, that it "
                f"was saved with; or give the loader `migrate=True` to go on with these from step {step}, each source from its "
                f"place{_restart_advice(changes)}."
            )
        lineage = saved.with_mixture(_migrated(held, step, sample, inventory, wanted, restart))
    lineage = lineage.with_batch_size(here.lineage.global_batch_size, step, sample)
    return Course(inventory, lineage.with_skips(saved.skips.joined(here.lineage.skips, step)))


def _restart_advice(changes: list[str]) -> str:
    other = [change.split("'")[1] for change in changes if change.endswith("holds other rows")]
    return f", and `restart={other}` to begin again those that hold other rows" if other else ""


def _next_sample(saved: Lineage, step: int, inventory: Inventory) -> int:
    sample = Steps(saved.batches, (), None, drop_last=True).samples(step)[0]
    return min(sample, inventory.layout.num_sequences) if inventory.split == "validation" else sample


def check_rows(saved: Lineage, inventory: Inventory) -> None:
    """Raises SnapshotError where a run that was saved draws from other rows than there are here."""
    era = saved.mixtures[-1]
    changes = _changes(era, era.recipe, inventory)
    if changes:
        raise SnapshotError(
            f"the loader state is of another snapshot: {'; '.join(changes)}. Open the output of snapshot {era.snapshot}."
        )


def _changes(era: MixtureEra, wanted: Recipe, inventory: Inventory) -> list[str]:
    """What a leg and the loader's own recipe and data disagree about, in words."""
    if inventory.split == "validation":
        return [] if era.data == inventory.data else ["sources of the validation split hold other rows"]
    rows = [f"source '{name}' is gone" for name in sorted(era.recipe.drawn - set(inventory.data))] + [
        f"source '{name}' {'holds other rows' if name in era.data else 'is new'}"
        for name in sorted(wanted.drawn)
        if era.data.get(name) != inventory.data.get(name)
    ]
    return differences(era.recipe, wanted) + rows


def _migrated(
    era: MixtureEra, step: int, sample: int, inventory: Inventory, wanted: Recipe, restart: frozenset[str]
) -> MixtureEra:
    """The leg that follows `leg`: every source that still holds the same rows goes on from its place."""
    places = places_at(era, sample)
    changed = {name for name, data in inventory.data.items() if places.get(name) and era.data.get(name) != data}
    refused = sorted(changed - restart)
    if refused:
        raise SnapshotError(
            f"source '{refused[0]}' holds other rows than those this run drew {places[refused[0]]} samples from, so its place "
            f"means nothing there. Open the output it was drawn from, or give the loader `restart={refused}` to begin it "
            f"again, which repeats what both hold."
        )
    kept = {name: count for name, count in places.items() if count and name not in changed}
    return replace(
        era_at(inventory, wanted, step, sample),
        places=kept,
        data={**era.data, **inventory.data},
        sizes={**era.sizes, **inventory.sizes},
    )


def _check_skips(inventory: Inventory, skips: Skips) -> None:
    """Raises UserError for a document or a shard that cannot be left out because there is none such."""
    paths = {shard.path for shard in inventory.snapshot.shards} if skips.shards else set()
    if skips.shards and inventory.split == "validation":
        raise UserError("skip_shards: rows are replaced in training alone; the validation split has each of its rows once.")
    for path in skips.shards:
        if path not in paths:
            raise UserError(f"skip_shards: no shard '{path}'.{suggest(path, paths)} Expected paths as in snapshot.json.")
    for key in skips.documents:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise UserError(f"skip_documents: {key!r} is no document key. Expected 32 hex digits, as `datapipe trace` prints.")
