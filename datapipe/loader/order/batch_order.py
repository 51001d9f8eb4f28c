"""From steps to addresses and back: all the arithmetic of one run, its lineage included. Nothing here reads a shard.

    step ─▶ Steps ─▶ samples ─▶ SampleOrder ─▶ addresses ─▶ Layout ─▶ shard and row

`BatchOrder` knows steps, `SampleOrder` samples of the mixture, `SourceOrder` the samples of one source.
"""

from functools import cached_property
from numbers import Integral

import numpy as np

from datapipe.cell_names import source_of
from datapipe.dataclass import replace
from datapipe.errors import SnapshotError, UserError, suggest
from datapipe.loader.order.grown_order import Generations
from datapipe.loader.order.lineage import Lineage, MixtureEra, Skips
from datapipe.loader.order.recipe import Recipe, differences, recipe_of
from datapipe.loader.order.sample_order import Inventory, OrderKey, SampleOrder, num_drawn_at, num_samples_of
from datapipe.loader.order.saved_lineage import lineage_json
from datapipe.loader.order.steps import BatchEra, Steps
from datapipe.shards.manifest import Snapshot
from datapipe.shards.shard_table import ShardTable

MOST_STEPS = 1 << 40  # No run has more steps: with 2^22 rows a step, samples are counted in 63 bits


class RunSteps:
    """The steps of one run over a split, without its rows: what a client of a service knows of a `BatchOrder`."""

    def __init__(
        self, key: OrderKey, lineage: Lineage, sources: tuple[str, ...], num_samples: int | None, drop_last: bool
    ) -> None:
        self.key, self.lineage, self.sources, self.drop_last = key, lineage, sources, drop_last
        drops = drop_last and key.split == "train"
        self.steps = Steps(lineage.batches, lineage.skips.steps, num_samples, drop_last=drops)
        self.num_steps = self.steps.num_steps

    @cached_property
    def lineage_json(self) -> str:
        """The lineage in a state: made once, since trainers ask for a state at every step."""
        return lineage_json(self.lineage)

    def check_step(self, step: int) -> None:
        check_step_number(step)
        if step < 0 or (self.num_steps is not None and step >= self.num_steps):
            last = "" if self.num_steps is None else f" and the last one is {self.num_steps - 1}"
            raise UserError(f"step {step} is not in this run: its steps count from 0{last}.")


class BatchOrder(RunSteps):
    """The order of all batches of one run over a split."""

    def __init__(self, inventory: Inventory, lineage: Lineage, drop_last: bool = True) -> None:
        self.inventory, self.layout = inventory, inventory.layout
        self.sample_order = SampleOrder(inventory, lineage.mixtures)
        super().__init__(inventory, lineage, self.layout.sources, self.sample_order.num_samples, drop_last)
        skips = lineage.skips
        self._left_out: dict[int, int] = {}
        for number, path in self.layout.shards.named(skips.shards):
            since = self.steps.samples(skips.shards[path])[0]
            self._left_out[number] = min(since, self._left_out.get(number, since))

    def num_rows(self, step: int) -> int:
        start, stop = self.steps.samples(step)
        return stop - start

    def samples(self, step: int) -> np.ndarray:
        """The global sample numbers of a step: (global_batch_size,) int64, fewer where the samples end within the step."""
        return np.arange(*self.steps.samples(step), dtype=np.int64)

    def addresses_of(self, samples: np.ndarray, attempt: int = 0) -> np.ndarray:
        """The address of each sample, or of its k-th replacement: (n,) int64. Rows of left-out shards are replaced."""
        return self.sample_order.addresses_without(samples, self._left_out, attempt)

    def samples_of(self, address: int, num_epochs: int | None, stop: int | None = None) -> list[tuple[int, int]]:
        """(epoch, sample) of every occurrence of the sequence at `address`; see `SampleOrder.samples_of`. `num_epochs`: by
        default those that begin before sample `stop`, or before the end; of an endless run, one."""
        stop = self.sample_order.num_samples if stop is None else stop
        if num_epochs is None and stop is not None and self.inventory.split == "train":
            num_epochs = self.sample_order.epochs_until(int(self.layout.source_of(np.array([address]))[0]), stop)
        return self.sample_order.samples_of(address, 1 if num_epochs is None else num_epochs, self._left_out)

    def left_out_documents(self, step: int) -> frozenset[bytes]:
        return frozenset(bytes.fromhex(key) for key, since in self.lineage.skips.documents.items() if since <= step)


