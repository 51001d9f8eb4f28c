"""Cards that `datapipe export` writes: of an output that has lost its own, and of exports."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

import pyarrow.parquet as pq
import pytest

from tests.support.command_line import datapipe

pytestmark = pytest.mark.medium


@pytest.fixture
def output(documents: Path, tmp_path: Path) -> Path:
    copytree(documents / "out", tmp_path / "out")
    return tmp_path / "out"


def test_an_output_that_lost_its_card_gets_the_same_one(output: Path) -> None:
    (snapshot,) = (output / "snapshots").iterdir()
    cards = {name: (output / name).read_bytes() for name in ("README.md", "croissant.json")}
    assert {name: (snapshot / name).read_bytes() for name in cards} == cards
    for name in cards:
        (output / name).unlink()
        (snapshot / name).unlink()
    done = datapipe(["export", str(output), "--card"])
    assert done.returncode == 0, done.stderr
    assert {name: (output / name).read_bytes() for name in cards} == cards
    assert {name: (snapshot / name).read_bytes() for name in cards} == cards


def test_an_export_has_the_card_of_what_it_holds(output: Path, tmp_path: Path) -> None:
    done = datapipe(
        ["export", str(output), "--format", "parquet", "--source", "web", "--card", "--to", str(tmp_path / "web-only")]
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((output / "report.json").read_bytes())["sources"]["web"]["documents"]
    text = (tmp_path / "web-only/README.md").read_text()
    assert f"{report['kept']:,} of {report['read']:,} documents kept" in text
    assert "`made`" not in text
    assert str(tmp_path) not in text
    assert 'load_dataset("web-only"' in text
    assert sum(pq.read_table(path).num_rows for path in (tmp_path / "web-only/data").iterdir()) == report["kept"]
    described = json.loads((tmp_path / "web-only/croissant.json").read_bytes())
    assert [entity["name"] for entity in described["prov:wasDerivedFrom"]] == ["web"]
