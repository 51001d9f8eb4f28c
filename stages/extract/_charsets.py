"""The bytes of a page as text, by the first of these charsets that decodes them without an error:

    byte order mark  ->  HTTP header  ->  meta tag in the first 4 KB, XML declaration  ->  ISO-2022-JP, where its escape
    sequences are in ASCII  ->  UTF-8  ->  the detector's answer

Labels are those of the WHATWG. In a meta tag, which was read as ASCII, UTF-16 means UTF-8. A
character that is cut off at the end is left out and is no error. An undefined byte of a single-byte
charset is one: so a page in UTF-8 whose header declares ISO-8859-1 is mostly read by its meta tag.

A page that no charset decodes without an error gets U+FFFD for its bad bytes. It is read as UTF-8 where most of its characters
are valid UTF-8, otherwise by the detector's answer. One bad byte makes a detector rule out the charset of a Chinese, Japanese
or Korean page, so it is asked again without the bad bytes of each such charset that has few of them.
"""

import codecs
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from datapipe.dataclass import dataclass

UTF_8, UTF_16 = "utf_8", ("utf_16_le", "utf_16_be")

USER_DEFINED = "x_user_defined"
"""Bytes of fonts, not of text: in a meta tag it means windows-1252, elsewhere it counts as no declaration."""

_ALSO = {"euc_jp": ("euc_jis_2004",), "big5hkscs": ("cp950",), "iso2022_jp": ("iso2022_jp_ext",)}
"""Codecs that read what Python's codec of this name refuses and browsers read, such as the circled
digits of EUC-JP. Where both read a page, both give the same text."""


@lru_cache(maxsize=4096)
def codec_of(label: str) -> str | None:
    """The codec of a label as a page or a header has it; None for a label that no browser knows."""
    from webencodings import lookup  # of the extra `web`

    encoding = lookup(label.strip("\t\n\f\r \"'"))
    if encoding is None or encoding.name == "replacement":  # `hz-gb-2312`, `iso-2022-kr`, …, which browsers refuse
        return None
    return "gb18030" if encoding.name == "gbk" else encoding.codec_info.name.replace("-", "_")  # gb18030 extends it


def codecs_of(codec: str) -> tuple[str, ...]:
    """The codecs to try in turn for the encoding of `codec`."""
    return (codec, *_ALSO.get(codec, ()))


_META_BYTES = 4096
_DETECTED_BYTES = 128 << 10
_CONTEXT_BYTES = 1 << 10
_MARKS = ((b"\xef\xbb\xbf", UTF_8), (b"\xfe\xff", "utf_16_be"), (b"\xff\xfe", "utf_16_le"))
_ISO_2022_JP = re.compile(rb"\x1b\$[@B]")
"""The escape sequences before Japanese characters; a page in any other charset has none."""

_LONGEST_CHARACTER = 8  # bytes; in ISO-2022-JP with its escape sequence
_VALID_FOR_BAD = 10
"""Characters of more than one byte that make up for one bad byte, in UTF-8 and in the charsets of East Asia."""

_OF_EAST_ASIA = ("gb18030", "big5hkscs", "cp932", "euc_jp", "cp949")
_NO_BOUNDARY = bytes({*range(0x30, 0x3A), *range(0x40, 0x100)})
"""Bytes that can be a part of a longer character, in one charset or another."""

_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_META = re.compile(rb"<meta(?=[\s/])((?:[^>\"']|\"[^\"]*\"|'[^']*')*+)>")
_ATTRIBUTE = re.compile(rb"([^\s=>/\"'][^\s=>/]*)(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+)))?")
_CHARSET = re.compile(rb"charset\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s;\"']+))")
_XML = re.compile(rb"<\?xml[^>]*?\sencoding\s*=\s*[\"']([^\"'>]*)[\"']")
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_LONG = re.compile(rb"[\x80-\xff]+[\x00-\x7f]{0,4}")
"""Characters of more than one byte, with the ASCII that could belong to them."""

Detector = Callable[[bytes], str]  # the label of the charset that some bytes probably have


@dataclass(frozen=True, slots=True)
class Decoded:
    """The text of a page without lone surrogates, NULs and a byte order mark, and Python's name of its charset.
    `has_bad_bytes`: whether U+FFFD stands for bytes that the charset does not have."""

    text: str
    codec: str
    has_bad_bytes: bool = False


