"""Tokens, rates and slots."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from datapipe.errors import UserError
from datapipe.service import access as access_module
from datapipe.service.access import Access, Client, RefusedError, Slots, _Rate


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def write(path: Path, text: str) -> Path:
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)
    return path


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return write(
        tmp_path / "tokens.yaml",
        f"tokens:\n  - {{name: a, sha256: {digest('one')}, outputs: [web], bytes_per_s: 1MB, streams: 2}}\n"
        f"  - {{name: b, sha256: {digest('two')}}}\n",
    )


def test_a_client_is_an_address_where_there_are_no_tokens() -> None:
    client = Access(None, 5).client("", "10.0.0.1")
    assert (client.name, client.outputs, client.most_streams) == ("10.0.0.1", None, 5)


def test_a_token_is_found_with_its_limits(token_file: Path) -> None:
    access = Access(token_file, 64)
    first, second = access.client("Bearer one", "x"), access.client("bearer two", "x")
    assert (first.name, first.outputs, first.most_streams) == ("a", frozenset({"web"}), 2)
    assert (second.name, second.outputs, second.most_streams) == ("b", None, 64)
    first.check_output("web")
    with pytest.raises(RefusedError, match="the token of 'a' may not read 'code'"):
        first.check_output("code")
    for wrong in ("", "one", "Bearer three", "Basic one", "Bearer  one"):
        with pytest.raises(RefusedError, match="a token is needed"):
            access.client(wrong, "x")


def test_a_changed_file_is_taken_and_a_broken_one_is_not(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "_LOOK_EVERY_S", 0.0)
    access = Access(token_file, 64)
    write(token_file, "tokens: [{name: c")
    assert access.client("Bearer one", "x").name == "a"
    assert "not YAML" in access.problem
    token_file.unlink()
    assert access.client("Bearer one", "x").name == "a"
    write(token_file, f"tokens: [{{name: c, sha256: {digest('three')}}}]")
    assert access.client("Bearer three", "x").name == "c"
    assert access.problem == ""
    with pytest.raises(RefusedError):
        access.client("Bearer one", "x")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (None, "Input should be"),
        ("{name: a, sha256: secret-token}", r"tokens\.0\.sha256"),
        (f"{{name: a, sha256: {digest('x')}}}, {{name: a, sha256: {digest('y')}}}", "same name 'a'"),
        (f"{{name: a, sha256: {digest('x')}}}, {{name: b, sha256: {digest('x')}}}", "the same token"),
        (f"{{name: a, sha256: {digest('x')}, outputs: ['../x']}}", r"tokens\.0\.outputs\.0"),
        (f"{{name: a, sha256: {digest('x')}, rate: 3}}", r"tokens\.0\.rate"),
    ],
)
def test_a_file_that_is_wrong_is_refused_without_showing_it(tmp_path: Path, entries: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message) as told:
        Access(write(tmp_path / "t.yaml", "- 1" if entries is None else f"tokens: [{entries}]"), 1)
    assert "secret" not in str(told.value)


def test_a_rate_holds_over_any_time_but_for_a_burst_of_a_second() -> None:
    rate, now, sent = _Rate(1_000), 100.0, 0
    while sent < 20_000:
        now += rate.take(700, now)
        sent += 700
    assert 19_000 <= (now - 100.0) * 1_000 <= 20_700
    assert rate.take(500, now + 50) == 0.0  # after a pause
    assert rate.take(1_000, now + 50) == pytest.approx(0.5)


def test_slots_are_bounded_by_client_by_memory_and_in_all() -> None:
    slots, a, b = Slots(3, most_bytes=100), Client(name="a", most_streams=2), Client(name="b")
    slots.take(a, 150)  # more than there is, but alone
    with pytest.raises(RefusedError, match="150 bytes"):
        slots.take(b, 1)
    slots.give_back("a", 150)
    slots.take(a, 60)
    slots.take(a, 30)
    with pytest.raises(RefusedError, match="'a' has 2 streams"):
        slots.take(a)
    slots.take(b, 10)
    with pytest.raises(RefusedError, match="the server has 3 streams"):
        slots.take(b)
    slots.give_back("a", 60)
    with pytest.raises(RefusedError):
        slots.take(b, 61)
    slots.take(b, 60)
    assert slots.num_streams == 3
    assert dict(slots.by_client) == {"a": 1, "b": 2}


def test_a_token_that_is_taken_back_or_changes_allows_nothing_more(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "_LOOK_EVERY_S", 0.0)
    access = Access(token_file, 64)
    first, second = access.client("Bearer one", "x"), access.client("Bearer two", "x")
    assert access.still_allows(first, "web")
    assert access.still_allows(second, "code")
    write(token_file, f"tokens: [{{name: a, sha256: {digest('one')}, outputs: [code]}}]")
    assert not access.still_allows(first, "web")
    assert not access.still_allows(second, "code")
    write(token_file, f"tokens: [{{name: a, sha256: {digest('other')}}}]")
    assert not access.still_allows(first, "code")
    for name in ("a", "renamed"):
        write(token_file, f"tokens: [{{name: {name}, sha256: {digest('other')}}}]")
        assert access.still_allows(access.client("Bearer other", "x"), "web")
    assert Access(None, 1).still_allows(second, "code")
