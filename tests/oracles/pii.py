"""E-mail and IP addresses and credentials of URLs by regular expressions and the `ipaddress` module."""

from __future__ import annotations

import ipaddress
import re


def _words(words: str) -> set[str]:
    return set(words.split())


_ENDINGS = _words("png jpg jpeg gif svg webp bmp ico css js html htm php json xml txt pdf")
_NUMBERED = _words(
    "v ver vers version versions release releases rev revision revisions build builds firmware update driver edition section "
    "sections sec sect chapter clause article appendix annex para paragraph paragraphs figure fig table oid isbn doi"
)
_FILLERS = _words("number no is was to and or from of the than")
_NOT_PUBLIC = [
    ipaddress.ip_network(network)
    for network in _words(
        "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.168.0.0/16 "
        "198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 0::/8 fc00::/6 2001::/23 2001:db8::/32 3fff::/20"
    )
]
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
    for match in re.finditer("@", text):
        if any(start <= match.start() < stop for start, stop, _ in taken):
            continue
        floor = max([floor] + [stop for _, stop, _ in taken if stop <= match.start()])
        run = re.search(r"[0-9A-Za-z._%+\-'&~]*\Z", text[max(floor, match.start() - 66) : match.start()])  # 64 is the most
        assert run is not None
        local = re.sub(r"^[^0-9A-Za-z_]+", "", run[0].rsplit("..", 1)[-1])
        domain = _domain(text[match.end() : match.end() + 253])
        if local and len(run[0]) <= 64 and not run[0].endswith(".") and domain and match.start() >= floor:
            floor = match.end() + len(domain)
            if not re.fullmatch(r"user-[0-9A-Fa-f]{8}@example\.com", text[match.start() - len(local) : floor]):
                spans.append((match.start() - len(local), floor, 0))
    return spans


def _domain(ahead: str) -> str:
    """The longest run of labels that ends in a top-level domain."""
    run = re.match(r"[0-9A-Za-z](?:[0-9A-Za-z-]*)(?:\.[0-9A-Za-z][0-9A-Za-z-]*)*", ahead)
    labels, best = (run[0].split(".") if run else []), ""
    for number, written in enumerate(labels):
        label = written.rstrip("-")
        if len(label) > 63:
            break
        is_word = re.fullmatch("[A-Za-z]{2,24}", label)
        if number and label.lower() in _ENDINGS:
            best = ""
        elif number and (is_word or (label.lower().startswith("xn--") and 4 < len(label) <= 24)):
            best = ".".join([*labels[:number], label])
        if label != written:
            break
    return best


def _names_a_number(before: str) -> bool:
    before = re.split(r"[\n()\[\];]", before[-40:])[-1]
    if re.search(r"§[^A-Za-z]*\Z", before):
        return True
    words = [word.lower() for word in re.findall("[A-Za-z]+", before)]
    if words and words[-1][:8] in {word[:8] for word in _NUMBERED}:
        return True
    if words and words[-1] in _FILLERS:
        rest = re.sub(r"[A-Za-z]+[^A-Za-z]*\Z", "", before)
        if re.search(r"§[^A-Za-z]*\Z", rest):
            return True
        return len(words) > 1 and words[-2][:8] in {word[:8] for word in _NUMBERED}
    return False


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
        if max(map(int, text[start:stop].split("."))) > 255 or _names_a_number(before):
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
