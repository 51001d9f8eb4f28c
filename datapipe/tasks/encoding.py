"""Encodes the batches of a tokenize task. A text on which the library fails costs its document alone.

    batch ── Encoder.encode ──▶ ids, offsets
               └─ EncodingError ─▶ halves ─▶ … ─▶ the document, alone ─▶ quarantine

A worker keeps the tokenizer from task to task: loading one of 50,000 ids takes half a second, encoding 100 MB about one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import EncodingError
from datapipe.exchange.partitions import committed_bytes
from datapipe.plan.outputs import TokenizerFile
from datapipe.plan.work import TokenizeTask
from datapipe.stage.documents import DocumentBatch
from datapipe.storage import Root
from datapipe.tasks.contract.guard import FailedDocument
from datapipe.tokens.encoder import Encoder


def encoder_of(task: TokenizeTask, root: Root) -> Encoder:
    """The encoder of a task. Raises UserError where its library has another version here."""
    return _loaded(root.url, task.tokenizer, task.eos, task.bos)


@lru_cache(maxsize=1)
def _loaded(url: str, file: TokenizerFile, eos: str | None, bos: str | None) -> Encoder:
    encoder = Encoder(committed_bytes(Root(url), file), eos=eos, bos=bos, choice=file.choice)
    encoder.load()
    return encoder


def forget_encoder() -> None:
    """Frees the tokenizer, before a task of another kind."""
    _loaded.cache_clear()


def encode(
    encoder: Encoder, batch: DocumentBatch
) -> tuple[DocumentBatch, NDArray[Any], NDArray[np.int64], list[FailedDocument]]:
    """The documents that can be encoded, their ids and offsets as `Encoder.encode` returns them, and the others."""
    failed: list[FailedDocument] = []
    try:
        return batch, *encoder.encode(batch.texts), failed
    except EncodingError:
        _find(encoder, batch, 0, failed)
    is_encoded = np.ones(batch.num_docs, np.bool_)
    is_encoded[[document.row for document in failed]] = False
    rest = batch.filter(is_encoded)
    return rest, *encoder.encode(rest.texts), failed


def _find(encoder: Encoder, part: DocumentBatch, first_row: int, failed: list[FailedDocument]) -> None:
    """Adds the documents of a part on which the encoder fails, by halving it."""
    try:
        encoder.encode(part.texts)
    except EncodingError as error:
        if part.num_docs == 1:
            failed.append(FailedDocument(row=first_row, error=str(error)))
            return
        middle = part.num_docs // 2
        _find(encoder, part.slice(0, middle), first_row, failed)
        _find(encoder, part.slice(middle, part.num_docs), first_row + middle, failed)
