"""What a server keeps of its outputs, and forgets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.remote.protocol import OpenRequest, Ticket, digest_of
from datapipe.service.outputs import Lineages, ServedOutput, SharedReadAhead, batch_bytes, named_outputs
from tests.support.snapshots import make_snapshot


def test_outputs_are_called_as_they_are_given() -> None:
    given = ["runs/web", "web=s3://bucket/x?region=eu", "/srv/out", "s3://bucket/deep/other/?region=eu", "./here"]
    assert named_outputs(given) == {
        "runs/web": "runs/web",
        "web": "s3://bucket/x?region=eu",
        "out": "/srv/out",
        "other": "s3://bucket/deep/other/?region=eu",
        "here": "./here",
    }
    with pytest.raises(UserError, match="two outputs are called 'web'"):
        named_outputs(["web", "/srv/web"])
    with pytest.raises(UserError, match="gives no name"):
        named_outputs(["/srv/a b"])


def test_lineages_are_kept_by_digest_and_the_oldest_forgotten() -> None:
    lineages = Lineages(most_bytes=10)
    for text in ("aaaa", "bbbb", "aaaa", "cccc"):
        lineages.add(text.encode())
    assert [lineages.find(digest_of(text)) for text in ("aaaa", "bbbb", "cccc")] == ["aaaa", None, "cccc"]
    with pytest.raises(UserError, match="not UTF-8"):
        lineages.add(b"\xff")
    with pytest.raises(UserError, match="at most"):
        lineages.add(bytes(1 << 21))


class _Order:
    """An order whose windows are told."""

    def __init__(self, ahead: list[int]) -> None:
        self.sample_order = self.steps = self
        self._ahead = ahead

    def samples(self, step: int) -> tuple[int, int]:
        return step, step + 1

    def windows_ahead(self, sample: int) -> list[int]:
        return self._ahead[sample:]


def test_the_cache_expects_what_all_streams_read_next_in_turn() -> None:
    expected, forgotten = list[list[int]](), list[int]()
    shared: Any = SharedReadAhead(SimpleNamespace(expect=expected.append), SimpleNamespace(forget=forgotten.append))  # type: ignore[arg-type]
    shared.announce("a", _Order([1, 2, 3]), 0)
    shared.announce("b", _Order([7, 2, 9]), 0)
    assert expected == [[1, 2, 3], [1, 7, 2, 3, 9]]
    shared.announce("a", _Order([1, 2, 3]), 0)  # nothing new
    shared.announce("a", _Order([1, 2, 3]), 1)
    assert expected[2:] == [[2, 7, 3, 9]]
    assert forgotten == [1]
    shared.leave("b")
    shared.leave("b")
    assert expected[3:] == [[2, 3]]
    shared.leave("a")  # nobody reads: the last shards stay
    assert len(expected) == 4


@pytest.fixture
def output(tmp_path: Path) -> ServedOutput:
    made = ServedOutput("web", str(make_snapshot(tmp_path, {"code": 31, "web": 83})))
    made.check_ready()
    return made


def _ticket(output: ServedOutput, **more: Any) -> Ticket:
    state = Loader(str(output.root.local), global_batch_size=6).state_dict()
    names = {"output": "web", "snapshot": state["snapshot"], "seed": state["seed"], "window": state["window_shards"]}
    lineage = {"lineage": state["lineage"], "digest": digest_of(state["lineage"])}
    return Ticket(**{**names, **lineage, "fields": ("input_ids",), "first": 0, **more})


def test_an_order_is_made_once_and_is_that_of_a_loader(output: ServedOutput) -> None:
    ticket = _ticket(output)
    order = output.order(ticket, ticket.lineage, ticket.digest)
    assert output.order(ticket, ticket.lineage, ticket.digest) is order
    loader = Loader(str(output.root.local), global_batch_size=6)
    samples = loader.batch_order.samples(5)
    assert order.locate(samples).tolist() == loader.batch_order.locate(samples).tolist()


def test_a_lineage_that_does_not_fit_is_refused(output: ServedOutput) -> None:
    ticket = _ticket(output)
    lineage = ticket.lineage.replace(" ", "")
    for change in (("[[0,0,6]]", "[[0,5,6]]"), ("[[0,0,6]]", "[[0,0,60000000]]"), ("{", "[")):
        text = lineage.replace(*change)
        assert text != lineage
        with pytest.raises((SnapshotError, UserError)):
            output.order(ticket, text, digest_of(text))
    with pytest.raises(SnapshotError):
        output.order(_ticket(output, snapshot="0" * 32), "", "")


def test_the_memory_of_a_batch_is_known_before_it_is_built(output: ServedOutput) -> None:
    ticket = _ticket(output, fields=("input_ids", "labels"), data_size=2, pad=100)
    order = output.order(ticket, ticket.lineage, ticket.digest)
    assert batch_bytes(order, ticket) == 3 * 16 * 8 * 3 + 400  # 3 rows of the rank; tokens that are read, and two fields


def test_a_request_opens_what_a_loader_opens(output: ServedOutput) -> None:
    options: dict[str, Any] = {"global_batch_size": 6, "mixture": {"web": 0.3, "code": "0.7"}, "skip": [(2, 4)]}
    request = OpenRequest(output="web", **options)
    order, step = output.open(request)
    loader = Loader(str(output.root.local), **options)
    assert (order.lineage_json, step) == (loader.batch_order.lineage_json, 0)
    next(loader)
    next(loader)
    resumed, step = output.open(request.model_copy(update={"state": loader.state_dict()}))
    assert (resumed.lineage_json, step) == (loader.batch_order.lineage_json, loader.step)
    opened = output.describe(resumed, step, most_steps=5)
    assert (opened.sources, opened.state) == (loader.sources, loader.state_dict())
