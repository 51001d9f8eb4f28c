"""What people see of a run on a terminal and in a log: lines, funnel, last screen, plan, snapshots, clusters.

The width of all screens, and that nothing controls the terminal: tests/conformance/test_screens.py.
"""

from __future__ import annotations

import ast
import io
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from datapipe.config import load_mixture
from datapipe.engine.run import planned
from datapipe.machine.terminal import harmless
from datapipe.metrics import Packing
from datapipe.report.documents import documents
from datapipe.report.layout import NO_BREAK, NumberTable, print_text, wrapped
from datapipe.report.plan_view import last_grids, plan_view
from datapipe.report.records import TakenSource, Threshold
from datapipe.report.report import Report
from datapipe.report.screen import print_screen, print_sections, print_training, print_warnings, snapshot_lines, work_lines
from datapipe.report.snapshot_list import print_snapshots
from datapipe.shards.snapshots import publications
from datapipe.snapshots.clean import WorkBytes
from datapipe.steps.warnings import RunWarning
from datapipe.steps.weighting import BYTES_PER_TOKEN
from datapipe.storage.root import Root
from datapipe.tokens.figures import TokenizerFigures
from tests.support import corpora, reports, runs
from tests.support.finished import finish


@given(st.text(st.characters(exclude_characters=NO_BREAK), max_size=200), st.integers(20, 100))
def test_wrapped_text_keeps_its_words_within_the_width(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert harmless("".join(lines)) == "".join(lines)
    assert [word for line in lines for word in line.split()] == [harmless(word) for word in text.split()]
    for line in lines:
        assert cell_len(line) <= width or len(line.split()) == 1


_WORDS = st.text(st.sampled_from("ab/:-."), min_size=1, max_size=9)


@given(st.lists(st.one_of(_WORDS, st.lists(_WORDS, min_size=1, max_size=3).map(lambda words: f"`{' '.join(words)}`"))))
def test_wrapped_text_breaks_no_command_that_fits_a_line(parts: list[str]) -> None:
    text = " ".join(parts)
    lines = wrapped(text, 40)
    assert " ".join(line.strip() for line in lines) == text
    assert all(line.count("`") % 2 == 0 for line in lines)
    for line, after in zip(lines, lines[1:]):
        following = re.match(r"`[^`]*`|\S+", after.strip())
        assert following is not None
        assert len(line) + 1 + len(following[0]) > 40  # no line ends early


def test_text_is_wrapped_on_a_terminal_alone() -> None:
    text = "datapipe: " + "/a/long/path/of/a/file.jsonl:12 is damaged. " * 4 + "\n  Second\x1b[2J line"
    printed = {}
    modes: tuple[tuple[bool, Literal["standard"] | None], ...] = ((True, "standard"), (False, None))
    for terminal, colors in modes:
        stream = io.StringIO()
        print_text(text, Console(file=stream, width=60, force_terminal=terminal, color_system=colors), "red")
        printed[terminal] = re.sub(r"\x1b\[(31|0)m", "", stream.getvalue())
        assert ("\x1b[31m" in stream.getvalue()) == terminal
    assert max(map(len, printed[True].splitlines())) <= 60
    assert printed[True].count("/a/long/path/of/a/file.jsonl:12 ") + printed[True].count("file.jsonl:12\n") == 4
    assert printed[True].endswith("\n  Second\\u001b[2J line\n")
    assert printed[False] == text.replace("\x1b", "\\u001b") + "\n"


def _entry(read: int, kept: int, tokens: int, **dropped: int) -> dict[str, Any]:
    reasons = {name.replace("__", ":").replace("_of_", "."): count for name, count in dropped.items()}
    return {
        "documents": {"read": read, "kept": kept, "dropped": reasons, "quarantined": 0, "quarantine_reasons": {}},
        "bytes": 4000 * read,
        "kept_bytes": 4000 * kept,
        "tokens": tokens,
        "sequences": 0,
        "packing": {"512": dict.fromkeys(Packing.__slots__, 0)},
        "counts": {},
        "steps": {"read": {"seconds": 1.0, "mb_per_s": None, "bytes": 0, "documents": 0}},
    }


def _report(sources: dict[str, Any], total: dict[str, Any], **more: Any) -> dict[str, Any]:
    about = {"kind": "map", "source": "web", "label": "", "seconds": 1.0, "peak_bytes": 0}
    tasks = {"web/read": {"planned": 2, "committed": 2, **about}, "web/apply": {"planned": None, "committed": 0, **about}}
    total = {"task_seconds": sum(step["seconds"] for step in total["steps"].values()), **total}
    known = {"sources": sources, "total": total, "tasks": tasks}
    missing = dict.fromkeys(("mixture", "tokenizer", "shards", "run"))
    return json.loads(reports.report((), clusters={}, **missing).to_bytes()) | known | more


def _two() -> dict[str, Any]:
    web = _entry(1200, 1020, 6_012_345, filter_of_length__too_few_words=150, dedup_of_exact__duplicate=30)
    docs = _entry(704, 12, 812_300, filter_of_length__too_few_words=692)
    total = _entry(1904, 1032, 6_824_645, filter_of_length__too_few_words=842, dedup_of_exact__duplicate=30)
    drawn = {"share": 0.5, "tokens": 9, "epoch_tokens": 9, "max_epochs": None, "strata": None}
    mixture = {"tokens": 9, "asked_tokens": None, "phases": 1, "exhausted": "stop", "window": 1, "schedule": []}
    mixture["sources"] = {"web": {**drawn, "epochs": 1.5}, "docs": {**drawn, "epochs": 95.04}}
    warnings = [
        {"kind": "few_kept", "source": "docs", "text": "source 'docs': 12 of 704 documents kept (1.70%). Check the threshold."},
        {"kind": "many_epochs", "source": "docs", "text": "source 'docs' is drawn 95.0 times over the run. Add text to it."},
    ]
    return _report({"web": web, "docs": docs}, total, mixture=mixture, warnings=warnings)


def _printed(report: dict[str, Any], width: int, news: tuple[str, ...] = (), output: str = "runs/trial") -> str:
    stream = io.StringIO()
    print_screen(Report.model_validate(report), output, Console(file=stream, width=width), news)
    return stream.getvalue()


_WORK = list(work_lines("runs/trial", WorkBytes(total=2_300_000, clean=0, work=2_100_000), 80))
_NEWS = tuple(snapshot_lines("runs/trial", "ab" * 16, "cd" * 16, ["source docs added", "seed: 1 → 2"], _WORK))


def test_line_about_work_names_the_commands_that_delete_of_it() -> None:
    none, stale, both = (WorkBytes(total=40, clean=clean, work=work) for clean, work in ((0, 0), (10, 0), (10, 20)))
    assert list(work_lines("out", none, 80)) == ["work/: 40 B; the report is made of it"]
    assert list(work_lines("out", stale, 80)) == ["work/: 40 B", "  datapipe clean out  # deletes 10 B that no snapshot needs"]
    *_, about, command = work_lines("my out", both, 60)
    assert about == "  # deletes 20 B that only later runs and `inspect` need"
    assert command.replace(NO_BREAK, " ") == "  datapipe clean 'my out' --work"


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
    assert len(lines) < 34
    assert max(map(len, lines)) <= width
    assert sum(re.match(r"a-source-with.* 1\.0B  100M", line) is not None for line in lines) == 10
    assert any(re.match(r"and 40 more.* 40\.0B  4\.0B +10%", line) for line in lines)
    warned = " ".join(lines).partition("warning: ")[2].split(" warning: ")
    assert warned[:3] == [f"few of {name}" for name in list(sources)[:3]]
    assert " ".join(warned[3].split()) == "47 more of the kind few_kept: `datapipe report runs/trial --full` shows them"
    stream = io.StringIO()
    print_warnings([RunWarning(**warning) for warning in warnings], Console(file=stream, width=width), "")
    assert stream.getvalue().count("warning: few of") == 50


@pytest.mark.parametrize(
    ("read", "kept", "share"),
    [(0, 0, "0%"), (10_000, 9_999, ">99%"), (10_000, 10_000, "100%"), (10_000, 3, "<0.1%"), (200, 19, "9.5%"), (3, 1, "33%")],
)
def test_screen_rounds_a_share_to_all_or_nothing_only_where_it_is(read: int, kept: int, share: str) -> None:
    sources = {"web": _entry(read, kept, 0), "docs": _entry(1, 1, 0)}
    [row] = [line for line in _printed(_report(sources, _entry(read + 1, kept + 1, 0)), 80).splitlines() if line[:3] == "web"]
    assert row.split()[3] == share


@pytest.mark.parametrize(("num_stages", "last"), [(3, "stage-2 8"), (4, "stage-3 7"), (5, "2 other stages 13")])
def test_screen_names_the_stages_that_dropped_most_and_counts_the_others(num_stages: int, last: str) -> None:
    entry = _entry(100, 50, 7)
    entry["documents"]["dropped"] = {f"stage-{number}:rule": 10 - number for number in range(num_stages)}
    screen = " ".join(_printed(_report({"web": entry}, entry), 80).split())
    assert f"dropped: stage-0 10, stage-1 9, stage-2 8{'' if num_stages == 3 else f', {last}'} " in screen


def test_screen_reports_the_thresholds_of_kept_shares_and_what_other_snapshots_gave() -> None:
    entry, cut = _entry(10, 5, 7), dict.fromkeys(Threshold.model_fields, None)
    cut |= {"threshold": 0.72349, "share": 0.1, "of": "documents", "from": None}
    thresholds = {"web": {"filter.classifier": cut, "again": {**cut, "threshold": None, "from": "runs/old"}}}
    origin = {**dict.fromkeys(TakenSource.model_fields, None), "synthetic": False, "documents": 1, "sequences": 1}
    taken = {f"old-{number:02}": {**origin, "tokens": 1000 + number} for number in range(12)}
    screen = " ".join(_printed(_report({"web": entry}, entry, thresholds=thresholds, taken=taken), 100).split())
    assert "web: filter.classifier keeps 0.1 of the documents: scores from 0.7235 on" in screen
    assert "web: again keeps 0.1 of the documents: nothing is left to keep, as in runs/old" in screen
    assert "rows of other snapshots: old-00 1,000 tokens," in screen and "old-09 1,009 tokens, 2 more" in screen


@pytest.mark.parametrize("output", ["out dir #1 50% é", "it's", 'say "so"', "a;b&c", "runs/trial", "s3://***@bucket/a b?x=1"])
def test_screen_commands_name_the_output_for_a_shell_and_for_python(output: str) -> None:
    report = _two()
    report["total"]["packing"]["1024"] = report["total"]["packing"]["512"]
    screen = _printed(report, 200, tuple(snapshot_lines(output, "ab" * 16, "cd" * 16, [], [])), output)
    commands = [shlex.split(line, comments=True) for line in screen.splitlines() if line.startswith("  datapipe ")]
    assert [command[:3] for command in commands] == [["datapipe", name, output] for name in ("report", "inspect")]
    loaders = [ast.literal_eval(place) for place in re.findall(r"Loader\((.*?), (?:batch|snapshot)", screen)]
    assert loaders == [output, output, output] and "batch_size=8, sequence_length=1024)" in screen
    failed = _printed(_report({"web": _entry(1, 0, 0)}, _entry(1, 0, 0), status="failed"), 20, output=output)
    assert f"datapipe report {shlex.quote(output)} --full".split() == failed.partition("`")[2].partition("`")[0].split()


_REASONS = {"dedup.exact@0123abcd:duplicate": 7_654_321, "my.own:Filter:rule": 12, "filter.length:too_few_words": 3}


def _counted(steps: list[str]) -> dict[str, Any]:
    entry = _entry(123_456_789, 115_802_453, 23_456_789_012) | {"packing": {}, "counts": {"filter.length:seen": 5}}
    entry["documents"]["dropped"] = _REASONS
    return entry | {"steps": {step: {"seconds": 1.0, "mb_per_s": None, "bytes": 0, "documents": 0} for step in steps}}


def _of_sources(num_sources: int) -> dict[str, Any]:
    ran = ["read", "filter.length", "dedup.exact: exchange", "dedup.exact@0123abcd: apply"]
    sources = {f"source-{number}": _counted(ran) for number in range(num_sources)}
    sources |= {"with-more": _counted([*ran[:2], "my.own:Filter", *ran[2:]])}
    return _report(sources, _counted(ran))


def _funnel(report: dict[str, Any], width: int) -> list[str]:
    stream = io.StringIO()
    print_sections([documents(Report.model_validate(report))], Console(file=stream, width=width))
    return stream.getvalue().splitlines()


def test_full_report_has_a_heading_for_each_section_and_titles_as_wide_as_the_screen() -> None:
    stream = io.StringIO()
    sections = reports.report(["web"], name="a-rather-long-name-of-a-run").sections()
    print_sections(sections, Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    headings = [line.rstrip(" ─") for before, line in zip(lines, lines[1:]) if not before and line.endswith("─")]
    assert headings == [section.title for section in sections if section.tables or section.notes]
    assert "Lengths of documents" not in headings  # figures, which a page alone draws
    titles = [table.title for section in sections for table in section.tables if len(table.title) < 80]
    assert all(title in lines for title in titles)


@pytest.mark.parametrize(("width", "num_tables"), [(40, 7), (80, 4), (120, 2), (200, 1)])
def test_funnel_is_complete_at_any_width(width: int, num_tables: int) -> None:
    lines = _funnel(_of_sources(5), width)
    assert max(map(len, lines)) <= width
    for number in ("123,456,789", "−7,654,321", "23,456,789,012", "115,802,453 (94%)"):
        assert sum(line.count(f" {number} ") for line in lines) == 7
    headings = [cell.strip() for line in lines if line.startswith("┃") for cell in line.split("┃")]
    assert [heading for heading in headings if heading] == [*(f"source-{number}" for number in range(5)), "with-more", "total"]
    long = [*_REASONS, "filter.length:seen"] if width >= 80 else []
    for label in ("read", *long, "kept", "text read", "tokens"):
        assert sum(line[1:].lstrip().startswith(f"{label} ") for line in lines) == num_tables


def test_name_that_is_wider_than_its_column_is_broken_behind_signs() -> None:
    stream = io.StringIO()
    table = NumberTable("", ["", "documents"], [["extract.html:by_resiliparse_unmarked", "123,456,789"]])
    Console(file=stream, width=52).print(table)
    lines = [line.split("│")[1].strip() for line in stream.getvalue().splitlines() if line.startswith("│")]
    assert lines == ["extract.html:by_resiliparse_", "unmarked"]


def test_funnel_groups_reasons_by_stage_and_hides_rows_of_zeros() -> None:
    report = _of_sources(1)
    reasons = {"filter.length:too_few_words": 3, "filter.length:too_many_words": 2, "dedup.exact@0123abcd:duplicate": 0}
    for entry in (*report["sources"].values(), report["total"]):
        entry["documents"] = entry["documents"] | {"dropped": reasons, "read": 15, "kept": 10}
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in _funnel(report, 200) if line.startswith("│")]
    assert [line[0] for line in lines[:4]] == ["read", "filter.length", "too_few_words", "too_many_words"]
    assert [line[1] for line in lines[1:4]] == ["−5", "−3", "−2"]
    assert lines[4][0] == "kept"  # nobody was dropped as a duplicate, and nothing is in quarantine
    report["sources"]["source-0"]["documents"] = report["sources"]["source-0"]["documents"] | {"quarantined": 1}
    assert "quarantined" in "".join(_funnel(report, 200))


def _fertility(num_bytes: int, **more: Any) -> dict[str, Any]:
    known = {"documents": 3, "bytes": num_bytes, "words": 0, "tokens": 40, "unknown_tokens": 0, "languages": None}
    return {**known, **more}


@dataclass
class _Trained:
    tokenizer: TokenizerFigures | None
    read_bytes: int = 3_000_000
    read_s: float = 2.0
    sample_bytes: int = 1_000_000
    train_s: float = 4.0
    rejected: int = 2
    unreadable_files: tuple[()] = ()


def _trained(tokenizer: dict[str, Any] | None) -> str:
    stream = io.StringIO()
    figures = None if tokenizer is None else TokenizerFigures.model_validate(tokenizer)
    print_training(_Trained(figures), Console(file=stream, width=100))
    return stream.getvalue()


def test_training_reports_its_rates_and_what_tokens_are_of_the_languages_with_most_text() -> None:
    assert all(
        told in _trained(None) for told in ("1.5 MB/s", "0.2 MB/s", "2 documents could not be read", "too few documents")
    )
    languages = {f"l{number:02}": _fertility(1000 + number) for number in range(15)}
    source = _fertility(90, languages=languages, unknown_tokens=7)
    told = _trained(
        {
            "vocab_size": 600,
            "eos_token": "x",
            "bos_token": None,
            "sources": {"web": source},
            "total": _fertility(90),
            "unused": None,
        }
    )
    assert re.findall(r"\bl\d\d\b", told) == [f"l{number:02}" for number in range(14, 2, -1)]
    assert "3 more languages" in told and "does not know: web 7" in told
    assert "never occur" not in told


def _shown(folder: Path, stages: str, *sources: str, tail: str = runs.TAIL) -> list[str]:
    """The lines of the plan of a mixture, without the lines of its tree."""
    listed = ""
    for source in sources or ("web: {}",):
        name, _, options = source.partition(": ")
        rows = [{**row, "score": number} for number, row in enumerate(corpora.documents(1, 10))]
        corpora.write_jsonl(folder / f"{name}.jsonl", rows)
        listed += (
            f"  {name}: {options}\n" if "snapshot" in options else f"  {name}: {{path: {folder}/{name}.jsonl, {options[1:]}\n"
        )
    return _planned(runs.write_mixture(folder, listed, f"stages: {stages}", tail))


def _planned(mixture_file: Path) -> list[str]:
    mixture, stream = load_mixture(mixture_file), io.StringIO()
    Console(file=stream, width=200).print(plan_view(mixture, *planned(mixture)))
    return [line.strip(" │├─└") for line in stream.getvalue().splitlines()]


def test_plan_view_shows_which_sources_are_not_compared_and_why(tmp_path: Path) -> None:
    kept = (("web", "longest"), ("books", "longest"), ("code", "first"))
    lines = _shown(tmp_path, "[]", *(f"{name}: {{stages: [dedup.exact: {{keep: {keep}}}]}}" for name, keep in kept))
    assert [line.partition(" (")[0] for line in lines if "not compared" in line] == [
        "not compared with code, where keep differs",
        "not compared with web, books, where keep differs",
    ]


def test_plan_view_shows_strata_and_what_a_stage_that_is_a_function_costs(tmp_path: Path) -> None:
    strata = "{keep: [score], strata: {by: score, bounds: [2, 4.5], repeat: [1, 2, 3], order: ascending}}"
    shown = "\n".join(_shown(tmp_path, "[tests.support.function_stages:reverses: {as: turned}, dedup.exact]", f"web: {strata}"))
    assert "strata by score, ascending, in an epoch: below 2 once; 2 to below 4.5 twice; from 4.5 3 times" in shown
    assert "turned: a Python call for each document" in shown


@pytest.mark.medium
def test_plan_shows_how_a_source_is_split_and_after_a_run_its_cells(tmp_path: Path) -> None:
    rows = [{**row, "score": number, "topic": "ab"[number % 2]} for number, row in enumerate(corpora.documents(1, 60))]
    rows = [{**row, "length": len(row["text"])} for row in rows]
    corpora.write_jsonl(tmp_path / "web.jsonl", rows)
    axes = "[topic, {column: score, bounds: [20, 40]}, {column: length, quantiles: 2}]"
    split = f"{{by: {axes}, weights: {{default: 1, 'a/*/*': 3/2}}, repeat: {{'*/2/*': 2.5}}}}"
    sources = f"  web: {{path: {tmp_path}/*.jsonl, keep: [score, topic, length], split: {split}}}\n"
    file = runs.write_mixture(tmp_path, sources)
    by = "by topic × score (below 20, 20 to below 40, from 40) × length in 2 quantiles"
    notes = ["weights of cells: default 1, a/*/* 1.5", "repeat: */2/* 2.5"]
    assert all(note in _planned(file) for note in (f"cells {by}", *notes))
    finish(file)
    shown = _planned(file)
    num_cells = len(json.loads((tmp_path / "out/report.json").read_bytes())["grids"]["web"]["cells"])
    assert f"{num_cells} cells {by}" in shown
    [tokens, shares] = last_grids(Root(str(tmp_path / "out")), load_mixture(file))
    assert [table.rows[-1][0] for table in (tokens, shares)] == ["all", "all"] and shares.rows[-1][-1] == 1.0


@pytest.mark.medium
def test_plan_view_draws_rows_of_a_snapshot_and_weighs_files_by_their_bytes(plain: Path, tmp_path: Path) -> None:
    tail = "pack: {sequence_length: 64}\nmixture: {weighting: temperature, temperature: 1, tokens: TOKENS}\n"
    old = f"old: {{snapshot: {plain}/out, max_epochs: 2}}"
    lines = _shown(tmp_path, "[]", old, "web: {}", tail=tail.replace("TOKENS", "60000"))
    [taken] = [line for line in lines if "of a snapshot" in line]
    _, weight, *_, tokens, drawn, epochs, most = taken.replace("│", " ").split()
    of_files = (tmp_path / "web.jsonl").stat().st_size / BYTES_PER_TOKEN
    unique = int(tokens.replace(",", ""))
    assert float(weight.rstrip("%")) == pytest.approx(100 * unique / (unique + of_files), abs=0.1)
    assert float(epochs) == pytest.approx(int(drawn.replace(",", "")) / unique, abs=0.01)
    assert most == "2"
    assert any("the bytes of the input files" in line for line in lines)


def test_plan_view_of_documents_has_no_mixture(tmp_path: Path) -> None:
    assert not any("tokens to draw" in line for line in _shown(tmp_path, "[]", tail="tokenizer: none"))


@pytest.mark.medium
def test_list_of_snapshots_names_what_changed_also_after_going_back(tmp_path: Path) -> None:
    first, second = "[filter.length: {min_chars: 2}]", "[normalize.unicode, filter.length: {min_chars: 2, max_chars: 90000}]"
    for stages, names in ((first, "a"), (second, "ab"), (first, "a")):
        (tmp_path / "b.jsonl").unlink(missing_ok=True)
        for name in names:
            corpora.write_jsonl(tmp_path / f"{name}.jsonl", corpora.documents(ord(name), 20))
        sources = f"  web: {{path: {tmp_path}/*.jsonl, fingerprint: content}}\n"
        file = runs.write_mixture(tmp_path, sources, f"stages: {stages}", "tokenizer: none\n")
        runs.run_mixture(file, make_engine=runs.InProcess)
    root, stream = Root(str(tmp_path / "out")), io.StringIO()
    print_snapshots(root, publications(root), Console(file=stream, width=80))
    told = stream.getvalue()
    for change in ("added", "left out"):
        assert f"{change} normalize.unicode" in told
    assert told.index("filter.length.max_chars none → 90000") < told.index("filter.length.max_chars 90000 → none")
    assert told.index("files of web: 1 added") < told.index("files of web: 1 removed")
    assert told.count("published again") == 1


def test_parts_of_one_source_have_nothing_of_others() -> None:
    whole = reports.report(("web", "code"))
    parts = whole.of_source("web")
    assert parts == {"contamination": (), "clusters": {}, "grids": {}} | {
        name: {"web": getattr(whole, name)["web"]} for name in ("measured", "lengths")
    }
    old = whole.with_(measured={}, lengths={})  # of a version that measured neither
    assert old.with_(**old.of_source("web")).sections()


def test_keys_of_report_json_stay_in_their_order() -> None:
    assert list(json.loads(reports.report().to_bytes())) == [
        *("name", "status", "problem", "total", "sources", "taken", "mixture", "tokenizer", "warnings", "thresholds"),
        *("grids", "contamination", "measured", "lengths", "clusters"),
        *("tasks", "second_attempts", "peak_worker_bytes", "run", "shards", "provenance"),
    ]
