"""`deploy/slurm.sbatch`, submitted as in `deploy/README.md`, to a Slurm of two nodes."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.storm.checks import digests, num_records, write_mixture
from tests.support import cli_processes
from tests.support.cli_processes import wait_until
from tests.support.slurm import slurm

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
BEFORE_END = {"PENDING", "RUNNING", "COMPLETING", ""}
SCRIPT = ROOT / "deploy" / "slurm.sbatch"


@pytest.fixture(scope="module")
def cluster():
    with slurm() as made:
        yield made


def _submit(cluster, folder: Path, mixture: Path, output: Path) -> str:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {"MIXTURE": str(mixture), "OUTPUT": str(output), "VENV": sys.prefix, "PYTHONPATH": paths}
    return cluster.submit(SCRIPT, folder, variables, "--nodes=2")


def _wait(cluster, job: str, folder: Path) -> None:
    wait_until(lambda: cluster.state(job) not in BEFORE_END, "the job")
    assert cluster.state(job) == "COMPLETED", _screen(folder, job)


def _screen(folder: Path, job: str) -> str:
    """What the job and its tasks printed."""
    return "\n".join(path.read_text() for path in sorted(folder.glob(f"slurm-{job}*.out")))


def _events(folder: Path, job: str) -> list[dict]:
    return [json.loads(line) for line in (folder / f"run-{job}.jsonl").read_text().splitlines()]


def test_job_of_two_nodes_is_cancelled_resubmitted_and_makes_the_snapshot_of_a_local_run(tmp_path, cluster):
    mixture = write_mixture(tmp_path)
    local, output = tmp_path / "local", tmp_path / "slurm"
    ran = cli_processes.run(["run", str(mixture), "--output", str(local)])
    assert ran.returncode == 0, ran.stderr

    first = _submit(cluster, tmp_path, mixture, output)
    wait_until(lambda: num_records(output) > 5 or cluster.state(first) not in BEFORE_END, "tasks")
    assert cluster.state(first) == "RUNNING", _screen(tmp_path, first)
    cluster.ask("scancel", first)
    wait_until(lambda: cluster.state(first) == "CANCELLED", "the job to be cancelled")
    assert not (output / "snapshot.json").exists()
    status = cli_processes.run(["status", str(output)])
    assert status.returncode == 3, status.stdout

    second = _submit(cluster, tmp_path, mixture, output)
    _wait(cluster, second, tmp_path)
    assert digests(output) == digests(local)
    committed = [sum(event["event"] == "task_committed" for event in _events(tmp_path, job)) for job in (first, second)]
    assert min(committed) > 0
    assert cli_processes.run(["status", str(output)]).returncode == 0
    assert sum(committed) <= 57 + 2, "a task that was committed ran again"
    assert [path.name for path in sorted(tmp_path.glob(f"slurm-{second}-*"))] == [
        f"slurm-{second}-0.out",
        f"slurm-{second}-1.out",
    ]
    assert "documents kept" in _screen(tmp_path, second)
