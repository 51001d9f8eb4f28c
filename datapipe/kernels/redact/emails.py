"""The two halves of an e-mail address, read from its `@` or `%40` backwards and forwards.

Local part  at most 64 bytes of letters of any script (RFC 6531), digits and `._%+-'&~`. In scripts without spaces the
            sentence before an address has no end, so their letters count where a name is likely: before the `@`, before up to
            four digits and the `@` (洁.朱84@x.com), before `_` or `+`, and before `.` or `-` and a letter
            (김철수.kim@x.com). They do not count before other letters (联系jane@x.com), before longer numbers
            (我的123456@qq.com), and where the letter before the digits, the `.` or the `-` ends a phrase (邮箱是84@x.com,
            请联系我.foo@x.com). Counted letters take 64 bytes of a longer sentence with them: a name that remains harms a
            person. Before `%40` only escapes of `+`, `-`, `.` and `_` count.
Domain      at most 253 bytes in two labels or more, of letters of any script, digits and dashes. The last is of ASCII
            letters, is xn-- and more, or has letters of another script alone; in scripts without spaces it is a top-level
            domain of the IANA root zone, behind which text may go on. It is not the ending of a file (`logo@2x.png`).
            Letters of other scripts may follow an ASCII top-level domain: jane@x.com으로. No domain is the version or the
            checksum of a package: two labels of digits come first (react@18.0.0.rc), a word such as rc or beta follows a
            number of two digits at most (pkg@2.dev), or the first label names a hash (img@sha256.abc). A `v` before the
            digits is allowed.
"""

from typing import Any
from unicodedata import category

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.redact.ascii import DIGIT, LETTER, LOCAL, is_among, is_in, packed
from datapipe.kernels.tables import stored_table
from datapipe.kernels.text.unicode_classes import codes_of, decode, decode_before

_MAX_LOCAL_BYTES = 64
_MAX_DOMAIN_BYTES = 253
_MAX_LABEL_BYTES = 63
_MAX_NAME_DIGITS = 4  # digits after a name: a year at most. Numbers of QQ have five and more.
_DOT, _DASH, _UNDERSCORE, _PERCENT, _PLUS, _V = (ord(sign) for sign in ".-_%+v")
_FILE_ENDINGS = packed("png jpg jpeg gif svg webp bmp ico css js html htm php json xml txt pdf")
_ESCAPES = packed("2b 2d 2e 5f")
_PHRASE_ENDS = np.array([ord(letter) for letter in "箱件址至到是为為系信我们們你您了吗嗎吧呢的はにへをで다요"], np.int64)
"""Letters that end a phrase or a sentence before an address, and no name: "mail", "to", "is", "me"; the last two end verbs."""
_HASHES = packed("sha256 sha384 sha512")
_UNRELEASED = packed("rc alpha beta dev pre preview canary next nightly snapshot final post")
"""Words behind the number of a version."""
SPACED, UNSPACED = 1, 2
"""Sorts of letters beyond ASCII: of a script with spaces between words, and of one without (Hangul joins particles)."""
_UNSPACED_RANGES = codes_of(
    "E01-E4E E81-EDF F40-FBC 1000-109F 1100-11FF 1780-17D3 3005-31FF 3400-9FFF A960-A97F A9E0-A9FF AA60-AA7F AC00-D7FF "
    "F900-FAFF FF66-FFDC 1AFF0-1B16F 20000-323AF"
)
"""Thai, Lao, Tibetan, Burmese, Hangul, Khmer, kana, Bopomofo and Han."""
_LAST_SPACED, _LAST_LETTER = 0x1F000, 0x323B0


@stored_table
def _sorts() -> tuple[np.ndarray, np.ndarray]:
    """The first code points of runs of one sort, and the sorts of the runs: letters and marks by Unicode."""
    sorts = np.zeros(_LAST_LETTER + 1, np.uint8)
    sorts[0x80:_LAST_SPACED] = [category(chr(code))[0] in "LM" for code in range(0x80, _LAST_SPACED)]
    sorts[0x20000:_LAST_LETTER] = SPACED
    sorts[_UNSPACED_RANGES] *= UNSPACED
    firsts = np.flatnonzero(np.diff(sorts, prepend=0) != 0)
    return firsts, sorts[firsts]


