"""The rows of a global batch that a process reads, and the tokens of each row.

    global batch of G rows      | rank 0 | rank 1  | rank 2 | …      contiguous: rows r*G//W to (r+1)*G//W for rank r of W
    a row of S tokens           | context 0 | context 1 | …          where several ranks share the tokens of a row

Where W does not divide G, slices differ by one row, and a rank may have none: `warn_of_ragged_ranks`. Every prefix of a batch
follows the mixture, so every contiguous slice does too.
"""

from typing import Literal, get_args
from warnings import warn

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.errors import UserError

ContextLayout = Literal["contiguous", "zigzag", "document_contiguous", "document_zigzag"]


class RaggedRanksWarning(UserWarning):
    """The ranks of a run get different numbers of rows, so the mean of their mean losses is not the mean of the batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """The coordinates of a process in a mesh of ranks, which decide what it reads."""

    # data_rank, data_size: its data-parallel coordinate, which tensor- and pipeline-parallel ranks share
    data_rank: int
    data_size: int
    # context_rank, context_size: its coordinate among the ranks that share the tokens of a row
    context_rank: int = 0
    context_size: int = 1
    # contiguous: context rank c of C gets tokens c*S/C to (c+1)*S/C of each row. zigzag: the row is cut into
    # 2C parts and c gets the parts c and 2C-1-c, which balances causal attention. document_…: the same for
    # each document instead of each row (`context_slices.py`); the batch is then flat, (1, T)
    layout: ContextLayout = "contiguous"

    def __post_init__(self) -> None:
        for name, rank, size in (
            ("rank", self.data_rank, self.data_size),
            ("context rank", self.context_rank, self.context_size),
        ):
            if type(rank) is not int or type(size) is not int:
                raise UserError(f"{name} {rank!r} of a world of {size!r}: expected whole numbers, of type int.")
            if size < 1 or not 0 <= rank < size:
                raise UserError(f"{name} {rank} of a world of {size}: expected 0 <= {name} < size, and a size of at least 1.")
        if self.layout not in get_args(ContextLayout):
            raise UserError(f"layout='{self.layout}': expected {', '.join(get_args(ContextLayout))}.")

    def check(self, sequence_length: int) -> None:
        if sequence_length % self.num_parts:
            raise UserError(
                f"rows of {sequence_length} tokens cannot be cut into {self.num_parts} equal parts ({self.layout} layout). "
                f"Expected a sequence length that {self.num_parts} divides."
            )

    def num_rows(self, size: int) -> int:
        """Number of rows that this process gets of a global batch of `size` rows."""
        start, stop = self.share(0, size)
        return stop - start

    def share(self, start: int, stop: int) -> tuple[int, int]:
        """The samples of this process in the global batch of the samples `start` to `stop`."""
        size = stop - start
        return start + self.data_rank * size // self.data_size, start + (self.data_rank + 1) * size // self.data_size

    @property
    def splits_documents(self) -> bool:
        return self.layout.startswith("document_")

    @property
    def num_parts(self) -> int:
        if self.context_size == 1:
            return 1
        return self.context_size * (2 if self.layout.endswith("zigzag") else 1)

    @property
    def parts(self) -> np.ndarray:
        """The numbers of the parts that this rank gets: one, or two for a zigzag."""
        first, last = self.context_rank, self.num_parts - 1 - self.context_rank
        return np.array([first] if self.num_parts == self.context_size else [first, last], np.int64)

    def columns(self, sequence_length: int) -> np.ndarray | None:
        """The tokens of each row: (S / context_size,) int64, ascending; None for all, and where documents are split."""
        if self.context_size == 1 or self.splits_documents:
            return None
        return np.arange(sequence_length).reshape(self.num_parts, -1)[self.parts].reshape(-1)


def warn_of_ragged_ranks(mesh: Mesh, global_batch_size: int) -> None:
    size = mesh.data_size
    if global_batch_size % size == 0 or (mesh.data_rank, mesh.context_rank) != (0, 0):
        return
    least, most = global_batch_size // size, -(-global_batch_size // size)
    nearest = " or ".join(str(rows * size) for rows in (least, most) if rows)
    nan = "" if least else ", and the mean loss of a rank without rows is NaN"
    warn(
        f"global_batch_size={global_batch_size} on {size} ranks: they get {least} or {most} rows of each batch, so the mean of "
        f"the ranks' mean losses counts some rows more than others{nan}. Use {nearest} rows, or divide the summed loss of each "
        f"rank by the field 'global_target_tokens' (datapipe/loader/parallel.md).",
        RaggedRanksWarning,
        stacklevel=3,
    )
