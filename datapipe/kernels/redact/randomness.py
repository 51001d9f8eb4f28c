"""Whether a run of characters was drawn by chance: how much likelier it is by lot than as a name, and its entropy.

    evidence = sum of log2(1 / p(character | the one before, in names))  -  length * log2(size of the smallest alphabet)

The evidence is in bits. A name is what stands in quotes and in identifiers of code. The model of names has two tables:
which sort of character follows which sort, and which letter follows which letter, counted in 407,000 strings of 90 MB of
Python packages and 465,000 words of novels, web pages and the Declaration of Human Rights in 125 languages, by the square
root of their frequency. The other side is the smallest alphabet that holds the value.

Of 85,000 other names of 12 to 63 characters, 0.4 % have 8 bits or more, most of them regular expressions and identifiers of
machines; of random values of 16 characters, 97 to 99 %; of 20 and more, 99 %.

A placeholder contains a word of the rules, such as `xxxx`, or eight letters or digits in order.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels import inline

BITS = 64
"""Evidence is counted in parts of a bit, as whole numbers: it compares alike on every machine."""
_MAX_BYTES = 256
_MILLIBITS = np.array([0] + [round(1000 * count * math.log2(count)) for count in range(1, _MAX_BYTES + 1)], np.int64)
"""1000 n log2 n, rounded."""
_LOG2 = np.array([0] + [round(1000 * math.log2(count)) for count in range(1, _MAX_BYTES + 1)], np.int64)
_FULL_ALPHABET = 5_000
"""Entropies are given for values of 32 different characters, which have 5 bits each."""
_IN_ORDER = 8
SMALL, CAPITAL, DIGIT, JOINT, SIGN, START = range(6)
"""Sorts of characters; a joint is one of `_-./`. The start of a value is a sort too."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Costs in quarters of a bit, a character each."""
TRANSITIONS = "1gqgo 44lqr 8d4de 2egfn 9bgf4 39xhc"
"""Rows: the sort before. Columns: the sort that follows."""
LETTERS = """
hkgjoqirhsmehevkqdhcnqlrns akjobqprempdrrftojiteyrykz culsbsrdhChiuxavsgnejCvEmB clnj7qpsbxtmrrgpokjpjvsApu
hpggmlmuoyrfkdtmobcesorkrx enqpfhww6AuhxrcxqhmmiBwAnD bjip8skleutmqlissfhohvszpz 8moq9stycyuoosctqlnghxsDnB
flgjinivrwphj9dmrlfexoyuwo 9jpr9urrernssocrosiqeurxmy 9ton9slodypmqogrqnhnewkDqz burk9fvyayvfuwesvvkjhtwLlC
8jts8wrxeCynjseevtktjvwErB dvgeejcwfvqsrmiqysdbnqwDry lmjiwpnvnvnhg8liwckjfnmxwz bvpmayynhGvfywchCcjgizzHlI
cmhpiljqgmnmlmntdkkp8uqtos cskm8tjydDoqlmdtvlgglowIlE hwit9sqheEoprthiwqg9ixtGpB ctms9tvh9BzqqufoCfijkwtBjz
kjmmepmukxoegcsgxcectxxywv 8qsx6zwyayyurtgmytuApxyvsx 9mqrcsolduxpmjdtuiarrxrysB gpfodprrfvxcjuodpop9rquqox
bohngrksgyskjhiavkffosoxut anpq8vopcyqqpobvssrsmontlo ejeghijmhsnjiklguhdhmnnrvs
"""
"""Rows: the letter before, and last none. Columns: the letter that follows."""
SIGNS = "!z \"8 #l $n %w &G 'k (j )i *o +q ,c -c .6 /d :a ;v <u =o >u ?u @t [j \\i ]k ^r _5 `n {j |u }j ~A"
_DIGIT_COST = 13
_PLAIN_SIGNS = "-_+/="  # Signs of base64; a value with no others is drawn from a small alphabet
_HEX, _LOWER, _UPPER, _DECIMAL, _DASH, _PLAIN, _OTHER = (1 << bit for bit in range(7))


