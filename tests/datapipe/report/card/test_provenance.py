"""The provenance of small runs beside counts of their inputs, and the report and card of a snapshot that grew."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.config import Mixture
from datapipe.errors import DatapipeError
from datapipe.report.card.provenance import provenance, shared_out
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.snapshot_folder import snapshot_folder
from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage.root import Root
from datapipe.token_counts import MAX_NAMES
from tests.support import corpora, pages, runs, web_archives

pytestmark = pytest.mark.medium

LICENCES = ["mit", "MIT", "cc-by-nc-4.0", None, "", "Public Domain", "mit or gpl-3.0-only"]
SOURCES = """
  web:
    path: {folder}/web.jsonl
    license_field: terms
    license: CC-BY-4.0
    weight: 2
    homepage: https://example.org
    collected: 2024-05
  code: {{path: {folder}/code.jsonl, license: {code}, weight: 1, cost: {{usd: 12.5}}}}
  made: {{path: {folder}/made.jsonl, weight: 1, synthetic: {{model: m, prompt: p}}, cost: {{usd_per_million_tokens: 2}}}}
"""
TAIL = "licenses: [MIT, CC-BY-4.0, LicenseRef-public-domain, ISC, unknown]\nstages: [filter.gopher_quality, dedup.exact]\n"
TOKENS = TAIL + runs.TAIL + "mixture: {tokens: 50000, max_synthetic: 30%}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate(("web", "code", "made")):
        rows: list[dict[str, Any]] = list(corpora.documents(seed, 60))
        for number, row in enumerate(rows if name == "web" else ()):
            row["terms"] = LICENCES[number % len(LICENCES)]
        corpora.write_jsonl(tmp_path / f"{name}.jsonl", rows)
    return tmp_path


def _run(folder: Path, tail: str, code: str = "mit") -> runs.Finished:
    path = runs.write_mixture(folder, SOURCES.format(folder=folder, code=code), stages="", tail=tail)
    return runs.run_mixture(path, make_engine=runs.InProcess)


def _sums(entries: Iterator[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for entry in entries:
        total.update({name: number for name, number in entry.items() if number is not None})
    return total


def test_totals_agree_with_the_report_and_an_edit_of_a_licence_runs_nothing(folder: Path) -> None:
    finished = _run(folder, TOKENS)
    report = finished.report
    entry = provenance(finished.mixture, finished.plan, finished.summary).model_dump(mode="json")
    total, drawn = report["total"], report["mixture"]["tokens"]
    whole = {"documents": total["documents"]["kept"], "bytes": total["kept_bytes"], "tokens": total["tokens"]}
    for part in ("licenses", "synthetic"):
        assert _sums(iter(entry[part].values())) == {**whole, "drawn_tokens": drawn}
    made = report["sources"]["made"]
    own = {"documents": made["documents"]["kept"], "bytes": made["kept_bytes"], "tokens": made["tokens"]}
    assert entry["synthetic"]["synthetic"] == {**own, "drawn_tokens": report["mixture"]["sources"]["made"]["tokens"]}
    assert entry["licenses"]["unknown"] == entry["synthetic"]["synthetic"]
    known = {"license": "CC-BY-4.0", "license_field": "terms", "homepage": "https://example.org"}
    known |= {"collected": {"from": "2024-05", "to": "2024-05"}, "synthetic": False, "cost_usd": None}
    assert entry["sources"]["web"] == known
    assert entry["sources"]["made"]["synthetic"] == {"model": "m", "prompt": "p"}
    assert entry["cost"]["core_hours"] == pytest.approx(total["task_seconds"] / 3600, abs=1e-5)
    by_source = {**entry["cost"]["core_hours_by_source"], "": entry["cost"]["core_hours_shared"]}
    for parts in (by_source, entry["cost"]["core_hours_by_step"]):
        assert sum(parts.values()) == pytest.approx(entry["cost"]["core_hours"], abs=1e-4)
    read = made["tokens"] * made["bytes"] / made["kept_bytes"]
    assert entry["sources"]["made"]["cost_usd"] == pytest.approx(2 * read / 1e6, abs=1e-6)
    assert entry["cost"]["sources_usd"] == entry["cost"]["total_usd"] == pytest.approx(12.5 + 2 * read / 1e6, abs=1e-5)

    again = _run(folder, TOKENS, code="isc")
    assert again.watcher.steps == []
    assert again.snapshot.fingerprint != finished.snapshot.fingerprint
    assert again.checksums == finished.checksums


def test_documents_are_dropped_and_counted_by_their_own_licence(folder: Path) -> None:
    finished = _run(folder, f"tokenizer: none\n{TAIL}")
    report = finished.report
    entry = provenance(finished.mixture, finished.plan, finished.summary).model_dump(mode="json")
    refused = sum(LICENCES[number % len(LICENCES)] == "cc-by-nc-4.0" for number in range(60))
    assert report["sources"]["web"]["documents"]["dropped"]["filter.license:not_allowed"] == refused
    names = dict.fromkeys([None, ""], "CC-BY-4.0")
    names |= {"Public Domain": "LicenseRef-public-domain", "mit or gpl-3.0-only": "MIT OR GPL-3.0-only"}
    expected: Counter[str] = Counter()
    for file in (folder / "out/documents").rglob("*.parquet"):
        rows = pq.read_table(file).to_pylist()
        own = {"web": lambda row: names.get(row["terms"], "MIT"), "code": lambda row: "MIT", "made": lambda row: "unknown"}
        expected.update(own[row["source"]](row) for row in rows)
    assert {name: numbers["documents"] for name, numbers in entry["licenses"].items()} == expected
    assert all(numbers["tokens"] is numbers["drawn_tokens"] is None for numbers in entry["licenses"].values())
    assert _sums(iter(entry["licenses"].values()))["bytes"] == report["total"]["kept_bytes"]


def _cost(mixture: Mixture, finished: runs.Finished, node_hours: float | None = None) -> dict[str, Any]:
    return provenance(mixture, finished.plan, finished.summary, node_hours).model_dump()["cost"]


def test_cores_and_nodes_have_their_prices(folder: Path) -> None:
    finished = _run(folder, f"tokenizer: none\n{TAIL}execution: {{resources: {{write: {{num_cpus: 4}}}}}}")
    prices = {"cost_per_core_hour": 3.6e9, "cost_per_node_hour": 3.0}
    execution = finished.mixture.execution.model_copy(update=prices)
    priced = finished.mixture.model_copy(update={"execution": execution})
    seconds = {step.id: sum(record.metrics.seconds for record in step.records) for step in finished.plan.steps}
    cost = _cost(priced, finished)
    assert cost["cluster_usd"] is None
    assert cost["compute_usd"] == pytest.approx(sum(seconds.values()) * 1e6)
    assert cost["total_usd"] == pytest.approx(12.5 + cost["compute_usd"])
    on_cluster = _cost(priced, finished, node_hours=2.0)
    writing = sum(number for step, number in seconds.items() if step.endswith("/write"))
    assert on_cluster["compute_usd"] == pytest.approx((sum(seconds.values()) + 3 * writing) * 1e6)  # a local task has one core
    assert (on_cluster["cluster_usd"], on_cluster["total_usd"]) == (6.0, 18.5)  # nodes' hours include those of their cores


def test_synthetic_text_beyond_the_limit_is_refused_before_it_is_published(tmp_path: Path) -> None:
    for seed, (name, count) in enumerate({"web": 20, "made": 60}.items()):
        corpora.write_jsonl(tmp_path / f"{name}.jsonl", corpora.documents(seed, count))
    sources = f"""
  web: {{path: {tmp_path}/web.jsonl, max_epochs: 1}}
  made: {{path: {tmp_path}/made.jsonl, synthetic: true}}"""

    def run(limit: str, more: str) -> runs.Finished:
        tail = f"{runs.TAIL}\nmixture: {{max_synthetic: {limit}, {more}}}"
        return runs.run_mixture(runs.write_mixture(tmp_path, sources, "", tail), make_engine=runs.InProcess)

    capped = "tokens: 40000, exhausted: redistribute"  # web has less than half of them, and gives no more
    with pytest.raises(DatapipeError, match=r"draw \d\d\.\d\d% .* models wrote \(made\), and mixture.max_synthetic allows 60"):
        run("60%", capped)
    with pytest.raises(DatapipeError, match="models wrote"):
        run("60%", "weighting: temperature, temperature: 1")
    assert not (tmp_path / "out/snapshot.json").exists()
    shares = run("90%", capped).report["mixture"]["sources"]
    assert 0.6 < shares["made"]["share"] <= 0.9
    assert run("50%", "tokens: 1000").report["mixture"]["sources"]["made"]["share"] == pytest.approx(0.5, abs=0.1)


def test_more_licences_than_are_counted_are_one_entry(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "terms": f"terms {number}"} for number in range(MAX_NAMES + 1)]
    corpora.write_jsonl(tmp_path / "web.jsonl", rows)
    source = f"  web: {{path: {tmp_path}/web.jsonl, license_field: terms}}"
    finished = runs.run_mixture(
        runs.write_mixture(tmp_path, source, stages="", tail="tokenizer: none"), make_engine=runs.InProcess
    )
    entry = provenance(finished.mixture, finished.plan, finished.summary).model_dump(mode="json")
    assert {name: numbers["documents"] for name, numbers in entry["licenses"].items()} == {"various": len(rows)}


@pytest.mark.needs("fastwarc", "resiliparse", "trafilatura")
def test_pages_have_the_licence_that_a_stage_finds(tmp_path: Path) -> None:
    link = '<a rel=license href="https://creativecommons.org/licenses/{}/4.0/">terms</a>'
    text = "<p>" + "It is the text of a page, and there is enough of it to be the main one. " * 20 + "</p>"
    bodies = [pages.article(text + (link.format(kind) if kind else "")) for kind in ("by", "by-nc", "", "by")]
    records = [web_archives.response(body.encode(), number) for number, body in enumerate(bodies)]
    (tmp_path / "a.warc.gz").write_bytes(web_archives.packed(records))
    source = f"  web: {{path: {tmp_path}/*.warc.gz, license_field: license}}"
    tail = "tokenizer: none\nlicenses: [CC-BY-4.0, unknown]\nstages: [extract.html, filter.license]"
    finished = runs.run_mixture(runs.write_mixture(tmp_path, source, stages="", tail=tail), make_engine=runs.InProcess)
    entry = provenance(finished.mixture, finished.plan, finished.summary).model_dump(mode="json")
    assert {name: numbers["documents"] for name, numbers in entry["licenses"].items()} == {"CC-BY-4.0": 2, "unknown": 1}
    assert finished.report["sources"]["web"]["documents"]["dropped"] == {"filter.license:not_allowed": 1}
    assert finished.told == []


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**12), min_size=1, max_size=9).filter(any))
def test_shares_are_whole_and_next_to_the_exact_ones(total: int, weights: list[int]) -> None:
    shares = shared_out(total, weights)
    assert sum(shares) == total
    assert all(abs(share * sum(weights) - total * weight) < sum(weights) for share, weight in zip(shares, weights))


@pytest.fixture
def reports(grown: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a corpus in three generations, and of one run over all of it."""
    grown_report, whole = (json.loads((grown / path / "report.json").read_text()) for path in ("out", "whole/out"))
    return grown_report, whole


