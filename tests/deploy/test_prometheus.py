"""A real Prometheus, started as in `deploy/README.md`, scrapes a run on two Ray nodes in which attempts fail, hang and wait.

store with 503s ── 10.77.N.1 ══ n1: head, driver, Prometheus, half of the tasks
                             ══ n2: the other half
"""

import json
import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from datapipe.storage.root import Root
from tests.storm.checks import digests
from tests.support import cli_processes, corpora
from tests.support.cli_processes import wait_until
from tests.support.machines import Machines
from tests.support.object_store import CREDENTIALS, object_store
from tests.support.ray_machines import ROOT, RayMachines, ray_machines
from tests.support.unreliable_store import UnreliableStore

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600), pytest.mark.needs("aiohttp_cors", "opencensus")]

DEPLOY = ROOT / "deploy"

_MIXTURE = """
name: watched
output: {folder}/ray
sources:
  web:
    path: {folder}/web/*.jsonl
    stages:
      - tests.support.faulty:crashes_once: {{folder: {folder}/faults}}
      - dedup.exact
      - tests.support.faulty:hangs_once: {{folder: {folder}/faults}}
      - dedup.minhash
      - tests.support.faulty:dawdles_once: {{folder: {folder}/faults}}
  books:
    path: s3://corpus/*.jsonl{query}
    stages: [dedup.exact]
tokenizer:
  train: {{vocab_size: 400, sample_bytes: 64KiB}}
pack: {{sequence_length: 128}}
execution: {{split_bytes: 16KiB, bucket_bytes: 64KiB}}
"""


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    if missing := [name for name in ("prometheus", "promtool") if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")


@pytest.mark.parametrize("file", ["prometheus.yml", "alerts.yml"])
def test_promtool_accepts_the_file_by_the_command_in_its_first_line(file: str) -> None:
    command = (DEPLOY / file).read_text().splitlines()[0].removeprefix("# ")
    assert command.startswith("promtool check")
    checked = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_fires_for_what_it_reports_and_for_nothing_else() -> None:
    file = Path(__file__).with_name("alerts.test.yml")
    checked = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    rules = [
        rule
        for group in YAML(typ="safe", pure=True).load((DEPLOY / "alerts.yml").read_text())["groups"]
        for rule in group["rules"]
    ]
    assert [rule["alert"] for rule in rules if f"alertname: {rule['alert']}\n" not in file.read_text()] == []


def _write_corpus(folder: Path, query: str) -> Path:
    """Documents, three of which do what their first words ask, and as many on the store."""
    rng = random.Random(5)
    texts = [corpora.prose(rng) for _ in range(400)]
    for number, word in ((100, "crashes"), (250, "hangs"), (300, "dawdles")):  # the last one after the second attempt
        texts[number] = f"{word} {texts[number]}"
    (folder / "faults").mkdir()
    (folder / "web").mkdir()
    for number in range(4):
        rows = [{"text": text} for text in texts[100 * number : 100 * number + 100]]
        corpora.write_jsonl(folder / "web" / f"part-{number}.jsonl", rows)
    for number in range(4):
        rows = [{"text": corpora.prose(rng)} for _ in range(50)]
        Root(f"s3://corpus{query}").write_atomic(f"book-{number}.jsonl", corpora.jsonl(rows))
    mixture = folder / "mixture.yaml"
    mixture.write_text(_MIXTURE.format(folder=folder, query=query))
    return mixture


class Prometheus:
    """Asked on machine 1."""

    def __init__(self, cluster: RayMachines) -> None:
        self.cluster, self.started = cluster, int(time.time())

    def values(self, expression: str) -> list[float]:
        """All values of an expression since the start, in steps of 5 s; without those that are no number."""
        times = f"--start={self.started} --end={int(time.time())} --step=5s"
        quoted = expression.replace("'", "'\\''")
        asked = self.cluster.run(f"promtool query range -o json {times} http://127.0.0.1:9090 '{quoted}'")
        assert asked.returncode == 0, f"{expression}: {asked.stdout}{asked.stderr}"
        series = json.loads(asked.stdout)
        return [number for each in series for _, value in each["values"] if (number := float(value)) == number]


@pytest.fixture
def network():
    machines = Machines(os.getpid() % 250)
    try:
        machines.open()
        yield machines
    finally:
        machines.close()


def test_prometheus_has_data_for_every_panel_of_a_run_that_fails_and_waits(tmp_path, network):
    with object_store("corpus", network.host) as direct:
        upstream = re.search(r"http://([^&]+)", direct)
        assert upstream is not None
        store = UnreliableStore(upstream[1], network.host)
        try:
            mixture = _write_corpus(tmp_path, store.query)
            with ray_machines(CREDENTIALS, network) as cluster:
                _watch(cluster, store, mixture, tmp_path)
            store.heal()
            local = cli_processes.run(["run", str(mixture), "--output", str(tmp_path / "local")])
            assert local.returncode == 0, local.stderr
        finally:
            store.close()
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")


def _watch(cluster: RayMachines, store: UnreliableStore, mixture: Path, folder: Path) -> None:
    """Starts Prometheus, runs the mixture, and asks for every query of the dashboard."""
    lines = (DEPLOY / "README.md").read_text().splitlines()
    command = next(line for line in lines if line.startswith("prometheus --config"))
    server = cluster.start(command.replace("/tmp/prometheus", str(folder / "prometheus")), cwd=ROOT)
    try:
        _run_and_ask(cluster, store, mixture, folder)
    finally:
        server.terminate()
        server.wait(30)


def _run_and_ask(cluster: RayMachines, store: UnreliableStore, mixture: Path, folder: Path) -> None:
    prometheus = Prometheus(cluster)
    events = folder / "run.jsonl"
    run = cluster.start(
        f"datapipe run {mixture} --engine ray --address auto --metrics-port 9400 --log-json {events}", cwd=folder
    )
    wait_until(lambda: run.poll() is not None or (events.exists() and '"planned"' in events.read_text()), "the plan")
    store.fail("status", path="book-", status=503, times=None)
    wait_until(
        lambda: run.poll() is not None or bool(prometheus.values("datapipe_run_waiting")), "the run to wait for the store"
    )
    store.heal()
    assert run.wait(300) == 0, (cluster.folder / "datapipe.log").read_text()
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    found = {expression: prometheus.values(expression) for expression in expressions}
    assert [expression for expression, values in found.items() if not values] == []
    for part in ("failures_total", "second_attempts_total"):
        values = next(values for expression, values in found.items() if part in expression)
        assert max(values) > 0, part
