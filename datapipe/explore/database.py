"""SQL over what a run knows of each document: views over the Parquet files that its tasks wrote (`exchange/tables.py`).

    facts of committed tasks ─▶ checksums compared ─▶ views of DuckDB ─▶ access locked ─▶ queries of ours and of users

| view | a row for each |
|---|---|
| documents | document that the run has decided about, with what became of it last, in words and numbers for people |
| clusters | document that others were dropped for, by stage and rule |
| borderlines | document near the threshold of a rule |
| findings | item of an evaluation set in a document |
| packed | part of a document in a row of a shard |
| facts, near, found, parts | the rows behind them, as tasks wrote them; in `facts` too, a key stands once |

Files of an object store are copied to a temporary folder. DuckDB can open these files and nothing else, and its settings are
locked. A user's query runs inside a query of ours (`ask`), where DuckDB takes one SELECT that changes nothing. An option bounds
memory; larger sorts and joins spill to a temporary folder. Queries of this package order by a key that is unique, so that equal
runs give equal answers.
"""

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from datapipe.dataclass import dataclass
from datapipe.errors import CorruptionError, UserError
from datapipe.exchange.tables import committed_bytes
from datapipe.records.checksum import file_checksum
from datapipe.records.outputs import TableFile
from datapipe.storage.root import Root

URL_COLUMNS = ("url", "uri", "link")
"""Names of the kept column with the URL of a document, in order of precedence."""

URL = f"coalesce({', '.join(URL_COLUMNS)})"  # In SQL
KINDS: Mapping[str, Sequence[str]] = {
    "recorded": ("kept", "drops", "quarantine"),
    "near": ("borderline",),
    "found": ("findings",),
    "parts": ("packed",),
}
"""Kinds of files by view."""

_COLUMNS: Mapping[str, str] = {
    "recorded": "source, fate, key BLOB, id, url, uri, link, stage, rule, value DOUBLE, threshold DOUBLE, survivor BLOB, "
    "bytes BIGINT, error, excerpt BLOB",
    "near": "source, stage, rule, is_dropped BOOLEAN, key BLOB, value DOUBLE, threshold DOUBLE",
    "found": "source, id, stage, outcome, list, entry, key BLOB, start BIGINT, stop BIGINT, value DOUBLE",
    "parts": "source, split, shard, key BLOB, row BIGINT, start BIGINT, tokens BIGINT",
}
"""Columns that a view always has, with their types; VARCHAR is not written."""
_HIDDEN = ("path", "place")

_RUNS_SQL = "json_execute_serialized_sql"  # A function that runs a text as a statement
_FETCHED_ROWS = 32
"""Rows of an answer as Python objects, beside the 2,048 that DuckDB computes at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What queries may take: memory of DuckDB, threads, and an existing folder for what
    does not fit into memory; empty for the temporary folder of the machine."""

    memory: str = "1GiB"
    threads: int = 2
    spill: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FactFiles:
    """The facts of one output: files by kind, in the order of sources and tasks, and the paths of input files by hash."""

    root: Root
    files: Mapping[str, Sequence[TableFile]]
    inputs: Mapping[int, str]
    shards: Mapping[str, tuple[str, int]]  # by the name of `shard_of_task`: the published path, and the sequence length
    # of published shards of sources with cells: path, first row, and cell of each run of rows
    cells: Sequence[tuple[str, int, str]] = ()
    is_set_aside: bool = False  # whether the step tokenize dropped documents, which the stages kept


_LIMITS = Limits()


