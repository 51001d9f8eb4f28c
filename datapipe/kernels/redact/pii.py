"""Finds e-mail addresses, public IP addresses and credentials of URLs in one pass over the bytes.

    bytes  ->  each `@`, `.` between digits, `:` of a hexadecimal run  ->  spans that parse as an address
               (32 other bytes cost one comparison)

The cost is linear: from an `@` at most 68 bytes are read back and 253 ahead; a run of digits and
dots, or of hexadecimal digits and colons, is read once. The userinfo of a URL ends at the `/` of
the next URL. The stand-ins of `stand_ins.py` are not found again. Spans hold whole characters.

E-mail   a local part, `@`, the fullwidth `＠` or the escape `%40`, and a domain, of any script (`emails.py`). Not before a
colon
         and a path, as in `git@host.com:team/project.git`.
IPv4     four groups of a public address of a host, free-standing; not in `v1.2.3.4`, `Chrome/41.0.2228.0` or `1.2.3.4.5`,
and
         not where the words and signs before it make it a version (`versions.py`).
IPv6     eight groups of a public address, or `::` in an address of 2000::/3, which `a::b` in code never is. URL
`user:password@` after `://`, at most 256 bytes, before a host; not with a variable or stars as the password.
"""

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import starts_with
from datapipe.kernels.redact.ascii import DIGIT, HEX, LETTER, LOCAL, USERINFO, is_in, next_mark
from datapipe.kernels.redact.emails import domain_stop, local_start
from datapipe.kernels.redact.spans import FoundSpans, SpansOut, scanned
from datapipe.kernels.redact.versions import is_version
from datapipe.kernels.types import Int64s, UInt8s

EMAIL, IPV4, IPV6, CREDENTIALS, CARD, IBAN, SSN, PHONE, SECRET = range(9)
_MIN_SPAN_BYTES = 6
_MAX_USERINFO_BYTES = 256
_MAX_PATH_BYTES = 64
_AT, _DOT, _COLON, _DASH, _SLASH, _UNDERSCORE, _DOLLAR, _STAR, _PERCENT, _TILDE = (ord(sign) for sign in "@.:-/_$*%~")
_WIDE = 0xEF  # the first byte of the fullwidth `＠`
_ESCAPED_AT = np.frombuffer(b"%40", np.uint8)
_WIDE_AT = np.frombuffer("＠".encode(), np.uint8)
_GIT = np.frombuffer(b".git", np.uint8)
_STAND_IN_USER = np.frombuffer(b"user-", np.uint8)
_STAND_IN_HOST = np.frombuffer(b"@example.com", np.uint8)
_STAND_IN_PASSWORD = np.frombuffer(b":password@", np.uint8)


def find(offsets: np.ndarray, data: np.ndarray, emails: bool, ips: bool, credentials: bool) -> FoundSpans:
    """The addresses and credentials in documents from `columns.text_buffers`; spans are byte ranges of `data`."""
    limit = int(offsets[-1] - offsets[0]) // _MIN_SPAN_BYTES + 1
    return scanned(limit, lambda out: find_spans(offsets, data, emails, ips, credentials, out))


@inline
def _is_free_standing(data, begin, chain, start, stop, end):
    """Whether four groups are no part of a version, a product, a host name or a decimal. `chain`:
    the stop of the last address, since "8.8.8.8/8.8.4.4" are two."""
    if start > begin:
        before, earlier = data[start - 1], data[start - 2] if start - 1 > begin else np.uint8(0)
        if is_in(before, DIGIT | LETTER) or before in (_DOT, _UNDERSCORE):
            return False
        if before == _DASH and is_in(earlier, LETTER):
            return False
        if before == _SLASH and is_in(earlier, DIGIT | LETTER) and chain != start - 1:
            return False
    if stop < end:
        after, later = data[stop], data[stop + 1] if stop + 1 < end else np.uint8(0)
        if is_in(after, DIGIT | LETTER) or after in (_UNDERSCORE, _AT):
            return False
        if after in (_DASH, _DOT) and is_in(later, LETTER):
            return False
    return True


@inline
def _parse_ipv4(data, start, stop):
    if stop - start < 7 or stop - start > 15:
        return np.int64(-1)
    address, group, num_digits, num_groups = np.int64(0), np.int64(0), 0, 0
    for j in range(start, stop + 1):
        if j < stop and data[j] != _DOT:
            if num_digits > 0 and group == 0:
                return np.int64(-1)
            group = group * 10 + np.int64(data[j]) - 0x30
            num_digits += 1
        else:
            if num_digits == 0 or num_digits > 3 or group > 255:
                return np.int64(-1)
            address = address << 8 | group
            group, num_digits = np.int64(0), 0
            num_groups += 1
    return address if num_groups == 4 else np.int64(-1)