def check_step_number(step: object) -> None:
    if isinstance(step, bool) or not isinstance(step, Integral):
        raise UserError(f"step {step!r} of type {type(step).__name__}: expected a whole number.")
    if int(step) >= MOST_STEPS:
        raise UserError(f"step {step}: steps are counted to {MOST_STEPS:,}.")


def begin_era(inventory: Inventory, recipe: Recipe, step: int, sample: int) -> MixtureEra:
    """The era of a recipe that begins at `step`, with no samples drawn before."""
    return MixtureEra(
        step=step,
        sample=sample,
        recipe=recipe,
        num_drawn={},
        data=inventory.data,
        sizes=inventory.sizes,
        generations=inventory.generations,
        snapshot=inventory.snapshot.fingerprint,
    )


def begin_run(
    inventory: Inventory, recipe: Recipe, global_batch_size: int, skips: Skips, *, drop_last: bool = True
) -> BatchOrder:
    """The order of a new run. Raises UserError for skips that name no shard or no document key."""
    _check_skips(inventory, skips)
    batches = (BatchEra(step=0, sample=0, size=global_batch_size),)
    lineage = Lineage(batches=batches, mixtures=(begin_era(inventory, recipe, 0, 0),), skips=skips)
    return BatchOrder(inventory, lineage.with_removed(inventory.removed, 0), drop_last)


def resume_run(saved: Lineage, step: int, here: BatchOrder, *, migrate: bool, restart: frozenset[str]) -> BatchOrder:
    """The order of a saved run that continues at `step` with the data, mixture and batch size of `here`, a new run; `migrate`
    and `restart` are as in `LoaderOptions`. Raises SnapshotError for a change that is not allowed."""
    inventory, wanted = here.inventory, here.lineage.mixtures[-1].recipe
    sample = _next_sample(saved, step, here)
    lineage = saved
    held = saved.mixture_at(sample)
    changes = _changes(saved.mixtures[-1], wanted, inventory)
    # another batch size that begins within a group of rows of one source begins a new group there
    cuts_a_group = saved.global_batch_size != here.lineage.global_batch_size and (sample - held.sample) % held.recipe.group_rows
    if changes or cuts_a_group:
        if changes and not migrate:
            kind = "snapshot" if any(change.startswith("source") for change in changes) else "mixture"
            others = [change.split("'")[1] for change in changes if change.endswith("holds other rows")]
            advice = f", and `restart={others}` to start over the sources that hold other rows" if others else ""
            raise SnapshotError(
                f"the loader state is of another {kind}: {'; '.join(changes)}. Open the snapshot and the mixture that it was "
                f"saved with (snapshot='{held.snapshot[:12]}'); or pass `migrate=True` to switch to these at step {step}, with "
                f"each source continuing after the samples drawn so far{advice}."
            )
        lineage = saved.with_mixture(_migrated(held, step, sample, inventory, wanted, restart))
    lineage = lineage.with_batch_size(here.lineage.global_batch_size, step, sample)
    if not migrate:
        _check_removed(saved, inventory)
    skips = saved.skips.joined(here.lineage.skips, step)
    lineage = replace(lineage, skips=skips).with_removed(inventory.removed, step)
    resumed = BatchOrder(inventory, lineage, here.drop_last)
    last, end = resumed.steps.before(step), resumed.sample_order.num_samples
    if last >= 0 and end is not None and Steps(lineage.batches, (), None, drop_last=True).samples(last)[1] > end:
        raise SnapshotError(_past_the_end(step, end, saved.global_batch_size))
    return resumed


def _check_removed(saved: Lineage, inventory: Inventory) -> None:
    """Raises SnapshotError for a snapshot in which documents come back that were taken down for a saved run."""
    entry = inventory.snapshot.removed
    known = () if entry is None else entry.takedowns
    last = saved.removals[-1][1] if saved.removals else ""
    if last and last not in known:
        raise SnapshotError(
            f"documents were taken down from the snapshot that the loader state was saved with, and snapshot "
            f"{inventory.snapshot.fingerprint[:12]} does not know of it. Open that snapshot, "
            f"snapshot='{saved.mixtures[-1].snapshot[:12]}', or a later one of its output; or pass `migrate=True`."
        )


def _past_the_end(step: int, num_samples: int, global_batch_size: int) -> str:
    return (
        f"the loader state is at step {step}, past the end of this run, which has {num_samples} rows in batches of "
        f"{global_batch_size}. Give a state of this run; or open the loader with the mixture, `tokens` and `max_epochs` of the "
        f"state, and with drop_last=False if the state counts a smaller last batch."
    )


