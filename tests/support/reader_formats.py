"""Files of every format that a reader takes, made of texts, and compressed files of many members."""

import bz2
import csv
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from datapipe.stage import InputFile, Reader
from stages.read.arc import Arc
from stages.read.arrow import Arrow
from stages.read.csv import Csv
from stages.read.jsonl import Jsonl
from stages.read.mds import Mds
from stages.read.parquet import Parquet
from stages.read.text import Text
from stages.read.warc import Warc
from stages.read.webdataset import Webdataset
from stages.read.wet import Wet
from tests.support.reader_results import input_file
from tests.support.web_archives import PACKINGS, arc_record, filedesc, response, warc_record

Texts = Sequence[str]


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _stored_blocks(content: bytes) -> bytes:
    """A gzip member whose content stands in it as it is."""
    return gzip.compress(content, 0, mtime=0)


def _streamed(content: bytes) -> bytes:
    """A frame that does not give the size of its content."""
    packer = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return packer.compress(content) + packer.flush()


def _blocks(content: bytes) -> bytes:
    """An LZ4 frame with checksums of blocks, that does not give the size of its content."""
    return lz4.frame.compress(content, store_size=False, block_checksum=True, content_checksum=True)


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": (".gz", _gzip),
    "gzip, stored blocks": (".gz", _stored_blocks),
    "zstd": (".zst", zstandard.ZstdCompressor(write_checksum=True).compress),
    "zstd, streamed": (".zst", _streamed),
    "lz4": (".lz4", lambda content: lz4.frame.compress(content, content_checksum=True)),
    "lz4, streamed": (".lz4", _blocks),
}
"""Endings of files, and what makes a member, by name."""


def write(folder: Path, packing: str, contents: Sequence[bytes], between: bytes = b"") -> InputFile:
    """A file of members with these contents."""
    ending, pack = PACKERS[packing]
    return input_file(folder / f"a.jsonl{ending}", between.join(map(pack, contents)))


def line_positions(packing: str, contents: Sequence[bytes]) -> list[int]:
    """Where lines begin that are not empty, by members and bytes, one at a time."""
    pack = PACKERS[packing][1]
    offsets = accumulate((len(pack(content)) for content in contents), initial=0)
    places = [(offset << 24) + byte for offset, content in zip(offsets, contents) for byte in range(len(content))]
    text = b"".join(contents)
    begins = [0, *(byte + 1 for byte in range(len(text)) if text[byte : byte + 1] == b"\n")]
    return [places[begin] for begin, end in pairwise([*begins, len(text) + 1]) if text[begin : end - 1].strip()]


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
"""What Git leaves in the place of a file whose content it did not fetch."""


@dataclass(frozen=True)
class Format:
    """Files of a format, as one program writes them.

    Attributes:
        ending: of the names of files.
        write: the content of a file of these texts.
        borders: where a file may be cut: at any byte, between the units that planning finds, or not at all.
        slack: a file that ends at most so many bytes before the end of a document is whole; None where every file that is cut
            short is known to be.
        has_checksums: whether content that is changed is known to be.
        hides_damage: whether a text may be cut short in silence where the file ends, or be joined with the next one.
        empty_bytes: a file of exactly so many bytes holds nothing; -1 for none.
        is_one_document: whether all texts of a file are one document.
        limit: the option for the size of a document.
    """

    reader: Callable[..., Reader]
    ending: str
    write: Callable[[Texts], bytes]
    borders: Literal["bytes", "units", "none"] = "none"
    slack: int | None = None
    has_checksums: bool = False
    hides_damage: bool = False
    empty_bytes: int = -1
    is_one_document: bool = False
    limit: str | None = None

    def file(self, folder: Path, content: bytes) -> InputFile:
        """The file as planning sees it."""
        return input_file(folder / f"a{self.ending}", content, reader=self.reader())

    def texts(self, texts: Texts) -> list[str]:
        """The texts of the documents of a file."""
        return ["".join(texts)] if self.is_one_document else list(texts)


def jsonl(texts: Texts) -> list[bytes]:
    """A line of each text, in ASCII and in UTF-8 by turns."""
    lines = [json.dumps({"text": text, "url": "u"}, ensure_ascii=bool(number % 2)) for number, text in enumerate(texts)]
    return [line.encode() + b"\n" for line in lines]


