"""Lines, paragraphs and spans of three sentences of documents, each with a 128-bit hash of its normal form.

    bytes  ->  units: start and size of each  ->  normal form, hashed while it is made

A unit owns the bytes from its start to the start of the next unit in its document, so cutting units leaves the others
unchanged. The hash covers the unit without the white space around it, as it is or folded as CCNet (Wenzek et al. 2020) folds
paragraphs: no case, digits as 0, no punctuation, no control characters, each run of white space as one space.
CCNet's program drops 34 marks; its paper says all Unicode punctuation, which is what this module does. Characters are
decomposed and without case as in `case_folding.py`; marks stay in the order in which they are written.

A sentence ends at a newline; at a sentence-final mark and the signs that follow it, before white space; and at a sentence-final
mark of East Asian scripts, whatever follows. Abbreviations are not recognized: duplicates only need the same rule everywhere.

Every byte is read a bounded number of times.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.dedup.case_folding import CODE_MASK, text_folding
from datapipe.kernels.hashing import mix64
from datapipe.kernels.text.marks import DIGIT, END, PUNCT, WHITE, mark_at, mark_table
from datapipe.kernels.text.unicode_classes import SPACE, class_table, decode
from datapipe.kernels.types import Int32s, Int64s, Int64sOut, UInt8s, UInt16s, UInt32sOut, UInt64sOut, input_record

Unit = Literal["line", "paragraph", "three_sentences"]

_DROPPED, _SPACE = -1, -2
_NEWLINE = 0x0A
_WIDE = 0x3000
"""From this code point on a mark ends a sentence even if no white space follows."""

_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_BLANK, _ZERO = 0x20, ord("0")
_PRIME_1, _PRIME_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3, _PRIME_4 = np.uint64(0x165667B19E3779F9), np.uint64(0xD6E8FEB86659FD93)
_29, _32 = np.uint64(29), np.uint64(32)


class NormalForm(NamedTuple):
    """How units are folded before they are hashed: an input of kernels.

    Attributes:
        fold: (0x110000,) int32, the folded character; `_DROPPED`; `_SPACE`; or -p where their number is at `expansions[p]` and
            they follow.
        expansions: int32.
        squeezed: whether a run of white space becomes one space.
    """

    fold: Int32s
    expansions: Int32s
    squeezed: bool


class TextUnits(NamedTuple):
    """Units of a batch, in the order of the texts, (num_units,) each: an output of kernels.

    Attributes:
        documents: int64, the document of each unit.
        starts: int64, the unit's first byte in the batch's data.
        sizes: uint32, the bytes that the unit owns.
        hashes, digests: uint64, the two halves of the unit's hash.
    """

    documents: Int64sOut
    starts: Int64sOut
    sizes: UInt32sOut
    hashes: UInt64sOut
    digests: UInt64sOut


def find_units(
    unit: Unit, offsets: np.ndarray, data: np.ndarray, normalize: Literal["none", "ccnet"], min_chars: int
) -> TextUnits:
    """The units of documents whose normal form has at least `min_chars` characters, and at least one.

    Args:
        unit: the kind of unit.
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        normalize: how units are folded before they are hashed.
        min_chars: characters of the normal form.
    """
    out = room_for_units(most_units(offsets, data, unit == "three_sentences"))
    form = normal_form(normalize)
    if unit == "three_sentences":
        num_units = find_three_sentences(offsets, data, form, mark_table(), min_chars, out)
    else:
        num_units = find_lines(offsets, data, form, min_chars, unit == "paragraph", out)
    return TextUnits._make(column[:num_units] for column in out)


@lru_cache(maxsize=2)
def normal_form(normalize: Literal["none", "ccnet"]) -> NormalForm:
    """The normal form by the name of the option."""
    fold, expansions = np.arange(sys.maxunicode + 1, dtype=np.int32), np.zeros(1, np.int32)
    if normalize == "ccnet":
        codes, parts, _ = text_folding()
        # codes of several characters move up, past the numbers that mark dropped characters and white space
        fold = np.where(codes < 0, codes + _SPACE, codes & CODE_MASK).astype(np.int32)
        expansions = np.concatenate([np.zeros(-_SPACE, np.int32), parts & CODE_MASK])
        marks = mark_table()
        fold[(marks & DIGIT) != 0] = _ZERO
        fold[(marks & PUNCT) != 0] = _DROPPED
        fold[_CONTROLS] = _DROPPED
    fold[class_table() == SPACE] = _SPACE
    return input_record(NormalForm, (fold, expansions, normalize == "ccnet"))


def room_for_units(limit: int) -> TextUnits:
    """Arrays for at most `limit` units; memory pages that are never written cost nothing."""
    return TextUnits(
        documents=np.empty(limit, np.int64),
        starts=np.empty(limit, np.int64),
        sizes=np.empty(limit, np.uint32),
        hashes=np.empty(limit, np.uint64),
        digests=np.empty(limit, np.uint64),
    )


@kernel
def most_units(offsets: Int64s, data: UInt8s, sentences: bool) -> int:
    """An upper bound of the number of units: newlines, documents, and for sentences the bytes that may end one."""
    count = np.int64(len(offsets) - 1)
    for position in range(offsets[0], offsets[len(offsets) - 1]):
        byte = data[position]
        ends = (byte == 0x21) | (byte == 0x2E) | (byte == 0x3F) | (byte >= 0xC0)
        count += np.int64((byte == _NEWLINE) | (sentences & ends))
    return int(count)


@inline
def _absorb(hashed, digest, code) -> tuple[Any, Any]:
    """Both halves after one more character: each is a bijection of the character, and of the half before it."""
    hashed, digest = (hashed ^ code) * _PRIME_2, (digest + code) * _PRIME_4
    return hashed ^ (hashed >> _29), digest ^ (digest >> _32)


@inline
def _hash_unit(data, position, stop, fold, expansions, squeezed) -> tuple[Any, Any, Any]:
    """Both halves of the hash of a unit's normal form, and the number of characters that it is made of; white space at the
    ends is left out."""
    hashed, digest, length, white = _PRIME_3, _PRIME_1, np.int64(0), np.int64(-1)
    while position < stop:
        code, size = np.int64(data[position]), np.int64(1)
        if code >= 0x80:
            code, size = decode(data, position, stop)
        folded = np.int64(fold[code])
        if folded >= 0 or folded < _SPACE:
            if white >= 0 and length:
                if squeezed:
                    hashed, digest = _absorb(hashed, digest, np.uint64(_BLANK))
                    length += 1
                else:
                    while white < position:
                        code, step = decode(data, white, position)
                        hashed, digest = _absorb(hashed, digest, np.uint64(code))
                        length += 1
                        white += step
            if folded >= 0:
                hashed, digest = _absorb(hashed, digest, np.uint64(folded))
            else:
                for part in range(1 - folded, 1 - folded + expansions[-folded]):
                    hashed, digest = _absorb(hashed, digest, np.uint64(expansions[part]))
            length += 1
            white = np.int64(-1)
        elif folded == _SPACE and white < 0:
            white = position
        position += size
    return mix64(hashed), mix64(digest), length


@inline
def _is_blank(data, position, stop, fold) -> Any:
    """Whether the bytes [position, stop) are all white space."""
    while position < stop:
        code, size = decode(data, position, stop)
        if fold[code] != _SPACE:
            return False
        position += size
    return True


@inline
def _next_newline(data, position, stop) -> Any:
    """The position of the first newline in [position, stop), or `stop`."""
    rest = data[position:stop]
    for i in range(len(rest)):
        if rest[i] == _NEWLINE:
            return position + i
    return stop


@kernel
def find_lines(offsets: Int64s, data: UInt8s, form: NormalForm, min_chars: int, paragraphs: bool, out: TextUnits) -> int:
    """Writes the lines that are not blank, or the runs of such lines, to `out`; returns the number of units.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        form: how units are folded.
        min_chars: least characters of the normal form; at least one is required.
        paragraphs: whether consecutive lines without a blank line between them are one unit.
    """
    (fold, expansions, squeezed), (documents, starts, sizes, hashes, digests) = form, out
    count = np.int64(0)
    for doc in range(len(offsets) - 1):
        position, end = offsets[doc], offsets[doc + 1]
        begin, content, apart = np.int64(-1), position, True
        while position <= end:
            line_stop = _next_newline(data, position, end)
            blank = position < end and _is_blank(data, position, line_stop, fold)
            if begin >= 0 and not blank and (apart or not paragraphs or position == end):
                hashed, digest, length = _hash_unit(data, begin, content, fold, expansions, squeezed)
                if length >= max(min_chars, 1):
                    documents[count], starts[count], sizes[count] = doc, begin, position - begin
                    hashes[count], digests[count] = hashed, digest
                    count += 1
                begin = np.int64(-1)
            if position == end:
                break
            if not blank:
                begin = position if begin < 0 else begin
                content = line_stop
            apart = blank
            position = min(line_stop + 1, end)
    return int(count)


@inline
def _sentence_stop(data, position, stop, marks) -> Any:
    """The stop of the sentence that begins at `position`: the next character after it that is no white space, or `stop`."""
    ended, wide, broken = False, False, False
    while position < stop:
        mark, size = mark_at(data, position, stop, marks)
        if mark & WHITE:
            broken = broken or ended or data[position] == _NEWLINE
        elif broken or (wide and mark & (END | PUNCT) == 0):
            return position
        elif mark & END:
            ended = True
            wide = size == 3 and decode(data, position, stop)[0] >= _WIDE
        elif mark & PUNCT == 0:
            ended = wide = False
        position += size
    return stop


@kernel
def find_three_sentences(
    offsets: Int64s, data: UInt8s, form: NormalForm, marks: UInt16s, min_chars: int, out: TextUnits
) -> int:
    """Writes every three consecutive sentences to `out`; returns the number of units. Parameters as for `find_lines`.

    A sentence whose normal form is empty belongs to the sentence before it.

    Args:
        marks: `marks.mark_table`.
        min_chars: least characters of the three sentences together.
    """
    (fold, expansions, squeezed), (documents, starts, sizes, hashes, digests) = form, out
    count = np.int64(0)
    begins, lengths, halves = np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros((3, 2), np.uint64)
    for doc in range(len(offsets) - 1):
        position, end, seen = offsets[doc], offsets[doc + 1], np.int64(0)
        while position < end:
            begin, position = position, _sentence_stop(data, position, end, marks)
            hashed, digest, length = _hash_unit(data, begin, position, fold, expansions, squeezed)
            if length:
                slot = seen % 3
                begins[slot], lengths[slot], halves[slot, 0], halves[slot, 1] = begin, length, hashed, digest
                seen += 1
                if seen >= 3 and lengths.sum() >= min_chars:
                    first, second = (slot + 1) % 3, (slot + 2) % 3
                    documents[count], starts[count] = doc, begins[first]
                    hashes[count] = mix64(mix64(halves[first, 0] + halves[second, 0] * _PRIME_1) + hashed * _PRIME_2)
                    digests[count] = mix64(mix64(halves[first, 1] + halves[second, 1] * _PRIME_3) + digest * _PRIME_4)
                    sizes[count] = position - begins[first]
                    count += 1
            elif count and documents[count - 1] == doc and starts[count - 1] + np.int64(sizes[count - 1]) == begin:
                sizes[count - 1] = position - starts[count - 1]
    return int(count)