_FIRSTS, _SORTS = _sorts()


def _rows_of(words: str) -> tuple[np.ndarray, np.ndarray]:
    """The UTF-8 bytes of each word, (num_words, 18) uint8, and their numbers, (num_words,) int64."""
    encoded = [word.encode() for word in words.split()]
    rows = np.zeros((len(encoded), 18), np.uint8)
    for row, word in zip(rows, encoded, strict=True):
        row[: len(word)] = np.frombuffer(word, np.uint8)
    return rows, np.array([len(word) for word in encoded], np.int64)


_DOMAIN_BYTES, _DOMAIN_LENGTHS = _rows_of(
    "中国 中國 中信 香港 台湾 台灣 新加坡 澳门 澳門 公司 网络 网址 网站 网店 在线 中文网 集团 商城 商店 商标 手机 联通 谷歌 "
    "移动 信息 政务 政府 机构 组织机构 公益 广东 佛山 我爱你 世界 健康 娱乐 慈善 时尚 游戏 企业 招聘 购物 通販 亚马逊 大拿 "
    "餐厅 食品 新闻 家電 八卦 广告 点看 書籍 天主教 微博 嘉里 嘉里大酒店 淡马锡 電訊盈科 飞利浦 香格里拉 みんな コム ストア "
    "セール クラウド ファッション ポイント アマゾン グーグル 한국 닷넷 닷컴 삼성 ไทย คอม ລາວ"
)
"""Top-level domains in scripts without spaces."""


@inline
def script_of(code) -> Any:
    """SPACED or UNSPACED for a letter or mark beyond ASCII, 0 for all other characters."""
    low, high = 0, len(_FIRSTS)
    while low < high:
        middle = (low + high) // 2
        if _FIRSTS[middle] <= code:
            low = middle + 1
        else:
            high = middle
    return np.int64(_SORTS[low - 1]) if low > 0 else np.int64(0)


@inline
def _is_name_end(data, start, at_sign, floor) -> Any:
    """Whether the letter of a script without spaces that stops at `start` is of the local part: by what follows it."""
    if start == at_sign or data[start] == _UNDERSCORE or data[start] == _PLUS:
        return True
    code, _ = decode_before(data, start, floor)
    for ending in _PHRASE_ENDS:
        if code == ending:
            return False
    if (data[start] == _DOT or data[start] == _DASH) and (data[start + 1] >= 0x80 or is_in(data[start + 1], LETTER)):
        return True
    num_digits = 0
    for j in range(start, at_sign):
        if data[j] >= 0x80 or is_in(data[j], LETTER):
            return False
        num_digits += is_in(data[j], DIGIT)
    return num_digits <= _MAX_NAME_DIGITS


@inline
def local_start(data, floor, at_sign, is_escaped) -> Any:
    """The start of the local part before the `@`, or before `%40` where `is_escaped`; `at_sign` where there is none."""
    start, is_unspaced = at_sign, False
    while start > floor and at_sign - start <= _MAX_LOCAL_BYTES:
        code, size = decode_before(data, start, floor)
        if is_unspaced and at_sign - start + size > _MAX_LOCAL_BYTES:
            break
        if size == 1:
            if data[start - 1] >= 0x80 or not is_in(data[start - 1], LOCAL):
                break
        else:
            sort = script_of(code)
            is_unspaced |= sort == UNSPACED and _is_name_end(data, start, at_sign, floor)
            if sort == 0 or (sort == UNSPACED and not is_unspaced):
                break
        start -= size
    if start == at_sign or at_sign - start > _MAX_LOCAL_BYTES or data[at_sign - 1] == _DOT:
        return at_sign
    for j in range(start, at_sign - 1):
        if data[j] == _DOT and data[j + 1] == _DOT:
            start = j + 2
        elif is_escaped and data[j] == _PERCENT and not is_among(data, j + 1, min(j + 3, at_sign), _ESCAPES):
            start = min(j + 3, at_sign)
    while start < at_sign and data[start] < 0x80 and not is_in(data[start], DIGIT | LETTER) and data[start] != _UNDERSCORE:
        start += 1
    return start


