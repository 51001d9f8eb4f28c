"""The comparison of a simulated run with the measured one of its size, and with smaller ones."""

import pytest

from tests.benchmarks.fit import fits_of_records, printed

RECORDS = [
    {
        "text_bytes": size,
        "recipe": "a",
        "documents": 3 * size,
        "driver_seconds": 4 + size / 10,
        "tasks": {"map": size, "pack": 1},
    }
    for size in (100, 10, 30)
]
OTHER = {"text_bytes": 20, "recipe": "b", "documents": 0, "driver_seconds": 100, "tasks": {}}


def test_largest_run_is_compared_with_the_simulation_and_the_line_of_smaller_runs_of_its_recipe():
    simulated = {"documents": 330, "tokens": 5, "driver_seconds": 7, "tasks": {"map": 90, "pack": 1}}
    rows = {row.name: row for row in fits_of_records(simulated, [*RECORDS, OTHER])}
    assert [*rows] == ["documents", "driver_seconds", "tasks", "tasks.map", "tasks.pack"]
    errors = {"documents": 0.1, "driver_seconds": -0.5, "tasks": -10 / 101, "tasks.map": -0.1, "tasks.pack": 0.0}
    assert {name: row.error for name, row in rows.items()} == pytest.approx(errors)
    assert rows["driver_seconds"].line == pytest.approx(14)
    assert "| driver_seconds | 14 | 7 | -50.0% | 14 | +0.0% |" in printed([*rows.values()])
    (alone,) = fits_of_records({"documents": 330}, [RECORDS[0], OTHER])
    assert alone.line is None
