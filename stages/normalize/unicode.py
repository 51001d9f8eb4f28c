"""Brings text into one Unicode normal form, with one kind of line end and without control characters.

Line ends and control characters are replaced first, because a control character can separate a letter from its accent. The
stage is idempotent. Only documents with a character that might change are normalized.
"""

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from datapipe import columns
from datapipe.kernels.text import normalize
from datapipe.kernels.text.unicode_classes import stable_table
from datapipe.stage import Map
from datapipe.stage.documents import DocumentBatch


class Unicode(Map):
    """Normalizes Unicode, line ends and control characters."""

    form: Literal["NFC", "NFKC", "NFD", "NFKD"] = Field(
        default="NFC", description="NFC keeps the meaning of text; NFKC also folds ligatures, full-width and superscripts."
    )
    fix_newlines: bool = Field(
        default=True, description="Replace each CR LF, CR, vertical tab, form feed, U+2028 and U+2029 by one newline."
    )
    strip_control: bool = Field(
        default=True,
        description="Remove ASCII control characters except tab and newline, and a byte order mark at the start. Control "
        "characters that separate words (U+001C to U+001F, and line ends if fix_newlines is false) become a space.",
    )

    libraries = ("pyarrow",)
    writes = ()

    def process(self, batch: DocumentBatch) -> dict[str, pa.Array]:
        offsets, data = batch.buffers
        actions = normalize.actions(self.fix_newlines, self.strip_control)
        needs = np.empty(batch.num_docs, np.uint8)
        normalize.survey(offsets, data, actions, stable_table(self.form), self.fix_newlines, self.strip_control, needs)
        texts = unchanged = batch.texts
        if (needs & normalize.REWRITE).any():
            new_offsets, new_data = np.empty(len(offsets), np.int64), np.empty(offsets[-1] - offsets[0], np.uint8)
            normalize.rewrite(offsets, data, actions, self.fix_newlines, self.strip_control, new_offsets, new_data)
            texts = columns.texts_from(new_offsets, new_data)
        unstable = pa.array((needs & normalize.UNSTABLE) != 0)
        if unstable.true_count:
            normalized = pc.utf8_normalize(texts.filter(unstable), form=self.form)  # pyright: ignore[reportAttributeAccessIssue]
            texts = pc.replace_with_mask(texts, unstable, normalized)  # pyright: ignore[reportAttributeAccessIssue]
        return {} if texts is unchanged else {"text": texts}
