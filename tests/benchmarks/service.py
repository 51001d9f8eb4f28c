"""A service of batches on loopback: bytes per second of the server's CPU and of the clock, beside loaders of the files.

Batches of 16 sequences of 2,048 tokens, `input_ids` in int64: 262 kB. Server and clients are their own processes.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.tables import Bound, Settings, Table
from tests.support.certificates import Authority
from tests.support.service import Server, served
from tests.support.snapshots import make_snapshot

_STEPS, _QUICK_STEPS = 6_000, 200
_SEQUENCES = 20_000
_STEP_S = 0.08

_CLIENT = """
import json, sys, time
from datapipe.loader import Loader
url, steps, rank, world, step_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
started = time.perf_counter()
loader = Loader(url, global_batch_size=16 * world, rank=rank, world_size=world, fields=("input_ids",))
next(loader)
first_s = time.perf_counter() - started
begun, num_bytes = time.perf_counter(), 0
for _ in range(steps):
    num_bytes += next(loader)["input_ids"].nbytes
    if step_s:
        time.sleep(step_s)
wall_s = time.perf_counter() - begun
print(json.dumps({"first_s": first_s, "wall_s": wall_s, "bytes": num_bytes, "lost_share": loader.stats().lost_share}))
loader.close()
"""


def tables(settings: Settings) -> Iterator[Table]:
    yield _speed(settings)


def bounds(folder: Path) -> Iterator[Bound]:
    output = _output(folder, 4_000)
    direct = _client(str(output), 500)
    with served(folder / "server", f"web={output}", "--no-files") as server:
        remote = _client(f"{server.location}/web", 500)
    ratio = (remote["bytes"] / remote["wall_s"]) / (direct["bytes"] / direct["wall_s"])
    yield Bound(name="bytes/s from a service, beside the files", ratio=ratio, least=0.02)


def _output(folder: Path, count: int) -> Path:
    return make_snapshot(folder / "web", {"web": count}, sequence_length=2048, rows_per_shard=4_000, vocab_size=60_000)


def _speed(settings: Settings) -> Table:
    steps = _QUICK_STEPS if settings.quick else _STEPS
    folder = settings.folder / "service"
    folder.mkdir()
    log, output = folder / "server", _output(folder, _SEQUENCES)
    web = f"web={output}"
    authority = Authority(folder)
    certificate, key = authority.issue("a server of a benchmark")
    rows: list[tuple[str, ...]] = []
    with served(log, web, "--no-files") as server:
        url = f"{server.location}/web"
        rows += [_row("service, plain, 1 client", server, url, steps, 1)]
        rows += [_row("service, plain, 4 clients", server, url, steps // 4, 4), _trainer(url, settings.quick)]
    with served(log, web, "--no-files", "--tls-cert", str(certificate), "--tls-key", str(key)) as server:
        rows += [_row("service, TLS, 1 client", server, f"{server.location}/web?ca={authority.ca}", steps, 1)]
    with served(log, web) as server:
        rows.append(_row("service, files of the same machine", server, f"{server.location}/web", steps, 1))
    told = _client(str(output), steps)
    rows.append(("loader of the files", f"{told['bytes'] / told['wall_s'] / 1e9:.2f}", "", f"{told['first_s']:.2f} s", ""))
    return Table(
        title="A service of batches",
        note="Server and clients on one machine, batches of 16 sequences of 2,048 tokens, `input_ids` in int64 (262 "
        "kB). The time to the first batch counts from the call of `Loader`. Four clients are four ranks, with the "
        "slowest and the fastest.",
        header=("", "GB/s by clock", "GB per s of server CPU", "first batch", ""),
        rows=rows,
    )


def _start(url: str, steps: int, rank: int, world: int, step_s: float = 0.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _CLIENT, url, str(steps), str(rank), str(world), str(step_s)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _client(url: str, steps: int, step_s: float = 0.0) -> dict[str, Any]:
    return json.loads(_start(url, steps, 0, 1, step_s).communicate()[0])


def _row(name: str, server: Server, url: str, steps: int, clients: int) -> tuple[str, ...]:
    _client(url, 10)  # opens files
    before, built = server.figure("datapipe_service_cpu_seconds_total"), server.figure("datapipe_service_bytes_total")
    running = [_start(url, steps, rank, clients) for rank in range(clients)]
    told = [json.loads(client.communicate()[0]) for client in running]
    cpu_s = server.figure("datapipe_service_cpu_seconds_total") - before
    num_bytes = server.figure("datapipe_service_bytes_total") - built
    rates = sorted(one["bytes"] / one["wall_s"] / 1e9 for one in told)
    by_cpu = f"{num_bytes / cpu_s / 1e9:.2f}" if num_bytes else ""
    shares = f"{rates[0]:.2f} to {rates[-1]:.2f} each" if clients > 1 else ""
    return name, f"{sum(rates):.2f}", by_cpu, f"{max(one['first_s'] for one in told):.2f} s", shares


def _trainer(url: str, quick: bool) -> tuple[str, ...]:
    told = _client(url, 10 if quick else 250, _STEP_S)
    return "service, plain, steps of 80 ms", "", "", f"{told['first_s']:.2f} s", f"{told['lost_share']:.3%} of the time lost"
