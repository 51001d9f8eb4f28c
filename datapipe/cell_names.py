"""Names of the cells of a source, and patterns for them.

en, science, 19   ─▶  en/science/19      a part for each column; "/", "\\", "*", "?", "[", "%", control characters, white
                                         space at the ends, and "." and ".." alone, as in URLs: names of cells are keys of
                                         mixtures, as paths are; so are the d of "default" and the n of "none", which have a
                                         meaning. Of more than 100 characters the first 80 stay, before a digest
*/*/1?            ─▶  all cells whose last part is 10 to 19; "*" and "?" stand for characters of one part
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import unquote

import numpy as np

DEFAULT = "default"
"""In mappings from patterns, what holds for cells that no pattern names."""

NONE = "none"
"""The part of documents without a value."""

_ENCODED = re.compile(r"[/\\*?\[%\x00-\x1f\x7f-\x9f]|^\.{1,2}\Z|^d(?=efault\Z)|^n(?=one\Z)|^\s+|(?<!\s)\s+\Z")
_MOST_CHARACTERS = 100  # of a part: with eight of them, and its source, a name is below `shard_table.MOST_CHARACTERS`
_HEAD = 80  # characters of a longer part that stay
_WILD = {"*": "[^/]*", "?": "[^/]"}

Value = TypeVar("Value")


def part_of(value: str) -> str:
    """The part of a name that stands for a value. No value at all, an empty text, is `none`."""
    part = _ENCODED.sub(lambda sign: "".join(f"%{byte:02X}" for byte in sign[0].encode()), value)
    if len(part) > _MOST_CHARACTERS:
        digest = hashlib.blake2b(value.encode(), digest_size=8).hexdigest()
        return f"{part[:_HEAD].rstrip('%')}…{digest}"
    return part or NONE


def value_of(part: str) -> str:
    """The value that a part stands for, if it is not a long one."""
    return unquote(part)


def source_of(name: str) -> str:
    """The source of a name in a mixture: of a source itself, or of cells, SOURCE/PART/…."""
    return name.partition("/")[0]


def is_pattern(name: str) -> bool:
    """Whether a name may stand for several cells."""
    return "*" in name or "?" in name


def matches(pattern: str, names: Sequence[str], numbers: Mapping[str, int]) -> list[int]:
    """The numbers of the names that a pattern matches, or of the one that it is. `numbers`: those of all names."""
    if not is_pattern(pattern):
        return [numbers[pattern]] if pattern in numbers else []
    expression = re.compile("".join(_WILD.get(sign, re.escape(sign)) for sign in pattern))
    return [number for number, name in enumerate(names) if expression.fullmatch(name)]


def last_matches(patterns: Iterable[str], names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """(num_names,) int64, the number of the last pattern that matches each name, -1 where none does; and the patterns that
    match none. `default` matches all names, as if it came first."""
    numbers = {name: number for number, name in enumerate(names)}
    chosen, unmatched = np.full(len(names), -1, np.int64), list[str]()
    listed = list(patterns)
    for number in sorted(range(len(listed)), key=lambda number: listed[number] != DEFAULT):
        found = range(len(names)) if listed[number] == DEFAULT else matches(listed[number], names, numbers)
        chosen[list(found)] = number
        if not found and listed[number] != DEFAULT:
            unmatched.append(listed[number])
    return chosen, unmatched


def chosen_values(values: Mapping[str, Value], names: Sequence[str], otherwise: Value) -> list[Value]:
    """What a mapping from patterns says of each name: its last entry that matches, or `otherwise`."""
    listed = [*values.values(), otherwise]
    return [listed[number] for number in last_matches(values, names)[0].tolist()]
