"""The last screen of a run. Its width is checked in tests/conformance/test_screens.py."""

from __future__ import annotations

import ast
import io
import re
import shlex
from typing import Any

import pytest
from rich.console import Console

from datapipe.report.screen import print_problem, print_screen, print_warnings, snapshot_news


def _entry(read: int, kept: int, tokens: int, **dropped: int) -> dict[str, Any]:
    reasons = {name.replace("__", ":").replace("_of_", "."): count for name, count in dropped.items()}
    return {
        "documents": {"read": read, "kept": kept, "dropped": reasons, "quarantined": 0},
        "bytes": 4000 * read,
        "kept_bytes": 4000 * kept,
        "tokens": tokens,
        "packing": {"512": {}},
        "counts": {},
        "steps": {"read": {"seconds": 1.0, "mb_per_s": None, "bytes": 0, "documents": 0}},
    }


def _report(sources: dict[str, Any], total: dict[str, Any], **more: Any) -> dict[str, Any]:
    tasks = {"web/read": {"planned": 2, "committed": 2}, "web/apply": {"planned": None, "committed": 0}}
    known = {"status": "done", "problem": None, "mixture": None, "tokenizer": None, "warnings": [], "tasks": tasks}
    return {"name": "trial", "sources": sources, "total": total, "slowest_step": "read"} | known | more


def _two() -> dict[str, Any]:
    web = _entry(1200, 1020, 6_012_345, filter_of_length__too_few_words=150, dedup_of_exact__duplicate=30)
    docs = _entry(704, 12, 812_300, filter_of_length__too_few_words=692)
    total = _entry(1904, 1032, 6_824_645, filter_of_length__too_few_words=842, dedup_of_exact__duplicate=30)
    mixture = {"tokens": 9, "sources": {"web": {"epochs": 1.5}, "docs": {"epochs": 95.04}}}
    warnings = [
        {"kind": "few_kept", "source": "docs", "text": "source 'docs': 12 of 704 documents kept (1.70%). Check the threshold."},
        {"kind": "many_epochs", "source": "docs", "text": "source 'docs' is drawn 95.0 times over the run. Add text to it."},
    ]
    return _report({"web": web, "docs": docs}, total, mixture=mixture, warnings=warnings)


def _printed(report: dict[str, Any], width: int, news: tuple[str, ...] = (), output: str = "runs/trial") -> str:
    stream = io.StringIO()
    print_screen(report, output, Console(file=stream, width=width), news)
    return stream.getvalue()


_NEWS = tuple(snapshot_news("runs/trial", "ab" * 16, "cd" * 16, ["source docs added", "seed: 1 → 2"], 2_300_000))


def test_screen_of_a_run_has_a_row_for_each_source_and_what_changed_and_what_comes_next() -> None:
    lines = _printed(_two(), 80, _NEWS).splitlines()
    assert lines[0] == "trial: 1,032 of 1,904 documents kept (54%), 6,824,645 tokens"
    assert [line.split() for line in lines[2:6]] == [
        ["source", "read", "kept", "share", "tokens", "epochs", "text"],
        ["web", "1,200", "1,020", "85%", "6,012,345", "1.5", "4.1", "MB"],
        ["docs", "704", "12", "1.7%", "812,300", "95.0", "48.0", "kB"],
        ["total", "1,904", "1,032", "54%", "6,824,645", "4.1", "MB"],
    ]
    assert lines[6] == "dropped: filter.length 842, dedup.exact 30"
    assert lines[9:11] == ["  source docs added", "  seed: 1 → 2"]
    assert [line.partition(": ")[2][:13] for line in lines if line.startswith("warning")] == ["source 'docs'"] * 2


@pytest.mark.parametrize("width", [60, 80])
def test_screen_of_fifty_sources_is_short_and_its_sums_are_whole(width: int) -> None:
    sources = {f"a-source-with-a-rather-long-name-{number:02}": _entry(10**9 + number, 10**8, 10**12) for number in range(50)}
    warnings = [{"kind": "few_kept", "source": name, "text": f"few of {name}"} for name in sources]
    lines = _printed(_report(sources, _entry(50 * 10**9, 5 * 10**9, 5 * 10**13), warnings=warnings), width).splitlines()
    assert len(lines) < 32
    assert max(map(len, lines)) <= width
    assert sum(re.match(r"a-source-with.* 1\.0B  100M", line) is not None for line in lines) == 10
    assert any(re.match(r"and 40 more.* 40\.0B  4\.0B +10%", line) for line in lines)
    warned = " ".join(lines).partition("warning: ")[2].split(" warning: ")
    assert warned[:3] == [f"few of {name}" for name in list(sources)[:3]]
    assert " ".join(warned[3].split()) == "47 more of the kind few_kept: `datapipe report runs/trial --full` shows them"
    stream = io.StringIO()
    print_warnings({"warnings": warnings}, Console(file=stream, width=width), "")
    assert stream.getvalue().count("warning: few of") == 50


