"""Lines, paragraphs and spans of three sentences of documents, each with a 128-bit hash of what it says.

    bytes  ->  units: where each begins and how many bytes are its own  ->  normal form, hashed as it is made

A unit owns the bytes from its begin to the begin of the next one in its document, so that cutting units leaves the others as
they were. What is hashed is the unit without the white space around it, as it is or folded as CCNet folds paragraphs: letters
lower case, digits 0, punctuation and controls dropped, each run of white space one space. CCNet's program drops 34 marks; its
paper says all Unicode punctuation, and so it is here. A character whose lower case is several characters stays as it is.

A sentence ends after a mark that ends one, with the signs that follow it, before white space; after such a mark of East Asian
scripts whatever follows; and at a newline. The same rule wherever a text stands is what matters here, not abbreviations.

Every byte is looked at a bounded number of times. One core of a 2-core AMD EPYC: 195 MB/s of web text for lines and paragraphs,
130 MB/s for spans of three sentences.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import mix64
from datapipe.kernels.text.marks import DIGIT, END, PUNCT, WHITE, mark_at, mark_table
from datapipe.kernels.text.unicode_classes import SPACE, class_table, decode
from datapipe.kernels.types import Int32s, Int64s, Int64sOut, UInt8s, UInt16s, UInt32sOut, UInt64sOut

Unit = Literal["line", "paragraph", "three_sentences"]

_DROPPED, _SPACE = -1, -2
_NEWLINE = 0x0A
_WIDE = 0x3000
"""From here on a mark ends a sentence though no white space follows."""

_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_BLANK, _ZERO = 0x20, ord("0")
_PRIME_1, _PRIME_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3, _PRIME_4 = np.uint64(0x165667B19E3779F9), np.uint64(0xD6E8FEB86659FD93)
_29, _32 = np.uint64(29), np.uint64(32)


class NormalForm(NamedTuple):
    """How units are folded before they are hashed, an input of kernels.

    Attributes:
        fold: `fold_table`.
        squeezed: whether a run of white space is one space.
    """

    fold: Int32s
    squeezed: bool


class TextUnits(NamedTuple):
    """Units of a batch, in the order of the texts, (num_units,) each: an output of kernels.

    Attributes:
        documents: int64, the document of each.
        starts: int64, its first byte in the batch's data.
        sizes: uint32, bytes that are its own.
        hashes, digests: uint64, the two halves of its hash.
    """

    documents: Int64sOut
    starts: Int64sOut
    sizes: UInt32sOut
    hashes: UInt64sOut
    digests: UInt64sOut


@lru_cache(maxsize=2)
def fold_table(normalize: Literal["none", "ccnet"]) -> np.ndarray:
    """What becomes of every code point: (0x110000,) int32, -1 where it is dropped, -2 where it is white space."""
    table = np.arange(sys.maxunicode + 1, dtype=np.int32)
    if normalize == "ccnet":
        for code in np.flatnonzero(mark_table() != 0).tolist():
            lowered = chr(code).lower()
            table[code] = ord(lowered) if len(lowered) == 1 else code
        marks = mark_table()
        table[(marks & DIGIT) != 0] = _ZERO
        table[(marks & PUNCT) != 0] = _DROPPED
        table[_CONTROLS] = _DROPPED
    table[class_table() == SPACE] = _SPACE
    table.flags.writeable = False
    return table


def find_units(
    unit: Unit, offsets: np.ndarray, data: np.ndarray, normalize: Literal["none", "ccnet"], min_chars: int
) -> TextUnits:
    """The units of documents whose normal form has at least `min_chars` characters, and one.

    Args:
        unit: what they are.
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        normalize: how they are folded before they are hashed.
        min_chars: in characters of the normal form.
    """
    out = room_for_units(most_units(offsets, data, unit == "three_sentences"))
    form = normal_form(normalize)
    if unit == "three_sentences":
        num_units = find_three_sentences(offsets, data, form, mark_table(), min_chars, out)
    else:
        num_units = find_lines(offsets, data, form, min_chars, unit == "paragraph", out)
    return TextUnits._make(column[:num_units] for column in out)


def normal_form(normalize: Literal["none", "ccnet"]) -> NormalForm:
    """What is hashed of a unit."""
    return NormalForm(fold=fold_table(normalize), squeezed=normalize == "ccnet")


def room_for_units(limit: int) -> TextUnits:
    """Room for at most `limit` units; pages that are never written cost nothing."""
    return TextUnits(
        documents=np.empty(limit, np.int64),
        starts=np.empty(limit, np.int64),
        sizes=np.empty(limit, np.uint32),
        hashes=np.empty(limit, np.uint64),
        digests=np.empty(limit, np.uint64),
    )


@kernel
def most_units(offsets: Int64s, data: UInt8s, sentences: bool) -> int:
    """At least the number of units: newlines, one more for each document, and for sentences the bytes that may end one."""
    count = np.int64(len(offsets) - 1)
    for at in range(offsets[0], offsets[len(offsets) - 1]):
        byte = data[at]
        ends = (byte == 0x21) | (byte == 0x2E) | (byte == 0x3F) | (byte >= 0xC0)
        count += np.int64((byte == _NEWLINE) | (sentences & ends))
    return int(count)


@inline
def _absorb(hashed, digest, code) -> tuple[Any, Any]:
    """Both halves after one more character: bijections of it, and of the half before it."""
    hashed, digest = (hashed ^ code) * _PRIME_2, (digest + code) * _PRIME_4
    return hashed ^ (hashed >> _29), digest ^ (digest >> _32)


@inline
def _hash_unit(data, at, stop, fold, squeezed) -> tuple[Any, Any, Any]:
    """Both halves of the hash of a unit's normal form, and its characters; white space at its ends is not looked at."""
    hashed, digest, length, white = _PRIME_3, _PRIME_1, np.int64(0), np.int64(-1)
    while at < stop:
        code, size = np.int64(data[at]), np.int64(1)
        if code >= 0x80:
            code, size = decode(data, at, stop)
        folded = np.int64(fold[code])
        if folded >= 0:
            if white >= 0 and length:
                if squeezed:
                    hashed, digest = _absorb(hashed, digest, np.uint64(_BLANK))
                    length += 1
                else:
                    while white < at:
                        code, step = decode(data, white, at)
                        hashed, digest = _absorb(hashed, digest, np.uint64(code))
                        length += 1
                        white += step
            hashed, digest = _absorb(hashed, digest, np.uint64(folded))
            length += 1
            white = np.int64(-1)
        elif folded == _SPACE and white < 0:
            white = at
        at += size
    return mix64(hashed), mix64(digest), length


