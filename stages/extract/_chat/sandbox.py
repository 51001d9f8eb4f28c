"""The sandbox in which chat templates run, with what `transformers` gives to them (`utils/chat_template_utils.py`).

A rendering depends on its conversation alone: `strftime_now` always gives the same day, and a template has
neither loader nor files. Bounded are the rounds of its loops, a call counted as ten (`MAX_STEPS`), which bounds
its time; each `range`; and what it writes (`MAX_CHARS`). Not bounded is the memory of strings within an
expression, such as `x ~ x` in a loop.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, cast

from jinja2 import nodes
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from datapipe.errors import DatapipeError

TODAY = datetime(2024, 7, 26)
"""The day that templates write. Those of Llama 3.1 take the same where there is no clock."""

MAX_STEPS = 2_000_000  # some seconds
_STEPS_OF_CALL = 10
COUNTED = "counted_rounds"  # a filter
MAX_CHARS = 2**25

_OF_DICTS = frozenset(dir(dict))
_OF_TEXTS = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))
_VARIABLES = {"_loop_vars", "_block_vars"}  # which calls get from the library
_SHOWN_CHARS = 200


CallMethod = Callable[[str, str, tuple[Any, ...]], Any]


class TemplateError(DatapipeError):
    """A template refuses a conversation, or fails on it."""


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Parses and runs templates. `borders`: what is written before and behind each `{% generation %}` block. `call_method`:
    calls a method of a text, by name.

    All are of one class: CPython specialises its code by classes, and two of them by turns took 1.7 times as long."""

    def __init__(self, borders: tuple[str, str] = ("", ""), call_method: CallMethod | None = None) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.borders = borders
        self._call_method = call_method or _call_method
        self.steps = 0
        self._safe: dict[tuple[type, str], bool] = {}
        self.filters.update({"tojson": to_json, COUNTED: self._counted})
        self.globals.update({"raise_exception": _refuse, "strftime_now": TODAY.strftime, "dict": _new_dict})

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the library, which looks in a dict only after an error."""
        if type(obj) is dict and attribute not in _OF_DICTS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if type(obj) is str and attribute in _OF_TEXTS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """As the library, which decides by the type of the object."""
        key = (type(obj), attr)
        if key not in self._safe:
            self._safe[key] = super().is_safe_attribute(obj, attr, value)
        return self._safe[key]

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._count(_STEPS_OF_CALL)
        if type(getattr(called, "__self__", None)) is str and kwargs.keys() <= _VARIABLES:
            return self._call_method(called.__self__, called.__name__, args)
        return super().call(context, called, *args, **kwargs)

    def _counted(self, iterable: Any) -> Any:
        try:
            self._count(len(iterable))
        except TypeError:
            return self._counting(iterable)
        return iterable

    def _counting(self, iterable: Iterable[Any]) -> Iterable[Any]:
        for item in iterable:
            self._count(1)
            yield item

    def _count(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise JinjaError(f"found more than {MAX_STEPS} rounds of loops and calls in one conversation")


class Renderer:
    """A compiled template with its variables."""

    def __init__(self, environment: ChatEnvironment, tree: nodes.Template, variables: Mapping[str, str]) -> None:
        tree = _Counting().visit(tree)
        tree.set_environment(environment)
        self._environment, self._template = environment, environment.from_string(tree)
        self._variables = {**self._template.globals, **variables, "documents": None}

    def __call__(self, messages: list[Any], tools: list[Any] | None = None, add_generation_prompt: bool = False) -> str:
        """What the template writes. Raises TemplateError."""
        self._environment.steps = num_chars = 0
        blocks = []
        given = {**self._variables, "messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        try:
            for block in self._template.root_render_func(self._template.new_context(given, shared=True)):
                blocks.append(block)
                num_chars += len(block)
                if num_chars > MAX_CHARS:
                    raise JinjaError(f"found more than {MAX_CHARS} characters in one conversation")
        except MemoryError:
            raise
        except Exception as error:  # a template may raise anything
            kind = "" if type(error) is JinjaError else f"{type(error).__name__}: "
            raise TemplateError(f"{kind}{' '.join(str(error).split())[:_SHOWN_CHARS]}") from error
        return "".join(blocks)


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: what an assistant writes."""

    tags = {"generation"}  # noqa: RUF012 the type of the library
    environment: ChatEnvironment

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True))
        before, behind = (nodes.Output([nodes.TemplateData(border)]) for border in self.environment.borders)
        return [node.set_lineno(line) for node in (before, body, behind)]


class _Counting(NodeTransformer):
    """Counts the rounds of each loop."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 the name of the library
        node.iter = filtered(cast(nodes.Expr, node.iter), COUNTED)
        return self.generic_visit(node)


def filtered(node: nodes.Expr, name: str) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _call_method(text: str, name: str, args: tuple[Any, ...]) -> Any:
    return getattr(text, name)(*args)


def _refuse(message: str) -> None:
    raise JinjaError(message)


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """In the place of the class, whose methods change dicts that the template may not change."""
    return dict(*args, **kwargs)


def to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    if type(value) is str and not ensure_ascii:
        return encode_basestring(value)
    between = separators if separators is None else tuple(separators)
    return _encoder(ensure_ascii, indent, between, sort_keys).encode(value)


@lru_cache
def _encoder(ensure_ascii: bool, indent: Any, separators: Any, sort_keys: bool) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
