"""Indexes: the rows that the global stages of a run emitted, for later runs to compare `against`.

    OUTPUT/work/   index.json        the files of rows are those of its tasks
    INDEX/         index.json   rows/

| in index.json | |
|---|---|
| stages | their names and row identities |
| rows | the files of rows, each with the group of input files that its documents come from |
| files | the input files of each group |
| checksum | of all this |

An index covers every document that reached a stage, including those that the stage dropped. It holds the rows that the stage
exchanges: hashes and signatures, and for `dedup.substring` passages of text.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from datapipe.dataclass import dataclass, replace
from datapipe.errors import CorruptionError, UserError
from datapipe.records.checksum import bytes_checksum, intact
from datapipe.records.names import WORK
from datapipe.records.outputs import ExchangeFile
from datapipe.shards.document_files import files_with_hashes
from datapipe.shards.manifest import Snapshot
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import FINAL_TABLES
from datapipe.steps.kind import Plan
from datapipe.steps.request import Request
from datapipe.steps.splits import file_hash
from datapipe.storage.root import Root

INDEX = "index.json"
ROWS = "rows"
_VERSION = 3  # Version 2 held its rows and files in two Parquet files


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedStage:
    """A stage with rows in an index: its name in the run, and its `Global.row_identity`."""

    name: str
    identity: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedRows:
    """A file of rows: the number of its stage, that of the group of input files that the rows are about, and its table."""

    stage: int
    group: int
    table: str
    output: ExchangeFile


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedFile:
    """An input file with rows in an index. A file that was split between tasks is in several groups."""

    hash: int
    source: str
    path: str
    group: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """An index. Paths of rows are relative to `root`."""

    root: Root
    stages: tuple[IndexedStage, ...]
    rows: tuple[IndexedRows, ...]
    files: tuple[IndexedFile, ...]

    @property
    def url(self) -> str:
        """The URL of the output or of the index folder."""
        return self.root.url.removesuffix("/work")

    def of_stage(self, number: int) -> dict[str, tuple[ExchangeFile, ...]]:
        """The files of rows of a stage by table, with the URLs that another run reads."""
        tables: dict[str, list[ExchangeFile]] = {}
        for rows in self.rows:
            if rows.stage == number:
                url = self.root.child_url(rows.output.path)
                tables.setdefault(rows.table, []).append(replace(rows.output, url=url))
        return {table: tuple(outputs) for table, outputs in tables.items()}


_INDEX = TypeAdapter(Index)


def index_of_run(root: Root, request: Request, plan: Plan) -> Index | None:
    """The index of the rows that the committed tasks of a run emitted; None for a run without global stages."""
    groups, files = _groups(request, plan)
    steps = {step.id: step for step in plan.steps}
    stages: list[IndexedStage] = []
    rows: list[IndexedRows] = []
    for global_step in plan.pipeline.global_steps:
        stage, number = cast(Global, global_step.stage.stage), len(stages)
        if stage.makes_contents:
            continue
        stages.append(IndexedStage(name=global_step.stage.name, identity=stage.row_identity(request.mixture.seed)))
        for source, segment in global_step.sources:
            for group, record in zip(groups[source], steps[plan.pipeline.map_step(source, segment)].records, strict=True):
                for table in stage.emits():
                    if table in FINAL_TABLES:  # decisions of the earlier run do not apply to later documents
                        continue
                    for output in record.of(f"emitted.{table}", ExchangeFile):
                        if output.rows:
                            below = replace(output, path=output.path.removeprefix(f"{WORK}/"))
                            rows.append(IndexedRows(stage=number, group=group, table=table, output=below))
    return Index(root=root.within(WORK), stages=tuple(stages), rows=tuple(rows), files=tuple(files)) if stages else None


def index_of_snapshot(root: Root, snapshot: Snapshot) -> Index:
    """The index of an output with the rows of its newest snapshot alone: a run that was killed may have left others.
    Raises UserError where there is no index, and where rows of other files cannot be distinguished."""
    index, known = open_index(root.url), {number for number, _, _ in files_with_hashes(root, snapshot)}
    others = {file.group: file for file in index.files if file.hash not in known}
    mixed = next((file for file in index.files if file.group in others and file.hash in known), None)
    if mixed is not None:
        other = others[mixed.group]
        raise UserError(
            f"{root.url}: a run over all files was stopped while it published, among them {other.source}/{other.path}. Finish "
            f"it with `datapipe run MIXTURE` (after files were added: `--rebuild`), and follow again."
        )
    rows = tuple(rows for rows in index.rows if rows.group not in others)
    return replace(index, rows=rows, files=tuple(file for file in index.files if file.group not in others))


def joined_index(before: Index, later: Index) -> Index:
    """The rows of an output, and those of files that are added to it."""
    stages = [*before.stages, *(stage for stage in later.stages if stage not in before.stages)]
    offset = 1 + max((file.group for file in before.files), default=-1)
    rows = (replace(rows, stage=stages.index(later.stages[rows.stage]), group=rows.group + offset) for rows in later.rows)
    files = (replace(file, group=file.group + offset) for file in later.files)
    return replace(before, stages=tuple(stages), rows=(*before.rows, *rows), files=(*before.files, *files))


def _groups(request: Request, plan: Plan) -> tuple[dict[str, list[int]], list[IndexedFile]]:
    """The group numbers of each source, one for each of its map tasks, and the input files of every group."""
    numbers: dict[str, list[int]] = {}
    files: list[IndexedFile] = []
    count = 0
    for name in request.sources:
        planned = plan.inputs[name]
        groups = planned.groups if request.limit is None else (planned.splits,)
        numbers[name] = list(range(count, count + len(groups)))
        for number, group in zip(numbers[name], groups):
            paths = dict.fromkeys(split.file.path for split in group)
            files += [IndexedFile(hash=file_hash(name, path), source=name, path=path, group=number) for path in paths]
        count += len(groups)
    return numbers, files


def write_index(index: Index) -> None:
    """Writes an index whose files of rows exist, and replaces an earlier one."""
    content = {"index": _VERSION, "stages": index.stages, "rows": index.rows, "files": index.files}
    index.root.write_atomic(INDEX, to_json({**content, "checksum": _checksum(content)}))


def _checksum(content: Mapping[str, Any]) -> str:
    return bytes_checksum(to_json({name: value for name, value in content.items() if name != "checksum"}))


def open_index(url: str, where: str = "") -> Index:
    """The index at a path or URL, which may be an output. Messages begin with `where`. Raises
    UserError when there is no index, CorruptionError when it is damaged."""
    root = _root_of(url.rstrip("/"), where)
    return _INDEX.validate_python({**intact(lambda: _parsed(root, url, where)), "root": root})


def _root_of(url: str, where: str) -> Root:
    for root in (Root(url), Root(url).within(WORK)):
        try:
            if root.exists(INDEX):
                return root
        except OSError as error:  # no such bucket, or the store does not answer
            raise UserError(f"{where}{url}: {error}. Expected a readable folder.") from error
    raise UserError(
        f"{where}{url}: no index here. Expected the output of a run that has this kind of stage and still has its work/ "
        "folder, or a folder that `datapipe index` made of such outputs. `execution.keep_work: none` and "
        "`datapipe clean --work` leave no index; a run into another output with `execution.keep_work: inspect` makes one."
    )


def _parsed(root: Root, url: str, where: str) -> dict[str, Any]:
    """The content of index.json. Raises UserError for one of another version, CorruptionError for a damaged one."""
    try:
        content: dict[str, Any] = from_json(root.read_bytes(INDEX))
        version, checksum = content["index"], content.get("checksum")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(f"{url}/{INDEX}: not an index ({error}). Make the index again.") from error
    if version != _VERSION:
        raise UserError(f"{where}{url}: an index of version {version}. Expected version {_VERSION}. Make the index again.")
    if checksum != _checksum(content):
        raise CorruptionError(f"{url}/{INDEX}: the file has changed: its checksum is wrong. Make the index again.")
    return content


def check_files(index: Index, outputs: Iterable[ExchangeFile], remedy: str) -> None:
    """Raises UserError, which ends with the remedy, for the first of these files that is missing or of another size."""
    for output in outputs:
        if index.root.size(output.path) != output.bytes:
            url = index.root.child_url(output.path)
            raise UserError(f"{url}: this file of the index is missing or has changed. {remedy}")
