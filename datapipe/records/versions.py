"""Versions of libraries in the fingerprints of tasks.

    kind of work, its stages and readers ─▶ names of libraries ─▶ versions "pyarrow=26.0.1 unicode=14.0.0" ─▶ record
    everything else of a task            ─▶ content ─┐                       │ `EQUAL`
                                                     ├─▶ fingerprint ◀─ normal form

The first half of a fingerprint is the digest of the content, the second that of the versions. So two
tasks that differ in versions alone have the same first half (`content_of`), and a run may keep the
record of the other one (`run --trust-records`). Versions that `EQUAL` lists give the same bytes, and
count as one version.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from sys import intern
from typing import Any
from unicodedata import unidata_version

from pydantic import BaseModel

from datapipe.dataclass import dataclass
from datapipe.machine.libraries import installed_version

UNICODE = "unicode"
"""The Unicode tables of Python, which define letters."""

PARQUET = "pyarrow.parquet"
"""The Parquet writer of pyarrow: it stamps its version in each file, so no two versions write equal bytes."""

OF_ANY_CODE = ("numba.any", "numpy.any", "pyarrow.any")
"""The libraries of a user's stage. Its code may call any function of them, so no two versions are known to be equal."""

_HALF = 32  # hex digits
_RELEASE = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True, slots=True)
class EqualVersions:
    """Versions of a library that give equal bytes, from `first` to `last`. `first` stands for all of them in fingerprints, so
    a row is only ever extended at its end."""

    library: str
    first: str
    last: str
    evidence: str  # how and when it was checked


EQUAL: tuple[EqualVersions, ...] = (
    EqualVersions("numpy", "2.4.4", "2.4.6", ".ci/versions, 2026-11-30"),
    EqualVersions("pyarrow", "26.0.0", "26.0.1", ".ci/versions, 2026-11-30"),
    EqualVersions("tokenizers", "0.23.1", "0.23.3", ".ci/versions, 2026-11-30"),
    EqualVersions("xxhash", "4.0.1", "4.1.0", ".ci/versions, 2026-11-30"),
)
"""`.ci/versions LIBRARY==VERSION …` checks versions, and prints a row to write here. pyarrow 25.0.1 is no such version: its NFC
composes nothing."""


class TrustedRecords(BaseModel, frozen=True, extra="forbid"):
    """Tasks that another version of a library ran, and whose records a run kept."""

    library: str
    made_with: str  # its version when the tasks ran
    version: str  # its version in the run that kept them
    tasks: int


@lru_cache(maxsize=64)
def version_here(library: str) -> str:
    """The version of a library in this process; "none" where it is not installed."""
    return unidata_version if library == UNICODE else installed_version(distribution(library))


def versions_of(libraries: Iterable[str]) -> str:
    """The versions of libraries in this process: "numpy=2.4.6 pyarrow=26.0.1"."""
    return intern(" ".join(f"{library}={version_here(library)}" for library in sorted(set(libraries))))


def fingerprint_of(content: Any, versions: str) -> str:
    """The fingerprint of a task, 64 hex digits. `content`: plain JSON, without versions."""
    texts = json.dumps(content, sort_keys=True, ensure_ascii=False), _normal_form(versions)
    return "".join(hashlib.sha256(text.encode()).hexdigest()[:_HALF] for text in texts)


def content_of(fingerprint: str) -> str:
    """What two tasks have in common whose fingerprints differ in versions alone."""
    return fingerprint[:_HALF]


def versions_digest(fingerprint: str) -> str:
    return fingerprint[_HALF:]


def differences(before: str, now: str) -> dict[str, tuple[str, str]]:
    """By library, the two versions, where they may give other bytes. Empty where either is not known."""
    if before == now or not before or not now:
        return {}
    old, new = parsed(before), parsed(now)
    pairs = {name: (old.get(name, "none"), new.get(name, "none")) for name in sorted({*old, *new})}
    return {distribution(name): pair for name, pair in pairs.items() if normal(name, pair[0]) != normal(name, pair[1])}


def distribution(library: str) -> str:
    """What is installed for a name in versions: pyarrow for `pyarrow.parquet`."""
    return library.partition(".")[0]


def parsed(versions: str) -> Mapping[str, str]:
    return dict(item.split("=", 1) for item in versions.split())


def normal(library: str, version: str) -> str:
    """The version that stands for this version of a library in fingerprints."""
    number = _numbers(version)
    for row in EQUAL:
        if row.library == library and number and _numbers(row.first) <= number <= _numbers(row.last):
            return row.first
    return version


def _normal_form(versions: str) -> str:
    return " ".join(f"{library}={normal(library, version)}" for library, version in parsed(versions).items())


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a release, without zeros at its end; empty for other versions, such as 2.5rc1."""
    if not _RELEASE.fullmatch(version):
        return ()
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
