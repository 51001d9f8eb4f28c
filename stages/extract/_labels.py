"""The names of charsets that web pages use, by the WHATWG Encoding Standard (https://encoding.spec.whatwg.org).

`webencodings` has them: `latin1` and `ascii` are windows-1252, `gb2312` is GBK, `ks_c_5601-1987` is EUC-KR. Here each encoding
has the codecs of Python that read it as browsers do.
"""

from __future__ import annotations

from functools import lru_cache

UTF_8, UTF_16 = "utf_8", ("utf_16_le", "utf_16_be")

USER_DEFINED = "x_user_defined"
"""Bytes of fonts, not of text: in a meta tag it means windows-1252, elsewhere it counts as no declaration."""

_CODECS = {
    "gbk": "gb18030",  # which extends it
    "euc-kr": "cp949",
    "shift_jis": "cp932",
    "big5": "big5hkscs",
    "iso-8859-8-i": "iso8859_8",
    "ibm866": "cp866",
    "macintosh": "mac_roman",
    "x-mac-cyrillic": "mac_cyrillic",
    "utf-16le": "utf_16_le",
    "utf-16be": "utf_16_be",
    "replacement": None,  # `hz-gb-2312`, `iso-2022-kr`, …, which browsers refuse: they count as no declaration
}
"""Codecs of the encodings whose names are not those of Python."""

_ALSO = {"euc_jp": ("euc_jis_2004",), "big5hkscs": ("cp950",), "iso2022_jp": ("iso2022_jp_ext",)}
"""Codecs that read what Python's codec of this name refuses and browsers read, such as the circled digits of EUC-JP. Where both
read a page, both give the same text."""


@lru_cache(maxsize=4096)
def codec_of(label: str) -> str | None:
    """The codec of a label as a page or a header has it; None for a label that no browser knows."""
    from webencodings.labels import LABELS  # of the extra `web`

    encoding = LABELS.get(label.strip("\t\n\f\r \"'").lower())
    if encoding is None:
        return None
    name = encoding.replace("windows-", "cp").replace("iso-8859-", "iso8859_").replace("iso-2022-", "iso2022_")
    return _CODECS.get(encoding, name.replace("-", "_"))


def codecs_of(codec: str) -> tuple[str, ...]:
    """The codecs to try in turn for the encoding of `codec`."""
    return (codec, *_ALSO.get(codec, ()))
