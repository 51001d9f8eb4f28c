"""Settings of Ray that cannot work, found before Ray is asked: it answers them with a traceback, or after minutes.

| setting | what is refused |
|---|---|
| `RAY_AUTH_MODE=token` | to join a cluster without a token |
| `RAY_TMPDIR`, `TMPDIR` | a folder whose name is too long for the sockets that Ray makes below it |
| `--address`, `RAY_ADDRESS` | an address of this machine alone, where no head listens |
"""

import ipaddress
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from datapipe.errors import UserError

SOCKET_BYTES = 107
"""The most bytes in the path of a socket: `sun_path` of Linux has 108, of which the last one is 0."""

_SOCKET = "ray/session_2026-11-30_01-32-39_123456_4194304/sockets/plasma_store"
_TIMEOUT_S = 10.0


def check_token(environment: Mapping[str, str] = os.environ, home: Path | None = None) -> None:
    """Raises UserError where a cluster is joined by a token, and there is none."""
    if environment.get("RAY_AUTH_MODE", "").lower() != "token" or environment.get("RAY_AUTH_TOKEN"):
        return
    given = environment.get("RAY_AUTH_TOKEN_PATH")
    path = Path(given) if given else (home or Path.home()) / ".ray" / "auth_token"
    with suppress(OSError):
        if path.read_text(encoding="utf-8", errors="replace").strip():
            return
    found = f"RAY_AUTH_TOKEN_PATH={given} is empty or cannot be read" if given else f"{path} does not exist or is empty"
    raise UserError(
        f"RAY_AUTH_MODE=token, and there is no token: RAY_AUTH_TOKEN is not set, and {found}. Expected the token of the "
        f"cluster. Print it on the head with `ray get-auth-token`, and set RAY_AUTH_TOKEN here; or unset RAY_AUTH_MODE for a "
        f"cluster without tokens."
    )


def check_sockets(environment: Mapping[str, str] = os.environ) -> None:
    """Raises UserError where a cluster that starts here cannot make its sockets."""
    variable = next((name for name in ("RAY_TMPDIR", "TMPDIR") if name in environment), None)
    if variable is None:
        return
    folder, below = environment[variable], len(f"/{_SOCKET}")
    num_bytes, most = len(os.fsencode(folder)), SOCKET_BYTES - below
    if num_bytes > most:
        raise UserError(
            f"{variable}={folder} has {num_bytes} bytes, and Ray makes sockets below it, whose paths have at most "
            f"{SOCKET_BYTES} bytes, {below} of them below the folder. Expected a folder of at most {most} bytes. Set "
            f"RAY_TMPDIR to a shorter one, such as RAY_TMPDIR=/tmp."
        )


def check_address(address: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raises UserError for a host and port where nothing listens; Ray would try for minutes."""
    variable, where = "--address", address
    if address == "auto" and environment.get("RAY_ADDRESS"):
        variable, where = "RAY_ADDRESS", environment["RAY_ADDRESS"]
    host, colon, port = where.rpartition(":")
    if not (colon and port.isdigit()) or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT_S).close()
    except OSError as error:
        ips = _loopback(host.strip("[]"), int(port))
        if not ips:
            raise
        named = host if host.strip("[]") in ips else f"{host}, which is {ips[0]} here,"
        raise UserError(
            f"{variable}={where}: {named} is this machine alone, and no Ray head listens there ({error}). Expected the "
            f"address of the head as other machines see it. Print it on the head with `hostname -I`; to start a head here, "
            f"run `ray start --head`."
        ) from error


def _loopback(host: str, port: int) -> list[str]:
    """The addresses of a host; empty unless all of them are loopback, as of a name that /etc/hosts gives 127.0.1.1."""
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except OSError:
        return []
    ips = list(dict.fromkeys(found))
    return ips if all(ipaddress.ip_address(ip.partition("%")[0]).is_loopback for ip in ips) else []
