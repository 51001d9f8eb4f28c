"""URLs in the form of C4 and their hosts, by regular expressions and `urllib.parse`'s rules."""

from __future__ import annotations

import re


def host_range(url: bytes) -> tuple[int, int]:
    """Start and stop of the host, including its `www.`."""
    other_scheme = re.match(rb"[^/?#]*://|//", url)
    start = other_scheme.end() if other_scheme else 0
    authority = re.split(rb"[/?#]", url[start:])[0]
    user, _, server = authority.rpartition(b"@")
    start += len(user) + (b"@" in authority)
    if server.startswith(b"["):
        return start + 1, start + 1 + len(server[1:].split(b"]")[0])
    return start, start + len(server.split(b":")[0])


def normalized(url: bytes) -> bytes:
    url = re.sub(rb"^www\.", b"", url, flags=re.IGNORECASE)
    url = re.sub(rb"https?://(www\.)?", b"", url, flags=re.IGNORECASE)
    url = re.sub(rb"\?(utm_|ref|feed).*", b"", url, flags=re.DOTALL).rstrip(b"/")
    start, stop = host_range(url)
    return url[:start] + url[start:stop].lower() + url[stop:]


def host_range_without_www(url: bytes) -> tuple[int, int]:
    """Start and stop of the host, without its `www.` and a final dot."""
    start, stop = host_range(url)
    start += 4 * url[start:stop].lower().startswith(b"www.")
    return start, stop - url[start:stop].endswith(b".")
