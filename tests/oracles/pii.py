"""E-mail and IP addresses and credentials by regular expressions and `ipaddress`, and stand-ins in plain Python."""

import ipaddress
import re
import unicodedata

from tests.oracles.texts import mix


def _words(words: str) -> set[str]:
    return set(words.split())


_ENDINGS = _words("png jpg jpeg gif svg webp bmp ico css js html htm php json xml txt pdf")
_NUMBERED = _words(
    "v ver vers version versions release releases rev revision revisions build builds firmware update driver edition section "
    "sections sec sect chapter clause article appendix annex para paragraph paragraphs figure fig table oid isbn doi rfc"
)
_FILLERS = _words("number no is was to and or from of the than prior before after least")
_UPGRADES = _words("upgrade upgrades upgraded upgrading downgrade downgrades downgraded downgrading bump bumps bumped bumping")
_NOT_PUBLIC = [
    ipaddress.ip_network(network)
    for network in _words(
        "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.168.0.0/16 "
        "198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 "
        "192.175.48.0/24 0::/8 100::/16 5f00::/16 fc00::/6 2001::/23 2001:db8::/32 2620:4f::/32 3fff::/20"
    )
]
_UNSPACED = _words("CJK HIRAGANA KATAKANA HALFWIDTH HANGUL BOPOMOFO IDEOGRAPHIC THAI LAO MYANMAR KHMER TIBETAN")
_PHRASE_ENDS = "箱件址至到是为為系信我们們你您了吗嗎吧呢的はにへをで다요"
_KNOWN = _words("中国 公司 广告 みんな コム 한국 ไทย")
_ADDRESSED = _words(
    "ip ips ipv address addresses addr host hosts hostname server servers dns gateway router proxy node client peer resolver "
    "nameserver nameservers subnet network range source src destination dst dest remote local machine interface eth inet ping "
    "telnet ssh curl traceroute dig nslookup whois block ban banned blocked allow allowed deny denied connect connected "
    "connecting resolve resolved resolves point points pointing visit visited user login logged email contact"
)
_GRAMMAR = _words(
    "from to at via on in is was are be and or by for of the with this that use uses using used set since like as eg ie not if "
    "then than between through behind into"
)
Span = tuple[int, int, int]


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return not any(address in network for network in _NOT_PUBLIC if network.version == address.version)


def _credentials(text: str) -> tuple[list[Span], list[Span]]:
    """Credentials to replace, and all spans that are skipped: these, templates and stand-ins."""
    spans, done = [], []
    for scheme in re.finditer(r"(?<=[0-9A-Za-z])://", text):
        run = re.match(r"[0-9A-Za-z\-._~%!$*+=:@]{0,256}", text[scheme.end() :])
        assert run is not None
        parts = re.fullmatch(r"([^:@]*):(.+)@", run[0][: run[0].rfind("@") + 1])
        if not parts or not re.match(r"[0-9A-Za-z\[]", text[scheme.end() + parts.end() :]):
            continue
        done.append((scheme.end(), scheme.end() + parts.end(), 3))
        if not re.match(r"[$*]|%s", parts[2]) and not re.fullmatch(r"user-[0-9A-Fa-f]{8}:password@", parts[0]):
            spans.append(done[-1])
    return spans, done


def _emails(text: str, taken: list[Span]) -> list[Span]:
    """E-mail addresses; a local part starts after the address or the credentials before it."""
    spans, floor = [], 0
    for match in re.finditer("[@＠]|%40(?=[^.]?..)", text):
        if any(start <= match.start() < stop for start, stop, _ in taken):
            continue
        if match[0] == "%40" and text[match.end() + 1 : match.end() + 2] == ".":
            continue
        floor = max([floor] + [stop for _, stop, _ in taken if stop <= match.start()])
        local = (
            _local(text[max(floor, match.start() - 66) : match.start()], match[0] == "%40") if match.start() >= floor else ""
        )
        domain = _domain(text[match.end() : match.end() + 253].encode()[:253].decode(errors="ignore"))
        if local and domain:
            floor = match.end() + len(domain)
            is_place = re.match(
                r":(?:~?[0-9A-Za-z.\-_]{0,63}/[0-9A-Za-z._%+\-'&~]|~?[0-9A-Za-z.\-_]+\.git(?![0-9A-Za-z.\-_]))", text[floor:]
            )
            is_stand_in = re.fullmatch(r"user-[0-9A-Fa-f]{8}@example\.com", text[match.start() - len(local) : floor])
            if not is_place and not is_stand_in:
                spans.append((match.start() - len(local), floor, 0))
    return spans


def sort_of(character: str) -> str:
    """`ascii`, `spaced` or `unspaced` for a letter of a script with or without spaces, or nothing."""
    if character.isascii():
        return "ascii"
    if unicodedata.category(character)[0] not in "LM":
        return ""
    return "unspaced" if re.split("[ -]", unicodedata.name(character, ""))[0] in _UNSPACED else "spaced"


