"""A reader of pages, for tests of what comes before extraction."""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

import pyarrow as pa

from datapipe.stage import FieldNames, FieldsSeen, OpenInput, ReadBatch, Reader, Split
from stages.read.text import Text


class Pages(Text):
    """Every file is a page of the type text/html."""

    gives: ClassVar[Literal["text", "html"]] = "html"

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        for batch in super().read(split, fields, open_input):
            html = batch.content.cast(pa.large_binary())
            extra = {name: pa.array(["text/html"] * len(html)) for name in fields.keep}
            yield replace(batch, content=html, extra=extra, passed_over={"requests": 2})

    def fields_seen(self, split: Split, fields: FieldNames, open_input: OpenInput) -> FieldsSeen:
        return Reader.fields_seen(self, split, fields, open_input)