def decode_page(page: bytes, header: str, detect: Detector) -> Decoded:
    """The text of a page. `header`: the charset of the HTTP header; `detect`: for pages that no declared charset decodes."""
    if page.isascii() and b"\x1b" not in page and codec_of(header) not in UTF_16:  # the same in every other charset
        return Decoded(_clean(page.decode("ascii"), page), UTF_8)
    tried: set[str] = set()
    for codec in _declared(page, header):
        text = None if codec in tried else _strictly(page, codec)
        if text is not None:
            return Decoded(_clean(text, page), codec)
        tried.add(codec)
    return _detected(page, detect)


def _declared(page: bytes, header: str) -> Iterator[str]:
    yield from (codec for mark, codec in _MARKS if page.startswith(mark))
    by_header = codec_of(header)
    if by_header is not None and by_header != USER_DEFINED:
        yield from codecs_of(by_header)
    by_meta = declared_in(page[:_META_BYTES])
    if by_meta is not None:
        yield from codecs_of(by_meta)
    if page.isascii() and _ISO_2022_JP.search(page):
        yield from codecs_of("iso2022_jp")
    yield UTF_8


def declared_in(beginning: bytes) -> str | None:
    """The codec that the first bytes of a page declare in a meta tag or as XML; None without a label that browsers know."""
    lower = beginning.lower()
    if b"charset" in lower:  # most of the time of a page in UTF-8 would go into the search for a tag
        for tag in _META.finditer(_COMMENT.sub(b"", lower)):
            codec = _codec_of_meta(tag[1])
            if codec is not None:
                return codec
    xml = _XML.match(lower)
    return _of_markup(xml[1]) if xml else None


def _codec_of_meta(attributes: bytes) -> str | None:
    """The codec of `<meta charset=…>` or `<meta http-equiv=content-type content="…; charset=…">`, in lower case."""
    values: dict[bytes, bytes] = {}
    for name, *value in _ATTRIBUTE.findall(attributes):
        values.setdefault(name, b"".join(value))
    if b"charset" in values:
        return _of_markup(values[b"charset"])
    if values.get(b"http-equiv", b"").strip() != b"content-type":
        return None
    charset = _CHARSET.search(values.get(b"content", b""))
    return _of_markup(b"".join(filter(None, charset.groups()))) if charset else None


def _of_markup(label: bytes) -> str | None:
    """The codec of a label inside the page. Whoever could read it as ASCII reads no UTF-16."""
    codec = codec_of(label.decode("latin-1"))
    if codec == USER_DEFINED:
        return "cp1252"
    return UTF_8 if codec in UTF_16 else codec


def _strictly(page: bytes, codec: str) -> str | None:
    """The text of a page that `codec` decodes without an error, but for a character cut off at the end; otherwise None."""
    try:
        return page.decode(codec)
    except UnicodeDecodeError as error:
        is_cut_off = ("incomplete" in error.reason or "end of data" in error.reason or "truncated" in error.reason) and (
            0 < len(page) - error.start < _LONGEST_CHARACTER < len(page)
        )
        return _strictly(page[: error.start], codec) if is_cut_off else None


def _detected(page: bytes, detect: Detector) -> Decoded:
    text = page.decode(UTF_8, "replace")
    num_bad = text.count("\ufffd")
    num_characters = len(text) - len(_ascii_of(page))
    if num_characters - num_bad >= _VALID_FOR_BAD * num_bad:
        return Decoded(_clean(text, page), UTF_8, has_bad_bytes=True)
    codec = _codec_by(detect, _part_to_detect(page))
    for tried in codecs_of(codec):
        strict = _strictly(page, tried)
        if strict is not None:
            return Decoded(_clean(strict, page), tried)
    return Decoded(_clean(_loosely(page, codec, "replace"), page), codec, has_bad_bytes=True)


def _part_to_detect(page: bytes) -> bytes:
    """The part of a page that a detector is shown: its beginning, or from where it stops to be ASCII, with what is before."""
    match = _NOT_ASCII.search(page)
    first = 0 if match is None or match.start() < _DETECTED_BYTES // 2 else match.start() - _CONTEXT_BYTES
    part = page[first : first + _DETECTED_BYTES]
    whole = part.rstrip(_NO_BOUNDARY) if len(part) < len(page) - first else part
    return whole if len(whole) > len(part) // 2 else part


