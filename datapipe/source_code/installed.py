"""What the code of this installation reaches. The answers are kept on disk, since finding one takes up to half a second.

    $XDG_CACHE_HOME/datapipe/source_code/<digest of all source files>/<digest of the question>.bin

An answer is kept under the content of every source file of datapipe and its stages and the version of Python, so that it cannot
be that of other code. An edit of any file asks every question again. Answers that nothing used for two weeks are deleted.
"""

from __future__ import annotations

import json
import platform
import sysconfig
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import xxhash

from datapipe.machine_cache import LEFT_OVER_S, UNUSED_S, cache_home, read_checked, remove_older, write_checked
from datapipe.source_code.reach import Folder, Reached, Sources, reach

_PACKAGES = ("datapipe", "stages")
_ROOT = Path(__file__).resolve().parents[2]


@lru_cache(maxsize=1)
def installed_sources() -> Sources:
    """The sources of datapipe and its stages."""
    return Sources([Folder(_ROOT, frozenset(_PACKAGES), is_strict=True)])


def sources_with(module: str, file: Path) -> Sources:
    """The sources of datapipe, of a user's module and of the modules beside it.

    For an installed module, only its own package is the user's: libraries count by their versions (`Stage.libraries`).

    Args:
        module: the full name, which determines the import root.
    """
    depth = len(module.split(".")) - (0 if file.name == "__init__.py" else 1)
    root = file.resolve().parents[depth]
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}
    packages = frozenset({module.partition(".")[0]}) if root in installed else None
    return Sources([Folder(root, packages)], under=installed_sources())


@lru_cache(maxsize=256)
def reached_by_names(names: tuple[str, ...], attributes: tuple[str, ...] = ()) -> Reached:
    """What definitions of this installation reach, the members of classes among them included.

    Args:
        names: `module:definition`; names in other modules count for nothing.
        attributes: names of members that other code uses.
    """
    path = _folder() / f"{_digest(repr((names, attributes)).encode())}.bin"
    data = read_checked(path)
    if data is not None:
        digest, found, kernels = json.loads(data)
        return Reached(digest=digest, names=frozenset(found), kernels=frozenset(kernels))
    sources = installed_sources()
    reached = reach(sources, sources.with_members(names), attributes)
    answer = json.dumps([reached.digest, sorted(reached.names), sorted(reached.kernels)])
    with suppress(OSError):  # a cache that cannot be written: each process finds out for itself
        write_checked(path, answer.encode())
        _remove_unused(time.time())
    return reached


@lru_cache(maxsize=1)
def source_digest() -> str:
    """A digest of every source file of this installation and of the version of Python: 32 hex digits."""
    content = xxhash.xxh3_128(platform.python_version().encode())
    for path in sorted(path for package in _PACKAGES for path in (_ROOT / package).rglob("*.py")):
        source = path.read_bytes()
        content.update(f"\0{path.relative_to(_ROOT)}\0{len(source)}\0".encode() + source)
    return content.hexdigest()


def _folder() -> Path:
    return cache_home() / "source_code" / source_digest()


def _digest(question: bytes) -> str:
    return xxhash.xxh3_128(question).hexdigest()


def _remove_unused(now: float) -> None:
    for folder in (cache_home() / "source_code").glob("*"):
        for path in folder.glob("*"):
            remove_older(path, now - (UNUSED_S if path.suffix == ".bin" else LEFT_OVER_S))
        with suppress(OSError):  # the folder is not empty
            folder.rmdir()
