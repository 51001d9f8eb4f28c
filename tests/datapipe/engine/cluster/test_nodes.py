"""Which nodes get tasks, decided without a cluster."""

from __future__ import annotations

import pytest

from datapipe.engine.cluster.nodes import ASK_AGAIN_S, MOST_TOLD, NOTICE_S, SLOW_S, Node, Nodes


class _Case(Nodes):
    """Nodes named by one letter, with a clock that stands still but for `wait`."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(lambda: self.now)

    def shows(self, names: str, drained: str = "") -> str:
        """The names of the nodes that are to be asked."""
        nodes = [Node(node_id=name * 56, address="10.0.0.7", resources={"CPU": 2.0}) for name in names]
        return "".join(node_id[0] for node_id in self.see(nodes, [name * 56 for name in drained]))

    def answers(self, names: str, *lacks: str) -> None:
        for name in names:
            self.answer(name * 56, list(lacks))

    @property
    def fitting(self) -> str:
        return "".join(node.node_id[0] for node in self.fit)


@pytest.fixture
def nodes() -> _Case:
    return _Case()


def test_nodes_of_one_address_are_asked_and_refused_by_their_ids(nodes):
    assert nodes.shows("ab") == "ab"
    assert [node_id[0] for node_id in nodes.excluded] == ["a", "b"]
    nodes.answers("a")
    nodes.answers("b", "it does not see s3://bucket/out")
    assert (nodes.fitting, [node_id[0] for node_id in nodes.excluded]) == ("a", ["b"])
    assert nodes.take_news() == ["the node bbbbbbbbbbbb (10.0.0.7) gets no tasks: it does not see s3://bucket/out"]
    assert nodes.take_news() == []


def test_node_that_joins_later_gets_no_tasks_before_its_answer(nodes):
    nodes.shows("a")
    nodes.answers("a")
    assert (nodes.shows("ab"), nodes.fitting) == ("b", "a")
    nodes.answers("b")
    assert (nodes.fitting, nodes.take_news()) == ("ab", [])


def test_node_that_lacked_something_is_asked_again_after_a_pause_and_told_once(nodes):
    for _ in range(3):
        assert [nodes.shows("a"), nodes.shows("a")] == ["a", ""]
        nodes.answers("a", "its disk is full: /tmp")
        nodes.now += ASK_AGAIN_S
    assert len(nodes.take_news()) == 1
    nodes.answers("a")
    assert (nodes.fitting, len(nodes.take_news()), nodes.shows("a")) == ("a", 1, "")


def test_node_that_does_not_answer_is_told_and_gets_tasks_when_it_does(nodes):
    nodes.shows("a")
    nodes.now += SLOW_S
    nodes.shows("a")
    nodes.shows("a")
    assert nodes.take_news() == ["the node aaaaaaaaaaaa (10.0.0.7) gets no tasks: it has not answered for 15 s"]
    nodes.answers("a")
    assert nodes.fitting == "a"


def test_node_that_was_told_to_end_gets_no_tasks_for_a_while_unless_there_is_no_other(nodes):
    nodes.shows("ab")
    nodes.answers("ab")
    nodes.give_notice("b" * 56)
    assert nodes.fitting == "a" and nodes.is_leaving("b" * 56)
    assert len(nodes.take_news()) == 1
    nodes.shows("b")
    assert nodes.fitting == "b"
    nodes.shows("ab")
    nodes.answers("a")
    nodes.now += NOTICE_S
    assert nodes.fitting == "ab"


def test_node_that_is_drained_gets_no_tasks_even_where_there_is_no_other(nodes):
    nodes.shows("a")
    nodes.answers("a")
    for _ in range(2):
        nodes.shows("a", drained="a")
    assert nodes.fitting == "" and "aaaaaaaaaaaa" in nodes.why_none()
    assert len(nodes.take_news()) == 1


def test_nodes_that_are_gone_are_forgotten_and_their_answers_passed_over(nodes):
    nodes.shows("a")
    nodes.shows("")
    nodes.answers("a", "it has numba 1, and the driver has 2")
    assert (nodes.num_alive, nodes.excluded, nodes.why_none()) == (0, [], "")
    assert len(nodes.take_news()) == 1


def test_message_of_many_nodes_names_the_first(nodes):
    nodes.shows("abcdefgh")
    nodes.answers("abcdefgh", "no disk")
    assert nodes.why_none().count("no disk") == MOST_TOLD
    assert nodes.why_none().endswith("3 more")
