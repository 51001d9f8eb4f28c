"""How the tokens of a source's documents are arranged: filling in the middle, and text before them that is not learned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from string import Formatter
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from datapipe.config.fields import Record, Share, Texts
from datapipe.config.problems import Problem

if TYPE_CHECKING:
    from datapipe.config.sources.source import Source
    from datapipe.config.tokenizer_spec import TokenizerSpec

_COLUMN = re.compile(r"[\w.]+")


class FimSpec(Record):
    """Puts a share of the documents into the order prefix, suffix, middle (PSM), or suffix, prefix, middle (SPM)."""

    rate: Share = Field(default=0.5, description="Share of the documents to reorder, by a keyed hash of each: 0.5, 50%.")
    spm: Share = Field(
        default=0.5,
        description="Share of these documents in the order suffix, prefix, middle (SPM). The others are in the order "
        "prefix, suffix, middle (PSM).",
    )
    at: Literal["characters", "tokens"] = Field(
        default="characters", description="Cut between characters or tokens. characters: each part is encoded separately."
    )
    min_chars: int = Field(default=0, ge=0, description="Minimum number of characters of a document to reorder.")
    tokens: Texts = Field(
        default=(),
        description="Control tokens before prefix, suffix and middle. Default: the tokens of StarCoder, SantaCoder, "
        "Qwen, DeepSeek, Gemma or Code Llama, if the tokenizer has them.",
    )

    def problems(self) -> Iterator[Problem]:
        if len(self.tokens) not in (0, 3):
            yield ("tokens",), f"found {list(self.tokens)}, expected three control tokens: before prefix, suffix and middle"


class DocumentPrefixSpec(Record):
    """Text before the text of documents. The model reads it, and no loss counts it."""

    text: str = Field(
        min_length=1,
        description='The text, with columns in braces: "{url}\\n". A document without a value for one of them gets no '
        "prefix. {{ stands for a brace.",
    )
    rate: Share = Field(default=1.0, description="Share of the documents that get the prefix, by a keyed hash of each.")

    def problems(self) -> Iterator[Problem]:
        try:
            columns = self.columns
        except ValueError as error:
            yield ("text",), f"found {self.text!r}, expected columns in braces, {{url}}, and {{{{ for a brace: {error}"
            return
        if not columns:
            yield ("text",), f"found {self.text!r}, expected the name of a column in braces, such as {{url}}"

    @property
    def columns(self) -> list[str]:
        """The columns in braces. Raises ValueError for another use of braces."""
        parsed = [(column, options, conversion) for _, column, options, conversion in Formatter().parse(self.text)]
        for column, options, conversion in parsed:
            if column is not None and (options or conversion or not _COLUMN.fullmatch(column)):
                raise ValueError(f"{{{column}}} names none")
        return [column for column, _, _ in parsed if column is not None]


def control_token_problems(sources: Mapping[str, Source], tokenizer: TokenizerSpec) -> Iterator[Problem]:
    """Sources that need control tokens which the tokenizer of a mixture does not have."""
    for name, source in sources.items():
        if tokenizer.path is None and source.repository is not None and source.repository.separators:
            text = "needs tokenizer.path: there are no control tokens without it. Leave it out"
            yield ("sources", name, "repository", "separators"), text
        if tokenizer.train is not None and source.fim is not None:
            text = "needs tokenizer.path: a trained tokenizer has no control tokens for prefix, suffix and middle"
            yield ("sources", name, "fim"), text
