"""The Arrow schemas of everything the engine writes, in the order of the data path.

documents   key, id, text, kept and added columns                       work/, one file per task
drops       dropped document, rule, measured value, threshold           work/
quarantine  documents that could not be read or processed, and why      work/
tokens      hash, key, tokens: the exchange before packing              work/
sequences   rows of exactly S tokens, with the documents they hold      shards/
"""

import pyarrow as pa

from datapipe.columns import KEY_TYPE

UNLEARNED = "unlearned"

DROPS = pa.schema(
    [
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("id", pa.large_string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("rule", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("threshold", pa.float64()),
        pa.field("survivor", KEY_TYPE),
    ]
)
"""One row per dropped document; its text is read again from the source. Only dedup stages set `survivor`."""

QUARANTINE = pa.schema(
    [
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("id", pa.large_string()),
        pa.field("path", pa.string(), nullable=False),
        pa.field("place", pa.uint64(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("excerpt", pa.binary(), nullable=False),
    ]
)
"""One row per document that could not be read or processed; without an id where it could not be read."""


def token_type(vocab_size: int) -> pa.DataType:
    """uint16 below 65,500 ids, else uint32.

    65,500 and not 65,536: for sizes between the two, Megatron's writer and one of its readers
    disagree on the width (`DType.optimal_dtype` and `GPTDatasetConfig.token_dtype_code`).
    """
    return pa.uint16() if vocab_size < 65_500 else pa.uint32()


def tokens(id_type: pa.DataType, *, has_mask: bool = False) -> pa.Schema:
    """The exchange before packing: one row per tokenized document; `hash` orders the documents of the global shuffle.
    `has_mask`: documents have segments; `unlearned` as in `sequences`, of the tokens of a document."""
    fields = [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("tokens", pa.large_list(pa.field("item", id_type, nullable=False)), nullable=False),
    ]
    mask = [pa.field(UNLEARNED, pa.large_list(pa.field("item", pa.int64(), nullable=False)), nullable=False)]
    return pa.schema(fields + (mask if has_mask else []))


def sequences(id_type: pa.DataType, sequence_length: int, *, has_mask: bool = False) -> pa.Schema:
    """A shard: one row per packed sequence.

    tokens   exactly S ids; past the sum of `lengths` the row is padding (the end-of-text id)
    lengths  tokens of each piece in this row, in order, at least 1 each; a piece is the part of one document in one row
    keys     the document of each piece
    starts   the token of its document at which each piece starts: 0 except for cut documents
    unlearned   start and stop of each run of tokens that a loss does not count as targets, ascending, of sources whose
                documents have segments; padding is in no run
    """
    fields = [
        pa.field("tokens", pa.list_(pa.field("item", id_type, nullable=False), sequence_length), nullable=False),
        pa.field("lengths", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("keys", pa.list_(pa.field("item", KEY_TYPE, nullable=False)), nullable=False),
        pa.field("starts", pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False),
    ]
    mask = [pa.field(UNLEARNED, pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False)]
    return pa.schema(fields + (mask if has_mask else []))
