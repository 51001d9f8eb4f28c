"""Conditional writes to an object store: a write that succeeds only while the object is the one that was read.

pyarrow's file systems have none, so the few objects by which runs exclude each other are written by obstore. A write whose
answer is lost is looked up: it is done if the object has its content, and repeated if the object is still the expected one.
"""

from __future__ import annotations

import configparser
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datapipe.errors import UserError
from datapipe.storage.root import Root
from datapipe.storage.s3 import CONNECT_TIMEOUT_S, is_s3

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CLIENT = {"allow_http": True, "connect_timeout": f"{CONNECT_TIMEOUT_S:.0f}s", "timeout": "10s"}
_BACKOFF = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=15), "base": 2}
_RETRY = {"max_retries": 3, "retry_timeout": timedelta(seconds=21), "backoff": _BACKOFF}
_WRITES = 3
"""Attempts at a write without an answer. obstore itself does not repeat a write that timed out."""
_PROFILE_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")

Version = dict[str, Any]
"""Identifies the content of an object: its ETag, on Google Cloud its generation."""


class ConflictError(Exception):
    """The object is not the expected one: another process has written it."""


class ConditionalStore:
    """Objects below one folder of a store. Each method raises OSError where the store does not
    answer, and PermissionError where it refuses."""

    def __init__(self, root: Root) -> None:
        self.root = root

    @cached_property
    def _store(self) -> ObjectStore:
        """Opened at the first use: the import takes 0.1 s."""
        return _open(self.root)

    def read(self, path: str) -> tuple[bytes, Version] | None:
        """The content of an object and its version; None where there is none."""
        with _os_errors(self.root, path):
            try:
                found = self._store.get(path)
            except FileNotFoundError:
                return None
            return bytes(found.bytes()), _version(found.meta)

    def version(self, path: str) -> Version | None:
        with _os_errors(self.root, path):
            try:
                return _version(self._store.head(path))
            except FileNotFoundError:
                return None

    def age_s(self, path: str, probe: str) -> float | None:
        """Seconds since an object was written, by the clock of the store; None where there is none.

        Args:
            probe: path of an object that is written and deleted to read that clock.
        """
        with _os_errors(self.root, path):
            self._store.put(probe, b"")
            now = self._store.head(probe)["last_modified"]
            self._store.delete(probe)
            try:
                return (now - self._store.head(path)["last_modified"]).total_seconds()
            except FileNotFoundError:
                return None

    def write(self, path: str, content: bytes, expected: Version | None) -> Version:
        """Writes an object if it still has the expected version, or if there still is none (None). Returns its new version.

        Raises ConflictError where another process has written or deleted it meanwhile, and UserError for a missing bucket.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        for attempt in range(1, _WRITES + 1):
            try:
                with _os_errors(self.root, path):
                    return self._put(path, content, expected)
            except PermissionError:
                raise
            except (AlreadyExistsError, PreconditionError, OSError) as error:
                found = self.read(path)
                if found is not None and found[0] == content:
                    return found[1]
                if (found[1] if found else None) != expected or isinstance(error, AlreadyExistsError | PreconditionError):
                    raise ConflictError(path) from error
                if attempt == _WRITES:
                    raise
        raise AssertionError

    def _put(self, path: str, content: bytes, expected: Version | None) -> Version:
        mode: Any = "create" if expected is None else expected
        try:
            return _version(self._store.put(path, content, mode=mode))
        except FileNotFoundError:
            if expected is not None:
                raise
        bucket = self.root.path().partition("/")[0]
        try:
            self.root.filesystem.create_dir(bucket)  # where the URL has allow_bucket_creation=true
        except OSError as error:
            raise UserError(
                f"{self.root.url}: the store has no bucket {bucket}, and it was not created: {_first_line(error)}. Create it, "
                f"name another, or add allow_bucket_creation=true to the URL."
            ) from error
        return _version(self._store.put(path, content, mode=mode))


def _version(facts: Any) -> Version:
    return {name: facts[name] for name in ("e_tag", "version") if facts.get(name)}


@contextmanager
def _os_errors(root: Root, path: str) -> Iterator[None]:
    from obstore import exceptions

    url = root.child_url(path)
    try:
        yield
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise PermissionError(errno.EACCES, f"{url}: {_first_line(error)}") from error
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise
    except exceptions.BaseError as error:
        if isinstance(error, exceptions.NotSupportedError) or "501 Not Implemented" in str(error):
            raise UserError(
                f"{url}: the store has no conditional writes (If-Match, If-None-Match), by which runs into one output exclude "
                f"each other. Expected S3, Google Cloud Storage or a server that has them, such as MinIO since 2024. Write to "
                f"a local disk, and copy the output."
            ) from error
        raise OSError(errno.EIO, _first_line(error), root.url) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _open(root: Root) -> ObjectStore:
    from obstore.store import GCSStore, S3Store, from_url

    bucket, _, prefix = root.path().partition("/")
    common: dict[str, Any] = {"client_options": _CLIENT, "retry_config": _RETRY}
    if is_s3(root.url):
        return S3Store(bucket, prefix=prefix or None, **_s3_options(root), **common)
    if root.url.startswith(("gs://", "gcs://")):
        return GCSStore(bucket, prefix=prefix or None, **common)
    return from_url(root.url, **common)


def _s3_options(root: Root) -> dict[str, Any]:
    """Endpoint, region and credentials as pyarrow has them."""
    (given,) = root.filesystem.__reduce__()[1]
    options: dict[str, Any] = {"region": root.filesystem.region}  # type: ignore[attr-defined]  # of an S3 file system
    endpoint = given.get("endpoint_override")
    if endpoint:
        options["endpoint"] = endpoint if "://" in endpoint else f"{given.get('scheme') or 'https'}://{endpoint}"
    else:
        options["virtual_hosted_style_request"] = True
    if given.get("anonymous"):
        return options | {"skip_signature": True}
    keys = {"access_key_id": given.get("access_key"), "secret_access_key": given.get("secret_key")}
    if all(keys.values()):
        token = given.get("session_token")
        return options | keys | ({"session_token": token} if token else {})
    return options | _profile()


def _profile() -> dict[str, str]:
    """Keys in the credentials file of AWS, which obstore does not read."""
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws/credentials")
    profiles = configparser.ConfigParser(interpolation=None)
    with suppress(configparser.Error, OSError):
        profiles.read(file, encoding="utf-8")
    name = os.environ.get("AWS_PROFILE", "default")
    found = profiles[name] if profiles.has_section(name) else {}
    return {key.removeprefix("aws_"): found[key] for key in _PROFILE_KEYS if key in found}
