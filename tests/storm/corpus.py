"""The corpus of the storm, its mixture, and what an undisturbed run makes of it.

Two sources, 60 pages, all four stages of deduplication with components in rounds, a trained tokenizer, packed rows: 57 tasks of
all kinds but one (`tests/support/dedup_runs.py`). A run takes about 2 s in one process.
"""

from __future__ import annotations

import hashlib
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
