"""The history of an output: the last run and its inputs, so that its documents can be inspected after the inputs changed.

work/run.json         version, limit, earlier runs it was compared with, the fingerprints of every step's tasks, in order;
                      `facts`: digests of the code of stages and tasks, from which `plan` explains why a step would run;
                      `kept`: by step, the share of text that it kept, from which `plan` estimates
work/inputs.parquet   each input file: source, path, url, size, stamp, compression, pieces, format

URLs are written without credentials. They get them back from the mixture, whose variables have to be set again.
"""

import io
import json
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.config import Mixture, catalogue, load_mixture
from datapipe.config.interpolation import parsed_yaml
from datapipe.config.stage_use import parse_format
from datapipe.credentials import is_masked, masked_urls, restored
from datapipe.dataclass import asdict, dataclass, field
from datapipe.errors import UserError
from datapipe.inputs.path_lists import SIGN as LIST_SIGN
from datapipe.records.commit_files import RECORD_VERSION
from datapipe.records.ledger import Ledger
from datapipe.records.names import BEGUN, CLUSTER, INPUTS, MIXTURE, RUN
from datapipe.snapshots.committed_steps import read_step, step_entry
from datapipe.snapshots.index.reference_rows import earlier_runs
from datapipe.stage.field_types import FoundType
from datapipe.stage.reader import InputFile, Reader
from datapipe.steps.estimate import Estimate, KeptText, estimate, estimated_sizes, kept_text
from datapipe.steps.kind import Plan, Step
from datapipe.steps.reasons import LastRun, RunFacts, facts_of, reasons
from datapipe.steps.request import Request
from datapipe.steps.simulation import Basis, size_of_step
from datapipe.steps.splits import file_hash
from datapipe.storage.root import Root, parquet_table

_TEXTS = dict.fromkeys(("source", "path", "url", "stamp", "compression", "format"), pa.string())
_INPUTS = pa.schema({**_TEXTS, "num_bytes": pa.int64(), "pieces": pa.list_(pa.list_(pa.int64()))})


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHistory:
    """The last run of an output."""

    steps: tuple[Step, ...]  # with the records that still exist
    files: dict[int, tuple[str, InputFile, Reader]]  # by file hash, the source, the file and its reader
    earlier: tuple[str, ...] = ()  # URLs of the outputs and indexes that the run was compared with
    # by step, a file of each committed task that has lost one
    lost: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # kinds of tasks, and of their files, of which some were deleted because no task read them any more
    freed: frozenset[tuple[str, str]] = frozenset()


def write_run(root: Root, plan: Plan, request: Request) -> None:
    """Writes work/run.json, at the end of a run whether it succeeded or failed."""
    stages = (bound for source in request.sources.values() for bound in source.stages)
    widened = {name: source.types for name, (source, _) in plan.widened.items()}
    run = {
        "version": RECORD_VERSION,
        "limit": request.limit,
        "against": [masked_urls(url) for url in earlier_runs(stages)],
        "steps": [step_entry(step) for step in plan.steps],
        "facts": asdict(facts_of(request)),
        "kept": kept_text(plan),
        "types": {name: {field: kind.to_json() for field, kind in types.items()} for name, types in widened.items()},
    }
    root.write_atomic(RUN, json.dumps(run).encode())
    root.delete(BEGUN)


def _last(root: Root) -> dict[str, Any]:
    """work/run.json; empty where it is missing or damaged."""
    try:
        return json.loads(root.read_bytes(RUN))
    except (FileNotFoundError, ValueError):
        return {}


def read_types(root: Root) -> dict[str, dict[str, FoundType]]:
    """By source and field, the types of kept fields in the last run; empty where unknown."""
    types = _last(root).get("types", {})
    return {name: {field: FoundType.from_json(kind) for field, kind in of.items()} for name, of in types.items()}


