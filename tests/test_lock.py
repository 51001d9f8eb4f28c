"""The locked versions (`.ci/lock` writes them) satisfy every requirement of the project."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def locked(name: str) -> dict[str, str]:
    """Project -> version, of a requirements file."""
    pins = re.findall(r"^([\w.\-]+)(?:\[[\w,]+\])?==(\S+)", (ROOT / ".ci" / name).read_text(encoding="utf-8"), re.M)
    return {canonicalize_name(project): version for project, version in pins}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("requirements.txt", PROJECT["dependencies"]),
        ("requirements-test.txt", PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]),
    ],
)
def test_lock_satisfies_the_project(name: str, wanted: list[str]) -> None:
    versions = locked(name)
    requirements = [Requirement(line) for line in wanted]
    unsatisfied = [
        str(requirement)
        for requirement in requirements
        if not requirement.specifier.contains(versions.get(canonicalize_name(requirement.name), "0"))
    ]
    assert unsatisfied == [], "run .ci/lock"


def test_lock_of_tests_has_the_versions_of_the_lock_of_the_project() -> None:
    project, tests = locked("requirements.txt"), locked("requirements-test.txt")
    assert {name: tests.get(name) for name in project} == project


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-test.txt"])
def test_lock_has_hashes_for_every_version(name: str) -> None:
    entries = re.split(r"\n(?=\w)", (ROOT / ".ci" / name).read_text(encoding="utf-8"))
    assert [entry.split()[0] for entry in entries if "==" in entry and "--hash=sha256:" not in entry] == []


def test_pre_commit_runs_the_ruff_of_the_project() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"rev: v([\d.]+)", hooks) == [locked("requirements-test.txt")["ruff"]]
