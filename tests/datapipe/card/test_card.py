"""The cards of small runs: their totals beside report.json, and what the hub and Croissant read of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.card.card import card_files
from datapipe.card.data_files import data_files, exported_files
from datapipe.card.front_matter import front_matter, hub_license, size_category
from datapipe.card.provenance import of_manifest
from datapipe.card.write import is_unedited, signed, write_card
from datapipe.shards.datasets.write import WrittenSplit
from datapipe.shards.manifest import Manifest, read_manifest, read_snapshot, snapshot_folder
from datapipe.storage import Root
from tests.support import runs
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
    removed = {row[0].strip("`*"): _number(row[2]) for row in _table(text, "stage and rule")[1:]}
    assert removed == {"read": documents["read"], "kept": documents["kept"], **documents["dropped"]}
    assert sum(documents["dropped"].values()) == documents["read"] - documents["kept"] > 0
    for heading, column in (("source", 2), ("licence", 1)):
        assert sum(_number(row[column]) for row in _table(text, heading)[1:]) == documents["kept"]
    if kind == "tokens":
        assert sum(_number(row[4]) for row in _table(text, "source")[1:]) == total["tokens"]
        assert sum(_number(row[3]) for row in _table(text, "licence")[1:]) == total["tokens"]
        assert sum(_number(row[4]) for row in _table(text, "licence")[1:]) == report["mixture"]["tokens"]
    assert removed["dedup.exact:duplicate"] == total["documents"]["dropped"]["dedup.exact:duplicate"]
    spans = {row[1].strip("`"): _number(row[2]) for row in next(table for table in _tables(text) if "kind" in table[0])[1:]}
    replaced = {name: count for name, count in total["counts"].items() if "_regions_by_" not in name}
    assert {f"redact.pii:{name}": count for name, count in spans.items()} == replaced
    assert spans["email"] > 0


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
    assert all(len(row) == 9 for row in _table(text, "source"))
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
def test_a_report_without_provenance_has_the_licences_of_the_manifest(outputs: dict[str, _Carded]) -> None:
    report, manifest = outputs["tokens"].report, read_snapshot(outputs["tokens"].root)
    entry = of_manifest(manifest, report)
    assert {name: numbers["documents"] for name, numbers in entry["licenses"].items()} == {
        "CC-BY-4.0": report["sources"]["web"]["documents"]["kept"],
        "LicenseRef-our-terms": report["sources"]["made"]["documents"]["kept"],
    }
    assert entry["synthetic"]["synthetic"]["tokens"] == report["sources"]["made"]["tokens"]
    older = {"license": "Our own terms!", "synthetic": True}
    made = manifest.sources["made"].model_copy(update=older)
    snapshot = manifest.model_copy(update={"sources": {**manifest.sources, "made": made}})
    assert "LicenseRef-our-own-terms" in of_manifest(snapshot, report)["licenses"]
    text = card_files(report | {"provenance": of_manifest(snapshot, report)}, snapshot, "", data_files(Root("."), snapshot))
    assert b"`LicenseRef-our-own-terms`" in text["README.md"]


@pytest.mark.medium
def test_a_card_that_somebody_edited_stays(outputs: dict[str, _Carded], tmp_path: Path) -> None:
    copytree(outputs["documents"].folder, tmp_path / "out")
    root, report = Root(str(tmp_path / "out")), outputs["documents"].report
    snapshot: Manifest = read_manifest(root)
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


def test_packed_rows_in_json_lines_tell_their_types() -> None:
    schema = pa.schema([("tokens", pa.list_(pa.uint16(), 4)), ("keys", pa.list_(pa.string()))])
    split = WrittenSplit(pattern="data/train-*.jsonl.zst", rows=7, bytes=90)
    found = front_matter("m", {}, exported_files("jsonl.zst", True, schema, {"train": split}), [])
    info = found["dataset_info"]
    assert info["features"] == [{"name": "tokens", "list": "uint16"}, {"name": "keys", "list": "string"}]
    assert info["splits"] == [{"name": "train", "num_bytes": 90, "num_examples": 7}]
    assert "license" not in found


def test_sizes_and_licences_have_the_names_of_the_hub() -> None:
    sizes = {0: "n<1K", 999: "n<1K", 1000: "1K<n<10K", 99_999: "10K<n<100K", 10**6: "1M<n<10M", 10**12: "n>1T"}
    assert {rows: size_category(rows) for rows in sizes} == sizes
    names = {"CC-BY-4.0": "cc-by-4.0", "GPL-3.0-or-later": "gpl-3.0", "ODC-By-1.0": "odc-by", "PSF-2.0": "other"}
    names["EUPL-1.2+"] = "eupl-1.2"
    assert {license: hub_license(license) for license in names} == names
