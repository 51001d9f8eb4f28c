"""Plain text: one document a file, plain or in an archive."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe.columns import text_lengths
from datapipe.stage import FieldNames, FieldsSeen, InputFile, OpenInput, ReadBatch, Rejected, Split
from datapipe.stage.decoding import BOM, EXCERPT_BYTES, BrokenStreamError, as_utf8, decoded
from stages.read._content_reader import ContentReader


class Text(ContentReader):
    """Reads each file as one document of UTF-8, or UTF-16 and UTF-32 with a byte order mark. An empty file is an empty text."""

    extensions: ClassVar[tuple[str, ...]] = (".txt", ".md", ".rst")

    max_file_bytes: int = Field(
        default=512 << 20, ge=1, description="Maximum bytes of a file. Longer files are quarantined, and not held in memory."
    )

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        content = self._content(split.file, open_input)
        if isinstance(content, Rejected):
            yield ReadBatch.of_rejected(content)
            return
        texts = pa.array([content], pa.large_string())
        yield ReadBatch(
            positions=np.zeros(1, np.uint64),
            content=texts,
            ids=pa.nulls(1, pa.large_string()),
            extra={name: pa.nulls(1, pa.large_string()) for name in fields.keep},
            input_bytes=int(text_lengths(texts)[0]),
        )

    def fields_seen(self, split: Split, fields: FieldNames, open_input: OpenInput) -> FieldsSeen:
        """A file is one record, which has the text and no other field."""
        return FieldsSeen(num_records=1, found=frozenset({fields.text or ""}))

    def _content(self, file: InputFile, open_input: OpenInput) -> str | Rejected:
        blocks: list[bytes] = []
        size = 0
        try:
            for block in as_utf8(decoded(open_input, file.url, file.compression, self.max_window_bytes)):
                blocks.append(block)
                size += len(block)
                if size > self.max_file_bytes:
                    error = f"the file has more than {self.max_file_bytes} bytes, the limit max_file_bytes"
                    return Rejected(position=0, error=error, excerpt=blocks[0][:EXCERPT_BYTES])
            content = b"".join(blocks).removeprefix(BOM)
            return content.decode()
        except BrokenStreamError as error:
            excerpt = b"".join(blocks)[:EXCERPT_BYTES]
            return Rejected(position=0, error=str(error), excerpt=excerpt, is_file_damage=True)
        except UnicodeDecodeError as error:
            message = f"invalid UTF-8 at byte {error.start}: {error.reason}; expected a file of UTF-8 text"
            return Rejected(position=0, error=message, excerpt=error.object[:EXCERPT_BYTES])
