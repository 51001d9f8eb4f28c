"""Parses YAML 1.2 text to plain data, with the line of every value.

    text ── compose ──▶ node graph ── walk ──▶ data    dict, list, str, int, float, bool, None
                                           └─▶ lines   {("sources", "web", "weight"): 14}

As in YAML 1.2, `no` is text and `1e9` is a number. Keys are text, so 2024 is a valid name of a source; dates are text too.
Anchors, aliases and merge keys work: a value that comes from one has the line where it is written. Refused: repeated keys,
tags, other versions of YAML, text that no file can hold, more than 64 levels, and numbers of more than 300 digits.

The walk reads the marks of ruamel's nodes: the `.lc` of its round-trip loader lacks the lines of merged values.

A mixture that a program builds becomes plain data too (`plain_data`), and is checked as one in a file is from there on.
"""

import io
import os
import re
import warnings
from collections.abc import Mapping
from numbers import Integral, Rational, Real
from pathlib import Path
from shlex import quote
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import Scanner, ScannerError

from datapipe.dataclass import dataclass
from datapipe.errors import UserError

KeyPath = tuple[str | int, ...]  # the keys and list indexes that lead to a value
MAX_VALUES = 100_000
"""Limit on the number of values, because a few nested aliases can expand to billions."""

MAX_LEVELS = 64
LARGEST_NUMBER = 10**300  # A float can hold it, and Python prints it
_TAG = "tag:yaml.org,2002:"
_TYPED_SCALARS = (f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool", f"{_TAG}null")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def dotted(path: KeyPath) -> str:
    """A path as messages and --set spell it: `stages[2]`, `sources.web.path`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


@dataclass(frozen=True, kw_only=True, slots=True)
class YamlText:
    """Plain data, and the line of every mapping key and list item, counted from 1."""

    data: Any
    lines: Mapping[KeyPath, int]


def read_yaml_mapping(path: str | Path) -> YamlText:
    """The mapping in a file. Raises UserError with file and line for a file that cannot be read or holds no mapping."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: no such file. Expected a mixture file; `datapipe init {quote(str(path))}` writes one to start from."
        ) from error
    except IsADirectoryError as error:
        raise UserError(f"{path}: found a folder, expected a mixture file.") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: found the byte 0x{content[error.start]:02x}, expected text in UTF-8.") from error
    parsed = parse_yaml(text, str(path))
    if parsed.data is None:
        raise UserError(f"{path}:1: the file is empty. Expected a mixture; `datapipe init FILE` writes one to start from.")
    if not isinstance(parsed.data, dict):
        line = min(parsed.lines.values(), default=1)
        kind = "a list" if isinstance(parsed.data, list) else "a single value"
        raise UserError(f"{path}:{line}: found {kind}, expected a mapping with keys such as name, output and sources.")
    return parsed


def parse_yaml(text: str, name: str) -> YamlText:
    """The data in YAML text of any shape. `name`: the file or command-line option, for error messages."""
    loader = YAML(typ="safe", pure=True)
    loader.Scanner = _Scanner
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML 1.2 lets a later anchor reuse the name
            root = loader.compose(text)
        walk = _Walk(name, loader.constructor)
        data = None if root is None else walk.value(root, ())
    except MarkedYAMLError as error:
        raise UserError(f"{name}:{_line_of(error)}: invalid YAML: {_problem_of(error)}.") from error
    except ReaderError as error:
        line = len(f"{text[: error.position]}.".splitlines())
        raise UserError(f"{name}:{line}: invalid YAML: {str(error).splitlines()[0]}.") from error
    return YamlText(data=data, lines=walk.lines)


