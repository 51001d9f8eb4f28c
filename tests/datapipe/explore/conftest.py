"""One finished output with documents of every fate, for all tests of the package."""

from pathlib import Path
from shutil import copytree

import pytest

from tests.support import browsed
from tests.support.browsed import Browsed
from tests.support.finished import deduplicated  # noqa: F401


@pytest.fixture(scope="session")
def finished(deduplicated: Path) -> Browsed:  # noqa: F811
    """Endpoints about an output with tokens, which no test changes."""
    return browsed.browse(deduplicated / "out")


@pytest.fixture
def copied(deduplicated: Path, tmp_path: Path) -> Browsed:  # noqa: F811
    """Endpoints about a copy of that output, over the same inputs."""
    copytree(deduplicated / "out", tmp_path / "out")
    return browsed.browse(tmp_path / "out")
