"""Shared by all tests: where the real corpora are, when they are there."""

from __future__ import annotations

from pathlib import Path

import pytest

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora beside the checkout; tests that need it are marked `real`."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real corpora at {REAL_DATA}")
    return REAL_DATA
