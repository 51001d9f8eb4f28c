"""S3 file systems by URL. They accept these parameters beside pyarrow's own:

    request_timeout=3      seconds without a byte until a request fails; libcurl takes about 6 more to notice
    connect_timeout=1      seconds until a connection attempt fails
    max_attempts=5         requests of one read, with growing pauses, as long as failures are temporary

If the store stalls at every attempt, a read fails after about max_attempts * (request_timeout + 6) seconds, 47 by default.
pyarrow's own 31 attempts take 288 s at a stall and 6 s at a 503 (pyarrow 26 on Linux, where request_timeout works, contrary
to its documentation). A store that sends a byte a second is not detected as stalled.

`s3://anonymous@bucket/…` reads a public bucket without credentials. pyarrow takes this form for gs:// alone.
"""

from urllib.parse import parse_qsl, urlencode

import pyarrow.fs as pafs

from datapipe.errors import UserError

CONNECT_TIMEOUT_S = 1.0
REQUEST_TIMEOUT_S = 3.0
MAX_ATTEMPTS = 5
_LIMITS = {"connect_timeout": CONNECT_TIMEOUT_S, "request_timeout": REQUEST_TIMEOUT_S, "max_attempts": MAX_ATTEMPTS}
_ONLY_IN_URLS = frozenset({"smart_defaults", "tls_verify_certificates"})
"""pyarrow takes them only in a URL, so they exclude our parameters and anonymous access."""

_ANONYMOUS = "s3://anonymous@"


def is_s3(url: str) -> bool:
    return url.startswith("s3://")


def s3_filesystem(url: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a URL, and the path on it. Raises UserError for wrong parameters, ArrowInvalid for a wrong URL."""
    without, limits = _split_limits(url)
    is_anonymous = without.startswith(_ANONYMOUS)
    if is_anonymous and limits is None:
        raise UserError(f"cannot open {url}: {' and '.join(sorted(_ONLY_IN_URLS))} exclude anonymous access. Leave them out.")
    filesystem, path = pafs.FileSystem.from_uri("s3://" + without.removeprefix(_ANONYMOUS) if is_anonymous else without)
    return (filesystem if limits is None else _bounded(filesystem, limits, is_anonymous)), path


def with_one_attempt(url: str) -> str:
    """The same URL with one attempt for each read; unchanged where its parameters exclude that."""
    base, _, query = url.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    return f"{base}?{urlencode(given | {'max_attempts': 1})}" if _ONLY_IN_URLS.isdisjoint(given) else url


def _split_limits(url: str) -> tuple[str, dict[str, float] | None]:
    """A URL without our parameters, and their values or defaults; None where excluded."""
    base, mark, query = url.rpartition("?")
    given = parse_qsl(query, keep_blank_values=True) if mark and "=" in query else []
    own = {name: value for name, value in given if name in _LIMITS}
    if (clash := _ONLY_IN_URLS & {name for name, _ in given}) and own:
        raise UserError(f"cannot open {url}: {sorted(clash)[0]} excludes {sorted(own)[0]}. Leave out one of them.")
    try:
        limits = _LIMITS | {name: float(value) for name, value in own.items()}
    except ValueError:
        limits = {}
    if not limits or not all(0 < value < float("inf") for value in limits.values()) or limits["max_attempts"] < 1:
        raise UserError(f"cannot open {url}: expected positive numbers for {', '.join(sorted(own))}.")
    rest = urlencode([(name, value) for name, value in given if name not in _LIMITS])
    without = (f"{base}?{rest}" if rest else base) if own else url
    return without, None if clash else limits


def _bounded(filesystem: pafs.FileSystem, limits: dict[str, float], is_anonymous: bool) -> pafs.FileSystem:
    """The same file system with these limits, rebuilt from the arguments of its pickle."""
    (options,) = filesystem.__reduce__()[1]
    retry = pafs.AwsStandardS3RetryStrategy(max_attempts=int(limits["max_attempts"]))
    limits = {name: limits[name] for name in ("connect_timeout", "request_timeout")}
    access = {"anonymous": True} if is_anonymous else {}
    small = {"allow_delayed_open": True}  # a small file is one request instead of three
    return pafs.S3FileSystem(**(options | limits | access | small), retry_strategy=retry)
