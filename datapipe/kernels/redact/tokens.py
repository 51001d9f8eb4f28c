"""Tokens of a known form: a keyword, and runs of characters behind and before it.

    rules (data)  --compiled once-->  alphabets, runs, facts of each form
    hits of keywords  --runs-->  start, stop and kind of the token

A form is written as runs: `hex{32}` is a run of 32 characters of the alphabet `hex`, `token{20,64}` one of 20 to 64, and a
sign alone is itself. A run takes as many characters as it may and gives none back, so the cost is linear. The token stands
between `(` and `)` where the form has them, else it is the keyword with its runs.

No letter, digit, `_` or `-` is before or behind a token, and no character of its last alphabet but the dot of a sentence.
The keyword is written as in the rule, case included; the rest has the entropy and the evidence of the rule
(`randomness.py`). At one byte the longest keyword wins, and of its forms the first that fits.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import starts_with
from datapipe.kernels.redact.ascii import BASE64, TOKEN, UPPER, is_in
from datapipe.kernels.redact.keywords import Hits
from datapipe.kernels.redact.randomness import BITS, best_evidence, has_entropy, is_mixed, is_placeholder
from datapipe.kernels.redact.spans import SpansOut
from datapipe.kernels.types import Int32s, Int64Matrix, Int64s, Int64sOut, UInt8s, UInt64s, input_record

NO_KIND = -1
_MAX_PEM_BYTES = 16_384
_SPACE, _DASH, _DOT, _COMMA, _SEMICOLON = (ord(sign) for sign in " -.,;")
_BEGIN, _END, _DASHES = (np.frombuffer(text, np.uint8) for text in (b"-----BEGIN", b"-----END", b"-----"))
_KEY, _BLOCK = np.frombuffer(b"PRIVATE KEY", np.uint8), np.frombuffer(b" BLOCK", np.uint8)
_RUN = re.compile(r"(\w{2,}|[^\w\s])(?:\{(\d+)(?:,(\d+))?\})?|_|\w")
PEM = "pem"  # the form of a whole PEM block


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    kind: int
    keyword: str
    number: int  # of the keyword in the table of keywords
    # before, after: runs before and behind the keyword
    before: str
    after: str
    millibits: int  # least entropy, for values of 32 different characters
    evidence: float  # least evidence, in bits
    is_open: bool  # whether anything may follow
    unless: str  # a sign that may not be before the token; "" for none
    is_mixed: bool  # whether random characters include digits, capitals and small letters


class Forms(NamedTuple):
    alphabets: UInt64s  # (256,), a bit for each alphabet that a byte is in
    of_keyword: Int32s  # (num_keywords + 1,), where the forms of each keyword start
    # (num_forms + 1, 13): kind; where its keyword, its runs before and its runs behind start, and
    # where these stop; the runs behind up to the secret (-1: the keyword is in it) and up to its end;
    # least entropy; least evidence (64ths of a bit); whether anything may follow; a byte that may not
    # be before; whether it is a PEM block; whether digits, capitals and small letters must be in it
    facts: Int64Matrix
    runs: Int64Matrix  # (num_runs, 3): bit number of the alphabet, least and most characters
    words: UInt8s  # the keywords one after the other
    # placeholders, masks: the words of `is_placeholder`
    placeholders: UInt64s
    masks: UInt64s


_KIND, _WORD, _BEFORE, _AFTER, _STOP, _FIRST, _LAST, _MILLIBITS, _EVIDENCE, _OPEN, _UNLESS, _PEM, _MIXED = range(13)


class _Alphabets:
    """The alphabets of the rules and single signs, a bit each."""

    def __init__(self, written: Mapping[str, str]) -> None:
        self._written, self._bits, self.of_byte = written, dict[str, int](), np.zeros(256, np.uint64)

    def bit_of(self, name: str) -> int:
        """Raises KeyError for an unknown name, ValueError for more than 64 alphabets."""
        if name not in self._bits:
            if len(self._bits) == 64:
                raise ValueError("more than 64 alphabets and signs")
            self._bits[name] = len(self._bits)
            members = name if len(name) == 1 else self._written[name]
            self.of_byte[list(members_of(members))] |= np.uint64(1 << self._bits[name])
        return self._bits[name]


@cache
def members_of(written: str) -> tuple[int, ...]:
    """The bytes of an alphabet, written like the inside of brackets of a regular expression: `0-9a-f_-`."""
    if len(written) == 1:
        return (ord(written),)
    return tuple(ord(char) for char in map(chr, range(33, 127)) if re.fullmatch(f"[{written}]", char))


def parsed_runs(written: str) -> list[tuple[str, int, int]]:
    """The runs of a form: alphabet or sign, least and most. `(` and `)` are runs of none. Raises ValueError."""
    runs = []
    for part in written.split():
        match = _RUN.fullmatch(part)
        if match is None:
            raise ValueError(f"'{part}' is no run; expected an alphabet such as hex{{32}} or token{{20,64}}, or a sign")
        least = int(match[2] or 1)
        most = int(match[3] or match[2] or 1)
        runs.append((match[1] or part, 0, 0) if part in "()" else (match[1] or part, least, most))
    return runs


def compiled_forms(
    forms: Sequence[Form], alphabets: Mapping[str, str], num_keywords: int, placeholders: tuple[np.ndarray, np.ndarray]
) -> Forms:
    """The tables of forms. Those of one keyword keep their order. Raises ValueError and KeyError for forms that are none."""
    table, facts, runs, words = _Alphabets(alphabets), list[tuple[int, ...]](), list[tuple[int, int, int]](), b""
    of_keyword = np.zeros(num_keywords + 1, np.int32)
    for form in sorted(forms, key=lambda form: form.number):
        of_keyword[form.number + 1] += 1
        is_pem = form.after == PEM
        before, after = ([], []) if is_pem else (parsed_runs(form.before)[::-1], parsed_runs(form.after))
        names = [name for name, _, _ in after]
        signs = [run for run in after if run[1:] != (0, 0)]
        opening = names.index("(") if "(" in names else -1
        closing = names.index(")") - (opening >= 0) if ")" in names else len(signs)
        start, middle = len(runs), len(runs) + len(before)
        runs += [(table.bit_of(name), least, most) for name, least, most in (*before, *signs)]
        fact = (form.kind, len(words), start, middle, len(runs), opening, closing, form.millibits)
        unless = ord(form.unless) if form.unless else -1
        facts.append((*fact, round(form.evidence * BITS), int(form.is_open), unless, int(is_pem), int(form.is_mixed)))
        words += form.keyword.encode()
    facts.append((0, len(words), *(0,) * 11))
    arrays = (np.array(facts, np.int64), np.array(runs, np.int64).reshape(-1, 3), np.frombuffer(words, np.uint8))
    return input_record(Forms, (table.of_byte, np.cumsum(of_keyword, dtype=np.int32), *arrays, *placeholders))


@inline
def pem_stop(data, start, end) -> Any:
    """The stop of the private key at `start`, of 64 letters to 16 KiB; else `start`."""
    j = start + len(_BEGIN)
    if j >= end or data[j] != _SPACE or not starts_with(data, start, end, _BEGIN, 0):
        return start
    label = j
    while j < end and j - label < 40 and (is_in(data[j], UPPER) or data[j] == _SPACE):
        j += 1
    last = j - len(_BLOCK) if starts_with(data, j - len(_BLOCK), j, _BLOCK, 0) else j
    if last - len(_KEY) <= label or not starts_with(data, last - len(_KEY), last, _KEY, 0):
        return start
    if not starts_with(data, j, end, _DASHES, 0):
        return start
    j += 5
    num_letters, limit = 0, min(end, j + _MAX_PEM_BYTES)
    while j < limit and not (data[j] == _DASH and starts_with(data, j, end, _DASHES, 0)):
        num_letters += is_in(data[j], BASE64)
        j += 1
    if num_letters < 64 or not starts_with(data, j, end, _END, 0):
        return start
    j += len(_END)
    label = j
    while j < end and j - label < 40 and (is_in(data[j], UPPER) or data[j] == _SPACE):
        j += 1
    return j + 5 if starts_with(data, j, end, _DASHES, 0) else start


@inline
def _start_before(data, floor, position, first, last, runs, alphabets) -> Any:
    """The start of the runs before a keyword; -1 where they are not there."""
    j = np.int64(position)
    for number in range(first, last):
        stop, low = j, max(floor, j - runs[number, 2])
        while j > low and alphabets[data[j - 1]] >> np.uint64(runs[number, 0]) & np.uint64(1):
            j -= 1
        if stop - j < runs[number, 1]:
            return np.int64(-1)
    return j


@inline
def _may_start(data, floor, start, unless) -> Any:
    """Whether a token may start at a byte: it is part of no longer word, and not behind the sign `unless`."""
    if start == floor:
        return True
    return data[start - 1] != unless and not (is_in(data[start], TOKEN) and is_in(data[start - 1], TOKEN))


@inline
def _runs_span(data, start, end, facts, form, runs, alphabets) -> Any:
    """Behind a keyword: start and stop of the secret among its runs, and their stop, -1 where they are not there."""
    first, stop, j, alphabet = start, start, np.int64(start), np.uint64(0)
    low_run, high_run = facts[form, _AFTER], facts[form, _STOP]
    for number in range(low_run, high_run):
        first = j if number - low_run == facts[form, _FIRST] else first
        stop = j if number - low_run == facts[form, _LAST] else stop
        alphabet, low = np.uint64(runs[number, 0]), j
        limit = min(end, j + runs[number, 2])
        while j < limit and alphabets[data[j]] >> alphabet & np.uint64(1):
            j += 1
        if j - low < runs[number, 1]:
            return first, stop, np.int64(-1)
    is_end = j == end or (data[j] == _DOT and (j + 1 == end or not is_in(data[j + 1], TOKEN)))
    goes_on = not is_end and (is_in(data[j], TOKEN) or alphabets[data[j]] >> alphabet & np.uint64(1) != 0)
    if goes_on and facts[form, _OPEN] == 0:
        return first, stop, np.int64(-1)
    j -= data[j - 1] == _COMMA or data[j - 1] == _SEMICOLON
    return first, (j if facts[form, _LAST] == high_run - low_run else stop), j


@inline
def _form_span(data, floor, position, end, form, facts, runs, alphabets, words) -> Any:
    """Start and stop of the token of a form, and of its random part; equal for none."""
    keyword = words[facts[form, _WORD] : facts[form + 1, _WORD]]
    if not starts_with(data, position, end, keyword, 0):  # the keyword is written as in its rule
        return position, position, position, position
    if facts[form, _PEM] != 0:
        return position, pem_stop(data, position, end), position, position
    start = _start_before(data, floor, position, facts[form, _BEFORE], facts[form, _AFTER], runs, alphabets)
    if start < 0 or not _may_start(data, floor, start, facts[form, _UNLESS]):
        return position, position, position, position
    first, stop, last = _runs_span(data, position + len(keyword), end, facts, form, runs, alphabets)
    if last < 0:
        return position, position, position, position
    low, high = (start, last) if start < position else (first, stop)
    return (start if facts[form, _FIRST] < 0 else first), stop, low, high


@kernel
def match_forms(
    offsets: Int64s,
    data: UInt8s,
    hits: Hits,
    forms: Forms,
    wanted: int,  # the kinds to find, a bit each; what is not wanted hides nothing inside it
    counts: Int64sOut,  # (256,), scratch
    out: SpansOut,
) -> int:
    """Finds the tokens of the wanted kinds at hits of keywords, in text order; spans do not overlap. Returns their number."""
    positions, numbers, of_keyword, facts = hits.positions, hits.numbers, forms.of_keyword, forms.facts
    runs, alphabets, words, placeholders, masks = forms.runs, forms.alphabets, forms.words, forms.placeholders, forms.masks
    num_spans, document, floor, hit = 0, 0, offsets[0], 0
    while hit < len(positions):
        position = positions[hit]
        while position >= offsets[document + 1]:
            document += 1
            floor = max(floor, offsets[document])
        first, stop, kind, end = position, position, np.int64(NO_KIND), offsets[document + 1]
        while hit < len(positions) and positions[hit] == position:
            number = numbers[hit]
            hit += 1
            for form in range(of_keyword[number], of_keyword[number + 1]):
                if data[position] != words[facts[form, _WORD]]:
                    continue  # of another case, as most hits are
                a, b, low, high = _form_span(data, floor, position, end, form, facts, runs, alphabets, words)
                if (
                    a < b
                    and wanted >> facts[form, _KIND] & 1
                    and (
                        facts[form, _MILLIBITS] == 0
                        or (
                            has_entropy(data, low, high, facts[form, _MILLIBITS], counts)
                            and best_evidence(data, low, high) >= facts[form, _EVIDENCE]
                            and (facts[form, _MIXED] == 0 or is_mixed(data, low, high))
                            and not is_placeholder(data, low, high, placeholders, masks)
                        )
                    )
                ):
                    first, stop, kind = a, b, facts[form, _KIND]
                    break
        if first < stop:
            out.starts[num_spans], out.stops[num_spans], out.kinds[num_spans] = first, stop, kind
            num_spans += 1
            floor = stop
        while hit < len(positions) and positions[hit] < floor:
            hit += 1
    return int(num_spans)
