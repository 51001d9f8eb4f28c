"""Encodes the batches of a tokenize task. A text on which the library fails costs its document alone.

    batch ── Encoder.encode ──▶ ids, offsets
               └─ EncodingError ─▶ halves ─▶ … ─▶ the document, alone ─▶ quarantine

A worker keeps the tokenizer from task to task: loading one of 50,000 ids takes half a second, encoding 100 MB about one. The
libraries are imported when a task runs: who reads a plan or a record needs none of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import EncodingError
from datapipe.exchange.tables import committed_bytes
from datapipe.records.outputs import TokenizerFile
from datapipe.stage.documents import DocumentBatch
from datapipe.steps.guard import Failed
from datapipe.storage.root import Root

if TYPE_CHECKING:
    from datapipe.tokens.encoder import Encoder
    from datapipe.tokens.proof import Choice

ENCODERS = ("fastokens", "tokenizers")
"""The libraries whose versions decide ids."""


def choice_of(file: TokenizerFile) -> Choice:
    """Which library encodes with a committed tokenizer."""
    from datapipe.tokens.proof import Choice

    return Choice(library=file.library, version=file.library_version, battery=file.battery, reason=file.fallback_reason)


@lru_cache(maxsize=1)
def encoder_of(file: TokenizerFile, url: str) -> Encoder:
    """The encoder of a tokenizer in an output. Raises UserError where its library has another version here."""
    from datapipe.tokens.encoder import Encoder

    content = committed_bytes(Root(url), file)
    encoder = Encoder(content, eos=file.eos_token, bos=file.bos_token, choice=choice_of(file))
    encoder.load()
    return encoder


def encode(encoder: Encoder, batch: DocumentBatch) -> tuple[DocumentBatch, NDArray[Any], NDArray[np.int64], Failed]:
    """The documents that can be encoded, their ids and offsets as `Encoder.encode` returns them, and the others."""
    failed = Failed()
    try:
        return batch, *encoder.encode(batch.texts), failed
    except EncodingError:
        _find(encoder, batch, 0, failed)
    is_encoded = np.ones(batch.num_docs, np.bool_)
    is_encoded[list(failed)] = False
    rest = batch.filter(is_encoded)
    return rest, *encoder.encode(rest.texts), failed


def _find(encoder: Encoder, part: DocumentBatch, first_row: int, failed: Failed) -> None:
    """Adds the documents of a part on which the encoder fails, by halving it."""
    try:
        encoder.encode(part.texts)
    except EncodingError as error:
        if part.num_docs == 1:
            failed[first_row] = str(error)
            return
        middle = part.num_docs // 2
        _find(encoder, part.slice(0, middle), first_row, failed)
        _find(encoder, part.slice(middle, part.num_docs), first_row + middle, failed)
