"""`ray job submit`, as in `deploy/README.md`, from a machine that is no node."""

import re
import subprocess

import pytest

from tests.storm.checks import digests, num_records, write_mixture
from tests.support import cli_processes
from tests.support.cli_processes import wait_until
from tests.support.ray_machines import ROOT, ray_machines

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600), pytest.mark.needs("aiohttp_cors", "opencensus")]


@pytest.fixture(scope="module")
def cluster():
    with ray_machines() as made:
        yield made


def _command(cluster, subcommand: str) -> str:
    """The command of `deploy/README.md`, with the addresses of this cluster."""
    text = (ROOT / "deploy" / "README.md").read_text()
    found = re.search(rf"`(ray job {subcommand} [^`]*)`", text)
    assert found is not None, f"deploy/README.md has no `ray job {subcommand}`"
    return found[1].replace("HEAD", cluster.head)


def _here(cluster, command: str, cwd) -> subprocess.CompletedProcess[str]:
    """Runs a command line on this machine, which reaches the cluster and is none of its nodes."""
    return subprocess.run(
        command, shell=True, cwd=cwd, capture_output=True, text=True, check=False, env=cluster.environment, timeout=300
    )


def test_submitted_job_is_stopped_submitted_again_and_makes_the_snapshot_of_a_local_run(tmp_path, cluster):
    write_mixture(tmp_path)
    (tmp_path / "job").mkdir()
    mixture = (tmp_path / "mixture.yaml").rename(tmp_path / "job" / "mixture.yaml")  # the working directory travels
    ran = cli_processes.run(["run", str(mixture), "--output", str(tmp_path / "local")])
    assert ran.returncode == 0, ran.stderr

    output = tmp_path / "out"
    submit = f"{_command(cluster, 'submit')} --output {output}"
    started = _here(cluster, submit.replace(" -- ", " --no-wait --submission-id first -- "), tmp_path / "job")
    assert started.returncode == 0, started.stdout + started.stderr
    wait_until(lambda: num_records(output) > 5, "tasks")
    stopped = _here(cluster, _command(cluster, "stop").replace("JOB", "first"), tmp_path)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert not (output / "snapshot.json").exists()
    logs = _here(cluster, _command(cluster, "logs").replace("JOB", "first"), tmp_path)
    assert "Committed tasks are kept" in logs.stdout, logs.stdout + logs.stderr

    finished = _here(cluster, submit, tmp_path / "job")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "resuming with" in finished.stdout
    assert digests(output) == digests(tmp_path / "local")