def write_inputs(root: Root, request: Request) -> None:
    """Writes work/inputs.parquet, before a run reads anything, and notes that it has begun. Files
    to which those of the request are added stay in it."""
    root.write_atomic(BEGUN, b"")
    is_added = request.added_to is not None and root.exists(INPUTS)
    earlier = parquet_table(root.read_bytes(INPUTS)).to_pylist() if is_added else []
    read = {(name, path) for name, source in request.sources.items() for path in source.files}
    rows = [row for row in earlier if (row["source"], row["path"]) not in read]
    rows += [
        {
            "source": name,
            "path": path,
            "url": masked_urls(file.url),
            "num_bytes": file.num_bytes,
            "stamp": file.stamp,
            "compression": file.compression,
            "pieces": [list(piece) for piece in file.row_groups],
            "format": _format(source.readers[path]),
        }
        for name, source in request.sources.items()
        for path, file in source.files.items()
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, _INPUTS), sink, compression="zstd")
    root.write_atomic(INPUTS, sink.getvalue())


def was_whole(root: Root) -> bool:
    """Whether the last run of an output had no `--limit`; False where there was none."""
    return _last(root).get("limit", 0) is None


def why(root: Root, request: Request, plan: Plan) -> dict[str, list[str]]:
    return reasons(_last_run(root), request, plan, parsed_yaml(request.mixture.resolved_yaml()))


def estimated(root: Root, request: Request, plan: Plan) -> Estimate:
    """An estimate of the steps that are not committed, by the shares that the last run kept."""
    return estimate(request, plan, kept_by_last_run(root))


def basis_of(root: Root, request: Request, plan: Plan) -> Basis:
    """What the last run of an output measured, where it has ended and had the steps of a plan; else estimates. Raises
    UserError for damaged files."""
    last, wanted = _last(root), {step.id for step in plan.steps}
    if last.get("version") == RECORD_VERSION and wanted <= {step["id"] for step in last["steps"]}:
        history = read_history(root)
        steps = [step for step in history.steps if step.is_committed and _is_among(step.id, wanted)]
        if wanted <= {step.id for step in steps}:
            sizes = [size_of_step(step) for step in steps]
            return Basis(steps=sizes, text_bytes=_text_read(history, last["limit"]), is_measured=True)
    stored = {name: sum(file.num_bytes for file in source.files.values()) for name, source in request.sources.items()}
    return Basis(steps=estimated_sizes(request, plan, kept_by_last_run(root)), text_bytes=stored, is_measured=False)


def _is_among(step_id: str, wanted: Collection[str]) -> bool:
    """Whether a step is one of these, or a later round of one."""
    return step_id in wanted or f"{step_id.rpartition('-')[0]}-1" in wanted


def _text_read(history: RunHistory, limit: int | None) -> dict[str, float]:
    """The stored bytes that a run read of each source. Of a limited run, those of the text that it read."""
    stored, unpacked = Counter[str](), Counter[str]()
    for source, file, _ in history.files.values():
        stored[source] += file.num_bytes
        unpacked[source] += file.text_bytes
    read: dict[str, float] = dict(stored)
    for step in history.steps:
        counts = step.totals.documents
        if step.id == f"{step.source}/read" and limit is not None and counts.read >= limit:
            read[step.source] = min(read[step.source], counts.read_bytes * stored[step.source] / unpacked[step.source])
    return read


def kept_by_last_run(root: Root) -> KeptText:
    """The share of text that each step kept in the last run of an output; empty where unknown."""
    return _last(root).get("kept", {})


def _last_run(root: Root) -> LastRun | None:
    run = _last(root)
    if run.get("version") != RECORD_VERSION:
        return None
    try:
        inputs, options = facts_of_files(root), parsed_yaml(root.read_bytes(MIXTURE).decode())
    except (FileNotFoundError, ValueError):
        return None
    tasks = {step["id"]: step["tasks"] for step in run["steps"]}
    return LastRun(tasks=tasks, limit=run["limit"], inputs=inputs, options=options, facts=RunFacts(**run["facts"]))


def facts_of_files(root: Root) -> dict[str, dict[str, tuple[int, str]]]:
    """By source and path, size and time of the input files as they were read; empty where unknown."""
    facts: dict[str, dict[str, tuple[int, str]]] = {}
    names = ["source", "path", "num_bytes", "stamp"]
    for row in parquet_table(root.read_bytes(INPUTS), names).to_pylist() if root.exists(INPUTS) else ():
        facts.setdefault(row["source"], {})[row["path"]] = row["num_bytes"], row["stamp"]
    return facts


