"""Numbers that identify a person, marked in each text; hostile bytes cost no more than others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.kernels.redact import identifiers
from tests.oracles import identifiers as oracle
from tests.support.marked_spans import marked, scraps, unmarked

ALL = 63


def _find(text: str | bytes, wanted: int = ALL) -> list[str]:
    array = pa.array([text.encode() if isinstance(text, str) else text], pa.large_binary())
    offsets, data = columns.text_buffers(array)
    spans = identifiers.find(offsets, data, wanted)
    return [data[start:stop].tobytes().decode() for start, stop in zip(spans.starts, spans.stops, strict=True)]


CARDS = [
    "pay with ⟦4111111111111111⟧. ⟦5105-1051-0510-5100⟧, ⟦4111 1111 1111 1111⟧",
    "⟦3782 822463 10005⟧; ⟦3056 930902 5904⟧; ⟦30569309025904⟧ x ⟦4111 1111 1111 1111⟧ 12",
    "⟦6011111111111117⟧ ⟦3530111333300000⟧ ⟦2223003122003222⟧",
    "card no. ⟦4222222222222⟧ or 4222222222222",
    "my card ⟦501864667909⟧",
    "⟦5019717010103742⟧, ⟦2200 0000 0000 0053⟧, ⟦9792020000000001⟧",
    "uatp ⟦135412345678911⟧ or ⟦1354 12345 678911⟧, not 135412345678911",
    "Kreditkarte: ⟦5000000000000009⟧ 5000000000000009",
    "4111111111111112 0000000000000000 9999057009913959",
    "4111 1111 1111 1111 1111 and 1234 4111 1111 1111 1111",
    "4111-1111 1111-1111 4111  1111 1111 1111",
    "0.4111111111111111 x4111111111111111 id_4111111111111111 4111111111111111a 4111111111111111.5",
    "/4111111111111111 $4111111111111111 41111111111111111111",
]
IBANS = [
    "⟦GB82WEST12345698765432⟧, ⟦gb82west12345698765432⟧",
    "⟦DE89 3704 0044 0532 0130 00⟧ and ⟦DE89-3704-0044-0532-0130-00⟧",
    "⟦NO9386011117947⟧ ⟦MT84MALT011000012345MTLCAST001S⟧",
    "GB82WEST12345698765433 GB82WEST1234569876543 GB82WEST123456987654321 gB82WEST12345698765432",
    "GB82 WEST 1234 5698 765432 GB82 WEST12345698765432 ZZ71339579307457972089 XGB82WEST12345698765432",
]
SSNS = [
    "⟦123-45-6789⟧, (⟦849-66-3189⟧)",
    "SSN: ⟦123456789⟧; social security number is ⟦123 45 6789⟧",
    "123456789 123 45 6789 1123-45-6789 123-45-67890 123-45-6789-1",
    "000-12-3456 666-12-3456 900-12-3456 987-65-4320 123-00-4567 123-45-0000 SSN 000123456",
    "SSN 12 apples 123456789",
    "⟦912-70-1234⟧ (ITIN), ⟦912 94 1234⟧ ITIN and ⟦912501234⟧, itin",
    "912-70-1234 (ITINERARY), 912-94-1234   ITIN, 912-49-1234 (ITIN)",
    "912501234. SSN",
    "⟦123\u201145\u20116789⟧, SSN ⟦123\xa045\xa06789⟧, 123\u201345\u20136789-1",
    "ITIN ⟦912-70-1234⟧, taxpayer identification number: ⟦912 94 1234⟧ or tax ID ⟦912501234⟧",
    "912-70-1234 in 912-70-1234; ITIN 912-49-1234, ITIN 912-66-1234, TIN 912-89-1234, SSN 987-65-4321, SSN 900000000",
]
PHONES = [
    "⟦+41 (0)44 668 18 00⟧, ⟦+14155552671⟧ tel.: ⟦0496 46 46 70⟧",
    "⟦(415) 555-2671 ext. 12⟧, ⟦415.555.2671x9⟧, ⟦1-415-555-2671⟧",
    "please call us on\n⟦9498777106⟧",
    "Phone number is ⟦(85) 5986-8343⟧",
    "⟦020 7946 0018⟧ (24 hours) ⟦(020) 7946 0958⟧⟦(415) 555-2671⟧",
    "⟦0044 20 7946 0018⟧, ⟦00 49-171 2345678⟧, 00442079460018, 000 12 34567890",
    "⟦0171 2345678⟧, ⟦(020) 7946 0958⟧, ⟦01 23 45 67 89⟧",
    "415 555 2671, 4155552671, 115-555-2671, 495-555-2671, 415-155-2671, 415-555.2671",
    "a+14155552671 (1)+4155552671 1+415555267 f(x)+12345678",
    "415-555-2671-3 12415-555-2671 x/415-555-2671 415-555-26711 $415-555-2671",
    "01-02-2023 10:30, 01.02.2023, 2023-10-11, 0x12345678",
    "⟦+14155552671⟧⟦+14155552672⟧ ⟦+1 415 555 2671⟧⟦+1 415 555 2671⟧",
    "<PHONE> 415 555 2671",
    "call 12345 and 123456",
    "+1-555-555-0142 ⟦415-555-2671⟧ ⟦+1-555-555-01425⟧",
    "call 123-45-6789",
    "⟦415\u2011555\u20112671⟧, ⟦(415)\xa0555\u20132671⟧ tel ⟦415\u2009555\u20092671⟧",
    "⟦+33\u202f1\u202f23\u202f45\u202f67\u202f89⟧ x",
    "⟦＋８１\u3000３－１２３４－５６７８⟧、⟦＋81312345678⟧ 電話 tel ⟦（０３）1234－5678⟧",
    "x-415\u2011555\u20112671 100\u2011415\u2011555\u20112671 1990\u20132010 12\xa0345\xa0678",
    "pages 4155\u20134159 and ２０２０年 １２３４５６７８９ 10\u202f000\u202f000\u202f€",
]
NOT_SSN = ALL ^ identifiers.WANTS_SSN
CASES = [*((text, identifiers.WANTS_CARD) for text in CARDS), *((text, identifiers.WANTS_IBAN) for text in IBANS)]
CASES += [*((text, identifiers.WANTS_SSN) for text in SSNS), *((text, NOT_SSN) for text in PHONES)]


@pytest.mark.parametrize(("text", "wanted"), CASES)
def test_find_numbers_are_those_that_are_marked(text: str, wanted: int) -> None:
    assert _find(unmarked(text), wanted) == marked(text)


SCRAPS = [*" .-+()/x_@$\n§\xa0\u2011\u2013\u202f\u3000＋（）－１２９é中☎ß", "te\u0301l", "टेली\u0301फोन"]
SCRAPS += scraps("4111 1111 411111 10005 4111111111111111 4222222222222 card 3056 930902 GB82 WEST 1234 5698 7654 32 NO93")
SCRAPS += scraps("86011117947 gb82 123 45 6789 666 00 SSN security number tel fax call 415 555 2671 +1 +41 (0) 0171 01 0044")
SCRAPS += scraps("ext. тел ТЕЛ. номер 電話 電話は 전화 โทร. Tél： kom ho ITIN 912 70")


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(3))
def test_find_random_scraps_equal_the_oracle(seed: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(800):
        signs = generator.choice([" ", "-", ".", ""], 3)
        drawn = [SCRAPS[number] for number in generator.integers(0, len(SCRAPS), 10)]
        text = "".join(scrap + str(signs[int(generator.integers(0, 3))]) for scrap in drawn).encode()
        for wanted in (ALL, int(generator.integers(0, 64))):
            expected = [text[start:stop].decode() for start, stop, _ in oracle.find(text, wanted)]
            assert _find(text, wanted) == expected, text


@pytest.mark.medium
def test_find_random_numbers_equal_the_oracle() -> None:
    """Numbers made valid four times in five, in the issuers' ranges and at their borders."""
    generator = np.random.default_rng(7)
    ranges = oracle._SURE_ISSUERS + oracle._RARE_ISSUERS
    prefixes = [str(edge) for first, last, _ in ranges for edge in (first - 1, first, last, last + 1)]
    for _ in range(4000):
        prefix, length = prefixes[int(generator.integers(0, len(prefixes)))], int(generator.integers(11, 21))
        digits = (prefix + "".join(map(str, generator.integers(0, 10, 20))))[: length - 1]
        total = sum(divmod(2 * int(d), 10)[0] + 2 * int(d) % 10 if n % 2 == 0 else int(d) for n, d in enumerate(digits[::-1]))
        last = -total % 10 if generator.random() < 0.8 else int(generator.integers(0, 10))
        text = f"{'card ' if generator.random() < 0.5 else ''}{digits}{last} x".encode()
        assert _find(text, 1) == [text[start:stop].decode() for start, stop, _ in oracle.find(text, 1)], text


