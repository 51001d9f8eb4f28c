"""The rows that a process of a JAX program reads: those of its devices, by the sharding of the batch.

    sharding of (B, S)              devices of process 0     of process 1       Mesh(data_rank, data_size, …)
    P("data"), 2 devices each       rows 0 and 1 of 4        rows 2 and 3       0 of 2, 1 of 2
    P("data"), "model" over both    rows 0 and 1 of 2        rows 0 and 1       0 of 1, 0 of 1: the same rows

Processes along an axis that does not split the batch must read the same rows. `rank=jax.process_index(),
world_size=jax.process_count()` would give them different rows, without an error.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

from datapipe.errors import UserError
from datapipe.loader.share import Mesh

NamedSharding = Any  # of jax.sharding, which is not imported here


def mesh_of(sharding: NamedSharding) -> Mesh:
    """The rows of batches (B, S) that this process reads by a sharding, and its part of each row if rows are split, too.

        mesh = jax.make_mesh((4, 2), ("data", "model"))
        sharding = NamedSharding(mesh, PartitionSpec("data"))
        loader = Loader("runs/x", global_batch_size=64, mesh=mesh_of(sharding), dtype="int32")
        jax.make_array_from_process_local_data(sharding, batch["input_ids"], global_shape=(64, length))

    Raises UserError if the rows of a process are not a slice of the batch, or if slices differ in size.
    """
    if not hasattr(sharding, "spec") or not hasattr(sharding, "devices_indices_map"):
        raise UserError(
            f"mesh_of: expected a jax.sharding.NamedSharding of the batch, found {type(sharding).__name__}. For the mesh of a "
            f"program of torch: mesh_of of datapipe.loader.torch."
        )
    shape = (_num_parts(sharding, 0), _num_parts(sharding, 1))
    blocks: dict[int, set[tuple[int, int]]] = {}  # by process: the numbers of its parts of the rows and of the columns
    for device, index in sharding.devices_indices_map(shape).items():
        rows, columns = (range(*cut.indices(size)) for cut, size in zip(index, shape))
        blocks.setdefault(device.process_index, set()).update((row, column) for row in rows for column in columns)
    here = {device.process_index for device in sharding.addressable_devices}
    if len(here) != 1:
        raise UserError(
            "mesh_of: no device of this process is in the mesh of the sharding, so the process has no rows to read."
        )
    own = here.pop()
    data_rank, data_size = _share(own, {process: {row for row, _ in each} for process, each in blocks.items()}, "rows")
    context_rank, context_size = _share(
        own, {process: {column for _, column in each} for process, each in blocks.items()}, "tokens"
    )
    if any(len(each) * data_size * context_size != shape[0] * shape[1] for each in blocks.values()):
        raise UserError(f"mesh_of: the parts of a process are no rectangle of the batch. {_ADVICE}")
    return Mesh(data_rank=data_rank, data_size=data_size, context_rank=context_rank, context_size=context_size)


_ADVICE = (
    "Order the devices of the mesh by process, as jax.make_mesh does, and give the axes that split the batch first: "
    'jax.make_mesh((4, 2), ("data", "model")).'
)


def _num_parts(sharding: NamedSharding, axis: int) -> int:
    names = sharding.spec[axis] if axis < len(sharding.spec) else None
    names = () if names is None else (names,) if isinstance(names, str) else names
    if not isinstance(names, tuple):
        raise UserError(f"mesh_of: the sharding leaves open how it splits the batch: {sharding.spec}. Name the axes.")
    return prod(sharding.mesh.shape[name] for name in names)


def _share(own: int, numbers: Mapping[int, set[int]], what: str) -> tuple[int, int]:
    """The number of the slice of process `own` of an axis, and the number of slices."""
    size, num_parts = len(numbers[own]), len(set().union(*numbers.values()))
    for process, each in numbers.items():
        first = min(each)
        if len(each) != size or first % size or each != set(range(first, first + size)):
            raise UserError(
                f"mesh_of: process {process} has the parts {sorted(each)} of {num_parts} parts of the {what}, and this process "
                f"{sorted(numbers[own])}: expected slices of one size, one after another. {_ADVICE}"
            )
    return min(numbers[own]) // size, num_parts // size
