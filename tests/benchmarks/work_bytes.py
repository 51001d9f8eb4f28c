"""What `work/` takes at its most and after a run, by recipe and level of `execution.keep_work`, for each byte of text read.

Shards count until they are published, and not where they are links to published ones. The run is that of one core; with more, a
few more files of documents wait for their last reader.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from datapipe.config import load_mixture
from datapipe.engine.events import Committed, Event
from datapipe.engine.run import Run
from datapipe.records.names import WORK
from tests.benchmarks.tables import Settings, Table
from tests.support import runs

LEVELS = ("resume", "inspect", "none")
_FILTERS = [
    {"filter.language": {"keep": ["en"], "min_score": 0.65}},
    {"filter.gopher_repetition": {"profile": "datatrove"}},
    {"filter.gopher_quality": {"profile": "datatrove"}},
    {"filter.c4_quality": {"profile": "fineweb"}},
    {"filter.fineweb_quality": {"profile": "datatrove"}},
]
_FINEWEB = [*_FILTERS, {"dedup.minhash": {"verify": "none"}}]
_DEDUP = ["dedup.exact", "dedup.minhash", "dedup.substring"]


def recipes(settings: Settings) -> Iterator[tuple[str, Any, list[str]]]:
    """The name of each recipe, its mixture, and its settings."""
    yield "quickstart", Path(__file__).parents[2] / "mixtures/quickstart.yaml", []
    tail: dict[str, Any] = {"tokenizer": {"train": {"vocab_size": 32000}}, "pack": {"sequence_length": 2048}}
    common = {"seed": 17, "sources": {"web": {"path": str(settings.web)}}, "execution": {"split_bytes": 8 << 20}, **tail}
    yield "fineweb", {"name": "fineweb", "stages": [*_FINEWEB, "redact.pii"], **common}, []
    yield "no filter, four kinds of deduplication", {"name": "dedup", "stages": [*_DEDUP, "dedup.lines"], **common}, []


def measured(mixture: Path | Mapping[str, Any], overrides: list[str], output: Path) -> tuple[int, int, int]:
    """The most bytes below work/, those at the end, and the bytes of text that was read."""
    most = 0

    def look(event: Event) -> None:
        nonlocal most
        if isinstance(event, Committed):
            most = max(most, taken(output / WORK))

    run = Run(load_mixture(mixture, overrides, str(output)), look, make_engine=runs.InProcess)
    run.execute()
    assert run.plan is not None
    reading = [step for step in run.plan.of_kind("map") if step.id.endswith("/read")]
    text = sum(record.metrics.document_counts.read_bytes for step in reading for record in step.records)
    return most, taken(output / WORK), text


def taken(folder: Path) -> int:
    """Bytes of the files below a folder that have no other name."""
    states = (os.stat(Path(where, name)) for where, _, names in os.walk(folder) for name in names)
    return sum(state.st_size for state in states if state.st_nlink == 1)


def tables(settings: Settings) -> Iterator[Table]:
    rows: list[list[str]] = []
    for name, mixture, overrides in recipes(settings):
        if settings.only not in name or (settings.quick and rows):
            continue
        for level in LEVELS:
            output = settings.folder / "work_bytes"
            most, end, text = measured(mixture, [*overrides, f"execution.keep_work={level}"], output)
            rows.append([name, f"`{level}`", f"{text / 1e6:.1f}", f"{most / text:.2f}", f"{end / text:.2f}"])
            shutil.rmtree(output)
    header = ["recipe", "keep_work", "MB of text", "most, bytes a byte", "after the run"]
    note = "Bytes under `work/` for each byte of text that was read; links to published shards do not count."
    yield Table(title="The size of work/", note=note, header=header, rows=rows, kept_in="mixtures/README.md")