@inline
def _is_top_level(data, start, stop) -> Any:
    """Whether an ASCII label may end a domain: letters, or punycode, but no ending of a file."""
    length = stop - start
    if length < 2 or length > 24 or (length <= 8 and is_among(data, start, stop, _FILE_ENDINGS)):
        return False
    if length > 4 and data[start] | 0x20 == 0x78 and data[start + 1] | 0x20 == 0x6E and data[start + 2] == _DASH:
        return data[start + 3] == _DASH
    num_letters = 0
    for j in range(start, stop):
        num_letters += is_in(data[j], LETTER)
    return num_letters == length


@inline
def _label_stop(data, start, limit) -> Any:
    """The stop of a label, the stop of the ASCII characters that it begins with, and the sorts of its other letters."""
    run, ascii_stop, sorts, dash = start, start, 0, False
    while run < limit:
        if data[run] < 0x80:
            if not is_in(data[run], DIGIT | LETTER) and data[run] != _DASH:
                break
            dash = data[run] == _DASH
            sorts |= 4 * (sorts > 0 and not dash)
            run += 1
        else:
            code, size = decode(data, run, limit)
            sort = script_of(code)
            if sort == 0:
                break
            sorts |= sort | 4 * (sorts > 0 and dash)
            dash = False
            run += size
        if sorts == 0:
            ascii_stop = run
    return run, ascii_stop, sorts


@inline
def _known_stop(data, start, stop) -> Any:
    """The stop of the longest top-level domain of a script without spaces at `start`; `start` where there is none."""
    best = start
    for row in range(len(_DOMAIN_LENGTHS)):
        length = _DOMAIN_LENGTHS[row]
        is_equal = start + length <= stop and start + length > best
        for j in range(length if is_equal else 0):
            is_equal &= data[start + j] == _DOMAIN_BYTES[row, j]
        best = start + length if is_equal else best
    return best


@inline
def _top_level_stop(data, start, stop, ascii_stop, sorts) -> Any:
    """The stop of the top-level domain that a label is, or that text follows at once; `start` where it is none."""
    if ascii_stop > start:
        return min(ascii_stop, stop) if _is_top_level(data, start, min(ascii_stop, stop)) else start
    if sorts & UNSPACED:
        return _known_stop(data, start, stop)
    return stop if sorts == SPACED and stop - start > 3 else start


@inline
def _number_stop(data, start, stop) -> Any:
    """The stop of the digits at `start`, with a `v` before them or not, where they are a label; `start` where they are none."""
    j = first = start + (data[start] | 0x20 == _V)
    while j < stop and is_in(data[j], DIGIT):
        j += 1
    return j if first < j < stop and data[j] == _DOT else start


@inline
def _is_package(data, start, stop) -> Any:
    first = _number_stop(data, start, stop)
    if first == start:
        dot = min(start + 6, stop - 1)
        return data[dot] == _DOT and is_among(data, start, dot, _HASHES)
    return _number_stop(data, first + 1, stop) > first + 1 or (
        first - start <= 3 and first - start - (data[start] | 0x20 == _V) <= 2 and is_among(data, first + 1, stop, _UNRELEASED)
    )


@inline
def domain_stop(data, first, end) -> Any:
    """The stop of the domain at `first`; 0 where there is none."""
    stop = _longest_stop(data, first, end)
    return 0 if stop > 0 and _is_package(data, first, stop) else stop


@inline
def _longest_stop(data, first, end) -> Any:
    """The stop of the longest run of labels at `first` that ends in a top-level domain; 0 where there is none."""
    longest, start, limit = 0, first, min(end, first + _MAX_DOMAIN_BYTES)
    while True:
        run, ascii_stop, sorts = _label_stop(data, start, limit)
        stop = run
        while stop > start and data[stop - 1] == _DASH:
            stop -= 1
        is_cut = run == limit and limit < end and (data[run] >= 0x80 or is_in(data[run], DIGIT | LETTER))
        if stop == start or is_cut or data[start] == _DASH or (sorts == 0 and stop - start > _MAX_LABEL_BYTES):
            return longest
        if start > first:
            top = _top_level_stop(data, start, stop, ascii_stop, sorts)
            if top > start:
                longest = top
            elif sorts == 0 and stop - start <= 8 and is_among(data, start, stop, _FILE_ENDINGS):
                longest = 0
        if stop < run or run + 1 >= limit or data[run] != _DOT:
            return longest
        start = run + 1
