"""A batch of tensors: a dict that `default_collate` refuses to put into batches of batches, and that `tree_map` enters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils._pytree import register_pytree_node
from torch.utils.data._utils.collate import default_collate_fn_map

from datapipe.errors import UserError


class TensorBatch(dict[str, Any]):
    """A batch. A type of its own, so that `default_collate` knows it; to everything else it is a dict."""


def _refuse_collating(batches: Sequence[TensorBatch], *, collate_fn_map: object = None) -> None:
    """What `default_collate` does with a list of batches. Raises UserError: each is whole already."""
    raise UserError(
        "this DataLoader makes batches of what StreamingDataset hands out, which are whole batches already. Write "
        "DataLoader(dataset, batch_size=None, …); StreamingDataset(…, batch_size=8) sets the number of rows."
    )


default_collate_fn_map[TensorBatch] = _refuse_collating
"""torch's documented way to extend `default_collate`. A `collate_fn` of the user is not concerned."""

register_pytree_node(
    TensorBatch,
    lambda batch: (list(batch.values()), list(batch)),
    lambda values, names: TensorBatch(zip(names, values, strict=True)),
    serialized_type_name="datapipe.loader.torch.TensorBatch",
)
"""`tree_map` enters dicts, and types derived from dict only where they are registered."""
