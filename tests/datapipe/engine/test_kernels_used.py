"""The kernels that are compiled ahead of a run, and of a loader."""

from __future__ import annotations

import pytest

from datapipe.config import Mixture
from datapipe.engine.kernels_used import COMPILED_WHEN_CALLED, kernels_of_run
from datapipe.kernels import kernel_named
from datapipe.loader.loader import KERNELS


@pytest.mark.parametrize("qualified_name", sorted(COMPILED_WHEN_CALLED | set(KERNELS)))
def test_listed_kernel_exists(qualified_name: str) -> None:
    kernel = kernel_named(qualified_name)
    assert kernel is not None
    assert kernel.qualified_name == qualified_name


@pytest.mark.parametrize(
    ("options", "has_json", "has_tokens"),
    [
        ({}, False, True),
        ({"tokenizer": "none"}, False, False),
        ({"tokenizer": "none", "documents": {"format": "jsonl.zst"}}, True, False),
    ],
)
def test_kernels_of_a_run_follow_from_what_it_writes(options, has_json: bool, has_tokens: bool) -> None:
    data = {"name": "m", "output": "runs/m", "sources": {"web": {"path": "a.jsonl"}}}
    names = kernels_of_run(Mixture.model_validate(data | options))
    assert any(".json_strings:" in name for name in names) == has_json
    assert any(".tokens.bpe:" in name for name in names) == has_tokens
