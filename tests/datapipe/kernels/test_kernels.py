"""What all kernels share: hashes, tables, annotations and signatures, and numbers that are the same on every machine."""

import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, getcontext
from typing import Annotated, NamedTuple, get_origin

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe import rng
from datapipe.kernels import keys
from datapipe.kernels import types as annotations
from datapipe.kernels.compiled import signature_of
from datapipe.kernels.distributions import bin_edges, bins_of
from datapipe.kernels.hashing import (
    find_slot,
    fnv,
    hash_bytes,
    hash_of,
    hash_without_last,
    mix64,
    num_slots_for,
    table_of,
    table_size,
)
from datapipe.kernels.learned.exponential import exp, logistic
from datapipe.kernels.types import Int64s, UInt8s, form_of, input_record, read_only


@given(st.floats(min_value=-(2.0**48), max_value=2.0**48, exclude_min=True, exclude_max=True))
def test_a_number_lies_between_the_edges_of_its_bin(value: float) -> None:
    number = int(bins_of(np.array([value]))[0])

    low, high = bin_edges(number)
    if number > 0:
        assert low <= value < high
    elif number < 0:
        assert low < value <= high
    else:
        assert abs(value) < high


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
    if word:
        with np.errstate(over="ignore"):
            assert hash_without_last(np.uint64(hash_of(word)), word[-1]) == hash_of(word[:-1])


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


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    yield
    keys.version_key.cache_clear()


def _key(monkeypatch: pytest.MonkeyPatch, processor: str, **settings: str) -> str:
    keys.version_key.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(llvm, "get_host_cpu_name", lambda: processor)
        for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
            patch.delenv(name, raising=False)
        for name, value in settings.items():
            patch.setenv(name, value)
        return keys.version_key()


def test_version_key_depends_on_the_processor_unless_name_and_features_are_given(monkeypatch) -> None:
    image = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": "+avx2"}
    assert _key(monkeypatch, "znver3") != _key(monkeypatch, "skylake")
    name_alone = {"NUMBA_CPU_NAME": "x86-64-v3"}
    assert _key(monkeypatch, "znver3", **name_alone) != _key(monkeypatch, "skylake", **name_alone)
    assert _key(monkeypatch, "znver3", **image) == _key(monkeypatch, "skylake", **image)
    assert _key(monkeypatch, "znver3", **image) != _key(monkeypatch, "znver3", **image | {"NUMBA_CPU_FEATURES": "+avx"})


ARRAYS = {name: value for name, value in vars(annotations).items() if get_origin(value) is Annotated}


class _Spans(NamedTuple):
    starts: Int64s
    kinds: UInt8s
    limit: int


def _no_types(offsets, count: int): ...


def _text(offsets: Int64s, name: str) -> None: ...


@pytest.mark.parametrize(("function", "named"), [(_no_types, "offsets, return"), (_text, "str")])
def test_signature_of_what_no_kernel_takes_names_it(function: Callable[..., None], named: str) -> None:
    with pytest.raises(TypeError, match=named):
        signature_of(function)


def test_input_record_leaves_the_array_writable_and_its_view_not() -> None:
    starts = np.array([1, 5])
    spans = input_record(_Spans, (starts, np.zeros(2, np.uint8), 10))
    starts[0] = 3
    assert spans.starts.tolist() == [3, 5]
    for view in (spans.starts, read_only(starts)):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1


def test_array_annotation_has_the_item_type_of_its_name_on_any_numpy():
    assert len(ARRAYS) > 30
    for name, annotation in ARRAYS.items():
        item = np.dtype(form_of(annotation).item).name
        assert re.fullmatch(rf"{item}(s|Matrix|Cube)(Out|Unaligned)?", name, re.IGNORECASE), name
        assert form_of(annotation).num_axes == 1 + ("Matrix" in name) + 2 * ("Cube" in name)
        assert form_of(annotation).writable == name.endswith("Out")


def test_exp_is_within_two_units_in_the_last_place_of_the_true_value() -> None:
    getcontext().prec = 40
    powers = np.concatenate([np.linspace(-690, 690, 2001), np.linspace(-1, 1, 2001), [0.0, -0.0, 1e-300, 0.34657359]])
    for power in powers.tolist():
        true = Decimal(power).exp()
        assert abs(Decimal(float(exp(power))) - true) <= 2 * Decimal(math.ulp(float(true)))


def test_exp_has_these_bits_on_every_machine() -> None:
    bits = ["0x1.d257d547e083fp-73", "0x1.78b56362cef38p-2", "0x1.0000000000000p+0", "0x1.5829dcf950560p+14"]
    assert [float(exp(power)).hex() for power in (-50.0, -1.0, 0.0, 10.0)] == bits


def test_exp_beyond_its_bounds_is_that_of_the_bound() -> None:
    assert exp(-1e9) == exp(-700.0) > 0
    assert exp(1e9) == exp(700.0) < math.inf


@pytest.mark.parametrize("power", [-800.0, -3.0, 0.0, 0.5, 40.0, 800.0])
def test_logistic_and_its_opposite_make_one(power: float) -> None:
    assert logistic(power) + logistic(-power) == pytest.approx(1.0, abs=1e-15)