def _line_of(error: MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return 1 if mark is None else mark.line + 1


def _problem_of(error: MarkedYAMLError) -> str:
    problem = " ".join(part for part in (error.context, error.problem) if part)
    hint = " (separate and indent with spaces)" if "'\\t'" in problem else ""
    mark = error.problem_mark
    return problem + hint + ("" if mark is None else f", at column {mark.column + 1}")


def dump_yaml(data: Any) -> str:
    """Plain data as YAML, in its own order, with quotes around every text that needs them."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style, writer.width, writer.allow_unicode = False, 10_000, True
    writer.sort_base_mapping_type_on_output = False  # pyright: ignore[reportAttributeAccessIssue]
    stream = io.StringIO()
    writer.dump(data, stream)
    return stream.getvalue()


class _Scanner(Scanner):
    """Refuses, with the line, what YAML has and no mixture needs. Takes tabs within plain text, which ruamel refuses."""

    def fetch_more_tokens(self) -> Any:
        if len(self.indents) + self.flow_level > MAX_LEVELS:
            raise self._refusal(f"found more than {MAX_LEVELS} levels")
        try:
            return super().fetch_more_tokens()
        except (ValueError, OverflowError) as error:  # of chr()
            raise self._refusal("found an escape of no Unicode character") from error

    def fetch_tag(self) -> Any:
        raise self._refusal("found a tag, expected a value without one; quotes make text of it")

    def scan_yaml_directive_value(self, start_mark: Any) -> Any:
        version = super().scan_yaml_directive_value(start_mark)
        if version != (1, 2):
            raise self._refusal(f"found %YAML {version[0]}.{version[1]}, expected YAML 1.2. Remove the line")
        return version

    def scan_plain_spaces(self, indent: Any, start_mark: Any) -> Any:
        num_blanks = 0
        while self.reader.peek(num_blanks) in (" ", "\t"):
            num_blanks += 1
        blanks = self.reader.prefix(num_blanks)
        if "\t" not in blanks:
            return super().scan_plain_spaces(indent, start_mark)
        self.reader.forward(num_blanks)
        return super().scan_plain_spaces(indent, start_mark) if self.reader.peek() in "\r\n\x85\u2028\u2029" else [blanks]

    def _refusal(self, problem: str) -> ScannerError:
        return ScannerError(None, None, problem, self.reader.get_mark())


class _Walk:
    """A walk over a node graph, which may share nodes (aliases) or contain a cycle."""

    def __init__(self, name: str, constructor: Any) -> None:
        self.name = name
        self.constructor = constructor
        self.lines: dict[KeyPath, int] = {}
        self._open: set[int] = set()
        self._num_values = 0

    def value(self, node: Any, path: KeyPath) -> Any:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise self._refusal(node, f"more than {MAX_VALUES} values, aliases counted each time")
        if id(node) in self._open:
            raise self._refusal(node, "an alias refers to a value that contains it")
        if len(self._open) > MAX_LEVELS:
            raise self._refusal(node, f"more than {MAX_LEVELS} levels, those of aliases included")
        if isinstance(node.value, str):
            return self._scalar(node)
        self._open.add(id(node))
        data = self._mapping(node, path) if node.tag == f"{_TAG}map" else self._sequence(node, path)
        self._open.remove(id(node))
        return data

    def _scalar(self, node: Any) -> Any:
        try:
            value = self.constructor.construct_object(node) if node.tag in _TYPED_SCALARS else node.value
        except ValueError as error:
            problem = f"found '{node.value[:60]}', expected a number of at most 300 digits; quotes make text of it"
            raise self._refusal(node, problem) from error
        return self._checked(node, value)

    def _checked(self, node: Any, value: Any) -> Any:
        if problem := _problem_with(value):
            raise self._refusal(node, problem)
        return value

    def _sequence(self, node: Any, path: KeyPath) -> list[Any]:
        for index, item in enumerate(node.value):
            self.lines[(*path, index)] = item.start_mark.line + 1
        return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: Any, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        own_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                self._merge(value_node, path, data)
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                continue
            if not isinstance(key_node.value, str):
                raise self._refusal(key_node, "a key is a list or a mapping, expected text")
            key, line = self._checked(key_node, key_node.value), key_node.start_mark.line + 1
            if key in own_lines:
                raise self._refusal(
                    key_node, f"{dotted((*path, key))}: found twice, first in line {own_lines[key]}. Remove one"
                )
            own_lines[key] = line
            self._forget((*path, key))
            self.lines[(*path, key)] = line
            data[key] = self.value(value_node, (*path, key))
        return data

    def _merge(self, node: Any, path: KeyPath, data: dict[str, Any]) -> None:
        for part in node.value if node.tag == f"{_TAG}seq" else [node]:
            if part.tag != f"{_TAG}map":
                raise self._refusal(part, "the merge key << takes a mapping or a list of mappings")
            inner = _Walk(self.name, self.constructor)
            inner._open, inner._num_values = self._open, self._num_values
            merged = inner.value(part, path)
            self._num_values = inner._num_values
            new = {key: value for key, value in merged.items() if key not in data}
            self.lines.update({known: line for known, line in inner.lines.items() if known[len(path)] in new})
            data.update(new)

    def _forget(self, path: KeyPath) -> None:
        """Drops the lines of a merged value that a later key replaces."""
        if path in self.lines:
            self.lines = {known: line for known, line in self.lines.items() if known[: len(path)] != path}

    def _refusal(self, node: Any, problem: str) -> UserError:
        return UserError(f"{self.name}:{node.start_mark.line + 1}: {problem}.")


def _problem_with(value: Any) -> str:
    """Why no file can hold a text, or no message can show a number; "" for every other value."""
    if isinstance(value, str) and (match := _NO_TEXT.search(value)):
        return f"found the character U+{ord(match[0]):04X}, expected text without NUL and surrogates"
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        return "found a whole number of more than 300 digits, expected a smaller one"
    return ""


def plain_data(value: Any, where: str, path: KeyPath = ()) -> Any:
    """A value of Python as plain data, without anything of the original. Raises UserError for a value that no YAML has.

    {"path": Path("a"), "keep": ("url",), "weight": np.float64(0.2)}   ->   {"path": "a", "keep": ["url"], "weight": 0.2}

    `where` is the argument, for error messages, and `path` that of the value in it."""
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if problem := _problem_with(value):
        raise UserError(f"{_place(where, path)}: {problem}.")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and not isinstance(value, Rational):
        return float(value)
    if isinstance(value, list | tuple):
        return [plain_data(item, where, (*path, index)) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(key, where, path): plain_data(item, where, (*path, _key(key, where, path))) for key, item in value.items()}
    raise UserError(
        f"{_place(where, path)}: found {type(value).__name__}, expected text, a number, True or False, None, a path, a list or "
        "a dict."
    )


def _key(key: Any, where: str, path: KeyPath) -> str:
    if isinstance(key, str):
        return plain_data(key, where, path)
    raise UserError(f"{_place(where, path)}: found a key of type {type(key).__name__}, expected text.")


def _place(where: str, path: KeyPath) -> str:
    return ": ".join(part for part in (where, dotted(path)) if part)