def json_array(texts: Texts) -> bytes:
    return json.dumps([{"text": text} for text in texts], indent=1).encode()


def delimited(texts: Texts, delimiter: str, has_quotes: bool = True) -> bytes:
    """Rows of two columns, all values in quotes or none."""
    written = io.StringIO(newline="")
    quoting: Any = {"quoting": csv.QUOTE_ALL} if has_quotes else {"quoting": csv.QUOTE_NONE, "quotechar": None}
    writer = csv.writer(written, delimiter=delimiter, lineterminator="\n", **quoting)
    writer.writerows([("text", "url"), *((text, "u") for text in texts)])
    return written.getvalue().encode()


def parquet(texts: Texts, **options: Any) -> bytes:
    out = io.BytesIO()
    table = pa.table({"text": pa.array(texts, pa.string()), "url": ["u"] * len(texts)})
    pq.write_table(table, out, row_group_size=2, write_page_checksum=True, **options)
    return out.getvalue()


def arrow(texts: Texts, make_writer: Callable[..., Any], compression: str | None = None) -> bytes:
    """A record batch of each text."""
    out = io.BytesIO()
    table = pa.table({"text": pa.array(texts, pa.string()), "url": ["u"] * len(texts)})
    with make_writer(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=1)
    return out.getvalue()


_MDS_TYPES = {"int": np.int64, "int32": np.int32, "uint8": np.uint8, "float32": np.float32, "float64": np.float64}


def _mds_value(encoding: str, value: Any) -> bytes:
    if encoding in _MDS_TYPES:
        return _MDS_TYPES[encoding](value).tobytes()
    return value if isinstance(value, bytes) else json.dumps(value).encode() if encoding == "json" else str(value).encode()


