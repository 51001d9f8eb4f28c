"""Marks what a template writes, and nothing that a conversation holds.

    template   '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>'
    rendering  <|im_start|>user⏎I typed <|im_end|><|im_end|>
    marks      ^^^^^^^^^^^^                       ^^^^^^^^^^     the last one is a control token, the one before is text

A mark is a character for private use in the place of another one, from a range of which the conversation
has none. The constants of a template that are written, and the special tokens that are its variables, get
marks instead of all but white space. Constants that are read stay as they are: those of comparisons, keys,
arguments of `split`. What is compared or cut may have marks from before; it is read without them. So
conversations stay as they are while the template reads them. Where a template does read marks all the
same, the rendering differs from the one without marks (`templates.py`).
"""

# ruff: noqa: N802  the names of methods are those of the library

import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from datapipe.errors import UserError
from stages.extract._chat.sandbox import ChatEnvironment, filtered

RANGES = (0xE000, 0xE800, 0xF000)
"""The first characters of ranges of marks."""

_SIZE = 0x800
_PRIVATE = re.compile("[\ue000-\uf7ff]")
_DIRECTIVE = re.compile(r"(%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z%])")  # of the filter `format`
_BEYOND = "\U00010000"  # characters from here on have no marks
_WITHOUT_MARKS = "without_marks"  # a filter
_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation")
_ROLE = re.compile("|".join(_ROLES), re.IGNORECASE)
_ROLE_WORD = re.compile(rf"\b(?:{_ROLE.pattern})\b", re.IGNORECASE)
_GIVEN_AS_IT_IS = ("role", "type")  # members of messages, calls and tools
_ANSWERING_ROLES = ("assistant", "Assistant", "ASSISTANT")

_CASES = ("upper", "lower", "capitalize", "title", "swapcase")
STRIPS, _SPLITS = ("strip", "lstrip", "rstrip"), ("split", "rsplit")
_READING = {
    *("startswith", "endswith", "find", "rfind", "index", "rindex", "count", "partition", "rpartition"),
    *("removeprefix", "removesuffix", "replace", *_CASES, *STRIPS, *_SPLITS),
}
"""Methods of texts whose first argument is read."""

_ALL = 99
_READ_BY_CALLS = {"raise_exception": _ALL, "strftime_now": _ALL, "get": 1}
_READ_BY_FILTERS = {"default": 0, "d": 0, "join": 0, "format": 0, "replace": 1}
"""How many of their arguments calls and filters read; others are written. Calls read none, filters all, if not listed."""


class Marks:
    """A mark for each character that a template may write."""

    def __init__(self, written: Iterable[str], first: int) -> None:
        spelled = "".join(written)
        self._beyond = {each for each in spelled if each >= _BEYOND}
        variants = {*spelled, *spelled.upper(), *spelled.lower()}
        characters = sorted(each for each in variants if each < _BEYOND and not each.isspace())
        if len(characters) > _SIZE - 2:
            raise UserError(f"template: found {len(characters)} different characters, at most {_SIZE - 2} are possible")
        self._marks = {ord(character): first + number for number, character in enumerate(characters)}
        self._characters = {mark: character for character, mark in self._marks.items()}
        self.borders = (chr(first + _SIZE - 2), chr(first + _SIZE - 1))  # around what `{% generation %}` names
        self._range = re.compile(f"[{chr(first)}-{self.borders[1]}]")
        self._table = np.arange(2**16, dtype=np.uint16)  # from UTF-16 to UTF-16
        self._table[list(self._characters)] = list(self._marks)

    def marked(self, text: str) -> str:
        return text.translate(self._marks)

    def unmarked(self, text: str) -> str:
        return text.translate(self._characters)

    def is_marked(self, marked: str, in_utf16: bytes) -> bool:
        """Whether a rendering with marks is that text."""
        return self._table[np.frombuffer(utf16(marked), np.uint16)].tobytes() == in_utf16

    def with_marked_role(self, marked: str) -> str:
        """A rendering in which the role of an answer has marks where it follows a mark: "<|im_start|>" + message.role."""
        for role in _ANSWERING_ROLES:
            if role in marked:
                marked = re.sub(f"{role}(?<={self._range.pattern}{role})", self.marked(role), marked)
        return marked

    def can_write(self, text: str) -> bool:
        return all(character.isspace() or ord(character) in self._marks for character in text)

    def lacks(self, token: str) -> bool:
        """Whether a template may write a token, also around the name of a role, and a character of it has no mark."""
        rest = set(_ROLE.sub("", token))
        beyond = rest & self._beyond
        return bool(beyond) and self.can_write("".join(rest - beyond))

    def without_marks(self, value: Any) -> Any:
        """A value that a template compares."""
        if type(value) is str:
            return value if value.isascii() or self._range.search(value) is None else self.unmarked(value)
        if type(value) in (list, tuple):
            return [self.without_marks(each) if type(each) is str else each for each in value]
        return value

    def call_method(self, text: str, name: str, args: tuple[Any, ...]) -> Any:
        """A method of a text that may have marks, as of the text without them; parts of the text keep theirs."""
        if name not in _READING:
            return getattr(text, name)(*args)
        args = (*map(self.without_marks, args[:1]), *args[1:])
        plain = self.without_marks(text)
        result = getattr(plain, name)(*args)
        if plain is text:
            return result
        if name in _CASES:
            return self.with_marks_of(text, result)
        if name in STRIPS:
            start = 0 if name == "rstrip" else len(plain) - len(plain.lstrip(*args))
            return text[start : start + len(result)]
        if name in _SPLITS and args and args[0]:
            return self._cut(text, result, len(args[0]))
        if name == "replace" and args[0]:
            return args[1].join(self._cut(text, plain.split(args[0], *args[2:]), len(args[0])))
        return result

    def with_marks_of(self, text: str, changed: str) -> str:
        """A text in another case."""
        if len(changed) != len(text):
            return changed
        return "".join(self.marked(new) if ord(old) in self._characters else new for old, new in zip(text, changed))

    def _cut(self, text: str, parts: list[str], num_between: int) -> list[str]:
        ends = accumulate(len(part) + num_between for part in parts)
        return [text[end - num_between - len(part) : end - num_between] for part, end in zip(parts, ends)]


