"""The figures of a tokenizer in a report: the counts of the texts that it encoded, their ratios, and its unused tokens."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, computed_field

from datapipe.token_counts import Fertility

_EXAMPLES = 10
_REPLACED = "\N{REPLACEMENT CHARACTER}"


class LanguageFertility(BaseModel, frozen=True, defer_build=True):
    """Token counts with their ratios."""

    documents: int
    bytes: int
    words: int
    tokens: int

    @computed_field
    @property
    def bytes_per_token(self) -> float | None:
        return round(self.bytes / self.tokens, 4) if self.tokens else None

    @computed_field
    @property
    def tokens_per_word(self) -> float | None:
        return round(self.tokens / self.words, 4) if self.words else None


class SourceFertility(LanguageFertility, frozen=True):
    """The counts of a source; `languages` is None where it has too many of them."""

    unknown_tokens: int
    languages: dict[str, LanguageFertility] | None

    @classmethod
    def of(cls, fertility: Fertility) -> Self:
        counts = fertility.languages.by_name
        languages = None
        if counts is not None:
            languages = {name: LanguageFertility(**each.to_json()) for name, each in sorted(counts.items())}
        return cls(**fertility.total.to_json(), unknown_tokens=fertility.unknown, languages=languages)


class TokenExample(BaseModel, frozen=True, defer_build=True):
    id: int
    token: str


class UnusedTokens(BaseModel, frozen=True, defer_build=True):
    """Ids that occur in no text, and ten examples spread over the vocabulary. Special tokens are left out."""

    count: int
    examples: tuple[TokenExample, ...]


class TokenizerFigures(BaseModel, frozen=True, defer_build=True):
    """A tokenizer and the texts that it encoded; `unused` is None until every document is tokenized."""

    vocab_size: int
    eos_token: str
    bos_token: str | None
    total: SourceFertility
    sources: dict[str, SourceFertility]
    unused: UnusedTokens | None

    @classmethod
    def of(cls, sources: Mapping[str, Fertility], **about: Any) -> Self:
        total = Fertility()
        for fertility in sources.values():
            total.add(fertility)
        return cls(
            total=SourceFertility.of(total), sources={name: SourceFertility.of(each) for name, each in sources.items()}, **about
        )


def unused_tokens(tokenizer_json: bytes, used: NDArray[np.bool_]) -> UnusedTokens:
    from tokenizers import Tokenizer  # a report that is only shown needs none

    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    tokens = {number: token for token, number in tokenizer.get_vocab(with_added_tokens=True).items()}
    unused = [number for number in np.flatnonzero(~used).tolist() if number in tokens and number not in special]
    picked = unused[:: max(1, -(-len(unused) // _EXAMPLES))]
    texts = [(number, tokenizer.decode([number])) for number in picked]
    examples = [TokenExample(id=each, token=text if text and _REPLACED not in text else tokens[each]) for each, text in texts]
    return UnusedTokens(count=len(unused), examples=tuple(examples))
