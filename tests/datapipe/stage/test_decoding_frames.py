"""Where frames end, told by their headers alone."""

from __future__ import annotations

import random

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from datapipe.stage.decoding.frames import FRAMES, Frame, is_skippable

_RANDOM = random.Random(4).randbytes(300_000)
CONTENTS = [b"", b"a", b"ab" * 200, bytes(1_000_000), _RANDOM, _RANDOM[:70_000] + bytes(200_000), b"text " * 60_000]


def _zstd(content: bytes, *, told: bool, checked: bool) -> bytes:
    options = {"write_content_size": told, "write_checksum": checked}
    if told:
        return zstandard.ZstdCompressor(**options).compress(content)
    packer = zstandard.ZstdCompressor(**options).compressobj()
    return (
        packer.compress(content[:1000])
        + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        + packer.compress(content[1000:])
        + packer.flush()
    )


def _lz4(content: bytes, *, told: bool, checked: bool) -> bytes:
    return lz4.frame.compress(
        content, store_size=told, content_checksum=checked, block_checksum=checked, block_linked=told, block_size=4 + 3 * told
    )


PACK = {"zstd": _zstd, "lz4": _lz4}


def _given(frame: Frame, stored: bytes, step: int) -> int:
    """How many bytes are of the frame, given in parts."""
    taken = 0
    for start in range(0, len(stored), step):
        taken += frame.take(memoryview(stored)[start : start + step])
        if frame.is_ended or frame.is_broken:
            break
    return taken


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("compression", PACK)
def test_frame_ends_where_its_library_ends_it(compression: str, checked: bool, told: bool) -> None:
    for content in CONTENTS:
        stored = PACK[compression](content, told=told, checked=checked)
        for behind in (b"", b"\x28\xb5\x2f\xfd", stored):
            for step in (1 << 20, 4096, 7) if len(stored) > 5000 else (1 << 20, 3, 1):
                frame = FRAMES[compression]()
                assert _given(frame, stored + behind, step) == len(stored)
                assert frame.is_ended and not frame.is_broken
                assert frame.content_bytes in ((len(content),) if told else (None,)) or not content
        for size in range(0, len(stored), max(1, len(stored) // 50)):
            frame = FRAMES[compression]()
            assert _given(frame, stored[:size], 1000) == size and not frame.is_ended and not frame.is_broken


@given(stored=st.binary(max_size=60), compression=st.sampled_from([*FRAMES]), step=st.integers(1, 20))
def test_frame_of_any_bytes_takes_no_more_than_there_are(stored: bytes, compression: str, step: int) -> None:
    for beginning in (b"", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"):
        at_once, in_parts = FRAMES[compression](), FRAMES[compression]()
        taken = at_once.take(beginning + stored)
        assert taken == _given(in_parts, beginning + stored, step) <= len(beginning + stored)
        assert (at_once.is_ended, at_once.is_broken) == (in_parts.is_ended, in_parts.is_broken)


def test_skippable_frames_are_known_by_their_magic_numbers() -> None:
    assert is_skippable(b"\x50\x2a\x4d\x18") and is_skippable(b"\x5f\x2a\x4d\x18\0\0\0\0")
    assert not any(map(is_skippable, (b"\x60\x2a\x4d\x18", b"\x4f\x2a\x4d\x18", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"")))
