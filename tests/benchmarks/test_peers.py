"""Benchmarks beside peers: pairs, environments, results, and that READMEs have the figures of `peers.json`."""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import ROOT
from tests.benchmarks.peers import comparisons, environments, recipes, results
from tests.benchmarks.peers.comparison import OURS, PROGRAMS, Comparison, measured, run_program
from tests.benchmarks.peers.results import Figure, Result
from tests.benchmarks.tables import Settings

SETTINGS = Settings(quick=False, data=Path(), folder=Path(), web=Path())
SENTENCES = {
    r"([\d.]+) to ([\d.]+) times as fast as in datatrove": [
        f"recipe, {text}: datatrove" for text in (recipes.HALF, recipes.TENTH)
    ],
    r"MosaicML streaming \(([\d.]+) times\)": ["loader, input_ids: streaming"],
    r"Grain \(([\d.]+)\)": ["loader, input_ids: grain"],
    r"Hugging Face datasets \(([\d.]+)\)": ["loader, input_ids: datasets"],
    r"litData \(([\d.]+)\)": ["loader, input_ids: litdata"],
    r"a torch `DataLoader` over a memory map \(([\d.]+)\)": ["loader, input_ids: torch"],
}
"""Sentences of README.md, and the comparisons whose medians are their figures."""

ROOMS = ("datapipe", "stages", "mixtures", "deploy")

