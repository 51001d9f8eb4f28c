"""Which nodes get tasks, decided without a cluster."""

from __future__ import annotations

import pytest

from datapipe.engine.cluster.nodes import ASK_AGAIN_S, MOST_TOLD, NOTICE_S, SLOW_S, Node, Nodes


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return _Clock()


def _node(name: str) -> Node:
    return Node(node_id=name * 56, address="10.0.0.7", resources={"CPU": 2.0})


def _ids(names: str) -> list[str]:
    return [name * 56 for name in names]


def _fit(nodes: Nodes) -> list[str]:
    return [node.node_id for node in nodes.fit]


def test_nodes_of_one_address_are_asked_and_refused_by_their_ids(clock):
    nodes = Nodes(clock)
    assert nodes.see([_node("a"), _node("b")]) == _ids("ab")
    assert nodes.excluded == _ids("ab")
    nodes.answer("a" * 56, [])
    nodes.answer("b" * 56, ["it does not see s3://bucket/out"])
    assert (_fit(nodes), nodes.excluded) == (_ids("a"), _ids("b"))
    assert nodes.take_news() == ["the node bbbbbbbbbbbb (10.0.0.7) gets no tasks: it does not see s3://bucket/out"]
    assert nodes.take_news() == []


def test_node_that_joins_later_gets_no_tasks_before_its_answer(clock):
    nodes = Nodes(clock)
    nodes.see([_node("a")])
    nodes.answer("a" * 56, [])
    assert nodes.see([_node("a"), _node("b")]) == _ids("b")
    assert _fit(nodes) == _ids("a")
    nodes.answer("b" * 56, [])
    assert _fit(nodes) == _ids("ab")
    assert nodes.take_news() == []


def test_node_that_lacked_something_is_asked_again_after_a_pause_and_told_once(clock):
    nodes = Nodes(clock)
    for _ in range(3):
        assert nodes.see([_node("a")]) == _ids("a")
        assert nodes.see([_node("a")]) == []
        nodes.answer("a" * 56, ["its disk is full: /tmp"])
        clock.now += ASK_AGAIN_S
    assert len(nodes.take_news()) == 1
    nodes.answer("a" * 56, [])
    assert _fit(nodes) == _ids("a")
    assert nodes.take_news() == ["the node aaaaaaaaaaaa (10.0.0.7) gets tasks now"]
    assert nodes.see([_node("a")]) == []


def test_node_that_does_not_answer_is_told_and_gets_tasks_when_it_does(clock):
    nodes = Nodes(clock)
    nodes.see([_node("a")])
    clock.now += SLOW_S
    nodes.see([_node("a")])
    nodes.see([_node("a")])
    assert nodes.take_news() == ["the node aaaaaaaaaaaa (10.0.0.7) gets no tasks: it has not answered for 15 s"]
    nodes.answer("a" * 56, [])
    assert _fit(nodes) == _ids("a")


def test_node_that_was_told_to_end_gets_no_tasks_for_a_while_unless_there_is_no_other(clock):
    nodes = Nodes(clock)
    nodes.see([_node("a"), _node("b")])
    for node_id in _ids("ab"):
        nodes.answer(node_id, [])
    nodes.give_notice("b" * 56)
    assert _fit(nodes) == _ids("a") and nodes.is_leaving("b" * 56)
    assert nodes.take_news() == ["the node bbbbbbbbbbbb (10.0.0.7) was told to end: its tasks end, or run again elsewhere"]
    nodes.see([_node("b")])
    assert _fit(nodes) == _ids("b")
    nodes.see([_node("a"), _node("b")])
    nodes.answer("a" * 56, [])
    clock.now += NOTICE_S
    assert _fit(nodes) == _ids("ab")


def test_node_that_is_drained_gets_no_tasks_even_where_there_is_no_other(clock):
    nodes = Nodes(clock)
    nodes.see([_node("a")])
    nodes.answer("a" * 56, [])
    for _ in range(2):
        nodes.see([_node("a")], _ids("a"))
    assert nodes.fit == [] and nodes.why_none() == "The node aaaaaaaaaaaa (10.0.0.7): it was told to end"
    assert len(nodes.take_news()) == 1


def test_nodes_that_are_gone_are_forgotten_and_their_answers_passed_over(clock):
    nodes = Nodes(clock)
    nodes.see([_node("a")])
    nodes.see([])
    nodes.answer("a" * 56, ["it has numba 1, and the driver has 2"])
    assert (nodes.num_alive, nodes.excluded, nodes.why_none()) == (0, [], "")
    assert nodes.take_news() == ["the node aaaaaaaaaaaa (10.0.0.7) is gone: what ran there runs again elsewhere"]


def test_message_of_many_nodes_names_the_first(clock):
    nodes = Nodes(clock)
    nodes.see([_node(name) for name in "abcdefgh"])
    for node_id in _ids("abcdefgh"):
        nodes.answer(node_id, ["no disk"])
    assert nodes.why_none().count("no disk") == MOST_TOLD
    assert nodes.why_none().endswith(". So do 3 more")
