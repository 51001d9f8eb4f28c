"""Which charset a page is read by: order, labels, broken bytes, and what never reaches a parser."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.extract._charsets import DETECTORS, by_both, codec_of, declared_in, decode_page

RUSSIAN = "Река начинается в холмах над городом и течёт девяносто миль к морю, мимо старых мельниц и полей. "
JAPANESE = "川は町の上の丘から流れ出し、古い水車小屋と畑のそばを通って海まで九十マイル流れる。"
GERMAN = "Der Fluß entspringt in den Hügeln über der Stadt und fließt an alten Mühlen vorüber bis zum Meer – 90 Meilen. "


def _no_detector(beginning: bytes) -> str:
    raise AssertionError("the detector is not asked")


def _text(page: bytes, header: str = "") -> str:
    return decode_page(page, header, _no_detector).text


CODECS = {
    **dict.fromkeys(("latin1", " ISO-8859-1\n", "us-ascii"), "cp1252"),
    **dict.fromkeys(("GB2312", "gbk"), "gb18030"),
    **dict.fromkeys(("shift_jis", "x-sjis"), "cp932"),
    **dict.fromkeys(("ks_c_5601-1987", "euc-kr"), "cp949"),
    "iso-8859-9": "cp1254",
    "tis-620": "cp874",
    "logical": "iso8859_8",
    "unicode": "utf_16_le",
    '"utf-8"': "utf_8",
    **dict.fromkeys(("utf-7", "hz-gb-2312", "iso-2022-kr", "none", "")),
}


def test_label_means_what_browsers_take_it_for() -> None:
    assert {label: codec_of(label) for label in CODECS} == CODECS


DECLARED = {
    b"<meta charset=windows-1251>": "cp1251",
    b"<META\tCharset = 'KOI8-R' />": "koi8_r",
    b'<meta http-equiv="Content-Type" content="text/html; charset=Shift_JIS">': "cp932",
    b"<meta content='text/html;charset=\"euc-jp\"' http-equiv=content-type>": "euc_jp",
    b'<meta name=description content="text; charset=koi8-r"><meta charset=cp1250>': "cp1250",
    b'<meta content="a > b" charset=koi8-r>': "koi8_r",
    b"<!-- <meta charset=koi8-r> --><meta charset=cp1250>": "cp1250",
    b"<meta charset=nonsense><meta charset=cp1250>": "cp1250",
    b"<metadata charset=koi8-r>": None,
    b"<meta charset=utf-16>": "utf_8",
    b"<meta charset=x-user-defined>": "cp1252",
    b'<?xml version="1.0" encoding="windows-1251"?><html>': "cp1251",
    b'<?xml version="1.0" encoding="windows-1251"?><meta charset=koi8-r>': "koi8_r",
    b'<meta charset="koi8-r': None,
}


def test_declaration_in_a_page_is_found() -> None:
    assert {beginning: declared_in(beginning) for beginning in DECLARED} == DECLARED


META = "<meta charset=koi8-r>"
ZH = "ж".encode() * 2  # decodes in all of these
UTF_16 = f"<meta charset=utf-16><p>{JAPANESE} &amp; <b>more</b>"
MIXED = GERMAN * 3 + "caf\ufffd " + RUSSIAN
READ: list[tuple[bytes, str, str]] = [
    # the order is mark, header, meta, UTF-8
    (b"\xef\xbb\xbf" + META.encode() + ZH, "windows-1251", f"{META}жж"),
    (META.encode() + ZH, "windows-1251", META + ZH.decode("cp1251")),
    (META.encode() + ZH, "", META + ZH.decode("koi8-r")),
    (META.encode() + ZH, "nonsense", META + ZH.decode("koi8-r")),
    (ZH, "", "жж"),
    # a charset that does not decode is passed over
    (b"<meta charset=windows-1251>" + RUSSIAN.encode("cp1251"), "utf-8", f"<meta charset=windows-1251>{RUSSIAN}"),
    (b"<meta charset=shift_jis>" + RUSSIAN.encode(), "us-ascii", f"<meta charset=shift_jis>{RUSSIAN}"),  # 0x90 is undefined
    # UTF-16 is read by its mark and by the header
    *((UTF_16.encode(codec), codec, UTF_16) for codec in ("utf-16le", "utf-16be")),
    *((("\ufeff" + UTF_16).encode(codec), "", UTF_16) for codec in ("utf-16le", "utf-16be")),
    (b"<meta charset=utf-16>plain", "gb2312", "<meta charset=utf-16>plain"),
    (JAPANESE.encode("iso2022_jp"), "iso-2022-jp", JAPANESE),  # in ASCII alone
    (JAPANESE.encode("euc_jp") + b"\xad\xa1", "euc-jp", f"{JAPANESE}①"),
    # a character cut off at the end is left out
    *(
        (JAPANESE.encode(label)[:-1], label, JAPANESE[:-1])
        for label in ("utf-8", "shift_jis", "euc-jp", "gb18030", "utf-16le", "utf-16be")
    ),
    (b" " * 4000 + META.encode() + RUSSIAN.encode("koi8-r"), "", " " * 4000 + META + RUSSIAN),
    (GERMAN.encode() * 3 + b"caf\xe9 " + RUSSIAN.encode(), "", MIXED),  # bad bytes do not make it another charset
]


@pytest.mark.parametrize(("page", "header", "text"), READ, ids=range(len(READ)))
def test_page_is_read_by_its_declared_charset(page: bytes, header: str, text: str) -> None:
    decoded = decode_page(page, header, _no_detector)
    assert decoded.text == text
    assert decoded.has_bad_bytes == (text == MIXED)


def test_declaration_behind_four_kilobytes_is_not_read() -> None:
    with pytest.raises(AssertionError, match="not asked"):
        _text(b" " * 4096 + META.encode() + RUSSIAN.encode("koi8-r"))


OF_LANGUAGES = {
    "cp1251": RUSSIAN,
    "koi8-r": RUSSIAN,
    "cp932": JAPANESE,
    "euc_jp": JAPANESE,
    "iso2022_jp": JAPANESE,
    "euc_kr": "강은 마을 위 언덕에서 시작하여 오래된 물레방아와 들판을 지나 바다까지 구십 마일을 흐른다. ",
    "cp949": "똠방각하가 강가의 펲시콜라 간판 앞에서 물레방아와 들판을 바라보며 아침부터 저녁까지 서 있었다. ",
    "gb18030": "这条河发源于城镇上方的山丘，流经古老的水磨坊和田野，最后流入九十英里外的大海。",
    "cp1253": "Ο ποταμός πηγάζει από τους λόφους πάνω από την πόλη και κυλά ως τη θάλασσα, πλάι στους παλιούς μύλους. ",
    "cp1255": "הנהר נובע בגבעות שמעל העיר וזורם תשעים מיל אל הים, לאורך טחנות ישנות ושדות. ",
    "cp1256": "ينبع النهر من التلال فوق المدينة ويجري تسعين ميلا إلى البحر مارا بالطواحين القديمة والحقول. ",
    "cp874": "แม่น้ำไหลจากเนินเขาเหนือเมืองไปยังทะเล ผ่านโรงสีเก่าและทุ่งนา ",
    "cp1254": "Irmak kasabanın üstündeki tepelerden doğar, eski değirmenlerin yanından denize doğru akar; köylüler şaşırır. ",
    "iso8859_2": "A folyó a város fölötti dombokon ered, és régi malmok mellett folyik a tengerig; ősszel bővizű. ",
    "cp1250": "Řeka pramení v kopcích nad městem a teče devadesát mil k moři, kolem starých mlýnů – každé jaro. ",
}
ISLAND, DUTCH, ITALIAN = (
    "Áin á upptök sín í hæðunum fyrir ofan bæinn og rennur níutíu mílur til sjávar, fram hjá gömlum myllum og túnum. ",
    "De rivier ontspringt in de heuvels boven de stad; één molen staat er nog, en de kosten van de reünie zijn geëvalueerd. ",
    "Il fiume nasce sulle colline sopra la città e scorre fino al mare; perché la piena è già finita, nessuno può partire. ",
)


@pytest.mark.parametrize(
    ("codec", "text"), [*OF_LANGUAGES.items(), *[("cp1252", text) for text in (ISLAND, DUTCH, ITALIAN, GERMAN)]]
)
def test_undeclared_charset_is_detected(codec: str, text: str) -> None:
    page = ("<p>" + " " * 200_000 + text * 3).encode(codec)
    decoded = decode_page(page, "", by_both)
    assert decoded.text.endswith(text * 3)
    assert not decoded.has_bad_bytes


@pytest.mark.medium
@pytest.mark.parametrize("codec", ["gb18030", "cp932", "euc_jp", "cp949", "big5hkscs"])
def test_charset_of_east_asia_is_detected_at_any_size_and_any_cut(codec: str) -> None:
    text = {"big5hkscs": "這條河發源於城鎮上方的山丘，流經古老的水磨坊和田野，最後流入九十英里外的大海。"}.get(
        codec, OF_LANGUAGES.get({"cp949": "euc_kr"}.get(codec, codec), "")
    )
    one = text.strip().encode(codec)
    pages = {f"long {shift}": b"<p>" + b" " * shift + one * 3000 for shift in range(2)}
    pages |= {f"cut {size}": (b"<p>" + one * 20)[:size] for size in range(600, 606)}
    pages |= {f"headline {size}": b"<p>" + one * 9 + b"<a>" + one[:size] + b"...</a>" + one * 9 for size in range(7, 10)}
    wrong = [name for name, page in pages.items() if text[:12] not in decode_page(page, "", by_both).text]
    assert wrong == []
    assert not any(decode_page(page, "", by_both).has_bad_bytes for name, page in pages.items() if "headline" not in name)


def test_detector_without_a_useful_answer_ends_in_some_text() -> None:
    for text in (ISLAND, DUTCH, ITALIAN):  # UTF-8 for what is no UTF-8 counts as none
        assert decode_page(text.encode("cp1252"), "", lambda beginning: "utf-8").text == text
    for answer in ("", "nonsense", "utf-16", "gbk"):
        decode_page(b"a\x81\xff\xfe\x90 b", "", lambda beginning, answer=answer: answer).text.encode()


@given(
    page=st.binary(max_size=80), header=st.sampled_from(["", "utf-16", "gbk", "big5", "iso-2022-jp", "euc-jp", "utf-7", "x"])
)
def test_any_bytes_become_a_text_without_surrogates_and_nuls(page: bytes, header: str) -> None:
    for detect in DETECTORS.values():
        text = decode_page(page, header, detect).text
        text.encode()
        assert "\0" not in text


@given(pieces=st.lists(st.sampled_from([b"<meta ", b"charset=", b"'", b'"', b">", b"utf-8", b"<!--", b"-->", b" ", b"\xff"])))
def test_broken_declarations_raise_nothing(pieces: list[bytes]) -> None:
    declared_in(b"".join(pieces))
