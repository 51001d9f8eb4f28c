"""What an output remembers of the run that made it, so that people can look into it whatever became of the inputs since.

work/run.json         limit, what it was held against, and the fingerprints of every step's tasks, in order
work/inputs.parquet   where each input file was: source, path, url, size, stamp, compression, pieces, format
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe import catalogue
from datapipe.config import Mixture, load_mixture
from datapipe.engine.publish import MIXTURE
from datapipe.errors import UserError
from datapipe.ledger.ledger import Ledger
from datapipe.plan.compile import Plan, Step
from datapipe.plan.request import Request
from datapipe.plan.splits import file_hash
from datapipe.stage.base import InputFile, Reader
from datapipe.storage import Root

RUN = "work/run.json"
INPUTS = "work/inputs.parquet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Remembered:
    """A run as its output remembers it.

    Attributes:
        steps: with the records that are still there; their tasks are not remembered.
        files: by file hash, the source, the file and its reader.
        earlier: outputs and indexes that it was held against.
    """

    steps: tuple[Step, ...]
    files: dict[int, tuple[str, InputFile, Reader]]
    earlier: tuple[str, ...] = ()


def remember_run(root: Root, plan: Plan, limit: int | None, earlier: Sequence[str] = ()) -> None:
    """Writes what `recall` reads; called when a run ends, well or not.

    Args:
        earlier: outputs and indexes that it was held against.
    """
    steps = [
        {"id": step.id, "kind": step.kind, "source": step.source, "tasks": [task.fingerprint for task in step.tasks or ()]}
        for step in plan.steps
    ]
    root.write_atomic(RUN, json.dumps({"limit": limit, "against": list(earlier), "steps": steps}).encode())


def remember_inputs(root: Root, request: Request) -> None:
    """Writes where the inputs are; called before anything is read."""
    rows = []
    for name, source in request.sources.items():
        for path, file in source.files.items():
            rows.append(
                {
                    "source": name,
                    "path": path,
                    "url": file.url,
                    "num_bytes": file.num_bytes,
                    "stamp": file.stamp,
                    "compression": file.compression,
                    "pieces": [list(piece) for piece in file.pieces],
                    "format": type(source.readers[path]).__module__.rpartition(".")[2],
                }
            )
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, _INPUTS), sink, compression="zstd")
    root.write_atomic(INPUTS, sink.getvalue())


_INPUTS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("source", "path", "url")),
        pa.field("num_bytes", pa.int64()),
        *(pa.field(name, pa.string()) for name in ("stamp", "compression")),
        pa.field("pieces", pa.list_(pa.list_(pa.int64()))),
        pa.field("format", pa.string()),
    ]
)


def limit_of(root: Root) -> int | None:
    """The `--limit` of the last run of an output; None for a whole one. Raises FileNotFoundError."""
    return json.loads(root.read_bytes(RUN))["limit"]


def recall(root: Root) -> Remembered:
    """What the output remembers. Raises UserError where no run has been."""
    try:
        run = json.loads(root.read_bytes(RUN))
        inputs = pq.read_table(pa.BufferReader(root.read_bytes(INPUTS))).to_pylist()
    except FileNotFoundError as error:
        raise UserError(f"{root.url}: no run has left anything here. Expected the output of `datapipe run`.") from error
    ledger = Ledger(root)
    ledger.load()
    steps = []
    for one in run.get("steps", []):
        found = [ledger.look_up(fingerprint) for fingerprint in one["tasks"]]
        records = tuple(record for record in found if record is not None)
        steps.append(Step(id=one["id"], kind=one["kind"], label="", source=one["source"], records=records))
    return Remembered(steps=tuple(steps), files=dict(_file(row) for row in inputs), earlier=tuple(run.get("against", ())))


def _file(row: dict) -> tuple[int, tuple[str, InputFile, Reader]]:
    reader = catalogue.build_reader(row["format"])
    source = row["source"]
    pieces = tuple((rows, num_bytes) for rows, num_bytes in row["pieces"])
    facts = {name: row[name] for name in ("url", "path", "num_bytes", "stamp", "compression")}
    return file_hash(source, row["path"]), (source, InputFile(**facts, pieces=pieces), reader)


def mixture_of(root: Root) -> Mixture:
    """The mixture of an output, as resolved when it ran."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / MIXTURE
        file.write_bytes(root.read_bytes(MIXTURE))
        return load_mixture(file, (), root.url)
