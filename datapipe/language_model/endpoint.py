"""One request to an OpenAI-compatible chat endpoint, and its outcome. The only module that knows the HTTP library.

    body ─▶ POST URL/chat/completions ─▶ Answer            a well-formed completion, whatever its text is
                                      ├▶ AttemptError      another attempt may help: busy, unreachable, failed
                                      └▶ RefusedError      no attempt helps: the key, the model, the request

| what the server does | |
|---|---|
| 408, 425, 429, 503 | busy, with the seconds of Retry-After |
| no connection | unreachable |
| other 5xx, a timeout, an answer that breaks off, is too large or no completion | failed |
| 401, 403; 404; 3xx; other 4xx; a certificate that is not trusted | refused |

The key travels in one header to one URL: redirects are not followed, and no message or answer has the key or secrets of the
URL. A body is read up to `MAX_BODY_BYTES`, uncompressed. The timeout covers the whole request.
"""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal
from urllib.parse import SplitResult, parse_qsl, urlsplit

import httpx2 as httpx

from datapipe.credentials import MASK, masked, remember_secret
from datapipe.dataclass import dataclass, field, replace
from datapipe.errors import UserError
from datapipe.language_model.cache import Answer
from datapipe.storage.http import retry_after_s

MAX_BODY_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 10.0

_PATH = "/chat/completions"
_BUSY = frozenset({408, 425, 429, 503})
_OF_CONTENT = frozenset({400, 413, 422})
"""Statuses by which servers refuse one request for its content, such as a text that is longer than their context."""
_SHOWN_CHARS = 300
_LEAST_SECRET_CHARS = 8
"""Of a secret that is masked. Servers without keys take any word, such as EMPTY, which answers may hold as well."""
_MOST_TOKENS = 1 << 40
_KEY = re.compile(r"[!-~]+")


