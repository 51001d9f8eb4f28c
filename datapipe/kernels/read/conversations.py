"""The leaves of conversations in JSON objects, without a Python object for a message.

    {"messages":[{"role":"user","content":"Hi \\u00e9"},{"from":"gpt","value":"Yes"}]}
       head     ─▶ kinds: user, assistant    starts, stops: where the contents are, with escapes ─▶ contents: "Hi é", "Yes"

A leaf is a text or an object: the content of a message, then the id, the name and the arguments of each of its calls, the id
of the call that it is the result of, its name; behind those of all messages, the tools. Calls and tools have the form of
OpenAI; arguments and tools may be JSON text. Objects are written as Python writes them (`json_objects.py`).

A conversation is plain if its messages have these members alone, once each, and results follow their calls. Other members may
be texts or null; those of `NULL` must be null. All else is not plain, also what needs a closer look: escapes in names, escapes
of surrogates and characters for private use, JSON with an error.
"""

from typing import NamedTuple, Self

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import ONES, copy_into, eight_bytes, zero_bytes
from datapipe.kernels.text.json_objects import ROOM, escape_end, write_object
from datapipe.kernels.text.jsonlines import skip_space, unescape
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, UInt8sOut

NULL, ROLE, CONTENT, CALLS, FUNCTION = range(1, 6)
"""Kinds of members: those that must be null, and those that are no leaves."""
ID, NAME, ARGUMENTS, RESULT_OF, OWN_NAME, TOOLS = range(6, 12)
"""Kinds of leaves: of calls, of messages, and a tool. A content has that of its role."""
SYSTEM, DEVELOPER, USER, ASSISTANT, TOOL = range(12, 17)
OF_MESSAGE, OF_CALL, OF_ROLES, OF_CONVERSATION = range(4)
"""What names are of."""

_8, _HIGHS, _SPACES = np.uint64(8), np.uint64(0x8080808080808080), np.uint64(0x2020202020202020)
_QUOTES, _BACKSLASHES = np.uint64(0x2222222222222222), np.uint64(0x5C5C5C5C5C5C5C5C)
_PRIVATE = np.uint64(0xEFEFEFEFEFEFEFEF)  # U+E000 to U+FFFF begin with 0xEE or 0xEF
_MOST_OPEN = 64  # calls without their results


class Names(NamedTuple):
    """Names of members and of roles, as JSON has them between quotes: a column of texts, their kinds and what they are of."""

    offsets: Int64s
    data: UInt8s
    kinds: UInt8s
    owners: UInt8s


class Leaves(NamedTuple):
    """The kind of each leaf, and its span: of an object in `Scratch.objects`, of a text between its quotes."""

    kinds: UInt8sOut
    starts: Int64sOut
    stops: Int64sOut


class Scratch(NamedTuple):
    """Objects, at most twice their bytes; the text of one; what is known of one, and of calls without their results."""

    objects: UInt8sOut
    text: UInt8sOut
    known: Int64sOut

    @classmethod
    def of(cls, num_bytes: int, most_bytes: int) -> Self:
        """For conversations of `num_bytes`, each of at most `most_bytes`."""
        return cls(np.empty(2 * num_bytes, np.uint8), np.empty(most_bytes, np.uint8), np.empty(ROOM + _MOST_OPEN, np.int64))


@inline
def _string_end(data, at, stop):
    """The end of the string at `at`, behind its quote; -1 where none is, or one that needs a closer look."""
    if at >= stop or data[at] != 34:
        return -1
    at += 1
    while at < stop:
        near = min(at + 8, stop)
        if at + 8 <= stop:
            eight = eight_bytes(data, np.uint64(at))
            ends = zero_bytes(eight ^ _QUOTES) | zero_bytes(eight ^ _BACKSLASHES) | zero_bytes((eight | ONES) ^ _PRIVATE)
            if not ends | ((eight - _SPACES) & ~eight & _HIGHS):
                at = near
        while at < near:
            byte = data[at]
            if byte == 34:
                return at + 1
            if byte < 32 or byte == 0xEE or (byte == 0xEF and data[at + 1] < 0xA0):
                return -1
            at += 1
            if byte == 92:
                at = escape_end(data, at, stop)
                if at < 0:
                    return -1
    return -1


