"""The arguments of a loader: checked, and turned into what it works with. A mistake is a UserError that names the argument."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.errors import DroppedRowsWarning, UserError, suggest
from datapipe.loader.cache.cache import ShardCache, plan_budget
from datapipe.loader.order.batch_order import BatchOrder, begin_run
from datapipe.loader.order.layout import Split
from datapipe.loader.order.lineage import Skips
from datapipe.loader.order.recipe import recipe_of
from datapipe.loader.order.sample_order import Inventory
from datapipe.loader.order.steps import merged
from datapipe.loader.share import Mesh
from datapipe.loader.world import rank_and_world_size
from datapipe.shards.document_files import document_keys
from datapipe.shards.manifest import Snapshot
from datapipe.storage import Root

LEAST_PREFETCH, MOST_PREFETCH, PREFETCH_BYTES = 4, 32, 8 << 20
"""The default number of batches built ahead: as many as fit into PREFETCH_BYTES, between the two limits."""

WHOLE = (
    "global_batch_size",
    "batch_size",
    "rank",
    "world_size",
    "seed",
    "window",
    "cache_bytes",
    "prefetch",
    "group_rows",
    "pad_cu_seqlens",
)
"""The arguments that are whole numbers."""

CHOICES = {
    "split": ("train", "validation"),
    "labels": ("shifted", "unshifted"),
    "dtype": ("int64", "int32"),
    "on_corrupt": ("raise", "replace"),
}
"""The values of arguments that are one of a few."""


LIMITS = {
    "seed": (1 << 64, "0 to 2^64 - 1"),
    "prefetch": ((1 << 16) + 1, "0 to 65,536 batches"),
    "group_rows": (1 << 31, "a number of rows below 2^31"),
    "window": (1 << 31, "a number of shards, or 0 for all of a source"),
    "cache_bytes": (1 << 63, "a number of bytes, or 0 for no cache"),
}
"""Where arguments that are whole numbers end, and what is expected of them. None is below 0."""

MOST_ROWS = 1 << 31
"""Of a global batch."""


def check_arguments(given: Mapping[str, Any]) -> None:
    """Checks those arguments of a `Loader` that can be checked alone. Raises UserError for the first that is wrong."""
    for name in WHOLE:
        value = given[name]
        if value is not None and type(value) is not int:  # a NumPy integer, say, would make a state that is not JSON
            raise UserError(f"{name}={value!r} of type {type(value).__name__}: expected an int. Convert it with int(…).")
    for name, expected in CHOICES.items():
        value = np.dtype(given[name]).name if name == "dtype" else given[name]
        if value not in expected:
            raise UserError(f"{name}='{value}': expected {' or '.join(expected)}.")
    for name, (stop, expected) in LIMITS.items():
        value = given[name]
        if value is not None and not 0 <= value < stop:
            raise UserError(f"{name}={value}: expected {expected}.")
    if given["drop_last"] and given["split"] == "validation":
        raise UserError(
            "drop_last=True with split='validation': a validation gives every held-out row once, and its last batch may be "
            "smaller. Leave drop_last out; where all batches need one shape, pad the last with rows of label -100."
        )


def plan_mesh(given: Mapping[str, Any]) -> Mesh:
    """The mesh, or that of rank and world size, which the environment tells where the program does not."""
    mesh, rank, world_size = given["mesh"], given["rank"], given["world_size"]
    if mesh is None:
        rank, world_size = rank_and_world_size(rank, world_size)
        return Mesh(data_rank=rank, data_size=world_size)
    if (rank, world_size) not in ((None, None), (0, 1)):
        raise UserError(
            f"mesh together with rank={rank}, world_size={world_size}: give either the mesh, or rank and world size."
        )
    if not isinstance(mesh, Mesh):
        raise UserError(
            f"mesh of type {type(mesh).__name__}: expected a datapipe.loader.share.Mesh. mesh_of(…) makes one: that of "
            f"datapipe.loader.torch of a DeviceMesh, that of datapipe.loader.jax of a sharding."
        )
    return mesh


def plan_batch(global_batch_size: int | None, batch_size: int | None, mesh: Mesh) -> int:
    given = [size for size in (global_batch_size, batch_size) if size is not None]
    if len(given) != 1 or not 1 <= given[0] < MOST_ROWS:
        raise UserError(
            f"global_batch_size={global_batch_size}, batch_size={batch_size}: give exactly one of them, at least 1 and below "
            f"2^31; batch_size counts the rows of one rank, global_batch_size those of all."
        )
    return global_batch_size if global_batch_size is not None else given[0] * mesh.data_size


def plan_groups(group_rows: int, global_batch_size: int, split: str) -> int:
    """The rows of a group of one source. Raises UserError for groups that batches cut unevenly."""
    if group_rows < 1 or (group_rows % global_batch_size and global_batch_size % group_rows):
        raise UserError(
            f"group_rows={group_rows} with a global batch of {global_batch_size} rows: expected a number that divides it or is "
            f"a multiple of it, so that no batch cuts a group. {global_batch_size} makes every batch of one source."
        )
    if group_rows > 1 and split == "validation":
        raise UserError("group_rows: only the training split mixes sources; the validation split reads one after the other.")
    return group_rows


def plan_inventory(snapshot: Snapshot, split: Split, seed: int | None, window: int | None, *, shuffle: bool) -> Inventory:
    """The rows of a split and their permutations; `seed` and `window` of the snapshot where none is given."""
    seed = snapshot.seed if seed is None else seed
    return Inventory(snapshot, split, seed, snapshot.window_shards if window is None else window, shuffle=shuffle)


def plan_run(root: Root, snapshot: Snapshot, size: int, given: Mapping[str, Any]) -> BatchOrder:
    """The order of a new run.

    Args:
        size: rows of a global batch.
        given: the arguments of a `Loader` that decide the order, by name.
    """
    inventory = plan_inventory(snapshot, given["split"], given["seed"], given["window"], shuffle=given["shuffle"])
    skips = plan_skips(root, snapshot, given["skip"], given["skip_documents"], given["skip_shards"])
    recipe = recipe_of(snapshot, given["mixture"], plan_groups(given["group_rows"], size, given["split"]))
    return begin_run(inventory, recipe, size, skips, drop_last=given["drop_last"] is not False)


def plan_skips(
    root: Root, snapshot: Snapshot, steps: Sequence[tuple[int, int]], documents: Sequence[str], shards: Sequence[str]
) -> Skips:
    """What is left out from step 0 on. Documents may be named as in their input; their keys are looked up."""
    keys = (key.hex() for key in document_keys(root, snapshot, documents))
    return Skips(steps=merged(steps), documents=dict.fromkeys(keys, 0), shards=dict.fromkeys(shards, 0))


def warn_of_dropped_rows(num_dropped: int, global_batch_size: int, stacklevel: int) -> None:
    warnings.warn(
        f"the run ends with {num_dropped} rows that make no whole batch of {global_batch_size}, and they are left out. "
        f"Loader(drop_last=False) hands them out as a smaller batch; drop_last=True leaves them out silently.",
        DroppedRowsWarning,
        stacklevel=stacklevel,
    )


def plan_restart(restart: Sequence[str], migrate: bool, sources: tuple[str, ...]) -> frozenset[str]:
    names = [restart] if isinstance(restart, str) else list(restart)
    for name in names:
        if name not in sources:
            raise UserError(f"restart: no source '{name}'.{suggest(name, sources)} Expected some of {', '.join(sources)}.")
    if names and not migrate:
        raise UserError(f"restart={names} without migrate=True: set migrate=True to accept the state of a run with other rows.")
    return frozenset(names)


def plan_cache(root: Root, inventory: Inventory, cache_bytes: int | None, folder: str | Path | None) -> ShardCache | None:
    """The cache of an object store; None where the user wants none. Its threads start at the first batch."""
    budget_bytes, path = plan_budget(cache_bytes, None if folder is None else Path(folder))
    return ShardCache(root, inventory.layout.shards, path, budget_bytes) if budget_bytes else None


def plan_prefetch(batch_bytes: int) -> int:
    """The default number of batches ahead: many small ones, which are built together, or a few large ones."""
    return max(LEAST_PREFETCH, min(MOST_PREFETCH, PREFETCH_BYTES // max(1, batch_bytes)))