def _next_sample(saved: Lineage, step: int, here: BatchOrder) -> int:
    sample = Steps(saved.batches, (), None, drop_last=True).samples(step)[0]
    if here.inventory.split == "validation":
        return min(sample, here.layout.num_sequences)
    end = num_samples_of(saved.mixtures[-1])
    if end is None or not sample - saved.global_batch_size < end < sample:
        return sample
    if here.drop_last:
        raise SnapshotError(_past_the_end(step, end, saved.global_batch_size))
    return end  # the state counts a smaller last batch


def check_same_rows(saved: Lineage, inventory: Inventory) -> None:
    """Raises SnapshotError if a saved run draws from rows that the inventory does not hold."""
    era = saved.mixtures[-1]
    changes = _changes(era, era.recipe, inventory)
    if changes:
        raise SnapshotError(
            f"the loader state is of another snapshot: {'; '.join(changes)}. Open the snapshot of the state: "
            f"snapshot='{era.snapshot[:12]}', in the output that holds it."
        )


def _changes(era: MixtureEra, wanted: Recipe, inventory: Inventory) -> list[str]:
    """The differences between an era and the loader's own recipe and data, in words."""
    if inventory.split == "validation":
        return [] if era.data == inventory.data else ["sources of the validation split hold other rows"]
    rows = [f"source '{name}' is gone" for name in sorted(era.recipe.drawn - set(inventory.data))]
    for name in sorted(wanted.drawn):
        grown = len(inventory.digests.get(name, ())) - era.generations_of(name).count
        if name not in era.data:
            rows.append(f"source '{name}' is new")
        elif not inventory.holds(name, era):
            rows.append(f"source '{name}' holds other rows")
        elif grown:
            rows.append(f"source '{name}' has grown by {grown} generation{'s' * (grown > 1)}")
    return differences(era.recipe, wanted) + rows


def _migrated(
    era: MixtureEra, step: int, sample: int, inventory: Inventory, wanted: Recipe, restart: frozenset[str]
) -> MixtureEra:
    """The era that follows `era`: every source with the same rows, or with more, continues after the samples drawn so far."""
    num_drawn = num_drawn_at(era, sample)
    changed = {name for name in inventory.data if num_drawn.get(name) and not inventory.holds(name, era)}
    refused = sorted(changed - restart)
    if refused:
        raise SnapshotError(
            f"source '{refused[0]}' does not hold the rows that this run drew {num_drawn[refused[0]]} samples from. Open the "
            f"output that holds them, or pass `restart={refused}` to start the source over; rows that both outputs hold are "
            f"then repeated."
        )
    kept = {name: count for name, count in num_drawn.items() if count and name not in changed}
    generations = {**era.generations, **inventory.generations}
    for name in kept.keys() & inventory.digests.keys():
        before, count = era.generations_of(name), len(inventory.digests[name])
        generations[name] = before if before.count == count else before.grown(count, era.sizes[name], kept[name])
    return replace(
        begin_era(inventory, wanted, step, sample),
        num_drawn=kept,
        data={**era.data, **inventory.data},
        sizes={**era.sizes, **inventory.sizes},
        generations={name: each for name, each in generations.items() if each != Generations()},
    )


def _check_skips(inventory: Inventory, skips: Skips) -> None:
    shards = ShardTable.of(inventory.snapshot.shards)
    if skips.shards and inventory.split == "validation":
        raise UserError("skip_shards: only the training split replaces rows; the validation split reads every row once.")
    known = {path for _, path in shards.named(skips.shards)}
    for path in skips.shards:
        if path not in known:
            paths = {path for shard in shards for path in (shard.path, shard.numbered_path)}
            raise UserError(f"skip_shards: no shard '{path}'.{suggest(path, paths)} Expected paths from snapshot.json.")


def run_order(snapshot: Snapshot) -> SampleOrder:
    inventory = Inventory(snapshot, "train", snapshot.seed, snapshot.window_shards)
    return begin_run(inventory, recipe_of(snapshot), 1, Skips()).sample_order


def drawn_tokens(snapshot: Snapshot, order: SampleOrder) -> dict[str, int] | None:
    """Tokens that the loader draws of each source, with all its cells, in a whole run; None for an endless run."""
    if order.num_samples is None:
        return None
    drawn = dict.fromkeys(snapshot.sources, 0)
    for leaf, count in zip(order.layout.sources, order.mixture.counts(order.num_samples)):
        drawn[source_of(leaf)] += count * snapshot.sequence_length
    return drawn
