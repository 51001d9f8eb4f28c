"""The `tokenizer:` section of a mixture file: a tokenizer to train, one that exists, or `none`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.annotated_handlers import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from datapipe.config.fields import ByteSize, Record, Texts
from datapipe.config.problems import Problem

NONE = "none"

PatternName = Literal["gpt2", "cl100k", "o200k", "llama3", "qwen2"]
"""The names of `datapipe.tokens.patterns.PATTERNS`, which this layer cannot import."""


def _each_once(tokens: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(tokens)) < len(tokens):
        raise ValueError("expected each token once")
    for token in tokens:
        if len(token) < 2 or token.isspace():
            raise ValueError(f"found {token!r}, expected tokens of at least 2 characters that are not white space alone")
    return tokens


class TokenizerTraining(Record):
    """A byte-level BPE tokenizer that is trained on the mixture."""

    vocab_size: int = Field(
        default=32_000, ge=257, description="Number of tokens: 256 bytes, the merges, and the control tokens."
    )
    sample_bytes: ByteSize = Field(
        default=256 << 20,
        description="Size of the text sample to train on. Each source contributes in proportion to its weight, "
        "averaged over all phases. The task holds the different words of the sample in memory; "
        "execution.bucket_bytes does not bound them.",
    )
    pattern: PatternName = Field(default="gpt2", description="Pattern that splits text into words. Merges stay within a word.")
    eos: str = Field(default="<|endoftext|>", min_length=1, description="End-of-text token, which ends every document.")
    control_tokens: Annotated[Texts, AfterValidator(_each_once)] = Field(
        default=(),
        exclude_if=lambda tokens: not tokens,  # mixtures of outputs of the version before lack it
        description="Further control tokens, which text never becomes: [<|im_start|>, <|im_end|>] of ChatML. They count in "
        "vocab_size.",
    )

    def problems(self) -> Iterator[Problem]:
        if self.eos in self.control_tokens:
            yield ("control_tokens",), f"found {self.eos!r}, which is the end-of-text token already. Leave it out"
        if self.vocab_size < (least := 257 + len(self.control_tokens)):
            yield ("vocab_size",), f"found {self.vocab_size}, expected at least {least}: 256 bytes and the control tokens"


class TokenizerSpec(Record):
    """A tokenizer: one to train, an existing one, or none: `tokenizer: none`."""

    train: TokenizerTraining | None = Field(default=None, description="Train a tokenizer on this mixture, with these options.")
    path: str | None = Field(
        default=None, min_length=1, description="A tokenizer.json, its folder, or a tiktoken rank file, as a path or URL."
    )
    eos: str | None = Field(
        default=None, min_length=1, description="End-of-text token of the tokenizer at `path`. Default: inferred from its name."
    )
    bos: str | None = Field(
        default=None,
        min_length=1,
        description="Token of the tokenizer at `path` that begins every document: <s>. Default: none.",
    )
    pattern: PatternName | None = Field(
        default=None, description="Pattern that splits text into words, for a tiktoken rank file that is not one of OpenAI's."
    )
    special_tokens: dict[str, int] | None = Field(
        default=None, min_length=1, description="Special tokens and their ids, for such a rank file: {'<|endoftext|>': 100257}."
    )

    @property
    def is_none(self) -> bool:
        return self.train is None and self.path is None

    @model_validator(mode="wrap")
    @classmethod
    def _or_none(cls, data: Any, validate: ModelWrapValidatorHandler[TokenizerSpec]) -> TokenizerSpec:
        """`none` is a tokenizer without keys."""
        if isinstance(data, str) and data != NONE:
            raise ValueError("expected a mapping with train or path, or none to write documents instead of tokens")
        if data == NONE or isinstance(data, cls):
            return cls.model_construct() if data == NONE else data
        return validate(data)

    @model_serializer(mode="wrap")
    def _as_none(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any] | str:
        return NONE if self.is_none else serialize(self)

    def problems(self) -> Iterator[Problem]:
        if (self.train is None) == (self.path is None):
            yield (), f"found {'none' if self.train is None else 'both'}, expected exactly one of: train, path"
            return
        remedies = {
            "eos": "Write the token of a trained tokenizer as train.eos",
            "bos": "A trained tokenizer begins documents with none",
            "pattern": "Write the pattern of a trained tokenizer as train.pattern",
            "special_tokens": "Write the tokens of a trained tokenizer as train.eos and train.control_tokens",
        }
        for name, remedy in remedies.items() if self.train is not None else ():
            if getattr(self, name) is not None:
                yield (name,), f"needs path. {remedy}"


class _OrNone:
    """Adds `none` to the JSON Schema of a field."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"const": NONE}]}


TokenizerOrNone = Annotated[TokenizerSpec, _OrNone()]
