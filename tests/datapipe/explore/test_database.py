"""SQL over an output: what a query may not do, and what is printed of it. Its rows: tests/conformance/test_looking.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datapipe.cli.explore import sql
from datapipe.errors import CorruptionError, UserError
from datapipe.explore.database import Limits
from datapipe.explore.documents import Inspector
from tests.support.browsed import Browsed

pytestmark = pytest.mark.medium

HOSTILE = [
    "select * from read_text('{folder}/mixture.yaml')",
    "select * from read_csv('/etc/passwd')",
    "select * from read_parquet('{folder}/out/work/inputs.parquet')",
    "select * from '{folder}/web-0.jsonl'",
    "select * from glob('/etc/*')",
    "select getenv('HOME')",
    "copy documents to '{folder}/stolen.csv'",
    "copy (select 1) to '{folder}/out/work/stolen.parquet'",
    "explain analyze copy documents to '{folder}/stolen.csv'",
    "attach '{folder}/stolen.db'",
    "install httpfs",
    "load httpfs",
    "set memory_limit = '9GB'",
    "create table t as select 1",
    "drop view documents",
    "insert into files values ('', '', '')",
    "export database '{folder}/stolen'",
    "pragma enable_profiling",
    "select 1; select 2",
    "",
    "selec",
    "select nothing from documents",
]


@pytest.mark.parametrize("query", HOSTILE)
def test_query_that_would_do_more_than_read_the_output_is_refused(finished: Browsed, query: str) -> None:
    before = sorted(path for path in finished.folder.rglob("*") if "work/lock" not in str(path))
    with pytest.raises(UserError):
        list(finished.api.output.database.ask(query.format(folder=finished.folder))[1])
    assert sorted(path for path in finished.folder.rglob("*") if "work/lock" not in str(path)) == before


def test_tables_hold_the_tokens_of_each_document_and_the_shard_that_has_them(finished: Browsed) -> None:
    database = finished.api.output.database
    locks = "select current_setting('enable_external_access'), current_setting('lock_configuration')"
    assert list(database.ask(locks)[1]) == [(False, True)]
    _, rows = database.ask(
        "select documents.fate, shard, sum(tokens) as tokens, count(distinct key) as documents from packed "
        "left join documents using (key) group by all"
    )
    [(fate, shard, tokens, documents)] = [row for row in rows if "/web/" in row[1]]
    report = finished.api.output.report["sources"]["web"]
    assert (fate, tokens, documents) == ("kept", report["tokens"], report["documents"]["kept"])
    assert (finished.folder / "out" / shard).is_file()
    row = finished.listed(source="web", fate="kept")[0]
    [(where,)] = database.ask(
        f"select list((shard, \"row\", start, tokens) order by start) from packed where key = '{row['key']}'"
    )[1]
    shown = sorted(finished.get("document", row["key"])["shards"], key=lambda part: part["start"])
    assert [tuple(part) for part in where] == [(p["path"], p["row"], p["start"], p["tokens"]) for p in shown]


def test_rows_are_printed_without_what_would_control_a_terminal(finished: Browsed, capsys: pytest.CaptureFixture[str]) -> None:
    output, query = str(finished.folder / "out"), "select i, chr(27) || '[31m' as c from range(3) t(i) order by i"
    sql(output, query, rows=2)
    printed = capsys.readouterr().out
    assert "\x1b[31m" not in printed and "[31m" in printed
    assert "The first 2 rows" in printed
    sql(output, query, as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"i": i, "c": "\x1b[31m"} for i in range(3)]


def test_damaged_table_is_named_and_wrong_limits_say_what_is_expected(copied: Browsed) -> None:
    [table, *_] = sorted((copied.folder / "out/work/attempts").rglob("drops.parquet"))
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    with pytest.raises(CorruptionError, match=f"{table.parent.name}/drops.parquet"):
        _ = Inspector.open(str(copied.folder / "out")).database
    for limits in (Limits(memory="much"), Limits(spill=str(Path(table, "nowhere")))):
        with pytest.raises(UserError, match="expected"):
            _ = Inspector.open(str(copied.folder / "out"), limits).database