def mds(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A shard by the published layout."""
    names = sorted(columns)
    encodings = [columns[name] for name in names]
    sizes = [np.dtype(_MDS_TYPES[kind]).itemsize if kind in _MDS_TYPES else None for kind in encodings]
    config = {"version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": None}
    config |= {"column_names": names, "column_encodings": encodings, "column_sizes": sizes}
    described = json.dumps(config, sort_keys=True).encode()
    samples = []
    for row in rows:
        values = [_mds_value(columns[name], row[name]) for name in names]
        lengths = [len(value) for value, kind in zip(values, encodings) if kind not in _MDS_TYPES]
        samples.append(np.array(lengths, "<u4").tobytes() + b"".join(values))
    offsets = np.cumsum([4 + 4 * (len(samples) + 1) + len(described), *map(len, samples)]).astype("<u4")
    return np.uint32(len(samples)).tobytes() + offsets.tobytes() + described + b"".join(samples)


def _mds_of(texts: Texts) -> bytes:
    return mds({"text": "str", "url": "json"}, [{"text": text, "url": "u"} for text in texts])


def tar(members: Iterable[tuple[str, str | bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for name, content in members:
            add_member(archive, name, content)
    return out.getvalue()


def add_member(archive: tarfile.TarFile, name: str, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def _tar_of(texts: Texts) -> bytes:
    """Members, and one block of zeros."""
    content = tar((f"{number}.txt", text) for number, text in enumerate(texts)).rstrip(b"\0")
    return content + bytes(-len(content) % 512 + 512)


def wet(texts: Texts) -> list[bytes]:
    """The description of a file, and a record of each text."""
    pages = [warc_record("conversion", text.encode(), number) for number, text in enumerate(texts)]
    return [warc_record("warcinfo", b"software: ours\r\n"), *pages]


def warc(texts: Texts) -> list[bytes]:
    return [warc_record("warcinfo", b"ours"), *(response(text.encode(), number) for number, text in enumerate(texts))]


def arc(texts: Texts) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
    return [filedesc(), *(arc_record(head + text.encode(), number) for number, text in enumerate(texts))]


def _of_lines(texts: Texts) -> bytes:
    return b"".join(jsonl(texts))


def _in_members(packing: str) -> Format:
    """JSON lines, a member a line."""
    ending, pack = PACKERS[packing]
    options: Any = {"borders": "bytes", "slack": 0, "has_checksums": True, "limit": "max_line_bytes"}
    return Format(Jsonl, f".jsonl{ending}", lambda texts: b"".join(map(pack, jsonl(texts))) or pack(b""), **options)


def _packed(ending: str, pack: Callable[[bytes], bytes]) -> Format:
    """JSON lines in one piece."""
    return Format(Jsonl, f".jsonl{ending}", lambda texts: pack(_of_lines(texts)), has_checksums=True, limit="max_line_bytes")


def _archive(reader: Callable[..., Reader], ending: str, records: Callable[[Texts], list[bytes]], packing: str) -> Format:
    compression, pack = PACKINGS[packing]
    is_plain = packing == "plain"
    return Format(
        reader,
        f"{ending}{compression}",
        lambda texts: pack(records(texts)),
        borders="none" if is_plain and reader is Arc else "bytes",
        slack=None if "one" in packing else 4 if is_plain else 0,
        has_checksums="gzip" in packing,
        empty_bytes=0 if is_plain else len(pack([])) or -1,
        limit="max_record_bytes",
    )


_CHECKED = zstandard.ZstdCompressor(write_checksum=True).compress
_ROW: Any = {"limit": "max_row_bytes"}
_BATCH: Any = {"borders": "units", "limit": "max_batch_bytes"}
_ARC_PACKINGS = ("plain", "gzip, a member a record", "gzip, one member", "zstd, a frame a record", "lz4")

FORMATS: dict[str, Format] = {
    "jsonl": Format(Jsonl, ".jsonl", _of_lines, borders="bytes", slack=1, limit="max_line_bytes"),
    **{f"jsonl, {packing}": _packed(*PACKERS[packing]) for packing in ("gzip", "zstd", "lz4")},
    "jsonl, bzip2": _packed(".bz2", bz2.compress),
    "jsonl, xz": _packed(".xz", lzma.compress),
    **{f"jsonl, {packing}, a member a line": _in_members(packing) for packing in PACKERS},
    "json": Format(Jsonl, ".json", json_array, empty_bytes=0),
    "csv": Format(Csv, ".csv", lambda texts: delimited(texts, ","), hides_damage=True, **_ROW),
    "tsv, gzip": Format(Csv, ".tsv.gz", lambda texts: gzip.compress(delimited(texts, "\t")), has_checksums=True, **_ROW),
    "tsv without quotes": Format(
        partial(Csv, quote="none"),
        ".tsv",
        lambda texts: delimited(texts, "\t", has_quotes=False),
        borders="bytes",
        hides_damage=True,
        **_ROW,
    ),
    "text": Format(Text, ".txt", lambda texts: "".join(texts).encode(), hides_damage=True, is_one_document=True),
    "text, zstd": Format(
        Text, ".txt.zst", lambda texts: _CHECKED("".join(texts).encode()), has_checksums=True, is_one_document=True
    ),
    "parquet": Format(Parquet, ".parquet", parquet, borders="units"),
    "parquet, zstd": Format(Parquet, ".parquet", lambda texts: parquet(texts, compression="zstd"), borders="units"),
    "arrow": Format(Arrow, ".arrow", lambda texts: arrow(texts, pa.ipc.new_file), **_BATCH),
    "arrow, stream of lz4": Format(Arrow, ".arrow", lambda texts: arrow(texts, pa.ipc.new_stream, "lz4"), **_BATCH),
    "mds": Format(Mds, ".mds", _mds_of, limit="max_sample_bytes"),
    "mds, zstd": Format(Mds, ".mds.zstd", lambda texts: zstandard.compress(_mds_of(texts)), limit="max_sample_bytes"),
    "tar": Format(Webdataset, ".tar", _tar_of, limit="max_member_bytes"),
    "tar, gzip": Format(Webdataset, ".tar.gz", lambda texts: gzip.compress(_tar_of(texts)), limit="max_member_bytes"),
    **{f"wet, {packing}": _archive(Wet, ".warc.wet", wet, packing) for packing in PACKINGS},
    **{f"warc, {packing}": _archive(Warc, ".warc", warc, packing) for packing in PACKINGS},
    **{f"arc, {packing}": _archive(Arc, ".arc", arc, packing) for packing in _ARC_PACKINGS},
}
