"""Rows of `datapipe/kernels/redact`: the texts with secrets, addresses and numbers in and around them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from datapipe.kernels.hashing import num_slots_for
from datapipe.kernels.redact import assignments, copies, identifiers, keywords, pii, stand_ins, tokens
from datapipe.kernels.redact.spans import FoundSpans, SpansOut
from datapipe.kernels.types import input_record, room_for
from stages.redact.secrets import KINDS
from tests.oracles import identifiers as identifiers_oracle
from tests.oracles import pii as pii_oracle
from tests.oracles import secrets as oracle
from tests.support.kernel_rows.text import spans_of
from tests.support.kernel_table import Case, Steps, columns, room, row
from tests.support.marked_spans import scraps
from tests.support.secret_texts import by_document, hits_of, rules, secret_texts, words

_SPAN = (np.int64, np.int64, np.uint8)
_EVERY_KIND = (1 << len(KINDS)) - 1


def _found(case: Case, find: Callable[[bytes], list[tuple[int, int, int]]]) -> tuple[int, list[Any]]:
    """The spans of every text, in the batch."""
    spans = [(begin + a, begin + b, kind) for begin, text in zip(case.begins, case.texts) for a, b, kind in find(text)]
    return len(spans), columns(spans, 3)


@row(keywords.find_keywords)
def find_keywords(case: Case) -> Steps:
    """From the first byte on, and from the middle."""
    case = secret_texts(case)
    first, last = case.offsets[[0, -1]].tolist()
    start = first if case.seed % 2 else max(first, last // 2)
    out = keywords.HitsOut(*room(20 * len(case.data) + 99, np.int64, np.int32), *room(1, np.int64))
    yield [case.offsets, case.data, start, rules().keywords], [out]
    places = {word: number for number, word in enumerate(words())}
    found = [(begin, oracle.find_keywords(text, words())) for begin, text in zip(case.begins, case.texts)]
    hits = [(begin + at, places[word]) for begin, own in found for at, word in own if begin + at >= start]
    yield len(hits), [*columns(hits, 2), [case.offsets[-1]]]


@row(tokens.match_forms)
def match_forms(case: Case) -> Steps:
    """Tokens of every issuer and their halves."""
    case = secret_texts(case)
    hits = hits_of(case)
    wanted = _EVERY_KIND if case.seed % 3 else int(case.generator.integers(0, _EVERY_KIND + 1))
    inputs = [case.offsets, case.data, hits, rules().forms, wanted, np.zeros(256, np.int64)]
    yield inputs, [room_for(SpansOut, len(hits.positions))]
    own = iter(by_document(case, hits))
    yield _found(case, lambda text: oracle.tokens(text, next(own), wanted))


@row(assignments.match_names)
def match_names(case: Case) -> Steps:
    """Values of every alphabet in every place."""
    case = secret_texts(case)
    hits, millibits = hits_of(case), 3500 if case.seed % 2 else 2000
    inputs = [case.offsets, case.data, hits, rules().names, _EVERY_KIND, millibits, np.zeros(256, np.int64)]
    yield inputs, [room_for(SpansOut, len(hits.positions))]
    own = iter(by_document(case, hits))
    yield _found(case, lambda text: oracle.values(text, next(own), _EVERY_KIND, millibits))


@row(copies.find_copies)
def find_copies(case: Case) -> Steps:
    """Texts that are repeated, and spans of any words in them."""
    texts = secret_texts(case).texts
    case = case.having(((text + text[len(text) // 3 :] + text[::2])[:1500] for text in texts), b"ghp_", b"AK")
    spans = list[tuple[int, int, int]]()
    for begin, text in zip(case.begins, case.texts):
        start, end = begin, begin + len(text)
        while start + 10 < end and case.generator.random() < 0.9:
            stop = min(end, start + int(case.generator.integers(9, 40)))
            spans.append((start, stop, len(spans) % 32))
            start = stop + len(text) // 5
    arrays = [np.array(column, kind) for column, kind in zip(columns(spans, 3), _SPAN)]
    slots = np.empty(num_slots_for(max(len(spans), 1)), np.int32)
    yield [case.offsets, case.data, input_record(FoundSpans, arrays), slots], [room_for(SpansOut, len(case.data) // 12 + 1)]
    inside = iter([(a - begin, b - begin, kind) for a, b, kind in spans if begin <= a < end] for begin, end in _ranges(case))
    yield _found(case, lambda text: oracle.copies(text, next(inside)))


def _ranges(case: Case) -> list[tuple[int, int]]:
    return list(zip(case.begins, case.offsets[1:].tolist()))


_ADDRESSES = (
    "write to jane.doe@example.co.uk, or not",
    "at 8.8.8.8 and 10.0.0.1.",
    "version 1.2.3.4",
    "see 2001:4860:4860::8888.",
    "logo@2x.png a@b.com@c.com",
    "x@y z@1.2.3.4",
    "josé.núñez@correo.es, jane%40host.com, коля@почта.рф and 用户@例子.中国",
    "Git 1.4.2.1 from 1.4.2.1",
    'gem "rack", "2.2.6.4" and numpy==1.2.3.4 or ip == 8.8.4.4',
    "git@host.com:team/project.git jane＠host.com: x",
    "git clone https://bob:hunter2@git.example.net/x.git ftp://a:$PASS@h.com",
    "user-0123abcd@example.com ssh://user-0123abcd:password@h.com redis://:p@[::1]",
)
_NUMBERS = [*" .-+()/x_@$\n§\xa0\u2011\u2013\u202f\u3000＋（）－１２９é中☎ß", "te\u0301l", "टेली\u0301फोन"]
_NUMBERS += scraps("4111 1111 411111 10005 4111111111111111 4222222222222 card 3056 930902 GB82 WEST 1234 5698 7654 32 NO93")
_NUMBERS += scraps("86011117947 gb82 123 45 6789 666 00 SSN security number tel fax call 415 555 2671 +1 +41 (0) 0171 01 0044")
_NUMBERS += scraps("ext. тел ТЕЛ. номер 電話 電話は 전화 โทร. Tél： kom ho ITIN 912 70")


def _framed(case: Case, lines: tuple[str, ...], before: bytes, after: bytes) -> Case:
    """The texts, each between four of the lines."""
    drawn = case.generator.integers(0, len(lines), (len(case.texts), 4))
    ends = ("\n".join(lines[number] for number in numbers).encode() for numbers in drawn.reshape(-1, 2).tolist())
    framed = (b"\n".join([next(ends), text, next(ends)]) for text in case.texts)
    return case.having(framed, before, after)


@row(pii.find_spans, valid_only=True)
def find_spans(case: Case) -> Steps:
    case = _framed(case, _ADDRESSES, b"a@", b".de")
    yield [case.offsets, case.data, True, True, True], [room_for(SpansOut, len(case.data))]

    def find(text: bytes) -> list[tuple[int, int, int]]:
        read = text.decode()
        return [(len(read[:a].encode()), len(read[:b].encode()), kind) for a, b, kind in pii_oracle.find(read)]

    yield _found(case, find)


@row(identifiers.find_identifiers)
def find_identifiers(case: Case) -> Steps:
    """The texts, each between lines of numbers, their parts and words that announce them, with any signs between."""
    generator, lines = case.generator, list[str]()
    wanted = 63 if case.seed % 3 else int(generator.integers(0, 64))
    for _ in range(200):
        signs = generator.choice([" ", "-", ".", ""], 3)
        lines.append("".join(f"{part}{generator.choice(signs)}" for part in generator.choice(_NUMBERS, 10)))
    case = _framed(case, tuple(lines), b"4111", b"11")
    yield [case.offsets, case.data, wanted], [room_for(SpansOut, len(case.data))]
    yield _found(case, lambda text: identifiers_oracle.find(text, wanted))


@row(stand_ins.write_stand_ins)
def write_stand_ins(case: Case) -> Steps:
    """Spans of every kind at random in the texts."""
    starts, stops = spans_of(case)
    kinds = case.generator.integers(0, pii.SECRET + 1, len(starts)).astype(np.uint8)
    outputs = [np.zeros((len(starts), stand_ins.REPLACEMENT_BYTES), np.uint8), *room(len(starts), np.int64)]
    yield [case.data, starts, stops, kinds, np.uint64(case.seed)], outputs
    spans = [case.data[start:stop].tobytes() for start, stop in zip(starts, stops)]
    written = [pii_oracle.stand_in(span, kind, case.seed) for span, kind in zip(spans, kinds.tolist())]
    padded = [list(replacement.ljust(stand_ins.REPLACEMENT_BYTES, b"\0")) for replacement in written]
    yield None, [padded, list(map(len, written))]