@inline
def _is_public_ipv4(address):
    """Whether an address is none of IANA's registry of special-purpose addresses."""
    first, two, three = address >> 24, address >> 16, address >> 8
    if first in (0, 10, 127) or first >= 224 or address & 0xFFFFFF == 0:  # 1.0.0.0 is a version or a network, no host
        return False
    if (0x6440 <= two < 0x6480) or two == 0xA9FE or (0xAC10 <= two < 0xAC20) or two == 0xC0A8 or (0xC612 <= two < 0xC614):
        return False
    return three not in (0xC00000, 0xC00002, 0xC01FC4, 0xC034C1, 0xC05863, 0xC0AF30, 0xC63364, 0xCB0071)


@inline
def _find_ipv4(data, begin, floor, chain, dot, end):
    """Start and stop of the address around a dot (equal where there is none), and the stop of its run of digits and dots."""
    start, run = dot, dot
    while start > floor and is_in(data[start - 1], DIGIT):
        start -= 1
    while run < end and (is_in(data[run], DIGIT) or data[run] == _DOT):
        run += 1
    stop = run
    while data[stop - 1] == _DOT:
        stop -= 1
    address = _parse_ipv4(data, start, stop)
    if address < 0 or not _is_public_ipv4(address) or not _is_free_standing(data, begin, chain, start, stop, end):
        return run, run, run
    if is_version(data, begin, start, stop):
        return run, run, run
    return start, stop, run


@inline
def _parse_ipv6(data, start, stop):
    """Number of groups (0: no address), whether `::` is among them, the first two groups, and the digits of the longest."""
    first, second, group, num_digits, longest, num_groups, has_gap = 0, 0, 0, 0, 0, 0, False
    j = start
    while j <= stop:
        if j < stop and data[j] != _COLON:
            byte = np.int64(data[j])
            group = group * 16 + (byte - 0x30 if byte < 0x3A else (byte | 0x20) - 0x57)
            num_digits += 1
        elif num_digits > 0:
            if num_digits > 4:
                return 0, False, 0, 0, 0
            first = group if num_groups == 0 and not has_gap else first
            second = group if num_groups == 1 and not has_gap else second
            longest = max(longest, num_digits)
            num_groups += 1
            group, num_digits = 0, 0
        if j + 1 < stop and data[j] == _COLON and data[j + 1] == _COLON:
            if has_gap:
                return 0, False, 0, 0, 0
            has_gap = True
            j += 1
        j += 1
    return num_groups, has_gap, first, second, longest


@inline
def _is_public_ipv6(num_groups, has_gap, first, second, longest):
    """Whether the groups are a public address, and not a MAC address of six pairs, a time of day or `a::b`."""
    if has_gap and (num_groups < 3 or num_groups > 7 or first >> 13 != 1):
        return False
    if not has_gap and (num_groups != 8 or longest < 3 or first <= 0x100 or first >= 0xFC00 or first == 0x5F00):
        return False
    is_special = (first == 0x2001 and (second == 0xDB8 or second < 0x200)) or (first == 0x2620 and second == 0x4F)
    return not is_special and not (first == 0x3FFF and second < 0x1000)


@inline
def _find_ipv6(data, begin, floor, colon, end):
    """Start and stop of the address around a colon (equal where there is none), and the stop of its run."""
    start, run = colon, colon
    while start > floor and colon - start < 5 and is_in(data[start - 1], HEX):
        start -= 1
    while run < end and (is_in(data[run], HEX) or data[run] == _COLON):
        run += 1
    if start > begin and (is_in(data[start - 1], DIGIT | LETTER) or data[start - 1] == _UNDERSCORE):
        start = colon  # letters before the colon end a word: "Source:2600:1f18::5"
    if data[start] == _COLON and start + 1 < run and data[start + 1] != _COLON:
        start += 1
    stop = run
    if stop - start > 2 and data[stop - 1] == _COLON and data[stop - 2] != _COLON:
        stop -= 1
    if run - colon < 4:
        return colon + 1, colon + 1, colon + 1  # the next colon may be that of "//"
    if stop - start < 7 or stop - start > 39:
        return run, run, run
    if run < end and (is_in(data[run], LETTER) or data[run] == _UNDERSCORE or data[run] == _AT):
        return run, run, run
    if run + 1 < end and data[run] == _DOT and is_in(data[run + 1], DIGIT):
        return run, run, run
    num_groups, has_gap, first, second, longest = _parse_ipv6(data, start, stop)
    return (start, stop, run) if _is_public_ipv6(num_groups, has_gap, first, second, longest) else (run, run, run)


@inline
def _is_stand_in(data, start, stop, ending):
    """Whether a span is a stand-in of `kernels/redact/stand_ins.py`: user-, eight hexadecimal digits and the ending."""
    if stop - start != 13 + len(ending) or not starts_with(data, start, stop, _STAND_IN_USER, 0):
        return False
    for j in range(start + 5, start + 13):
        if not is_in(data[j], HEX):
            return False
    return starts_with(data, start + 13, stop, ending, 0)