Environment = TypeVar("Environment", bound=ChatEnvironment)


def marking_environment(marks: Marks, kind: type[Environment]) -> Environment:
    """Runs templates with marks."""

    def in_case(change: Callable[[str], str], value: Any) -> str:
        return marks.with_marks_of(str(value), change(marks.without_marks(str(value))))

    environment = kind(marks.borders, marks.call_method)
    filters = environment.filters
    filters.update({name: partial(in_case, filters[name]) for name in _CASES if name in filters})
    filters["replace"] = lambda value, *args: marks.call_method(str(value), "replace", args)
    filters[_WITHOUT_MARKS] = marks.without_marks
    return environment


def free_ranges(*values: Any) -> list[int]:
    """The ranges of which nothing in a conversation has a character."""
    found: set[str] = set()
    for value in values:
        _add_private(value, found)
    return [first for first in RANGES if not any(first <= ord(each) < first + _SIZE for each in found)]


def has_private(text: str) -> bool:
    """Whether a text has a character of any range of marks."""
    return _PRIVATE.search(text) is not None


def _add_private(value: Any, found: set[str]) -> None:
    if type(value) is str:
        if not value.isascii():
            found.update(_PRIVATE.findall(value))
    elif isinstance(value, dict):
        for key, each in value.items():
            _add_private(key, found)
            _add_private(each, found)
    elif isinstance(value, list):
        for each in value:
            _add_private(each, found)


def utf16(text: str) -> bytes:
    """Raises UnicodeEncodeError for a lone surrogate."""
    return text.encode("utf-16-le")


def constants(tree: nodes.Template) -> list[str]:
    """All strings in a template."""
    return [
        node.data if isinstance(node, nodes.TemplateData) else node.value
        for node in tree.find_all((nodes.TemplateData, nodes.Const))
        if isinstance(node, nodes.TemplateData) or isinstance(node.value, str)
    ]


def mark_tree(tree: nodes.Template, marks: Marks) -> nodes.Template:
    """Marks what a template writes, for a `marking_environment`."""
    return _Marking(marks).visit(tree)


