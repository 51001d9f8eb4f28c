"""Renders a conversation by the chat template of a tokenizer, into segments.

    messages, tools ─┬─▶ template ───────────▶ text ──────────────────┬─ equal? ─▶ segments
                     └─▶ template with marks ─▶ text, and who wrote it ┘               ▲
                                             └▶ what the assistant wrote ─────────────┘

Text never becomes a control token, whatever it holds: only what the template wrote counts as one
(`marks.py`). A template that reads its marks would write something else with them; such a conversation
is refused. `{% generation %}` of the template names what the assistant wrote; else it is found by the
generation prompt (`turns.py`). Ids and mask of the segments are those of `apply_chat_template` of
transformers, except for text that spells control tokens.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, Self

from jinja2.exceptions import TemplateSyntaxError

from datapipe.errors import UserError
from stages.extract._chat.filling import Form
from stages.extract._chat.forms import FormKey, FormRenderer, Forms, can_have_forms
from stages.extract._chat.marks import (
    RANGES,
    Marks,
    constants,
    free_ranges,
    has_role,
    is_but_for_roles,
    mark_tree,
    marking_environment,
    token_pattern,
    utf16,
    without_role_words,
)
from stages.extract._chat.sandbox import ChatEnvironment, Renderer, TemplateError
from stages.extract._chat.turns import Turns, find_turns

__all__ = ["BUILT_IN", "ChatTemplate", "Learn", "TemplateError", "built_in"]

Learn = Literal["all", "assistant", "last"]

BUILT_IN = {name: Path(__file__).parent / f"{name}.jinja" for name in ("chatml", "llama3", "harmony")}
"""The files of templates that have a name, written after the published descriptions of these forms."""

_SPELLED_TOKEN = re.compile(r"<\|[^<>|\s]+\|>|<｜[^<>｜\s]+｜>")
_GENERATION = re.compile(r"\{%[-+]?\s*generation\b")
_REASONING = ("reasoning_content", "thinking", "reasoning")

Span = tuple[int, int]


def built_in(name: str) -> str:
    """The template of a name."""
    return BUILT_IN[name].read_text("utf-8")


class ChatTemplate:
    """A compiled template. Pickled as the arguments of `load`."""

    @classmethod
    def load(cls, template: str, special_tokens: Mapping[str, str], control_tokens: Collection[str]) -> Self:
        """Raises UserError for a template that is none.

        Args:
            template: in the language of Jinja.
            special_tokens: variables of the template, such as {"bos_token": "<s>"}.
            control_tokens: names of the control tokens of the tokenizer. Empty: those that the template spells and those of
                `special_tokens`.
        """
        return cls(template, special_tokens, control_tokens)

    def __init__(self, template: str, special_tokens: Mapping[str, str], control_tokens: Collection[str]) -> None:
        self._given = (template, dict(special_tokens), tuple(control_tokens))
        plain = ChatEnvironment()
        try:
            tree = plain.parse(template)
        except TemplateSyntaxError as error:
            raise UserError(
                f"template, line {error.lineno}: {error.message}. Expected a chat template in the language of Jinja"
            ) from error
        written = constants(tree)
        spelled = {token for text in written for token in _SPELLED_TOKEN.findall(text)}
        self.missing_tokens = sorted(spelled - set(control_tokens)) if control_tokens else []
        """Control tokens by their form that the template writes and the tokenizer does not have: they become text."""
        self._render = Renderer(plain, tree, special_tokens)
        names = control_tokens or spelled | set(special_tokens.values())
        self._marking = lru_cache(lambda first: _Marking(template, special_tokens, names, written, first))
        self._marking(RANGES[0])
        self._forms = Forms(self._of_form) if can_have_forms("".join([*written, *special_tokens.values()])) else None

    def __reduce__(self) -> Any:
        return type(self).load, self._given

    def check_learn(self, learn: Learn) -> None:
        """Raises UserError where it cannot be found what the assistant wrote."""
        if learn != "all" and not self._marking(RANGES[0]).finds_answers:
            if self.missing_tokens:
                listed = ", ".join(f'"{token}"' for token in self.missing_tokens)
                raise UserError(
                    f"learn: {learn}: the template writes {listed}, and the tokenizer has no such control tokens. They become "
                    "text, so it is not known where an answer ends. Add them to the tokenizer, name a template of tokens that "
                    "it has, or use `learn: all`"
                )
            raise UserError(
                f"learn: {learn}: found neither {{% generation %}} in the template nor a generation prompt that stands before "
                "each answer, so it is not known what the assistant writes. Put {% generation %} and {% endgeneration %} "
                "around it in the template, or use `learn: all`"
            )

    def form_of(self, key: FormKey, learn: Learn) -> Form | None:
        """The form of conversations; None where it does not decide their segments."""
        return None if self._forms is None else self._forms.of(key, learn)

    def filled(self, messages: list[dict[str, Any]], tools: list[Any] | None, learn: Learn) -> tuple[Form, list[str]]:
        """The form of a conversation, and the texts for its gaps. Raises TemplateError for a conversation that the template
        refuses, UserError as `check_learn`."""
        self.check_learn(learn)
        given = [_without_nulls(message) for message in messages]
        filled = None if self._forms is None else self._forms.filled(given, tools, learn)
        return filled or (Form.of_segments(self._segments_of(given, tools, learn)), [])

    def _segments_of(self, given: list[dict[str, Any]], tools: list[Any] | None, learn: Learn) -> list[dict[str, Any]]:
        text = self._render(given, tools)
        try:
            in_utf16 = utf16(text)
        except UnicodeEncodeError as error:
            raise TemplateError("found a lone surrogate in its text, expected Unicode") from error
        ranges = free_ranges(given, tools)
        if not ranges:
            raise TemplateError("found characters for private use from all over U+E000 to U+F7FF in one conversation")
        marking = self._marking(ranges[0])
        marked, spans = marking.rendered(given, tools)
        if not marking.marks.is_marked(marked, in_utf16):
            raise TemplateError("the template reads what it wrote before, and writes something else where that has marks")
        marked = marking.without_texts_in_tokens(marked, given, tools)
        learned = [(0, len(text))] if learn == "all" else marking.learned(given, tools, marked, spans, learn)
        return _segments(text, marking.tokens(marked), learned)

    @cached_property
    def _render_form(self) -> FormRenderer:
        """Compiled when the first conversation needs it, as that of marks."""
        return FormRenderer(*self._given[:2])

    def _of_form(
        self, messages: list[dict[str, Any]], tools: list[Any] | None, learn: Learn
    ) -> tuple[list[dict[str, Any]], list[Any]]:
        """The segments of a form, and what further stand-ins in them are (`forms.py`). Raises TemplateError."""
        marking = self._marking(RANGES[0])
        marked, spans = marking.rendered_form(messages, tools)
        text, made = self._render_form(messages, tools)
        if not marking.marks.is_marked(marked, utf16(text)):
            raise TemplateError("the template reads what it wrote before")
        learned = [(0, len(text))] if learn == "all" else marking.learned(messages, tools, marked, spans, "assistant")
        if learn == "last":
            if len(learned) != sum(message["role"] == "assistant" for message in messages):
                raise TemplateError("the last answer is found in a rendering without it")
            learned = learned[-1:]
        return _segments(text, marking.tokens(marked), learned), made


class _Marking:
    """A template with marks of one range."""

    def __init__(
        self, template: str, special_tokens: Mapping[str, str], names: Collection[str], written: Iterable[str], first: int
    ) -> None:
        marks = self.marks = Marks([*written, *special_tokens.values()], first)
        self._token = token_pattern(names, marks)
        environment = marking_environment(marks, ChatEnvironment)
        marked_tokens = {name: marks.marked(token) for name, token in special_tokens.items()}
        self._render = Renderer(environment, mark_tree(environment.parse(template), marks), marked_tokens)
        self._template, self._variables = template, marked_tokens
        has_tags = _GENERATION.search(template) is not None
        self._turns = None if has_tags else find_turns(self._render_for_turns, self._token)
        self.finds_answers = has_tags or self._turns is not None

    def tokens(self, marked: str) -> list[Span]:
        return [found.span() for found in self._token.finditer(marked)]

    def without_texts_in_tokens(self, marked: str, messages: list[Any], tools: list[Any] | None) -> str:
        """A rendering in which a role alone completes control tokens ("<|" + message.role + "|>"), no other text of the
        conversation. Raises TemplateError where this is not known."""
        if not any(has_role(found[0]) for found in self._token.finditer(marked)):
            return marked
        other = self.rendered(without_role_words(messages), without_role_words(tools))[0]
        if not is_but_for_roles(marked, other):
            raise TemplateError("the template reads names of roles in texts, so control tokens cannot be told from these")
        return other

    def rendered(self, messages: list[Any], tools: list[Any] | None) -> tuple[str, list[Span]]:
        """A conversation with marks, and what is between `{% generation %}` and its end."""
        return self._without_borders(self._render(messages, tools))

    @cached_property
    def _render_form(self) -> FormRenderer:
        """Compiled when the first conversation needs it: planning does not, nor do the marks of other ranges."""
        return FormRenderer(self._template, self._variables, self.marks)

    def rendered_form(self, messages: list[Any], tools: list[Any] | None) -> tuple[str, list[Span]]:
        """As `rendered`, of a form. Raises TemplateError also where the template reads a content."""
        return self._without_borders(self._render_form(messages, tools)[0])

    def _render_for_turns(
        self, messages: list[Any], tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> str:
        return self.marks.with_marked_role(self._render(messages, tools, add_generation_prompt))

    def learned(self, messages: list[Any], tools: list[Any] | None, marked: str, spans: list[Span], learn: Learn) -> list[Span]:
        """What the assistant wrote, or its last message."""
        answers = [number for number, message in enumerate(messages) if message.get("role") == "assistant"]
        if self._turns is not None:
            spans = self._found_spans(self._turns, messages, marked, len(answers))
        if learn == "assistant" or not spans or not answers:
            return spans
        if len(spans) == len(answers):
            return spans[-1:]
        try:
            before = self._render_for_turns(messages[: answers[-1]], tools)
        except TemplateError:  # as of a conversation without messages
            return spans[-1:]
        before_spans = self._without_borders(before)[1] if self._turns is None else self._turns.spans(before)
        return spans[min(len(before_spans), len(spans) - 1) :]

    def _found_spans(self, turns: Turns, messages: list[Any], marked: str, num_answers: int) -> list[Span]:
        if not turns.knows_tools and any(message.get("role") in ("tool", "function") for message in messages):
            raise TemplateError(
                "the results of tools cannot be told from answers in this template, which has no {% generation %}"
            )
        spans = turns.spans(self.marks.with_marked_role(marked))
        if len(spans) < num_answers:
            raise TemplateError(f"found the beginnings of {len(spans)} of {num_answers} answers in the rendering")
        return spans

    def _without_borders(self, rendered: str) -> tuple[str, list[Span]]:
        begin, end = self.marks.borders
        if begin not in rendered:
            return rendered, []
        before, *parts = rendered.split(begin)
        texts, spans, place = [before], [], len(before)
        for part in parts:
            answer, _, behind = part.partition(end)
            spans.append((place, place + len(answer)))
            place += len(answer) + len(behind)
            texts += [answer, behind]
        return "".join(texts), spans


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """A message as transformers gives it to templates: without keys of null, and reasoning under all its names."""
    given = {key: value for key, value in message.items() if value is not None} if None in message.values() else message
    for key in _REASONING:
        if key in given:
            return {"thinking": given[key], **given, "reasoning_content": given[key]}
    return given


def _segments(text: str, tokens: list[Span], learned: list[Span]) -> list[dict[str, Any]]:
    """`tokens`, `learned`: ascending, apart. A control token that is learned in part is learned."""
    borders = [place for span in learned for place in span]  # behind an odd number of them text is learned
    segments, place, passed, count = [], 0, 0, len(borders)
    for start, stop in [*tokens, (len(text), len(text))]:
        while place < start:
            while passed < count and borders[passed] <= place:
                passed += 1
            cut = min(start, borders[passed]) if passed < count else start
            segments.append({"text": text[place:cut], "learn": passed % 2 == 1})
            place = cut
        if start < stop:
            while passed < count and borders[passed] <= start:
                passed += 1
            is_learned = passed % 2 == 1 or (passed < count and borders[passed] < stop)
            segments.append({"token": text[start:stop], "learn": is_learned})
            place = stop
    return segments
