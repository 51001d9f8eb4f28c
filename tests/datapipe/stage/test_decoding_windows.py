"""Zstandard files with windows of more than 128 MiB, through the readers that take the option."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from datapipe.stage import FieldNames, Reader, Split
from datapipe.stage.decoding import MOST_WINDOW_BYTES, has_members
from datapipe.stage.decoding.frames import ZstdFrame
from datapipe.storage import open_input
from stages.read.csv import Csv
from stages.read.jsonl import Jsonl
from stages.read.text import Text
from tests.support.reader_results import input_file, read_file

_LARGE = 256 << 20
_LINES = b"".join(b'{"text": "%d"}\n' % number for number in range(2000))
_READERS: list[tuple[Callable[..., Reader], str, bytes]] = [
    (Jsonl, "a.jsonl", _LINES),
    (Jsonl, "a.json", json.dumps([{"text": str(number)} for number in range(2000)]).encode()),
    (Csv, "a.csv", b"text\n" + b"".join(b"%d\n" % number for number in range(2000))),
    (Text, "a.txt", _LINES),
]


def _frame(content: bytes, window_log: int = 28) -> bytes:
    """A frame that does not tell its size, so that its window is the one that is asked for."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=window_log,
        enable_ldm=window_log > 27,
        write_checksum=True,
        write_content_size=False,
        chain_log=10,
        hash_log=10,
    )
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(content) + packer.flush()


@pytest.mark.parametrize("window_log", [10, 20, 27, 28, 31])
def test_frame_tells_its_window(window_log: int) -> None:
    frame = ZstdFrame()
    frame.take(_frame(b"content", window_log)[:18])
    assert frame.window_bytes == 1 << window_log


@pytest.mark.parametrize(("reader", "name", "content"), _READERS)
def test_large_window_is_refused_with_the_option_and_read_by_it(
    tmp_path: Path, reader: Callable[..., Reader], name: str, content: bytes
) -> None:
    file = input_file(tmp_path / f"{name}.zst", _frame(content))
    refused = read_file(reader(), file)
    assert refused.documents == []
    assert [f"Set max_window_bytes: {_LARGE} among the options" in error for _, error in refused.rejected] == [True]
    allowed = read_file(reader(max_window_bytes=_LARGE), file)
    plain = read_file(reader(), input_file(tmp_path / name, content))
    assert (allowed.documents, allowed.rejected) == (plain.documents, [])


def test_frames_of_all_windows_in_a_row_are_read(tmp_path: Path) -> None:
    cuts = [0, 1000, 9000, 20_000, len(_LINES)]
    frames = [_frame(_LINES[start:stop], log) for start, stop, log in zip(cuts, cuts[1:], (28, 20, 29, 12))]
    file = input_file(tmp_path / "a.jsonl.zst", b"".join(frames))
    found = read_file(Jsonl(max_window_bytes=1 << 29), file)
    assert (len(found.texts), found.rejected) == (2000, [])
    assert not has_members(input_file(tmp_path / "b.jsonl.zst", frames[0] + frames[2]), open_input)


def test_large_window_that_is_damaged_or_cut_off_keeps_what_is_before(tmp_path: Path) -> None:
    stored = _frame(_LINES * 30)
    for content in (stored[:-40], stored[:-1] + bytes([stored[-1] ^ 1])):
        file = input_file(tmp_path / "a.jsonl.zst", content)
        batches = list(Jsonl(max_window_bytes=_LARGE).read(Split(file=file), FieldNames(), open_input))
        assert [reject.is_file_damage for batch in batches for reject in batch.rejected] == [True]
    assert sum(len(batch.positions) for batch in batches) == 60_000


def test_window_beyond_the_option_is_refused() -> None:
    assert MOST_WINDOW_BYTES == 128 << 20
    with pytest.raises(ValueError):
        Jsonl(max_window_bytes=(1 << 31) + 1)
