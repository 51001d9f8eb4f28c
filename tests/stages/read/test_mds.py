"""MDS shards: their columns, their index, and shards that are damaged."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard

from datapipe.stage import FieldNames, InputFile, Split
from datapipe.storage import open_input
from stages.read.mds import Mds
from tests.support.reader_results import broken_storage, input_file, read_file, read_splits

_SIZES = {"int": 8, "int32": 4, "uint8": 1, "float32": 4, "float64": 8}
_TYPES = {"int": np.int64, "int32": np.int32, "uint8": np.uint8, "float32": np.float32, "float64": np.float64}


def _stored(encoding: str, value: Any) -> bytes:
    if encoding in _TYPES:
        return _TYPES[encoding](value).tobytes()
    return value if isinstance(value, bytes) else json.dumps(value).encode() if encoding == "json" else str(value).encode()


def _shard(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A shard by the published layout."""
    names = sorted(columns)
    encodings = [columns[name] for name in names]
    config = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": None,
        "column_names": names,
        "column_encodings": encodings,
        "column_sizes": [_SIZES.get(kind) for kind in encodings],
    }
    described = json.dumps(config, sort_keys=True).encode()
    samples = []
    for row in rows:
        values = [_stored(columns[name], row[name]) for name in names]
        sizes = [len(value) for value, kind in zip(values, encodings) if kind not in _SIZES]
        samples.append(np.array(sizes, "<u4").tobytes() + b"".join(values))
    offsets = np.cumsum([4 + 4 * (len(samples) + 1) + len(described), *map(len, samples)]).astype("<u4")
    return np.uint32(len(samples)).tobytes() + offsets.tobytes() + described + b"".join(samples)


def _index(folder: Path, shards: Mapping[str, tuple[bytes, bytes]], **changed: Any) -> None:
    """The index of shards by the names of their files: content, and what is stored."""
    entries = []
    for name, (raw, stored) in shards.items():
        plain = name.removesuffix(".zstd")
        hashes = {"xxh64": xxhash.xxh64(raw).hexdigest(), "sha1": hashlib.sha1(raw).hexdigest()}
        entry = {"samples": int.from_bytes(raw[:4], "little"), "zip_data": None}
        entry["raw_data"] = {"basename": plain, "bytes": len(raw), "hashes": hashes} | changed
        if plain != name:
            entry["zip_data"] = {"basename": name, "bytes": len(stored), "hashes": {}}
        entries.append(entry)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))


def _file(folder: Path, content: bytes, name: str = "shard.00000.mds") -> InputFile:
    return input_file(folder / name, content, reader=Mds())


TEXTS = {"text": "str"}


def test_mds_samples_are_documents_at_their_numbers(tmp_path: Path) -> None:
    columns = {"text": "str", "id": "int", "score": "float32", "n": "uint8", "meta": "json", "raw": "bytes", "big": "str_int"}
    rows = [
        {
            "text": f"text {n} é",
            "id": n - 1,
            "score": n / 2,
            "n": n,
            "meta": {"url": f"u{n}", "x": 1.5},
            "raw": b"r",
            "big": 10**30,
        }
        for n in range(5)
    ]
    keep = ("score", "n", "meta", "meta.url", "meta.none", "big", "none")
    found = read_file(Mds(), _file(tmp_path, _shard(columns, rows)), FieldNames(keep=keep))
    assert found.documents == [(n, f"text {n} é", str(n - 1)) for n in range(5)]
    assert found.rejected == []
    assert found.extra["score"] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert (found.extra["n"], found.extra["big"]) == ([0, 1, 2, 3, 4], [str(10**30)] * 5)
    assert found.extra["meta"][1] == '{"url": "u1", "x": 1.5}'
    assert (found.extra["meta.url"], found.extra["meta.none"]) == ([f"u{n}" for n in range(5)], [None] * 5)
    file = input_file(tmp_path / "shard.00000.mds")
    assert [Mds().read_document(file, n, FieldNames(), open_input) for n in (4, 0, 5)] == ["text 4 é", "text 0 é", None]


