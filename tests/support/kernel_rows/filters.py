"""Rows of `datapipe/kernels/filters` that measure documents; those that work line by line are in `filtered_lines`."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from datapipe.kernels.dedup.case_folding import fold_texts, word_folding
from datapipe.kernels.filters import code, fineweb, letters, quality, repetition, url, url_lists, word_lists
from datapipe.kernels.text import unicode_classes
from datapipe.kernels.text.raw_lines import find_raw_lines
from datapipe.kernels.text.unicode_classes import class_table
from datapipe.kernels.text.words import Lines, Words
from tests.oracles import filters as filters_oracle
from tests.oracles import lines as lines_oracle
from tests.oracles.case_folding import words as folded_words
from tests.oracles.dedup import word_hash
from tests.oracles.texts import characters
from tests.support.kernel_table import Case, Steps, columns, grouped, joined, offsets_of, room, row

_MARKERS = (b"generated", b"do not edit", b"the", b"aab", "é".encode())
_UNITS = b"12|ab,|0x1F,|\\x48|7f |00\n|\\u00e9|A+/=|aaaaaaaaaaa|0x12, |\xc3\xa9|\\".split(b"|")


def _containing(case: Case, extra: Sequence[bytes]) -> Case:
    """The texts with encoded data, whole and in fragments, between and inside them."""
    rng, texts = random.Random(case.seed), list[bytes]()
    for text in case.texts:
        index = rng.randint(0, len(text))
        inside = b"".join(rng.choice(extra) * rng.choice((1, 2, 7, 8, 9, 20)) for _ in range(rng.randint(0, 4)))
        texts.append(text[:index] + inside + text[index:])
    return case.having(texts, b"a\\", b"x12,\n")


@row(code.measure_code)
def measure_code(case: Case) -> Steps:
    yield [case.offsets, case.data, class_table()], room((len(case.texts), 6), np.float64)
    yield None, [[*map(filters_oracle.measures, case.texts)]]


@row(code.measure_encoded)
def measure_encoded(case: Case) -> Steps:
    case = _containing(case, _UNITS)
    yield [case.offsets, case.data, code.BYTE_KINDS], room((len(case.texts), 2), np.int64)
    yield None, [[*map(filters_oracle.encoded, case.texts)]]


@row(code.first_lines)
def first_lines(case: Case) -> Steps:
    num_lines = case.seed % 4
    yield [case.offsets, case.data, num_lines], room(len(case.texts), np.int64)
    yield None, [[begin + len(filters_oracle.beginning(text, num_lines)) for begin, text in zip(case.begins, case.texts)]]


@row(code.find_markers)
def find_markers(case: Case) -> Steps:
    case = _containing(case, [b"GENERATED", b"do not", b" edit", b"aa", b"ab", b"\xc3"])
    stops = case.generator.integers(case.offsets[:-1], case.offsets[1:] + 1)
    inputs = [case.offsets, stops, case.data, offsets_of(_MARKERS), joined(_MARKERS)]
    yield inputs, [np.zeros(len(case.texts), np.uint8)]
    texts = [case.data[start:stop].tobytes().lower() for start, stop in zip(case.begins, stops)]
    yield None, [[any(marker in text for marker in _MARKERS) for text in texts]]


@row(fineweb.measure_ends)
def measure_ends(case: Case) -> Steps:
    ends, short_chars = ".!?…ж中\U0001da88", 6
    with np.errstate(over="ignore"):
        raw = find_raw_lines(case.offsets, case.data, case.lines)
    inputs = [case.lines, raw, case.data, fineweb.ends_table(ends), short_chars]
    yield inputs, [np.zeros((len(case.texts), 3), np.int64)]
    yield None, [[filters_oracle.ends_of_text(text, ends, short_chars) for text in case.texts]]


_LETTERS = "\nDéjà vu ё 漢字かなカナ ｶﾅ 한국어 ኢትዮጵያ ꀀꀁ ꕉ हिन्दी ไทยนี้ a\u0301 عَربي שָׁלוֹם 々〇Ⅳ"
_IDEOGRAPHS = ("CJK ", "HANGUL SYLLABLE", "YI SYLLABLE", "KHITAN ", "TANGUT COMPONENT")
_SYLLABLES = ("ETHIOPIC ", "HIRAGANA ", "KATAKANA", "HALFWIDTH KATAKANA", "HENTAIGANA ", "VAI ")
_VOWEL_MARKS = re.compile("[\u0900-\u1aaf\u1b00-\u1c7f\ua800-\uabff\U00011000-\U00011fff]")


def _weight(character: str) -> int:
    """The letters that a character counts as, by its name. Tangut ideographs have none."""
    category, name = unicodedata.category(character)[0], unicodedata.name(character, "")
    if category == "M":
        return int(bool(_VOWEL_MARKS.match(character)))
    if category != "L":
        return 0
    if not name or name.startswith(_IDEOGRAPHS):
        return 3
    return 2 if name.startswith(_SYLLABLES) else 1


@row(letters.count_letters)
def count_letters(case: Case) -> Steps:
    case = case.having([*case.texts, _LETTERS.encode()])
    starts, stops = case.offsets[:-1], case.offsets[1:].copy()
    yield [starts, stops, case.data, letters.letter_weights()], room(len(case.texts), np.int64)
    yield None, [[sum(_weight(character) for _, character, _ in characters(text)) for text in case.texts]]


def prefix_stops(case: Case, num_chars: int) -> Steps:
    yield [case.offsets, case.data, num_chars], room(len(case.texts), np.int64)
    beginnings = [text.decode()[:num_chars].encode() for text in case.texts]
    yield None, [[begin + len(beginning) for begin, beginning in zip(case.begins, beginnings)]]


for _num_chars in (0, 1, 7, 400):
    row(unicode_classes.prefix_stops, _num_chars, variant=f"{_num_chars} characters", valid_only=True)(prefix_stops)

_STOP_WORDS, _BULLETS = ("the", "be", "to", "of", "and", "that", "have", "with", "ж"), "•‣◦●▪-*"


def _by_document(case: Case, spans: Words | Lines) -> list[list[bytes]]:
    """The words or lines of every document."""
    return grouped(spans.doc_offsets, case.spans(spans.starts, spans.lengths))


@row(quality.count_word_starts)
def count_word_starts(case: Case) -> Steps:
    yield [case.offsets, case.data, class_table()], room(len(case.texts), np.int64)
    yield None, [[*map(filters_oracle.word_starts, case.texts)]]


@row(quality.count_words)
def count_words(case: Case) -> Steps:
    yield [case.words], [np.zeros((len(case.texts), 5), np.int64)]
    yield None, [[*map(filters_oracle.quality_of_words, _by_document(case, case.words))]]


@row(quality.count_symbols)
def count_symbols(case: Case) -> Steps:
    yield [case.offsets, case.data], [np.zeros((len(case.texts), 3), np.int64)]
    yield None, [[*map(filters_oracle.symbols_of_text, case.texts)]]


@row(quality.count_stop_words, "exact", variant="exact")
@row(quality.count_stop_words, "folded", variant="folded")
@row(quality.count_stop_words, "stripped", variant="stripped")
def count_stop_words(case: Case, compare: str) -> Steps:
    lists, list_of_doc = (_STOP_WORDS, (), _STOP_WORDS[:2]), np.arange(len(case.texts)) % 3
    tables, scratch = quality.stop_word_tables(lists, list_of_doc, compare != "exact"), np.zeros(len(_STOP_WORDS), np.int64)
    inputs = [case.words, case.data, class_table(), tables, compare == "stripped", scratch]
    yield inputs, [np.zeros((len(case.texts), 2), np.int64)]
    documents = zip(_by_document(case, case.words), list_of_doc)
    yield None, [[filters_oracle.stop_words(own, lists[number], compare) for own, number in documents]]


@row(quality.count_lines, False)
@row(quality.count_lines, True, variant="spaced")
def count_lines(case: Case, spaced: bool) -> Steps:
    bullets = np.array([ord(sign) for sign in _BULLETS])
    yield [case.lines, case.data, bullets, spaced], [np.zeros((len(case.texts), 2), np.int64)]
    yield None, [[filters_oracle.of_lines(own, _BULLETS, spaced) for own in _by_document(case, case.lines)]]


_LARGE, _TINY = 1 << 16, 8
"""Slots of hash tables. The tiny ones make every document take many parts, and parts overflow."""


def _units(spans: Lines | Words) -> tuple[repetition.Units, list[tuple[list[int], list[int]]]]:
    """Lines or words, and their hashes and characters by document."""
    units = repetition.Units(doc_offsets=spans.doc_offsets, hashes=spans.hashes, chars=spans.chars)
    hashes, chars = (grouped(units.doc_offsets, column.tolist()) for column in (units.hashes, units.chars))
    return units, list(zip(hashes, chars))


@row(repetition.join_lines, 0)
@row(repetition.join_lines, 1, variant="with newlines")
def join_lines(case: Case, joint_chars: int) -> Steps:
    (units, documents), opens = _units(case.lines), case.lines.opens
    outputs = [np.zeros_like(units.doc_offsets), *room(len(opens), np.uint64, np.int32)]
    yield [units, opens, joint_chars], outputs
    own_opens = grouped(units.doc_offsets, opens.tolist())
    found = [filters_oracle.paragraphs(*own, first, joint_chars) for own, first in zip(documents, own_opens)]
    hashes, chars = ([entry for columns_of_doc in found for entry in columns_of_doc[part]] for part in (0, 1))
    yield None, [offsets_of(own for own, _ in found), hashes, chars]


@row(repetition.measure_units, _LARGE, False)
@row(repetition.measure_units, _LARGE, True, variant="every")
@row(repetition.measure_units, _TINY, True, variant="tiny table")
def measure_units(case: Case, slots: int, every: bool) -> Steps:
    units, documents = _units(case.lines)
    yield [units, every, repetition.room_for_repeats(units, slots)], [np.zeros((len(case.texts), 4), np.int64)]
    yield None, [[filters_oracle.of_units(*own, every) for own in documents]]


@row(repetition.measure_ngrams, _LARGE, False)
@row(repetition.measure_ngrams, _TINY, False, variant="tiny table")
@row(repetition.measure_ngrams, _TINY, True, variant="tiny table, joined")
def measure_ngrams(case: Case, slots: int, is_joined: bool) -> Steps:
    units, documents = _units(case.words)
    yield [units, is_joined, repetition.room_for_repeats(units, slots)], [np.zeros((len(case.texts), 9), np.int64)]
    yield None, [[filters_oracle.repetition_of_words(*own, is_joined) for own in documents]]


_PARTS = [b"http://", b"HTTPS://", b"https", b"://", b"www.", b"WWW.", b"/", b"?", b"#", b"@", b":", b"[", b"]", b"::1", b"."]
_PARTS += [b"Example.COM", b"utm_", b"ref", b"feed", b"?utm_x=1", b"//", b"ftp:", b"a", b"Z", b"\xc3\xa9", b"\n", b"80"]


def _urls(case: Case) -> Case:
    """Each text, cut short, inside a URL or a fragment of one."""
    rng, made = random.Random(case.seed), list[bytes]()
    for text in case.texts:
        parts = rng.choices(_PARTS, k=rng.randint(0, 8))
        made.append(b"".join([*parts[:4], rng.choice([b"", text[:300]]), *parts[4:]]))
    return case.having(made, b"w.", b"//?ref")


def _ranges(case: Case) -> list[np.ndarray]:
    return [case.offsets[:-1], case.offsets[1:], case.data]


@row(url.normalize)
def normalize(case: Case) -> Steps:
    case = _urls(case)
    yield _ranges(case), [*room(len(case.offsets), np.int64), *room(len(case.data), np.uint8)]
    texts = list(map(lines_oracle.normalized, case.texts))
    yield None, [offsets_of(texts), joined(texts)]


@row(url.find_hosts)
def find_hosts(case: Case) -> Steps:
    case = case.having(map(lines_oracle.normalized, _urls(case).texts), b"w.", b"//?ref")
    yield [case.offsets, case.data], room(len(case.texts), np.int64, np.int64)
    hosts = [lines_oracle.host_range_without_www(text) for text in case.texts]
    yield None, columns(((begin + start, begin + stop) for begin, (start, stop) in zip(case.begins, hosts)), 2)


def _hashes(texts: Sequence[bytes]) -> np.ndarray:
    return np.array([lines_oracle.hashed(text) for text in texts], np.uint64)


@row(url_lists.hash_backwards)
def hash_backwards(case: Case) -> Steps:
    case = _urls(case)
    yield _ranges(case), room(len(case.texts), np.uint64)
    yield None, [_hashes(case.texts)]


@row(url_lists.fill_table)
def fill_table(case: Case) -> Steps:
    hashes = _hashes(_urls(case).texts)
    size = 1 << max(1, (2 * len(hashes)).bit_length())
    yield [hashes], [np.zeros(size, np.uint64)]
    yield None, [np.array(lines_oracle.table(hashes.tolist(), size), np.uint64)]


@row(url_lists.find_hashes)
def find_hashes(case: Case) -> Steps:
    """Every other URL is in the list."""
    hashes = _hashes(_urls(case).texts)
    yield [hashes, url_lists.hash_table(hashes[::2].copy())], room(len(hashes), np.uint8)
    listed = {0, *hashes[::2].tolist()}
    yield None, [[key in listed for key in hashes.tolist()]]


@row(url_lists.find_domains)
def find_domains(case: Case) -> Steps:
    """Every other domain of two labels is in the list."""
    case = _urls(case)
    domains = [lines_oracle.domains(host) for host in case.texts]
    listed = sorted({own[-2:][0] for own in domains if own})[::2]
    yield [*_ranges(case), url_lists.hash_table(_hashes(listed))], room(len(case.texts), np.uint8)
    yield None, [[any(domain in listed for domain in own) for own in domains]]


_PATTERNS = (b"a", b"com", b"example com", b"www", b"80", b"the", b"e", b"be", b"80 a", b"\xc3\xa9", b"ref", b"the a", b"he")


@row(url_lists.count_words, True, variant="whole")
@row(url_lists.count_words, False, variant="parts")
def count_listed_words(case: Case, whole: bool) -> Steps:
    case, first_soft = _urls(case), 5
    patterns = [b" " + pattern + b" " if whole else pattern.replace(b" ", b"") for pattern in _PATTERNS]
    inputs = [case.offsets, case.data, url_lists.automaton(patterns), first_soft, whole]
    yield inputs, room((len(case.texts), 2), np.int64)
    occurring = [lines_oracle.occurring(patterns, text, whole) for text in case.texts]
    yield None, [[[sum(own[:first_soft]), sum(own[first_soft:])] for own in occurring]]


_NUM_LISTS, _MOST_ENTRIES = 3, 40


@row(word_lists.find_listed)
def find_listed(case: Case) -> Steps:
    """Lists of runs of words of the case itself, each with the bits of some lists, and of other words."""
    rng, entries = random.Random(case.seed), dict[tuple[bytes, ...], int]()
    found = [folded_words(text)[:2000] for text in case.texts]
    for own in (own for own in found if own):
        for _ in range(_MOST_ENTRIES // len(found) + 1):
            start = rng.randrange(len(own))
            entries[tuple(own[start : start + rng.choice([1, 1, 2, 3])])] = rng.randrange(1, 1 << _NUM_LISTS)
    entries[b"never", b"there"] = 1
    masks = [rng.randrange(1 << _NUM_LISTS) for _ in case.texts]
    table = word_lists.word_lists({tuple(map(word_hash, entry)): bits for entry, bits in entries.items()})
    inputs = [*fold_texts(case.offsets, case.data, word_folding()), table, np.array(masks, np.uint64)]
    yield inputs, [word_lists.ListedOut(*room(len(case.texts), *[np.int64] * 3))]
    yield None, columns((filters_oracle.count(text, entries, mask) for text, mask in zip(case.texts, masks)), 3)


@row(word_lists.hash_words)
def hash_words(case: Case) -> Steps:
    offsets, folded = fold_texts(case.offsets, case.data, word_folding())
    yield [offsets, folded], [*room(int(offsets[-1]) + 1, np.uint64), *room(len(case.texts), np.int64)]
    found = [folded_words(text) for text in case.texts]
    yield None, [[word_hash(word) for own in found for word in own], list(map(len, found))]
