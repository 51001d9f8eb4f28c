"""The kernels that are compiled ahead of a run, and of a loader."""

from __future__ import annotations

import pytest

from datapipe.engine.kernels_used import COMPILED_WHEN_CALLED
from datapipe.kernels import kernel_named
from datapipe.loader.loader import KERNELS


@pytest.mark.parametrize("qualified_name", sorted(COMPILED_WHEN_CALLED | set(KERNELS)))
def test_listed_kernel_exists(qualified_name: str) -> None:
    kernel = kernel_named(qualified_name)
    assert kernel is not None
    assert kernel.qualified_name == qualified_name