class _Marking(NodeTransformer):
    """`is_read`: the node is a part of what is read."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def visit_TemplateData(self, node: nodes.TemplateData, is_read: bool = False) -> nodes.Node:
        node.data = self._marks.marked(node.data)
        return node

    def visit_Const(self, node: nodes.Const, is_read: bool = False) -> nodes.Node:
        if isinstance(node.value, str) and not is_read:
            node.value = self._marks.marked(node.value)
        return node

    def visit_Compare(self, node: nodes.Compare, is_read: bool = False) -> nodes.Node:
        node.expr = self._read(node.expr)
        for operand in node.ops:
            operand.expr = self._read(operand.expr)
        return node

    def visit_Test(self, node: nodes.Test, is_read: bool = False) -> nodes.Node:
        node.node = self._read(node.node) if node.args else self.visit(node.node, is_read)
        node.args = [self._read(each) for each in node.args]
        return node

    def visit_Getitem(self, node: nodes.Getitem, is_read: bool = False) -> nodes.Node:
        node.node = self.visit(node.node, is_read)
        node.arg = self.visit(node.arg) if isinstance(node.arg, nodes.Slice) else self._read(node.arg)
        return node

    def visit_Pair(self, node: nodes.Pair, is_read: bool = False) -> nodes.Node:
        node.key, node.value = self._read(node.key), self.visit(node.value, is_read)
        return node

    def visit_Call(self, node: nodes.Call, is_read: bool = False) -> nodes.Node:
        called = node.node = self.visit(node.node, is_read)
        name = called.attr if isinstance(called, nodes.Getattr) else getattr(called, "name", "")
        self._mark_arguments(node, _READ_BY_CALLS.get(name, 0), is_read)
        return node

    def visit_Filter(self, node: nodes.Filter, is_read: bool = False) -> nodes.Node:
        if node.name == "format" and isinstance(node.node, nodes.Const) and isinstance(node.node.value, str):
            parts = _DIRECTIVE.split(node.node.value)
            node.node.value = "".join(part if number % 2 else self._marks.marked(part) for number, part in enumerate(parts))
        elif node.node is not None:  # of a block
            node.node = self.visit(node.node, is_read)
        self._mark_arguments(node, _READ_BY_FILTERS.get(node.name, _ALL), is_read)
        return node

    def _mark_arguments(self, node: nodes.Call | nodes.Filter, num_read: int, is_read: bool) -> None:
        node.args = [
            self._read(each) if number < num_read else self.visit(each, is_read) for number, each in enumerate(node.args)
        ]
        for keyword in node.kwargs:
            keyword.value = self.visit(keyword.value, is_read or num_read > 0 or keyword.key == "attribute")
        for name in ("dyn_args", "dyn_kwargs"):
            if getattr(node, name) is not None:
                setattr(node, name, self.visit(getattr(node, name), is_read))

    def _read(self, node: nodes.Expr) -> nodes.Expr:
        visited = self.visit(node, True)
        return visited if isinstance(visited, nodes.Const) else filtered(visited, _WITHOUT_MARKS)


def token_pattern(names: Collection[str], marks: Marks) -> re.Pattern[str]:
    """Finds the control tokens that a template wrote, in a rendering with marks: the longest first, as tokenizers do. None is
    white space alone: that has no marks. Raises UserError."""
    forms = {form for name in names for form in _forms(name, marks)}
    return re.compile("|".join(map(re.escape, sorted(forms, key=lambda form: (-len(form), form)))) or "(?!)")


def has_role(text: str) -> bool:
    return _ROLE.search(text) is not None


def without_role_words(value: Any) -> Any:
    """Messages or tools as they are, but for words in their texts that are names of roles: those are other letters."""
    if type(value) is str:
        return _ROLE_WORD.sub(_other_letters, value)
    if isinstance(value, dict):
        return {key: each if key in _GIVEN_AS_IT_IS else without_role_words(each) for key, each in value.items()}
    return [without_role_words(each) for each in value] if isinstance(value, list) else value


def is_but_for_roles(text: str, other: str) -> bool:
    """Whether two texts are the same but for names of roles in one of them that are other letters."""
    return _ROLE.sub(_other_letters, text) == _ROLE.sub(_other_letters, other)


def _other_letters(found: re.Match[str]) -> str:
    return "x" * len(found[0])


def _forms(name: str, marks: Marks) -> Iterable[str]:
    """How a template may write a control token: all of it, or around the name of a role ("<|" + message.role + "|>")."""
    if not name.strip():
        return
    if marks.lacks(name):
        raise UserError(
            f"template: it writes the control token {name!r}, and characters from U+10000 on cannot be told from those of "
            "texts. Expected control tokens of other characters"
        )
    if marks.can_write(name):
        yield marks.marked(name)
    for role in _ROLES:
        for found in re.finditer(role, name, re.IGNORECASE):
            before, behind = name[: found.start()], name[found.end() :]
            if before.strip() and behind.strip() and marks.can_write(before + behind):
                yield marks.marked(before) + found[0] + marks.marked(behind)
