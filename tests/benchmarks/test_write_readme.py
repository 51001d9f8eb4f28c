"""The command that writes the benchmarks' README: every benchmark gives a table, and earlier measurements stay."""

from __future__ import annotations

import importlib
import platform
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import write_readme
from tests.benchmarks.tables import Settings, Table

TABLE = Table(title="Speed", note="Of nothing.", header=("work", "MB/s"), rows=[("read", "1.0")])


def test_written_readme_replaces_all_but_earlier_measurements() -> None:
    readme = f"# Old\n\n## Old table\n\n{write_readme.EARLIER}\nkept\n"
    expected = (
        f"# New\n\n## Speed\n\nOf nothing.\n\n| work | MB/s |\n|---|---:|\n| read | 1.0 |\n\n{write_readme.EARLIER}\nkept\n"
    )
    assert write_readme.rewritten(readme, "# New\n\n", [TABLE]) == expected
    assert write_readme.rewritten(expected, "# New\n\n", [TABLE]) == expected


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("[!_]*.py")), ids=lambda path: path.stem)
def test_benchmark_imports_names_that_exist(path: Path) -> None:
    importlib.import_module(f"tests.benchmarks.{path.stem}")


def test_written_introduction_names_versions() -> None:
    opening = write_readme.introduction()
    assert f"numpy {np.__version__}" in opening
    assert platform.python_version() in opening


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", [name for name in write_readme.BENCHMARKS if name != "kernels"])
def test_benchmark_gives_a_table(name: str, tmp_path: Path, real_data: Path) -> None:
    web = write_readme.write_web(real_data, tmp_path, 20)
    table = write_readme.measured(name, Settings(quick=True, data=real_data, folder=tmp_path, web=web))
    assert table.rows
    assert {len(row) for row in table.rows} == {len(table.header)}