@inline
def _kind_of(data, start, stop, names, owner):
    """The kind of a name; 0 for none that is known, -1 for one with an escape."""
    offsets, texts, kinds, owners = names
    for name in range(len(kinds)):
        first = offsets[name]
        if owners[name] == owner and offsets[name + 1] - first == stop - start:
            k = 0
            while k < stop - start and texts[first + k] == data[start + k]:
                k += 1
            if k == stop - start:
                return np.int64(kinds[name])
    for k in range(start, stop):
        if data[k] == 92:
            return -1
    return 0


@inline
def _is_null(data, at, stop):
    return at + 4 <= stop and data[at] == 110 and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108


@inline
def _member(data, at, stop, names, owner, seen):
    """The member behind the "{" or "," at `at`: its kind, the place of its value, and `seen`, the kinds of the object before;
    a kind of -1 for one that needs a closer look."""
    key = skip_space(data, at + 1, stop)
    behind = _string_end(data, key, stop)
    kind = _kind_of(data, key + 1, behind - 1, names, owner) if behind >= 0 else -1
    at = skip_space(data, behind, stop) if kind >= 0 else stop
    is_twice = kind > NULL and seen >> kind & 1
    kind = -1 if at >= stop or data[at] != 58 or is_twice else kind
    return kind, skip_space(data, at + 1, stop), seen | (1 << max(kind, 0))


@inline
def _object(data, at, stop, scratch, end):
    """Writes the object at `at`, which may be JSON text; returns its end, or -1, and that of what is written."""
    objects, text, known = scratch
    if at < stop and data[at] == 34:
        behind = _string_end(data, at, stop)
        num_bytes = unescape(data, at + 1, behind - 1, text, 0) if behind >= 0 else 0
        if num_bytes == 0 and behind >= 0:
            objects[end], objects[end + 1] = 123, 125
            return behind, end + 2
        first = skip_space(text, 0, num_bytes)
        last, end, _ = write_object(text, first, num_bytes, known, objects, end, True)
        return (behind if last >= 0 and skip_space(text, last, num_bytes) == num_bytes else -1), end
    at, end, _ = write_object(data, at, stop, known, objects, end, False)
    return at, end


@inline
def _call(data, at, stop, names, leaves, count, scratch, end):
    """Adds the leaves of the call at `at`: its end, or -1, their number, and the end of the objects."""
    kinds, starts, stops = leaves
    id_start = id_stop = name_start = name_stop = -1
    first_object, seen, level = end, 0, 0
    more = at < stop and data[at] == 123
    while more:
        kind, at, seen = _member(data, at, stop, names, OF_CALL, seen)
        if (
            kind < 0
            or (level != 1 and (kind == NAME or kind == ARGUMENTS))
            or (level != 0 and (kind == ID or kind == FUNCTION))
        ):
            return -1, count, end
        if kind == FUNCTION:
            level, more = 1, at < stop and data[at] == 123
            continue
        start = at
        if _is_null(data, at, stop):
            at += 4
        elif kind == ARGUMENTS:
            at, end = _object(data, at, stop, scratch, end)
        else:
            at = _string_end(data, at, stop) if kind != NULL else -1
            if kind == ID:
                id_start, id_stop = start + 1, at - 1
            elif kind == NAME:
                name_start, name_stop = start + 1, at - 1
        at = skip_space(data, at, stop) if at >= 0 else stop
        if level == 1 and at < stop and data[at] == 125:
            level, at = 2, skip_space(data, at + 1, stop)
        more = at < stop and data[at] == 44
    if at >= stop or data[at] != 125 or level != 2 or name_start >= name_stop:
        return -1, count, end
    if id_start >= 0:
        kinds[count], starts[count], stops[count] = ID, id_start, id_stop
        count += 1
    kinds[count], starts[count], stops[count] = NAME, name_start, name_stop
    kinds[count + 1], starts[count + 1], stops[count + 1] = ARGUMENTS, first_object, end
    return at + 1, count + 2, end


@inline
def _items_end(data, at, stop):
    """Behind the "]" at `at`; -1 for another character."""
    return at + 1 if at < stop and data[at] == 93 else -1


