"""Hashes against published values, and tables that are crowded, wrapped around or empty."""

from __future__ import annotations

import numpy as np
import pytest

from datapipe import rng
from datapipe.kernels.hashing import find_slot, fnv, hash_bytes, hash_of, mix64, num_slots_for, table_of, table_size


@pytest.fixture(autouse=True)
def _uncompiled_kernels_may_wrap():
    with np.errstate(over="ignore"):
        yield


@pytest.mark.parametrize(
    ("text", "expected"), [(b"", 0xCBF29CE484222325), (b"a", 0xAF63DC4C8601EC8C), (b"foobar", 0x85944171F73967E8)]
)
def test_fnv_gives_the_published_values(text: bytes, expected: int) -> None:
    data = np.frombuffer(b"<" + text + b">", np.uint8)
    assert fnv(data, 1, 1 + len(text)) == expected


def test_mix64_of_the_counter_gives_the_published_stream_of_splitmix64() -> None:
    counters = np.arange(1, 4, dtype=np.uint64) * rng.GOLDEN
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [int(mix64(counter)) for counter in counters] == expected
    assert rng.mix64(counters).tolist() == expected


@pytest.mark.parametrize("word", [b"", b"a", "…é中😀".encode(), bytes(range(256))])
def test_hash_of_a_word_equals_what_kernels_compute(word: bytes) -> None:
    data = np.frombuffer(b"<" + word + b">", np.uint8)
    assert hash_bytes(data, 1, 1 + len(word)) == hash_of(word)


@pytest.mark.parametrize("keys", [[], [7], [7, 15, 23, 31], [15, 31, 47, 63, 1], list(range(1, 100))])
def test_table_of_colliding_keys_finds_each_and_no_other(keys: list[int]) -> None:
    table, slots = table_of(keys)
    assert len(table) >= 4 * len(keys)
    assert table[slots].tolist() == keys
    assert [int(find_slot(table, len(table), np.uint64(key))) for key in keys] == slots.tolist()
    assert table[find_slot(table, len(table), np.uint64(1 << 40))] == 0


def test_find_slot_in_the_front_of_a_table_stays_there() -> None:
    table = np.array([11, 0, 0, 3, 99, 99, 99, 99], np.uint64)
    assert find_slot(table, 4, np.uint64(11)) == 0  # 11 belongs to slot 3, which is taken, and the front wraps around
    assert find_slot(table, 4, np.uint64(7)) == 1


@pytest.mark.parametrize("num_keys", [0, 1, 2, 3, 4, 5, 1000])
def test_table_sizes_are_powers_of_two_at_most_half_full(num_keys: int) -> None:
    for num_slots in (num_slots_for(num_keys), int(table_size(num_keys, 1 << 20))):
        assert num_slots.bit_count() == 1
        assert num_slots >= max(2, 2 * num_keys)
    assert num_slots_for(1000, 64) == table_size(1000, 64) == 64