def read_history(root: Root) -> RunHistory:
    """Raises UserError where no run has been, or one of another version, and for damaged files."""
    try:
        run = json.loads(root.read_bytes(RUN))
        inputs = parquet_table(root.read_bytes(INPUTS)).to_pylist()
    except FileNotFoundError as error:
        begun = "a run has begun here, and none has ended: `datapipe status` shows its progress"
        why = begun if root.exists(BEGUN) else "no run has left anything here"
        raise UserError(f"{root.url}: {why}. Expected the output of `datapipe run`.") from error
    except ValueError as error:  # pyarrow's errors of damaged files are ValueErrors
        raise UserError(
            f"{root.child_url(RUN)} or inputs.parquet beside it is damaged: {error}. Its mixture, run again, writes both."
        ) from error
    if run.get("version") != RECORD_VERSION:
        raise UserError(
            f"{root.child_url(RUN)}: the records of this run have version {run.get('version')}; this datapipe reads version "
            f"{RECORD_VERSION}. Its snapshot can be loaded, verified and exported as before. To explore its documents, run "
            f"its mixture again, or use the datapipe that wrote it."
        )
    run["against"], inputs = _with_credentials(root, run["against"], inputs)
    ledger = Ledger(root)
    ledger.load()
    steps = tuple(read_step(ledger, entry) for entry in run["steps"])
    lost = {entry["id"]: [path for path in map(ledger.lost_output, entry["tasks"]) if path] for entry in run["steps"]}
    outputs = ((step.kind, *each) for step in steps for record in step.records for each in record.outputs.items())
    freed = frozenset((work, kind) for work, kind, files in outputs if any(ledger.is_freed(file.path) for file in files))
    earlier, files = tuple(run["against"]), dict(_file(row) for row in inputs)
    return RunHistory(steps=steps, files=files, earlier=earlier, lost=lost, freed=freed)


def _with_credentials(root: Root, earlier: list[str], inputs: list[dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    if not any(is_masked(url) for url in (*earlier, *(row["url"] for row in inputs))):
        return earlier, inputs
    mixture = read_mixture(root)
    paths = {
        name: [*(path.removeprefix(LIST_SIGN) for path in source.path), source.prefix or ""]
        for name, source in mixture.sources.items()
    }
    uses = [use for name in mixture.sources for use in mixture.stages_of(name)]
    against = [text for use in uses for text in _texts(use.options)]
    rows = [row | {"url": restored(row["url"], paths.get(row["source"], ()))} for row in inputs]
    return [restored(url, against) for url in earlier], rows


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _texts(child)


def _format(reader: Reader) -> str:
    """The name of a reader; JSON as in a mixture where options differ from the defaults."""
    name, options = type(reader).__module__.rpartition(".")[2], reader.model_dump(mode="json", exclude_defaults=True)
    return json.dumps({name: options}) if options else name


def _file(row: dict[str, Any]) -> tuple[int, tuple[str, InputFile, Reader]]:
    reader = catalogue.build_reader(parse_format(json.loads(row["format"]) if "{" in row["format"] else row["format"]))
    source = row["source"]
    pieces = tuple((rows, num_bytes) for rows, num_bytes in row["pieces"])
    known = {name: row[name] for name in ("url", "path", "num_bytes", "stamp", "compression")}
    return file_hash(source, row["path"]), (source, InputFile(**known, row_groups=pieces), reader)


def node_hours(root: Root) -> float:
    """Hours of nodes of clusters in all runs into an output; 0 where work/ is deleted."""
    try:
        return float(json.loads(root.read_bytes(CLUSTER))["node_hours"])
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return 0.0


def add_node_hours(root: Root, hours: float) -> None:
    """Adds the hours of a run that has ended. A killed run adds none."""
    root.write_atomic(CLUSTER, (json.dumps({"node_hours": node_hours(root) + hours}) + "\n").encode())


def read_mixture(root: Root) -> Mixture:
    """The mixture of an output. References to unset variables stay where the mixture is valid with
    them. Raises UserError for a file that was edited or damaged."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / MIXTURE
        file.write_bytes(root.read_bytes(MIXTURE))
        try:
            return load_mixture(file, (), root.url)
        except UserError as error:
            with suppress(UserError):
                return load_mixture(file, (), root.url, keep_unset=True)
            there = str(error).replace(str(file), root.child_url(MIXTURE))
            raise UserError(f"{there}\nA run of the mixture writes this file again.") from error