@inline
def _calls(data, at, stop, names, leaves, count, scratch, end):
    """As `_call`, of the list of calls at `at`."""
    if at >= stop or data[at] != 91:
        return -1, count, end
    item = skip_space(data, at + 1, stop)
    if item < stop and data[item] == 93:
        return item + 1, count, end
    more = True
    while more:
        at, count, end = _call(data, skip_space(data, at + 1, stop), stop, names, leaves, count, scratch, end)
        at = skip_space(data, at, stop) if at >= 0 else stop
        more = at < stop and data[at] == 44
    return _items_end(data, at, stop), count, end


@inline
def _message(data, at, stop, names, leaves, count, scratch, end):
    """As `_call`, of the message at `at`."""
    kinds, starts, stops = leaves
    content, seen, role = count, 0, -1
    starts[content] = stops[content] = 0
    count += 1
    name_start = name_stop = result_start = result_stop = -1
    more, has_content = at < stop and data[at] == 123, False
    while more:
        before = seen
        kind, at, seen = _member(data, at, stop, names, OF_MESSAGE, seen)
        start = at
        if kind != ROLE and _is_null(data, at, stop):
            at, seen = at + 4, before if kind == CONTENT else seen
        elif kind == CALLS:
            at, count, end = _calls(data, at, stop, names, leaves, count, scratch, end)
        else:
            at = _string_end(data, at, stop) if kind >= 0 and kind != NULL else -1
            if kind == ROLE:
                role = _kind_of(data, start + 1, at - 1, names, OF_ROLES)
            elif kind == CONTENT:
                starts[content], stops[content], has_content = start + 1, at - 1, True
            elif kind == OWN_NAME:
                name_start, name_stop = start + 1, at - 1
            elif kind == RESULT_OF:
                result_start, result_stop = start + 1, at - 1
        at = skip_space(data, at, stop) if kind >= 0 and at >= 0 else stop
        more = at < stop and data[at] == 44
    has_calls = count > content + 1
    is_right = role >= SYSTEM and (has_content or has_calls) and (not has_calls or role == ASSISTANT)
    if at >= stop or data[at] != 125 or not is_right:
        return -1, count, end
    kinds[content] = role
    if result_start < result_stop:
        kinds[count], starts[count], stops[count] = RESULT_OF, result_start, result_stop
        count += 1
    if name_start < name_stop:
        kinds[count], starts[count], stops[count] = OWN_NAME, name_start, name_stop
        count += 1
    return at + 1, count, end


@inline
def _listed_tools(data, at, stop, names, leaves, count, scratch, end):
    """As `_calls`, of the list of tools at `at`. Each has keys, and a function or else no name."""
    kinds, starts, stops = leaves
    objects, _, known = scratch
    if at >= stop or data[at] != 91:
        return -1, count, end
    item = skip_space(data, at + 1, stop)
    if item < stop and data[item] == 93:
        return item + 1, count, end
    more = True
    while more:
        start, seen = end, 0
        at, end, num_keys = write_object(data, skip_space(data, at + 1, stop), stop, known, objects, end, False)
        for key in range(num_keys if at >= 0 else 0):
            kind = _kind_of(objects, known[2 * key] + 1, known[2 * key + 1] - 1, names, OF_CALL)
            seen |= 1 << max(kind, 0)
        if at < 0 or num_keys == 0 or (seen >> NAME & 1 and not seen >> FUNCTION & 1):
            return -1, count, end
        kinds[count], starts[count], stops[count] = TOOLS, start, end
        at, count = skip_space(data, at, stop), count + 1
        more = at < stop and data[at] == 44
    return _items_end(data, at, stop), count, end


@inline
def _tools(data, at, stop, names, leaves, count, scratch, end):
    """As `_call`, of the tools, which may be JSON text."""
    text = scratch.text
    if _is_null(data, at, stop):
        return at + 4, count, end
    if at >= stop or data[at] != 34:
        return _listed_tools(data, at, stop, names, leaves, count, scratch, end)
    behind = _string_end(data, at, stop)
    num_bytes = unescape(data, at + 1, behind - 1, text, 0) if behind >= 0 else 0
    if num_bytes == 0:
        return behind, count, end
    first = skip_space(text, 0, num_bytes)
    last, count, end = _listed_tools(text, first, num_bytes, names, leaves, count, scratch, end)
    return (behind if last >= 0 and skip_space(text, last, num_bytes) == num_bytes else -1), count, end


