"""The folder of tests is laid out like the project: what tests share is in `support/`, and test files mirror modules."""

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

OF_A_WHOLE_PACKAGE = {
    "cells",
    "determinism",
    "failures",
    "global_stages",
    "hostile_input",
    "kernel_table",
    "kill",
    "object_store",
    "secrets",
    "task_memory",
    "full_disk",
}
"""Subjects of test files about several modules of a package at once, mostly about whole runs."""


def mirrored_subjects(folder: Path) -> set[str]:
    """Names of the modules and packages in a folder, private ones (`_spans.py`) without their underscore."""
    return {path.stem.lstrip("_") for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}


def test_modules_that_tests_share_are_in_support() -> None:
    names = {path.name for path in TESTS.glob("*.py")}
    assert {name for name in names if not name.startswith("test_")} == {"conftest.py"}


@pytest.mark.parametrize("package", ["datapipe", "stages"])
def test_test_files_mirror_modules(package: str) -> None:
    """`test_cache.py` and `test_cache_processes.py` are those of `cache.py` in the same folder of the package, and
    `order/test_order.py` is about the package `order` as a whole."""
    without_module = []
    for path in (TESTS / package).rglob("test_*.py"):
        subject = path.stem.removeprefix("test_")
        modules = mirrored_subjects(TESTS.parent / path.parent.relative_to(TESTS)) - {""} | {path.parent.name}
        if not any(f"{subject}_".startswith(f"{name}_") for name in modules | OF_A_WHOLE_PACKAGE):
            without_module.append(str(path.relative_to(TESTS)))
    assert without_module == []