def test_find_valid_ibans_of_every_country() -> None:
    for country, length in oracle._LENGTH_OF.items():
        rest = "".join(str((7 * index + length) % 10) for index in range(length - 4))
        check = 98 - int("".join(str(int(character, 36)) for character in f"{rest}{country}00")) % 97
        written = f"{country}{check:02}{rest}"
        grouped = " ".join(written[start : start + 4] for start in range(0, length, 4))
        assert _find(f"to {written}, or {grouped}.", identifiers.WANTS_IBAN) == [written, grouped]


def test_find_numbers_of_several_documents_stay_inside_them() -> None:
    texts = ["411111111", "1111111", "4111111111111111", "", "+1415", "5552671", "GB", "82WEST12345698765432"]
    offsets, data = columns.text_buffers(pa.array(texts, pa.large_string()))
    spans = identifiers.find(offsets, data, ALL)
    assert (spans.starts.tolist(), spans.stops.tolist()) == ([offsets[2]], [offsets[3]])


def test_find_lone_continuation_bytes_are_no_part_of_a_number() -> None:
    assert _find(b"\x80415-555-2671\xbf \xe24111111111111111\x80") == ["415-555-2671", "4111111111111111"]


@pytest.mark.medium
def test_find_a_megabyte_of_one_fragment_is_linear() -> None:
    fragments = ["1", "1 ", "+1 ", "(", "+", "GB82", "4111 ", "4111-", "123-", "call ", "1.", "tel 1 ", "(1)", "x1"]
    for fragment in [*fragments, "GB82WEST1234569876543"]:
        assert len(_find(fragment * (1_000_000 // len(fragment)))) <= 1_000_000 // 7