class AttemptError(Exception):
    """A request got no answer, and another attempt may. `retry_after_s`: as the server sends it, else None."""

    def __init__(
        self, kind: Literal["busy", "unreachable", "failed"], message: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = retry_after_s


class RefusedError(UserError):
    """The server refuses the request, and would again; with other content (`is_of_content`) it may accept one."""

    def __init__(self, message: str, is_of_content: bool = False) -> None:
        super().__init__(message)
        self.is_of_content = is_of_content


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where requests go. Its display holds no credentials. `timeout_s` is that of a request."""

    url: str
    api_key_env: str = ""
    timeout_s: float = 120.0
    key: str = field(default="", repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def shown(self) -> str:
        return masked(self.url)

    def without_secrets(self, text: str) -> str:
        """A text of the server, which may repeat what it got."""
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return text

    def message(self, text: str) -> str:
        """The message of the server, as one line."""
        line = " ".join(masked(self.without_secrets(text)).split())
        line = "".join(character if character.isprintable() else "\ufffd" for character in line)
        return f"{line[:_SHOWN_CHARS]}…" if len(line) > _SHOWN_CHARS else line


def endpoint_of(url: str, api_key_env: str, environment: Mapping[str, str], timeout_s: float) -> Endpoint:
    """The endpoint at a base URL, with the key that a variable holds. Raises UserError."""
    parts = _parts(url)
    key = _key(api_key_env, environment) if api_key_env else ""
    path = parts.path.rstrip("/")
    queries = [value for name, value in parse_qsl(parts.query) if MASK in masked(f"http://host/?{name}={value}")]
    return Endpoint(
        url=parts._replace(path=path if path.endswith(_PATH) else path + _PATH, fragment="").geturl(),
        api_key_env=api_key_env,
        timeout_s=timeout_s,
        key=key,
        secrets=tuple(part for part in (key, *queries) if len(part) >= _LEAST_SECRET_CHARS),
    )


def _parts(url: str) -> SplitResult:
    with suppress(ValueError, httpx.InvalidURL):
        parts = urlsplit(url)
        httpx.URL(url)
        if "@" in parts.netloc:
            raise UserError(f"--endpoint {masked(url)}: found credentials. Put the key into a variable: --api-key-env NAME")
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not re.search(r"\s", url):
            return parts
    raise UserError(f"--endpoint {masked(url)}: expected a URL such as http://127.0.0.1:8000/v1")


def _key(name: str, environment: Mapping[str, str]) -> str:
    key = environment.get(name, "").strip()
    if not key:
        raise UserError(f"--api-key-env {name}: the environment variable is not set. Set it to the key of the endpoint")
    if _KEY.fullmatch(key) is None:
        raise UserError(f"--api-key-env {name}: the value holds white space or characters that no header can hold")
    if len(key) >= _LEAST_SECRET_CHARS:
        remember_secret(key, f"${{{name}}}")
    return key


class Client:
    def __init__(self, endpoint: Endpoint, http: httpx.AsyncClient) -> None:
        self.endpoint = endpoint
        self._http = http

    async def ask(self, body: Mapping[str, Any]) -> Answer:
        """The answer to one request. Raises AttemptError and RefusedError."""
        content = json.dumps(body, ensure_ascii=False).encode()
        try:
            async with asyncio.timeout(self.endpoint.timeout_s):
                status, headers, answer = await self._post(content)
        except (TimeoutError, httpx.TimeoutException) as error:
            kind = "unreachable" if isinstance(error, httpx.ConnectTimeout) else "failed"
            raise AttemptError(kind, f"no answer within {self.endpoint.timeout_s:g} s") from None
        except (httpx.ConnectError, httpx.ProxyError) as error:
            if _is_of_certificate(error):
                text = self.endpoint.message(str(error))
                raise RefusedError(f"{self.endpoint.shown}: {text}. SSL_CERT_FILE names the certificates to trust") from None
            raise AttemptError("unreachable", self.endpoint.message(str(error) or type(error).__name__)) from None
        except httpx.TransportError as error:
            raise AttemptError("failed", self.endpoint.message(str(error) or type(error).__name__)) from None
        text = answer.decode("utf-8", "replace")
        if status != 200:
            raise self._failure(status, headers, text)
        try:
            completion = parse_completion(text)
        except ValueError as error:
            raise AttemptError("failed", self.endpoint.message(f"{error}: {_detail(text)}")) from None
        return replace(completion, content=self.endpoint.without_secrets(completion.content))

    async def _post(self, content: bytes) -> tuple[int, httpx.Headers, bytes]:
        async with self._http.stream("POST", self.endpoint.url, content=content) as response:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise AttemptError("failed", "the answer is compressed, which was not asked for")
            parts: list[bytes] = []
            num_bytes = 0
            async for part in response.aiter_raw():
                parts.append(part)
                num_bytes += len(part)
                if num_bytes > MAX_BODY_BYTES:
                    raise AttemptError("failed", f"the answer is larger than {MAX_BODY_BYTES >> 20} MiB")
            return response.status_code, response.headers, b"".join(parts)

    def _failure(self, status: int, headers: httpx.Headers, text: str) -> Exception:
        message = self.endpoint.message(f"HTTP {status}: {_detail(text)}").removesuffix(":")
        if status in _BUSY:
            return AttemptError("busy", message, retry_after_s(headers.get("Retry-After")))
        if status >= 500 or status < 300:
            return AttemptError("failed", message)
        endpoint = self.endpoint
        if status < 400:
            target = endpoint.message(headers.get("Location", "nowhere"))
            return RefusedError(
                f"{endpoint.shown} redirects to {target}. Redirects are not followed, since they would take the key along. "
                "Give the URL behind it as --endpoint"
            )
        return RefusedError(f"{endpoint.shown}: {message}. {_remedy(status, endpoint)}", status in _OF_CONTENT)


def _is_of_certificate(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def _remedy(status: int, endpoint: Endpoint) -> str:
    if status in (401, 403):
        named = f"the environment variable {endpoint.api_key_env}" if endpoint.api_key_env else "none was given"
        return f"The server does not accept the key ({named}). --api-key-env NAME names the variable that holds it"
    if status in (404, 405):
        return "Expected a model that the server lists at its URL /models, and a base URL that usually ends in /v1"
    if status in _OF_CONTENT:
        return "For a text that is too long for the model, lower `max_chars`; --skip-failed leaves such texts out"
    return "The server would refuse the request again"


@asynccontextmanager
async def connected(endpoint: Endpoint, concurrency: int) -> AsyncIterator[Client]:
    """A client with at most so many connections."""
    headers = {"Accept-Encoding": "identity", "Content-Type": "application/json", "User-Agent": "datapipe"}
    if endpoint.key:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    timeout = httpx.Timeout(endpoint.timeout_s, connect=min(CONNECT_TIMEOUT_S, endpoint.timeout_s), pool=None)
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    verify = not endpoint.url.startswith("http://")  # reading all certificates takes 40 ms
    http = httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits, follow_redirects=False, verify=verify)
    async with http:
        yield Client(endpoint, http)


def parse_completion(text: str) -> Answer:
    """The answer in the body of a completion. Raises ValueError for anything else."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("the answer is no JSON") from None
    try:
        choice = data["choices"][0]
        content, finish_reason = choice["message"]["content"], choice.get("finish_reason")
    except (LookupError, TypeError, AttributeError):
        raise ValueError("the answer is no chat completion") from None
    if not isinstance(content, str | None) or not isinstance(finish_reason, str | None):
        raise ValueError("the answer is no chat completion")
    usage = data.get("usage")
    return Answer(
        content=(content or "").encode("utf-8", "replace").decode(),  # JSON may spell half of a surrogate pair
        finish_reason=finish_reason,
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
    )


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and 0 <= value < _MOST_TOKENS else None


def _detail(text: str) -> str:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    inner = data.get("error", data) if isinstance(data, dict) else None
    message = inner.get("message", inner.get("detail")) if isinstance(inner, dict) else inner
    return message if isinstance(message, str) else text
