"""`datapipe snapshots`: a line for each snapshot, and what changed below it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from datapipe.report.snapshot_list import print_snapshots
from datapipe.shards.snapshots import publications
from datapipe.storage import Root
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

_FIRST = "stages:\n  - filter.length: {min_chars: 2}\n  - dedup.exact\n"
_SECOND = "stages:\n  - normalize.unicode\n  - filter.length: {min_chars: 2, max_chars: 90000}\n"


def _of_two_snapshots(tmp_path: Path) -> Root:
    """An output with two snapshots, of other stages and of more files."""
    corpora.write_jsonl(tmp_path / "web" / "a.jsonl", corpora.documents(1, 20))
    for stages in (_FIRST, _SECOND):
        file = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web/*.jsonl}}\n", stages, "tokenizer: none\n")
        runs.run_mixture(file, make_engine=runs.InProcess)
        corpora.write_jsonl(tmp_path / "web" / "b.jsonl", corpora.documents(2, 20))
    return Root(str(tmp_path / "out"))


def test_list_of_snapshots_names_what_changed_also_after_going_back(tmp_path: Path) -> None:
    root = _of_two_snapshots(tmp_path)
    first, second = (each.fingerprint for each in publications(root))
    (tmp_path / "web" / "b.jsonl").unlink()
    file = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web/*.jsonl}}\n", _FIRST, "tokenizer: none\n")
    assert runs.run_mixture(file, make_engine=runs.InProcess).snapshot.fingerprint == first
    lines = _listed(root)
    assert [line[:12] for line in lines if not line.startswith(" ")] == [name[:12] for name in (first, second, first)]
    told = [line.strip() for line in lines if line.startswith("  ") and "its own" not in line]
    assert told[0] == "the first there is"
    changed = [
        "added normalize.unicode",
        "left out dedup.exact",
        "filter.length.max_chars none → 90000",
        "files of web: 1 added",
    ]
    assert told[1:5] == changed
    changed = [
        "added dedup.exact",
        "left out normalize.unicode",
        "filter.length.max_chars 90000 → none",
        "files of web: 1 removed",
    ]
    assert told[5:] == changed
    [again] = [line for line in lines if "published again" in line]
    assert again.startswith(first[:12])
    for mixture in ("{", "[1]", "sources: 3", "sources: {web: 3}"):
        (tmp_path / "out" / "snapshots" / first / "mixture.yaml").write_text(mixture)
        assert "  files of web: 1 added" in _listed(root)


def _listed(root: Root) -> list[str]:
    stream = io.StringIO()
    print_snapshots(root, publications(root), Console(file=stream, width=80))
    return stream.getvalue().splitlines()
