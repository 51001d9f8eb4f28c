"""Facts of the files of deploy/ that cannot be executed here, and the schema of `ray up`."""

import json
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main
from ruamel.yaml import YAML

from datapipe.cli.main import app
from datapipe.config.execution import ExecutionSpec

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
_IMPORTS_BYTES, _OBJECTS_SHARE = 300_000_000, 0.3
_CREDENTIAL = re.compile(r"(?i)secret|password|token|access_key")


def _loaded(name: str) -> dict[str, Any]:
    return YAML(typ="safe", pure=True).load((DEPLOY / name).read_text())


def _leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every value below with its path."""
    if isinstance(value, dict):
        return [leaf for key, each in value.items() for leaf in _leaves(each, f"{path}.{key}")]
    if isinstance(value, list):
        return [leaf for each in value for leaf in _leaves(each, path)]
    return [(path, value)]


def test_rayjob_ends_its_cluster_and_scales_workers_of_the_ray_of_the_lock() -> None:
    job = _loaded("rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    assert spec["shutdownAfterJobFinishes"] is cluster["enableInTreeAutoscaling"] is True
    assert min(spec["ttlSecondsAfterFinished"], spec["backoffLimit"]) > 0
    locked = re.search(r"^ray==(\S+)", (ROOT / ".ci" / "requirements.txt").read_text(), re.M)
    assert locked is not None and cluster["rayVersion"] == locked[1]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert group["replicas"] > 0, "the driver needs a node to begin with"


def test_rayjob_workers_have_the_memory_of_as_many_tasks_as_they_have_cores() -> None:
    execution = ExecutionSpec()
    task_bytes = 2 * execution.bucket_bytes + (256 << 20) + _IMPORTS_BYTES
    for group in _loaded("rayjob.yaml")["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        for container in group["template"]["spec"]["containers"]:
            limits = container["resources"]["limits"]
            assert container["resources"]["requests"] == limits
            memory_bytes = int(limits["memory"].removesuffix("Gi")) << 30
            assert int(limits["cpu"]) * task_bytes <= (1 - _OBJECTS_SHARE) * memory_bytes


def test_rayjob_and_compose_hold_no_credential() -> None:
    cluster = _loaded("rayjob.yaml")["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        for container in group["template"]["spec"]["containers"]:
            assert [list(source) for source in container["envFrom"]] == [["secretRef"]]
            assert "env" not in container
    credentials = [value for path, value in _leaves(_loaded("compose.yaml")) if _CREDENTIAL.search(path.rpartition(".")[2])]
    assert credentials
    assert [value for value in credentials if not re.fullmatch(r"\$\{\w+:\?\}", value)] == []


def test_compose_runs_the_image_of_the_dockerfile_once_the_store_answers() -> None:
    services = _loaded("compose.yaml")["services"]
    build = services["run"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert services["run"]["depends_on"]["store"]["condition"] == "service_healthy"
    assert services["store"]["healthcheck"]["test"]


def test_ray_cluster_is_valid_by_the_schema_of_ray() -> None:
    ray = find_spec("ray")
    assert ray is not None and ray.origin is not None
    cluster = _loaded("ray-cluster.yaml")
    jsonschema.validate(cluster, json.loads((Path(ray.origin).parent / "autoscaler" / "ray-schema.json").read_text()))
    types = cluster["available_node_types"]
    assert types[cluster["head_node_type"]]["resources"] == {"CPU": 0}
    assert cluster["docker"]["run_options"] == ["--entrypoint="], "Ray runs `bash` in the image"


def test_context_of_the_image_holds_what_the_dockerfile_copies() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert "*" in ignored
    assert [name for name in allowed if not (ROOT / name).exists()] == []
    copied = re.findall(r"^COPY (?!--from)(\S+) ", (DEPLOY / "Dockerfile").read_text(), re.M)
    assert {name for name in copied if name != "."} <= allowed


def _options(name: str, arguments: list[str]) -> dict[str, Any]:
    """The options of the command line of a command, by name. Fails for one that the command does not have."""
    command = typer.main.get_command(app)
    assert arguments[0] == name
    return command.get_command(None, name).make_context(name, arguments[1:]).params  # type: ignore[attr-defined]


def _documents(name: str) -> list[dict[str, Any]]:
    return list(YAML(typ="safe", pure=True).load_all((DEPLOY / name).read_text()))


def _ports(pod: dict[str, Any]) -> dict[str, int]:
    """The ports of the container of a template of pods, by name."""
    [container] = pod["spec"]["containers"]
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def test_pod_monitors_find_every_pod_by_its_labels_and_name_the_ports_on_which_its_programs_listen() -> None:
    selected = {
        frozenset(monitor["spec"]["selector"]["matchLabels"].items()): [
            endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]
        ]
        for monitor in _documents("podmonitor.yaml")
        if (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    }
    job = _loaded("rayjob.yaml")["spec"]
    head, workers = job["rayClusterSpec"]["headGroupSpec"], job["rayClusterSpec"]["workerGroupSpecs"]
    run = _options("run", shlex.split(job["entrypoint"])[1:])
    assert (run["metrics_host"], run["engine"]) == ("0.0.0.0", "ray")
    for group in (head, *workers):
        pod, expected = group["template"], {"metrics": int(group["rayStartParams"]["metrics-export-port"])}
        if group is head:  # ports by KubeRay's names: where a container lists any, its service has no others
            expected |= {"datapipe": run["metrics_port"], "gcs-server": 6379, "dashboard": 8265, "client": 10001}
        assert _ports(pod) == expected
        assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(expected["metrics"])
        assert {"datapipe", "metrics"} & expected.keys() <= set(selected[frozenset(pod["metadata"]["labels"].items())])
    [serve] = [document["spec"]["template"] for document in _documents("serve.yaml") if document["kind"] == "StatefulSet"]
    [port] = selected[frozenset(serve["metadata"]["labels"].items())]
    options = _options("serve", serve["spec"]["containers"][0]["args"])
    assert str(_ports(serve)[port]) == serve["metadata"]["annotations"]["prometheus.io/port"] == str(options["status_port"])


def test_servers_on_kubernetes_are_given_options_that_there_are_and_time_to_drain() -> None:
    documents = {document["kind"]: document for document in _documents("serve.yaml")}
    assert list(documents) == ["Service", "PodDisruptionBudget", "StatefulSet"]
    spec = documents["StatefulSet"]["spec"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    options = _options("serve", container["args"])
    assert (options["port"], options["status_port"]) == (8815, 8816)
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"grpc": 8815, "status": 8816}
    assert [port["port"] for port in documents["Service"]["spec"]["ports"]] == [8815, 8816]
    assert pod["terminationGracePeriodSeconds"] > options["drain_s"] + 5
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}
    assert spec["replicas"] > documents["PodDisruptionBudget"]["spec"]["maxUnavailable"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    for option in ("certificate", "key", "tokens"):
        assert any(str(options[option]).startswith(mount["mountPath"]) for mount in container["volumeMounts"])
    assert documents["Service"]["metadata"]["name"] == spec["serviceName"]


def test_the_unit_of_systemd_is_valid_and_gives_time_to_drain() -> None:
    text = (DEPLOY / "serve.service").read_text()
    command = re.search(r"^ExecStart=/usr/bin/env datapipe (.*?[^\\])$", text, re.M | re.S)
    assert command is not None
    options = _options("serve", shlex.split(command[1].replace("\\\n", " ")))
    stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.M)
    assert stop is not None
    assert int(stop[1]) > options["drain_s"] + 5
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(DEPLOY / "serve.service")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
