"""Token rows that are merged before they are packed: how often a row is read, and which files a task names."""

from collections import Counter
from pathlib import Path

import pytest

from datapipe.exchange import files
from datapipe.exchange.ranges import HASH_SPACE
from datapipe.records.outputs import ExchangeFile
from datapipe.steps.merge import by_range, hash_ranges, overlapping
from datapipe.steps.pack import PackTask
from tests.support import corpora, runs

_MIXTURE = """
tokenizer: {train: {vocab_size: 300, sample_bytes: 16KiB}}
pack: {sequence_length: 64}
shards: {target_bytes: 16KiB}
execution: {bucket_bytes: 32KiB, check_disk: false}
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_files", [8, 20, 60])
def test_every_row_is_read_three_times_at_most_whatever_the_number_of_files(tmp_path: Path, monkeypatch, num_files: int):
    """Without a merge, tasks on 60 files would read each of its blocks many times over."""
    monkeypatch.setattr("datapipe.steps.runs.MOST_RUNS", 8)
    monkeypatch.setattr(files, "BLOCK_BYTES", 1_000)
    for number in range(num_files):
        corpora.write_jsonl(tmp_path / f"web/{number:02}.jsonl", corpora.documents(1, 12))
    decoded, read = files._decoded, Counter[str]()

    def counting(content, output, *others):
        read[output.path.split("/")[2]] += len(content)
        return decoded(content, output, *others)

    monkeypatch.setattr(files, "_decoded", counting)
    mixture = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web/*.jsonl}}\n", "stages: []", _MIXTURE)
    size = max(file.stat().st_size for file in (tmp_path / "web").iterdir())
    done = runs.run_mixture(mixture, overrides=[f"execution.split_bytes={size}"], make_engine=runs.InProcess)
    (tokenized,) = done.plan.of_kind("tokenize")
    assert len(tokenized.records) == num_files
    merges = done.plan.of_kind("merge")
    assert len(merges) <= 2
    assert bool(merges) == (num_files > 8)
    stored = sum(file.bytes for file in tokenized.outputs("train", ExchangeFile))
    token_bytes = sum(num_bytes for step, num_bytes in read.items() if "tokenize" in step or "merge" in step)
    assert token_bytes <= (len(merges) + 1) * 1.5 * stored  # at most a block too much of every run
    packed = [task for task in done.plan.of_kind("pack")[0].tasks or () if isinstance(task, PackTask)]
    assert len(packed) > num_files // 8
    assert max(len(task.files) for task in packed) <= 16


def _file(name: str, first: int, last: int) -> ExchangeFile:
    return ExchangeFile(path=name, rows=1, bytes=1, row_bytes=100, checksum=name, first=first, last=last, runs=1)


def test_a_range_names_the_files_that_may_have_rows_in_it_and_ranges_share_them():
    whole, low, high = _file("b", 0, HASH_SPACE - 1), _file("a", 5, 9), _file("c", HASH_SPACE // 2, HASH_SPACE - 7)
    ranges = hash_ranges(800, 100)
    found = [of_range["rows"] for of_range in overlapping({"rows": (high, whole, low)}, ranges)]
    assert found == [(low, whole)] + [(whole,)] * 3 + [(whole, high)] * 4
    assert found[1] is found[2] is found[3]
    assert found[4] is found[7]


def test_a_range_without_files_has_no_task_and_one_range_has_them_all():
    low, high = _file("a", 0, 9), _file("b", HASH_SPACE - 7, HASH_SPACE - 1)
    assert [fields["tables"] for fields in by_range({"rows": (low, high)}, 50)] == [{"rows": (low,)}, {"rows": (high,)}]
    assert list(by_range({"rows": (low, high)}, None)) == [{"tables": {"rows": (low, high)}, "start": 0, "stop": HASH_SPACE}]
