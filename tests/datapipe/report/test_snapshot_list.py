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


@pytest.mark.parametrize("mixture", ["{", "[1]", "sources: 3", "sources: {web: 3}"])
def test_list_of_snapshots_without_a_mixture_that_can_be_read_has_its_other_changes(tmp_path: Path, mixture: str) -> None:
    root, stream = _of_two_snapshots(tmp_path), io.StringIO()
    every = publications(root)
    (tmp_path / "out" / "snapshots" / every[0].fingerprint / "mixture.yaml").write_text(mixture)
    print_snapshots(root, every, Console(file=stream, width=80))
    assert stream.getvalue().splitlines()[-1] == "  files of web: 1 added"


@pytest.mark.parametrize("width", [60, 80])
def test_list_of_snapshots_names_stages_that_changed_and_fits_the_width(tmp_path: Path, width: int) -> None:
    root, stream = _of_two_snapshots(tmp_path), io.StringIO()
    every = publications(root)
    print_snapshots(root, every, Console(file=stream, width=width))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert [line[:12] for line in lines if not line.startswith(" ")] == [each.fingerprint[:12] for each in every]
    assert [line for line in lines if line.startswith("  ") and "its own" not in line] == [
        "  the first there is",
        "  added normalize.unicode",
        "  left out dedup.exact",
        "  filter.length.max_chars none → 90000",
        "  files of web: 1 added",
    ]


def test_list_of_snapshots_after_going_back_tells_what_happened(tmp_path: Path) -> None:
    root, stream = _of_two_snapshots(tmp_path), io.StringIO()
    first, second = (each.fingerprint for each in publications(root))
    (tmp_path / "web" / "b.jsonl").unlink()
    file = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web/*.jsonl}}\n", _FIRST, "tokenizer: none\n")
    assert runs.run_mixture(file, make_engine=runs.InProcess).snapshot.fingerprint == first
    print_snapshots(root, publications(root), Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    assert [line[:12] for line in lines if not line.startswith(" ")] == [name[:12] for name in (first, second, first)]
    told = [line for line in lines if line.startswith("  ") and "its own" not in line]
    assert told[0] == "  the first there is"
    assert told[1:4] == ["  added normalize.unicode", "  left out dedup.exact", "  filter.length.max_chars none → 90000"]
    assert told[5:8] == ["  added dedup.exact", "  left out normalize.unicode", "  filter.length.max_chars 90000 → none"]
    assert told[8:] == ["  files of web: 1 removed"]
    [again] = [line for line in lines if "published again" in line]
    assert again.startswith(first[:12])
