"""The demand that an autoscaler learns."""

from collections.abc import Iterator
from itertools import count, repeat

import pytest

from datapipe.engine.cluster import demand
from datapipe.engine.cluster.demand import MOST_DEMANDED, Demand, Reservation

CPU, GPU = {"CPU": 1.0}, {"CPU": 4.0, "GPU": 1.0}


def test_a_cluster_learns_the_reservations_of_all_tasks_when_they_change_and_that_none_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demand, "_EVERY_S", 0.0)
    sent: list[list[dict[str, float]]] = []
    wanted = Demand(sent.append)
    wanted.withdraw()
    assert sent == []
    wanted.update([CPU, GPU])
    wanted.update([CPU, GPU])
    wanted.update([CPU])
    wanted.withdraw()
    wanted.withdraw()
    assert sent == [[CPU, GPU], [CPU], []]


def test_a_million_waiting_tasks_are_not_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "_EVERY_S", 0.0)
    sent: list[list[dict[str, float]]] = []
    Demand(sent.append).update(repeat(CPU, 1_000_000))
    assert [len(each) for each in sent] == [MOST_DEMANDED]


def test_reservations_are_read_every_few_seconds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(0.0, 1.0)
    monkeypatch.setattr(demand.time, "monotonic", lambda: next(clock))
    read: list[int] = []

    def reservations(number: int) -> Iterator[Reservation]:
        read.append(number)
        yield CPU

    wanted = Demand(lambda _: None)
    for number in range(12):
        wanted.update(reservations(number))
    assert read == [0, 5, 10]


def test_a_demand_that_a_cluster_does_not_take_ends_nothing_and_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "_EVERY_S", 0.0)
    sent: list[list[dict[str, float]]] = []

    def refuse_once(wanted: list[dict[str, float]]) -> None:
        sent.append(wanted)
        if len(sent) == 1:
            raise ConnectionError("no answer")

    wanted = Demand(refuse_once)
    wanted.update([CPU])
    wanted.update([CPU])
    wanted.update([CPU])
    assert sent == [[CPU], [CPU]]
