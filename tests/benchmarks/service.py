"""A service of batches on loopback: bytes per second of the server's CPU and of the clock, beside loaders of the files.

Batches of 16 sequences of 2,048 tokens, `input_ids` in int64: 262 kB. Server and clients are processes of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from tests.benchmarks.large_snapshot import sparse_snapshot
from tests.benchmarks.tables import NOT_MEASURED, Bound, Settings, Table
from tests.support.certificates import Authority
from tests.support.object_store import CREDENTIALS, served_objects
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

_MEMMAP = """
import json, sys, time
import numpy as np, torch
path, steps = sys.argv[1], int(sys.argv[2])
rows = np.memmap(path, np.uint16).reshape(-1, 2048)
order = np.random.default_rng(1).permutation(len(rows))
class Rows(torch.utils.data.Dataset):
    def __len__(self): return len(rows)
    def __getitem__(self, number): return torch.from_numpy(rows[order[number]].astype(np.int64))
loader = torch.utils.data.DataLoader(Rows(), batch_size=16, num_workers=2)
batches = iter(loader)
next(batches)
begun, num_bytes = time.perf_counter(), 0
for _ in range(min(steps, len(rows) // 16 - 2)):
    num_bytes += next(batches).nbytes
print(json.dumps({"wall_s": time.perf_counter() - begun, "bytes": num_bytes}))
"""

_MOSAIC = """
import json, sys, time, shutil
import numpy as np, torch
from streaming import MDSWriter, StreamingDataset
folder, remote, steps, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
shutil.rmtree(folder, ignore_errors=True)
tokens = np.random.default_rng(0).integers(0, 32_000, (count, 2048)).astype(np.uint16)
with MDSWriter(out=remote, columns={"tokens": "ndarray:uint16:2048"}, size_limit=1 << 26) as writer:
    for row in tokens:
        writer.write({"tokens": row})
started = time.perf_counter()
rows = StreamingDataset(remote=remote, local=folder + "/local", shuffle=True, batch_size=16, shuffle_seed=1)
batches = iter(torch.utils.data.DataLoader(rows, batch_size=16, num_workers=2))
next(batches)
first_s = time.perf_counter() - started
begun, num_bytes = time.perf_counter(), 0
for _ in range(min(steps, count // 16 - 8)):
    num_bytes += 4 * next(batches)["tokens"].nbytes
print(json.dumps({"first_s": first_s, "wall_s": time.perf_counter() - begun, "bytes": num_bytes}))
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
    rows.append(_local("loader of the files", _client(str(output), steps)))
    tokens = folder / "tokens.bin"
    tokens.write_bytes(bytes(2 * 2048 * _SEQUENCES))
    rows += _peers(folder / "mosaic", tokens, steps, settings.streaming)
    with sparse_snapshot(folder / "large", 64 if settings.quick else 16_384):  # noqa: SIM117
        with served(log, f"web={folder / 'large'}", "--no-files") as server:
            told = _client(f"{server.location}/web", 10)
    rows.append(("service, plain, a snapshot of 10^9 sequences", "", "", f"{told['first_s']:.2f} s", ""))
    return Table(
        title="A service of batches",
        note="Server and clients on one machine, batches of 16 sequences of 2,048 tokens, `input_ids` in int64 (262 "
        "kB). The time to the first batch counts from the call of `Loader`. Four clients are four ranks, with the "
        "slowest and the fastest. The peers read files of the machine, two workers each.",
        header=("", "GB/s by clock", "GB per s of server CPU", "first batch", ""),
        rows=rows,
    )


def _peers(folder: Path, tokens: Path, steps: int, python: str) -> list[tuple[str, ...]]:
    """torch over a memory map; and MosaicML's shards in a folder, and at an S3 server, the only one it reads from over HTTP."""
    if not python:
        return [("torch DataLoader over memmap; MosaicML streaming", NOT_MEASURED, "", "", "")]
    rows = [_local("torch DataLoader over memmap", _run([_MEMMAP, str(tokens), str(steps)], python))]
    with served_objects("mosaic") as query:
        os.environ.update(CREDENTIALS | {"S3_ENDPOINT_URL": dict(parse_qsl(query.removeprefix("?")))["endpoint_override"]})
        for place, remote in (("from a folder", str(folder / "remote")), ("from S3 over HTTP", "s3://mosaic/rows")):
            told = _run([_MOSAIC, str(folder), remote, str(steps), str(_SEQUENCES)], python)
            rows.append(_local(f"MosaicML streaming {place}, uint16 counted as int64", told))
    return rows


def _run(program: list[str], python: str) -> dict[str, Any]:
    done = subprocess.run([python, "-c", *program], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


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


def _local(name: str, told: dict[str, Any]) -> tuple[str, ...]:
    first = f"{told['first_s']:.2f} s" if "first_s" in told else ""
    return name, f"{told['bytes'] / told['wall_s'] / 1e9:.2f}", "", first, ""


def _trainer(url: str, quick: bool) -> tuple[str, ...]:
    told = _client(url, 10 if quick else 250, _STEP_S)
    return "service, plain, steps of 80 ms", "", "", f"{told['first_s']:.2f} s", f"{told['lost_share']:.3%} of the time lost"
