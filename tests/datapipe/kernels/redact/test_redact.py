"""Addresses and numbers that identify a person, marked in each text; stand-ins; hostile bytes cost no more than others."""

import ipaddress
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import phonenumbers
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.kernels.redact import identifiers, pii, stand_ins
from tests.oracles import identifiers as oracle
from tests.oracles import pii as pii_oracle
from tests.support.marked_spans import marked, scraps, unmarked

ALL = 63
Find = Callable[[np.ndarray, np.ndarray], Any]


def of_kinds(wanted: int) -> Find:
    return lambda offsets, data: identifiers.find(offsets, data, wanted)


def addresses(offsets: np.ndarray, data: np.ndarray) -> Any:
    return pii.find(offsets, data, True, True, True)


def _find(text: str | bytes, find: Find) -> list[str]:
    array = pa.array([text.encode() if isinstance(text, str) else text], pa.large_binary())
    offsets, data = columns.text_buffers(array)
    spans = find(offsets, data)
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
        assert _find(text, of_kinds(1)) == [text[start:stop].decode() for start, stop, _ in oracle.find(text, 1)], text


def test_find_valid_ibans_of_every_country() -> None:
    for country, length in oracle._LENGTH_OF.items():
        rest = "".join(str((7 * index + length) % 10) for index in range(length - 4))
        check = 98 - int("".join(str(int(character, 36)) for character in f"{rest}{country}00")) % 97
        written = f"{country}{check:02}{rest}"
        grouped = " ".join(written[start : start + 4] for start in range(0, length, 4))
        assert _find(f"to {written}, or {grouped}.", of_kinds(identifiers.WANTS_IBAN)) == [written, grouped]