@inline
def _is_same(data, start, stop, other, other_stop):
    if stop - start != other_stop - other:
        return False
    for k in range(stop - start):
        if data[start + k] != data[other + k]:
            return False
    return True


@inline
def _num_open(data, leaves, first, count, is_open, num_open):
    """The number of calls without their results behind the message with the leaves from `first` on; -1 for a result of none,
    and for a message before all results. `is_open`: the leaf of the id of each, -1 for none."""
    kinds, starts, stops = leaves
    if kinds[first] != TOOL:
        if num_open or count - first > _MOST_OPEN:
            return -1
        for leaf in range(first + 1, count):
            if kinds[leaf] == NAME:
                is_open[num_open] = leaf - 1 if kinds[leaf - 1] == ID else -1
                num_open += 1
        return num_open
    wanted = first + 1 if first + 1 < count and kinds[first + 1] == RESULT_OF else -1
    found = without = -1
    for call in range(num_open - 1, -1, -1):
        own = is_open[call]
        if own < 0:
            without = call
        elif wanted >= 0 and _is_same(data, starts[own], stops[own], starts[wanted], stops[wanted]):
            found = call
    if found < 0:
        found = without if wanted >= 0 else num_open - 1 if num_open == 1 else -1
    if found < 0:
        return -1
    for call in range(found, num_open - 1):
        is_open[call] = is_open[call + 1]
    return num_open - 1


@kernel
def find_leaves(
    offsets: Int64s, data: UInt8s, head: UInt8s, names: Names, counts: Int64sOut, leaves: Leaves, scratch: Scratch
) -> int:
    """The number of leaves of each conversation, (num_docs,), 0 for one that is not plain; and the leaves of all, whose number
    it returns. There are at most as many as ":" and backslashes, since JSON text may have its ":" as escapes. `head`: how each
    object begins, up to the list."""
    kinds, is_open, count, end = leaves.kinds, scratch.known[ROOM:], 0, 0
    for i in range(len(offsets) - 1):
        first, first_end, at, stop = count, end, offsets[i] + len(head), offsets[i + 1]
        is_plain, num_open, before = at <= stop, 0, 0
        for k in range(len(head) if is_plain else 0):
            is_plain &= data[offsets[i] + k] == head[k]
        at = skip_space(data, at, stop) if is_plain else stop
        more = at < stop and data[at] == 91
        is_plain = more
        while more:
            own = count
            at, count, end = _message(data, skip_space(data, at + 1, stop), stop, names, leaves, count, scratch, end)
            num_open = _num_open(data, leaves, own, count, is_open, num_open) if at >= 0 else -1
            is_plain = num_open >= 0 and not (before == USER and kinds[own] == USER)
            before = kinds[own]
            at = skip_space(data, at, stop) if is_plain else stop
            more = at < stop and data[at] == 44
        at = skip_space(data, at + 1, stop) if is_plain and at < stop and data[at] == 93 else stop
        if at < stop and data[at] == 44:
            kind, at, _ = _member(data, at, stop, names, OF_CONVERSATION, 0)
            if kind == TOOLS:
                at, count, end = _tools(data, at, stop, names, leaves, count, scratch, end)
            at = skip_space(data, at, stop) if kind == TOOLS and at >= 0 else stop
        if at + 1 != stop or data[at] != 125:
            count, end = first, first_end
        counts[i] = count - first
    return count


@kernel
def write_leaves(
    data: UInt8s, objects: UInt8s, kinds: UInt8s, starts: Int64s, stops: Int64s, out_offsets: Int64sOut, out: UInt8sOut
) -> None:
    """Writes texts without escapes, which takes at most as many bytes as they have, and objects."""
    end = 0
    out_offsets[0] = 0
    for i in range(len(starts)):
        start, stop = starts[i], stops[i]
        if kinds[i] == ARGUMENTS or kinds[i] == TOOLS:
            copy_into(out[end : end + stop - start], objects[start:stop])
            end += stop - start
        else:
            end = unescape(data, start, stop, out, end)
        out_offsets[i + 1] = end
