"""The cards of small runs: their totals beside report.json, what the hub and Croissant read of them, and text of users."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from datapipe.report.card.data_files import DataFiles
from datapipe.report.card.front_matter import size_category
from datapipe.report.card.markdown import MOST_CHARS, code, link, plain, prose, shown
from datapipe.report.card.write import card_files, is_unedited, signed, write_card
from datapipe.report.records import Kept
from datapipe.report.report import Report
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.snapshot_folder import snapshot_folder
from datapipe.shards.source_entry import SourceEntry
from datapipe.storage.root import Root
from tests.support import reports, runs
from tests.support.command_line import datapipe
from tests.support.finished import finish, write_licensed


@dataclass(frozen=True)
class _Carded:
    """An output, with the report and the card that its run wrote."""

    folder: Path

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "report.json").read_bytes())

    @property
    def root(self) -> Root:
        return Root(str(self.folder))

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()


@pytest.fixture(scope="module")
def outputs(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, _Carded]:
    """A run with tokens and one with documents, over the same sources."""
    folder = tmp_path_factory.mktemp("card")
    stages = "stages: [normalize.unicode, filter.gopher_quality, dedup.exact, redact.pii]"
    finish(runs.write_mixture(folder, write_licensed(folder), stages, f"{runs.TAIL}\nmixture: {{tokens: 50000}}"))
    return {"tokens": _Carded(folder / "out"), "documents": _Carded(documents / "out")}


def _tables(text: str) -> Iterator[list[list[str]]]:
    """The tables of a card, as cells."""
    for block in re.split(r"\n\n+", text):
        rows = [line.strip("|").split("|") for line in block.splitlines() if line.startswith("|")]
        if rows:
            yield [[cell.strip() for cell in row] for row in rows if not set("".join(row)) <= {"-", ":"}]


def _table(text: str, heading: str) -> list[list[str]]:
    return next(table for table in _tables(text) if table[0][0] == heading)


def _number(cell: str) -> int:
    return int(cell.replace(",", ""))


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["tokens", "documents"])
def test_totals_of_the_card_are_those_of_the_report(outputs: dict[str, _Carded], kind: str) -> None:
    report = outputs[kind].report
    text, total = outputs[kind].read("README.md"), report["total"]
    documents = total["documents"]
    counted = [(row[0].replace("&emsp;", "").strip("`"), row[1].strip("−").partition(" ")[0]) for row in _table(text, "")[1:]]
    assert {("read", f"{documents['read']:,}"), ("kept", f"{documents['kept']:,}")} < set(counted)
    for reason, count in documents["dropped"].items():
        assert {(reason, f"{count:,}"), (reason.rpartition(":")[2], f"{count:,}")} & set(counted)
    assert sum(documents["dropped"].values()) == documents["read"] - documents["kept"] > 0
    sources = [row for row in _table(text, "source")[1:] if row[0] != "`total`"]
    for rows, column in ((sources, 2), (_table(text, "licence")[1:], 1)):
        assert sum(_number(row[column]) for row in rows) == documents["kept"]
    if kind == "tokens":
        assert sum(_number(row[4]) for row in sources) == total["tokens"]
        assert sum(_number(row[3]) for row in _table(text, "licence")[1:]) == total["tokens"]
        assert sum(_number(row[4]) for row in _table(text, "licence")[1:]) == report["mixture"]["tokens"]
    assert total["counts"]["redact.pii:email"] > 0
    assert {(name, f"{count:,}") for name, count in total["counts"].items() if count} < set(counted)


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["tokens", "documents"])
@pytest.mark.needs("huggingface_hub")
def test_the_hub_reads_the_front_matter(outputs: dict[str, _Carded], kind: str) -> None:
    from huggingface_hub import DatasetCard

    report = outputs[kind].report
    data = DatasetCard(outputs[kind].read("README.md")).data.to_dict()
    assert sorted(data["license"]) == ["cc-by-4.0", "mit", "other"]
    assert data["license_name"] == "licenseref-our-terms"
    assert (data["task_categories"], data["size_categories"]) == (["text-generation"], ["n<1K"])
    folder = outputs[kind].folder
    infos = data["dataset_info"] if isinstance(data["dataset_info"], list) else [data["dataset_info"]]
    for config, info in zip(data["configs"], infos, strict=True):
        for split, counts in zip(config["data_files"], info["splits"], strict=True):
            listed = [split["path"]] if isinstance(split["path"], str) else split["path"]
            assert split["split"] == counts["name"]
            if kind == "documents":
                tables = [pq.read_table(folder / path) for path in listed]
                assert sum(table.num_rows for table in tables) == counts["num_examples"]
                assert [feature["name"] for feature in info["features"]] == tables[0].column_names
            assert all((folder / path).is_file() for path in listed)
    rows = sum(split["num_examples"] for info in infos for split in info["splits"])
    packed = report["sources"].values()
    assert rows == (sum(entry["sequences"] for entry in packed) if kind == "tokens" else report["total"]["documents"]["kept"])


@pytest.mark.medium
def test_text_of_users_stays_text(outputs: dict[str, _Carded]) -> None:
    front, text = outputs["tokens"].read("README.md").removeprefix("---\n").split("---\n", 1)
    assert "<script>" not in text
    assert len({len(row) for row in _table(text, "source")}) == 1
    assert str(outputs["tokens"].folder.parent / "web.jsonl") not in text
    assert "script" not in front
    described = json.loads(outputs["tokens"].read("croissant.json"))
    (agent,) = [each["prov:wasAttributedTo"] for each in described["prov:wasDerivedFrom"] if "prov:wasAttributedTo" in each]
    assert agent["name"] == "m|`x` --- <script>"


@pytest.mark.slow
@pytest.mark.needs("mlcroissant")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["tokens", "documents"])
def test_mlcroissant_validates_and_reads_the_documents(outputs: dict[str, _Carded], kind: str) -> None:
    import mlcroissant

    report = outputs[kind].report
    dataset = mlcroissant.Dataset(str(outputs[kind].folder / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    assert str(dataset.metadata.ctx.conforms_to.value).endswith("1.1")
    if kind == "documents":
        records = [record for each in dataset.metadata.record_sets for record in dataset.records(each.uuid)]
        assert len(records) == report["total"]["documents"]["kept"]
        names = {name.rpartition("/")[2] for record in records for name in record}
        assert {"id", "source", "text", "terms"} <= names


@pytest.mark.medium
def test_a_card_that_somebody_edited_stays(outputs: dict[str, _Carded], tmp_path: Path) -> None:
    copytree(outputs["documents"].folder, tmp_path / "out")
    root, report = Root(str(tmp_path / "out")), outputs["documents"].report
    report, snapshot = Report.model_validate(report), read_snapshot(root)
    first = root.read_bytes("README.md")
    assert is_unedited(first)
    assert root.read_bytes(f"{snapshot_folder(snapshot.fingerprint)}/README.md") == first
    for edited in (b"Mine.\n" + first, first + b"Mine.\n", b"Mine."):
        root.write_atomic("README.md", edited)
        assert "stays" in str(write_card(root, snapshot, report))
        assert root.read_bytes("README.md") == edited
    root.write_atomic("README.md", signed({"README.md": b"of an earlier snapshot"})["README.md"])
    assert write_card(root, snapshot, report) is None
    assert root.read_bytes("README.md") == first


def _limits(licenses: dict[str, Kept] | None = None, **more: Any) -> str:
    """The known limits on the card of a run with these entries in its report."""
    report = reports.report(["web"], **more)
    lost = {"quarantined": 10, "quarantine_reasons": {"read: <b>`|` at N": 7, "my:Stage: x": 3}}
    total = report.total.model_copy(update={"documents": report.total.documents.model_copy(update=lost)})
    sources = {"web": SourceEntry(weight=0)}
    manifest = Snapshot(name="m", seed=1, shard_format="parquet", sources=sources, shards=()).sealed()
    files = DataFiles(format="parquet", is_packed=False, configurations=())
    report = report.with_(total=total, provenance=report.provenance.model_copy(update={"licenses": licenses or {}}))
    return card_files(report, manifest, "", files)["README.md"].decode().partition("## Known limits")[2]


def test_known_limits_are_those_that_the_run_counted() -> None:
    told = _limits(
        warnings=[
            {"kind": "unreadable_files", "source": "web", "count": 2, "files": [{"path": "/home/me/a"}], "text": "/home/me/a"}
        ],
        contamination=[{"stage": "d", "name": "arc", "entries": 100, "contaminated": 1, "clean": 59, "undetectable": 40}],
        licenses={"unknown": Kept(documents=990, bytes=9, tokens=None, drawn_tokens=None)},
    )
    for fact in (
        "of these 7: <code>read: &#60;b&#62;&#96;&#124;&#96; at N</code>",
        "2 input files of `web`",
        "40 of 100 items of `arc`",
    ):
        assert fact in told
    assert "licence of 990 documents" in told and "personal data" in told
    assert "/home/me" not in told
    assert "No evaluation set" in _limits() and "No evaluation set" not in told


@pytest.fixture
def copied(documents: Path, tmp_path: Path) -> Path:
    copytree(documents / "out", tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.medium
def test_an_output_that_lost_its_card_gets_the_same_one(copied: Path) -> None:
    (snapshot,) = (copied / "snapshots").iterdir()
    cards = {name: (copied / name).read_bytes() for name in ("README.md", "croissant.json")}
    assert {name: (snapshot / name).read_bytes() for name in cards} == cards
    for name in cards:
        (copied / name).unlink()
        (snapshot / name).unlink()
    done = datapipe(["export", str(copied), "--card"])
    assert done.returncode == 0, done.stderr
    assert {name: (copied / name).read_bytes() for name in cards} == cards
    assert {name: (snapshot / name).read_bytes() for name in cards} == cards


@pytest.mark.medium
def test_an_export_has_the_card_of_what_it_holds(copied: Path, tmp_path: Path) -> None:
    done = datapipe(
        ["export", str(copied), "--format", "parquet", "--source", "web", "--card", "--to", str(tmp_path / "web-only")]
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((copied / "report.json").read_bytes())["sources"]["web"]["documents"]
    text = (tmp_path / "web-only/README.md").read_text()
    assert f"{report['kept']:,} of {report['read']:,} documents kept" in text
    assert "`made`" not in text
    assert str(tmp_path) not in text
    assert 'load_dataset("web-only"' in text
    assert sum(pq.read_table(path).num_rows for path in (tmp_path / "web-only/data").iterdir()) == report["kept"]
    described = json.loads((tmp_path / "web-only/croissant.json").read_bytes())
    assert [entity["name"] for entity in described["prov:wasDerivedFrom"]] == ["web"]


def _read_back(cell: str) -> tuple[list[str], set[str]]:
    """The texts of the cells of a table with this one, and the tags in them."""
    rendered = MarkdownIt("commonmark").enable("table").render(f"| a | b |\n|---|---|\n| {cell} | end |\n")
    cells = re.findall(r"<t[hd]>(.*?)</t[hd]>", rendered, re.S)
    return [unescape(re.sub("<.*?>", "", cell)).strip() for cell in cells], set(re.findall(r"<([^/>\s]+)", "".join(cells)))


@given(st.text(max_size=60) | st.text(alphabet="`|\\<>&*_[]()!#~$ \n-a", max_size=30))
@example("\\|")
@example("![x](https://e.org/p.png) <!-- x --> &amp; **b** ~~d~~ $x$")
@example("a\nb\n\n# c \u202e\u0000 `|` a\\|b`")
def test_text_in_a_table_is_read_back_as_it_is(text: str) -> None:
    for written, allowed in ((code(text), {"code"}), (prose(text), set()), (shown(text), {"code"})):
        cells, tags = _read_back(written)
        assert cells == ["a", "b", plain(text).strip(), "end"]
        assert tags <= allowed
    assert "\n" not in plain(text)


def test_long_text_is_cut_and_credentials_are_masked() -> None:
    assert len(plain("x" * 10**6)) == MOST_CHARS
    assert "SECRET" not in code("s3://KEY:SECRETSECRET@bucket/a")
    assert link("https://example.org/a?b=c") == "<https://example.org/a?b=c>"
    assert shown(1234567) == "1,234,567"


@pytest.mark.parametrize(
    ("rows", "category"),
    [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (99_999, "10K<n<100K"), (10**9, "1B<n<10B"), (10**12, "n>1T")],
)
def test_the_size_on_the_hub_holds_the_rows(rows: int, category: str) -> None:
    assert size_category(rows) == category


def test_a_stage_that_removed_more_than_expected_is_a_known_limit() -> None:
    excess = {
        "kind": "excess_drops",
        "stage": "filter.length",
        "source": "web",
        "dropped": 40,
        "read": 100,
        "allowed": 0.25,
        "text": "",
    }
    assert "`filter.length` removed 40 of 100 documents of `web`, more than the 25.00%" in _limits(warnings=[excess])
