"""Conditional writes to an object store: a write that succeeds only while the object is the one that was read.

A write whose answer is lost is looked up: it is done if the object has its content, and repeated if the object is still the
expected one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from datapipe.errors import UserError
from datapipe.storage.object_store import os_errors
from datapipe.storage.outages import NoBucketError, StoreSilentError
from datapipe.storage.root import Root

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CLIENT = {"timeout": "10s"}
_BACKOFF = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=15), "base": 2}
_RETRY = {"max_retries": 3, "retry_timeout": timedelta(seconds=21), "backoff": _BACKOFF}
_WRITES = 3  # attempts at a write without an answer. obstore itself does not repeat a write that timed out

Version = dict[str, Any]  # identifies the content of an object: its ETag, on Google Cloud its generation


class ConflictError(Exception):
    """The object is not the expected one: another process has written it."""


class ConditionalStore:
    """Objects below one folder of a store. Each method raises StoreError."""

    def __init__(self, root: Root) -> None:
        self.root = root

    @cached_property
    def _store(self) -> ObjectStore:
        return self.root.bucket.client(_RETRY, **_CLIENT)

    def read(self, path: str) -> tuple[bytes, Version] | None:
        """The content of an object and its version; None where there is none."""
        with self._errors(path) as key, suppress(FileNotFoundError):
            found = self._store.get(key)
            return bytes(found.bytes()), _version(found.meta)
        return None

    def version(self, path: str) -> Version | None:
        with self._errors(path) as key, suppress(FileNotFoundError):
            return _version(self._store.head(key))
        return None

    def age_s(self, path: str, probe: str) -> float | None:
        """Seconds since an object was written, by the clock of the store, for which `probe` is written; None for no object."""
        with self._errors(probe) as key:
            self._store.put(key, b"")
            now = self._store.head(key)["last_modified"]
            self._store.delete(key)
        with self._errors(path) as key, suppress(FileNotFoundError):
            return (now - self._store.head(key)["last_modified"]).total_seconds()
        return None

    def write(self, path: str, content: bytes, expected: Version | None) -> Version:
        """Writes an object if it still has the expected version, or there still is none (None), else raises ConflictError."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        for attempt in range(1, _WRITES + 1):
            try:
                return self._put(path, content, expected)
            except NoBucketError:
                if expected is not None:
                    raise
                self.root.bucket.create_bucket()
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
        with self._errors(path) as key:
            return _version(self._store.put(key, content, mode=mode))

    @contextmanager
    def _errors(self, path: str) -> Iterator[str]:
        """Gives the key of a path, and raises errors as those of the operating system."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        key = self.root.path(path)
        try:
            with os_errors(self.root.bucket.url, key, (AlreadyExistsError, PreconditionError)):
                yield key
        except StoreSilentError as error:
            if "501 Not Implemented" not in str(error):
                raise
            raise UserError(
                f"{self.root.child_url(path)}: the store has no conditional writes (If-Match, If-None-Match), by which runs "
                f"into one output exclude each other. Expected S3, Google Cloud Storage or a server that has them, such as "
                f"MinIO since 2024. Write to a local disk, and copy the output."
            ) from error


def _version(facts: Any) -> Version:
    return {name: facts[name] for name in ("e_tag", "version") if facts.get(name)}
