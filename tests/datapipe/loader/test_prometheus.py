"""A scrape over HTTP returns the stats of the loaders."""

from __future__ import annotations

import threading
from itertools import islice
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from datapipe.errors import UserError
from datapipe.loader import Loader
from datapipe.loader.prometheus import serve_metrics
from tests.support.snapshots import make_snapshot


def scrape(port: int) -> dict[tuple[str, str, str], float]:
    """Value by (name, rank, split)."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, sample.labels["rank"], sample.labels["split"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"web": 60}, validation={"web": 9})


@pytest.mark.medium
def test_metrics_are_the_stats_of_each_loader(output: Path) -> None:
    train = Loader(output, global_batch_size=4, rank=1, world_size=2)
    validation = Loader(output, global_batch_size=4, split="validation")
    with serve_metrics([train, validation], port=0) as server:
        assert scrape(server.port)["datapipe_loader_steps_total", "1", "train"] == 0
        list(islice(train, 7))
        list(validation)
        found = scrape(server.port)
    for loader, steps in ((train, 7), (validation, 3)):
        stats = loader.stats()
        expected = {f"{name}_total": getattr(stats, name) for name in ("steps", "tokens", "bytes", "built")}
        expected |= {
            f"{name}_seconds_total": getattr(stats, f"{name}_s") for name in ("wait", "first_wait", "compute", "build")
        }
        expected |= {"buffer_batches": stats.buffer_now, "prefetch_batches": stats.depth}
        expected |= {"host_memory_bytes": stats.host_memory.bytes}
        for name, value in expected.items():
            assert found[f"datapipe_loader_{name}", str(stats.rank), stats.split] == pytest.approx(value), name
        assert expected["steps_total"] == steps


@pytest.mark.medium
def test_metrics_server_leaves_no_thread_and_names_a_port_in_use(output: Path) -> None:
    loader = Loader(output, global_batch_size=4)
    before = set(threading.enumerate())
    server = serve_metrics([loader], port=0)
    with pytest.raises(UserError, match=f"127.0.0.1:{server.port}"):
        serve_metrics([loader], port=server.port)
    server.close()
    assert set(threading.enumerate()) == before