def test_screen_of_a_failed_run_is_a_line_and_its_warnings_without_tables() -> None:
    report = _two() | {"status": "failed", "problem": "the disk s3://KEY:SECRET@bucket is full"}
    lines = _printed(report, 80).splitlines()
    assert lines[:2] == [
        "trial: failed after 1 of 2 steps, 1,904 documents read;",
        "  `datapipe report runs/trial --full` shows the counts",
    ]
    assert [line.partition(":")[0] for line in lines[2:]] == ["", "warning", "warning"]
    stream = io.StringIO()
    print_problem(report, Console(file=stream, width=80))
    assert stream.getvalue() == "failed: the disk s3://***@bucket is full\n"


@pytest.mark.parametrize(
    ("num_stages", "last"), [(3, "stage-2 8"), (4, "stage-3 7"), (5, "2 other stages 13"), (6, "3 other stages 18")]
)
def test_screen_names_a_single_other_stage_that_dropped(num_stages: int, last: str) -> None:
    entry = _entry(100, 50, 1)
    entry["documents"]["dropped"] = {f"stage-{number}:rule": 10 - number for number in range(num_stages)}
    (line,) = [line for line in _printed(_report({"web": entry}, entry), 80).splitlines() if line.startswith("dropped: ")]
    assert line.split(", ")[-1] == last


def test_screen_of_a_run_without_tokens_and_without_drops_has_no_such_lines() -> None:
    entry = _entry(1, 1, 0) | {"packing": {}}
    printed = _printed(_report({"web": entry}, entry), 80)
    assert "trial: 1 of 1 document kept (100%), 4.0 kB of text\n" in printed
    assert "dropped: nothing" in printed
    assert "total" not in printed
    assert "Loader" not in printed
    assert printed.splitlines()[2].split() == ["source", "read", "kept", "share", "text"]


@pytest.mark.parametrize(
    ("read", "kept", "share"),
    [(0, 0, "0%"), (10_000, 9_999, ">99%"), (10_000, 10_000, "100%"), (10_000, 3, "<0.1%"), (200, 19, "9.5%"), (3, 1, "33%")],
)
def test_screen_share_of_all_is_said_of_all_alone(read: int, kept: int, share: str) -> None:
    entry = _entry(read or 1, kept, 5)
    entry["documents"]["read"] = read
    lines = _printed(_report({"web": entry}, _entry(1, 1, 1)), 80).splitlines()
    assert lines[3].split()[3] == share


def test_news_of_a_first_and_of_the_same_snapshot() -> None:
    assert snapshot_news("o", "ab" * 16, "", [], 0)[0] == "snapshot abababababab"
    assert "`datapipe snapshots` lists it" in snapshot_news("o", "ab" * 16, "cd" * 16, [], 0, loads_before=False)[1]
    assert snapshot_news("o", "ab" * 16, "ab" * 16, [], 0)[0] == "snapshot abababababab, as before"


def test_threshold_of_a_kept_share_is_told():
    entry = _entry(100, 10, 500, **{"filter.classifier:below_share": 90})
    cut = {"threshold": 0.72345, "tie": "00ff", "share": 0.1, "of": "documents", "from": None}
    thresholds = {"web": {"filter.classifier": cut, "again": {**cut, "threshold": None, "from": "runs/old"}}}
    lines = _printed(_report({"web": entry}, entry, thresholds=thresholds), 100).splitlines()
    assert "web: filter.classifier keeps 0.1 of the documents: scores from 0.7235 on" in lines
    assert "web: again keeps 0.1 of the documents: nothing is left to keep, as in runs/old" in lines


@pytest.mark.parametrize("output", ["out dir #1 50% é", "it's", 'say "so"', "a;b&c", "runs/trial", "s3://***@bucket/a b?x=1"])
def test_screen_commands_name_the_output_for_a_shell_and_for_python(output: str) -> None:
    report = _two()
    report["total"]["packing"] = {"512": {}, "1024": {}}
    screen = _printed(report, 200, tuple(snapshot_news(output, "ab" * 16, "cd" * 16, [], 0)), output)
    commands = [shlex.split(line, comments=True) for line in screen.splitlines() if line.startswith("  datapipe ")]
    assert [command[:3] for command in commands] == [["datapipe", name, output] for name in ("report", "inspect")]
    loaders = [ast.literal_eval(place) for place in re.findall(r"Loader\((.*?), (?:batch|snapshot)", screen)]
    assert loaders == [output, output, f"{output}/length-1024"]
    failed = _printed(_report({"web": _entry(1, 0, 0)}, _entry(1, 0, 0), status="failed"), 20, output=output)
    assert f"datapipe report {shlex.quote(output)} --full".split() == failed.partition("`")[2].partition("`")[0].split()
