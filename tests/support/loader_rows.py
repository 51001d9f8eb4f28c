"""Which rows the batches of a loader have. In the snapshots of `tests.support.snapshots`, the first token identifies a row."""

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.loader import Loader


def first_tokens(batches: Iterable[Any]) -> list[int]:
    """Of each row of all batches, arrays or tensors."""
    return [token for batch in batches for token in batch["input_ids"][:, 0].tolist()]


def steps_of(batches: Iterable[Any], count: int = 999) -> list[int]:
    """The steps of at most `count` batches of a loop, which then breaks."""
    return [batch["step"] for batch in islice(batches, count)]


def rows_by_source(batches: Iterable[dict[str, Any]]) -> dict[int, list[int]]:
    """By number of the source, the first tokens of its rows in the order in which they came."""
    found: dict[int, list[int]] = {}
    for batch in batches:
        for source, token in zip(batch["sources"].tolist(), batch["input_ids"][:, 0].tolist()):
            found.setdefault(source, []).append(token)
    return found


def assert_no_row_early(rows: list[int], size: int) -> None:
    """No row comes again before the other rows of its epoch, which has `size` rows."""
    for start in range(0, len(rows), size):
        assert len(set(rows[start : start + size])) == len(rows[start : start + size])


def assert_joined(parts: Iterable[dict[str, Any]], whole: dict[str, Any], fields: Iterable[str]) -> None:
    """The batches of all ranks are those of the global batch, in these fields of rows."""
    parts = list(parts)
    for field in fields:
        np.testing.assert_array_equal(np.concatenate([part[field] for part in parts]), whole[field])


def resumed(loader: Any, output: Path | str, **options: Any) -> Loader:
    """Another loader, restored from the state of `loader` through JSON."""
    other = Loader(output, **{"global_batch_size": loader.global_batch_size, "prefetch": 0, **options})
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    return other
