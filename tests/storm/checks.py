"""The corpus of the storm, and what must hold after each fault, once the same command has run to its end.

    same bytes       as an undisturbed run: shards, manifests, tokenizer, list of files
    counts balance   read = kept + dropped + quarantined, for each source and in all
    verified         `datapipe verify` finds nothing
    no residue       no attempt that no record names, no unfinished file, nothing in TMPDIR, nothing in /dev/shm

Two sources, 60 pages, all four stages of deduplication with components in rounds, a trained tokenizer, packed rows: 57 tasks of
all kinds but one (`tests/support/dedup_runs.py`). A run takes about 2 s in one process.

Files of the ledger are read as text, whatever their form: a record names the folders of its attempts.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from tests.support import dedup_runs

NUM_PAGES = 60

TIMED = ("report.json", "report.html", "publication.json", "README.md", "croissant.json", "mixture.yaml")
"""Files that hold times, or the name of the output: two runs differ in them."""


def write_mixture(folder: Path, num_pages: int = NUM_PAGES) -> Path:
    """Writes the corpus and its mixture into `folder`."""
    return dedup_runs.write_mixture(folder, dedup_runs.write_corpus(folder / "corpus", num_pages))


def digests(output: Path) -> dict[str, str]:
    """SHA-256 by path of all that readers of an output see: shards, manifests, tokenizer, list of files."""
    paths = (path for path in sorted(output.rglob("*")) if path.is_file())
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.name not in TIMED and not (name := str(path.relative_to(output))).startswith("work/")
    }


_ATTEMPT = re.compile(rb"work/attempts/[^/\t\"]+/([0-9a-f]{16})-")


def num_records(output: Path) -> int:
    """How many tasks the ledger of an output has records of, whose attempts it names."""
    found: set[bytes] = set()
    for path in (output / "work" / "ledger").rglob("*"):
        try:
            found.update(_ATTEMPT.findall(path.read_bytes()) if path.is_file() and path.suffix != ".tmp" else ())
        except FileNotFoundError:  # it has just got its final name
            continue
    return len(found)


def check_output(output: Path, expected: Mapping[str, str]) -> None:
    """Raises AssertionError where the output of a finished run is not that of an undisturbed one, whose digests are given."""
    check_same(digests(output), expected)
    check_counts(json.loads((output / "report.json").read_bytes()))
    check_residue(output)


def check_same(actual: Mapping[str, str], expected: Mapping[str, str]) -> None:
    other = sorted(name for name in expected.keys() & actual.keys() if expected[name] != actual[name])
    missing, more = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
    assert actual == expected, f"not the bytes of an undisturbed run: differ {other}, missing {missing}, more {more}"


def check_counts(report: Mapping) -> None:
    """Checks that the documents of a report add up, by source and in total."""
    sources = [source["documents"] for source in report["sources"].values()]
    for documents in (*sources, report["total"]["documents"]):
        fates = documents["kept"] + sum(documents["dropped"].values()) + documents["quarantined"]
        assert documents["read"] == fates, f"documents do not add up: {documents}"
    for name in ("read", "kept", "quarantined"):
        total, sum_of_sources = report["total"]["documents"][name], sum(documents[name] for documents in sources)
        assert total == sum_of_sources, f"{name}: {total} in total, {sum_of_sources} over the sources"


def check_residue(output: Path) -> None:
    """Checks for attempts that no record names, empty folders of attempts, unfinished files, probes, and a held lease."""
    named = b"".join(path.read_bytes() for path in (output / "work" / "ledger").rglob("*") if path.is_file())
    attempts = output / "work" / "attempts"
    left = [path for path in attempts.rglob("*") if not (path.is_dir() and any(path.iterdir()))]
    left = [path for path in left if str(path.relative_to(output)).encode() not in named]
    left += [path for path in output.rglob("*") if path.name.endswith(".tmp") or path.parent == output / "work" / "publish"]
    left += [*(output / "work").glob("probe-*"), *(output / "work").glob("deleting-*")]
    left += [path for path in (output / "work").glob("lock.json") if json.loads(path.read_bytes())["holder"]]
    assert not left, f"left behind: {[str(path.relative_to(output)) for path in left]}"
