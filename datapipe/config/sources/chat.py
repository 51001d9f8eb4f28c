"""Sources of conversations: the fields that hold them, and the stage that makes texts of them.

    messages: conversation, learn: last     ─▶  extract.chat: {messages: [conversation], tools: tools, learn: last}

The stage is the first one of the source, or stands where its stages name it. Its other options are given there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator

from datapipe.config.fields import Record, Texts
from datapipe.config.problems import Problem
from datapipe.config.stage_use import StageUse, with_stage

if TYPE_CHECKING:
    from datapipe.config.sources.source import Source

STAGE = "extract.chat"
TOOLS = "tools"
"""The field with the tools of a conversation, where the records have it."""

_OPTIONS = ("template", "learn", "tools")  # of the stage
_OTHER_ORDER = "a conversation has its own order and its own mask. Leave it out"


def _fields(value: Any) -> Any:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError("expected the name of a field, or a list of names such as [prompt, completion]")
    if len({name.rpartition(".")[2] for name in names}) < len(names):
        raise ValueError("expected fields of different names")
    return names


MessageFields = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: () if value in ([], ()) else _fields(value)),
    PlainSerializer(lambda names: names[0] if len(names) == 1 else list(names)),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string", "minLength": 1}}]}
    ),
]


class ChatTemplateSpec(Record):
    """The text of a chat template, with the tokens that it needs. A run writes it for every template into its mixture."""

    text: str = Field(min_length=1, description="The template, in the language of Jinja, or the name of one.")
    special_tokens: dict[str, str] = Field(default_factory=dict, description="Variables of the template: {bos_token: <s>}.")
    control_tokens: Texts = Field(default=(), description="Tokens that it may write. Default: those of the form <|…|> in it.")
    lacking: Literal["refuse", "text"] = Field(
        default="refuse", description="Other tokens of the form <|…|> in it. refuse: an error. text: they become text."
    )

    def options(self) -> dict[str, Any]:
        """The options of the stage."""
        listed = self.model_dump(mode="json")
        return {"template": listed.pop("text"), **{name: value for name, value in listed.items() if value}}


def _of_keys(data: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    return ChatTemplateSpec.model_validate(data) if isinstance(data, dict) else validate(data)


TemplateOrText = Annotated[Annotated[str, Field(min_length=1)] | ChatTemplateSpec, WrapValidator(_of_keys)]


def chat_stages(source: Source, stages: tuple[StageUse, ...], where: str) -> tuple[StageUse, ...]:
    """The stages of a source, with that of its conversations if it has any. `where`: the source in the mixture's file."""
    if not source.messages:
        return stages
    template = source.template
    is_known = isinstance(template, ChatTemplateSpec)
    given = {name: value for name in _OPTIONS if (value := getattr(source, name)) is not None}
    own = {"messages": list(source.messages), "tools": TOOLS, **given, **(template.options() if is_known else {})}
    return with_stage(stages, STAGE, own, where)


def option_problems(source: Source) -> Iterator[Problem]:
    """Options of a source that do not go together, with conversations or without."""
    if not source.messages:
        for name in (*_OPTIONS, "max_document_tokens"):
            if getattr(source, name) is not None:
                yield (name,), "needs messages: the field with the conversations of the source"
    is_longer_given = "longer" in source.model_fields_set
    if is_longer_given and source.max_document_tokens is None:
        yield ("longer",), "needs max_document_tokens: the most tokens of a conversation. Write max_document_tokens: 8k"
    if not source.messages:
        return
    if source.text != "text":
        yield ("text",), "found beside messages, expected one of them: the text is made of the conversation"
    if source.max_document_tokens is not None and source.longer == "cut" and source.learn not in (None, "assistant"):
        found = f"needs learn: assistant, found learn: {source.learn}. Write longer: drop, or learn: assistant"
        cut = ("longer",), f"cut {found}"
        default = ("max_document_tokens",), f"cuts longer conversations behind an answer, which {found}"
        yield cut if is_longer_given else default
    for name in ("fim", "document_prefix"):
        if getattr(source, name) is not None:
            yield (name,), f"cannot be combined with messages: {_OTHER_ORDER}"


def stage_problems(sources: Mapping[str, Source], stages: Mapping[str, tuple[StageUse, ...]]) -> Iterator[Problem]:
    """Problems of the stages of sources, as they are listed, with their conversations."""
    for name, source in sources.items():
        for use in stages[name]:
            if use.name != STAGE:
                if source.messages and use.alias == STAGE:
                    yield ("sources", name), f"another stage has the name {STAGE}. Give it another one with `as`"
                continue
            own = [option for option in ("messages", *_OPTIONS) if option in use.options]
            if not source.messages:
                yield ("sources", name), f"{STAGE} needs conversations: write `messages: FIELD` in the source"
            elif own:
                yield ("sources", name), f"{STAGE}: {own[0]}: found in the list of stages. Write it in the source"
