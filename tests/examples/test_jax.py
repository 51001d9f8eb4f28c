"""The example of JAX trains on two processes, and is restored on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.examples.test_examples import printed_by_ranks, tell_master
from tests.support.snapshots import make_snapshot

pytestmark = [pytest.mark.needs("jax"), pytest.mark.slow]

PROGRAM = """
import importlib.util, os, sys
from pathlib import Path
import jax
from jax.sharding import NamedSharding, PartitionSpec
example, output, folder = sys.argv[1:]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4 // int(os.environ["WORLD_SIZE"]))
spec = importlib.util.spec_from_file_location("example", example)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.begin()
for name, steps in (("whole", 9), ("parts", 4), ("parts", 9)):
    file = Path(folder, name + os.environ["WORLD_SIZE"])
    if steps == 9 and name == "parts" and os.environ["WORLD_SIZE"] == "1":
        file = Path(folder, "parts2-at-4")  # that of two processes
    print('found', module.train(output, steps, file), flush=True)
    if steps == 4 and os.environ["RANK"] == "0":
        Path(folder, file.name + "-at-4").write_bytes(file.read_bytes())
for shape, names in (((2, 2), ("data", "model")), ((2, 2), ("model", "data")), ((4,), ("data",))):
    found = module.mesh_of(NamedSharding(jax.make_mesh(shape, names), PartitionSpec("data")))
    print('found', (found.data_rank, found.data_size), flush=True)
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A validation of 21 rows: its last batch has 5, of which two processes have 2 and 3."""
    folder = tmp_path_factory.mktemp("snapshot")
    return make_snapshot(folder, {"code": 31, "web": 83}, vocab_size=256, validation={"web": 21})


def test_jax_loop_of_two_processes_has_the_losses_of_one_and_is_restored_there(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: dict[int, list[list[Any]]] = {}
    for world_size in (2, 1):
        tell_master(monkeypatch)
        printed[world_size] = printed_by_ranks("jax_loop.py", output, tmp_path, PROGRAM, world_size)
    (first, second), (alone,) = printed[2], printed[1]
    for (whole, begun, resumed), expected in ((first[:3], alone[0]), (second[:3], alone[0]), (alone[:3], first[0])):
        assert whole == pytest.approx(expected, rel=1e-4)
        assert begun[:4] + resumed[:-3] == pytest.approx(whole[:-3], rel=1e-4)
        assert resumed[-3:] == pytest.approx(whole[-3:], rel=1e-4)  # of the validation
    assert len(set(map(str, alone[0]))) == 9 + 3
    # a model axis over processes, the second mesh: both read all rows
    assert [first[3:], second[3:], alone[3:]] == [[(0, 2), (0, 1), (0, 2)], [(1, 2), (0, 1), (1, 2)], [(0, 1)] * 3]
