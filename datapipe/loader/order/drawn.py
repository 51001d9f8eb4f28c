"""What a whole run draws of each source, by the loader's own arithmetic."""

from __future__ import annotations

from datapipe.loader.order.batch_order import begin_run
from datapipe.loader.order.lineage import Skips
from datapipe.loader.order.recipe import recipe_of
from datapipe.loader.order.sample_order import Inventory, SampleOrder
from datapipe.shards.manifest import Snapshot


def run_order(snapshot: Snapshot) -> SampleOrder:
    """The order of the samples of a run that begins with this snapshot."""
    inventory = Inventory(snapshot, "train", snapshot.seed, snapshot.window_shards)
    return begin_run(inventory, recipe_of(snapshot), 1, Skips()).sample_order


def drawn_tokens(snapshot: Snapshot, order: SampleOrder) -> dict[str, int] | None:
    """Tokens that the loader draws of each source in a whole run; None for an endless run."""
    if order.num_samples is None:
        return None
    counts = dict(zip(order.mixture.sources, order.mixture.counts(order.num_samples)))
    return {name: counts[name] * snapshot.sequence_length for name in snapshot.sources}
