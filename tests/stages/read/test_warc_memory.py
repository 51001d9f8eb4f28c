"""The memory of reading archives: that of a batch and of the largest record, whatever the size of the file."""

from __future__ import annotations

import gzip
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datapipe.stage import FieldNames, InputFile, Split
from stages.read.warc import Warc
from tests.support.web_archives import file_of, http, packed, read, response, warc_record

pytestmark = [pytest.mark.slow, pytest.mark.needs("fastwarc", "isal", "zstandard", "brotli")]

PAGE_BYTES = 200 << 20


def _read(connection: Connection, file: InputFile, options: dict[str, Any]) -> None:
    """Sends documents, rejected records, and MiB of peak memory beyond that of reading a small file before."""
    read(Warc(), file_of(Path(file.url).parent, packed([response(b"small")]), name="small.warc"))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, num_documents, num_rejected = _memory("VmRSS"), 0, 0
    for batch in Warc(**options).read(Split(file=file), FieldNames(keep=("url",)), pa.OSFile):
        num_documents += len(batch.positions)
        num_rejected += len(batch.rejected)
    connection.send((num_documents, num_rejected, _memory("VmHWM") - before))


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith(name))


def _measured(file: InputFile, **options: Any) -> tuple[int, int, int]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_read, args=(theirs, file, options))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def test_memory_of_a_large_archive_is_that_of_a_batch(tmp_path: Path) -> None:
    part = packed([response(f"<p>page {number}</p>".encode() * 1500, number) for number in range(200)])
    count = (256 << 20) // (200 * 1500 * 14)
    file = file_of(tmp_path, part * count)
    num_documents, num_rejected, peak_mib = _measured(file)
    assert (num_documents, num_rejected) == (200 * count, 0) and peak_mib < 150


@pytest.mark.parametrize("coding", ["", "Content-Encoding: gzip\r\n"])
def test_memory_of_a_large_page_is_bounded_by_the_option(tmp_path: Path, coding: str) -> None:
    page = b"<p>a large page</p>" * (PAGE_BYTES // 19)
    block = http(gzip.compress(page, 1) if coding else page, more=coding)
    records = [response(b"first", 1), warc_record("response", block, 2, "application/http"), response(b"last", 3)]
    file = file_of(tmp_path, b"".join(gzip.compress(part, 1) for part in records))
    del page, block, records
    num_documents, num_rejected, peak_mib = _measured(file)
    assert (num_documents, num_rejected) == (2, 1) and peak_mib < 150
    num_documents, num_rejected, peak_mib = _measured(file, max_record_bytes=256 << 20)
    assert (num_documents, num_rejected) == (3, 0) and peak_mib < 4 * 256
