"""SQL over what a run knows of each document: views over the Parquet files that its tasks wrote (`exchange/facts.py`).

    facts of committed tasks ─▶ checksums compared ─▶ views of DuckDB ─▶ access locked ─▶ queries of ours and of users

| view | a row for each |
|---|---|
| documents | document that the run has decided about, in words and numbers for people |
| clusters | document that others were dropped for, by stage and rule |
| borderlines | document near the threshold of a rule |
| findings | item of an evaluation set in a document |
| packed | part of a document in a row of a shard |
| facts, near, found, parts | the rows behind them, as tasks wrote them |

Files of an object store are copied to a temporary folder. Then DuckDB can open these files and nothing else, its settings are
locked, and a statement must be a SELECT. Memory is bounded by an option; larger sorts and joins spill to a temporary folder.
Queries of this package order by a key that is unique, so that equal runs give equal answers.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from datapipe.errors import CorruptionError, UserError
from datapipe.exchange.partitions import committed_bytes
from datapipe.plan.outputs import TableFile
from datapipe.shards.checksum import file_checksum
from datapipe.storage import Root

URL_COLUMNS = ("url", "uri", "link")
"""Names of the kept column with the URL of a document, the first that there is."""

DOCUMENTS, BORDERLINES, FINDINGS, PACKED = ("kept", "drops", "quarantine"), ("borderline",), ("findings",), ("packed",)
"""Kinds of facts by view."""

_FACTS: Mapping[str, str] = {
    "source": "VARCHAR",
    "fate": "VARCHAR",
    "key": "BLOB",
    **dict.fromkeys(("id", "url"), "VARCHAR"),
    "stage": "VARCHAR",
    "rule": "VARCHAR",
    "value": "DOUBLE",
    "threshold": "DOUBLE",
    "survivor": "BLOB",
    "bytes": "BIGINT",
    "error": "VARCHAR",
    "excerpt": "BLOB",
}
_BORDERLINES: Mapping[str, str] = {
    **dict.fromkeys(("source", "stage", "rule"), "VARCHAR"),
    "is_dropped": "BOOLEAN",
    "key": "BLOB",
    **dict.fromkeys(("value", "threshold"), "DOUBLE"),
}
_FINDINGS: Mapping[str, str] = {
    **dict.fromkeys(("source", "id", "stage", "outcome", "list", "entry"), "VARCHAR"),
    "key": "BLOB",
    **dict.fromkeys(("start", "stop"), "BIGINT"),
    "value": "DOUBLE",
}
_PACKED: Mapping[str, str] = {
    **dict.fromkeys(("source", "split", "shard"), "VARCHAR"),
    "key": "BLOB",
    **dict.fromkeys(("row", "start", "tokens"), "BIGINT"),
}
_HIDDEN = ("path", "place", "filename", "file_row_number")
_MEMORY = re.compile(r"\d+(\.\d+)?\s*([KMGT]i?B|%)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What queries may take.

    Attributes:
        memory: of DuckDB, such as "2GiB".
        threads: that a query runs on.
        spill: an existing folder for what does not fit into memory; empty for the temporary folder of the machine.
    """

    memory: str = "1GiB"
    threads: int = 2
    spill: str = ""

    def check(self) -> None:
        """Raises UserError for a limit that DuckDB does not know."""
        if not _MEMORY.fullmatch(self.memory):
            raise UserError(f"--memory {self.memory}: expected a size such as 512MiB or 4GiB.")
        if self.spill and not Path(self.spill).is_dir():
            raise UserError(f"--spill {self.spill}: expected an existing folder.")


@dataclass(frozen=True, kw_only=True, slots=True)
class FactFiles:
    """The facts of one output.

    Attributes:
        root: of the output.
        files: by kind, in the order of sources and tasks.
        inputs: hash, source and path of each input file.
        shards: the published path by the path that a task wrote.
    """

    root: Root
    files: Mapping[str, Sequence[TableFile]]
    inputs: Sequence[tuple[int, str, str]]
    shards: Mapping[str, str]