def test_numbers_are_those_of_one_run_over_everything(reports):
    grown, whole = reports
    for name in ("documents", "bytes", "kept_bytes", "tokens", "counts"):
        assert grown["total"][name] == whole["total"][name], name
        for source in ("web", "code"):
            assert grown["sources"][source][name] == whole["sources"][source][name], (source, name)
    assert grown["total"]["documents"]["dropped"]["dedup.exact:duplicate"] > 20
    shown, expected = (report["tokenizer"] for report in (grown, whole))
    assert (shown["total"], shown["sources"]) == (expected["total"], expected["sources"])
    assert shown["unused"] == expected["unused"]
    assert grown["clusters"] == whole["clusters"]
    assert grown["contamination"] == whole["contamination"]
    for name, stages in whole["measured"].items():
        for stage, rules in stages.items():
            for rule, facts in rules.items():
                joined = grown["measured"][name][stage][rule]
                keys = ("documents", "passed", "failed", "passed_bytes", "failed_bytes", "dropped", "not_a_number", "threshold")
                assert {key: joined[key] for key in keys} == {key: facts[key] for key in keys}
                assert sum(bin[2] + bin[3] for bin in joined["bins"]) == sum(bin[2] + bin[3] for bin in facts["bins"])
                assert joined["borderline"] == facts["borderline"]
    totals = [
        {
            (name, part): [sum(column) for column in zip(*bins)][2:]
            for name, parts in each["lengths"].items()
            for part, bins in parts.items()
        }
        for each in reports
    ]
    assert totals[0] == totals[1]
    done = [{step: work.get("documents") for step, work in report["total"]["steps"].items()} for report in reports]
    worked = {step for step in done[1] if step.startswith(("read", "filter", "dedup.exact"))}
    assert worked
    assert all(done[0][step] == done[1][step] for step in worked)
    mapped = [name for name, task in whole["tasks"].items() if task["kind"] == "map"]
    assert mapped
    assert all(grown["tasks"][name]["committed"] >= 2 for name in mapped)