PROGRAM = """
import sys
with open(sys.argv[1], "a") as log:
    log.write(sys.argv[2])
print("a line of a library")
print('{"us": ' + sys.argv[2] + '}', flush=True)
if sys.argv[2] == "0":
    raise OSError("no rows")
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that log their second argument and give it as their figure; 0 fails. Any peer is installed."""
    for side in (OURS, "torch", "grain"):
        (tmp_path / f"{side}_loader.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.setattr("tests.benchmarks.peers.comparison.PROGRAMS", tmp_path)
    monkeypatch.setattr(environments, "interpreter", lambda peer: sys.executable)
    return tmp_path


def made_up(folder: Path, peer: str, ours: str, theirs: str) -> Comparison:
    """Figures are the digits of `ours` and of `theirs`, in turn."""

    def figures(side: str, digits: Iterator[str]) -> Figure:
        return Figure(value=run_program(side, "loader", folder, str(folder / "log"), next(digits))["us"])

    sides = (OURS, iter(ours)), (peer, iter(theirs))
    run_ours, run_theirs = (lambda side=side, digits=digits: figures(side, digits) for side, digits in sides)
    return Comparison(work="loader, x", peer=peer, unit="µs a batch", prepare=list, ours=run_ours, theirs=run_theirs)


def test_pairs_alternate_and_ratios_have_median_and_spread(programs: Path) -> None:
    result = measured(made_up(programs, "torch", "12422", "86248"), 5)
    assert (programs / "log").read_text() == "1826422428"
    assert result.pairs == ((1, 8), (2, 6), (4, 2), (2, 4), (2, 8))
    assert result.ratios == [8, 3, 0.5, 2, 4]
    assert (result.times, results.spread(result), result.medians) == (3, "0.50 to 8.0", (2, 6))
    assert Result(peer="a 1", unit="MB a CPU second", pairs=((30, 2), (20, 4))).times == 10
    assert result.peer == f"torch {environments.pins()['peers']['torch'][0].partition('==')[2]}"


def test_peer_that_fails_costs_its_row_alone(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = [made_up(programs, "torch", "1", "0"), made_up(programs, "grain", "1", "2")]
    monkeypatch.setattr(comparisons, "every", lambda settings: each)
    monkeypatch.setattr(comparisons, "NUM_PAIRS", 1)
    (table,) = comparisons.tables(SETTINGS)
    assert [row[4] for row in table.rows] == ["OSError: no rows", "2.0"]


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `uv` that logs its commands, and fails for the requirements `missing==1`."""
    program = tmp_path / "uv"
    program.write_text(
        f'#!/bin/sh\necho "$1 $2" >>{tmp_path}/log\n[ "$1" = venv ] && mkdir -p "$5"\n'
        'case "$*" in *missing==1*) echo "trying"; echo "no version of missing" >&2; exit 1;; esac\nexit 0\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "log"


def pinned(*requirements: str) -> dict[str, object]:
    return {"python": "3.11", "exclude_newer": "2026-11-30", "peers": {"torch": list(requirements)}}


def test_environment_is_made_again_when_pins_change(uv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = "venv --clear\npip install\n"
    for requirement, logged in (("a==1", made), ("a==1", made), ("a==2", made * 2)):
        monkeypatch.setattr(environments, "pins", lambda requirement=requirement: pinned(requirement))
        environments.interpreter("torch")
        assert uv.read_text() == logged


def test_peer_that_is_not_installed_names_the_last_line_of_the_error(
    uv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "pins", lambda: pinned("missing==1"))
    comparison = replace(made_up(tmp_path, "torch", "", ""), prepare=lambda: environments.interpreter("torch"))
    for _ in range(2):  # what was half made is not taken for an environment
        assert measured(comparison, 1).error == "no version of missing"
    uv.with_name("uv").unlink()
    assert "uv" in measured(comparison, 1).error


def test_results_are_read_as_written_and_changes_are_outside_both_spreads(tmp_path: Path) -> None:
    def of(*ratios: float) -> Result:
        return Result(peer="a 1", unit="MB a CPU second", pairs=tuple((ratio, 1.0) for ratio in ratios), kept=(0.5, 0.52))

    before = {"a": of(2, 3, 4), "b": of(2, 3, 4), "c": of(1)}
    results.write(tmp_path / "before.json", before)
    assert results.read_at(str(tmp_path / "before.json")) == before
    table = results.changes(before, {"a": of(3.5, 5, 6), "b": of(4, 5, 4.5), "d": of(1)}, "HEAD")
    assert [row[0] for row in table.rows] == ["a", "b"]
    assert [row[3:] for row in table.rows] == [("+67%", "**changed**"), ("+50%", "**changed**")]
    assert results.changes({"a": of(2, 3, 9)}, {"a": of(4, 5, 6)}, "HEAD").rows[0][3:] == ("+67%", "")
    assert not of(1).same_share


# ------------------------------------------------------------------------------------------------ what is committed


def test_every_requirement_names_one_version_and_every_peer_has_a_program() -> None:
    peers = environments.pins()["peers"]
    for requirement in [each for requirements in peers.values() for each in requirements]:
        assert re.fullmatch(r"[a-z0-9-]+(\[[a-z,]+\])?==[0-9][0-9.]*", requirement)
    assert {path.stem.partition("_")[0] for path in PROGRAMS.glob("*_*.py")} == {*peers, OURS}


def test_programs_of_peers_import_nothing_of_the_project() -> None:
    for path in [path for path in PROGRAMS.glob("*.py") if not path.name.startswith(OURS)]:
        imports = [
            node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        names = {
            name
            for node in imports
            for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module])
        }
        assert not {str(name).partition(".")[0] for name in names} & {"datapipe", "stages", "tests"}, path


def test_kept_results_are_of_the_pinned_peers_and_have_five_pairs_or_more() -> None:
    kept, every = results.read_kept(), comparisons.every(SETTINGS)
    assert {*kept} == {each.name for each in every}
    assert {each.name: kept[each.name].peer for each in every} == {each.name: environments.label(each.peer) for each in every}
    assert all(len(result.pairs) >= 5 and result.same_share for result in kept.values())


def test_readme_of_benchmarks_has_the_kept_results() -> None:
    readme = (ROOT / "tests/benchmarks/README.md").read_text(encoding="utf-8")
    for table in comparisons.as_tables(results.read_kept()):
        for row in table.rows:
            assert f"| {' | '.join(row)} |" in readme


@pytest.mark.parametrize(("sentence", "names"), SENTENCES.items())
def test_readme_rounds_the_medians_of_the_kept_results(sentence: str, names: list[str]) -> None:
    kept = results.read_kept()
    check_figures(sentence, [kept[name].times for name in names])


ENCODING = {"README.md": r"([\d.]+) to ([\d.]+) times as fast as in `tokenizers`"}
ENCODING["datapipe/tokens/README.md"] = r"Hugging Face `tokenizers`; it is ([\d.]+) to ([\d.]+) times as fast"


@pytest.mark.parametrize(("readme", "sentence"), ENCODING.items())
def test_readme_rounds_the_figures_of_encoding(readme: str, sentence: str) -> None:
    rows = [[float(cell) for cell in row[1:]] for row in measured_rows("Encoding, beside `tokenizers`")]
    ratios = [ours / theirs for row in rows for ours, _, theirs in (row[:3], row[3:])]
    check_figures(sentence, [min(ratios), max(ratios)], readme)


def test_readme_of_the_loader_rounds_the_figures_of_its_fields() -> None:
    readme = (ROOT / "datapipe/loader/README.md").read_text(encoding="utf-8")
    rows = {name: cells for name, _, *cells in measured_rows("The fields of the loader")}
    for shown, name in (("`input_ids`", "input_ids"), ("`input_ids`, `labels`", "input_ids and labels")):
        for ending in ("", ", prefetch 0"):
            (first_us, first), (later_us, later) = (cell.rstrip(")").split(" (") for cell in rows[name + ending])
            line = f"{first} of the gather, {float(first_us):.0f} µs | {later}, {float(later_us):.0f} µs"
            assert f"| {shown}{ending.replace('prefetch 0', '`prefetch=0`')} | {line} |" in readme


def test_readmes_compare_speed_with_peers_in_sentences_with_a_test_alone() -> None:
    compares = re.compile(
        r"(datatrove|MosaicML|litData|Grain|[Mm]egatron|Hugging Face|`tokenizers`|torch)[^.]* times as (fast|slow)"
    )
    for path in [ROOT / "README.md", *(path for room in ROOMS for path in (ROOT / room).rglob("*.md"))]:
        for sentence in re.split(r"\.\s", path.read_text(encoding="utf-8")):
            tested = any(re.search(known, sentence) for known in (*SENTENCES, *ENCODING.values()))
            assert tested or not compares.search(sentence), f"{path}: {sentence}"


def measured_rows(section: str) -> list[list[str]]:
    """The cells of a table of the README of benchmarks."""
    readme = (ROOT / "tests/benchmarks/README.md").read_text(encoding="utf-8")
    lines = readme.partition(f"## {section}\n")[2].partition("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")][2:]


def check_figures(sentence: str, medians: list[float], readme: str = "README.md") -> None:
    """A README has the sentence once, with these numbers in ascending order, to the digits that it writes."""
    (found,) = re.findall(sentence, (ROOT / readme).read_text(encoding="utf-8"))
    written = [found] if isinstance(found, str) else list(found)
    digits = [len(number.partition(".")[2]) for number in written]
    assert written == [f"{median:.{count}f}" for count, median in zip(digits, sorted(medians), strict=True)]
