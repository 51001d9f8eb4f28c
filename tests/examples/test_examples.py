"""The examples train, and a resumed example has the losses of one that was not stopped."""

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from datapipe.loader import Loader
from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.needs("torch")

EXAMPLES = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83}, vocab_size=256)


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A validation of 21 rows: its last batch has 5, of which two processes have 2 and 3."""
    folder = tmp_path_factory.mktemp("snapshot")
    return make_snapshot(folder, {"code": 31, "web": 83}, vocab_size=256, validation={"web": 21})


START = """
import importlib.util, os, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
example, output, folder, *calls = sys.argv[1:]
spec = importlib.util.spec_from_file_location("example", example)
module = importlib.util.module_from_spec(spec)
"""
CALLS = """
import torch.distributed as dist
spec.loader.exec_module(module)
if Path(example).stem in ("context_parallel", "ddp", "distributed_checkpoint", "megatron_loop", "torchtitan_loop"):
    dist.init_process_group("gloo")
for name, steps, *more in (call.split() for call in calls):
    print("found", module.train(output, int(steps), Path(folder, name), *map(int, more)), flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
"""
THREE_RUNS = ("whole 15", "parts 5", "parts 15")


def printed_by_ranks(
    example: str, output: Path, folder: Path, world_size: int, calls: tuple[str, ...] = (), program: str = CALLS
) -> list[list[Any]]:
    """What each rank prints behind "found", value by value. Processes are started as torchrun starts them.

    Args:
        calls: checkpoint, steps and further arguments of `train`, one call after the other.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "TORCHELASTIC_RUN_ID": "test"}
    launched |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), "ACCELERATE_USE_CPU": "true"}
    paths = os.pathsep.join([str(EXAMPLES.parents[1]), *sys.path])
    own = {"PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", START + program, str(EXAMPLES / example), str(output), str(folder), *calls]
    running = []
    for rank in range(world_size):
        environment = {**os.environ, **launched, **own, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment))
    found = []
    for process in running:
        printed, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors
        lines = [line.removeprefix("found ") for line in printed.splitlines() if line.startswith("found ")]
        found.append([ast.literal_eval(line) for line in lines])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("example", "world_size"), [("ddp.py", 3), ("context_parallel.py", 2)])
def test_any_number_of_processes_has_the_parameters_and_losses_of_one(
    output: Path, tmp_path: Path, example: str, world_size: int
) -> None:
    import torch

    parameters, losses = [], []
    for size in (1, world_size):  # three data-parallel processes have 2, 3 and 3 of 8 rows
        file = f"{size}.pt"
        of_ranks = printed_by_ranks(example, output, tmp_path, size, (f"{file} 2", f"{file} 4"))
        parameters.append(torch.load(tmp_path / file)["model"])
        losses.append(torch.tensor([[*first, *resumed] for first, resumed in of_ranks]).sum(dim=0))
    assert losses[0].shape == (4,)
    torch.testing.assert_close(parameters[1], parameters[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "world_size"),
    [
        pytest.param("accelerate_loop.py", 2, marks=pytest.mark.needs("accelerate")),
        ("ddp.py", 2),
        pytest.param("deepspeed_loop.py", 2, marks=pytest.mark.needs("deepspeed")),
        ("distributed_checkpoint.py", 2),
        pytest.param("hf_trainer.py", 2, marks=pytest.mark.needs("transformers", "accelerate")),
        pytest.param("lightning_module.py", 2, marks=pytest.mark.needs("lightning")),
        ("megatron_loop.py", 2),
        ("plain_loop.py", 1),
        pytest.param("torchtitan_loop.py", 2, marks=pytest.mark.needs("torchtitan")),
    ],
)
def test_resumed_loop_has_the_losses_of_one_that_was_not(output: Path, tmp_path: Path, example: str, world_size: int) -> None:
    wholes = []
    for whole, first, second in printed_by_ranks(example, output, tmp_path, world_size, THREE_RUNS):
        assert len(set(whole)) == len(whole) == 3 * len(first) >= 15
        assert whole == (second if example == "hf_trainer.py" else first + second)  # which returns the losses before, too
        assert first == whole[: len(first)]
        wholes.append(whole)
    are_equal = wholes[0] == wholes[-1]
    assert are_equal == (example in ("hf_trainer.py", "megatron_loop.py", "plain_loop.py"))  # losses of all processes


@pytest.mark.slow
def test_megatron_has_the_same_losses_with_data_parallel_and_with_tensor_parallel_ranks(output: Path, tmp_path: Path) -> None:
    import torch

    for by_data, by_tensor in printed_by_ranks("megatron_loop.py", output, tmp_path, 2, ("1 6 1", "2 6 2")):
        assert len(by_data) == 6
        assert by_tensor == pytest.approx(by_data, rel=1e-5, abs=1e-6)
    expected = Loader(output, global_batch_size=8).batch(6)["input_ids"].tolist()
    for split in ("1", "2"):
        saved = torch.load(tmp_path / split / "mp_rank_00.pt")
        assert saved["consumed_train_samples"] == 6 * 8
        loader = Loader(output, global_batch_size=8)
        loader.load_state_dict(saved["loader"])
        assert next(loader)["input_ids"].tolist() == expected


@pytest.mark.slow
@pytest.mark.needs("sklearn")
def test_search_of_a_mixture_runs_from_corpora_to_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES.parents[1]), *sys.path]))
    from tests.examples import mixture_search

    losses = mixture_search.search(tmp_path, runs=9, steps=4, scale=0.1, seeds=2)

    assert {"natural", "uniform"} <= set(losses) <= {"natural", "uniform", "found"}
    assert all(3 < loss < 7 for each in losses.values() for loss in each)
    assert (tmp_path / "found/report.md").exists()


OF_JAX = """
import jax
from jax.sharding import NamedSharding, PartitionSpec
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4 // int(os.environ["WORLD_SIZE"]))
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


@pytest.mark.slow
@pytest.mark.needs("jax")
def test_jax_loop_of_two_processes_has_the_losses_of_one_and_is_restored_there(validated: Path, tmp_path: Path) -> None:
    printed = {size: printed_by_ranks("jax_loop.py", validated, tmp_path, size, program=OF_JAX) for size in (2, 1)}
    (first, second), (alone,) = printed[2], printed[1]
    for (whole, begun, resumed), expected in ((first[:3], alone[0]), (second[:3], alone[0]), (alone[:3], first[0])):
        assert whole == pytest.approx(expected, rel=1e-4)
        assert begun[:4] + resumed[:-3] == pytest.approx(whole[:-3], rel=1e-4)
        assert resumed[-3:] == pytest.approx(whole[-3:], rel=1e-4)  # of the validation
    assert len(set(map(str, alone[0]))) == 9 + 3
    # a model axis over processes, the second mesh: both read all rows
    assert [first[3:], second[3:], alone[3:]] == [[(0, 2), (0, 1), (0, 2)], [(1, 2), (0, 1), (1, 2)], [(0, 1)] * 3]