def test_mds_texts_of_json_and_of_bytes(tmp_path: Path) -> None:
    found = read_file(Mds(), _file(tmp_path, _shard({"text": "json"}, [{"text": "a"}, {"text": None}, {"text": "é"}])))
    assert (found.texts, found.rejected_places) == (["a", "é"], [1])
    found = read_file(Mds(), _file(tmp_path, _shard({"text": "bytes"}, [{"text": b"a"}, {"text": b"\xff"}])))
    assert (found.texts, found.rejected_places) == (["a"], [1])
    inside = _file(tmp_path, _shard({"c": "json"}, [{"c": {"text": "in"}}]))
    assert read_file(Mds(), inside, FieldNames(text="c.text")).texts == ["in"]


def test_mds_without_a_text_that_can_be_read(tmp_path: Path) -> None:
    found = read_file(Mds(), _file(tmp_path, _shard({"body": "str"}, [{"body": "a"}])))
    assert found.rejected == [(0, "field 'text' is not in the shard; expected a column of strings")]
    found = read_file(Mds(), _file(tmp_path, _shard({"text": "int"}, [{"text": 1}])))
    assert found.rejected == [(0, "field 'text' is int64; expected a column of strings")]
    found = read_file(Mds(), _file(tmp_path, _shard({"text": "pkl"}, [{"text": b"anything"}])))
    assert "column 'text' is encoded as pkl; expected one of bytes, float16" in found.rejected[0][1]


@pytest.mark.parametrize("name", ["shard.00000.mds", "shard.00000.mds.zstd"])
def test_mds_index_is_checked(tmp_path: Path, name: str) -> None:
    raw = _shard(TEXTS, [{"text": f"text {n}"} for n in range(9)])
    stored = zstandard.compress(raw) if name.endswith(".zstd") else raw
    file, texts = _file(tmp_path, stored, name), [f"text {n}" for n in range(9)]
    _index(tmp_path, {name: (raw, stored)})
    found = read_file(Mds(), file)
    assert (found.texts, found.rejected) == (texts, [])
    _index(tmp_path, {name: (raw, stored)}, hashes={"md5": "0" * 32, "unheard_of": "1"})
    found = read_file(Mds(), file)
    assert found.rejected_places == [9]
    assert f"the md5 of the shard is {hashlib.md5(raw).hexdigest()}, index.json says 000" in found.rejected[0][1]
    _index(tmp_path, {name: (raw, stored + b"?")}, bytes=len(raw) + 1)
    assert "and index.json says" in read_file(Mds(), file).rejected[0][1]
    _index(tmp_path, {"shard.00001.mds": (raw, stored)})
    found = read_file(Mds(), file)
    assert (found.documents, found.rejected_places) == ([], [0])
    assert "index.json does not list this shard" in found.rejected[0][1]
    (tmp_path / "index.json").write_text("{")
    assert "index.json beside the shard is damaged" in read_file(Mds(), file).rejected[0][1]


def test_mds_flipped_byte_of_a_text_is_found_by_its_hash(tmp_path: Path) -> None:
    raw = _shard(TEXTS, [{"text": "some text"}])
    file = _file(tmp_path, raw.replace(b"some", b"same"))
    _index(tmp_path, {file.path: (raw, raw)})
    found = read_file(Mds(), file)
    assert "the xxh64 of the shard is" in found.rejected[0][1]


def test_mds_sample_whose_columns_do_not_fill_it_costs_itself(tmp_path: Path) -> None:
    raw = bytearray(_shard(TEXTS, [{"text": "aaaa"}, {"text": "bbbb"}, {"text": "cccc"}]))
    at = raw.index(b"bbbb") - 4
    for size in (3, 5, 0xFFFFFFFF):
        raw[at : at + 4] = np.uint32(size).tobytes()
        found = read_file(Mds(), _file(tmp_path, bytes(raw)))
        assert found.texts == ["aaaa", "cccc"]
        assert found.rejected == [(1, "the columns of the sample do not fill its 8 bytes")]


def test_mds_large_samples_are_rejected_alone(tmp_path: Path) -> None:
    raw = _shard(TEXTS, [{"text": "a"}, {"text": "b" * 100}, {"text": "c"}])
    found = read_file(Mds(max_sample_bytes=50), _file(tmp_path, raw))
    assert [(place, text) for place, text, _ in found.documents] == [(0, "a"), (2, "c")]
    assert found.rejected == [(1, "a sample of 104 bytes, more than max_sample_bytes, 50")]


