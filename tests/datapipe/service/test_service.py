"""Tokens, rates and slots of a server, and what it keeps of its outputs."""

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.cache.cache import ReadAhead
from datapipe.loader.order.sample_order import Inventory
from datapipe.loader.remote.protocol import OpenRequest, Ticket
from datapipe.loader.share import Mesh
from datapipe.service import access as access_module
from datapipe.service import outputs as outputs_module
from datapipe.service.access import Access, Client, RefusedError, Slots, host_of, is_loopback
from datapipe.service.outputs import ServedOutput, batch_bytes, named_outputs
from datapipe.shards.snapshot_folder import snapshot_folder
from tests.support.snapshots import make_snapshot


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def write(path: Path, text: str) -> Path:
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)
    return path


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    first = f"{{name: a, sha256: {digest('one')}, outputs: [web], bytes_per_s: 1MB, streams: 2}}"
    return write(tmp_path / "tokens.yaml", f"tokens: [{first}, {{name: b, sha256: {digest('two')}}}]")


def test_a_client_is_an_address_where_there_are_no_tokens() -> None:
    client = Access(None, 5).client("", "10.0.0.1")
    assert (client.name, client.outputs, client.streams) == ("10.0.0.1", None, 5)


def test_a_token_is_found_with_its_limits(token_file: Path) -> None:
    access = Access(token_file, 64)
    first, second = access.client("Bearer one", "x"), access.client("bearer two", "x")
    assert (first.name, first.outputs, first.streams) == ("a", frozenset({"web"}), 2)
    assert (second.name, second.outputs, second.streams) == ("b", None, 64)
    first.check_output("web")
    with pytest.raises(RefusedError, match="the token of 'a' may not read 'code'"):
        first.check_output("code")
    for wrong in ("", "one", "Bearer three", "Basic one", "Bearer  one"):
        with pytest.raises(RefusedError, match="a token is needed"):
            access.client(wrong, "x")


def test_a_changed_file_is_taken_and_a_broken_one_is_not(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "_PROBE_EVERY_S", 0.0)
    problems: list[str] = []
    access = Access(token_file, 64, problems.append)
    write(token_file, "tokens: [{name: c")
    for _ in range(2):
        assert access.client("Bearer one", "x").name == "a"
    assert len(problems) == 1
    assert "not YAML" in problems[0]
    token_file.unlink()
    assert access.client("Bearer one", "x").name == "a"
    write(token_file, f"tokens: [{{name: c, sha256: {digest('three')}}}]")
    assert access.client("Bearer three", "x").name == "c"
    with pytest.raises(RefusedError):
        access.client("Bearer one", "x")


