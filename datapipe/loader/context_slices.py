"""Context parallelism with document masks: each document is split over the ranks that share the rows of a batch.

    runs of the batch        a a a a a | b b b | . .          documents, and the padding of a row; two ranks, zigzag
    padded to 4 parts        a a a a a - - - | b b b - | . . - -
    rank 0: parts 0 and 3    a a - - | b - | . -              cu_seqlens 0 4 6 8 on every rank
    rank 1: parts 1 and 2    a a a - | b b | . -

A run is padded at its end, so with a causal mask no token of a document sees the padding; its labels are -100. Every rank has
equally many tokens of each run, so `cu_seqlens` is the same on all; times context_size, it is that of all ranks together.
`document_zigzag` is the layout of packed sequences ("THD") in Megatron-LM and TransformerEngine. With `num_runs`, all batches
have as many tokens and borders: runs that only fill stand at the end.
"""

from collections.abc import Collection

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.kernels.tokens.batch import split_runs
from datapipe.loader.share import Mesh


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextSlice:
    # (T,) int64, of each token in the B * S tokens of the batch; 0 for padding of a run
    token_indices: np.ndarray
    positions: np.ndarray  # (T,) int64, of each token in its run
    filled: np.ndarray  # the indices of padding, ascending
    cu_seqlens: np.ndarray  # (num_runs + 1,) int32, borders of this rank's parts of runs

    def take(self, values: np.ndarray, filler: int, out: np.ndarray) -> np.ndarray:
        """This rank's tokens of `values` (B, S), with `filler` for padding, written to `out` (1, T)."""
        if len(self.token_indices):
            np.take(values.reshape(-1), self.token_indices, out=out[0], mode="clip") if values.size else out.fill(filler)
            out[0, self.filled] = filler
        return out


def check_context(mesh: Mesh, fields: Collection[str], labels: str) -> None:
    if labels == "unshifted" and (mesh.context_size > 1 or mesh.splits_documents):
        raise UserError(
            f"labels='unshifted' with layout='{mesh.layout}' over {mesh.context_size} context ranks: the token that follows a "
            f"rank's last one is another rank's, so a model that shifts labels itself would learn wrong ones. Use "
            f"labels='shifted', and a loss that does not shift (Hugging Face's models take `shift_labels`)."
        )
    refused = sorted({"cu_seqlens", "max_seqlen"} & set(fields))
    if refused and mesh.context_size > 1 and not mesh.splits_documents:
        raise UserError(
            f"field '{refused[0]}' with layout='{mesh.layout}' over {mesh.context_size} context ranks: rows are cut without "
            f"regard to documents, so a rank has no borders that variable-length attention could use. Use "
            f"layout='document_zigzag' or 'document_contiguous', which split each document. Or leave the field out: whole rows "
            f"then attend; for a mask of documents compare the `segment_ids` of queries and of gathered keys."
        )


def check_num_runs(mesh: Mesh, fields: Collection[str], num_runs: int, num_rows: int) -> None:
    """Raises UserError for a number of runs that no batch of `num_rows` rows fits into, or that nothing uses."""
    if num_runs < max(1, num_rows):
        raise UserError(
            f"pad_cu_seqlens={num_runs}: this rank has {num_rows} rows of each batch, and a row has at least one run. Give the "
            f"most runs (documents, and the padding of rows) of a batch; Loader.most_runs(num_steps) counts them ahead."
        )
    if not mesh.splits_documents and not {"cu_seqlens", "max_seqlen"} & set(fields):
        raise UserError(
            f"pad_cu_seqlens={num_runs} without the fields cu_seqlens and max_seqlen has no effect. Add them to `fields`, or "
            f"leave pad_cu_seqlens out."
        )


def slice_documents(borders: np.ndarray, mesh: Mesh, sequence_length: int, num_runs: int | None) -> ContextSlice:
    """The part of a rank of one batch, whose runs have these borders, (n + 1,) int32."""
    starts, lengths = borders[:-1].astype(np.int64), np.diff(borders).astype(np.int64)
    # padded: (n,) tokens of each run over all ranks
    padded = -(-lengths // mesh.num_parts) * mesh.num_parts
    if num_runs is not None:
        # fillers: lengths of the runs that fill the batch up to its fixed number of tokens; none is longer than a row
        lacking = int(borders[-1]) + _most_padding(num_runs, mesh.num_parts) - int(padded.sum())
        whole, rest = divmod(lacking, sequence_length)
        fillers = np.array([sequence_length] * whole + [rest] * (rest > 0), np.int64)
        none = np.zeros(len(fillers), np.int64)
        starts, lengths, padded = (np.concatenate(pair) for pair in ((starts, none), (lengths, none), (padded, fillers)))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(padded // mesh.context_size)])
    token_indices, positions = np.empty((2, int(offsets[-1])), np.int64)
    split_runs(starts, lengths, offsets, mesh.parts, token_indices, positions)
    filled = np.flatnonzero(token_indices < 0)
    token_indices[filled] = 0
    return ContextSlice(token_indices=token_indices, positions=positions, filled=filled, cu_seqlens=offsets.astype(np.int32))


def num_borders(mesh: Mesh, sequence_length: int, num_runs: int) -> int:
    """The length of `cu_seqlens` that holds any batch of at most `num_runs` runs."""
    if not mesh.splits_documents:
        return num_runs + 1
    return num_runs + 1 + -(-_most_padding(num_runs, mesh.num_parts) // sequence_length)


def _most_padding(num_runs: int, num_parts: int) -> int:
    """Tokens of padding that suffice for any runs: a multiple of `num_parts`, since rows and padded runs are multiples."""
    return num_runs * (num_parts - 1) // num_parts * num_parts
