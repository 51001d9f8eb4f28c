"""Who may read what, and how much at once: tokens from a file, and the limits of each client.

    tokens:
      - name: team-a                       for logs and metrics
        sha256: 5e884898da28…              of the token: `printf %s TOKEN | sha256sum`
        outputs: [runs/web]                by default all that are served
        bytes_per_s: 500MB                 by default without a limit
        streams: 64                        at once; by default the server's --client-streams

Without a file, a client is an address. The file is read again when it changes; a file that cannot
be read leaves the tokens unchanged.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

from pydantic import BaseModel, Field, ValidationError

from datapipe.config.fields import ByteSize
from datapipe.config.yaml import parse_yaml
from datapipe.errors import UserError
from datapipe.loader.remote.protocol import Name, Refusal

_PROBE_EVERY_S = 1.0
_BURST_S = 1.0


class RefusedError(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Client(BaseModel, frozen=True, extra="forbid"):
    """The sender of a request: an entry of the token file, or an address if there is no file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$", repr=False)]  # of its token; empty without one
    outputs: frozenset[Name] | None = None  # that it may read; None for all
    bytes_per_s: Annotated[ByteSize, Field(ge=1)] | None = None  # over all its streams; None without a limit
    streams: Annotated[int, Field(ge=1)] | None = None

    @classmethod
    def at(cls, host: str, streams: int) -> Client:
        return cls.model_construct(name=host, sha256="", streams=streams)

    def check_output(self, name: str) -> None:
        if self.outputs is not None and name not in self.outputs:
            raise RefusedError(Refusal.of("denied", f"the token of '{self.name}' may not read '{name}'."))


class _TokenFile(BaseModel, frozen=True, extra="forbid"):
    tokens: tuple[Client, ...]


class Access:
    """The clients. `warn` gets the reason, once, where the file cannot be reloaded."""

    def __init__(self, token_file: Path | None, most_streams: int, warn: Callable[[str], None] = lambda problem: None) -> None:
        self._token_file, self._most_streams, self._warn = token_file, most_streams, warn
        self._clients: Mapping[str, Client] = {}
        # when a client may send again, by name and rate, so that a reloaded file continues it
        self._free_at: dict[tuple[str, int], float] = {}
        self._seen: tuple[int, int] | None = None
        self._probe_at = 0.0
        self._lock = threading.Lock()
        self.problem = ""
        if token_file is not None:
            self._clients, self._seen = self._read(token_file), _stamp(token_file)

    def client(self, authorization: str, host: str) -> Client:
        """The client of a request. Raises RefusedError."""
        if self._token_file is None:
            return Client.at(host, self._most_streams)
        self._reload(self._token_file)
        scheme, _, token = authorization.partition(" ")
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        known = self._clients.get(digest)  # its time reveals a hash at most, and no token
        if known is None or scheme.lower() != "bearer":
            what = "this one is not valid" if authorization else "none was given"
            raise RefusedError(Refusal.of("denied", f"a token is needed, and {what}: give token_file=FILE in the URL."))
        return known

    def still_allows(self, client: Client, output: str) -> bool:
        if self._token_file is None:
            return True
        self._reload(self._token_file)
        known = self._clients.get(client.sha256)
        return known is not None and (known.outputs is None or output in known.outputs)

    def pause_s(self, client: Client, num_bytes: int) -> float:
        """Seconds to wait before a client may get `num_bytes`, at its rate with a burst of one second."""
        if client.bytes_per_s is None:
            return 0.0
        key, now = (client.name, client.bytes_per_s), time.monotonic()
        with self._lock:
            starts = max(self._free_at.get(key, 0.0), now - _BURST_S)
            self._free_at[key] = starts + num_bytes / client.bytes_per_s
            return max(0.0, self._free_at[key] - now)

    def _reload(self, path: Path) -> None:
        now = time.monotonic()
        with self._lock:
            if now < self._probe_at:
                return
            self._probe_at = now + _PROBE_EVERY_S
            try:
                if (stamp := _stamp(path)) != self._seen:
                    self._clients, self._seen, self.problem = self._read(path), stamp, ""
            except (OSError, UserError) as error:
                problem = f"the token file was not reloaded: {error}"
                if problem != self.problem:
                    self._warn(problem)
                self.problem = problem

    def _read(self, path: Path) -> Mapping[str, Client]:
        try:
            tokens = _TokenFile.model_validate(parse_yaml(path.read_text(encoding="utf-8"), str(path)).data).tokens
        except OSError as error:
            raise UserError(f"--tokens {path}: {error.strerror}. Expected a file of tokens.") from error
        except (UserError, UnicodeDecodeError):
            raise UserError(f"--tokens {path}: not YAML.") from None  # whose text may hold secrets
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            key = ".".join(str(name) for name in first["loc"])
            raise UserError(f"--tokens {path}: {key}: {first['msg']}.") from None
        names = Counter(token.name for token in tokens).most_common(1)
        if names and names[0][1] > 1:
            raise UserError(f"--tokens {path}: two entries have the same name '{names[0][0]}'.")
        if len({token.sha256 for token in tokens}) < len(tokens):
            raise UserError(f"--tokens {path}: two entries have the same token.")
        limit = self._most_streams
        return {token.sha256: token.model_copy(update={"streams": token.streams or limit}) for token in tokens}


class Slots:
    def __init__(self, most: int, most_bytes: int = 1 << 62) -> None:
        self._most, self._most_bytes, self._lock = most, most_bytes, threading.Lock()
        self.by_client = Counter[str]()
        self.num_bytes = 0

    @property
    def num_streams(self) -> int:
        return self.by_client.total()

    def take(self, client: Client, num_bytes: int = 0) -> None:
        """Takes a slot for a stream of at most `num_bytes` of memory. Raises RefusedError without a slot or the memory."""
        with self._lock:
            if client.streams and self.by_client[client.name] >= client.streams:
                raise RefusedError(Refusal.of("busy", f"'{client.name}' has {client.streams} streams, its most."))
            if self.by_client.total() >= self._most:
                raise RefusedError(Refusal.of("busy", f"the server has {self._most} streams, its most."))
            if self.num_bytes and self.num_bytes + num_bytes > self._most_bytes:  # one alone may take more
                raise RefusedError(Refusal.of("busy", f"the streams of the server take {self.num_bytes:,} bytes already."))
            self.by_client[client.name] += 1
            self.num_bytes += num_bytes

    def give_back(self, name: str, num_bytes: int = 0) -> None:
        with self._lock:
            self.num_bytes -= num_bytes
            self.by_client[name] -= 1
            if not self.by_client[name]:
                del self.by_client[name]


def _stamp(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_ino


def host_of(peer: str) -> str:
    """The address in a peer as gRPC writes it, such as ipv4:127.0.0.1:5000 or ipv6:%5B::1%5D:5000, without a zone."""
    host = unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
    return host.partition("%")[0].removeprefix("::ffff:")


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