A = f"name: a, sha256: {digest('x')}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- 1", "Input should be"),
        ("tokens: [{name: a, sha256: secret-token}]", r"tokens\.0\.sha256"),
        (f"tokens: [{{{A}}}, {{name: a, sha256: {digest('y')}}}]", "same name 'a'"),
        (f"tokens: [{{{A}}}, {{name: b, sha256: {digest('x')}}}]", "the same token"),
        (f"tokens: [{{{A}, outputs: ['../x']}}]", r"tokens\.0\.outputs\.0"),
        (f"tokens: [{{{A}, rate: 3}}]", r"tokens\.0\.rate"),
    ],
)
def test_a_file_that_is_wrong_is_refused_without_showing_it(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as told:
        Access(write(tmp_path / "t.yaml", content), 1)
    assert "secret" not in str(told.value)


def test_a_rate_holds_over_any_time_but_for_a_burst_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sent = [100.0], 0
    monkeypatch.setattr(access_module.time, "monotonic", lambda: now[0])
    access, client = Access(None, 1), Client.at("a", 1).model_copy(update={"bytes_per_s": 1_000})
    while sent < 20_000:
        now[0] += access.pause_s(client, 700)
        sent += 700
    assert 19_000 <= (now[0] - 100.0) * 1_000 <= 20_700
    now[0] += 50  # after a pause
    assert access.pause_s(client, 500) == 0.0
    assert access.pause_s(client, 1_000) == pytest.approx(0.5)


def test_a_rate_of_a_token_continues_when_the_file_changes(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "_PROBE_EVERY_S", 0.0)
    access = Access(token_file, 64)
    assert access.pause_s(access.client("Bearer one", "x"), 100_000_000) > 90
    write(token_file, f"{token_file.read_text()}\n# changed")
    assert access.pause_s(access.client("Bearer one", "x"), 1) > 80
    assert access.pause_s(access.client("Bearer two", "x"), 100_000_000) == 0


def test_slots_are_bounded_by_client_by_memory_and_in_all() -> None:
    slots, a, b = Slots(3, most_bytes=100), Client.at("a", 2), Client.at("b", 9)
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
    monkeypatch.setattr(access_module, "_PROBE_EVERY_S", 0.0)
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


def test_outputs_are_called_as_they_are_given() -> None:
    given = ["runs/web", "web=s3://bucket/x?region=eu", "/srv/out", "s3://bucket/deep/other/?region=eu", "./here"]
    urls = ["runs/web", "s3://bucket/x?region=eu", *given[2:]]
    assert named_outputs(given) == dict(zip(["runs/web", "web", "out", "other", "here"], urls))
    for wrong in (["web", "/srv/web"], ["/srv/a b"]):
        with pytest.raises(UserError):
            named_outputs(wrong)


class _Order:
    """An order with given windows."""

    def __init__(self, ahead: list[int]) -> None:
        self.sample_order = self.steps = self
        self._ahead = ahead

    def samples(self, step: int) -> tuple[int, int]:
        return step, step + 1

    def windows_ahead(self, sample: int) -> list[int]:
        return self._ahead[sample:]


def test_the_cache_expects_what_all_streams_read_next_in_turn() -> None:
    expected, forgotten = list[list[int]](), list[int]()
    shared: Any = ReadAhead(SimpleNamespace(expect=expected.append), SimpleNamespace(forget=forgotten.append))  # type: ignore[arg-type]
    shared.announce(_Order([1, 2, 3]), 0, "a")
    shared.announce(_Order([7, 2, 9]), 0, "b")
    assert expected == [[1, 2, 3], [1, 7, 2, 3, 9]]
    shared.announce(_Order([1, 2, 3]), 0, "a")  # nothing new
    shared.announce(_Order([1, 2, 3]), 1, "a")
    assert expected[2:] == [[2, 7, 3, 9]]
    assert forgotten == [1]
    shared.leave("b")
    shared.leave("b")
    assert expected[3:] == [[2, 3]]
    shared.leave("a")  # nobody reads: the last shards stay
    assert len(expected) == 4


@pytest.fixture
def served_output(tmp_path: Path) -> ServedOutput:
    made = ServedOutput("web", str(make_snapshot(tmp_path, {"code": 31, "web": 83})))
    made.snapshot(None)  # as a server does that is ready
    return made


def _ticket(served_output: ServedOutput, **more: Any) -> Ticket:
    state = Loader(str(served_output.root.local), global_batch_size=6).state_dict()
    names = {"output": "web", "snapshot": state["snapshot"], "seed": state["seed"], "window": state["window_shards"]}
    asked = {"lineage": state["lineage"], "mesh": Mesh(data_rank=0, data_size=1), "fields": ("input_ids",), "first": 0}
    return Ticket(**{**names, **asked, **more})


def test_a_lineage_that_does_not_fit_is_refused(served_output: ServedOutput) -> None:
    ticket = _ticket(served_output)
    lineage = ticket.lineage.replace(" ", "")
    for change in (("[[0,0,6]]", "[[0,5,6]]"), ("[[0,0,6]]", "[[0,0,60000000]]"), ("{", "[")):
        text = lineage.replace(*change)
        assert text != lineage
        with pytest.raises((SnapshotError, UserError)):
            served_output.order(ticket.model_copy(update={"lineage": text}))
    with pytest.raises(SnapshotError):
        served_output.order(_ticket(served_output, snapshot="0" * 32))


def test_streams_that_begin_at_once_share_what_their_order_is_made_of(
    served_output: ServedOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket, both = _ticket(served_output), threading.Barrier(2)

    def inventory(*args: Any, **options: Any) -> Inventory:
        both.wait(20)
        return Inventory(*args, **options)

    monkeypatch.setattr(outputs_module, "Inventory", inventory)
    with ThreadPoolExecutor(2) as threads:
        orders = list(threads.map(served_output.order, [ticket] * 2))
    assert orders[0] is orders[1]


def test_a_snapshot_is_served_while_the_newest_is_damaged(served_output: ServedOutput) -> None:
    name, root = served_output.snapshot(None).fingerprint, served_output.root
    with pytest.raises(SnapshotError, match="and not of 8"):
        served_output.snapshot(name, 8)
    root.write_atomic(f"{snapshot_folder(name)}/snapshot.json", root.read_bytes("snapshot.json"))
    root.write_atomic("snapshot.json", b"{")
    other = ServedOutput("web", root.url)
    assert other.snapshot(name).fingerprint == name
    with pytest.raises(SnapshotError):
        other.snapshot(None)


def test_an_opened_run_goes_on_from_a_state_by_the_arguments_or_by_its_own_history(served_output: ServedOutput) -> None:
    local, state = str(served_output.root.local), None
    for size, is_exact, expected in ((6, False, 0), (4, True, 5), (4, False, 5)):
        order, step = served_output.open(
            OpenRequest(output="web", global_batch_size=size, state=state, is_exact=is_exact, snapshot=None)
        )
        opened = served_output.describe(order, step)
        loader = Loader(local, global_batch_size=6 if is_exact else size)
        if state is not None:
            loader.load_state_dict(state)
        assert (step, opened.state) == (expected, loader.state_dict())
        assert opened.sources == loader.sources
        loader.seek(5)
        state = state or loader.state_dict()
    other = OpenRequest(output="web", global_batch_size=4, state=state, seed=9)
    with pytest.raises(SnapshotError):
        served_output.open(other)
    for mixture in ('{"web": NaN}', '{"web": Infinity}', '{"web": -1.5}', '{"web": [1]}', '"web"', "[[1, 2]]"):
        with pytest.raises(UserError, match="mixture"):
            served_output.open(OpenRequest.read(f'{{"output": "web", "global_batch_size": 1, "mixture": {mixture}}}'.encode()))


def test_the_memory_of_a_batch_is_known_before_it_is_built(served_output: ServedOutput) -> None:
    mesh = Mesh(data_rank=0, data_size=2)
    ticket = _ticket(served_output, fields=("input_ids", "labels"), mesh=mesh, pad_cu_seqlens=100)
    order = served_output.order(ticket)
    assert batch_bytes(order, ticket) == 3 * 16 * 8 * 3 + 400  # 3 rows of the rank; tokens that are read, and two fields


def test_peers_are_read_as_grpc_writes_them_and_loopback_is_this_machine() -> None:
    assert host_of("ipv4:127.0.0.1:5000") == "127.0.0.1"
    assert host_of("ipv6:%5B::1%5D:5000") == "::1"
    assert host_of("ipv6:[::ffff:10.0.0.1]:80") == "10.0.0.1"
    assert host_of("ipv6:[fe80::1%25eth0]:80") == "fe80::1"
    assert host_of("unix:") == ""
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "::", "example.org", "")))
