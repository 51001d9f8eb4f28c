"""Pauses between attempts, and attempts after errors."""

import pytest

from datapipe.machine.retries import RetryPolicy, retry_io

POLICY = RetryPolicy(first_s=0.5, longest_s=8.0, most_attempts=3, longest_asked_s=60.0)


def test_pauses_double_up_to_the_longest_unless_a_server_asks_for_another() -> None:
    assert [POLICY.pause_s(number) for number in (1, 2, 3, 5, 6, 10_000)] == [0.5, 1.0, 2.0, 8.0, 8.0, 8.0]
    assert [POLICY.pause_s(1, asked_s) for asked_s in (0.0, 20.0, 3600.0)] == [0.0, 20.0, 60.0]


@pytest.mark.parametrize("num_failures", [0, 2, 3])
def test_retry_ends_with_the_result_or_where_no_attempt_helps(num_failures: int) -> None:
    pauses: list[float] = []
    outcomes = [OSError(str(number)) for number in range(num_failures)]

    def attempt() -> str:
        if outcomes:
            raise outcomes.pop(0)
        return "done"

    def pause_after(error: OSError, number: int) -> float:
        if number >= POLICY.most_attempts:
            raise error
        return POLICY.pause_s(number)

    if num_failures < 3:
        assert retry_io(attempt, pause_after, pauses.append) == "done"
    else:
        with pytest.raises(OSError, match="2"):
            retry_io(attempt, pause_after, pauses.append)
    assert pauses == [0.5, 1.0][:num_failures]


def test_retry_lets_other_errors_through() -> None:
    def attempt() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        retry_io(attempt, lambda error, number: 0.0, lambda seconds: None)