def _local(before: str, is_escaped: bool) -> str:
    """The local part at the end of a text."""
    kept, has_name = "", False
    for character in reversed(before[-66:]):  # 64 bytes are the most
        is_unspaced = sort_of(character) == "unspaced"
        if has_name and len((character + kept).encode()) > 64:
            break
        has_name |= is_unspaced and _ends_name(character, kept)
        is_member = re.match(r"[0-9A-Za-z._%+\-'&~]", character) or sort_of(character) == "spaced"
        if not is_member and not (is_unspaced and has_name):
            break
        kept = character + kept
    if not kept or len(kept.encode()) > 64 or kept.endswith("."):
        return ""
    start = 0
    for index in range(len(kept) - 1):
        if kept[index : index + 2] == "..":
            start = index + 2
        elif is_escaped and kept[index] == "%" and kept[index + 1 : index + 3].lower() not in ("2b", "2d", "2e", "5f"):
            start = min(index + 3, len(kept))
    return re.sub(r"^[^0-9A-Za-z_\u0080-\U0010ffff]+", "", kept[start:])


def _ends_name(character: str, behind: str) -> bool:
    """Whether a letter of a script without spaces is of the local part, by what is between it and the `@`."""
    if not behind or behind[0] in "_+":
        return True
    if re.match(r"[.-][A-Za-z\u0080-\U0010ffff]", behind):
        return character not in _PHRASE_ENDS
    is_letters = any(sort_of(after) in ("spaced", "unspaced") or after.isalpha() for after in behind)
    return not is_letters and character not in _PHRASE_ENDS and sum(map(str.isdigit, behind)) <= 4


def _label(ahead: str) -> str:
    """The run of letters, digits and dashes at the start of a text."""
    stop = 0
    while stop < len(ahead) and (re.match("[0-9A-Za-z-]", ahead[stop]) or sort_of(ahead[stop]) in ("spaced", "unspaced")):
        stop += 1
    return ahead[:stop]


def _top_level(label: str) -> str:
    """The top-level domain at the start of a label."""
    written = re.match("[0-9A-Za-z-]*", label)
    assert written is not None
    if written[0]:
        is_word = re.fullmatch("[A-Za-z]{2,24}", written[0]) and written[0].lower() not in _ENDINGS
        is_code = written[0].lower().startswith("xn--") and 4 < len(written[0]) <= 24
        return written[0] if is_word or is_code else ""
    sorts = {sort_of(character) for character in label}
    if "unspaced" in sorts:
        return max((known for known in _KNOWN if label.startswith(known)), key=len, default="")
    return label if sorts == {"spaced"} and len(label.encode()) > 3 else ""


def _domain(ahead: str) -> str:
    """The domain at the start of a text: no version or checksum of a package."""
    domain = _longest_domain(ahead)
    package = r"v?[0-9]+\.v?[0-9]+\..*|v?[0-9]{1,2}\.(rc|alpha|beta|dev|pre|preview|canary|next|nightly|snapshot|final|post)"
    return "" if re.fullmatch(rf"(?i){package}|sha(256|384|512)\..*", domain) else domain


def _longest_domain(ahead: str) -> str:
    """The longest run of labels that ends in a top-level domain."""
    best, position = "", 0
    while True:
        run = _label(ahead[position:])
        label = run.rstrip("-")
        if not label or label[0] == "-" or (label.isascii() and len(label) > 63):
            return best
        if position and _top_level(label):
            best = ahead[: position + len(_top_level(label))]
        elif position and label.lower() in _ENDINGS:
            best = ""
        position += len(run) + 1
        if label != run or ahead[position - 1 : position] != ".":
            return best


def _names_a_number(before: str) -> bool:
    before = re.split(r"[\n()\[\];]", before[-40:])[-1]
    if re.search(r"§[^A-Za-z]*\Z", before):
        return True
    words = [word.lower() for word in re.findall("[A-Za-z]+", before)]
    if words and words[-1][:8] in {word[:8] for word in _NUMBERED}:
        return True
    rest = before
    for number in (1, 2):
        if len(words) < number or words[-number] not in _FILLERS:
            return False
        rest = re.sub(r"[A-Za-z]+[^A-Za-z]*\Z", "", rest)
        if re.search(r"§[^A-Za-z]*\Z", rest):
            return True
        if len(words) > number and words[-number - 1][:8] in {word[:8] for word in _NUMBERED}:
            return True
    return False


def _is_among(word: str, listed: set[str]) -> bool:
    return word.lower()[:8] in {entry[:8] for entry in listed}


def _is_upgraded(before: str) -> bool:
    """Whether from or to is the last word, and one of the five before it is upgrade, with no word of addresses between."""
    line = re.split(r"[\n()\[\];]", before[-80:])[-1]
    words = re.findall("[A-Za-z]+", line)[:-7:-1]
    if not re.search(r"[A-Za-z] +\Z", line) or not _is_among(words[0], _words("from to and or")):
        return False
    for word in words[1:]:
        if _is_among(word, _UPGRADES) or _is_among(word, _ADDRESSED):
            return _is_among(word, _UPGRADES)
    return False


