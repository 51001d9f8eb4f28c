"""Credentials in URLs and variables: kept in memory for opening files, and never written or printed.

    s3://KEY:SECRET@bucket/a?region=eu-1          masked as   s3://***@bucket/a?region=eu-1
    https://host/a?X-Amz-Signature=…&n=1          masked as   https://host/a?***
    s3://${KEY}:${SECRET}@bucket/a                unchanged: references are no secrets

Everything that leaves the process passes `masked`: messages of errors, progress, the files of an output. A masked URL gets its
credentials back from the mixture, which the user gives again (`restored`).
"""

import re
from collections.abc import Iterable
from urllib.parse import unquote

MASK = "***"

_URL = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*)://([^\s'\"<>]*)")
_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hf"})
"""Schemes whose authority has no port, so that a colon in it comes from a key and its secret."""

_REFERENCE = r"\$\{[^{}]*\}"
_HARMLESS_USER = re.compile(rf"{_REFERENCE}|([^:@]+:)({_REFERENCE})+|anonymous|")
"""User information without its own secret: the name of a user is none, unless it stands alone, as access tokens do."""

_PORT = r"(\d{1,5}|PORT)"
_PORTS = re.compile(rf"{_PORT}(,[\w.-]+:{_PORT})*")
"""The port behind a host, and further hosts with theirs, as the addresses of a service have: "8815,b:8815". Help has PORT."""

_HARMLESS = frozenset(
    {
        *("region", "scheme", "endpoint_override", "request_timeout", "connect_timeout", "max_attempts", "retry_limit_seconds"),
        *("allow_bucket_creation", "allow_bucket_deletion", "check_directory_existence_before_creation", "allow_delayed_open"),
        *("background_writes", "force_virtual_addressing", "smart_defaults", "enable_tls", "project_id", "credential_kind"),
        *("tls_ca_file_path", "tls_ca_dir_path", "tls_verify_certificates", "tenant_id", "client_id"),
        *("blob_storage_authority", "blob_storage_scheme", "dfs_storage_authority", "dfs_storage_scheme"),
    }
)
"""Parameters of pyarrow's URLs without a secret."""

_SECRET_NAME = re.compile(
    r"(?i)(^|[-_.])(sig|key|auth|sas|jwt|pwd|pass|code|session|hmac)($|[-_.])"
    r"|^x-(amz|goog|oss)-|signature|token|secret|passw|credential|apikey|accesskey|accessid|authorization|account_?key"
)
"""Names of parameters and variables that hold secrets, as clouds and programs call them."""

_QUERY = re.compile(r"\?([\w.%~-]+=.*|\*\*\*$)", re.DOTALL)
_CLOSING = re.compile(r"[`)\]},.;:…]*$")
_LEAST_CHARS = 6
"""Of a variable's value that is masked wherever it appears. A shorter one would also be found in ordinary words."""

_secrets: dict[str, str] = {}
"""Values of variables that hold secrets -> their references, of all mixtures that this process has loaded."""


def remember(value: str, reference: str, text: str) -> None:
    """Notes the value of a variable, if it is a secret: by the variable's name, or as a credential of the URL around it.
    `reference`: "${NAME}". `text`: the text of the mixture with the reference."""
    in_url = any(reference in _user(match) or reference in _query(match) for match in _URL.finditer(text))
    if len(value) >= _LEAST_CHARS and (in_url or _SECRET_NAME.search(reference.strip("${}"))):
        _secrets[value] = reference


def remember_secret(value: str, reference: str) -> None:
    """Notes a secret that came from a variable, whatever its name. `reference`: "${NAME}"."""
    _secrets[value] = reference


def masked(text: str) -> str:
    """A text without the credentials of the URLs in it, also where they stand again alone, and without secrets of variables."""
    for value in sorted(_secrets, key=len, reverse=True):
        text = text.replace(value, _secrets[value])
    users = {_user(match) for match in _URL.finditer(text)} if "://" in text else set[str]()
    text = masked_urls(text)
    for user in users:
        name = user.removesuffix("@")
        if len(name) >= _LEAST_CHARS and not _is_harmless_user(user):
            text = text.replace(name, MASK)
    return text


def masked_urls(text: str) -> str:
    """A text without the credentials of the URLs in it. It depends on the text alone, so identities may be made of it."""
    return _URL.sub(_masked_url, text) if "://" in text else text


def is_masked(url: str) -> bool:
    return "://" in url and (f"://{MASK}@" in url or url.endswith(f"?{MASK}"))


def restored(url: str, originals: Iterable[str]) -> str:
    """A masked URL with the credentials of the first original on the same host; the URL itself
    where there is none. `originals`: URLs and globs with their credentials."""
    match = _URL.fullmatch(url)
    if match is None or not is_masked(url):
        return url
    for original in originals:
        other = _URL.fullmatch(original)
        if other is None or other[1] != match[1]:
            continue
        candidate = f"{match[1]}://{_user(other)}{_bare(match)}{_query(other)}"
        if masked_urls(candidate) == url:
            return candidate
    return url


def _masked_url(match: re.Match[str]) -> str:
    closing = _CLOSING.search(match[2])
    assert closing is not None
    user, query = _user(match), _query(match)
    masked_user = user if _is_harmless_user(user) else f"{MASK}@"
    masked_query = query if _is_harmless_query(match[1], query) else f"?{MASK}{closing[0]}"
    return f"{match[1]}://{masked_user}{masked_urls(_bare(match))}{masked_urls(masked_query)}"


def _user(match: re.Match[str]) -> str:
    """User information with its "@"; also a malformed one, with a slash in its secret or no "@" behind it."""
    rest = match[2]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        return authority[: authority.rindex("@") + 1]
    _, colon, behind = _CLOSING.sub("", authority.partition("&")[0]).partition(":")
    has_port = match[1] not in _BUCKETS and _PORTS.fullmatch(behind)
    if not colon or has_port or authority.startswith("["):
        return ""
    return rest[: rest.rindex("@") + 1] if "@" in rest else rest


def _query(match: re.Match[str]) -> str:
    """The query of a URL with its "?"; empty without one. A "?" without NAME= behind it is a wildcard of a glob."""
    query = _QUERY.search(match[2], len(_user(match)))
    return "" if query is None else query[0]


def _bare(match: re.Match[str]) -> str:
    return match[2][len(_user(match)) : len(match[2]) - len(_query(match))]


def _is_harmless_user(user: str) -> bool:
    name = user.removesuffix("@")
    return name == MASK or _HARMLESS_USER.fullmatch(name) is not None


def _is_harmless_query(scheme: str, query: str) -> bool:
    for parameter in query.removeprefix("?").split("&"):
        name, _, value = parameter.partition("=")
        if not value or re.fullmatch(_REFERENCE, value):
            continue
        is_known = unquote(name) in _HARMLESS
        if _SECRET_NAME.search(unquote(name)) and not is_known:
            return False
        if (scheme in _BUCKETS and not is_known) or ("%40" in value and "%3A" in value.upper()):
            return False
    return True