def test_packing_adds_up_to_the_shards(reports, grown):
    report, root = reports[0], Root(str(grown / "out"))
    snapshot = read_snapshot(root)
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
    assert not verify_snapshot(root, snapshot)


def test_licences_and_costs_are_of_the_whole(reports, grown):
    joined, whole = (report["provenance"] for report in reports)
    for kind in ("licenses", "synthetic"):
        names = ("documents", "bytes", "tokens")
        counts = [{name: [each[key] for key in names] for name, each in entry[kind].items()} for entry in (joined, whole)]
        assert counts[0] == counts[1]
    assert joined["sources"] == whole["sources"]
    assert sum(numbers["drawn_tokens"] for numbers in joined["synthetic"].values()) == reports[0]["mixture"]["tokens"]
    cost = joined["cost"]
    assert cost["sources_usd"] == whole["cost"]["sources_usd"] == 5
    before = json.loads((grown / "out" / snapshot_folder(reports[0]["shards"]["before"]) / "report.json").read_text())
    assert cost["core_hours"] > before["provenance"]["cost"]["core_hours"]
    assert cost["total_usd"] == pytest.approx(5 + cost["compute_usd"], abs=1e-5)


def test_every_snapshot_has_a_report_a_page_and_a_separate_card(reports, grown):
    report, root = reports[0], Root(str(grown / "out"))
    fingerprint = read_snapshot(root).fingerprint[:12]
    card, page = (root.read_bytes(name).decode() for name in ("README.md", "report.html"))
    assert fingerprint in card and fingerprint in page
    assert f"{report['total']['documents']['kept']:,}" in card
    folder = snapshot_folder(report["shards"]["before"])
    earlier = json.loads(root.read_bytes(f"{folder}/report.json"))
    assert earlier["total"]["documents"]["read"] < report["total"]["documents"]["read"]
    assert root.exists(f"{folder}/README.md")