EMAILS = [
    "write to ⟦jane.doe+news@mail.example.co.uk⟧.",
    "<⟦o'brien@x.ie⟧>, '⟦j@x.de⟧'; mailto:⟦a_b@c-d.org⟧?subject=x",
    "⟦a@b.io⟧",
    "⟦UPPER@CASE.COM⟧- ⟦JANE@XN--MNCHEN-3YA.XN--P1AI⟧ ⟦a@b.com⟧@c.com",
    ".⟦jane@x.com⟧ and ..⟦jane@y.com⟧ and a..⟦jane@z.com⟧",
    f"⟦{'x' * 64}@a.de⟧ {'x' * 65}@a.de ⟦a@{'b' * 63}.de⟧ a@{'b' * 64}.de",
    f"⟦{'é' * 32}@a.de⟧ {'é' * 33}@a.de",
    "jane.@x.com jane@-x.com jane@x jane@x.c jane@x.com5 @x.com jane@ x.com jane@.com",
    "⟦jane@x.com⟧.5 ⟦jane@x.com⟧.b",
    "logo@2x.png icons@3x.min.js pkg@1.2.3",
    "⟦carlos.gonzález89@host.com⟧ or ⟦José.Núñez@correo.es⟧ ⟦gonza\u0301lez@host.com⟧",
    "⟦jane@bücher.de⟧, ⟦коля@почта.рф⟧. ⟦Dörte@Sörensen.host.com⟧",
    "联系⟦jane@x.com⟧。 ⟦用户@例子.中国⟧的网站 메일⟦jane@x.com⟧으로 メール⟦jane@x.com⟧です",
    "用户@例子.人 коля@почта.р ⟦jane@x.com⟧ñ ⟦иван@почта.рф⟧- ⟦info@münchen.de⟧ ⟦γιώργος@παράδειγμα.ελ⟧",
    "⟦用户@例子.广告⟧, ⟦संपर्क@डाटामेल.भारत⟧, ⟦a@xn--e1afmkfd.xn--p1ai⟧",
    "⟦洁.朱84@x.com⟧, ⟦佐藤_健7@x.jp⟧ ⟦홍길동1990@x.kr⟧ ⟦ｼﾞｮﾝ12@x.jp⟧ ⟦ᏣᎳᎩ@x.com⟧ ⟦สมชาย5@ทดสอบ.ไทย⟧ ⟦李_jane@x.com⟧",
    "联系我:⟦foo@bar.com⟧ 请联系⟦foo@x.com⟧ 邮箱是⟦123456@qq.com⟧ 邮箱⟦84@qq.com⟧",
    "⟦김철수.kim@x.com⟧ ⟦朱.jie@x.cn⟧ ⟦山田-taro@x.jp⟧ ⟦连.wei12@x.cn⟧ ⟦さくら.y.z@x.jp⟧ ⟦王.é@x.cn⟧ ⟦สมชาย.j@x.th⟧",
    "请联系我.⟦foo@x.com⟧ 문의하세요.⟦kim@x.com⟧ 邮箱-⟦foo@x.com⟧ 请联系。⟦foo@x.com⟧",
    "react@18.0.0.rc pkg@2.0.0.dev a@v1.2.beta a@1.2.3.rc1.tar.gz b@2.dev c@V3.RC img@sha256.abc ⟦李@163.com⟧ ⟦a@1.x.com⟧",
    f"{'联系' * 10}⟦{'联系' * 10}李@x.com⟧",
    "?mail=⟦jane%40host.com⟧&x email%3D⟦jane%2Bnews%40mail.co.uk⟧%26",
    "%40host.com a%20%40host.com '%s%40s.name' '5%40d' x%40y jane%40logo.png",
    "git clone git@host.com:team/project.git; git@host.com:project.git scp deploy@host.com:/srv/www .",
    "rsync a jane@host.com:~/notes jane@host.com:docs/a.txt hg@host.com:2222/x",
    "mailto:⟦carlos@host.com⟧: yes, ⟦carlos@host.com⟧:\n\n⟦carlos@host.com⟧:hunter2",
    "⟦jane@host.com⟧:.git ⟦jane@host.com⟧:a.gitx ⟦jane@host.com⟧:// ⟦jane@host.com⟧:",
    "⟦jane＠host.com⟧、⟦联系李＠host.com⟧。＠host.com jane＠ host.com ，＠",
    "@",
]
IPV4 = [
    "from ⟦8.8.8.8⟧ to ⟦8.8.4.4⟧.",
    "http://⟦8.8.8.8⟧:53/x, root@⟦8.8.8.8⟧, ⟦8.8.8.8⟧/24, ⟦8.8.8.1⟧-⟦8.8.8.9⟧",
    "地址⟦8.8.8.8⟧，ip=⟦8.8.8.8⟧| ::ffff:⟦8.8.8.8⟧ up since ⟦8.8.8.8⟧... then ⟦8.8.8.8⟧",
    "10.0.0.1 127.0.0.1 192.168.1.1 172.16.0.1 169.254.1.1 100.64.0.1 224.0.0.1 255.255.255.255 0.0.0.0 192.0.2.7",
    "239.255.255.250 224.0.0.251 240.1.2.3 192.88.99.1 192.175.48.6 198.51.100.7 203.0.113.7 198.19.1.1",
    "⟦172.15.0.1⟧ ⟦172.32.0.1⟧ ⟦100.63.255.255⟧ ⟦100.128.0.0⟧",
    "1.2.3.4.5 .1.2.3.4 1.2.3 1.2.3.256 01.2.3.4 1..2.3.4 1.2.3.1000 12345678901.2.3.4",
    "version 1.2.3.4, Version: 1.2.3.4, version is 1.2.3.4, v1.2.3.4, v. 1.2.3.4",
    "versions 1.2.3.4 and 1.2.3.5, section 8.1.2.31, § 8.1.2.31, §8.1.2.31, paragraph 1.2.3.4 of Appendix 1.2.3.4",
    "Chrome/41.0.2228.0 nginx/1.2.3.4 openssl-1.2.3.4 1.2.3.4-beta 1.2.3.4a lib_1.2.3.4 8.8.8.8.in-addr.arpa",
    "GIT 1.4.2.1, Git  1.4.2.1 and Opera 9.80.20.1 kernel\t2.6.32.71",
    "Git: ⟦1.4.2.1⟧ host ⟦1.4.2.1⟧ from ⟦1.4.2.1⟧ (⟦1.4.2.1⟧), DNS ⟦9.9.9.9⟧",
    "Jane ⟦9.9.9.100⟧ Git ⟦101.4.2.1⟧",
    "the version was old\nserver ⟦8.8.8.8⟧ version 2 (⟦8.8.8.8⟧)",
    "pandas==1.4.3.2 torch>=1.13.1.1,<=2.0.1.1 lib ~= 3.1.4.1 (>= 12.10.200.1) x!=4.4.4.4 '~> 5.1.4.2'",
    "ip == ⟦8.8.8.8⟧ and ip.src==⟦8.8.4.4⟧, remote_addr != ⟦9.9.9.9⟧ if clientAddress == ⟦1.2.3.4⟧",
    'AssemblyVersion("4.1.2.3") FileVersion=4.1.2.3 "contentVersion": "4.1.200.3" <a_version>4.1.2.3</a_version>',
    'ObjectIdentifier("2.5.4.41") OID_NAME = "2.5.29.19" X_OID = "1.3.101.112" oid: 1.3.6.1',
    "upgrade from 12.1.0.1 to 12.1.0.2, upgraded libfoo from 12.1.0.201 to 12.1.0.202",
    "Bump activerecord from 5.2.4.3 to 5.2.4.4 and versions prior to 4.2.5.1, RFC 5445 3.8.2.4",
    "upgraded the server from ⟦8.8.8.8⟧ to ⟦8.8.4.4⟧\nthe upgrade\nfrom ⟦9.9.9.9⟧ (upgrade) from ⟦1.2.3.4⟧",
    "gem \"rack\", \"2.2.6.4\" rails (4.2.7.1) and ('api-kit', '3.4.5.6')",
    '// 4.2.5.1 "electron": "^9.1.2.3" \'~4.5.6.7\' 1.0.0.0 or "4.0.0.0" and 203.0.0.0',
    'server ⟦8.8.8.8⟧, "ip": "⟦8.8.8.8⟧", from ⟦8.8.8.8⟧ to ⟦8.8.4.4⟧',
    '["dns1", "⟦8.8.8.8⟧"], ("primary_dns", "⟦8.8.4.4⟧") gateway (⟦9.9.9.9⟧)',
    "PING dns.google (⟦8.8.8.8⟧) 56 bytes; host.net (⟦8.8.4.4⟧)",
    "⟦8.8.8.8⟧ - - [1/Jan] '⟦8.8.4.4⟧', '⟦9.9.9.9⟧' client=⟦9.9.9.9⟧",
    "version_server: ⟦8.8.8.8⟧ android=⟦9.9.9.9⟧ avoid ⟦8.8.8.101⟧",
    "asteroids (23.45.67.89)",
]
IPV6 = [
    "at [⟦2600:1f18:0:1:2:3:4:5⟧]:443. ⟦2001:4860:4860::8888⟧",
    "Source:⟦2a00:1450:4001:81b::200e⟧: ok ⟦2A00:1450:4001::⟧/48",
    "keep ⟦d80:e4b5:79da:6cf6:71f3:51f7:9161:c319⟧ out",
    "2001:db8::1:2 2001:0:1::2 fe80::1:2:3 fd00:1:2:3:4:5:6:7777 ::1 :: 3fff:1::2",
    "ff02::1:2:fb ff0e:1:2:3:4:5:6:7777 fec0:1:2:3:4:5:6:7777 100:1:2:3:4:5:6:7777 5f00::1:2 2620:4f:8000::7",
    "std::vector a::b dead::beef::cafe abc::def:1 12:34:56 00:1a:2b:3c:4d:5e 50:06:01:60:3b:a0:11:22",
    "43:51:43:a1:b5:fc:8b:b7:0a:3a:a9:b1:0f:66:73:a8 2600:1:2:3:4:5:6:7777:8 2600:12345::1:2 2600:1:2::3g",
]
CREDENTIALS = [
    "git clone https://⟦bob:hunter2@⟧h.com/x https://⟦bob:ghp_x@⟧[::1]/",
    "redis://⟦:s3cret@⟧10.0.0.1:6379 postgres://⟦u:p@ss@⟧db",
    "https://⟦jane%40host.com:secret@⟧h.com/⟦jane%40host.com⟧",
    "https://h.com:80/a@b https://⟦bob@h.com⟧:80 http://a:b@/ http://a:b@ ://a:b@h http://a:@h",
    "http://u:$PASS@h.com http://u:%s@h.com http://u:***@h.com http://u:${P}@h http://{u}:{p}@h",
    "http://user-0123abcd:password@h.com user-0123abcd@example.com",
    "http://⟦user-0123abcx:password@⟧h.com ⟦user-0123abcx@example.com⟧",
    f"http://⟦u:{'p' * 253}@⟧h.com http://u:{'p' * 254}@h",
]