def test_mds_empty_shards_and_what_is_none(tmp_path: Path) -> None:
    assert read_file(Mds(), _file(tmp_path, _shard(TEXTS, []))).documents == []
    for content in (b"", b"abc", b"no mds at all, only text\n" * 5, b"\xff" * 100):
        found = read_file(Mds(), _file(tmp_path, content))
        assert (found.documents, found.rejected_places) == ([], [0])


@pytest.mark.medium
@pytest.mark.parametrize("ending", ["", ".zstd"])
def test_mds_cut_short_anywhere_keeps_whole_samples_and_is_told(tmp_path: Path, ending: str) -> None:
    raw = _shard(TEXTS, [{"text": f"text {n}"} for n in range(6)])
    stored = zstandard.compress(raw) if ending else raw
    for size in range(len(stored)):
        found = read_file(Mds(), _file(tmp_path, stored[:size], f"a.mds{ending}"))
        assert found.texts == [f"text {n}" for n in range(len(found.texts))]
        assert found.rejected_places == [len(found.texts)]
    assert read_file(Mds(), _file(tmp_path, raw + b"x")).rejected[0][1].startswith("1 bytes follow the last sample")


@pytest.mark.medium
def test_mds_with_flipped_bytes_never_raises(tmp_path: Path) -> None:
    columns = {"text": "str", "id": "int", "meta": "json"}
    rows = [{"text": f"text {n}", "id": n, "meta": {"n": n}} for n in range(20)]
    raw = _shard(columns, rows)
    for seed in range(400):
        rng = random.Random(seed)
        content = bytearray(raw)
        for _ in range(rng.choice([1, 3])):
            content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
        file = _file(tmp_path, bytes(content))
        _index(tmp_path, {file.path: (raw, raw)})
        found = read_file(Mds(), file, FieldNames(keep=("meta", "meta.n")))
        assert found.rejected
        places = [place for place, _, _ in found.documents]
        assert len(places) == len(set(places)) <= 20


def test_mds_what_storage_raises_is_no_fault_of_the_shard(tmp_path: Path) -> None:
    file = _file(tmp_path, _shard(TEXTS, [{"text": "x" * 100}] * 20))
    with pytest.raises(OSError, match="the disk is gone"):
        read_splits(Mds(), [Split(file=file)], opened=broken_storage(fails_at=500))


@pytest.mark.medium
def test_mds_batches_are_bounded(tmp_path: Path) -> None:
    texts = [f"{number}" + "x" * 1_000_000 for number in range(12)]
    found = read_file(Mds(), _file(tmp_path, _shard(TEXTS, [{"text": text} for text in texts])))
    assert found.texts == texts
    assert max(found.batch_sizes) <= 6


_WRITE = """
import sys
from unittest.mock import MagicMock
sys.modules["streaming.vision"] = MagicMock()  # it wants torchvision, and has no part in this
from streaming import MDSWriter
columns = {"text": "str", "id": "int", "score": "float64", "meta": "json"}
hashes, compression = ["sha1", "xxh64"], sys.argv[2] or None
with MDSWriter(out=sys.argv[1], columns=columns, compression=compression, hashes=hashes, size_limit=2000) as out:
    for n in range(100):
        out.write({"text": f"text {n} é", "id": n, "score": n / 2, "meta": {"n": n}})
"""


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["", "zstd", "gz", "bz2"])
def test_mds_of_the_writer_of_mosaicml_streaming_is_read(tmp_path: Path, compression: str) -> None:
    written = subprocess.run(
        [sys.executable, "-c", _WRITE, str(tmp_path / "out"), compression], capture_output=True, text=True, check=False
    )
    if "No module named" in written.stderr:
        pytest.skip("mosaicml-streaming is not installed")
    assert written.returncode == 0, written.stderr
    texts: list[str] = []
    for path in sorted((tmp_path / "out").glob("shard.*")):
        found = read_file(Mds(), input_file(path), FieldNames(keep=("score", "meta.n")))
        assert found.rejected == []
        texts += found.texts
        assert found.extra["score"] == [int(n) / 2 for n in found.extra["meta.n"]]
    assert texts == [f"text {n} é" for n in range(100)]
