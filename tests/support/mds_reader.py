"""Reads MDS folders sample by sample, from the description of the format: the oracle of the writer."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash


def read_mds(folder: Path) -> list[dict[str, Any]]:
    """All samples of a split, in order. Sizes and hashes of all files are compared with the index."""
    index = json.loads((folder / "index.json").read_bytes())
    assert index["version"] == 2
    names = {info["basename"] for shard in index["shards"] for info in (shard["zip_data"] or shard["raw_data"],)}
    assert names | {"index.json"} == {path.name for path in folder.iterdir()}
    return [sample for shard in index["shards"] for sample in _samples(folder, shard)]


def _samples(folder: Path, shard: dict[str, Any]) -> list[dict[str, Any]]:
    raw = shard["raw_data"]
    if shard["zip_data"] is None:
        content = (folder / raw["basename"]).read_bytes()
    else:
        stored = (folder / shard["zip_data"]["basename"]).read_bytes()
        _check(shard["zip_data"], stored)
        content = pa.CompressedInputStream(pa.BufferReader(stored), "zstd").read()
    _check(raw, content)
    count = struct.unpack_from("<I", content)[0]
    assert count == shard["samples"] > 0
    offsets = struct.unpack_from(f"<{count + 1}I", content, 4)
    assert offsets[-1] == len(content)
    described = json.loads(content[4 * (count + 2) : offsets[0]])
    assert described == {name: shard[name] for name in described} and described["column_names"] == shard["column_names"]
    return [_sample(shard, content[start:stop]) for start, stop in zip(offsets[:-1], offsets[1:])]


def _check(info: dict[str, Any], content: bytes) -> None:
    assert len(content) == info["bytes"]
    assert xxhash.xxh3_64_hexdigest(content) == info["hashes"]["xxh3_64"]


def _sample(shard: dict[str, Any], data: bytes) -> dict[str, Any]:
    sizes, at = [], 0
    for size in shard["column_sizes"]:
        sizes.append(struct.unpack_from("<I", data, at)[0] if size is None else size)
        at += 4 * (size is None)
    sample = {}
    for name, encoding, size in zip(shard["column_names"], shard["column_encodings"], sizes):
        sample[name] = _decoded(encoding, data[at : at + size])
        at += size
    assert at == len(data)
    return sample


def _decoded(encoding: str, value: bytes) -> Any:
    if encoding == "str":
        return value.decode()
    if encoding == "json":
        return json.loads(value)
    _, dtype, *shape = encoding.split(":")
    if shape:
        return np.frombuffer(value, dtype).reshape(int(shape[0])).tolist()
    assert value[0] == 1 << 2 | 2  # one axis, and its length as uint32
    length = struct.unpack_from("<I", value, 1)[0]
    return np.frombuffer(value[5:], dtype).reshape(length).tolist()
