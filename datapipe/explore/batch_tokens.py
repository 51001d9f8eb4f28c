"""A batch as text: the documents of each row, with their control tokens and what no loss counts of them.

step ─▶ the loader's batch ─▶ documents of each row ─▶ runs of tokens, learned or not ─▶ text, control tokens by name
"""

from contextlib import closing
from itertools import groupby
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from datapipe.dataclass import dataclass
from datapipe.loader.loader import Loader
from datapipe.shards.manifest import snapshot_file
from datapipe.storage.root import Root
from datapipe.tokens.vocabulary import is_control

_FIELDS = ("input_ids", "labels", "sources", "document_keys", "piece_offsets", "piece_lengths", "piece_starts")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRun:
    """Neighbouring tokens of a document that are all learned or all not: text, or one control token."""

    text: str
    is_control: bool
    is_learned: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RowDocument:
    """The part of a document that lies in one row. `start`: its first token in the document."""

    key: str
    start: int
    num_tokens: int
    num_learned: int
    runs: tuple[TokenRun, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRow:
    """A row of a batch."""

    row: int
    source: str
    documents: tuple[RowDocument, ...]
    num_padding: int


def rows_of_step(output: str, step: int, num_rows: int) -> list[TokenRow]:
    """The first rows of a batch of so many rows. Raises UserError, SnapshotError."""
    with closing(Loader(output, global_batch_size=num_rows, labels="unshifted", fields=_FIELDS, prefetch=0)) as loader:
        batch, snapshot, sources = loader.batch(step), loader.snapshot, loader.sources
    root = Root(output)
    content = root.read_bytes(snapshot_file(root, snapshot, snapshot.tokenizer.path))
    tokenizer = Tokenizer.from_buffer(content)
    added = tokenizer.get_added_tokens_decoder().items()
    control = {number for number, token in added if is_control(token.content, is_special=token.special)}
    control |= {number for number in (snapshot.tokenizer.eos_id, snapshot.tokenizer.bos_id) if number is not None}
    offsets = batch["piece_offsets"]
    return [
        TokenRow(
            row=row,
            source=sources[int(batch["sources"][row])],
            documents=tuple(_documents(batch, row, slice(offsets[row], offsets[row + 1]), tokenizer, control)),
            num_padding=batch["input_ids"].shape[1] - int(batch["piece_lengths"][offsets[row] : offsets[row + 1]].sum()),
        )
        for row in range(len(batch["input_ids"]))
    ]


def _documents(batch: dict[str, Any], row: int, pieces: slice, tokenizer: Tokenizer, control: set[int]) -> list[RowDocument]:
    listed, stop = [], 0
    columns = (batch[name][pieces] for name in ("document_keys", "piece_starts", "piece_lengths"))
    for key, start, length in zip(*columns):
        own = slice(stop, stop := stop + int(length))
        learned = batch["labels"][row, own] >= 0
        runs = tuple(_runs(batch["input_ids"][row, own], learned, tokenizer, control))
        counts = {"num_tokens": int(length), "num_learned": int(learned.sum())}
        listed.append(RowDocument(key=key.tobytes().hex(), start=int(start), runs=runs, **counts))
    return listed


def _runs(ids: np.ndarray, learned: np.ndarray, tokenizer: Tokenizer, control: set[int]) -> list[TokenRun]:
    runs = []
    both = zip(ids.tolist(), learned.tolist())
    for (is_learned, is_named), tokens in groupby(both, lambda each: (each[1], each[0] in control)):
        numbers = [number for number, _ in tokens]
        names = (tokenizer.id_to_token(number) or "" for number in numbers)
        texts = names if is_named else [tokenizer.decode(numbers)]
        runs += [TokenRun(text=text, is_control=is_named, is_learned=is_learned) for text in texts]
    return runs
