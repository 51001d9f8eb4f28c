"""The corpus, the processes and the arithmetic of the benchmark `scale`."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard

from stages.read.warc import Warc
from tests.benchmarks.scale_figures import GROWING, Figures, FiguresFile, exponent, exponent_of_increase
from tests.benchmarks.scale_plot import plot
from tests.benchmarks.scale_tables import growth
from tests.support import cli_processes, web_archives
from tests.support.corpora import documents
from tests.support.counting_store import request_class
from tests.support.measured_run import EventLog, MeasuredRun, Usage, run_measured
from tests.support.reader_results import input_file
from tests.support.varied_files import archive_files, text_files
from tests.support.varied_pages import IN_HTML, IN_JSON, VariedPages

TEXTS = [document["text"] for document in documents(5, 60)]


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}


def similarity(one: str, other: str) -> float:
    first, second = shingles(one), shingles(other)
    return len(first & second) / max(1, len(first | second))


def test_copies_of_a_page_differ_and_keep_their_length_and_their_repeats() -> None:
    varied = VariedPages([text.encode() for text in [*TEXTS, TEXTS[0]]])
    first, second = ([page.decode() for page in varied.copy(key)] for key in (1, 2))
    assert [len(page) for page in first] == [len(text) for text in [*TEXTS, TEXTS[0]]]
    assert first[0] == first[-1]
    assert first == [page.decode() for page in varied.copy(1)]
    pairs = [*zip(first, TEXTS), *zip(first, second)]
    assert max(similarity(*pair) for pair in pairs if len(pair[0]) > 200) < 0.3


def test_copy_in_json_keeps_escapes() -> None:
    texts = ['one "quoted" page\nwith newlines\tand \u00e9t\u00e9 \\ again'] * 2
    pages = VariedPages([json.dumps(text, ensure_ascii=False)[1:-1].encode() for text in texts], IN_JSON).copy(3)
    copies = [json.loads(b'"' + page + b'"') for page in pages]
    signs = [[sign for sign in text if not (sign.isascii() and sign.isalpha())] for text in (copies[0], texts[0])]
    assert signs[0] == signs[1]


def test_copy_of_html_keeps_tags_scripts_and_entities() -> None:
    script, rest = "<script>var name = 12;</script>", '<p class="lead story">&nbsp;</p>'
    page = f"<html><body>{script}<p>Several ordinary sentences about markets 1987</p>{rest}</body></html>"
    [copy] = VariedPages([page.encode()], IN_HTML).copy(2)
    assert script in copy.decode()
    assert copy.decode().endswith(f"{rest}</body></html>")
    assert copy.decode() != page


def test_files_of_a_smaller_corpus_are_the_first_ones_of_a_larger(tmp_path: Path) -> None:
    small, large = (text_files(tmp_path / name, TEXTS, 4000) for name in ("small", "large"))
    first, more = small.first(10_000), large.first(30_000)
    assert len(more) > len(first)
    assert [file.path.read_bytes() for file in first] == [file.path.read_bytes() for file in more[: len(first)]]
    assert sum(file.text_bytes for file in first[:-1]) < 10_000 <= large.linked(10_000, tmp_path / "linked")
    lines = zstandard.decompress(more[0].path.read_bytes()).splitlines()
    assert all(json.loads(line).keys() == {"text", "url"} for line in lines)


def test_archives_have_a_record_for_each_page(tmp_path: Path) -> None:
    pages = [f"<html><body><p>{text}</p></body></html>" for text in TEXTS]
    [file] = archive_files(tmp_path, pages, 8000).first(1)
    found = web_archives.documents(web_archives.read(Warc(), input_file(file.path, file.path.read_bytes())))
    assert [page.startswith(b"<html><body><p>") for page in found.values()] == [True] * len(found)
    assert len(found) > 1


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("PUT", "/bucket/a?partNumber=1&uploadId=x", "PUT"),
        ("POST", "/bucket/a?uploads", "PUT"),
        ("POST", "/bucket?delete", "DELETE"),
        ("DELETE", "/bucket/a?uploadId=x", "DELETE"),
        ("GET", "/bucket?list-type=2&prefix=work", "LIST"),
        ("GET", "/bucket/a", "GET"),
        ("HEAD", "/bucket/a", "HEAD"),
    ],
)
def test_requests_are_counted_by_the_class_that_is_billed(method: str, path: str, expected: str) -> None:
    assert request_class(method, path) == expected


# ------------------------------------------------------------------------------------------------ processes


def test_log_gives_the_steps_that_run_and_their_tasks(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"event": "step_started", "step": "before"}\n', encoding="utf-8")
    events = EventLog(path)
    for name, facts in (("step_started", {"tasks": 2}), ("task_committed", {}), ("step_committed", {"tasks": 2})):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": name, "step": "web/read"} | facts) + "\n" + '{"event": "cut')
        events.read()
        with open(path, "r+", encoding="utf-8") as file:
            file.truncate(path.stat().st_size - len('{"event": "cut'))
        assert events.running == ([] if name == "step_committed" else ["web/read"])
    assert (events.tasks, events.committed) == ({"web/read": 2}, {"web/read": 1})


@pytest.mark.slow
def test_command_that_fails_is_an_error_with_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"no-such-mixture\.yaml"):
        run_measured(["run", "no-such-mixture.yaml"], MeasuredRun(), tmp_path / "log")


@pytest.mark.medium
def test_command_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    run, before = MeasuredRun(), set(cli_processes.children(os.getpid()))
    run_measured(["run", "no-such-mixture.yaml"], run, tmp_path / "log", kills=lambda events: True)
    assert run.was_killed
    assert set(cli_processes.children(os.getpid())) == before


@pytest.mark.medium
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_command_ends_with_the_benchmark(number: signal.Signals, tmp_path: Path) -> None:
    mixture = tmp_path / "mixture.yaml"
    os.mkfifo(mixture)  # a command that reads it waits for a writer
    call = f"run_measured(['run', {str(mixture)!r}], MeasuredRun(), Path({str(tmp_path / 'log')!r}))"
    code = f"from pathlib import Path; from tests.support.measured_run import *; {call}"
    root, commands = Path(__file__).parents[2], list[int]()
    benchmark = subprocess.Popen([sys.executable, "-c", code], cwd=root, stderr=subprocess.DEVNULL)
    try:
        cli_processes.wait_until(lambda: bool(cli_processes.children(benchmark.pid)), "the command")
        commands = cli_processes.children(benchmark.pid)
        benchmark.send_signal(number)
        benchmark.wait(60)
        cli_processes.wait_until(lambda: not any(map(cli_processes.is_running, commands)), "its end", 60)
    finally:
        for process_id in filter(cli_processes.is_running, commands):
            os.kill(process_id, signal.SIGKILL)
        cli_processes.end(benchmark)


# ------------------------------------------------------------------------------------------------ figures


def figures(text_bytes: int, reads: float, requests: Mapping[str, int] | None = None, keep_work: str = "none") -> Figures:
    return Figures(
        recipe="fineweb",
        target_bytes=text_bytes,
        keep_work=keep_work,
        split_bytes=1 << 25,
        workers=2,
        input_bytes=text_bytes,
        text_bytes=text_bytes,
        documents=1,
        kept_documents=1,
        kept_bytes=1,
        tokens=1,
        wall_seconds=1.0,
        core_seconds={"map": 1.0},
        driver_seconds=1.0,
        bytes_written={"map": 1},
        bytes_read=1,
        reads=round(reads),
        requests=requests or {},
        peak_work_bytes=1,
        peak_output_bytes=1,
        peak_driver_bytes=1,
        peak_worker_bytes=1,
        tasks={"map": 1},
        steps={},
    )


SIZES = [10**6, 10**7, 10**8]


@pytest.mark.parametrize(
    ("law", "least", "most"),
    [
        (lambda size: size, 0.99, 1.01),
        (lambda size: size * math.log(size), 1.02, 1.1),
        (lambda size: size**2, 1.99, 2.01),
        (lambda size: 7, -0.01, 0.01),
    ],
    ids=["in proportion", "n log n", "the square", "constant"],
)
def test_exponent_is_that_of_the_law(law, least: float, most: float) -> None:
    slope = exponent([figures(size, law(size)) for size in SIZES], GROWING["reads"])
    assert slope is not None
    assert least < slope < most


def test_figure_of_one_size_has_no_exponent() -> None:
    assert exponent([figures(10, 5), figures(100, 0)], GROWING["reads"]) is None


def test_exponent_of_the_increase_leaves_out_a_constant() -> None:
    reads = GROWING["reads"]
    assert exponent_of_increase([figures(size, 10**8 + size) for size in SIZES], reads) == pytest.approx(1.0, abs=0.01)
    square = [figures(size, 10**17 + size**2) for size in SIZES]
    assert exponent_of_increase(square, reads) == pytest.approx(2.0, abs=0.01)
    assert (exponent(square, reads) or 0.0) < 0.1
    assert exponent_of_increase([figures(size, 10**9 - size) for size in SIZES], reads) is None
    [row] = [row for row in growth(square).rows if row[0] == "reads"]
    assert row[2] == "2.00"


def test_steps_at_the_same_time_share_what_was_taken_by_their_weights() -> None:
    run = MeasuredRun(spent={("pack", "fold"): Usage(core_seconds=10.0), ("pack",): Usage(core_seconds=1.0)})
    steps = run.by_step({"pack": 4.0, "fold": 1.0})
    assert {step: usage.core_seconds for step, usage in steps.items()} == {"pack": 9.0, "fold": 2.0}
    assert run.total.core_seconds == 11.0


def test_run_that_has_a_record_is_not_measured_again(tmp_path: Path) -> None:
    kept, first = FiguresFile(path=tmp_path / "scale.json"), figures(10, 5)
    assert kept.measured_once(first.key, lambda: first) == first
    assert kept.measured_once(first.key, lambda: figures(10, 9)) == first
    other = figures(10, 7, keep_work="resume")
    assert kept.measured_once(other.key, lambda: other) == other
    counted = kept.with_requests(first, lambda: {"PUT": 3})
    assert kept.with_requests(counted, lambda: {"PUT": 4}).requests == {"PUT": 3}
    assert FiguresFile(path=kept.path).read() == {first.key: counted, other.key: other}


def test_plot_has_a_line_for_each_figure_of_two_sizes() -> None:
    drawn = plot([figures(size, size, {"GET": size}) for size in SIZES])
    assert drawn.count("<polyline") == 7
    assert plot([figures(size, size) for size in SIZES]).count("<polyline") == 6
