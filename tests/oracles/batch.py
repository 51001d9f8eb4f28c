"""Labels, positions and segments of one row, from the lengths of its chunks."""

IGNORED = -100


def chunk_owners(lengths: list[int], row_length: int) -> list[int | None]:
    """The number of the chunk that each token belongs to; None for padding."""
    owners: list[int | None] = [chunk for chunk, length in enumerate(lengths) for _ in range(length)]
    return owners + [None] * (row_length - len(owners))


def shifted_labels(tokens: list[int], lengths: list[int]) -> list[int]:
    owners = [*chunk_owners(lengths, len(tokens)), None]
    following = [*tokens[1:], IGNORED]
    return [following[t] if owners[t] is not None and owners[t] == owners[t + 1] else IGNORED for t in range(len(tokens))]


def unshifted_labels(tokens: list[int], lengths: list[int]) -> list[int]:
    return [IGNORED if owner is None else token for token, owner in zip(tokens, chunk_owners(lengths, len(tokens)))]


def positions(lengths: list[int], row_length: int) -> list[int]:
    owners = chunk_owners(lengths, row_length)
    return [t - owners.index(owner) for t, owner in enumerate(owners)]


def segments(lengths: list[int], row_length: int) -> list[int]:
    return [0 if owner is None else owner + 1 for owner in chunk_owners(lengths, row_length)]


def borders(rows: list[list[int]], row_length: int) -> list[int]:
    """0, and the end of each run of one owner in all rows laid end to end; padding is a run."""
    owners = [(number, owner) for number, lengths in enumerate(rows) for owner in chunk_owners(lengths, row_length)]
    changes = [t for t in range(1, len(owners)) if owners[t] != owners[t - 1]]
    return [0, *changes, len(owners)] if owners else [0]
