"""Megatron's files: the bytes of Megatron's own writer, read by Megatron's own reader where it is installed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import DatapipeError
from datapipe.shards.megatron import MegatronWriter
from datapipe.storage import Root
from tests.support.megatron_reader import read_pair

UINT16, UINT32 = pa.uint16(), pa.uint32()
GOLDEN_INDEX = (
    "4d4d494449445800000100000000000000 08 0300000000000000 0400000000000000 04000000 00000000 02000000"
    "0000000000000000 0800000000000000 0800000000000000"
    "0000000000000000 0100000000000000 0200000000000000 0300000000000000"
)


def write(folder, sequences, id_type=UINT16, target_bytes=None, batches=1):
    """Writes sequences in about `batches` calls."""
    writer = MegatronWriter(Root(str(folder)), "web/train", id_type, target_bytes)
    size = max(1, -(-len(sequences) // batches))
    for start in range(0, len(sequences), size):
        part = sequences[start : start + size]
        flat = np.array([token for one in part for token in one], id_type.to_pandas_dtype())
        writer.append(flat, np.array([len(one) for one in part], np.int64))
    return writer.finish()


@pytest.mark.parametrize(
    ("id_type", "last", "bin_sha", "idx_sha"),
    [(UINT16, 65499, "51555f986c35d8b1", "95d6733bdd723f17"), (UINT32, 128000, "0687501b8de05df4", "8907bbd237a6aac7")],
)
def test_golden_bytes_are_those_of_megatrons_writer(tmp_path, id_type, last, bin_sha, idx_sha):
    """The digests are of files that Megatron's own IndexedDatasetBuilder wrote from the same documents."""
    (pair,) = write(tmp_path, [[1, 2, 3, 50256], [], [7, last]], id_type, batches=2)
    content, index = ((tmp_path / f"{pair.prefix}.{ending}").read_bytes() for ending in ("bin", "idx"))
    assert hashlib.sha256(content).hexdigest().startswith(bin_sha)
    assert hashlib.sha256(index).hexdigest().startswith(idx_sha)
    if id_type == UINT16:
        assert content.hex() == "01000200030050c40700dbff"
        assert index == bytes.fromhex(GOLDEN_INDEX)


@given(
    sequences=st.lists(st.lists(st.integers(0, 65_499), max_size=9), max_size=30),
    wide=st.booleans(),
    target_bytes=st.none() | st.integers(1, 60),
    batches=st.integers(1, 5),
)
@pytest.mark.medium
@settings(deadline=None, max_examples=60)
def test_write_any_sequences_come_back_within_the_size_asked(tmp_path_factory, sequences, wide, target_bytes, batches):
    folder = tmp_path_factory.mktemp("pairs")
    pairs = write(folder, sequences, UINT32 if wide else UINT16, target_bytes, batches)
    found = []
    for pair in pairs:
        part, borders, dtype = read_pair(folder / pair.prefix)
        assert borders == list(range(len(part) + 1))
        assert dtype == ("int32" if wide else "uint16")
        assert (pair.sequences, pair.tokens) == (len(part), sum(map(len, part)))
        assert target_bytes is None or len(part) == 1 or sum(one.nbytes for one in part) <= target_bytes
        found += part
    assert [one.tolist() for one in found] == sequences
    if target_bytes is None:
        assert [pair.prefix for pair in pairs] == ["web/train"] * bool(sequences)
    else:
        assert [pair.prefix for pair in pairs] == [f"web/train-{number:05d}" for number in range(len(pairs))]


def test_write_sequence_above_the_formats_limit_is_refused(tmp_path):
    writer = MegatronWriter(Root(str(tmp_path)), "web/train", UINT16)
    with pytest.raises(DatapipeError, match="at most 2147483647"):
        writer.append(np.zeros(0, np.uint16), np.array([1 << 31]))


def test_write_that_is_aborted_leaves_no_index(tmp_path):
    writer = MegatronWriter(Root(str(tmp_path)), "web/train", UINT16)
    writer.append(np.arange(3, dtype=np.uint16), np.array([3]))
    writer.abort()
    assert [path.name for path in (tmp_path / "web").iterdir()] == ["train.bin"]


READER = """
import json, sys, warnings
warnings.simplefilter("ignore")
from megatron.core.datasets.indexed_dataset import IndexedDataset
found = IndexedDataset(sys.argv[1])
print(json.dumps([found[number].tolist() for number in range(len(found))]), found.document_indices.tolist(), found.index.dtype)
"""


@pytest.mark.slow
@pytest.mark.parametrize("id_type", [UINT16, UINT32], ids=str)
def test_written_pair_is_read_by_megatron_core(tmp_path, id_type):
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("torch") is None:
        pytest.skip("megatron-core is not installed: pip install --no-deps megatron-core, beside torch")
    sequences = [list(range(start, 3 * start + 1)) for start in range(40)]
    write(tmp_path, sequences, id_type, batches=3)
    command = [sys.executable, "-c", READER, str(tmp_path / "web/train")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    found, _, rest = done.stdout.strip().splitlines()[-1].partition("]] ")
    assert json.loads(found + "]]") == sequences
    assert rest.startswith(str(list(range(41))))
    assert ("uint16" if id_type == UINT16 else "int32") in rest
