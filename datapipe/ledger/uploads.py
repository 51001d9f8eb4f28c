"""Uploads in parts that nobody finishes: a worker that is killed leaves them in the bucket, unseen, and the store bills them.

    list of the uploads below OUTPUT ─▶ abort each

Neither pyarrow nor obstore lists them, so this signs the two requests itself (AWS Signature Version 4). It does so with keys of
the URL, the environment or the credentials file. With others, as of an instance's role, and where a store refuses, the uploads
stay: a lifecycle rule of the bucket ends them (`deploy/README.md`). Google's store ends its own after a week.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen
from xml.etree import ElementTree

from datapipe.ledger.conditional import s3_options
from datapipe.storage import Root
from datapipe.stores.s3 import is_s3

_TIMEOUT_S = 10.0
_ATTEMPTS = 3
_NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """An upload: the object's key in its bucket, and the id that the store gave it."""

    key: str
    id: str


def unfinished_uploads(root: Root) -> list[Upload]:
    """The uploads below a folder; none where the store does not tell."""
    if not is_s3(root.url) or not _keys(root):
        return []
    with suppress(OSError, ElementTree.ParseError):
        return list(_listed(root))
    return []


def abort_uploads(root: Root) -> int:
    """Aborts the uploads below a folder into which nothing is written now. Returns how many."""
    uploads = unfinished_uploads(root)
    for upload in uploads:
        with suppress(OSError):  # it has ended by itself, or stays until the next time
            _answer(root, "DELETE", upload.key, {"uploadId": upload.id})
    return len(uploads)


def _listed(root: Root) -> Iterator[Upload]:
    query = {"uploads": "", "prefix": f"{root.path().partition('/')[2]}/".lstrip("/")}
    while True:
        page = ElementTree.fromstring(_answer(root, "GET", "", query))
        for upload in page.iterfind("{*}Upload"):
            yield Upload(key=upload.findtext("{*}Key", ""), id=upload.findtext("{*}UploadId", ""))
        if page.findtext("{*}IsTruncated") != "true":
            return
        query["key-marker"] = page.findtext("{*}NextKeyMarker", "")
        query["upload-id-marker"] = page.findtext("{*}NextUploadIdMarker", "")


def _keys(root: Root) -> dict[str, str]:
    """Access key, secret and session token that this process knows; empty for none."""
    options = s3_options(root)
    if options.get("access_key_id"):
        return {name: options.get(name, "") for name in ("access_key_id", "secret_access_key", "session_token")}
    names = ("access_key_id", "secret_access_key", "session_token")
    found = {name: os.environ.get(f"AWS_{name.upper()}", "") for name in names}
    return found if found["access_key_id"] and found["secret_access_key"] else {}


def _answer(root: Root, method: str, key: str, query: dict[str, str]) -> bytes:
    """The answer of the store; asked again where none comes. Raises OSError."""
    options, bucket = s3_options(root), root.path().partition("/")[0]
    endpoint = options.get("endpoint") or f"https://s3.{options['region']}.amazonaws.com"
    path = quote(f"/{bucket}/{key}" if key else f"/{bucket}", safe="/-_.~")
    text = "&".join(f"{quote(name, safe='-_.~')}={quote(query[name], safe='-_.~')}" for name in sorted(query))
    headers = _signed(method, urlsplit(endpoint).netloc, path, text, options["region"], _keys(root))
    request = Request(f"{endpoint}{path}?{text}", method=method, headers=headers)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with urlopen(request, timeout=_TIMEOUT_S) as answer:
                return answer.read()
        except OSError:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError


def _signed(method: str, host: str, path: str, query: str, region: str, keys: dict[str, str]) -> dict[str, str]:
    """The headers of a signed request without a body."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-content-sha256": _NOTHING, "x-amz-date": now}
    headers |= {"x-amz-security-token": keys["session_token"]} if keys["session_token"] else {}
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join((method, path, query, lines, names, _NOTHING))
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    signed = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key: Any = f"AWS4{keys['secret_access_key']}".encode()
    for part in (*scope.split("/"), signed):
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"Credential={keys['access_key_id']}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}