def _is_version(before: str, groups: list[str]) -> bool:
    """Whether what stands before four groups makes them a version."""
    if _names_a_number(before) or _is_upgraded(before):
        return True
    signs = re.search(r"[\"'(<>=~!^, \t:]{0,8}\Z", before)
    assert signs is not None
    name = re.search(r"[0-9A-Za-z_.\-]{0,40}\Z", before[: signs.start()])
    assert name is not None
    last = re.sub("(?<=[a-z])(?=[A-Z])", " ", re.findall("[A-Za-z]+|$", name[0])[-2 if re.search("[A-Za-z]", name[0]) else -1])
    if last and _is_among(last.split()[-1], _ADDRESSED | _GRAMMAR):
        return False
    if re.search(r"(?:[=<>~!]=|~>)[ \t]*\Z", before) or re.search("version|objectid|(?<![^_])oid(?![^_])", name[0].lower()):
        return True
    if max(map(len, groups)) > 2:
        return False
    if re.search(r"(?://[ \t]+|[\^~][ \t]*)\Z", before):
        return True
    is_behind = re.fullmatch(r"[ \t]+|[ \t]*\(|[\"'][ \t]*,[ \t]*[\"']", signs[0])
    return bool(is_behind and re.fullmatch(r"[A-Za-z][0-9A-Za-z_\-]+", name[0]))


def _ipv4s(text: str) -> list[Span]:
    spans = []
    for run in re.finditer(r"[0-9.]+", text):
        start, stop = run.start(), run.start() + len(run[0].rstrip("."))
        group = "(?:0|[1-9][0-9]{0,2})"
        if not re.fullmatch(rf"{group}(?:\.{group}){{3}}", text[start:stop]):
            continue
        before, after = text[:start], text[stop:]
        is_next = bool(spans) and spans[-1][1] == start - 1 and before.endswith("/")  # 8.8.8.8/8.8.4.4
        if (re.search(r"([0-9A-Za-z_.]|[A-Za-z]-|[0-9A-Za-z]/)\Z", before) and not is_next) or re.match(
            r"[0-9A-Za-z_@]|[-.][A-Za-z]", after
        ):
            continue
        if max(map(int, text[start:stop].split("."))) > 255:
            continue
        if text[start:stop].endswith(".0.0.0") or _is_version(before, text[start:stop].split(".")):
            continue
        if _is_public(ipaddress.IPv4Address(text[start:stop])):
            spans.append((start, stop, 1))
    return spans


def _ipv6s(text: str) -> list[Span]:
    """Plain cases only: an address between white space or borders of the text, or before the end of a sentence."""
    spans = []
    for run in re.finditer(r"(?<!\S)([0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:]*)(?=[\s,]|\.(?![0-9])|\Z)", text):
        written = run[1]
        groups = [group for group in written.split(":") if group]
        try:
            address = ipaddress.IPv6Address(written)
        except ValueError:
            continue
        is_clear = "::" in written and len(groups) >= 3 and address in ipaddress.ip_network("2000::/3")
        is_full = "::" not in written and max(map(len, groups)) >= 3
        if (is_clear or is_full) and _is_public(address):
            spans.append((run.start(1), run.end(1), 2))
    return spans


def find(text: str) -> list[Span]:
    """(start, stop, kind) of ASCII or other text, in characters."""
    credentials, done = _credentials(text)
    ips = [ip for ip in _ipv4s(text) + _ipv6s(text) if not any(start < ip[1] and ip[0] < stop for start, stop, _ in done)]
    emails = _emails(text, ips + done)
    outside = [ip for ip in ips if not any(ip[0] < email[1] and email[0] < ip[1] for email in emails)]
    return sorted(credentials + emails + outside)


def _card(digits: str) -> str:
    doubled = [int(digit) * (2 - index % 2) for index, digit in enumerate(reversed(digits))]
    return digits + str(-sum(number // 10 + number % 10 for number in doubled) % 10)


def _iban(digits: str) -> str:
    return f"ZZ{98 - int(digits + '353500') % 97:02}{digits}"


def stand_in(span: bytes, kind: int, seed: int) -> bytes:
    hashed = mix(seed)
    for byte in span:
        hashed = mix(hashed ^ byte)
    hexadecimal, decimal = f"{hashed:016x}"[::-1], f"{hashed:020}"[::-1]
    high = f"{hashed >> 31:016x}"[::-1]
    return [
        f"user-{hexadecimal[:8]}@example.com",
        f"192.0.2.{hashed % 254 + 1}",
        f"2001:db8::{hexadecimal[:4]}:{high[:4]}",
        f"user-{hexadecimal[:8]}:password@",
        _card("9999" + decimal[:11]),
        _iban(decimal[:18]),
        f"987-65-432{decimal[0]}",
        f"+1-555-555-01{decimal[:2]}",
        f"EXAMPLE-{hexadecimal}",
    ][kind].encode()
