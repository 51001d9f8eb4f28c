"""Addresses of the samples of many sources equal those of one sample at a time, whatever is laid out before."""

from __future__ import annotations

import copy
import gc
import threading

import numpy as np
import pytest

from datapipe.kernels.tokens.permute import permute
from datapipe.loader.order import address_finder
from datapipe.loader.order.address_finder import AddressFinder
from datapipe.loader.order.source_order import SourceOrder
from datapipe.rng import seed_for

SIZES = ([7, 30, 12], [70_000], [1], [40_000, 90_000], [300])
STARTS = np.cumsum([0, *(sum(sizes) for sizes in SIZES)])


def make_order(name: str, sizes: list[int], window: int) -> SourceOrder:
    return SourceOrder(5, ("loader", "train", name), np.array(sizes), np.full(len(sizes), -1), None, window)


def make_finder(window: int = 0) -> AddressFinder:
    return AddressFinder([make_order(f"s{number}", sizes, window) for number, sizes in enumerate(SIZES)], STARTS)


def draw(num_samples: int, num_epochs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Samples of any source and epoch, in any order."""
    generator = np.random.default_rng(seed)
    sources = generator.integers(0, len(SIZES), num_samples)
    return sources, generator.integers(0, num_epochs * np.diff(STARTS)[sources])


def naive(source: int, ordinal: int) -> int:
    """The address, where all shards of a source are one window."""
    size = sum(SIZES[source])
    epoch, index = divmod(ordinal, size)
    key = seed_for(5, "loader", "train", f"s{source}", epoch)
    return int(STARTS[source]) + int(permute(key, size, np.array([index]))[0])


def test_addresses_of_any_sources_and_epochs_are_those_of_single_samples() -> None:
    sources, ordinals = draw(300, num_epochs=6)
    expected = [naive(source, ordinal) for source, ordinal in zip(sources.tolist(), ordinals.tolist())]
    assert make_finder().find(sources, ordinals).tolist() == expected


@pytest.mark.parametrize("most_bytes", [address_finder.MOST_BYTES, 1])
@pytest.mark.parametrize("window", [0, 1, 2])
@pytest.mark.parametrize("attempt", [0, 2])
def test_addresses_do_not_depend_on_the_samples_before(
    window: int, attempt: int, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, ordinals = draw(400, num_epochs=3)
    expected = make_finder(window).find(sources, ordinals, attempt)
    monkeypatch.setattr(address_finder, "MOST_BYTES", most_bytes)
    finder = make_finder(window)
    for first in (300, 0, 100, 200, 400):
        part = slice(first, first + 100)
        assert finder.find(sources[part], ordinals[part], attempt).tolist() == expected[part].tolist()


def test_several_threads_may_find_at_once() -> None:
    parts = [draw(200, num_epochs=4, seed=seed) for seed in range(8)]
    expected = [make_finder(1).find(*part).tolist() for part in parts]
    finder, wrong = make_finder(1), list[int]()

    def find(number: int) -> None:
        wrong.extend(number for _ in range(5) if finder.find(*parts[number]).tolist() != expected[number])

    threads = [threading.Thread(target=find, args=(number,)) for number in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_copy_reads_no_memory_of_the_original() -> None:
    sizes = [5, 60, 7, 80, 9, 10]
    sources, ordinals = np.zeros(sum(sizes), np.int64), np.arange(sum(sizes))
    original = AddressFinder([make_order("web", sizes, window=3)], np.array([0, sum(sizes)]))
    expected = original.find(sources, ordinals)
    copied = copy.deepcopy(original)
    del original
    gc.collect()
    overwritten = [np.full(num_items, -7) for num_items in range(1, 9) for _ in range(200)]  # the sizes of a window's entries
    assert copied.find(sources, ordinals).tolist() == expected.tolist()
    assert len(overwritten) == 1600