def _table(rows: str) -> np.ndarray:
    return np.array([[_DIGITS.index(digit) * BITS // 4 for digit in row] for row in rows.split()], np.int64)


def _bytes_table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each byte: its sort, its cost where it is no letter, and the alphabets it calls for."""
    sorts, costs = np.full(256, SIGN, np.uint8), np.zeros(256, np.int64)
    needs = np.full(256, _OTHER, np.uint8)
    for sign, digit in (pair for pair in SIGNS.split(" ")):
        costs[ord(sign)] = _DIGITS.index(digit) * BITS // 4
    for byte in range(128):
        char = chr(byte)
        if char.isalpha():
            sorts[byte] = SMALL if char.islower() else CAPITAL
            needs[byte] = (_LOWER if char.islower() else _UPPER) | (0 if char.lower() in "abcdef" else _HEX)
        elif char.isdigit():
            sorts[byte], costs[byte], needs[byte] = DIGIT, _DIGIT_COST * BITS // 4, _DECIMAL
        elif char in "_-./":
            sorts[byte] = JOINT
        if char in _PLAIN_SIGNS:
            needs[byte] = _PLAIN | (_DASH if char == "-" else _HEX)
    return sorts, costs, needs


def _alphabet_bits() -> np.ndarray:
    """Of each sum of alphabets, the bits of one character drawn from it: (128,) int64. `_HEX` marks what is no hex digit."""
    bits = np.zeros(128, np.int64)
    for needs in range(128):
        sizes = [(_LOWER, 26), (_UPPER, 26), (_DECIMAL, 10), (_OTHER, 32)]
        size = sum(size for need, size in sizes if needs & need) + 2 * (needs & (_PLAIN | _OTHER) == _PLAIN)
        is_hex = not needs & (_HEX | _OTHER) and needs & _DECIMAL and needs & (_LOWER | _UPPER) not in (0, _LOWER | _UPPER)
        size = 16 + bool(needs & _DASH) if is_hex else size
        bits[needs] = round(BITS * math.log2(max(size, 1)))
    return bits


_TRANSITIONS, _LETTERS = _table(TRANSITIONS).ravel(), _table(LETTERS).ravel()
_SORTS, _COSTS, _NEEDS = _bytes_table()
_ALPHABET_BITS = _alphabet_bits()
_MIN_PART = 16


def suffixes(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The last eight characters of each word as a number, with the bit of small letters, and a mask of the bits they fill."""
    kept = [bytes(byte | 0x20 for byte in word.encode()[-8:]) for word in words]
    numbers = np.array([int.from_bytes(word, "big") for word in kept], np.uint64)
    return numbers, np.array([(1 << 8 * len(word)) - 1 for word in kept], np.uint64)


@inline
def needs_of(data, start, stop) -> Any:
    """The alphabets that the characters of a span call for, summed up."""
    needs = 0
    for j in range(start, stop):
        needs |= _NEEDS[data[j]]
    return needs


@inline
def is_hexadecimal(data, start, stop) -> Any:
    """Whether a span has hexadecimal digits and dashes alone, of both sorts."""
    needs = needs_of(data, start, stop)
    return needs & (_HEX | _OTHER) == 0 and needs & _DECIMAL != 0 and needs & (_LOWER | _UPPER) != 0


@inline
def has_letters(data, start, stop) -> Any:
    return needs_of(data, start, stop) & (_LOWER | _UPPER) != 0


@inline
def has_digits(data, start, stop) -> Any:
    return needs_of(data, start, stop) & _DECIMAL != 0


@inline
def is_mixed(data, start, stop) -> Any:
    return needs_of(data, start, stop) & (_LOWER | _UPPER | _DECIMAL) == _LOWER | _UPPER | _DECIMAL


@inline
def evidence_of(data, start, stop) -> Any:
    """How much likelier the first 256 bytes are by lot than as a name, in 64ths of a bit."""
    stop = min(stop, start + _MAX_BYTES)
    needs = needs_of(data, start, stop)
    is_folded = needs & _LOWER == 0  # NAMES_IN_CAPITALS read like small ones
    total, before, letter = np.int64(0), START, 26
    for j in range(start, stop):
        sort = _SORTS[data[j]]
        if is_folded and sort == CAPITAL:
            sort = np.uint8(SMALL)
        total += _TRANSITIONS[np.int64(before) * 5 + np.int64(sort)]
        if sort <= CAPITAL:
            following = np.int64(data[j] | 0x20) - 0x61
            total += _LETTERS[letter * 26 + following]
            letter = following
        else:
            total += _COSTS[data[j]]
            letter = np.int64(26)
        before = np.int64(sort)
    return total - (stop - start) * _ALPHABET_BITS[needs]


@inline
def best_evidence(data, start, stop) -> Any:
    """The evidence of a span, or of the best of its parts of 16 letters and digits or more: a key at the end of a path."""
    stop = min(stop, start + _MAX_BYTES)
    best, part = evidence_of(data, start, stop), start
    for j in range(start, stop + 1):
        if j == stop or _SORTS[data[j]] > DIGIT:
            if j - part >= _MIN_PART and j - part < stop - start:
                best = max(best, evidence_of(data, part, j))
            part = j + 1
    return best


@inline
def is_placeholder(data, start, stop, words, masks) -> Any:
    """Whether one of `words` is in the first 256 bytes of a span, or eight letters or digits in their order or its reverse."""
    stop = min(stop, start + _MAX_BYTES)
    number, num_in_order, step = np.uint64(0), 1, 0
    for j in range(start, stop):
        number = number << np.uint64(8) | np.uint64(data[j] | 0x20)
        for k in range(len(words)):
            if number & masks[k] == words[k]:
                return True
        ahead = np.int64(data[j] | 0x20) - np.int64(data[j - 1] | 0x20) if j > start and _SORTS[data[j]] <= DIGIT else 0
        num_in_order = num_in_order + 1 if ahead == step and (ahead == 1 or ahead == -1) else 2
        step = ahead
        if num_in_order == _IN_ORDER:
            return True
    return False


@inline
def has_entropy(data, start, stop, millibits, counts):
    """Whether the first 256 bytes have this entropy, given for values of 32 different characters and more: `millibits / 5` of
    log2 of the length, and of the alphabet, where these are smaller."""
    stop = min(stop, start + _MAX_BYTES)
    counts[:] = 0
    for j in range(start, stop):
        counts[data[j]] += 1
    length, total = stop - start, 0
    for count in counts:
        total += _MILLIBITS[count]
    most = min(_FULL_ALPHABET, _LOG2[length], _ALPHABET_BITS[needs_of(data, start, stop)] * 1000 // BITS)
    return (_MILLIBITS[length] - total) * _FULL_ALPHABET >= millibits * most * length