CASES = [(text, identifiers.WANTS_CARD) for text in CARDS] + [(text, identifiers.WANTS_IBAN) for text in IBANS]
CASES += [(text, identifiers.WANTS_SSN) for text in SSNS] + [(text, NOT_SSN) for text in PHONES]


@pytest.mark.parametrize(
    ("text", "find"),
    [
        *((text, of_kinds(wanted)) for text, wanted in CASES),
        *((text, addresses) for text in [*EMAILS, *IPV4, *IPV6, *CREDENTIALS]),
        ("\udc80⟦415-555-2671⟧\udcbf \udce2⟦4111111111111111⟧\udc80", of_kinds(ALL)),  # lone continuation bytes
    ],
)
def test_find_spans_are_those_that_are_marked(text: str, find: Find) -> None:
    assert _find(unmarked(text).encode(errors="surrogateescape"), find) == marked(text)


SCRAPS = [*"@@.-5_+'/(:\n§évЯ中한́%はーㇽꙭཀ箱~^*$＠，요", "host ", "Git ", '", "', "// ", "upgrade ", "from ", "com"]
SCRAPS += scraps("18.0. v2. rc sha256. 中国 рф %40 %2b == oid_ remoteIp fileVersion x/y .git jane doe x.com .de 8.8.8.8")
SCRAPS += scraps("1.2.3.4 10.0.0.1 .. 99 version section to ab.png c:d xn--p1ai 300.1.1.1 2600:1:: -. a@b.co http:// u:p@")
SCRAPS += scraps("user-01234567 :password@ @example.com")


