"""The order of a conversation: who may speak after whom."""

import re
from collections import Counter
from collections.abc import Sequence

from stages.extract._chat.messages import MalformedError, Message

NO_MESSAGE = "no message"
NO_ANSWER = "no answer of an assistant"
EMPTY_ANSWER = "an empty answer"
TWO_USERS = "two users in a row"
NO_CALL_BEFORE = "a tool result without its call"
NO_RESULT = "a call without its result"

_WRITTEN_CALL = re.compile(r"<(tool|function)_?call|<function=|\[TOOL_CALLS\]|<\|python_tag\|>", re.IGNORECASE)
"""A call that an assistant has written into its text."""


def check_order(messages: Sequence[Message]) -> None:
    """Raises MalformedError for a conversation whose messages do not follow each other as they should. A call at its end needs
    no result: to call is the answer."""
    if not messages:
        raise MalformedError(NO_MESSAGE, "found an empty list, expected messages")
    open_calls = _OpenCalls()
    before = ""
    for number, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            open_calls.close(number, message)
        else:
            open_calls.check_closed(number, role)
        if role == "user" and before == "user":
            raise MalformedError(TWO_USERS, f"messages[{number}]: found a user behind a user, expected an answer between them")
        if role == "assistant":
            _check_answer(number, message)
            open_calls.open(number, message)
        before = role
    if all(message["role"] != "assistant" for message in messages):
        raise MalformedError(NO_ANSWER, f"found {len(messages)} messages, none of an assistant")


def _check_answer(number: int, message: Message) -> None:
    if not message["content"].strip() and not message.get("tool_calls"):
        raise MalformedError(EMPTY_ANSWER, f"messages[{number}]: found no text and no call of an assistant")


class _OpenCalls:
    """The calls whose results are to come, counted by id; None for calls without one. A call in a text may have any number."""

    def __init__(self) -> None:
        self._counts: dict[str | None, int] = {}
        self._number, self._answer, self._is_written = 0, "", False

    def open(self, number: int, message: Message) -> None:
        calls = message.get("tool_calls") or ()
        self._counts, self._number = dict(Counter(call.get("id") for call in calls)) if calls else {}, number
        self._answer = "" if calls else message["content"]

    def close(self, number: int, message: Message) -> None:
        """The call of a result is no longer open. Raises MalformedError where there is none."""
        wanted = message.get("tool_call_id")
        if self._answer:
            self._is_written, self._answer = bool(_WRITTEN_CALL.search(self._answer)), ""
        if self._is_written:
            return
        own = next((each for each in (wanted, None) if each in self._counts), None)
        if wanted is None and self._counts:
            own = next(iter(self._counts))
        if own not in self._counts:
            called = "" if wanted is None else f" for the call {wanted!r}"
            raise MalformedError(
                NO_CALL_BEFORE, f"messages[{number}]: found the result of a tool{called}, expected a call before"
            )
        self._counts[own] -= 1
        if not self._counts[own]:
            del self._counts[own]

    def check_closed(self, number: int, role: str) -> None:
        if self._counts:
            left = sum(self._counts.values())
            raise MalformedError(
                NO_RESULT,
                f"messages[{number}]: found a message of {role}, expected {left} more results of the calls in "
                f"messages[{self._number}]",
            )
        self._answer, self._is_written = "", False
