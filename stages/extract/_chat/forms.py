"""Renders conversations of one form once, where the template reads none of their texts.

    roles: system, user, assistant ─▶ rendered with a stand-in for each content ─▶ segments with gaps
                                                    └─ reads a stand-in ▶ no form
    a conversation of this form    ─▶ segments with its contents in the gaps

What a template compares, cuts, counts, encodes or calls a method of would depend on the content.
`FormEnvironment` refuses all of these for texts with a stand-in, so a rendering that passes depends on the form
alone: which roles there are, and which contents are empty. To strip a text without white space around it changes
nothing, so contents that all are such have forms by themselves.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any, NamedTuple

from jinja2 import nodes
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.runtime import Macro, Undefined
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from stages.extract._chat.marks import STRIPS, Marks, has_private, mark_tree, marking_environment
from stages.extract._chat.sandbox import COUNTED, ChatEnvironment, Renderer, TemplateError, filtered

_FIRST_STAND_IN = 0xF0000
_STAND_INS = re.compile("([\U000f0000-\U000fffff])")
_SPELLED = re.compile(r"\\U000f[0-9a-f]{4}")  # a stand-in in what Python writes for a list or an object
_MOST_MESSAGES = 64
_MOST_FORMS = 1024
_MOST_CHARS = 1 << 20
_SLICED, _KEYS = "sliced", "keys_of"  # filters

_READS = "the template reads a content"

_OF_KINDS = ("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "callable")
"""Tests that ask for the type of a value."""
_KEEPING = ("string", "default", "d")
"""Filters that give a text as it is."""
_OF_LISTS = ("length", "count", "first", "last", "list", "default", "d", COUNTED)

Segment = dict[str, Any]
FormRenderer = Callable[[list[dict[str, Any]], bool], str]
"""(messages, whether texts are stripped) ─▶ rendering. Raises TemplateError for a template that reads a stand-in."""

MakeSegments = Callable[[list[dict[str, Any]], str, bool], list[Segment]]
"""(messages, learn, whether texts are stripped) ─▶ segments. Raises TemplateError for a template that reads a stand-in."""


class FormKey(NamedTuple):
    """What the rendering of conversations may depend on."""

    messages: tuple[tuple[str, bool], ...]  # role, and whether the content is empty
    is_stripped: bool  # whether no content has white space around it


class Forms:
    """The forms of a template, each made when a conversation first has it."""

    def __init__(self, make: MakeSegments) -> None:
        self._make = make
        self._made = lru_cache(_MOST_FORMS)(self._form)

    def filled(self, messages: Sequence[dict[str, Any]], learn: str) -> list[Segment] | None:
        """The segments of a conversation; None where its form does not decide them."""
        key = _key_of(messages)
        form = None if key is None else self._made(key, learn)
        if form is None:
            return None
        return [
            segment if gaps is None else {"text": _joined(gaps, messages), "learn": segment["learn"]} for segment, gaps in form
        ]

    def _form(self, key: FormKey, learn: str) -> list[tuple[Segment, list[Any] | None]] | None:
        messages = [
            {"role": role, "content": "" if is_empty else chr(_FIRST_STAND_IN + number)}
            for number, (role, is_empty) in enumerate(key.messages)
        ]
        try:
            segments = self._make(messages, learn, key.is_stripped)
        except TemplateError:  # each conversation has its own error
            return None
        return [(segment, _gaps_of(segment.get("text", ""))) for segment in segments]


def _key_of(messages: Sequence[dict[str, Any]]) -> FormKey | None:
    """The form of a conversation; None where a message has more than its role and content, or a character that a mark needs."""
    if len(messages) > _MOST_MESSAGES:
        return None
    listed, is_stripped, num_chars = [], True, 0
    for message in messages:
        content = message.get("content")
        if len(message) != 2 or type(content) is not str or type(message.get("role")) is not str:
            return None
        if not content.isascii() and (has_private(content) or not _is_unicode(content)):
            return None
        is_stripped = is_stripped and not (content[:1].isspace() or content[-1:].isspace())
        listed.append((message["role"], not content))
        num_chars += len(content)
    if num_chars > _MOST_CHARS:
        return None
    return FormKey(tuple(listed), is_stripped)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _gaps_of(text: str) -> list[Any] | None:
    """Texts, and numbers of messages whose content stands between; None for a text without a stand-in."""
    parts = _STAND_INS.split(text)
    if len(parts) == 1:
        return None
    return [ord(part) - _FIRST_STAND_IN if number % 2 else part for number, part in enumerate(parts)]


def _joined(gaps: Sequence[Any], messages: Sequence[dict[str, Any]]) -> str:
    return "".join([part if type(part) is str else messages[part]["content"] for part in gaps])


def can_have_forms(written: str) -> bool:
    """Whether a template spells no stand-in itself."""
    return _STAND_INS.search(written) is None


class FormEnvironment(ChatEnvironment):
    """Refuses what reads a stand-in."""

    intercepted_binops = frozenset(["%"])
    allows_strip = False

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if type(owner) is str and _holds(owner):
            self._check_strip(not args)
            return getattr(owner, name)()
        passes = isinstance(called, Macro) or called is Namespace
        if not passes and (_holds(args) or _holds([value for key, value in kwargs.items() if not key.startswith("_")])):
            raise _refusal()
        return super().call(context, called, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is str and attribute not in STRIPS and _holds(obj):
            raise _refusal()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is str and _holds(obj):
            raise _refusal()
        return super().getitem(obj, argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if _holds(left) or _holds(right):
            raise _refusal()
        return super().call_binop(context, operator, left, right)

    def _check_strip(self, is_strip: bool) -> None:
        if not (is_strip and self.allows_strip):
            raise _refusal()

    def refuse_reading(self) -> None:
        """Takes the place of filters and tests with those that refuse stand-ins."""
        for name, function in self.filters.items():
            self.filters[name] = self._refusing(function, name)
        for name, function in self.tests.items():
            if name not in _OF_KINDS:
                self.tests[name] = self._refusing(function, "")
        self.filters |= {_SLICED: _sliced, _KEYS: _keys}

    def _refusing(self, function: Any, name: str) -> Any:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            given = args[1:] if getattr(function, "jinja_pass_arg", None) is not None else args
            value = given[0] if given else None
            if type(value) is str and name == "trim" and len(given) == 1:
                if _holds(value):
                    self._check_strip(True)
            elif name in (_KEEPING if type(value) is str else _OF_LISTS):
                pass
            elif _holds(given) or _holds(list(kwargs.values())):
                raise _refusal()
            return function(*args, **kwargs)

        return called


def _refusal() -> JinjaError:
    return JinjaError(_READS)


def _sliced(value: Any) -> Any:
    if type(value) is str and _holds(value):
        raise _refusal()
    return value


def _keys(value: Any) -> Any:
    return list(value) if isinstance(value, dict) else value


def _holds(value: Any) -> bool:
    """Whether a value may have a stand-in anywhere."""
    if type(value) is str:
        return not value.isascii() and _STAND_INS.search(value) is not None
    if isinstance(value, dict):
        return any(_holds(each) for each in value.values()) or any(_holds(each) for each in value)
    if isinstance(value, list | tuple):
        return any(map(_holds, value))
    return isinstance(value, Iterable) and not isinstance(value, Undefined)  # what can be read only once, and views


class _Watching(NodeTransformer):
    """Slices go past the environment of the library, and `in` reads the keys of an object alone."""

    # ruff: noqa: N802  the names of methods are those of the library

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        if isinstance(node.arg, nodes.Slice):
            node.node = filtered(node.node, _SLICED)
        return self.generic_visit(node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        for operand in node.ops:
            if operand.op in ("in", "notin") and isinstance(operand.expr, nodes.Filter) and operand.expr.node is not None:
                operand.expr.node = filtered(operand.expr.node, _KEYS)
        return self.generic_visit(node)


def form_renderer(template: str, marks: Marks, variables: Mapping[str, str]) -> FormRenderer:
    """Renders forms with marks."""
    environment = marking_environment(marks, FormEnvironment)
    environment.refuse_reading()
    tree = _Watching().visit(mark_tree(environment.parse(template), marks))
    render = Renderer(environment, tree, variables)

    def rendered(messages: list[Any], is_stripped: bool) -> str:
        environment.allows_strip = is_stripped
        text = render(messages)
        if _SPELLED.search(text):
            raise TemplateError(_READS)
        return text

    return rendered