class Database:
    """Queries of one output, or of several whose views are in schemas of their own. Safe for several threads."""

    def __init__(self, outputs: Mapping[str, FactFiles], limits: Limits = Limits()) -> None:
        limits.check()
        self._folder = Path(tempfile.mkdtemp(prefix="datapipe-explore-", dir=limits.spill or None))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._paths: dict[str, TableFile] = {}
        self._connection = duckdb.connect(
            config={
                "memory_limit": limits.memory.replace(" ", ""),
                "threads": limits.threads,
                "temp_directory": str(self._folder / "spill"),
                "python_enable_replacements": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
        )
        self._connection.execute("set parquet_metadata_cache = true")
        for name, facts in outputs.items():
            self._connection.execute(f"create schema if not exists {name}; set schema = '{name}'")
            self._attach(facts)
        self._connection.execute(
            f"set schema = '{next(iter(outputs))}'; set allowed_paths = {_listed(self._paths)}; "
            f"set enable_external_access = false; set lock_configuration = true"
        )

    # ---------------------------------------------------------------------------------------------- queries

    def rows(self, query: str, options: Any = None, scanned: pa.Table | None = None) -> list[dict[str, Any]]:
        """The rows of a query of ours.

        Args:
            options: values of its parameters, as DuckDB takes them: a list or a dict.
            scanned: a table in memory, which the query names `scanned`.
        """
        with self._cursor() as cursor:
            if scanned is not None:
                cursor.register("scanned", scanned)
            answer = cursor.execute(query, options)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row)) for row in answer.fetchall()]

    def batches(self, query: str, options: Any = None) -> Iterator[pa.RecordBatch]:
        """The rows of a query of ours as Arrow columns, one batch in memory at a time."""
        with self._cursor() as cursor:
            yield from cursor.sql(query, params=options).to_arrow_reader()

    def ask(self, query: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """The columns and the rows of a user's query. Raises UserError for anything but one SELECT, and for its errors."""
        try:
            statements = list(self._connection.extract_statements(query) or ())
        except duckdb.Error as error:
            raise UserError(f"{error}") from None
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:  # EXPLAIN ANALYZE may write
            raise UserError('Expected one query that reads, such as "select fate, count(*) from documents group by fate".')
        cursor = self._connection.cursor()
        try:
            found = cursor.execute(statements[0])
        except duckdb.Error as error:
            raise UserError(f"{error}") from None
        return [column[0] for column in found.description or ()], _fetched(found)

    def columns(self, view: str) -> list[str]:
        """The names of the columns of a view."""
        return [row["column_name"] for row in self.rows(f"describe {view}")]

    def file_of(self, path: str) -> TableFile:
        """The committed file behind the column `filename` of facts."""
        return self._paths[path]

    @contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        cursor = self._connection.cursor()
        try:
            yield cursor
        except (duckdb.IOException, duckdb.InvalidInputException, duckdb.InternalException) as error:
            cause = str(error).partition("\n")[0]
            message = f"A table under work/ cannot be read any more: {cause}. Start the command again."
            raise CorruptionError(message) from error
        finally:
            cursor.close()

    # ---------------------------------------------------------------------------------------------- views

    def _attach(self, facts: FactFiles) -> None:
        """Makes the views over the facts of an output in the current schema."""
        execute = self._connection.execute
        execute("create table files (file varchar, source varchar, path varchar)")
        execute("create table shards (written varchar, path varchar)")
        _fill(self._connection, "files", [(f"{number:016x}", source, path) for number, source, path in facts.inputs])
        _fill(self._connection, "shards", list(facts.shards.items()))
        others = self._view("facts", facts, DOCUMENTS, _FACTS)
        self._view("near", facts, BORDERLINES, _BORDERLINES)
        self._view("found", facts, FINDINGS, _FINDINGS)
        self._view("parts", facts, PACKED, _PACKED)
        for view in (_BORDERLINES_VIEW, _FINDINGS_VIEW, _PACKED_VIEW):
            execute(view)
        execute(_DOCUMENTS_VIEW.format(more="".join(f", {quoted(name)}" for name in others if name not in URL_COLUMNS)))
        execute(_CLUSTERS_VIEW)

    def _view(self, name: str, facts: FactFiles, kinds: Iterable[str], known: Mapping[str, str]) -> list[str]:
        """Makes a view over the files of some kinds, with all known columns. Returns the names of its other columns."""
        paths = [self._local(facts.root, file) for kind in kinds for file in facts.files.get(kind, ()) if file.rows]
        nothing = ", ".join(f"null::{kind} as {quoted(column)}" for column, kind in {**known, **_LOCATED}.items())
        if not paths:
            self._connection.execute(f"create view {name} as select {nothing} where false")
            return []
        table = f"read_parquet({_listed(paths)}, union_by_name = true, filename = true, file_row_number = true)"
        found = [row[0] for row in self._connection.execute(f"describe select * from {table}").fetchall()]
        others = [column for column in found if column not in known and column not in _HIDDEN]
        urls = [quoted(name) for name in URL_COLUMNS if name in found]
        made = {"url": f"coalesce({', '.join(urls)}) as url"} if urls else {}
        missing = {column: f"null::{kind} as {quoted(column)}" for column, kind in known.items() if column not in found}
        listed = [made.get(column) or missing.get(column) or quoted(column) for column in known]
        listed += [*(quoted(name) for name in others), *_LOCATED]
        self._connection.execute(f"create view {name} as select {', '.join(listed)} from {table}")
        return others

    def _local(self, root: Root, file: TableFile) -> str:
        """The path of a file on this machine, once its checksum is compared."""
        if root.local is not None:
            if file_checksum(root, file.path, file.checksum)[0] != file.checksum:
                raise CorruptionError(f"{file.path}: its checksum is not the committed one. Run the mixture again.")
            path = str(root.local / file.path)
        else:
            path = str(self._folder / f"{len(self._paths)}.parquet")
            Path(path).write_bytes(committed_bytes(root, file))
        self._paths[path] = file
        return path


_LOCATED = {"filename": "VARCHAR", "file_row_number": "BIGINT"}

_NUMBER = "nullif({0}, 'nan'::double) as {0}"

_DOCUMENTS_VIEW = f"""
create view documents as select
    facts.source, files.path, ('0x' || hex(key)[17:])::ubigint as position,
    facts.source || '/' || files.path || ':' || ('0x' || hex(key)[17:])::ubigint as name,
    lower(hex(key)) as key, id, url, fate, stage, rule,
    {_NUMBER.format("value")}, threshold, lower(hex(survivor)) as survivor, bytes, error{{more}}
from facts left join files on files.file = lower(hex(facts.key)[:16])
"""

_CLUSTERS_VIEW = f"""
create view clusters as
with members as (select * exclude (value), {_NUMBER.format("value")} from facts where survivor is not null)
select stage, rule, lower(hex(survivor)) as survivor, count(*) as dropped, min(value) as least, max(value) as greatest
from members group by all
"""

_BORDERLINES_VIEW = """
create view borderlines as
select * exclude (filename, file_row_number) replace (lower(hex(key)) as key), abs(value - threshold) as distance from near
"""

_FINDINGS_VIEW = """
create view findings as select * exclude (filename, file_row_number) replace (lower(hex(key)) as key) from found
"""

_PACKED_VIEW = """
create view packed as select
    parts.source, split, lower(hex(key)) as key, coalesce(shards.path, parts.shard) as shard, "row", start, tokens
from parts left join shards on shards.written = parts.shard
"""


def quoted(name: str) -> str:
    """A name of a column in SQL."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def _listed(texts: Iterable[str]) -> str:
    """A list of texts in SQL."""
    return f"[{', '.join(map(quoted_text, texts))}]::varchar[]"


def _fill(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[str, ...]]) -> None:
    columns = [list(column) for column in zip(*rows)]
    if columns:
        listed = ", ".join("unnest(?::varchar[])" for _ in columns)
        connection.execute(f"insert into {table} select {listed}", columns)


def _fetched(found: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    """The rows of an answer, a thousand in memory at a time."""
    try:
        while rows := found.fetchmany(1000):
            yield from rows
    except duckdb.Error as error:
        raise UserError(f"{error}") from None
    finally:
        found.close()
