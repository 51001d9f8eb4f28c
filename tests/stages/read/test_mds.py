"""MDS shards: their columns, their index, and shards that are damaged."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard

from datapipe.stage import FieldNames, InputFile
from stages.read.mds import Mds
from tests.support.reader_formats import mds
from tests.support.reader_results import input_file, read_file


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
    more = {"raw": b"r", "big": 10**30}
    rows = [
        {"text": f"text {n} é", "id": n - 1, "score": n / 2, "n": n, "meta": {"url": f"u{n}", "x": 1.5}, **more}
        for n in range(5)
    ]
    keep = ("score", "n", "meta", "meta.url", "meta.none", "big", "none")
    found = read_file(Mds(), _file(tmp_path, mds(columns, rows)), FieldNames(keep=keep))
    assert found.documents == [(n, f"text {n} é", str(n - 1)) for n in range(5)]
    assert found.rejected == []
    assert found.extra["score"] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert (found.extra["n"], found.extra["big"]) == ([0, 1, 2, 3, 4], [str(10**30)] * 5)
    assert found.extra["meta"][1] == '{"url": "u1", "x": 1.5}'
    assert (found.extra["meta.url"], found.extra["meta.none"]) == ([f"u{n}" for n in range(5)], [None] * 5)


def test_mds_texts_of_json_and_of_bytes(tmp_path: Path) -> None:
    found = read_file(Mds(), _file(tmp_path, mds({"text": "json"}, [{"text": "a"}, {"text": None}, {"text": "é"}])))
    assert (found.texts, found.rejected_places) == (["a", "é"], [1])
    found = read_file(Mds(), _file(tmp_path, mds({"text": "bytes"}, [{"text": b"a"}, {"text": b"\xff"}])))
    assert (found.texts, found.rejected_places) == (["a"], [1])
    inside = _file(tmp_path, mds({"c": "json"}, [{"c": {"text": "in"}}]))
    assert read_file(Mds(), inside, FieldNames(text="c.text")).texts == ["in"]


@pytest.mark.parametrize(
    ("columns", "row", "error"),
    [
        ({"body": "str"}, {"body": "a"}, "field 'text' is not in the shard"),
        ({"text": "int"}, {"text": 1}, "field 'text' is int64"),
        ({"text": "pkl"}, {"text": b"anything"}, "encoded as pkl"),
    ],
)
def test_mds_without_a_text_that_can_be_read(tmp_path: Path, columns: dict[str, str], row: dict[str, Any], error: str) -> None:
    found = read_file(Mds(), _file(tmp_path, mds(columns, [row])))
    assert (found.documents, found.rejected_places) == ([], [0])
    assert error in found.rejected[0][1]


@pytest.mark.parametrize("name", ["shard.00000.mds", "shard.00000.mds.zstd"])
def test_mds_index_is_checked(tmp_path: Path, name: str) -> None:
    raw = mds(TEXTS, [{"text": f"text {n}"} for n in range(9)])
    stored = zstandard.compress(raw) if name.endswith(".zstd") else raw
    file, texts = _file(tmp_path, stored, name), [f"text {n}" for n in range(9)]
    _index(tmp_path, {name: (raw, stored)})
    found = read_file(Mds(), file)
    assert (found.texts, found.rejected) == (texts, [])
    _index(tmp_path, {name: (raw, stored)}, hashes={"md5": "0" * 32, "unheard_of": "1"})
    found = read_file(Mds(), file)
    assert found.rejected_places == [9]
    assert hashlib.md5(raw).hexdigest() in found.rejected[0][1]
    _index(tmp_path, {name: (raw, stored + b"?")}, bytes=len(raw) + 1)
    assert read_file(Mds(), file).is_damage == [True]
    _index(tmp_path, {"shard.00001.mds": (raw, stored)})
    found = read_file(Mds(), file)
    assert (found.documents, found.rejected_places, found.is_damage) == ([], [0], [True])
    (tmp_path / "index.json").write_text("{")
    assert "index.json" in read_file(Mds(), file).rejected[0][1]


def test_mds_sample_whose_columns_do_not_fill_it_costs_itself(tmp_path: Path) -> None:
    raw = bytearray(mds(TEXTS, [{"text": "aaaa"}, {"text": "bbbb"}, {"text": "cccc"}]))
    at = raw.index(b"bbbb") - 4
    for size in (3, 5, 0xFFFFFFFF):
        raw[at : at + 4] = np.uint32(size).tobytes()
        found = read_file(Mds(), _file(tmp_path, bytes(raw)))
        assert found.texts == ["aaaa", "cccc"]
        assert (found.rejected_places, found.is_damage) == ([1], [False])


def test_mds_shard_that_says_it_has_too_many_samples_is_damage(tmp_path: Path) -> None:
    found = read_file(Mds(), _file(tmp_path, b"\xff" * 100))
    assert (found.documents, found.rejected_places, found.is_damage) == ([], [0], [True])


def test_mds_bytes_behind_the_last_sample_are_damage(tmp_path: Path) -> None:
    found = read_file(Mds(), _file(tmp_path, mds(TEXTS, [{"text": "a"}]) + b"x"))
    assert (found.texts, found.rejected_places, found.is_damage) == (["a"], [1], [True])


@pytest.mark.medium
def test_mds_with_flipped_bytes_never_raises(tmp_path: Path) -> None:
    columns = {"text": "str", "id": "int", "meta": "json"}
    rows = [{"text": f"text {n}", "id": n, "meta": {"n": n}} for n in range(20)]
    raw = mds(columns, rows)
    for seed in range(150):
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
