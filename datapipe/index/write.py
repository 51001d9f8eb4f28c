"""Indexes: the rows that global stages of a run emitted, as later runs are held `against` them.

    OUTPUT/work/   index.json   index/tables-….parquet   index/files-….parquet        the files of rows are those of its tasks
    INDEX/         index.json   index/tables-….parquet   index/files-….parquet   rows/

An index holds every document that came to a stage, also those that it dropped. `tables` lists the files of rows, each with the
group of input files whose documents it is about; `files` says which these are. Of the texts themselves there is what the stage
exchanges of them: hashes and signatures, and passages for `dedup.substring`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.errors import CorruptionError, UserError
from datapipe.ledger.names import WORK
from datapipe.plan.compile import Plan
from datapipe.plan.outputs import ExchangeFile
from datapipe.plan.request import Request
from datapipe.plan.splits import file_hash
from datapipe.shards.checksum import bytes_checksum
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import FINAL_SCHEMAS
from datapipe.storage import Root

INDEX = "index.json"
ROWS = "rows"
_FOLDER = "index"
_VERSION = 1

_TABLES = pa.schema(
    [
        ("stage", pa.int32()),
        ("group", pa.int32()),
        ("table", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("weight", pa.int64()),
        ("checksum", pa.string()),
        ("first", pa.uint64()),
        ("last", pa.uint64()),
        ("runs", pa.int64()),
    ]
)
_FILES = pa.schema([("hash", pa.uint64()), ("source", pa.string()), ("path", pa.string()), ("group", pa.int32())])


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedStage:
    """A stage whose rows an index holds: its name in the run, and what `Global.row_identity` said."""

    name: str
    identity: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedRows:
    """A file of rows: of the stage of this number, in the table of this name, about the documents of this group."""

    stage: int
    group: int
    table: str
    output: ExchangeFile


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedFile:
    """An input file whose documents are in an index, or some of them: it may be in several groups."""

    hash: int
    source: str
    path: str
    group: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """An index; paths of rows are relative to `root`."""

    root: Root
    stages: tuple[IndexedStage, ...]
    rows: tuple[IndexedRows, ...]
    files: tuple[IndexedFile, ...]

    @property
    def url(self) -> str:
        """Of the output or the folder, as people name it."""
        return self.root.url.removesuffix("/work")

    def of_stage(self, number: int) -> dict[str, tuple[ExchangeFile, ...]]:
        """The files of rows of a stage by table, as another run reads them."""
        found: dict[str, list[ExchangeFile]] = {}
        for one in self.rows:
            if one.stage == number:
                url = self.root.child_url(one.output.path)
                found.setdefault(one.table, []).append(replace(one.output, url=url))
        return {name: tuple(outputs) for name, outputs in found.items()}


def index_of_run(root: Root, request: Request, plan: Plan) -> Index | None:
    """What the committed tasks of a run have emitted; None where it has no global stage."""
    groups, files = _groups(request)
    steps = {step.id: step for step in plan.steps}
    stages: list[IndexedStage] = []
    rows: list[IndexedRows] = []
    for number, global_step in enumerate(plan.pipeline.global_steps):
        stage = cast(Global, global_step.stage.stage)
        stages.append(IndexedStage(name=global_step.stage.name, identity=stage.row_identity(request.mixture.seed)))
        for source, segment in global_step.sources:
            for group, record in zip(groups[source], steps[plan.pipeline.map_step(source, segment)].records, strict=True):
                for table in stage.emits():
                    if table not in FINAL_SCHEMAS:  # verdicts are the earlier run's own affair
                        listed = [one for one in record.of(f"emitted.{table}", ExchangeFile) if one.rows]
                        rows += [IndexedRows(stage=number, group=group, table=table, output=_inside(one)) for one in listed]
    return Index(root=root.within(WORK), stages=tuple(stages), rows=tuple(rows), files=tuple(files)) if stages else None


def _groups(request: Request) -> tuple[dict[str, list[int]], list[IndexedFile]]:
    """By source the numbers of its map tasks, counted through all sources; and what files each reads."""
    numbers: dict[str, list[int]] = {}
    files: list[IndexedFile] = []
    count = 0
    for name, planned in request.sources.items():
        groups = planned.groups if request.limit is None else (planned.splits,)
        numbers[name] = list(range(count, count + len(groups)))
        for number, group in zip(numbers[name], groups):
            paths = dict.fromkeys(split.file.path for split in group)
            files += [IndexedFile(hash=file_hash(name, path), source=name, path=path, group=number) for path in paths]
        count += len(groups)
    return numbers, files


def _inside(output: ExchangeFile) -> ExchangeFile:
    """An output of a run by its path below work/."""
    return replace(output, path=output.path.removeprefix(f"{WORK}/"))


# ---------------------------------------------------------------------------------------------------- on disk


def write_index(index: Index) -> None:
    """Writes an index, or puts it in place of the one that is there; its rows are there already. All or nothing: index.json
    is written last."""
    tables = pa.Table.from_pylist([_row(one) for one in index.rows], _TABLES)
    files = [{"hash": one.hash, "source": one.source, "path": one.path, "group": one.group} for one in index.files]
    parts = {
        "tables": _write(index.root, "tables", tables),
        "files": _write(index.root, "files", pa.Table.from_pylist(files, _FILES)),
    }
    stages = [{"name": one.name, "identity": one.identity} for one in index.stages]
    content = {"index": _VERSION, "stages": stages, **parts}
    index.root.write_atomic(INDEX, json.dumps(content, indent=1, ensure_ascii=False).encode())
    for path, _ in index.root.list_files(_FOLDER):
        if path not in {part["path"] for part in parts.values()}:
            index.root.delete(path)


def _row(one: IndexedRows) -> dict[str, Any]:
    output = one.output
    known = {name: getattr(output, name) for name in ("path", "rows", "bytes", "checksum", "first", "last", "runs")}
    return {"stage": one.stage, "group": one.group, "table": one.table, "weight": output.row_bytes, **known}


def _write(root: Root, name: str, table: pa.Table) -> dict[str, str]:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    content = sink.getvalue()
    checksum = bytes_checksum(content)
    path = f"{_FOLDER}/{name}-{checksum.rpartition(':')[2][:16]}.parquet"
    root.write_atomic(path, content)
    return {"path": path, "checksum": checksum}


def open_index(url: str, where: str = "") -> Index:
    """The index at a path or URL, or that of an output. Raises UserError where there is none, CorruptionError."""
    root = _root_of(url.rstrip("/"), where)
    content = _parsed(root, url)
    version = content.get("index")
    if version != _VERSION:
        raise UserError(f"{where}{url}: an index of version {version}; this datapipe reads version {_VERSION}. Make it anew.")
    try:
        tables, files = (_read(root, content[name]) for name in ("tables", "files"))
    except CorruptionError:
        rewritten = _parsed(root, url)  # another process may have put a new one in place, and deleted what was named
        if rewritten == content:
            raise
        content = rewritten
        tables, files = (_read(root, content[name]) for name in ("tables", "files"))
    return Index(
        root=root,
        stages=tuple(IndexedStage(name=one["name"], identity=one["identity"]) for one in content["stages"]),
        rows=tuple(_rows(tables)),
        files=tuple(IndexedFile(**row) for row in files.to_pylist()),
    )


def _root_of(url: str, where: str) -> Root:
    for root in (Root(url), Root(url).within(WORK)):
        try:
            if root.exists(INDEX):
                return root
        except OSError as error:  # a store that does not answer, or no such bucket
            raise UserError(f"{where}{url}: {error}. Expected a folder that can be read.") from error
    raise UserError(
        f"{where}{url}: no index here. Expected the output of a run with a stage like this one that still has its work/ "
        "folder, or a folder that `datapipe index` made of such outputs."
    )


def _parsed(root: Root, url: str) -> dict[str, Any]:
    try:
        content = json.loads(root.read_bytes(INDEX))
        return {"index": content["index"], "stages": content["stages"], "tables": content["tables"], "files": content["files"]}
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{url}/{INDEX}: not what `datapipe` writes ({error}). Make the index anew.") from error


def _read(root: Root, part: Mapping[str, str]) -> pa.Table:
    try:
        content = root.read_bytes(part["path"])
    except FileNotFoundError as error:
        raise CorruptionError(f"{root.child_url(part['path'])}: missing. Make the index anew.") from error
    if bytes_checksum(content) != part["checksum"]:
        raise CorruptionError(f"{root.child_url(part['path'])}: not what was written. Make the index anew.")
    return pq.read_table(pa.BufferReader(content))


def _rows(tables: pa.Table) -> Iterator[IndexedRows]:
    for row in tables.to_pylist():
        stage, group, table, row_bytes = (row.pop(name) for name in ("stage", "group", "table", "weight"))
        yield IndexedRows(stage=stage, group=group, table=table, output=ExchangeFile(**row, row_bytes=row_bytes))


def check_there(index: Index, outputs: Sequence[ExchangeFile]) -> None:
    """Raises UserError where the first of these files is gone, as when an output's work/ was cleared in part."""
    for output in outputs[:1]:
        if index.root.size(output.path) != output.bytes:
            raise UserError(
                f"{index.root.child_url(output.path)}: this file of the index is gone, or not what it was. Keep an output's "
                "work/ as long as other runs are held against it, or make an index of its own with `datapipe index`."
            )
