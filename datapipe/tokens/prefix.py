"""Metadata before the text of documents, such as their URL, which a model reads and no loss counts (MeCo, arXiv 2501.01956).

    "{url}\\n"  ─▶  the text of the column `url` and a line end before the text of each document of a share

A document without a value in one of the columns has no prefix. Prefix and text are encoded apart.
"""

from string import Formatter

import numpy as np
import pyarrow as pa

from datapipe.columns import compute, key_halves, numbers, text_buffers, text_lengths
from datapipe.errors import UserError
from datapipe.rng import below_fraction, keyed_hash, seed_for
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.segments import Segments
from datapipe.tokens.segments import BREAK


def with_prefix(batch: DocumentBatch, form: str, rate: float, seed: int) -> tuple[pa.Array, Segments]:
    """The texts of documents with a prefix before those of a share, `rate`, and segments of which it is unlearned."""
    chosen = below_fraction(keyed_hash(key_halves(batch.keys), seed_for(seed, "prefix")), rate)
    values = [pa.scalar("", pa.large_string())]
    for text, column, _, _ in Formatter().parse(form):
        values.append(pa.scalar(text, pa.large_string()))
        if column is not None:
            values.append(_as_text(batch.column(column, "document_prefix"), column))
    joined = compute.binary_join_element_wise(*values, pa.scalar("", pa.large_string()))  # null where a value is
    chosen &= numbers(joined.is_valid())
    prefixes = compute.if_else(pa.array(chosen), joined, pa.scalar("", pa.large_string()))
    texts = compute.binary_join_element_wise(prefixes, batch.texts, pa.scalar("", pa.large_string()))
    documents, starts = np.flatnonzero(chosen), text_buffers(texts)[0]
    ends = starts[documents] + text_lengths(prefixes)[documents]
    tokens = pa.array([None, BREAK, None] * len(documents), pa.string())
    places = np.stack([starts[documents], ends, ends], axis=1).reshape(-1)
    learned = np.tile([False, True, True], len(documents))
    return texts, Segments(np.repeat(documents, 3), places, tokens, learned)


def _as_text(column: pa.Array, name: str) -> pa.Array:
    try:
        return column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(f"document_prefix: column '{name}' is {column.type}, expected text, numbers or dates") from error
