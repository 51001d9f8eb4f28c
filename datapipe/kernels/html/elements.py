"""The elements of HTML with special behaviour, in a hash table of their names.

A name is packed into one number, its last eight bytes. The kind of an element is a number of flags,
0 for any element that is nested by its start and end tags alone.
"""

import random

import numpy as np

from datapipe.kernels import inline

RANK = 0b111
"""Elements of one rank close each other, as one item of a list closes the item before it, and those of lower rank inside it."""

OPTION_RANK, CELL_RANK = 2, 5
CLOSES_SHIFT = 3  # Three bits: the highest rank that the end tag of an element closes with it
VOID, RAW, SHOWN, FOREIGN, NOT_FOREIGN, IN_LINE, CELL, PLAINTEXT, ROOT = (1 << bit for bit in range(6, 15))
"""VOID: no end tag. RAW: its content is no markup; SHOWN: but text. FOREIGN: not HTML; NOT_FOREIGN: HTML inside of it.
IN_LINE: does not break the line. CELL: of a table. ROOT: however many tags, one element."""

_RANKS = {
    "p": 1,
    "option": 2,
    "optgroup": 2,
    "li": 3,
    "dd": 4,
    "dt": 4,
    "td": 5,
    "th": 5,
    "tr": 6,
    "tbody": 7,
    "thead": 7,
    "tfoot": 7,
}
_CLOSES = {"select": 2, "ul": 4, "ol": 4, "dl": 4, "menu": 4, "table": 7} | {
    name: 7 for name, rank in _RANKS.items() if rank >= 5
}
_FLAGGED = {
    VOID: "area base basefont bgsound br col embed frame hr img input keygen link meta param source track wbr",
    RAW: "script style textarea title xmp iframe noembed noframes",
    SHOWN: "textarea title",
    FOREIGN: "svg math",
    NOT_FOREIGN: "foreignobject div p span ul ol table center b i",
    IN_LINE: "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd mark nobr q ruby s samp small span "
    "strike strong sub sup time tt u var wbr",
    CELL: "td th",
    PLAINTEXT: "plaintext",
    ROOT: "html body",
}
_TABLE_BITS = 10


def packed(name: str) -> int:
    """The last eight letters of a name, as `tags.read_name` packs them."""
    return int.from_bytes(name.encode()[-8:], "big")


def _kinds() -> dict[int, int]:
    kinds = {packed(name): rank for name, rank in _RANKS.items()}
    for name, rank in _CLOSES.items():
        kinds[packed(name)] = kinds.get(packed(name), 0) | rank << CLOSES_SHIFT
    for flag, names in _FLAGGED.items():
        for name in names.split():
            kinds[packed(name)] = kinds.get(packed(name), 0) | flag
    return kinds


def _table() -> tuple[int, np.ndarray, np.ndarray]:
    """A multiplier for which no two names have one place, and the names and kinds in their places, (1024,) each."""
    kinds, rng = _kinds(), random.Random(1)
    while True:
        multiplier = rng.getrandbits(64) | 1
        places = {_place(name, multiplier) for name in kinds}
        if len(places) == len(kinds):
            break
    names, flags = np.zeros(1 << _TABLE_BITS, np.uint64), np.zeros(1 << _TABLE_BITS, np.uint16)
    for name, kind in kinds.items():
        names[_place(name, multiplier)], flags[_place(name, multiplier)] = name, kind
    return multiplier, names, flags


def _place(name: int, multiplier: int) -> int:
    return (name * multiplier % (1 << 64)) >> (64 - _TABLE_BITS)


_multiplier, _NAMES, _KINDS = _table()
_MULTIPLIER, _SHIFT = np.uint64(_multiplier), np.uint64(64 - _TABLE_BITS)
SCRIPT, SELECT = np.uint64(packed("script")), _kinds()[packed("select")]
FONT = np.uint64(packed("font"))


@inline
def kind_of(name):
    place = (name * _MULTIPLIER) >> _SHIFT
    return np.int64(_KINDS[place]) if _NAMES[place] == name else np.int64(0)
