"""What a client sends is checked before anything is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from datapipe.errors import CorruptionError, DatapipeError, SnapshotError, UserError
from datapipe.loader.remote.protocol import (
    MOST_MESSAGE_CHARS,
    MOST_TICKET_BYTES,
    OpenRequest,
    Refusal,
    Ticket,
    digest_of,
    is_name,
)

TICKET: dict[str, Any] = {
    "output": "runs/web",
    "snapshot": "0" * 32,
    "seed": 3,
    "window": 0,
    "digest": "a" * 64,
    "fields": ["input_ids"],
    "first": 5,
}


def test_a_ticket_is_read_as_it_was_written() -> None:
    ticket = Ticket(**{**TICKET, "fields": ("input_ids",)}, data_rank=3, data_size=8, layout="zigzag", context_size=2)
    assert Ticket.read(ticket.to_json()) == ticket
    assert (ticket.mesh.data_rank, ticket.mesh.context_size, ticket.mesh.layout) == (3, 2, "zigzag")
    assert len(ticket.to_json()) < MOST_TICKET_BYTES


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("output", ["../web", "/web", "web/", "a" * 300]),
        ("snapshot", ["0" * 31 + "G"]),
        ("first", [-1, 1 << 48, "5"]),
        ("count", [0]),
        ("seed", [1 << 128]),
        ("fields", [["x"] * 33, ["x" * 65]]),
        ("dtype", ["float64"]),
        ("pad", [-1]),
        ("message_bytes", [1]),
        ("lineage", ["x" * 5_000]),
        ("v", [2]),
        ("path", ["/etc/passwd"]),
    ],
)
def test_a_ticket_of_another_form_is_refused_with_the_place(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UserError, match=f"^ticket: {field}"):
            Ticket.read(json.dumps({**TICKET, field: value}).encode())


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"null", b"[" * 8_000, b'{"first":', b"{}" + b" " * 9_000])
def test_what_is_no_ticket_is_refused(content: bytes) -> None:
    with pytest.raises(UserError, match=r"^ticket"):
        Ticket.read(content)


def test_a_request_takes_any_weights_of_a_loader_and_no_others() -> None:
    for mixture in ({"a": 1, "b": 0.5, "c": "1/3"}, [[100, {"a": 1}], [None, {"b": 1}]]):
        request = OpenRequest.read(json.dumps({"output": "x", "global_batch_size": 1, "mixture": mixture}).encode())
        assert request.mixture
    for text in ('{"a": NaN}', '{"a": Infinity}', '{"a": -1.5}', '{"a": [1]}', '"a"'):
        with pytest.raises(UserError, match="mixture"):
            OpenRequest.read(f'{{"output": "x", "global_batch_size": 1, "mixture": {text}}}'.encode())


def test_refusals_are_short_and_become_the_errors_of_a_local_loader() -> None:
    long = Refusal.of("user", "x" * 5_000)
    assert len(long.message) == MOST_MESSAGE_CHARS
    assert Refusal.read(long.to_json()) == long
    errors = {"user": UserError, "denied": UserError, "snapshot": SnapshotError, "corruption": CorruptionError}
    for kind, error in {**errors, "failed": DatapipeError}.items():
        assert type(Refusal.of(kind, "why").error()) is error  # type: ignore[arg-type]
    assert Refusal.read(b"{") is None


def test_names_are_parts_between_slashes() -> None:
    assert all(is_name(name) for name in ("a", "runs/web", "a.b-c_d/0"))
    assert not any(is_name(name) for name in ("", "/a", "a/", "a//b", "../a", "a/..", ".a", "a b", "ä", "a\n"))
    assert digest_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
