"""Benchmarks: the sections of their README, and that each gives tables, and bounds that it can keep."""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks.tables import Bound, Settings, Table
from tests.benchmarks.texts import write_web

SPEED = Table(title="Speed", note="Of nothing.", header=("work", "MB/s"), rows=[("read", "1.0")])


def test_written_readme_replaces_the_sections_of_its_tables_alone() -> None:
    readme = "# Benchmarks\n\n## Speed\n\nold\n\n## Memory\n\nkept\n"
    section = "## Speed\n\nOf nothing.\n\ntoday\n\n| work | MB/s |\n|---|---:|\n| read | 1.0 |\n\n"
    expected = f"# Benchmarks\n\n{section}## Memory\n\nkept\n"
    assert benchmarks.rewritten(readme, [SPEED], "today") == expected
    assert benchmarks.rewritten(expected, [SPEED], "today") == expected
    assert benchmarks.rewritten("# New\n", [SPEED], "today") == f"# New\n{section}".rstrip() + "\n"


@pytest.mark.parametrize(("ratio", "holds"), [(0.9, False), (1.0, True), (2.0, True), (2.1, False)])
def test_bound_holds_between_its_limits(ratio: float, holds: bool) -> None:
    assert Bound(name="a", ratio=ratio, least=1, most=2).holds is holds


@pytest.mark.parametrize("ratios", [[1.5], [3.0, 1.5], [3.0, 3.0]])
def test_check_fails_for_a_bound_that_is_broken_twice(
    ratios: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(ratios)
    module = ModuleType("tests.benchmarks.made_up")
    module.bounds = lambda folder: [Bound(name="a", ratio=next(left), most=2)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert benchmarks.check(["made_up"], tmp_path) is (ratios[-1] < 2)
    assert list(left) == []


@pytest.mark.parametrize("name", benchmarks.BENCHMARKS)
def test_benchmark_imports_names_that_exist(name: str) -> None:
    assert callable(importlib.import_module(f"tests.benchmarks.{name}").tables)


def test_documents_name_benchmarks_that_exist() -> None:
    named = set()
    for path in benchmarks.ROOT.rglob("*.md"):
        named |= set(re.findall(r"python -m tests\.benchmarks ([a-z_]+)", path.read_text(encoding="utf-8")))
    assert named
    assert named <= set(benchmarks.BENCHMARKS)


def test_every_section_of_the_readme_is_one_that_a_benchmark_writes() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in benchmarks.README.parent.rglob("*.py"))
    sections = re.findall(r"^## (.*)$", benchmarks.README.read_text(encoding="utf-8"), re.MULTILINE)
    assert [title for title in sections if f'"{title}"' not in code and f'f"{title.rpartition(" ")[0]} {{' not in code] == []


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", [name for name in benchmarks.BENCHMARKS if name not in ("kernels", "peers")])
def test_benchmark_gives_tables(name: str, tmp_path: Path, real_data: Path) -> None:
    settings = Settings(quick=True, data=real_data, folder=tmp_path, web=write_web(real_data, tmp_path, 20))
    for table in benchmarks.measured(name, settings):
        assert table.rows
        assert all(len(row) == len(table.header) for row in table.rows)
