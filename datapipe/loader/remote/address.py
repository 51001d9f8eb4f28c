"""The URL of an output on a service: grpc+tls://a:8815,b:8815/runs/web?ca=ca.pem&token_file=token"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from datapipe.dataclass import dataclass, field
from datapipe.errors import UserError
from datapipe.loader.remote.protocol import is_name

SCHEMES = ("grpc", "grpc+tls")
PORT = 8815
WAIT_S = 300.0

_OPTIONS = ("ca", "token_file", "wait_s")
_EXPECTED = (
    "Expected grpc://HOST:PORT,HOST:PORT/NAME, or grpc+tls:// with ?ca=FILE and &token_file=FILE where the service needs them"
)
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+")


def is_service(output: str) -> bool:
    return output.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    locations: tuple[str, ...]
    name: str
    # PEM of the certificates that are trusted; None for those of the system
    ca: bytes | None = field(default=None, repr=False)
    token_file: Path | None = None
    wait_s: float = WAIT_S  # seconds without an answer of any server after which a loader gives up

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises UserError for another URL, and for files that cannot be read."""
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise UserError(f"a URL of a service holds no user and no password; a token is given by a file. {_EXPECTED}.")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = sorted(options.keys() - set(_OPTIONS))
        if unknown:
            raise UserError(
                f"{parts.scheme}://{parts.netloc}{parts.path}: unknown option '{unknown[0]}'. There are {', '.join(_OPTIONS)}. "
                f"{_EXPECTED}."
            )
        locations = tuple(_location(parts.scheme, host, url) for host in parts.netloc.split(","))
        name = parts.path.strip("/")
        if not is_name(name):
            raise UserError(f"{parts.scheme}://{parts.netloc}{parts.path}: no name of an output after the hosts. {_EXPECTED}.")
        try:
            wait_s = float(options.get("wait_s", WAIT_S))
        except ValueError:
            wait_s = -1.0
        if not 0 <= wait_s < 1e9:
            raise UserError(f"wait_s={options['wait_s']}: expected seconds.")
        return cls(
            locations=locations,
            name=name,
            ca=_content(options["ca"], "ca") if "ca" in options else None,
            token_file=Path(options["token_file"]) if "token_file" in options else None,
            wait_s=wait_s,
        )

    def token(self) -> str:
        """The current token in the file; empty without a file. Raises UserError."""
        if self.token_file is None:
            return ""
        token = _content(str(self.token_file), "token_file").decode("ascii", "replace").strip()
        if not re.fullmatch(r"[\x21-\x7e]{1,512}", token):
            raise UserError(f"token_file={self.token_file}: expected one token of at most 512 printable characters.")
        return token


def _location(scheme: str, host: str, url: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):
        name, port = host, str(PORT)
    if not _HOST.fullmatch(name) or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise UserError(f"'{host}' in {url.partition('?')[0]} is no host and port. {_EXPECTED}.")
    return f"{scheme}://{name}:{port}"


def _content(path: str, option: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{option}={path}: {error.strerror}. Expected a file that can be read.") from error
