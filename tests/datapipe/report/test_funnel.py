"""The funnel as printed: complete at any width, with rows in the order in which stages ran."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from datapipe.report.funnel import print_funnel, wide_console

_REASONS = {"dedup.exact@0123abcd:duplicate": 7_654_321, "my.own:Filter:rule": 12, "filter.length:too_few_words": 3}


def _entry(steps: list[str]) -> dict[str, Any]:
    return {
        "documents": {"read": 123_456_789, "kept": 115_802_453, "dropped": _REASONS, "quarantined": 0},
        "bytes": 10**12,
        "kept_bytes": 10**11,
        "tokens": 23_456_789_012,
        "packing": {},
        "counts": {"filter.length:seen": 5},
        "steps": {step: {"seconds": 1.0, "mb_per_s": None, "bytes": 0, "documents": 0} for step in steps},
    }


def _report(num_sources: int) -> dict[str, Any]:
    ran = ["read", "filter.length", "dedup.exact: exchange", "dedup.exact@0123abcd: apply"]
    sources = {f"source-{number}": _entry(ran) for number in range(num_sources)}
    sources |= {"with-more": _entry([*ran[:2], "my.own:Filter", *ran[2:]])}
    report = {"name": "test", "total": _entry(ran), "mixture": None, "tokenizer": None}
    return {**report, "sources": sources, "slowest_step": "read", "warnings": [], "problem": None}


def _printed(report: dict[str, Any], width: int) -> list[str]:
    stream = io.StringIO()
    print_funnel(report, Console(file=stream, width=width))
    return stream.getvalue().partition("time by step")[0].splitlines()


@pytest.mark.parametrize(("width", "num_tables"), [(40, 7), (80, 4), (120, 2), (200, 1)])
def test_funnel_is_complete_at_any_width(width: int, num_tables: int) -> None:
    lines = _printed(_report(5), width)
    assert max(map(len, lines)) <= width
    for number in ("123,456,789", "−7,654,321", "23,456,789,012", "115,802,453 (94%)"):
        assert sum(line.count(f" {number} ") for line in lines) == 7
    headings = [cell.strip() for line in lines if line.startswith("┃") for cell in line.split("┃")]
    assert [heading for heading in headings if heading] == [*(f"source-{number}" for number in range(5)), "with-more", "total"]
    long = [*_REASONS, "filter.length:seen"] if width >= 80 else []
    for label in ("read", *long, "kept", "text read", "tokens"):
        assert sum(line[1:].lstrip().startswith(f"{label} ") for line in lines) == num_tables


def test_funnel_of_a_report_before_max_padding_shows_its_other_counts() -> None:
    report = _report(1)
    packing = {"rows": 20, "padding_tokens": 7, "padding_share": 0.001, "split_documents": 3, "pieces": 40}
    dropped = {"dropped_tokens": 0, "dropped_documents": 0}
    report["total"]["packing"] = {"64": packing | dropped}
    lines = [" ".join(line.replace("│", " ").split()) for line in _printed(report, 200)]
    assert "rows of 64 · · 20" in lines
    assert "documents split 0 0 3" in lines
    assert not any("split for padding" in line for line in lines)
    report["total"]["packing"]["64"]["split_for_padding"] = 2
    assert any("split for padding" in line for line in _printed(report, 200))


def test_funnel_groups_reasons_by_stage_and_hides_rows_of_zeros() -> None:
    report = _report(1)
    reasons = {"filter.length:too_few_words": 3, "filter.length:too_many_words": 2, "dedup.exact@0123abcd:duplicate": 0}
    for entry in (*report["sources"].values(), report["total"]):
        entry["documents"] = entry["documents"] | {"dropped": reasons}
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in _printed(report, 200) if line.startswith("│")]
    assert [line[0] for line in lines[:4]] == ["read", "filter.length", "too_few_words", "too_many_words"]
    assert [line[1] for line in lines[1:4]] == ["−5", "−3", "−2"]
    assert lines[4][0] == "kept"  # nobody was dropped as a duplicate, and nothing is in quarantine
    report["sources"]["source-0"]["documents"] = report["sources"]["source-0"]["documents"] | {"quarantined": 1}
    assert "quarantined" in "".join(_printed(report, 200))


def test_funnel_rows_come_in_the_order_in_which_stages_ran() -> None:
    labels = [line[1:].split("│")[0].strip() for line in _printed(_report(1), 200)]
    assert [label for label in labels if label in _REASONS] == [
        "filter.length:too_few_words",
        "my.own:Filter:rule",
        "dedup.exact@0123abcd:duplicate",
    ]


@pytest.mark.parametrize(("columns", "width"), [("77", 77), ("", 120), ("0", 120), ("wide", 120)])
def test_console_without_a_terminal_has_the_width_of_columns(monkeypatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert wide_console().width == width


@pytest.mark.parametrize("width", [40, 80])
def test_funnel_of_one_source_has_no_total(width: int) -> None:
    lines = _printed(_report(0), width)
    assert sum("123,456,789" in line for line in lines) == 1
    assert not any("total" in line or "continued" in line for line in lines)


def test_funnel_total_in_a_table_of_its_own_has_no_rows_of_one_source_alone() -> None:
    report = _report(1)
    of_one, of_both, total = ({"own:rule": 5}, {"both:rule": 3}, {"own:rule": 5, "both:rule": 6})
    for entry, dropped in zip((*report["sources"].values(), report["total"]), (of_both, of_both | of_one, total), strict=True):
        entry["documents"] = entry["documents"] | {"dropped": dropped}
    lines = _printed(report, 60)
    *_, start = [number for number, line in enumerate(lines) if "continued" in line]
    assert "total" in lines[start + 2]
    assert any("own:rule" in line for line in lines[:start])
    assert not any("own:rule" in line for line in lines[start:])
    assert any("both:rule" in line and "−6" in line for line in lines[start:])
    assert any("own:rule" in line and "−5" in line.split("│")[-2] for line in _printed(report, 200))  # beside the sources


@pytest.mark.parametrize(("task_s", "is_told"), [(4.1, False), (9.5, True)])
def test_funnel_tells_the_time_of_starting_apart_from_that_of_steps(task_s: float, is_told: bool) -> None:
    report = _report(0)
    report["total"]["task_seconds"] = task_s
    stream = io.StringIO()
    print_funnel(report, Console(file=stream, width=80))
    assert ("tasks took 5.5 s to start" in stream.getvalue()) == is_told
