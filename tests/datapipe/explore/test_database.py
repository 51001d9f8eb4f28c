"""SQL over an output: what a query may not do, and what is printed of it. Its rows: tests/conformance/test_exploring.py."""

import json
import os
from pathlib import Path
from shutil import copytree

import numpy as np
import pyarrow as pa
import pytest

from datapipe.cli.explore import sql
from datapipe.columns import make_keys
from datapipe.errors import CorruptionError, UserError
from datapipe.exchange.tables import FactWriter, kept_facts
from datapipe.explore.database import Database, FactFiles, Limits
from datapipe.explore.documents import Inspector
from datapipe.stage.documents import DocumentBatch
from datapipe.storage.root import Root
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
    "select '\udcff'",
    "select interval '1000000000 days'",
    "with x as (copy (select 1) to '{facts}' (use_tmp_file false)) select 1",
    "with x as (delete from files returning *) select * from x",
    "with x as (insert into files values ('', '') returning *) select * from x",
    "with x as (update files set path = 'x' returning *) select * from x",
    "select * from (with x as (delete from files returning *) select * from x)",
    "from query('with x as (delete from files returning *) select * from x')",
    "from json_execute_serialized_sql(json_serialize_sql('with x as (delete from files) select 1'))",
    "select nothing from documents",
]


@pytest.mark.parametrize("query", HOSTILE)
def test_query_that_would_do_more_than_read_the_output_is_refused(finished: Browsed, query: str) -> None:
    def state() -> object:
        files = sorted(path for path in finished.folder.rglob("*") if "work/lock" not in str(path) and path.is_file())
        return [(path, path.stat().st_mtime_ns) for path in files], list(database.ask("from files order by all")[1])

    database = finished.api.output.database
    facts = next((finished.folder / "out/work/attempts").rglob("kept.parquet"))
    before = state()
    with pytest.raises(UserError):
        list(database.ask(query.format(folder=finished.folder, facts=facts))[1])
    assert state() == before


def test_tables_hold_the_tokens_of_each_document_and_the_shard_that_has_them(finished: Browsed) -> None:
    database = finished.api.output.database
    locks = "select current_setting('enable_external_access'), current_setting('lock_configuration')"
    assert list(database.ask(locks)[1]) == [(False, True)]
    _, rows = database.ask(
        "select documents.fate, shard, sum(tokens) as tokens, count(distinct key) as documents from packed "
        "left join documents using (key) group by all"
    )
    [(fate, shard, tokens, documents)] = [row for row in rows if "/web/" in row[1]]
    report = finished.api.output.counts_of("web")
    assert (fate, tokens, documents) == ("kept", report.tokens, report.documents.kept)
    assert (finished.folder / "out" / shard).is_file()
    row = finished.listed(source="web", fate="kept")[0]
    [(where,)] = database.ask(
        f"select list((shard, \"row\", start, tokens) order by start) from packed where key = '{row['key']}'"
    )[1]
    shown = sorted(finished.get("document", row["key"])["shards"], key=lambda part: part["start"])
    assert [tuple(part) for part in where] == [(p["path"], p["row"], p["start"], p["tokens"]) for p in shown]


def test_listed_columns_are_those_of_the_views(finished: Browsed, capsys: pytest.CaptureFixture[str]) -> None:
    sql(str(finished.folder / "out"), None, as_json=True)
    listed: dict[str, list[str]] = {}
    for line in map(json.loads, capsys.readouterr().out.splitlines()):
        listed.setdefault(line["view"], []).extend(line["columns"].split(", "))
    for view, names in listed.items():
        actual = [row[0] for row in finished.api.output.database.ask(f"describe {view}")[1]]
        if names[-1] == "NAME":  # those of the source and its stages
            names.pop()
            del actual[len(names) :]
        assert actual == names


def test_rows_are_printed_without_what_would_control_a_terminal(finished: Browsed, capsys: pytest.CaptureFixture[str]) -> None:
    output, query = str(finished.folder / "out"), "select i, chr(27) || '[31m' as c from range(3) t(i) order by i"
    sql(output, query, rows=2)
    printed = capsys.readouterr().out
    assert "\x1b[31m" not in printed and "[31m" in printed
    assert "The first 2 rows" in printed
    sql(output, "select 1 as key, 2 as key", as_json=True)
    assert capsys.readouterr().out == '{"key":1,"key_1":2}\n'
    sql(output, query, as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"i": i, "c": "\x1b[31m"} for i in range(3)]


def test_damaged_table_is_named_and_wrong_limits_report_what_is_expected(copied: Browsed) -> None:
    [table, *_] = sorted((copied.folder / "out/work/attempts").rglob("drops.parquet"))
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    with pytest.raises(CorruptionError, match=f"{table.parent.name}/drops.parquet"):
        _ = Inspector.open(str(copied.folder / "out")).database
    memories = ("much", "500%", "9" * 20 + "TB")
    for limits in (*(Limits(memory=memory) for memory in memories), Limits(spill=str(Path(table, "nowhere")), memory="1%")):
        with pytest.raises(UserError, match="expected"):
            _ = Inspector.open(str(copied.folder / "out"), limits).database


@pytest.mark.parametrize("size", [100, None])
def test_lost_file_of_a_task_is_named_and_its_documents_are_not_left_out(copied: Browsed, size: int | None) -> None:
    table = next((copied.folder / "out/work/attempts").rglob("kept.parquet"))
    table.unlink() if size is None else os.truncate(table, size)
    with pytest.raises(UserError, match=f"{table.parent.name}/"):
        Inspector.open(str(copied.folder / "out")).find("kept")


def test_output_with_wildcards_in_its_name_is_read_and_none_beside_it(copied: Browsed) -> None:
    copied.folder.joinpath("out").rename(copied.folder / "o[1]*?")
    copytree(copied.folder / "o[1]*?", copied.folder / "o1xx")
    database = Inspector.open(str(copied.folder / "o[1]*?")).database
    [(paths,)] = database.ask("select list(distinct filename) from facts")[1]
    assert paths and all("/o[1]*?/" in path for path in paths)


def test_kept_columns_with_names_of_facts_or_equal_but_for_case_are_all_shown(tmp_path: Path) -> None:
    names = ["URL", "filename", "file_row_number", "VALUE", "place", "Link", "a", "A", "A_1"]
    root = Root(str(tmp_path))
    writer = FactWriter(root, "kept.parquet", source="web", fate="kept")
    columns = {
        "key": make_keys(1, np.arange(2, dtype=np.uint64)),
        "id": pa.array(["x"] * 2),
        "text": pa.array(["y"] * 2, pa.large_string()),
    }
    writer.add(kept_facts(DocumentBatch(pa.record_batch({**columns, **{name: [f"of {name}"] * 2 for name in names}}))))
    database = Database({"main": FactFiles(root=root, files={"kept": writer.finish()}, inputs={}, shards={})})
    [row, _] = database.rows("from documents")
    shown = {"url": "URL", "link": "Link", "a": "a", "kept.A": "A", "A_1": "A_1"}
    shown |= {f"kept.{name}": name for name in ("filename", "file_row_number", "VALUE", "place")}
    assert {column: row.get(column) for column in shown} == {column: f"of {name}" for column, name in shown.items()}