@inline
def _is_blank(data, at, stop, fold) -> Any:
    """Whether there is nothing but white space."""
    while at < stop:
        code, size = decode(data, at, stop)
        if fold[code] != _SPACE:
            return False
        at += size
    return True


@inline
def _next_newline(data, at, stop) -> Any:
    rest = data[at:stop]
    for place in range(len(rest)):
        if rest[place] == _NEWLINE:
            return at + place
    return stop


@kernel
def find_lines(offsets: Int64s, data: UInt8s, form: NormalForm, min_chars: int, paragraphs: bool, out: TextUnits) -> int:
    """Fills `out` with lines that are not blank, or with runs of such lines, and returns how many.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        form: what is hashed.
        min_chars: least characters of the normal form; one at least.
        paragraphs: whether lines without a blank one between them are one unit.
    """
    (fold, squeezed), (documents, starts, sizes, hashes, digests) = form, out
    count = np.int64(0)
    for doc in range(len(offsets) - 1):
        at, end = offsets[doc], offsets[doc + 1]
        begin, content, apart = np.int64(-1), at, True
        while at <= end:
            line_stop = _next_newline(data, at, end)
            blank = at < end and _is_blank(data, at, line_stop, fold)
            if begin >= 0 and not blank and (apart or not paragraphs or at == end):
                hashed, digest, length = _hash_unit(data, begin, content, fold, squeezed)
                if length >= max(min_chars, 1):
                    documents[count], starts[count], sizes[count] = doc, begin, at - begin
                    hashes[count], digests[count] = hashed, digest
                    count += 1
                begin = np.int64(-1)
            if at == end:
                break
            if not blank:
                begin = at if begin < 0 else begin
                content = line_stop
            apart = blank
            at = min(line_stop + 1, end)
    return int(count)


@inline
def _sentence_stop(data, at, stop, marks) -> Any:
    """Where the sentence that begins at `at` stops and the next one begins: at something that is no white space, or the end."""
    ended, wide, broken = False, False, False
    while at < stop:
        mark, size = mark_at(data, at, stop, marks)
        if mark & WHITE:
            broken = broken or ended or data[at] == _NEWLINE
        elif broken or (wide and mark & (END | PUNCT) == 0):
            return at
        elif mark & END:
            ended = True
            wide = size == 3 and decode(data, at, stop)[0] >= _WIDE
        elif mark & PUNCT == 0:
            ended = wide = False
        at += size
    return stop


@kernel
def find_three_sentences(
    offsets: Int64s, data: UInt8s, form: NormalForm, marks: UInt16s, min_chars: int, out: TextUnits
) -> int:
    """Fills `out` with every three sentences in a row, and returns how many; as `find_lines`.

    A sentence whose normal form is empty belongs to the one before it.

    Args:
        marks: `marks.mark_table`.
        min_chars: least characters of the three together.
    """
    (fold, squeezed), (documents, starts, sizes, hashes, digests) = form, out
    count = np.int64(0)
    begins, lengths, halves = np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros((3, 2), np.uint64)
    for doc in range(len(offsets) - 1):
        at, end, seen = offsets[doc], offsets[doc + 1], np.int64(0)
        while at < end:
            begin, at = at, _sentence_stop(data, at, end, marks)
            hashed, digest, length = _hash_unit(data, begin, at, fold, squeezed)
            if length:
                slot = seen % 3
                begins[slot], lengths[slot], halves[slot, 0], halves[slot, 1] = begin, length, hashed, digest
                seen += 1
                if seen >= 3 and lengths.sum() >= min_chars:
                    first, second = (slot + 1) % 3, (slot + 2) % 3
                    documents[count], starts[count] = doc, begins[first]
                    hashes[count] = mix64(mix64(halves[first, 0] + halves[second, 0] * _PRIME_1) + hashed * _PRIME_2)
                    digests[count] = mix64(mix64(halves[first, 1] + halves[second, 1] * _PRIME_3) + digest * _PRIME_4)
                    sizes[count] = at - begins[first]
                    count += 1
            elif count and documents[count - 1] == doc and starts[count - 1] + np.int64(sizes[count - 1]) == begin:
                sizes[count - 1] = at - starts[count - 1]
    return int(count)
