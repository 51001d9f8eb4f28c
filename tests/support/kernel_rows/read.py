"""Rows of `datapipe/kernels/read`, `html` and `distributions.py`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from datapipe.kernels import distributions as kernels
from datapipe.kernels.arrays import BLOCK_BYTES
from datapipe.kernels.html import mentions, tags
from datapipe.kernels.read import conversations, delimited, json_values
from datapipe.kernels.read.conversations import Leaves, Names, Scratch
from datapipe.kernels.read.delimited import Signs
from datapipe.kernels.text import strip
from datapipe.kernels.types import first_rows, input_record, room_for
from tests.oracles import filters as filters_oracle
from tests.oracles import html as html_oracle
from tests.oracles import read as read_oracle
from tests.oracles.html import plain as plain_text
from tests.support.kernel_table import Case, Steps, columns, joined, offsets_of, room, row
from tests.support.pages import page_of

_DIALECTS = {
    "csv": Signs(44, 34),
    "tsv": Signs(9, 39),
    "no quotes": Signs(44),
    "backslashes": Signs(44, 34, 92),
    "backslashes, no quotes": Signs(9, escape=92),
}


def _table(case: Case, signs: Signs) -> tuple[np.ndarray, list[read_oracle.Row]]:
    """Rows of the texts of the case: some quoted as a writer does, some as they are, whatever stands in them."""
    sign, between = bytes([max(signs.quote, 34)]), bytes([signs.delimiter])
    values = [text if number % 3 else sign + text.replace(sign, sign * 2) + sign for number, text in enumerate(case.texts)]
    rows = [between.join(values[number : number + 1 + number % 4]) for number in range(len(values))]
    odd = [b"'a'b',c", b",,", b"''", b"''''''x", b"a','", b"'say \\'hi\\',\\n\\\\',a\\,b\\"]
    odd = [value.translate(bytes.maketrans(b"',", sign + between)) for value in odd]
    ends = [b"\n", b"\r\n", b"\r", b"\n\n"]
    table = b"".join(own + ends[number % 4] for number, own in enumerate([*odd, *rows]))
    return np.frombuffer(table, np.uint8), [found for found in read_oracle.rows(table, *signs) if found.has_end]


def find_rows(case: Case, signs: Signs) -> Steps:
    data, found = _table(case, signs)
    size = np.count_nonzero(data == 10) + np.count_nonzero(data == 13)
    yield [data, signs], [np.zeros(6, np.int64), *room(size, *[np.int64] * 3)]
    yield len(found), [[], *([*map(get, found)] for get in (_start, _stop, lambda own: len(own.values)))]


def _start(found: read_oracle.Row) -> int:
    return found.start


def _stop(found: read_oracle.Row) -> int:
    return found.stop


def find_values(case: Case, signs: Signs) -> Steps:
    data, rows = _table(case, signs)
    rows = [found for found in rows if len(found.values) >= 2]
    starts, stops = np.array([*map(_start, rows)], np.int64), np.array([*map(_stop, rows)], np.int64)
    yield [data, starts, stops, signs, np.arange(2)], room((2, len(rows)), np.int64, np.int64)
    yield None, [[[found.values[column][side] for found in rows] for column in (0, 1)] for side in (0, 1)]


def copy_values(case: Case, signs: Signs) -> Steps:
    data, rows = _table(case, signs)
    spans = [span for found in rows for span in found.values]
    starts, stops = (np.array([span[side] for span in spans], np.int64) for side in (0, 1))
    outputs = [*room(len(spans) + 1, np.int64), *room(int((stops - starts).sum()), np.uint8)]
    yield [data, starts, stops, signs], outputs
    values = [read_oracle.unquoted(data[start:stop].tobytes(), *signs) for start, stop in spans]
    yield None, [offsets_of(values), joined(values)]


for _name, _signs in _DIALECTS.items():
    row(delimited.find_rows, _signs, variant=_name)(find_rows)
    row(delimited.find_values, _signs, variant=_name)(find_values)
    row(delimited.copy_values, _signs, variant=_name)(copy_values)


_ODD = (
    b'[{"a": "[,]\\n"},\n[1, {"b": 2}],\r\n "x,\\\\", null]\n[]\n{\n "c": {\n}\n}\n{"d": 1}\n, ] } 7,8\n'
    b'["raw\nline", "\\"\n", {"e": "'
)


@row(json_values.flatten_values)
def flatten_values(case: Case) -> Steps:
    texts = [text.decode(errors="replace") for text in case.texts]
    records: list[Any] = [{"text": text, "more": [number, {text: [text]}]} for number, text in enumerate(texts)]
    parts = [json.dumps(records, indent=1), json.dumps(records), *(json.dumps(record, indent=2) for record in records)]
    data = np.frombuffer("\n".join(parts).encode() + _ODD, np.uint8)
    yield [data], [np.zeros(3, np.int64), np.zeros_like(data)]
    lines, depth, is_array = read_oracle.flattened(data.tobytes())
    yield None, [[depth, 1, int(is_array)], list(lines)]


def _pages(case: Case) -> Case:
    rng = case.generator
    return case.having((page_of(text, rng) for text in case.texts), b"#", b"")


@row(tags.measure_tags, False)
@row(tags.measure_tags, True, variant="pages")
def measure_tags(case: Case, as_pages: bool) -> Steps:
    case = _pages(case) if as_pages else case
    yield [case.offsets, case.data, np.zeros(40, np.uint64)], room(len(case.texts), *[np.int64] * 3)
    yield None, columns((html_oracle.measures(page, 40) for page in case.texts), 3)


_MENTIONS = rb"""
    <math> <M:Math <mml:math/ math <maths> x<math math/TeX math&sol; data-mathml mwe-math latex 'LaTeX' translateX( &#x20LATEX
    license "License" sublicense> creativecommons robots ROBOTS
""".split()
_HIDING = b"&#109; &#45; &#x2F; &#x6D &#8217; &#x61; &#; &# a\0b".split()


@row(mentions.count_mentions)
def count_mentions(case: Case) -> Steps:
    """Words in texts, also at the cut points of blocks, and what may hide some in one page of five."""
    words = [_MENTIONS + ([] if number % 5 else _HIDING) for number in range(len(case.texts))]
    texts = [b" ".join(case.generator.choice(some, 6)) + text for some, text in zip(words, case.texts)]
    word = b"<math> "
    texts += [b"x" * (BLOCK_BYTES - before) + word + text for before in range(len(word) + 1) for text in case.texts[:2]]
    case = case.having(iter(texts), b"#", b"")
    outputs = room(len(case.texts), *[np.int64] * 3)
    yield [case.offsets, case.data, np.zeros(BLOCK_BYTES + 8, np.uint8)], outputs
    yield None, columns((html_oracle.mentions(page, mentions.MANY) for page in case.texts), 3)


@row(tags.strip_tags, False)
@row(tags.strip_tags, True, variant="pages")
def strip_tags(case: Case, as_pages: bool) -> Steps:
    case = _pages(case) if as_pages else case
    yield [case.offsets, case.data], [*room(len(case.offsets), np.int64), *room(len(case.data), np.uint8)]
    texts = list(map(plain_text, case.texts))
    yield None, [offsets_of(texts), joined(texts)]


@row(kernels.measure, -1)
@row(kernels.measure, 1, variant="at-most")
def measure(case: Case, side: int) -> Steps:
    """Lengths of texts, powers of two, zeros, infinities and NaN, decided by a rule of this side and by others."""
    generator, rule = case.generator, 1
    lengths = np.diff(case.offsets).astype(np.float64)
    extra = [0.0, -0.0, np.nan, np.inf, -np.inf, 0.1, -3.0, 5e-324, 2.0**-32, 2.0**47, 2.0**48, 1.7e308]
    values = np.concatenate([lengths, extra, generator.integers(-4, 5, 120) / 4])
    num_docs = len(values)
    limits = np.array([2.0]) if case.seed % 2 else generator.choice([1.0, 2.0, np.nan, -np.inf], num_docs)
    reasons = generator.integers(-1, 3, num_docs)
    halves = (generator.integers(0, 3, num_docs).astype(np.uint64), np.arange(num_docs, dtype=np.uint64))
    documents = kernels.decided(reasons, generator.integers(0, 1000, num_docs), halves)
    counts = np.zeros((kernels.NUM_BINS, 4), np.int64)
    yield [values, limits, documents, rule, side], [counts, kernels.nothing_near()]
    counts = np.zeros_like(counts)
    rows = list(zip(values.tolist(), np.broadcast_to(limits, num_docs).tolist(), *(column.tolist() for column in documents)))
    for value, limit, reason, text_bytes, _, _ in rows:
        if not np.isnan(value):
            column = int(filters_oracle.fails(value, limit, reason, rule, side))
            counts[filters_oracle.bin_of(value) + kernels.LAST_BIN, [column, column + 2]] += [1, text_bytes]
    near = filters_oracle.nearest([(v, limit, r, file, p) for v, limit, r, _, file, p in rows], rule, kernels.NEAREST)
    arrays = [np.zeros((2, kernels.NEAREST), kind) for kind in (float, np.uint64, float, float, np.uint64, np.uint64)]
    for number, side_rows in enumerate(near):
        for place, entries in enumerate(side_rows):
            for array, entry in zip(arrays, entries):
                array[number, place] = entry
    distances, ties, near_values, near_limits, files, positions = arrays
    outputs = [counts, list(map(len, near)), distances, near_values, near_limits, ties, files, positions]
    yield int(np.isnan(values).sum()), outputs


_MEMBERS = {b"role": 2, b"from": 2, b"content": 3, b"value": 3, b"calls": 1, b"tool_calls": 4, b"result": 9, b"name": 10}
_OF_CALLS = {b"id": 6, b"function": 5, b"name": 7, b"arguments": 8, b"parameters": 1}
_ROLE_KINDS = {b"system": 12, b"user": 14, b"gpt": 15, b"tool": 16}
_HEAD = b'{"messages":'
_ODD_CONVERSATIONS = (
    *(
        b"",
        _HEAD,
        _HEAD + b"[]}",
        _HEAD + b"null}",
        b'{"messages" :[]}',
        _HEAD + b'[{"role":"user","content":"a"}],"tool":[]}',
    ),
    *(
        _HEAD + b"[" + each + b"]}"
        for each in (b"{}", b"1", b'{"role":"user"}', b'{"content":"a"}', b'{"role":"user","content":3}')
    ),
    _HEAD + b'[{"role":"user","content":"a"},]}',
    _HEAD + b' [ {"x":null,"content" : "a\\"\\u00e9" ,\n"from":"gpt"}\t, {"role":"user","content":"","calls":null,"y":"z"}] }',
    *(
        _HEAD + b'[{"role":"user","content":"' + each + b"}]}"
        for each in (
            *(
                b"a\\",
                b"a\\u12",
                b'a\\ud83d\\ude00"',
                b'\\ue000"',
                b'\xee\x80\x80"',
                b'\xef\x9f\xbf"',
                b'\xef\xa0\x80"',
                b'a\nb"',
            ),
            *(
                b'\\x"',
                b'","content":"b"',
                b'","value":null',
                b'","role":null',
                b'","calls":"x"',
                b'","r\\u006fle":"a"',
                b'","y":7',
            ),
            *(b'","from":"gpt"', b'" "y":""', b'","y"', b'","y":nul', b'\\u00Fg"', b'\\uABCD"'),
        )
    ),
    _HEAD + b'[{"role":"us\\u0065r","content":"a"}]}',
)


def _conversations(case: Case) -> list[bytes]:
    texts = [text.decode(errors="replace") for text in case.texts]
    made = [
        {
            "messages": [
                {"role": ("user", "gpt", "critic")[(number + len(text)) % 3 % (2 + number % 2)], "content": text, text: None},
                {"from": "gpt", "value": text},
            ][number % 3 % 2 :]
        }
        for number, text in enumerate(texts)
    ]
    separators = ((",", ":"), (", ", ": "))
    written = [
        json.dumps(each, ensure_ascii=number % 4 < 2, separators=separators[number % 2]).replace('": ', '":', 1).encode()
        for number, each in enumerate(made)
    ]
    return [*_ODD_CONVERSATIONS, *written]


def _with_calls(case: Case) -> list[tuple[str, list[tuple[int, str]]]]:
    """Conversations with calls and tools, and the kind and text of each leaf."""
    texts = [text.decode(errors="replace") for text in case.texts]
    made: list[tuple[str, list[tuple[int, str]]]] = []
    for number, text in enumerate([each for each in texts if "" < max(each, default="") < "\ud000"] or ["x"]):
        value = {"a": [number, text, {}, [], True, False, {"é": 0.25}], text[:3] + "b": -7}
        written = json.dumps(value, ensure_ascii=number % 3 > 0, indent=number % 2 or None)
        name, own_id = f"f{number}", json.dumps(text)
        call = f'{{"id":{own_id},"function":{{"arguments":{json.dumps(written)},"name":"{name}"}}}}'
        called = f'{{"role":"gpt","tool_calls":[{call}, {{"function" : {{ "name":"g"}} }} ],"content":null}}'
        messages = f'[{called}, {{"role":"tool","result":{own_id},"name":"","content":"3"}}]'
        tool = {"function": value}
        tools = json.dumps(json.dumps([tool, {"x": 1}])) if number % 2 else json.dumps([tool, {"x": 1}], indent=1)
        leaves = [(15, ""), (6, text), (7, name), (8, json.dumps(value, ensure_ascii=False)), (7, "g"), (8, ""), (16, "3")]
        leaves += [(9, text), *((11, json.dumps(each, ensure_ascii=False)) for each in (tool, {"x": 1}))]
        made.append((f'{_HEAD.decode()}{messages} , "tools":{tools}}}', leaves))
    return made


_NOT_WITH_CALLS = tuple(
    _HEAD + b'[{"role":"gpt","content":"","tool_calls":' + calls + b"}" + more + b"]}"
    for calls, more in (
        *((b"{}", b""), (b"[{}]", b""), (b'[{"name":"f"}]', b""), (b'[{"function":{"name":""}}]', b""), (b"[", b"")),
        (b'[{"function":{"name":"f"}}]', b',{"role":"user","content":""}'),
        (b"[]", b',{"role":"tool","content":"x"}'),
        (b"null", b'],"tools":[{"a":1},{}'),
        (b'[{"function":{"name":"f"},"id":"x"}]', b',{"role":"tool","content":"x","result":"y"}'),
        *(
            (b'[{"function":{"name":"f","arguments":' + value + b"}}]", b"")
            for value in (
                *(b"3", b"[1]", b"null1", b'"[1]"', b'"{"', b'"{} {}"', b'" "', b"{1:2}", b'{"a":null}', b'{"a":1,"a":2}'),
                *(
                    b'{"a":%s}' % number
                    for number in (b"1e5", b"0.10", b"-0", b"01", b"1.", b"0.00001", b"NaN", b"tru", b"[1,]")
                ),
                *(b'{"a":1]', b'{"a":"\\ud83d"}', b'{"a":"\\x"}', b'{"a":' + 40 * b"[" + 40 * b"]" + b"}"),
            )
        ),
    )
)


def _names() -> Names:
    owners = [_MEMBERS, _OF_CALLS, _ROLE_KINDS, {b"tools": 11}]
    rows = [(name, kind, owner) for owner, kinds in enumerate(owners) for name, kind in kinds.items()]
    names = [name for name, _, _ in rows]
    return input_record(Names, (offsets_of(names), joined(names), *(np.array(each, np.uint8) for each in columns(rows, 3)[1:])))


def _find_arguments(lines: list[bytes]) -> tuple[list[Any], list[Any]]:
    offsets, data, size = offsets_of(lines), joined(lines), sum(map(b"".join(lines).count, (b":", b"\\")))
    outputs = [*room(len(lines), np.int64), room_for(Leaves, size), Scratch.of(len(data), max(map(len, lines), default=0))]
    return [offsets, data, np.frombuffer(_HEAD, np.uint8), _names()], outputs


@row(conversations.find_leaves)
def find_leaves(case: Case) -> Steps:
    lines, with_calls = [*_conversations(case), *_NOT_WITH_CALLS], _with_calls(case)
    inputs, outputs = _find_arguments([*lines, *(line.encode() for line, _ in with_calls)])
    yield inputs, outputs
    found = [read_oracle.plain_messages(line, _HEAD, _MEMBERS, _ROLE_KINDS) for line in lines]
    rows = [(role, begin + start, begin + stop) for begin, own in zip(inputs[0], found) for role, start, stop in own]
    kinds, starts, stops = columns(rows, 3)
    kinds += [kind for _, leaves in with_calls for kind, _ in leaves]
    counts = [*map(len, found), *(len(leaves) for _, leaves in with_calls)]
    yield len(kinds), [counts, kinds, starts, stops, [], [], []]


@row(conversations.write_leaves)
def write_leaves(case: Case) -> Steps:
    with_calls = _with_calls(case)
    inputs, outputs = _find_arguments([line.encode() for line, _ in with_calls])
    num = conversations.find_leaves(*inputs, *outputs)
    kinds, starts, stops = first_rows(outputs[1], num)
    size = int((stops - starts).sum())
    yield [inputs[1], outputs[2].objects, kinds, starts, stops], [*room(num + 1, np.int64), *room(size, np.uint8)]
    written = [text.encode() for _, own in with_calls for _, text in own]
    yield None, [offsets_of(written), joined(written)]


@row(strip.strip_spans, valid_only=True)
def strip_spans(case: Case) -> Steps:
    spaces = [chr(code) for code in range(0x3100) if chr(code).isspace()]
    texts = [
        *map(bytes.decode, case.texts),
        *(f"{one}\u200b{one}" for one in spaces),
        "".join(spaces),
        "\u2007 a\u0085\xa0",
        "\x1f\u180e",
    ]
    lines = [text.encode() for text in texts]
    offsets = offsets_of(lines)
    yield [offsets, joined(lines)], room(len(lines), np.int64, np.int64)
    starts = [begin + len(line) - len(text.lstrip().encode()) for begin, line, text in zip(offsets.tolist(), lines, texts)]
    yield None, [starts, [start + len(text.strip().encode()) for start, text in zip(starts, texts)]]