@inline
def _has_path(data, colon, end):
    """Whether a colon and a path follow a host: `:team/project.git`, `:project.git`, `:/srv`, `:~/file`."""
    if colon + 1 >= end or data[colon] != _COLON:
        return False
    first, limit = colon + 1, min(end, colon + 1 + _MAX_PATH_BYTES)
    stop = first + (data[first] == _TILDE)
    while stop < limit and (is_in(data[stop], DIGIT | LETTER) or data[stop] in (_DOT, _DASH, _UNDERSCORE)):
        stop += 1
    if stop < end and data[stop] == _SLASH:
        return stop + 1 < end and is_in(data[stop + 1], LOCAL)
    return stop - first > len(_GIT) and starts_with(data, stop - len(_GIT), stop, _GIT, 0)


@inline
def _find_credentials(data, begin, colon, end):
    """Start and stop of `user:password@` after a scheme's `://` (equal where there is none), and where the scan goes on."""
    start = colon + 3
    at_sign, middle, limit = start, start, min(end, start + _MAX_USERINFO_BYTES)
    for j in range(start, limit):
        if not is_in(data[j], USERINFO):
            break
        if data[j] == _AT:
            at_sign = j
        elif data[j] == _COLON and at_sign == start and middle == start:
            middle = j + 1
    if (
        colon == begin
        or not is_in(data[colon - 1], DIGIT | LETTER)
        or middle == start
        or at_sign <= middle
        or at_sign + 1 == end
    ):
        return start, start, start
    if not is_in(data[at_sign + 1], DIGIT | LETTER) and data[at_sign + 1] != ord("["):
        return start, start, start
    first = data[middle]
    is_template = first in (_DOLLAR, _STAR) or (first == _PERCENT and data[middle + 1] == ord("s"))
    if is_template or _is_stand_in(data, start, at_sign + 1, _STAND_IN_PASSWORD):
        return at_sign + 1, at_sign + 1, at_sign + 1
    return start, at_sign + 1, at_sign + 1


@kernel
def find_spans(offsets: Int64s, data: UInt8s, emails: bool, ips: bool, credentials: bool, out: SpansOut) -> int:
    """Finds every address and the credentials of every URL, in text order; spans do not overlap. Returns their number.

    One loop nest above 40 lines: every branch changes the state of the scan, and cut into functions it is slower. `emails`,
    `ips`, `credentials`: what to find: e-mail addresses, IP addresses, names and passwords in URLs.
    `out`: room for num_bytes // 6 + 1 spans: EMAIL, IPV4, IPV6 or CREDENTIALS.
    """
    starts, stops, kinds = out
    num_spans = 0
    for document in range(len(offsets) - 1):
        begin, end = offsets[document], offsets[document + 1]
        j, floor, chain = begin, begin, begin - 1  # no span starts before the floor
        while j < end:
            j = next_mark(data, begin, j, end)
            if j == end:
                break
            byte, start, stop, run, kind = data[j], j, j, j + 1, EMAIL
            is_escaped = byte == _PERCENT and j + 4 < end and starts_with(data, j, end, _ESCAPED_AT, 0)
            is_wide = byte == _WIDE and j + 3 < end and starts_with(data, j, end, _WIDE_AT, 0)
            if byte == _AT or is_wide or (is_escaped and data[j + 4] != _DOT):  # "%40s.name" is a format
                if emails:
                    local = local_start(data, floor, j, is_escaped)
                    domain = domain_stop(data, j + (1 if byte == _AT else 3), end)
                    if local < j and domain > 0:
                        floor = run = domain
                        if not _is_stand_in(data, local, domain, _STAND_IN_HOST) and not _has_path(data, domain, end):
                            start, stop = local, domain
            elif byte == _COLON and j + 3 < end and data[j + 1] == _SLASH and data[j + 2] == _SLASH:
                if credentials:
                    start, stop, run = _find_credentials(data, begin, j, end)
                    floor, kind = run, CREDENTIALS
            elif ips and byte == _COLON:
                start, stop, run = _find_ipv6(data, begin, floor, j, end)
                kind = IPV6
            elif ips and byte == _DOT and j > floor and is_in(data[j - 1], DIGIT) and j + 1 < end and is_in(data[j + 1], DIGIT):
                start, stop, run = _find_ipv4(data, begin, floor, chain, j, end)
                kind = IPV4
            if start < stop:
                starts[num_spans], stops[num_spans], kinds[num_spans] = start, stop, kind
                num_spans += 1
                floor = stop
                chain = stop if kind == IPV4 else chain
            j = run
    return int(num_spans)
