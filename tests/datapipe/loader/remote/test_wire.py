"""Batches to messages and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import UserError
from datapipe.loader.remote.protocol import Refusal
from datapipe.loader.remote.wire import Assembler, bytes_of, notice, record_batches, schema_of
from datapipe.loader.share import Mesh

FIELDS = ("input_ids", "cu_seqlens", "document_keys", "max_seqlen", "step")
MESH = Mesh(data_rank=0, data_size=1)


def batch(step: int, rows: int, runs: int) -> dict[str, Any]:
    generator = np.random.default_rng(step)
    return {
        "input_ids": generator.integers(0, 1 << 20, (rows, 8)),
        "cu_seqlens": generator.integers(0, 99, runs).astype(np.int32),
        "document_keys": generator.integers(0, 255, (runs, 16)).astype(np.uint8),
        "max_seqlen": int(generator.integers(99)),
        "step": step,
    }


def there_and_back(batches: dict[int, dict[str, Any]], most_bytes: int) -> dict[int, dict[str, Any]]:
    schema, assembler = schema_of(FIELDS, "int64", MESH, 8), Assembler(FIELDS, MESH, 8)
    found: dict[int, Any] = {}
    for message in record_batches(schema, list(batches), list(batches.values()), most_bytes):
        with pa.BufferOutputStream() as sink:
            with pa.ipc.new_stream(sink, schema) as writer:
                writer.write_batch(message)
            received = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
        taken = dict(assembler.take(received))
        assert not set(found) & set(taken)
        found |= taken
    return found


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], strict=True)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=6))
def test_batches_of_any_sizes_come_back(sizes: list[tuple[int, int]]) -> None:
    batches = {7 + number: batch(number, *size) for number, size in enumerate(sizes)}
    found = there_and_back(batches, 1 << 20)
    assert list(found) == list(batches)
    for step, expected in batches.items():
        assert_equal(expected, found[step])


@pytest.mark.parametrize("most_bytes", [1, 64, 1_000, 100_000])
def test_a_batch_that_is_larger_than_a_message_is_cut_and_joined(most_bytes: int) -> None:
    large = batch(3, 50, 20)
    messages = list(record_batches(schema_of(FIELDS, "int64", MESH, 8), [3], [large], most_bytes))
    assert len(messages) == max(1, -(-bytes_of(large) // most_bytes))
    assert_equal(large, there_and_back({3: large}, most_bytes)[3])


def test_neighbours_in_memory_are_sent_without_a_copy() -> None:
    rows = np.arange(64).reshape(8, 8)
    batches = [{"input_ids": rows[:3]}, {"input_ids": rows[3:]}]
    [message] = record_batches(schema_of(("input_ids",), "int64", MESH, 8), [0, 1], batches, 1 << 20)
    assert message.column("input_ids").values.buffers()[1].address == rows.ctypes.data
    apart = [batches[1], batches[0]]
    [message] = record_batches(schema_of(("input_ids",), "int64", MESH, 8), [0, 1], apart, 1 << 20)
    assert message.column("input_ids").values.to_pylist() == [*range(24, 64), *range(24)]


def test_a_notice_ends_a_stream() -> None:
    schema = schema_of(FIELDS, "int64", MESH, 8)
    [(step, told)] = Assembler(FIELDS, MESH, 8).take(notice(schema, Refusal.of("draining", "the server is about to stop.")))
    assert (step, told) == (-1, Refusal(kind="draining", message="the server is about to stop."))


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(UserError, match=r"no field 'labls'\. Did you mean 'labels'"):
        schema_of(("labls",), "int64", MESH, 8)
