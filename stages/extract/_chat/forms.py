"""Renders conversations of one form once, where the template reads none of their texts.

    roles: system, user, assistant ─▶ rendered with a stand-in for each text ─▶ segments with gaps
                                                    └─ reads a stand-in ▶ no form
    a conversation of this form    ─▶ its texts in the gaps (`filling.py`)

What a template compares, cuts, counts, encodes or calls a method of would depend on the text. `FormEnvironment`
refuses all of these for texts with a stand-in, so a rendering that passes depends on the form alone: which roles
and members there are, and which texts are empty or white space. Two readings give other stand-ins: of the text
without the white space around it, and of what `tojson` makes of values. Tools, and arguments of calls, stand in as
a whole.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any, NamedTuple, NoReturn

from jinja2 import nodes
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.runtime import Macro, Undefined
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from stages.extract._chat.filling import ESCAPED, RAW, STRIPS_END, STRIPS_START, Form, Gap
from stages.extract._chat.marks import STRIPS, Marks, has_private, mark_tree, marking_environment
from stages.extract._chat.sandbox import COUNTED, ChatEnvironment, Renderer, TemplateError, filtered, to_json

_FIRST_STAND_IN, _FIRST_MADE = 0xF0000, 0xF8000
_STAND_INS = re.compile("([\U000f0000-\U000fffff])")
_SURROGATES = re.compile("[\ud800-\udfff]")
_OBJECT = "\U000fffff"
_QUOTED = re.compile(f'"{_OBJECT}(.)"')  # an object in what `to_json` writes
_SPELLED = re.compile(r"\\U000f[0-9a-f]{4}")  # a stand-in in what Python writes for a list or an object
MOST_MESSAGES = 256
_MOST_SLOTS = (_FIRST_MADE - _FIRST_STAND_IN) // 2
_MOST_FORMS = 1024
MOST_CHARS = 1 << 20
_SLICED, _KEYS = "sliced", "keys_of"  # filters

_READS = "the template reads a content"

_OF_KINDS = ("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "callable")
"""Tests that ask for the type of a value."""
_KEEPING = ("string", "default", "d")
"""Filters that give a text as it is."""
_OF_LISTS = ("length", "count", "first", "last", "list", "default", "d", COUNTED)

_JSON_OPTIONS = {"ensure_ascii": False, "indent": None, "separators": None, "sort_keys": False}
"""Those of `to_json`, with which objects are written (`Forms.filled`)."""

EMPTY, WHITE, OTHER = range(3)
"""Classes of texts: of the second kind are those of white space alone."""

Segment = dict[str, Any]
Shape = tuple[tuple[str, str, Any], ...]
"""The members of a message: the name and kind of each, and its role, the class of its text, the shapes of its calls, or
whether it has arguments."""

MakeSegments = Callable[[list[dict[str, Any]], list[Any] | None, Any], tuple[list[Segment], Sequence[Any]]]
"""(messages, tools, learn) ─▶ segments, and what its further stand-ins are (`FormEnvironment.made`). Raises TemplateError for
a template that reads a stand-in."""


class FormKey(NamedTuple):
    """What the rendering of conversations may depend on."""

    messages: tuple[Shape, ...]
    num_tools: int


class Opaque(dict[str, Any]):
    """Stands for an object that is not empty. It refuses to be read."""

    def __init__(self, number: int) -> None:
        super().__init__(number=number)
        self.number = number

    def __bool__(self) -> bool:
        return True


class Written(NamedTuple):
    """What `to_json` makes of an object, with other options than its own."""

    slot: int
    options: tuple[tuple[str, Any], ...]


def _refuse(*_: Any) -> NoReturn:
    raise JinjaError(_READS)


for _name in ("__iter__", "__len__", "__getitem__", "__contains__", "__eq__", "__str__", "__repr__", "keys", "values", "items"):
    setattr(Opaque, _name, _refuse)


class Forms:
    """The forms of a template, each made when a conversation first has it."""

    def __init__(self, make: MakeSegments) -> None:
        self._make = make
        self.of = lru_cache(_MOST_FORMS)(self._form)
        """(key, learn) ─▶ the form; None where it does not decide the segments."""

    def filled(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None, learn: str
    ) -> tuple[Form, list[str]] | None:
        """The form of a conversation and the texts for its gaps; None where its form does not decide its segments."""
        leaves: list[Any] = []
        key = key_of(messages, tools, leaves)
        form = None if key is None else self.of(key, learn)
        if form is None:
            return None
        texts = [to_json(leaf) if isinstance(leaf, dict) else leaf for leaf in leaves]
        texts += [to_json(leaves[each.slot], **dict(each.options)) for each in form.made]
        return (form, texts) if sum(map(len, texts)) < MOST_CHARS else None

    def _form(self, key: FormKey, learn: str) -> Form | None:
        numbers = iter(range(_MOST_SLOTS))
        messages = [_stand_ins(shape, numbers) for shape in key.messages]
        tools = [Opaque(next(numbers)) for _ in range(key.num_tools)] or None
        num_leaves = next(numbers)
        try:
            segments, made = self._make(messages, tools, learn)
        except TemplateError:  # each conversation has its own error
            return None
        written = [each for each in made if isinstance(each, Written)]
        gaps = [each if isinstance(each, Gap) else Gap(num_leaves + written.index(each), RAW) for each in made]
        return Form.of([(segment, _parts_of(segment.get("text", ""), gaps)) for segment in segments], written)


def key_of(messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None, leaves: list[Any]) -> FormKey | None:
    """The form of a conversation, and its texts and objects as `leaves`; None where it is too large, or has other members, a
    tool without any, or a character that a mark needs."""
    if len(messages) > MOST_MESSAGES:
        return None
    shapes = tuple([_shape_of(message, leaves) for message in messages])
    leaves += tools or ()
    if not all(tools or ()) or len(leaves) > _MOST_SLOTS - 1 or not all(map(_can_be_filled, leaves)):
        return None
    return FormKey(shapes, len(tools or ()))


def _shape_of(value: Mapping[str, Any], leaves: list[Any]) -> Shape:
    """Of a message or a call, whose texts and objects become `leaves`."""
    shape: list[tuple[str, str, Any]] = []
    for key, each in value.items():
        if key in ("role", "type"):
            shape.append((key, "=", each))
        elif type(each) is str:
            shape.append((key, "text", EMPTY if not each else WHITE if each.isspace() else OTHER))
            leaves.append(each)
        elif type(each) is dict and key != "arguments":
            shape.append((key, "object", _shape_of(each, leaves)))
        elif type(each) is list and all(type(item) is dict for item in each):
            shape.append((key, "list", tuple([_shape_of(item, leaves) for item in each])))
        else:
            shape.append((key, "arguments", bool(each)))
            leaves.append(each)
    return tuple(shape)


def _can_be_filled(leaf: Any) -> bool:
    """Whether a leaf is an object, or a text without a character that a mark needs."""
    if type(leaf) is not str:
        return type(leaf) is dict
    return leaf.isascii() or not (has_private(leaf) or _SURROGATES.search(leaf))


def _stand_ins(shape: Shape, numbers: Iterator[int]) -> dict[str, Any]:
    """What stands for a message or a call. The texts and objects of conversations have the same `numbers`."""
    made: dict[str, Any] = {}
    for key, kind, each in shape:
        if kind == "=":
            made[key] = each
        elif kind == "object":
            made[key] = _stand_ins(each, numbers)
        elif kind == "list":
            made[key] = [_stand_ins(item, numbers) for item in each]
        else:
            number = next(numbers)
            if kind == "text":
                made[key] = "" if each == EMPTY else chr(_FIRST_STAND_IN + 2 * number + (each == WHITE))
            else:
                made[key] = Opaque(number) if each else {}
    return made


def _parts_of(text: str, gaps: Sequence[Gap]) -> list[str | Gap]:
    """A text between gaps. `gaps`: those of further stand-ins."""
    parts = _STAND_INS.split(text)
    return [_gap_of(ord(part), gaps) if number % 2 else part for number, part in enumerate(parts) if part]


def _gap_of(code: int, gaps: Sequence[Gap]) -> Gap:
    return Gap((code - _FIRST_STAND_IN) // 2, RAW) if code < _FIRST_MADE else gaps[code - _FIRST_MADE]


def can_have_forms(written: str) -> bool:
    """Whether a template spells no stand-in itself."""
    return _STAND_INS.search(written) is None


class FormEnvironment(ChatEnvironment):
    """Refuses what reads a stand-in."""

    intercepted_binops = frozenset(["%"])

    def begin(self) -> None:
        """Forgets the stand-ins that renderings before have made."""
        self.made: list[Any] = []
        """What further stand-ins are, each a `Gap` or `Written`."""

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if type(owner) is str and _holds(owner):
            if args or name not in STRIPS:
                raise _refusal()
            return self._stripped(owner, name)
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

    def _stripped(self, text: str, name: str) -> str:
        text = getattr(text, name)()
        if name != "rstrip":
            text = self._at_edge(text[0], STRIPS_START) + text[1:]
        return text if name == "lstrip" else text[:-1] + self._at_edge(text[-1], STRIPS_END)

    def _at_edge(self, character: str, strips: int) -> str:
        """A character from whose side white space is stripped."""
        code = ord(character)
        if code < _FIRST_STAND_IN:
            return character
        gap = _gap_of(code, self.made)
        if (code < _FIRST_MADE and code % 2) or (isinstance(gap, Gap) and gap.strips & ESCAPED):  # white space alone
            raise _refusal()
        return self._made(gap._replace(strips=gap.strips | strips)) if isinstance(gap, Gap) else character

    def _made(self, what: Any) -> str:
        """A stand-in for it."""
        if what not in self.made:
            self.made.append(what)
        number = self.made.index(what)
        if number >= _MOST_SLOTS:
            raise _refusal()
        return chr(_FIRST_MADE + number)

    def _to_json(self, value: Any, *args: Any, **kwargs: Any) -> str:
        if not _holds(value):
            return to_json(value, *args, **kwargs)
        if args or _holds(list(kwargs.values())) or not kwargs.keys() <= _JSON_OPTIONS.keys():
            raise _refusal()
        options = {name: each for name, each in kwargs.items() if each is not _JSON_OPTIONS[name]}
        if options and isinstance(value, Opaque):
            return self._made(Written(value.number, tuple(options.items())))
        if "ensure_ascii" in options:
            raise _refusal()
        return _QUOTED.sub(r"\1", to_json(self._in_json(value, can_have_objects=not options), **options))

    def _in_json(self, value: Any, *, can_have_objects: bool) -> Any:
        """A value with other stand-ins: of texts as JSON has them between quotes, and of objects as JSON."""
        if isinstance(value, str):
            return _STAND_INS.sub(self._escaped, value)
        if isinstance(value, Opaque) and can_have_objects:
            return _OBJECT + self._made(Gap(value.number, RAW))
        if isinstance(value, dict) and not isinstance(value, Opaque) and not _holds(list(value)):
            return {key: self._in_json(each, can_have_objects=can_have_objects) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._in_json(each, can_have_objects=can_have_objects) for each in value]
        if isinstance(value, int | float | None):
            return value
        raise _refusal()

    def _escaped(self, found: re.Match[str]) -> str:
        gap = _gap_of(ord(found[0]), self.made)
        if not isinstance(gap, Gap) or gap.strips & ESCAPED:
            raise _refusal()
        return self._made(gap._replace(strips=gap.strips | ESCAPED))

    def refuse_reading(self) -> None:
        """Takes the place of filters and tests with those that refuse stand-ins."""
        for name, function in self.filters.items():
            self.filters[name] = self._refusing(function, name)
        for name, function in self.tests.items():
            if name not in _OF_KINDS:
                self.tests[name] = self._refusing(function, "")
        self.filters |= {_SLICED: _sliced, _KEYS: _keys, "tojson": self._to_json}

    def _refusing(self, function: Any, name: str) -> Any:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            given = args[1:] if getattr(function, "jinja_pass_arg", None) is not None else args
            value = given[0] if given else None
            if type(value) is str and name == "trim" and len(given) == 1 and _holds(value):
                return self._stripped(value, "strip")
            if name in (_KEEPING if type(value) is str else _OF_LISTS):
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
    if isinstance(value, Opaque):
        return True
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


class FormRenderer:
    """Renders forms, with marks if any are given."""

    def __init__(self, template: str, variables: Mapping[str, str], marks: Marks | None = None) -> None:
        environment = FormEnvironment() if marks is None else marking_environment(marks, FormEnvironment)
        environment.refuse_reading()
        tree = environment.parse(template)
        tree = _Watching().visit(tree if marks is None else mark_tree(tree, marks))
        self._environment, self._render = environment, Renderer(environment, tree, variables)

    def __call__(self, messages: list[Any], tools: list[Any] | None) -> tuple[str, list[Any]]:
        """The rendering, and what further stand-ins in it are. Raises TemplateError where the template reads a stand-in."""
        self._environment.begin()
        text = self._render(messages, tools)
        if _SPELLED.search(text):
            raise TemplateError(_READS)
        return text, self._environment.made
