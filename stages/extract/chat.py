"""Writes conversations as texts with control tokens, by a template, with a mask of what a loss counts.

    JSON of fields ─▶ messages, in any known form (`_chat/messages.py`) ─▶ their order is right (`_chat/order.py`)
                   ─▶ the template writes them (`_chat/templates.py`) ─▶ text and segments (`datapipe/stage/segments.py`)

The source names the fields: `messages: conversation`. An invalid conversation goes to quarantine with the reason: no valid
JSON, no messages, values nested too deeply, an unknown role, content that is not text, two users in a row, an empty or missing
answer, a tool result without its call or a call without its result, a malformed tool or call, half of a surrogate pair, or
what the template reports. Text never becomes a control token, whatever it spells.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe.errors import UserError, suggest
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.segments import SEGMENTS
from stages.extract._chat.filling import Filling, Form
from stages.extract._chat.messages import MalformedError, conversation_of
from stages.extract._chat.order import check_order
from stages.extract._chat.plain import PlainConversations
from stages.extract._chat.templates import BUILT_IN, ChatTemplate, TemplateError, built_in

OF_TOKENIZER = "tokenizer"
FILES = (".jinja", ".jinja2", ".j2")
"""How the names of files with templates end."""

REFUSED = "the template refuses it"


class Chat(Filter):
    """Writes conversations as text with control tokens, by a chat template. A loss counts what assistants write."""

    takes_json: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("jinja2", "pyarrow")
    writes = (SEGMENTS,)

    messages: tuple[str, ...] = Field(default=(), description="Fields with the conversation: `messages` of the source.")
    tools: str = Field(default="tools", description="Field with the tools: `tools` of the source.")
    template: str = Field(
        default=OF_TOKENIZER,
        description="tokenizer: its chat_template.jinja, or that in its tokenizer_config.json. Or chatml, llama3, harmony, the "
        "path or URL of a .jinja file, or the text of a template.",
    )
    learn: Literal["all", "assistant", "last"] = Field(
        default="assistant",
        description="What a loss counts. all: every token. assistant: what assistants write. last: the last answer.",
    )
    special_tokens: dict[str, str] = Field(
        default_factory=dict, description="Variables of the template: {bos_token: <s>}. Default: those of the tokenizer."
    )
    control_tokens: tuple[str, ...] = Field(
        default=(),
        description="Tokens that the template may write. Default: those of the tokenizer; without one, those of the form <|…|> "
        "in the template.",
    )
    lacking: Literal["refuse", "text"] = Field(
        default="refuse",
        description="What happens to tokens of the form <|…|> in the template that are no control tokens. refuse: an error. "
        "text: they are text, as in transformers, and always in the tokenizer's own template.",
    )

    def rules(self) -> Sequence[Rule]:
        return ()

    def check_options(self) -> None:
        if not self._is_known:
            self._check_name()
            return
        template = self._template
        if template.missing_tokens and self.lacking == "refuse":
            listed = ", ".join(f'"{token}"' for token in template.missing_tokens)
            raise UserError(
                f"template: it writes {listed}, and the tokenizer has no such control tokens. Name another template. Where the "
                f"mixture trains its tokenizer, write `control_tokens: [{listed}]` under tokenizer.train. To add them to a "
                f"tokenizer.json: `tokenizer.add_special_tokens([{listed}])` of tokenizers. The model needs their embeddings"
            )
        template.check_learn(self.learn)

    @property
    def _is_known(self) -> bool:
        """Whether the option has the template. A run reads that of a tokenizer or a file, and gives its text."""
        return self.template in BUILT_IN or "{" in self.template

    def _check_name(self) -> None:
        if self.template != OF_TOKENIZER and not self.template.partition("?")[0].endswith(FILES):
            known = ", ".join((OF_TOKENIZER, *BUILT_IN))
            raise UserError(
                f"template: found {self.template!r}, expected {known}, or the path of a .jinja file."
                f"{suggest(self.template, (OF_TOKENIZER, *BUILT_IN))}"
            )

    def input_files(self) -> tuple[str, ...]:
        return (str(BUILT_IN[self.template]),) if self.template in BUILT_IN else ()

    def chat_template(self) -> str | None:
        return self._text

    def missing_tokens(self) -> tuple[str, ...]:
        return tuple(self._template.missing_tokens) if self._is_known else ()

    @property
    def _text(self) -> str:
        """The template. Raises UserError."""
        if not self._is_known:
            raise UserError(f"template: {self.template}: its text is not known here. Name a template, such as chatml")
        return built_in(self.template) if self.template in BUILT_IN else self.template

    @property
    def _template(self) -> ChatTemplate:
        return _loaded(self._text, tuple(self.special_tokens.items()), self.control_tokens)

    @property
    def _fields(self) -> tuple[str, ...]:
        return tuple(map(_last, self.messages))

    def process(self, batch: DocumentBatch) -> FilterResult:
        template, plain = self._template, PlainConversations.of(batch.texts, self._fields, _last(self.tools))
        filling, is_left = Filling(batch.num_docs, plain.offsets, plain.data), np.ones(batch.num_docs, np.bool_)
        for key, rows in plain.by_form():
            if (form := template.form_of(key, self.learn)) is not None and not form.made:
                filling.add(form, rows, plain.firsts[rows])
                is_left[rows] = False
        failed: dict[int, str] = {}
        left = np.flatnonzero(is_left)
        for row, content in zip(left.tolist(), batch.texts.take(pa.array(left)).to_pylist()):
            try:
                form, texts = self._filled(template, content)
                filling.add_texts(form, row, texts)
            except MalformedError as error:
                failed[row] = str(error)
        texts, segments = filling.columns()
        keep, value = np.ones(batch.num_docs, np.bool_), np.full(batch.num_docs, np.nan)
        rule, columns = np.full(batch.num_docs, -1, np.int16), {"text": texts, SEGMENTS: segments}
        return FilterResult(keep=keep, rule=rule, value=value, failed=failed, columns=columns)

    def _filled(self, template: ChatTemplate, content: str) -> tuple[Form, list[str]]:
        """The form of a conversation, and the texts for its gaps. Raises MalformedError."""
        messages, tools = conversation_of(content, self._fields, _last(self.tools))
        check_order(messages)
        try:
            return template.filled(messages, tools, self.learn)
        except TemplateError as error:
            raise MalformedError(REFUSED, str(error)) from None


@lru_cache(maxsize=8)
def _loaded(template: str, special_tokens: tuple[tuple[str, str], ...], control_tokens: tuple[str, ...]) -> ChatTemplate:
    """A worker keeps templates and their forms from task to task."""
    return ChatTemplate.load(template, dict(special_tokens), control_tokens)


def _last(field: str) -> str:
    """A field as the content names it: without the objects that it is in."""
    return field.rpartition(".")[2]