class Database:
    """Queries of one output, or of several, each in its own schema. Safe for several threads."""

    def __init__(self, outputs: Mapping[str, FactFiles], limits: Limits = _LIMITS) -> None:
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="datapipe-explore-", dir=limits.spill or None))
        except OSError as error:
            where = f"--spill {limits.spill}" if limits.spill else "The temporary folder"
            raise UserError(f"{where}: {error.strerror}: expected a folder to write to; --spill names it.") from None
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.paths: dict[str, TableFile] = {}  # by the column `filename` of facts
        options = {
            "memory_limit": limits.memory,
            "threads": limits.threads,
            "temp_directory": str(self._folder / "spill"),
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        try:
            self._connection = duckdb.connect(config=options)
            self._connection.execute("set parquet_metadata_cache = true")
        except duckdb.Error as error:
            raise UserError(f"--memory {limits.memory}: {error}. A size is expected, such as 512MiB, 4GiB or 50%.") from None
        for name, facts in outputs.items():
            self._connection.execute(f"create schema if not exists {name}; set schema = '{name}'")
            self._attach(facts)
        self._connection.execute(
            f"set schema = '{next(iter(outputs))}'; set allowed_paths = {_listed({*self.paths, *map(escape, self.paths)})}; "
            f"set enable_external_access = false; set lock_configuration = true"
        )

    def rows(self, query: str, options: Any = None, scanned: pa.Table | None = None) -> list[dict[str, Any]]:
        """The rows of a query of ours, which may name a table in memory `scanned`."""
        with self._cursor() as cursor:
            if scanned is not None:
                cursor.register("scanned", scanned)
            answer = cursor.execute(query, options)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row)) for row in answer.fetchall()]

    def ask(self, query: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """The columns and the rows of a user's query. Raises UserError for anything but one SELECT, and for its errors. `query`
        takes a text with one SELECT, refuses whatever changes data, and renames equal columns."""
        if _RUNS_SQL in query.lower():
            raise UserError(f"{_RUNS_SQL}: not available here. Write its query as a sub-query.")
        try:
            result = self._connection.cursor().execute(f"from query({quoted_text(query)})")
        except (duckdb.Error, UnicodeEncodeError) as error:
            raise UserError(f"{error}") from None
        return [column[0] for column in result.description or ()], _fetched(result)

    @contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        cursor = self._connection.cursor()
        try:
            yield cursor
        except (duckdb.IOException, duckdb.InvalidInputException, duckdb.InternalException) as error:
            cause = f"{error}".partition("\n")[0]
            raise CorruptionError(f"A table under work/ cannot be read any more: {cause}. Start the command again.") from error
        finally:
            cursor.close()

    def _attach(self, facts: FactFiles) -> None:
        execute = self._connection.execute
        execute("create table files (file blob, path varchar)")
        execute("create table shards (written varchar, path varchar, sequence_length integer)")
        execute("create table cells (path varchar, first bigint, cell varchar)")
        for table, rows in (
            ("files", [(number.to_bytes(8, "big"), path) for number, path in facts.inputs.items()]),
            ("shards", [(written, *published) for written, published in facts.shards.items()]),
            ("cells", facts.cells),
        ):
            if rows:
                execute(f"insert into {table} select {', '.join(['unnest(?)'] * len(rows[0]))}", [*map(list, zip(*rows))])
        others = {view: self._view(view, facts) for view in KINDS}["recorded"]
        fails = facts.is_set_aside or any(file.rows for file in facts.files.get("quarantine", ()))
        if fails:
            execute(_SUPERSEDED)
            fails = execute("select count(*) from superseded").fetchall() != [(0,)]
        execute(
            f"create view facts as from recorded {'anti join superseded using (filename, file_row_number)' if fails else ''}"
        )
        more = "".join(f", {quoted(name)}" for name in others)
        packed = _PACKED_VIEW.format(
            cell="cells.cell" if facts.cells else "null::varchar", join=_CELLS_JOIN * bool(facts.cells)
        )
        for views in (_FINDINGS_VIEWS, packed, _CLUSTERS_VIEW, _DOCUMENTS_VIEW.format(more=more)):
            execute(views)

    def _view(self, name: str, facts: FactFiles) -> list[str]:
        """Makes a view over files, with all known columns. Returns the names of the others."""
        known = {column: kind or "VARCHAR" for column, _, kind in (each.partition(" ") for each in _COLUMNS[name].split(", "))}
        known |= {"filename": "VARCHAR", "file_row_number": "BIGINT"}
        nulls = ", ".join(f"null::{kind} as {quoted(column)}" for column, kind in known.items())
        query, columns = f"select {nulls} where false", list[str]()
        paths = [self._local(facts.root, file) for kind in KINDS[name] for file in facts.files.get(kind, ()) if file.rows]
        if paths:
            options = "union_by_name = true, filename = true, file_row_number = true"
            stored = f"select * from read_parquet({_listed(map(escape, paths))}, {options})"
            columns = [row[0] for row in self._connection.execute(f"describe {stored}").fetchall()]
            query += f" union all by name {stored}"
        self._connection.execute(f"create view {name} as {query}")
        shown = {*known, *_HIDDEN}.difference(URL_COLUMNS[1:])
        return [column for column in columns if column.lower() not in shown]

    def _local(self, root: Root, file: TableFile) -> str:
        if root.local is not None:
            if file_checksum(root, file.path, file.checksum)[0] != file.checksum:
                raise CorruptionError(f"{file.path}: its checksum is not the committed one. Run the mixture again.")
            path = str(root.local / file.path)
        else:
            path = str(self._folder / f"{len(self.paths)}.parquet")
            Path(path).write_bytes(committed_bytes(root, file))
        self.paths[path] = file
        return path


_SUPERSEDED = """
create table superseded as select filename, file_row_number from recorded
where key in (select key from recorded where fate = 'quarantined' or stage = 'tokenize')
qualify row_number() over (
    partition by key order by stage is distinct from 'tokenize', list_position(['kept', 'dropped', 'quarantined'], fate), error,
    filename, file_row_number
) > 1
"""
"""Rows of documents that have another outcome: the step tokenize sets aside documents that the
stages kept, or drops them. A file that was read whole after a part of it leaves two rows of a damaged record."""

_NUMBER = "nullif({0}, 'nan'::double) as {0}"

_DOCUMENTS_VIEW = f"""
create view documents as select
    facts.source, files.path, ('0x' || hex(key)[17:])::ubigint as position,
    facts.source || '/' || files.path || ':' || position as name, lower(hex(key)) as key, id, {URL} as url, fate, stage, rule,
    {_NUMBER.format("value")}, threshold, lower(hex(survivor)) as survivor, bytes, error{{more}}
from facts left join files on files.file = key[:8]
"""

_CLUSTERS_VIEW = f"""
create view clusters as
with members as (select * exclude (value), {_NUMBER.format("value")} from facts where survivor is not null)
select stage, rule, lower(hex(survivor)) as survivor, count(*) as dropped, min(value) as least, max(value) as greatest
from members group by all
"""

_FINDINGS_VIEWS = """
create view findings as select * exclude (filename, file_row_number) replace (lower(hex(key)) as key) from found;
create view borderlines as
select * exclude (filename, file_row_number) replace (lower(hex(key)) as key), abs(value - threshold) as distance from near
"""

_PACKED_VIEW = """
create view packed as select
    parts.source, split, lower(hex(key)) as key, coalesce(shards.path, parts.shard) as shard, "row", start, tokens,
    sequence_length, {cell} as cell
from parts left join shards on shards.written = parts.shard {join}
"""

_CELLS_JOIN = 'asof left join cells on cells.path = shards.path and "row" >= cells.first'


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _listed(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(quoted_text, texts))}]::varchar[]"


def _fetched(result: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    try:
        while rows := result.fetchmany(_FETCHED_ROWS):
            yield from rows
    except duckdb.Error as error:
        raise UserError(f"{error}") from None
    except (OverflowError, ValueError) as error:
        raise UserError(f"A value of the answer is too large for Python: {error}. Cast it to text: column::varchar.") from None
    finally:
        result.close()
