"""Attention within documents: over whole rows, and by ranks that hold parts of every document, as kernels do it.

A rank knows its own queries, keys and values, `cu_seqlens` of its own tokens, and which parts of a run each rank has. In both
methods, a query sees the keys of its run that do not follow it.
"""

import numpy as np


def attend(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """(n, d) of queries (n, d), keys and values (m, d), and which keys each query sees (n, m)."""
    scores = np.where(visible, queries @ keys.T / np.sqrt(queries.shape[1]), -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ values / weights.sum(axis=1, keepdims=True)


def within_documents(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Causal attention of one row (S, d) within equal `segments` (S,)."""
    causal = np.tri(len(segments), dtype=bool)
    return attend(queries, keys, values, causal & (segments[:, None] == segments[None]))


def by_gathered_keys(ranks: list[tuple[np.ndarray, np.ndarray, np.ndarray]], cu: np.ndarray, parts: list[list[int]]) -> list:
    """Each rank gathers the keys and values of all and puts the parts of each run in order (Llama 3's method).

    Args:
        ranks: queries, keys and values (T, d) of each rank.
        cu: (n + 1,) int32, the borders of runs in the tokens of any rank.
        parts: the numbers of each rank's parts of a run, in the order of its tokens.
    """
    out = [np.zeros_like(queries) for queries, _, _ in ranks]
    for start, stop in zip(cu[:-1], cu[1:]):
        own = [[part for each in rank for part in np.split(each[start:stop], len(parts[0]))] for rank in ranks]
        num_own = len(parts[0])
        placed = {part: (rank, at) for rank, numbers in enumerate(parts) for at, part in enumerate(numbers)}
        order = [placed[part] for part in range(len(placed))]
        keys = np.concatenate([own[rank][num_own + at] for rank, at in order])
        values = np.concatenate([own[rank][2 * num_own + at] for rank, at in order])
        size = (stop - start) // num_own
        for rank, numbers in enumerate(parts):
            positions = np.concatenate([np.arange(part * size, (part + 1) * size) for part in numbers])
            visible = np.arange(len(keys))[None] <= positions[:, None]
            if stop > start:
                out[rank][start:stop] = attend(ranks[rank][0][start:stop], keys, values, visible)
    return out


def by_ring(ranks: list[tuple[np.ndarray, np.ndarray, np.ndarray]], cu: np.ndarray, parts: list[list[int]]) -> list:
    """Keys and values go round; each step adds what one other rank's parts contribute (ring attention).

    A part sees all of an earlier part, itself causally, and nothing of a later part. Args: as for `by_gathered_keys`.
    """
    outs = []
    for rank, (queries, _, _) in enumerate(ranks):
        sums, weights = np.zeros_like(queries), np.zeros(len(queries))
        for step in range(len(ranks)):
            other = (rank - step) % len(ranks)
            for start, stop in zip(cu[:-1].tolist(), cu[1:].tolist()):
                size = (stop - start) // len(parts[0])
                for at, own_part in enumerate(parts[rank]):
                    for their_at, their_part in enumerate(parts[other]):
                        if their_part > own_part:
                            continue
                        mine = slice(start + at * size, start + (at + 1) * size)
                        theirs = slice(start + their_at * size, start + (their_at + 1) * size)
                        scores = queries[mine] @ ranks[other][1][theirs].T / np.sqrt(queries.shape[1])
                        shares = np.exp(scores) * (np.tri(size) if their_part == own_part else 1)
                        sums[mine] += shares @ ranks[other][2][theirs]
                        weights[mine] += shares.sum(axis=1)
        outs.append(sums / np.maximum(weights, 1e-300)[:, None])
    return outs
