"""The rows of a process by a sharding of JAX, of which `mesh_of` asks only what is here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from datapipe.errors import UserError
from datapipe.loader.jax import mesh_of


@dataclass(frozen=True)
class Device:
    number: int
    process_index: int


@dataclass
class Devices:
    """A mesh: the devices by axis, and the names of the axes."""

    devices: np.ndarray
    names: tuple[str, ...]

    @property
    def shape(self) -> dict[str, int]:
        return dict(zip(self.names, self.devices.shape))


class Sharding:
    """A NamedSharding as a process of several sees it."""

    def __init__(self, mesh: Devices, spec: tuple[Any, ...], process: int) -> None:
        self.mesh, self.spec = mesh, spec
        self.addressable_devices = {each for each in mesh.devices.flat if each.process_index == process}

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        sizes, found = self.mesh.shape, {}
        for place, device in np.ndenumerate(self.mesh.devices):
            at, index = dict(zip(self.mesh.names, place)), []
            for axis, size in enumerate(global_shape):
                given = self.spec[axis] if axis < len(self.spec) else None
                names = () if given is None else (given,) if isinstance(given, str) else given
                number = 0
                for name in names:
                    number = number * sizes[name] + at[name]
                part = size // math.prod(sizes[name] for name in names)
                index.append(slice(number * part, (number + 1) * part) if names else slice(None))
            found[device] = tuple(index)
        return found


def shardings(
    shape: tuple[int, ...], names: str, spec: tuple[Any, ...], num_processes: int, order: Any = None
) -> list[Sharding]:
    """That of each process. `order`: the devices of the mesh, by number; a process has neighbouring numbers."""
    count = math.prod(shape)
    devices = [Device(number, number * num_processes // count) for number in range(count)]
    placed = np.empty(count, object)
    placed[:] = [devices[number] for number in (order or range(count))]
    mesh = Devices(placed.reshape(shape), tuple(names.split()))
    return [Sharding(mesh, spec, process) for process in range(num_processes)]


@pytest.mark.parametrize(
    ("shape", "names", "spec", "num_processes", "expected"),
    [
        ((4,), "data", ("data",), 1, [(0, 1, 0, 1)]),
        ((4,), "data", ("data",), 2, [(0, 2, 0, 1), (1, 2, 0, 1)]),
        ((4,), "data", ("data", None), 4, [(0, 4, 0, 1), (1, 4, 0, 1), (2, 4, 0, 1), (3, 4, 0, 1)]),
        ((2, 2), "data model", ("data",), 2, [(0, 2, 0, 1), (1, 2, 0, 1)]),
        ((2, 2), "model data", ("data",), 2, [(0, 1, 0, 1)] * 2),  # the trap: a model axis over processes
        ((2, 4), "data model", ("data",), 4, [(0, 2, 0, 1)] * 2 + [(1, 2, 0, 1)] * 2),
        ((2, 2), "replica data", (("replica", "data"),), 2, [(0, 2, 0, 1), (1, 2, 0, 1)]),
        ((2, 2), "data context", ("data", "context"), 4, [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)]),
        ((2, 2), "data context", ("data", "context"), 2, [(0, 2, 0, 1), (1, 2, 0, 1)]),
        ((4,), "model", (), 2, [(0, 1, 0, 1)] * 2),
    ],
)
def test_mesh_of_a_sharding_has_the_rows_of_its_devices(
    shape: tuple[int, ...], names: str, spec: tuple[Any, ...], num_processes: int, expected: list[tuple[int, ...]]
) -> None:
    meshes = [mesh_of(each) for each in shardings(shape, names, spec, num_processes)]
    assert [(each.data_rank, each.data_size, each.context_rank, each.context_size) for each in meshes] == expected


@pytest.mark.parametrize(
    ("shape", "names", "spec", "order"),
    [
        ((4,), "data", ("data",), [0, 2, 1, 3]),  # process 0 has the parts 0 and 2
        ((2, 2), "data context", ("data", "context"), [0, 2, 3, 1]),  # and here (0, 0) and (1, 1)
        ((4,), "data", ("data",), [2, 0, 1, 3]),
    ],
)
def test_sharding_whose_process_has_no_slice_is_refused(
    shape: tuple[int, ...], names: str, spec: tuple[Any, ...], order: list[int]
) -> None:
    for sharding in shardings(shape, names, spec, 2, order):
        with pytest.raises(UserError, match="Order the devices of the mesh by process"):
            mesh_of(sharding)


def test_what_is_no_sharding_of_this_process_is_refused() -> None:
    [sharding] = shardings((4,), "data", ("data",), 1)
    for wrong, words in (
        (3, "found int"),
        (Sharding(sharding.mesh, ("data",), 1), "no device of this process"),
        (Sharding(sharding.mesh, (object(),), 0), "leaves open how it splits the batch"),
    ):
        with pytest.raises(UserError, match=words):
            mesh_of(wrong)  # type: ignore[arg-type]