def _codec_by(detect: Detector, part: bytes) -> str:
    """The codec that a detector finds for the part of a page; for one of East Asia with few bad bytes, without them.

    Thai is believed at once: without spaces between its words, most of it is valid in the charsets of East Asia as well.
    """
    answer = _codec_of_answer(detect(part))
    if answer in (*_OF_EAST_ASIA, "cp874") and "\ufffd" not in _loosely(part, answer, "replace"):
        return answer
    long = b"".join(_LONG.findall(part))
    for num_bad, codec in sorted((_num_bad(long, codec), codec) for codec in _OF_EAST_ASIA):
        if num_bad < len(long):
            sound = _loosely(part, codec, "ignore").encode(codec, "ignore")
            if sound != part and _codec_of_answer(detect(sound)) == codec:
                return codec
    return answer


def _num_bad(part: bytes, codec: str) -> int:
    """The bad bytes of a part in a charset of East Asia; as many as it has bytes, where they are not few."""
    text = _loosely(part, codec, "replace")
    num_bad = text.count("\ufffd")
    num_long = len(text) - len(_ascii_of(text.encode("utf-8"))) - num_bad
    return num_bad if num_long > _VALID_FOR_BAD * num_bad else len(part)


def _loosely(page: bytes, codec: str, errors: str) -> str:
    return codecs.getincrementaldecoder(codec)(errors).decode(page)


def _codec_of_answer(answer: str) -> str:
    """The codec of a detector's answer, which may be a name of Python's own; windows-1252 without one, as browsers have it."""
    codec = codec_of(answer) or codec_of(answer.replace("_", "-"))
    try:
        codec = codec or codecs.lookup(answer).name
    except LookupError:
        return "cp1252"
    return codec if codec != UTF_8 else "cp1252"  # a page in UTF-8 reaches no detector: the answer stands for none


def _ascii_of(page: bytes) -> bytes:
    return page.translate(None, delete=bytes(range(0x80, 0x100)))


def _clean(text: str, page: bytes) -> str:
    """The text without its byte order mark and NULs. No charset has surrogates, so none is in a text that was decoded."""
    text = text.removeprefix("\ufeff")
    return text.replace("\0", "") if b"\0" in page else text  # a search in bytes takes a hundredth of one in wide characters


_OF_UCHARDET = {
    ("cp1252", "iso8859_2"),
    ("cp1252", "cp1257"),
    ("cp1250", "cp1252"),
    ("iso8859_2", "cp1252"),
    ("cp1257", "cp1252"),
}
"""Answers of chardetng and uchardet of which uchardet's holds. Where they differ so, on pages of one to thirty sentences in 40
languages (November 2026), uchardet is right on 95 and chardetng on 21: Hungarian, Latvian and Icelandic, most of all."""

_OF_EUROPE = {answer for answer, _ in _OF_UCHARDET}


def by_both(beginning: bytes) -> str:
    """The answer of chardetng; of uchardet where they differ about Western and Eastern Europe."""
    answer = by_chardetng(beginning)
    codec = _codec_of_answer(answer)
    if codec not in _OF_EUROPE:
        return answer
    other = by_resiliparse(beginning)
    return other if (codec, _codec_of_answer(other)) in _OF_UCHARDET and other.lower() != "utf-8" else answer


def by_resiliparse(beginning: bytes) -> str:
    """The answer of uchardet, as resiliparse has it. It answers UTF-8 where it does not know."""
    from resiliparse.parse.encoding import detect_encoding

    return detect_encoding(beginning, max_len=_DETECTED_BYTES) or ""


def by_chardetng(beginning: bytes) -> str:
    """The answer of Firefox's detector. It never answers UTF-8, which is tried before."""
    import chardetng_py

    detect: Any = chardetng_py.detect
    return detect(beginning)


DETECTORS: dict[str, Detector] = {"both": by_both, "resiliparse": by_resiliparse, "chardetng": by_chardetng}
"""By the values of the option `detector`."""
