"""Two outputs side by side: what only one keeps, with the reason of the other, against the documents themselves."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from datapipe.inspect import comparison
from datapipe.inspect.comparison import NOT_READ, membership, rule_changes
from datapipe.inspect.documents import Inspector
from datapipe.report.summary import write_report
from datapipe.storage import Root
from tests.support import runs
from tests.support.command_line import datapipe

pytestmark = pytest.mark.medium

TAIL = """
tokenizer: none
max_quarantined: 50%
execution: {split_bytes: 8KiB, bucket_bytes: 16KiB}
"""


def _write(folder: Path) -> list[int]:
    rng = random.Random(3)
    lengths = [rng.randrange(10, 400) for _ in range(300)]
    (folder / "web").mkdir()
    (folder / "more").mkdir()
    lines = [json.dumps({"text": "y" * length}) for length in lengths] + ["no JSON"]
    (folder / "web/a.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "web/b.jsonl").write_text(json.dumps({"text": "z" * 300}) + "\n")
    return lengths


def _run(folder: Path, name: str, min_chars: int, pattern: str = "*.jsonl", extra: str = "") -> Inspector:
    stages = f"stages:\n  - filter.length: {{min_chars: {min_chars}}}\n{extra}"
    source = f"  web: {{path: {folder}/web/{pattern}}}\n"
    path = runs.write_mixture(folder, source, stages, TAIL, f"{name}.yaml")
    run = runs.run_mixture(path, output=folder / name, make_engine=runs.InProcess)
    write_report(Root(str(folder / name)), run.report)
    return Inspector.open(str(folder / name))


@pytest.mark.parametrize("bucket_rows", [1 << 21, 40])
def test_documents_of_one_output_alone_have_the_reason_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket_rows: int
) -> None:
    monkeypatch.setattr(comparison, "BUCKET_ROWS", bucket_rows)
    lengths = _write(tmp_path)
    loose = _run(tmp_path, "loose", 50)
    strict = _run(tmp_path, "strict", 200, "a.jsonl", "  - dedup.exact\n")

    found = membership(loose, strict)

    lost = Counter({NOT_READ: 1, "filter.length:too_few_chars": sum(50 <= length < 200 for length in lengths)})
    kept = [length for length in lengths if length >= 200]
    lost["dedup.exact:duplicate"] = len(kept) - len(set(kept))
    assert found.only[0].reasons == dict(lost.most_common())
    assert found.only[0].documents == lost.total()
    assert (found.both, found.only[1].documents) == (len(set(kept)), 0)
    assert [name.startswith("web/b.jsonl:") for name in found.only[0].sample[NOT_READ]] == [True]
    assert membership(strict, loose).only == (found.only[1], found.only[0])


def test_comparison_with_a_run_that_failed_says_so(tmp_path: Path) -> None:
    _write(tmp_path)
    for name in ("one", "other"):
        _run(tmp_path, name, 100)
    outputs = [str(tmp_path / name) for name in ("one", "other")]
    assert "failed" not in datapipe(["report", *outputs]).stdout
    report = tmp_path / "other/report.json"
    failed = json.loads(report.read_text()) | {"status": "failed", "problem": "s3://KEY:SECRET@bucket/a: the disk is full"}
    report.write_text(json.dumps(failed))
    told = datapipe(["report", *outputs]).stdout
    said = "B failed, so its numbers count what it has committed: s3://***@bucket/a: the disk is full"
    assert said in " ".join(told.split())
    as_json = json.loads(datapipe(["report", *outputs, "--json"]).stdout)["comparison"]
    assert as_json["runs"][0] == {"status": "done", "problem": None}
    assert as_json["runs"][1] == {"status": "failed", "problem": "s3://***@bucket/a: the disk is full"}


def test_the_rule_that_moved_most_comes_first() -> None:
    def rule(threshold: float, passed: int, failed: int) -> dict:
        bins = [[0.0, 1.0, 0, failed], [1.0, 2.0, passed, 0]]
        return {"threshold": threshold, "passed": passed, "failed": failed, "bins": [each for each in bins if any(each[2:])]}

    first = {"measured": {"web": {"f": {"a": rule(1, 9, 1), "b": rule(1, 9, 1), "c": rule(1, 5, 5)}}}}
    second = {"measured": {"web": {"f": {"a": rule(1, 9, 1), "b": rule(1, 6, 4), "d": rule(1, 1, 9)}}}}

    changes = rule_changes(first, second)

    assert [change.rule for change in changes] == ["d", "c", "b"]
    assert changes[0].failed == (None, 0.9)
    assert changes[2].failed == (0.1, 0.4)
    assert changes[2].medians == (1 + 4 / 9, 1 + 1 / 6)
    assert rule_changes(first, {}) and not rule_changes({}, {})
