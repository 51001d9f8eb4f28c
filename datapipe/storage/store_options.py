"""URLs of buckets, and the options of obstore's clients that they stand for. S3's are:

    region, endpoint_override, scheme, force_virtual_addressing, allow_bucket_creation=true, tls_verify_certificates=false
    request_timeout=3      seconds without a byte until a read fails
    connect_timeout=1      seconds until a connection attempt fails
    max_attempts=5         requests of one read, with growing pauses, as long as failures are temporary

`anonymous@` before the bucket reads without credentials, `KEY:SECRET@` with these (S3, Azure), else those of the environment,
the files of AWS, which are read every five minutes, or the role of the machine.
"""

import configparser
import errno
import os
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from datapipe.credentials import masked
from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.machine.libraries import require
from datapipe.storage.outages import NoBucketError, StoreRefusedError, StoreSilentError

CONNECT_TIMEOUT_S = 1.0
_LIMITS = {"connect_timeout": CONNECT_TIMEOUT_S, "request_timeout": 3.0, "max_attempts": 5.0}
_ANY = frozenset({*_LIMITS, "scheme", "endpoint_override", "tls_ca_file_path", "tls_verify_certificates"})
# parameters of URLs in earlier outputs that have no effect here
_OF_PYARROW = frozenset({"allow_bucket_deletion", "allow_delayed_open", "background_writes", "smart_defaults"})
_KINDS = {
    "s3": ("S3Store", _OF_PYARROW | {"region", "allow_bucket_creation", "force_virtual_addressing"}),
    "gs": ("GCSStore", frozenset({"project_id", "retry_limit_seconds"})),
    "abfs": ("AzureStore", frozenset({"client_id", "client_secret", "tenant_id", "credential_kind"})),
}
SCHEMES = {"s3": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfs"}
_BUCKET = re.compile(r"[\w.$-]+", re.ASCII)
_ENDPOINT = re.compile(r"https?://[^\s/\"<>\\^`{|}]+(/[^\s\"<>\\^`{|}]*)?")
_KEPT = timedelta(minutes=10)  # of credentials of a file, in words to obstore, which asks for others five minutes before
_OTHER_STORE = ". If it is not in Amazon S3, set AWS_ENDPOINT_URL, or endpoint_override in the URL, to the address of its store"
_PROFILE_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreOptions:
    """What a URL says of a bucket. `store`: the class of obstore."""

    url: str
    store: str
    bucket: str
    host: str  # of an account of Azure
    user: str
    secret: str
    given: dict[str, str]
    limits: dict[str, float]

    def of_client(self) -> dict[str, Any]:
        """Options of the HTTP client."""
        options: dict[str, Any] = {"allow_http": True, "user_agent": "datapipe"}
        options["connect_timeout"] = f"{self.limits['connect_timeout']}s"
        if "tls_ca_file_path" in self.given:
            options["root_certificate"] = Path(self.given["tls_ca_file_path"]).read_bytes()
        return options | ({} if self.is_on("tls_verify_certificates", "1") else {"allow_invalid_certificates": True})

    def is_on(self, name: str, default: str = "") -> bool:
        return self.given.get(name, default).lower() in ("true", "1")

    def of_store(self) -> dict[str, Any]:
        """Options of the store. Raises OSError where the region of a bucket of AWS cannot be found."""
        options = {"S3Store": self._of_s3, "GCSStore": self._of_gcs, "AzureStore": self._of_azure}[self.store]()
        if self.user == "anonymous" or self.given.get("credential_kind") == "anonymous":
            options["skip_signature"] = True
        return options

    def no_bucket(self, key: str = "") -> NoBucketError:
        """The error for a store without the bucket of a key."""
        make = {"S3Store": "aws s3 mb s3", "GCSStore": "gcloud storage buckets create gs"}.get(self.store)
        create = f"create it (`{make}://{self.bucket}`)" if make else "create it"
        creates = ", or add allow_bucket_creation=true to the URL" if self.store == "S3Store" else ""
        is_amazon = self.store == "S3Store" and not self._endpoint_of_s3
        where = f"the store at {self._endpoint_of_s3}" if self._endpoint_of_s3 else "Amazon S3" if is_amazon else "the store"
        text = f"{where} has no bucket {self.bucket}. Correct its name, {create}{creates}{_OTHER_STORE if is_amazon else ''}"
        return NoBucketError(errno.EIO, text, masked(f"{self.url.partition('?')[0]}/{key}".rstrip("/")))

    def _endpoint(self, default: str = "") -> str:
        endpoint = self.given.get("endpoint_override") or default
        endpoint = endpoint if not endpoint or "://" in endpoint else f"{self.given.get('scheme', 'https')}://{endpoint}"
        if endpoint and not _ENDPOINT.fullmatch(endpoint):
            raise UserError(f"cannot open {self.url}: the endpoint is {endpoint!r}. Expected one such as http://127.0.0.1:9000")
        return endpoint

    def _of_s3(self) -> dict[str, Any]:
        endpoint = self._endpoint_of_s3
        region = self.given.get("region") or (None if endpoint else self._region())
        options: dict[str, Any] = {"region": region} if region else {}
        is_virtual = self.is_on("force_virtual_addressing") if endpoint else "." not in self.bucket  # of certificates
        options["virtual_hosted_style_request"] = is_virtual
        if endpoint:
            options["endpoint"] = endpoint.replace("://", f"://{self.bucket}.") if is_virtual else endpoint
        if self.user == "anonymous":
            return options
        if self.user:  # as a provider, which takes no token of the environment along
            return options | {"credential_provider": lambda: _credential(self.user, self.secret)}
        return options | _profile(self.url)

    @property
    def _endpoint_of_s3(self) -> str:
        """Empty for that of Amazon."""
        if self.store != "S3Store":
            return ""
        return self._endpoint(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "")

    def _region(self) -> str:
        """The region of a bucket of AWS, which names it also to those without access."""
        import httpx2 as httpx

        url = f"https://s3.amazonaws.com/{self.bucket}"
        try:
            answer = httpx.head(url, timeout=10.0)
        except httpx.HTTPError as error:
            text = f"cannot find the region of the bucket: {error}{_OTHER_STORE}"
            raise StoreSilentError(errno.EIO, text, url) from error
        if region := answer.headers.get("x-amz-bucket-region"):
            return region
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise self.no_bucket()
        raise StoreRefusedError(errno.EIO, f"cannot find the region of the bucket: HTTP {answer.status_code}", url)

    def _of_gcs(self) -> dict[str, Any]:
        return {"base_url": self._endpoint()} if self._endpoint() else {}

    def _of_azure(self) -> dict[str, Any]:
        given = {name: self.given[name] for name in ("client_id", "client_secret", "tenant_id") if name in self.given}
        facts = {"account_name": self.host.partition(".")[0] or self.user, "account_key": self.secret}
        facts["endpoint"] = self._endpoint()
        options = given | {name: value for name, value in facts.items() if value}
        return options | ({"use_azure_cli": True} if self.given.get("credential_kind") == "cli" else {})


@lru_cache(maxsize=64)
def options_of(url: str) -> StoreOptions:
    """The options in the URL of a bucket, "s3://bucket?region=…". Raises UserError for wrong ones."""
    scheme, _, rest = url.partition("://")
    authority, _, query = rest.partition("?")
    store, known = _KINDS[SCHEMES[scheme.lower()]]
    login, _, host = authority.rpartition("@")
    user, _, secret = login.partition(":")
    is_azure_host = store == "AzureStore" and "." in host
    bucket, user = (user, "") if is_azure_host else (host, user)
    given = dict(parse_qsl(query, keep_blank_values=True))
    wrong = sorted(given.keys() - known - _ANY)
    if wrong or not _BUCKET.fullmatch(bucket):
        why = f"it has no parameter '{wrong[0]}'" if wrong else "it names no bucket of letters, digits, dots and hyphens"
        raise UserError(f"cannot open {url}: {why}. Expected a URL such as {scheme}://bucket/folder")
    try:
        limits = {name: float(given.get(name, default)) for name, default in _LIMITS.items()}
    except ValueError:
        limits = {}
    if not limits or not all(0 < value < float("inf") for value in limits.values()) or limits["max_attempts"] < 1:
        raise UserError(f"cannot open {url}: expected positive numbers for {', '.join(sorted(given.keys() & _LIMITS.keys()))}.")
    names = {"bucket": bucket, "host": host if is_azure_host else "", "user": unquote(user), "secret": unquote(secret)}
    return StoreOptions(url=url, store=store, given=given, limits=limits, **names)


@lru_cache(maxsize=64)
def _credential(key: str, secret: str, token: str | None = None, expires_at: datetime | None = None) -> dict[str, Any]:
    return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": expires_at}


def _profile_facts() -> dict[str, str]:
    folder = Path.home() / ".aws"
    files = [os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or folder / "credentials"]
    files.append(os.environ.get("AWS_CONFIG_FILE") or folder / "config")
    profiles = configparser.ConfigParser(interpolation=None, strict=False)
    with suppress(configparser.Error, OSError):
        profiles.read(files, encoding="utf-8")
    name = os.environ.get("AWS_PROFILE", "default")
    return {key: value for part in (f"profile {name}", name) if part in profiles for key, value in profiles[part].items()}


def _of_profile() -> dict[str, Any]:
    found = _profile_facts()
    key, secret, token = (found.get(name, "") for name in _PROFILE_KEYS)
    return _credential(key, secret, token or None, datetime.now(UTC) + _KEPT)


def _profile(url: str) -> dict[str, Any]:
    """Credentials by the files of AWS, which obstore does not read. They are read again, as programs renew them."""
    found = {} if os.environ.get("AWS_ACCESS_KEY_ID") else _profile_facts()
    if all(key in found for key in _PROFILE_KEYS[:2]):
        return {"credential_provider": _of_profile}
    if not any(key.startswith("sso_") or key in ("credential_process", "role_arn") for key in found):
        return {}
    require("boto3", url)
    from obstore.auth.boto3 import Boto3CredentialProvider

    return {"credential_provider": Boto3CredentialProvider()}
