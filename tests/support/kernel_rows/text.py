"""Rows of `datapipe/kernels/text`."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np

from datapipe.kernels.redact.stand_ins import REPLACEMENT_BYTES
from datapipe.kernels.text import (
    english_words,
    json_strings,
    jsonlines,
    line_spans,
    normalize,
    raw_lines,
    replace,
    sentences,
    unicode_words,
    word_counts,
    words,
)
from datapipe.kernels.text.english_signs import sign_table
from datapipe.kernels.text.marks import mark_table
from datapipe.kernels.text.unicode_classes import LETTER, class_table, composition_table, plain_sizes, stable_table
from datapipe.kernels.text.words import room_for_spans
from datapipe.kernels.types import room_for
from tests.oracles import english as english_oracle
from tests.oracles import read as read_oracle
from tests.oracles import texts as texts_oracle
from tests.support.kernel_table import Case, Steps, columns, joined, offsets_of, room, row

_WIDE_SPACES = {chr(code).encode()[:2] for code in range(0x80, sys.maxunicode + 1) if chr(code).isspace()}
"""The first two bytes of every white space beyond ASCII."""


def _spans(case: Case, find: Callable[[bytes], list[texts_oracle.Span]]) -> list[Any]:
    """What a kernel writes to `SpansOut`: the first span of each document, and the columns of all spans."""
    found = [find(text) for text in case.texts]
    rows = [span._replace(start=span.start + begin) for begin, own in zip(case.begins, found) for span in own]
    return [offsets_of(found), *columns(rows, 5)]


@row(words.split_words)
def split_words(case: Case) -> Steps:
    """Room for one word per byte: the kernel that computes the upper bound has its own row."""
    yield [case.offsets, case.data, class_table()], [room_for_spans(len(case.offsets), len(case.data))]
    spans = _spans(case, texts_oracle.words)
    yield len(spans[1]), spans


@row(words.split_lines, texts_oracle.lines, 1)
@row(words.split_lines, texts_oracle.paragraphs, 2, variant="paragraphs")
def split_lines(case: Case, find: Callable[[bytes], list[texts_oracle.Span]], newlines: int) -> Steps:
    yield [case.words, case.data, newlines], [room_for_spans(len(case.offsets), len(case.words.starts))]
    spans = _spans(case, find)
    yield len(spans[1]), spans


@row(word_counts.count_words)
def count_words(case: Case) -> Steps:
    yield [case.offsets, case.data, class_table()], room(len(case.texts), np.int64)
    yield None, [[len(texts_oracle.words(text)) for text in case.texts]]


@row(words.most_words)
def most_words(case: Case) -> Steps:
    """White space that a word may follow: ends of runs in ASCII, and bytes that start like longer white space."""
    yield [case.offsets, case.data], []
    text = b"".join(case.texts)
    spaces = [chr(byte).isspace() and byte < 0x80 for byte in text]
    ends = sum(space and not following for space, following in pairwise(spaces))
    yield len(case.texts) + ends + sum(text[index : index + 2] in _WIDE_SPACES for index in range(len(text) - 1)), []


_CHUNKS = (
    "don't Don’t cannot, couldn't've (can't) Mr. Mrs., U.S. e.g., 10am 5km/h 12kg. 3% $5 5$ US$5 +5 +x 5+ word. word.Word "
    "re-use x--y 1-2 1990-1995 a/b and/or a,b 1,000 wait... ...so …x “quoted.” ('s) dog's DOG'S ’s :) http://a-b.com/c-d "
    "www.x.org:80/y me@mail.org/x-y a_b-c x@y me@1.co ://a.bc ab://c-d a.b-c.de/ f-g.h:1 f-g.hi:123456 :-D !!!??? ((a)) — – "
    "(so): so'' ('' ''. itd. (Mr.Mrs.) e.Kr. 350°F. 10°C. °F. (:) ):-) a.,b so|. 5км² 5US$ x…♥y a♥♥b ǅ-a და-და है. หน. 🫶a "
    "a.Éa a.éa 🙂.com a.bcd.é x.É/y www.é.com <space> \\n (^_^) 5كم p.m.… "
    "a—b a–b AB. A. b. .. . x²-y cm² 5cm² é.É ж,ж 中.中 ♥x♥ x♥y '' it's. C++ °C. 1.a ~ a~b #tag"
)


def _english(case: Case) -> Case:
    """The texts, every fourth followed by chunks that exercise every rule."""
    ends = (b"\n" + _CHUNKS.encode(), b"", b"", b"")
    return case.having((text + ends[number % 4] for number, text in enumerate(case.texts)), b"a", b"a")


@row(english_words.cut_words)
def cut_words(case: Case) -> Steps:
    case = _english(case)
    tables = [english_words.content_table(), sign_table(), english_words.wholes_table(), english_words.unit_hashes()]
    out = room_for_spans(len(case.offsets), len(case.data))
    yield [case.words, case.data, *tables, english_words.no_recent()], [out]
    spans = _spans(case, english_oracle.english_words)
    yield len(spans[1]), spans


@row(english_words.most_english_words, valid_only=True)
def most_english_words(case: Case) -> Steps:
    """Four words per contraction of letters, one per other chunk of letters, else one per byte."""
    case = _english(case)
    yield [case.words, english_words.wholes_table()], []
    count = 0
    for chunk in (chunk for text in case.texts for chunk in text.decode().split()):
        if all(texts_oracle.kind(character) == LETTER for character in chunk):
            count += 4 if chunk in english_oracle.WHOLES else 1
        else:
            count += len(chunk.encode())
    yield count, []


_SCRIPTS = (
    "\nDon't 3.50, x_y _x a.b. 1,000;5 can’t... 太郎とカナ aカa ไทยนี้๑๒ बनमस्ते བོད á̧b 9a.b1 a'1 ’a’ ʼx १२.३ a\u200db ក្រ ½3½ Ⅳa"
    " א\"א א'1 א'א a'\u0301b a_カ_1 ‿a ａ＿ｂ ﾊﾟ a\u00adb 1’2 a·b 3:4 Ⓐb ، ٣٫٤ ㌀カ"
)


def _scripts(case: Case) -> Case:
    return case.having((text + _SCRIPTS.encode() for text in case.texts), b"a", b"a")


@row(unicode_words.split_unicode_words)
def split_unicode_words(case: Case) -> Steps:
    case = _scripts(case)
    out = room_for_spans(len(case.offsets), len(case.data))
    yield [case.offsets, case.data, class_table(), unicode_words.role_table()], [out]
    spans = _spans(case, english_oracle.unicode_words)
    yield len(spans[1]), spans


@row(unicode_words.most_unicode_words)
def most_unicode_words(case: Case) -> Steps:
    """A word per first byte of a longer character, and per run of ASCII letters, digits and underscores."""
    case, count = _scripts(case), 0
    yield [case.offsets, case.data, unicode_words.role_table()], []
    for text in case.texts:
        joins = [byte < 0x80 and (chr(byte).isalnum() or byte == ord("_")) for byte in text]
        count += sum(byte >= 0xC0 for byte in text) + sum(here and not before for before, here in pairwise([False, *joins]))
    yield count, []


def _edited(case: Case) -> tuple[Case, np.ndarray]:
    """Texts made of some documents of a case, of which lines are left out, changed, moved and copied; and the documents."""
    rng, documents, texts = random.Random(case.seed), [], []
    for number, text in enumerate(case.texts):
        if rng.random() < 0.7:
            lines = text.split(b"\n")
            if rng.random() < 0.2:
                rng.shuffle(lines)
            kept = [line for line in lines if rng.random() < 0.8]
            changed = [line + b" [1]" if rng.random() < 0.2 else b"  " * rng.randrange(2) + line for line in kept]
            documents.append(number)
            texts.append(b"\n".join(changed))
    return case.having(texts, b"1234567", b""), np.array(documents, np.int64)


@row(line_spans.align_lines)
def align_lines(case: Case) -> Steps:
    edited, rows = _edited(case)
    lines = room_for(line_spans.EarlierLinesOut, sum(text.count(b"\n") + 1 for text in case.texts))
    out = room_for(line_spans.LineSpansOut, sum(text.count(b"\n") + 1 for text in edited.texts))
    out = out._replace(doc_offsets=np.empty(len(edited.offsets), np.int64))
    yield [case.words, case.offsets, case.data, rows, edited.offsets, edited.data, lines], [out]
    spans = [texts_oracle.line_spans(case.texts[number], text) for number, text in zip(rows, edited.texts, strict=True)]
    expected = []
    for number, begin, own in zip(rows, edited.begins, spans, strict=True):
        first, moved = int(case.words.doc_offsets[number]), begin - case.begins[number]
        for span in own:
            at, by = (begin, 0) if span.is_new else (first, span.moved + moved)
            expected.append((span.first + at, span.stop + at, by, span.is_new))
    yield len(expected), [offsets_of(spans), *columns(expected, 4)]


@row(line_spans.copy_words)
def copy_words(case: Case) -> Steps:
    """The words of edited texts, by those of the texts before."""
    edited, rows = _edited(case)
    spans = line_spans.spans_of_lines(case.words, (case.offsets, case.data), rows, (edited.offsets, edited.data))
    new = zip(spans.firsts[spans.is_new], spans.stops[spans.is_new], strict=True)
    lines = case.having((edited.data[start:stop].tobytes() for start, stop in new), b"", b"")
    whole = line_spans.with_new_words(spans, lines.words, lines.offsets)
    out = room_for_spans(len(edited.offsets), int((whole.stops - whole.firsts).sum()))
    yield [case.words, lines.words, whole], [out]
    yield None, _spans(edited, texts_oracle.words)


@row(raw_lines.widen_lines)
def widen_lines(case: Case) -> Steps:
    yield [case.offsets, case.data, case.lines], room(len(case.lines.starts), np.uint64, np.int32, np.uint8)
    yield None, columns((line for text in case.texts for line in texts_oracle.raw_lines(text)), 3)


@row(raw_lines.count_totals)
def count_totals(case: Case) -> Steps:
    """Bytes that begin a character, newlines, whether the text begins and ends with a newline."""
    yield [case.offsets, case.data], room((len(case.texts), 4), np.int64)
    begun = [sum(byte & 0xC0 != 0x80 for byte in text) for text in case.texts]
    ends = [(text.count(b"\n"), text.startswith(b"\n"), text.endswith(b"\n")) for text in case.texts]
    yield None, [[(count, *own) for count, own in zip(begun, ends)]]


_SWITCHES = list(product((True, False), repeat=2))


def survey(case: Case, fix_newlines: bool, strip_control: bool) -> Steps:
    stable, actions = stable_table("NFC"), normalize.actions(fix_newlines, strip_control)
    yield [case.offsets, case.data, actions, stable, fix_newlines, strip_control], room(len(case.texts), np.uint8)
    touched = [texts_oracle.is_touched(text, fix_newlines, strip_control) for text in case.texts]
    unstable = [any(not stable[ord(character)] for _, character, _ in texts_oracle.characters(text)) for text in case.texts]
    yield None, [[is_touched | 2 * is_unstable for is_touched, is_unstable in zip(touched, unstable)]]


def rewrite(case: Case, fix_newlines: bool, strip_control: bool) -> Steps:
    inputs = [case.offsets, case.data, normalize.actions(fix_newlines, strip_control), fix_newlines, strip_control]
    yield inputs, [*room(len(case.offsets), np.int64), *room(len(case.data), np.uint8)]
    texts = [texts_oracle.rewritten(text, fix_newlines, strip_control) for text in case.texts]
    yield None, [offsets_of(texts), joined(texts)]


for _fix, _strip in _SWITCHES:
    row(normalize.survey, _fix, _strip, variant=f"{_fix}-{_strip}")(survey)
    row(normalize.rewrite, _fix, _strip, variant=f"{_fix}-{_strip}")(rewrite)


@row(normalize.find_unstable, valid_only=True)
def find_unstable(case: Case) -> Steps:
    """Spans from the start of each text to some character of it."""
    rng, starts, table = random.Random(case.seed), case.offsets[:-1].copy(), composition_table()
    sizes = [rng.randint(0, len(text.decode())) for text in case.texts]
    stops = starts + [len(text.decode()[:size].encode()) for text, size in zip(case.texts, sizes)]
    inputs = [starts, stops.astype(np.int64), case.offsets[1:].copy(), case.data, table, plain_sizes()]
    yield inputs, room(len(starts), np.uint8)
    kinds = [[int(table[ord(character)]) for character in text.decode()] for text in case.texts]
    yield None, [[texts_oracle.may_change(own, size) for own, size in zip(kinds, sizes)]]


def spans_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Up to three spans in every text, ascending: starts and stops."""
    cuts = [np.unique(case.generator.integers(start, stop + 1, 6)).tolist() for start, stop in pairwise(case.offsets)]
    edges = [cut for own in cuts for cut in own[: len(own) // 2 * 2]]
    return np.array(edges[::2], np.int64), np.array(edges[1::2], np.int64)


@row(replace.copy_spans)
def copy_spans(case: Case) -> Steps:
    starts, stops = np.ascontiguousarray(np.sort(case.generator.integers(0, len(case.data) + 1, (9, 2))).T)
    yield [starts, stops, case.data], room(int((stops - starts).sum()), np.uint8)
    yield None, [np.concatenate([case.data[start:stop] for start, stop in zip(starts, stops)])]


@row(replace.replace_spans)
def replace_spans(case: Case) -> Steps:
    starts, stops = spans_of(case)
    rows = case.generator.integers(0, 256, (len(starts), REPLACEMENT_BYTES)).astype(np.uint8)
    lengths = case.generator.integers(0, REPLACEMENT_BYTES + 1, len(starts))
    num_bytes = int(case.offsets[-1] - case.offsets[0] - (stops - starts).sum() + lengths.sum())
    outputs = [*room(len(case.offsets), np.int64), *room(num_bytes, np.uint8)]
    yield [case.offsets, case.data, starts, stops, rows, lengths], outputs
    texts = []
    for begin, text in zip(case.begins, case.texts):
        own = np.flatnonzero((starts >= begin) & (starts < begin + len(text)))
        spans = [(int(starts[i] - begin), int(stops[i] - begin), rows[i, : lengths[i]].tobytes()) for i in own]
        texts.append(texts_oracle.replaced(text, spans))
    yield None, [offsets_of(texts), joined(texts)]


# fmt: off
_ENDS = (
    "Mr.", "vs.", "Mrs.", "U.S.", "J.", "a.", "9a.m.", "12p.m.", "13p.m.", "p.m.", "e.g.,", "(i.e.", "25g.", "x-co.",
    "and—Mr.", "so.--Mr.", "so--Mr.", "a----Mr.", ".—Mr.", "x:-Mr.", "…Mr.", "$A$.", "US$.", "(C$.)", "A$", "US.",
    "Mr.”", "(Mr.)", "said.Mr.", "etc.", "No.", "Ph.D.", "end.Begin", "end.begin", "www.Foo.com",
    "http://a.Bc.de/x?y", "a.B@c.de", "www.Foo.com:80", "www.Foo.com:8", "x.Y.z1", "wait...What", "wait…What",
    "...and", "!?", "!...", "?”", "Yahoo!'s", "it's.", "it’s!", "(so.)", "[so.])", "$5.", "5%.", "70°C.",
    "°C.", "(°f.)", "«°K.", "°c.", "A$.", "EU.", "US.", "Iq.", "字.", "字。字", "¿qué?", "؟", "।", "......", "..", ".", ".a",
    "+.", "+5.", "☺.", "a.☺", "|.", ">.", "«so.»", "''", ".'", "\t.", "\u00a0.", "'Tis.So", "so.'So", "so.”",
    "année.Étienne", "www.é.Éa", "a.Éé.fr", "год.Жизнь", "год.жизнь", "წელი.", "ปี.", "है.", "है.है", "ä.", "ǅ.", "ы.Ы@б.ру",
    "x.,y", "5°.", "™.”", "x☺.y", "a♥Mr.", "x.°C.♥y", "5°c.", "♥°K.☺", "°F.…", "㎏.Ma", "a♥b.de/x☺.Y", "♥..♥", "so☺.…",
    "°c.Xy", "🫶.", "♥.", "5км.", "Ѣ.", "é.É/é.fr", "a.B\u0301.c", "中.中", "字.Mr.",
)
# fmt: on


@row(sentences.sum_sentences)
def sum_sentences(case: Case) -> Steps:
    """The texts with some of their words replaced by what rules about sentences read."""
    case = case.spiced([end.encode() for end in _ENDS] + [b"a\tb", b"a."], 0.4)
    lines = case.lines.starts, case.lines.lengths, case.data, mark_table()
    ends, chunks = sentences.find_chunks(*lines)
    yield [*lines, ends, chunks, english_words.find_english_words(chunks, case.data)], room(len(lines[0]), np.int64)
    yield None, [[*map(english_oracle.sentences, case.spans(*lines[:2]))]]


_CONTROLS = bytes(range(33)) + b'"\\\x7f/'


def _escaped(case: Case) -> tuple[Case, list[bytes]]:
    """The texts, each with every character that is escaped, or with one; and as JSON strings."""
    texts = [text + _CONTROLS[number % 40 :] for number, text in enumerate([*case.texts, b"", _CONTROLS])]
    quoted = [json.dumps(text.decode(errors="surrogateescape"), ensure_ascii=False) for text in texts]
    return case.having(texts, b"\n\n", b'"'), [text.encode(errors="surrogateescape") for text in quoted]


@row(json_strings.measure_quoted)
def measure_quoted(case: Case) -> Steps:
    case, quoted = _escaped(case)
    yield [case.offsets, case.data], room(len(case.offsets), np.int64)
    yield None, [offsets_of(quoted)]


@row(json_strings.write_quoted)
def write_quoted(case: Case) -> Steps:
    case, quoted = _escaped(case)
    yield [case.offsets, case.data], room(sum(map(len, quoted)), np.uint8)
    yield None, [joined(quoted)]


_ODD = [
    '{"\\u0069d": 1.50, "meta": {"id": "inner", "näme": [1, {"id": 2}]}}',
    ' {"meta" : { "n\\u00e4me" :\t"\\ud83d\\ude00 \\u0000\\/\\"\\\\\\b\\f\\n\\r\\t" } , "id" : null}\t',
    '{"a": {"id": 3}, "b": ["id", "}", "]"], "id": -1e+30, "id": "again"}',
    '{"meta": 3, "id": true}',
    '{"meta": {}, "idd": 1, "i": 2, "": 3}',
    '{"id": "", "meta": {"näme": {"x": "}{"}}}',
    "{}",
]


def _lines(lines: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bytes, starts and stops of lines between newlines."""
    offsets = np.cumsum([0, *(len(line) + 1 for line in lines)], dtype=np.int64)
    return np.frombuffer(b"\n".join(lines), np.uint8), offsets[:-1].copy(), offsets[1:] - 1


@row(jsonlines.find_values, "id", variant="id")
@row(jsonlines.find_values, "meta", "näme", variant="meta.näme")
def find_values(case: Case, *names: str) -> Steps:
    """Objects with the texts of the case as keys and values, escaped and not, before and after the fields to find."""
    rows = list[str]()
    for number, text in enumerate(text.decode(errors="replace") for text in case.texts):
        record: dict[str, Any] = {"text": text, text + "!": [text, {"id": number}], "id": text if number % 2 else number / 3}
        if number % 3:
            record = {"meta": {text + "?": None, "näme": text if number % 2 else [text]}, **record}
        rows.append(json.dumps(record, ensure_ascii=number % 4 < 2))
    lines, path = [line.encode() for line in rows + _ODD], jsonlines.FieldPath(names)
    data, starts, stops = _lines(lines)
    known = [read_oracle.find_value(line, [b"text"]) if number % 2 else (-1, -1) for number, line in enumerate(lines)]
    begins = zip(starts.tolist(), known)
    outputs = np.array([(start + a, start + b) if a >= 0 else (-1, -1) for start, (a, b) in begins], np.int64).T.copy()
    yield [data, starts, stops, path.names, path.parts, path.scratch], [*outputs]
    spans = [read_oracle.find_value(line, [name.encode() for name in names]) for line in lines]
    begins = zip(starts.tolist(), spans)
    yield None, columns(((start + a, start + b) if a >= 0 else (-1, -1) for start, (a, b) in begins), 2)


@row(jsonlines.copy_values)
def copy_values(case: Case) -> Steps:
    values = [b"null", b'"\\uD83D\\uDE00\\u00e9\\u4e2d\\u000a"', b"12", b"NaN", b'{"a": "b"}', b'""']
    for number, text in enumerate(case.texts):
        values.append(json.dumps(text.decode(errors="replace"), ensure_ascii=bool(number % 2)).encode())
    data, starts, stops = _lines(values)
    outputs = [*room(len(values) + 1, np.bool_), *room(len(values) + 2, np.int64), *room(len(data), np.uint8)]
    yield [data, np.append(starts, -1), np.append(stops, -1)], outputs
    texts = [read_oracle.as_text(value) for value in [*values, None]]
    there = [text or b"" for text in texts]
    yield None, [[text is not None for text in texts], offsets_of(there), joined(there)]


@row(jsonlines.classify_lines)
def classify_lines(case: Case) -> Steps:
    frames = [(b"", b""), (b"{", b"}"), (b" \t{", b"}\r"), (b"", b" \t\r")]
    lines = [frames[number % 4][0] + text + frames[number % 4][1] for number, text in enumerate([*case.texts, b"", b" \r"])]
    offsets = offsets_of(lines)
    yield [np.frombuffer(b"".join(lines), np.uint8), offsets[:-1].copy(), offsets[1:].copy()], room(len(lines), np.uint8)
    yield None, [[*map(read_oracle.line_kind, lines)]]
