"""The report and the card of a snapshot that grew: its numbers are those of one run over everything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from datapipe.report.html.page import report_html
from datapipe.report.joined import _bins
from datapipe.shards.manifest import read_snapshot, snapshot_folder
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root

pytestmark = pytest.mark.medium


@dataclass(frozen=True)
class _Grown:
    """A corpus in three additions, and one run over all of it."""

    folder: Path

    @property
    def grown(self) -> Root:
        return Root(str(self.folder / "out"))

    def report(self, name: str) -> dict[str, Any]:
        path = "out" if name == "grown" else "whole/out"
        return json.loads((self.folder / path / "report.json").read_text())


@pytest.fixture
def made(grown: Path) -> _Grown:
    return _Grown(grown)


def test_numbers_are_those_of_one_run_over_everything(made):
    grown, whole = made.report("grown"), made.report("whole")
    for name in ("documents", "bytes", "kept_bytes", "tokens", "counts"):
        assert grown["total"][name] == whole["total"][name], name
        for source in ("web", "code"):
            assert grown["sources"][source][name] == whole["sources"][source][name], (source, name)
    assert grown["total"]["documents"]["dropped"]["dedup.exact:duplicate"] > 20
    shown, expected = (report["tokenizer"] for report in (grown, whole))
    assert (shown["total"], shown["sources"]) == (expected["total"], expected["sources"])
    assert shown["unused"]["count"] >= expected["unused"]["count"]
    for name, stages in whole["measured"].items():
        for stage, rules in stages.items():
            for rule, facts in rules.items():
                joined = grown["measured"][name][stage][rule]
                keys = ("documents", "passed", "failed", "passed_bytes", "failed_bytes", "dropped", "not_a_number", "threshold")
                assert {key: joined[key] for key in keys} == {key: facts[key] for key in keys}
                assert sum(bin[2] + bin[3] for bin in joined["bins"]) == sum(bin[2] + bin[3] for bin in facts["bins"])
                assert joined["borderline"] == facts["borderline"]
    assert grown["lengths"].keys() == whole["lengths"].keys()
    for name, parts in whole["lengths"].items():
        for part, bins in parts.items():
            assert [sum(column) for column in list(zip(*grown["lengths"][name][part]))[2:]] == [
                sum(c) for c in list(zip(*bins))[2:]
            ]
    worked = {
        step: work["documents"]
        for step, work in whole["total"]["steps"].items()
        if step.startswith(("read", "filter", "dedup.exact"))
    }
    assert worked
    assert {step: grown["total"]["steps"][step]["documents"] for step in worked} == worked
    mapped = [name for name, task in whole["tasks"].items() if task["kind"] == "map"]
    assert mapped
    assert all(grown["tasks"][name]["committed"] >= 2 for name in mapped)


def test_packing_adds_up_to_the_shards(made):
    report, snapshot = made.report("grown"), read_snapshot(made.grown)
    assert report["total"]["sequences"] == sum(shard.sequences for shard in snapshot.shards)
    packing = report["total"]["packing"]["64"]
    assert packing["rows"] == report["total"]["sequences"]
    assert packing["tokens"] == sum(shard.tokens for shard in snapshot.shards)
    assert packing["padding_share"] == round(packing["padding_tokens"] / (packing["tokens"] + packing["padding_tokens"]), 9)
    assert report["shards"]["fingerprint"] == snapshot.fingerprint
    assert report["shards"]["files"] == len(snapshot.shards)
    assert report["mixture"]["sources"]["web"]["epoch_tokens"] == 64 * sum(
        shard.sequences for shard in snapshot.shards if shard.source == "web"
    )
    assert report["addition"]["part"] == 2
    assert not verify_snapshot(made.grown, snapshot)


def test_licences_and_costs_are_of_the_whole(made):
    grown, whole = (made.report(name)["provenance"] for name in ("grown", "whole"))
    for kind in ("licenses", "synthetic"):
        assert list(grown[kind]) == list(whole[kind])
        for name, numbers in whole[kind].items():
            assert {key: grown[kind][name][key] for key in ("documents", "bytes", "tokens")} == {
                key: numbers[key] for key in ("documents", "bytes", "tokens")
            }
    assert grown["sources"] == whole["sources"]
    drawn = [numbers["drawn_tokens"] for numbers in grown["synthetic"].values()]
    assert sum(drawn) == made.report("grown")["mixture"]["tokens"]
    cost = grown["cost"]
    assert (cost["sources_usd"], whole["cost"]["sources_usd"]) == (5, 5)
    names = [f"additions/0000{number}" for number in (1, 2)]
    parts = [json.loads((made.folder / "out" / name / "report.json").read_text())["provenance"]["cost"] for name in names]
    assert cost["core_hours"] > sum(part["core_hours"] for part in parts)
    assert cost["total_usd"] == pytest.approx(5 + cost["compute_usd"], abs=1e-5)


def test_every_snapshot_has_a_report_a_page_and_a_card_of_its_own(made):
    snapshot, report = read_snapshot(made.grown), made.report("grown")
    card = (made.folder / "out/README.md").read_text()
    assert snapshot.fingerprint[:12] in card
    assert f"{report['total']['documents']['kept']:,}" in card
    page = (made.folder / "out/report.html").read_text()
    assert snapshot.fingerprint[:12] in page
    before = report["shards"]["before"]
    folder = snapshot_folder(before)
    earlier = json.loads(made.grown.read_bytes(f"{folder}/report.json"))
    assert earlier["addition"]["part"] == 1
    assert earlier["total"]["documents"]["read"] < report["total"]["documents"]["read"]
    assert made.grown.exists(f"{folder}/README.md")
    assert report_html(report, earlier)


def test_bins_inside_of_joined_bins_add_to_them():
    fine, coarse = [[1.0, 2.0, 3, 1], [2.0, 3.0, 1, 0], [4.0, 5.0, 1, 1]], [[0.0, 4.0, 10, 10], [6.0, 7.0, 1, 1]]
    expected = [[0.0, 4.0, 14, 11], [4.0, 5.0, 1, 1], [6.0, 7.0, 1, 1]]
    assert _bins(fine, coarse) == expected
    assert _bins(coarse, fine) == expected