@pytest.mark.parametrize("seed", range(4))
def test_find_random_scraps_equal_the_oracle(seed: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(400):
        drawn = [SCRAPS[number] for number in generator.integers(0, len(SCRAPS), 9)]
        text = "".join(scrap + ("" if generator.random() < 0.6 else " ") for scrap in drawn)
        expected = [text[start:stop] for start, stop, kind in pii_oracle.find(text) if kind != pii.IPV6]
        assert [span for span in _find(text, addresses) if "::" not in span] == expected, text


def _assert_address_is_as_the_oracle_says(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    text = f"at {address} now"
    assert _find(text, addresses) == [text[start:stop] for start, stop, _ in pii_oracle.find(text)], text


@pytest.mark.medium
def test_find_random_ipv4_are_found_where_public() -> None:
    reserved = "10.0.0.0 100.64.0.0 100.128.0.0 127.0.0.0 169.254.0.0 172.16.0.0 172.32.0.0 192.168.0.0 198.18.0.0 192.0.2.0 "
    reserved += "198.51.100.0 203.0.113.0 224.0.0.0 192.0.0.0 198.20.0.0 192.31.196.0 192.52.193.0 192.88.99.0 192.175.48.0"
    borders = [int(ipaddress.IPv4Address(border)) for border in reserved.split()]
    numbers = [border + step for border in borders for step in (-257, -1, 0, 1, 255, 256)]
    for number in [*numbers, *np.random.default_rng(1).integers(0, 2**32, 2000).tolist()]:
        _assert_address_is_as_the_oracle_says(ipaddress.IPv4Address(number))


@pytest.mark.medium
def test_find_random_ipv6_are_found_where_public_and_clear() -> None:
    generator = np.random.default_rng(2)
    for _ in range(1500):
        groups = generator.integers(0, 2**16, 8) * (generator.random(8) < 0.7)
        groups[0] = generator.choice([0x2001, 0x2600, 0x2A00, 0x3FFF, 0xFE80, 0xFD00, 0xFC00, 0x20, 0xD80, groups[0]])
        _assert_address_is_as_the_oracle_says(ipaddress.IPv6Address(b"".join(int(one).to_bytes(2, "big") for one in groups)))


@pytest.mark.parametrize(
    ("texts", "find", "number", "start"),
    [
        (["jane@x.", "com", "8.8.", "8.8", "", "a", "@b.com", "x a@b.com"], addresses, 7, 2),
        (["411111111", "1111111", "4111111111111111", "", "+1415", "5552671", "GB", "82WEST12"], of_kinds(ALL), 2, 0),
    ],
)
def test_find_spans_of_several_documents_stay_inside_them(texts: list[str], find: Find, number: int, start: int) -> None:
    offsets, data = columns.text_buffers(pa.array(texts, pa.large_string()))
    spans = find(offsets, data)
    assert (spans.starts.tolist(), spans.stops.tolist()) == ([offsets[number] + start], [offsets[number + 1]])


FRAGMENTS = ["1", "1 ", "+1 ", "(", "+", "GB82", "4111 ", "4111-", "123-", "call ", "1.", "tel 1 ", "(1)", "x1", "8.8.8.8 to "]
FRAGMENTS += scraps("aaaa@ a @ 1. 1.1.1.1. . : a: :: 1:2:: a. a@a. a@a-. a:// a://b: a://b:c@ 1%1 a%40 @中国.")


@pytest.mark.medium
@pytest.mark.parametrize("find", [of_kinds(ALL), addresses])
def test_find_many_bytes_of_one_fragment_is_linear(find: Find) -> None:
    """Each in a fraction of a second; what reads a text once more at every byte takes many minutes."""
    for fragment in [*FRAGMENTS, "Git 1.2.3.4 ", "GB82WEST1234569876543"]:
        assert len(_find(fragment * (200_000 // len(fragment)), find)) <= 200_000 // 7


def _of_kind(kind: int) -> list[str]:
    """The stand-ins of 300 spans of a kind."""
    spans = [b"%d" % number for number in range(300)]
    stops = np.cumsum([len(span) for span in spans])
    starts = stops - np.array([len(span) for span in spans])
    rows, lengths = np.zeros((300, stand_ins.REPLACEMENT_BYTES), np.uint8), np.zeros(300, np.int64)
    data, kinds = np.frombuffer(b"".join(spans), np.uint8), np.full(300, kind, np.uint8)
    with np.errstate(over="ignore"):
        stand_ins.write_stand_ins(data, starts, stops, kinds, np.uint64(5), rows, lengths)
    return [row[:length].tobytes().decode() for row, length in zip(rows, lengths, strict=True)]


def test_write_stand_ins_are_valid_and_reserved() -> None:
    assert all(ipaddress.ip_address(stand_in) in ipaddress.ip_network("192.0.2.0/24") for stand_in in _of_kind(pii.IPV4))
    assert all(ipaddress.ip_address(stand_in) in ipaddress.ip_network("2001:db8::/32") for stand_in in _of_kind(pii.IPV6))
    for digits in _of_kind(pii.CARD):
        doubled = [int(digit) * (1 + index % 2) for index, digit in enumerate(reversed(digits))]
        assert sum(number // 10 + number % 10 for number in doubled) % 10 == 0
    for written in _of_kind(pii.IBAN):
        assert int("".join(str(int(stand_in, 36)) for stand_in in written[4:] + written[:4])) % 97 == 1
    assert not any(phonenumbers.is_valid_number(phonenumbers.parse(stand_in)) for stand_in in _of_kind(pii.PHONE))


def test_write_stand_ins_are_not_found_again() -> None:
    kinds = [pii.EMAIL, pii.IPV4, pii.IPV6, pii.CARD, pii.IBAN, pii.SSN]
    text = " ".join(stand_in for kind in kinds for stand_in in _of_kind(kind)) + "".join(
        f" https://{x}h.com" for x in _of_kind(pii.CREDENTIALS)
    )
    data = np.frombuffer(text.encode(), np.uint8)
    offsets = np.array([0, len(data)], np.int64)
    assert len(pii.find(offsets, data, True, True, True).starts) == 0
    assert len(identifiers.find(offsets, data, 63 ^ identifiers.WANTS_PHONE).starts) == 0


_PLANTED_ADDRESSES = ["jane@example.com", "jane%40host.com", "jane＠host.com", "8.8.8.8", "2600:1f18::5", "bob:hunter2@"]
_PLANTED_NUMBERS = ["4111 1111 1111 1111", "123-45-6789", "+49 30 901820", "GB82WEST12345698765432", "(415) 555-2671"]
_PLANTED_NUMBERS += ["＋４９ ３０ ９０１８２０", "415\u2011555\u20112671"]


def test_credentials_behind_short_groups_are_found_between_any_numbers_of_other_bytes() -> None:
    texts = [f"@ {'x' * before} a:b://bob:hunter2@host.com {'y' * 60}" for before in range(70)]
    offsets, data = columns.text_buffers(pa.array(texts, pa.large_string()))
    spans = pii.find(offsets, data, True, True, True)
    assert {data[start:stop].tobytes() for start, stop in zip(spans.starts, spans.stops)} == {b"bob:hunter2@"}


@pytest.mark.parametrize(("find", "planted"), [(addresses, _PLANTED_ADDRESSES), (of_kinds(ALL), _PLANTED_NUMBERS)])
def test_find_between_any_numbers_of_other_bytes_finds_the_same(find: Find, planted: list[str]) -> None:
    """Scans pass over 32 bytes at a time."""
    for span in planted:
        written = f"http://{span}h.com" if span.endswith("@") else span
        around = product(("", "@ "), range(70), (0, 1, 29, 64))
        texts = [f"{begin}{'x' * before} at {written} {'y' * after}" for begin, before, after in around]
        offsets, data = columns.text_buffers(pa.array(texts, pa.large_string()))
        spans = find(offsets, data)
        assert [data[start:stop].tobytes().decode() for start, stop in zip(spans.starts, spans.stops)] == [span] * len(texts)
