"""`datapipe browse` on an output of many short documents: start, answers, memory, size of the facts.

The server runs in its own process. Each request is sent 100 times over HTTP, with other options each time; p50 and p95
are of warm answers, after the first few.
"""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np

from tests.benchmarks.tables import Bound, Settings, Table

_PARTS, _WARM = 10, 5
_MIXTURE = """
name: browse-benchmark
seed: 3
output: {folder}/out
sources:
  web: {{path: "{folder}/part-*.jsonl", keep: [url]}}
stages:
  - normalize.unicode
  - filter.length: {{min_words: 10, max_words: 42}}
  - filter.gopher_quality: {{mode: tag}}
  - filter.gopher_repetition
  - dedup.exact
  - redact.pii
tokenizer: none
"""
_PROGRAM = "from datapipe.cli.main import main; main()"


def write_documents(folder: Path, count: int) -> None:
    """JSONL of short documents with ids, URLs, some duplicates and some addresses."""
    rng = random.Random(5)
    words = ["the", "of", "and", "to", "in", "that", *(f"word{number}" for number in range(2000))]
    for part in range(_PARTS):
        with open(folder / f"part-{part}.jsonl", "w") as stream:
            for number in range(count // _PARTS):
                text = " ".join(words[int(rng.random() ** 3 * len(words))] for _ in range(rng.randint(3, 45)))
                text += f" mail me at user{number}.{part}@mailhost.org please" if number % 97 == 0 else ""
                url = f"https://site{number % 1000}.org/{part}/{number}"
                stream.write(json.dumps({"id": f"doc-{part}-{number}", "url": url, "text": text}) + "\n")


def start(folder: Path) -> tuple[subprocess.Popen[str], str, float]:
    """A server, its address, and the seconds until its first answer."""
    command = [sys.executable, "-c", _PROGRAM, "browse", str(folder / "out"), "--no-open"]
    started = perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    with urlopen(f"{address}api/output") as answer:
        answer.read()
    return process, address, perf_counter() - started


def memory_mb(process: subprocess.Popen[str]) -> dict[str, float]:
    """Resident memory of a process: its own, and pages of mapped files."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return {line.split(":")[0]: int(line.split()[1]) / 1e3 for line in status.splitlines() if line.startswith(("RssA", "RssF"))}


def measure(address: str, path: str, options: Callable[[int], dict[str, Any]], num_times: int) -> tuple[float, float, float]:
    """Milliseconds of the first answer, p50 and p95 of later ones."""
    taken = []
    for number in range(num_times + _WARM):
        started = perf_counter()
        with urlopen(f"{address}api/{path}?{urlencode(options(number))}") as answer:
            answer.read()
        taken.append((perf_counter() - started) * 1e3)
    return taken[0], *np.percentile(taken[_WARM:], [50, 95]).tolist()


def tables(settings: Settings) -> Iterator[Table]:
    yield _looking(settings.folder, 20_000 if settings.quick else settings.documents or 1_000_000)


def bounds(folder: Path) -> Iterator[Bound]:
    medians = []
    for count in (2_000, 8_000):
        (folder / str(count)).mkdir()
        rows = _looking(folder / str(count), count, 20).rows
        medians.append({name: float(p50.replace(",", "")) for name, _, p50, _ in rows})
    for name in ("look-up of an id", "a document with its path"):
        yield Bound(name=f"browse, {name}, four times the documents", ratio=medians[1][name] / medians[0][name], most=3)


def _looking(folder: Path, count: int, num_times: int = 100) -> Table:
    """An output of `count` documents; each request is sent `num_times` times."""
    write_documents(folder, count)
    (folder / "mixture.yaml").write_text(_MIXTURE.format(folder=folder))
    command = [sys.executable, "-c", _PROGRAM, "run", str(folder / "mixture.yaml")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first_s = _stopped(*start(folder))
    process, address, start_s = start(folder)
    try:
        before = memory_mb(process)
        rows = _rows(address, count, num_times)
        after = memory_mb(process)
    finally:
        _stopped(process, address, start_s)
    num_bytes = sum(file.stat().st_size for file in (folder / "out/work/attempts").rglob("*.parquet"))
    return Table(
        title="Looking at documents",
        note=f"{count:,} documents of 24 words, {num_bytes / count:.0f} bytes a document of facts. The first "
        f"start takes {first_s:.1f} s, later ones {start_s:.1f} s, up to the first answer. The server takes "
        f"{_shown(before)} then, and {_shown(after)} after all requests of the table, each sent {num_times} times.",
        header=("answer of `datapipe browse`", "first, ms", "p50, ms", "p95, ms"),
        rows=rows,
        kept_in="datapipe/explore/README.md",
    )


def _stopped(process: subprocess.Popen[str], address: str, seconds: float) -> float:
    process.terminate()
    process.communicate()
    return seconds


def _rows(address: str, count: int, num_times: int) -> list[tuple[str, ...]]:
    rng = random.Random(1)
    listed = {"fate": "dropped", "limit": 50}
    tag = {"fate": "kept", "stage": "filter.gopher_quality", "rule": "too_few_words", "limit": 50}
    requests: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
        "documents of a rule": ("documents", lambda n: {**listed, "rule": "too_few_words", "offset": 50 * n}),
        "dropped, nearest the threshold": ("documents", lambda n: {**listed, "sort": "distance", "offset": 50 * n}),
        "dropped, of some values": ("documents", lambda n: {**listed, "min": n % 9, "max": 50, "sort": "-value"}),
        "kept, longest first": ("documents", lambda n: {"fate": "kept", "sort": "-bytes", "offset": 50 * n, "limit": 50}),
        "kept, nearest the threshold, by tags": ("documents", lambda n: {**tag, "sort": "distance", "offset": 50 * n}),
        "look-up of an id": ("lookup", lambda n: {"q": f"doc-{n % _PARTS}-{rng.randrange(count // _PARTS)}"}),
        "look-up of a URL": ("lookup", lambda n: {"q": _url(rng, count)}),
    }
    rows = [(name, *measure(address, path, options, num_times)) for name, (path, options) in requests.items()]
    with urlopen(f"{address}api/documents?limit=100&fate=dropped") as answer:
        keys = [row["key"] for row in json.loads(answer.read())["documents"]]
    rows.append(("look-up of a key", *measure(address, "lookup", lambda n: {"q": keys[n % len(keys)]}, num_times)))
    rows.append(("a document with its path", *measure(address, f"document/{keys[0]}", lambda n: {}, num_times)))
    return [(name, *(f"{ms:,.1f}" for ms in taken)) for name, *taken in rows]


def _url(rng: random.Random, count: int) -> str:
    number = rng.randrange(count // _PARTS)
    return f"https://site{number % 1000}.org/{rng.randrange(_PARTS)}/{number}"


def _shown(memory: dict[str, float]) -> str:
    return f"{memory['RssAnon']:.0f} MB and {memory['RssFile']:.0f} MB of mapped files"
