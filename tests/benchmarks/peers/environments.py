"""Environments of peers, one for each, under the cache folder of the user: made by uv, and again when their pins change."""

import hashlib
import os
import signal
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

PINS = Path(__file__).with_name("environments.toml")
_LIMIT_S = 900


class PeerError(Exception):
    """A peer that cannot be installed or run. The message is one line."""


@cache
def pins() -> dict[str, Any]:
    return tomllib.loads(PINS.read_text(encoding="utf-8"))


def label(peer: str) -> str:
    """The peer's library with its version."""
    name, _, version = pins()["peers"][peer][0].partition("==")
    return f"{name.partition('[')[0]} {version}"


def interpreter(peer: str) -> str:
    """The Python of a peer's environment, which is made where there is none with these pins."""
    python, newest, requirements = pins()["python"], pins()["exclude_newer"], pins()["peers"][peer]
    digest = hashlib.sha256(repr((python, newest, requirements)).encode()).hexdigest()[:12]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "datapipe-peers" / f"{peer}-{digest}"
    if not (folder / "complete").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        run(["uv", "venv", "--clear", "--python", python, str(folder)])
        install = ["uv", "pip", "install", "--python", str(folder / "bin/python"), "--index-strategy", "unsafe-best-match"]
        run([*install, "--exclude-newer", newest, *requirements], os.environ | _as_for_pip())
        (folder / "complete").touch()
    return str(folder / "bin/python")


def _as_for_pip() -> dict[str, str]:
    """pip's variables of where packages are, for uv: a CPU build of torch is not on PyPI."""
    given = {name: os.environ.get(f"PIP_{name}", "").split() for name in ("FIND_LINKS", "EXTRA_INDEX_URL")}
    separators = {"FIND_LINKS": ",", "EXTRA_INDEX_URL": " "}
    return {f"UV_{name}": separators[name].join(places) for name, places in given.items() if places}


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """What a command prints. Its failure is a `PeerError` with the last line of its errors."""
    try:
        with subprocess.Popen(
            command, env=environment, text=True, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
        ) as process:
            try:
                printed, errors = process.communicate(timeout=_LIMIT_S)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with what it started
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(f"{Path(command[0]).name}: {error}") from error
    if process.returncode:
        raise PeerError((errors.strip() or f"{Path(command[0]).name} ended with {process.returncode}").splitlines()[-1].strip())
    return printed
