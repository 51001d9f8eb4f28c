"""Finds what the assistant wrote in renderings of a template that does not name it by `{% generation %}`.

    <|im_start|>user⏎Hi<|im_end|>⏎<|im_start|>assistant⏎Hello!<|im_end|>⏎
                                  └────── header ───┘└─ answer ────┘

A header is what the template writes for `add_generation_prompt`, as far as it also stands before answers:
some templates prompt for a thought that earlier answers no longer have. An answer goes to the control
token behind the last answer of a conversation, or to the control token with which another turn begins.
Short conversations show all of it, and check it: answers are within, and nothing else is. Only marks count,
so no text begins or ends an answer.
"""

import re
from collections.abc import Callable
from typing import Any

from datapipe.dataclass import dataclass, replace
from stages.extract._chat.sandbox import TemplateError

_ASKED, _ANSWERED, _RESULT = "Two and two?", "It is four.", "result 19"
_ASKED_AGAIN, _ANSWERED_AGAIN = "And three?", "Then seven."
_CONVERSATION = [
    {"role": "user", "content": _ASKED},
    {"role": "assistant", "content": _ANSWERED},
    {"role": "user", "content": _ASKED_AGAIN},
    {"role": "assistant", "content": _ANSWERED_AGAIN},
]
_FUNCTION = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
_TOOLS = [{"type": "function", "function": _FUNCTION}]

Render = Callable[..., str]


@dataclass(frozen=True)
class Turns:
    """Where answers are in renderings with marks."""

    header: str
    rest_of_prompt: str
    ends: tuple[str, ...]  # control tokens that end an answer
    begins: tuple[str, ...]  # and those that begin another turn
    knows_tools: bool = False  # whether the results of tools are outside

    def spans(self, marked: str) -> list[tuple[int, int]]:
        spans, place = [], marked.find(self.header)
        while place >= 0:
            start = place + len(self.header)
            start += _num_shared(self.rest_of_prompt, marked[start : start + len(self.rest_of_prompt)])
            stop = min((at for token in self.begins if (at := marked.find(token, start)) >= 0), default=len(marked))
            ends = (at + len(token) for token in self.ends if (at := marked.find(token, start, stop)) >= 0)
            stop = min(ends, default=stop)
            spans.append((start, stop))
            place = marked.find(self.header, stop)
        return spans


def find_turns(render: Render, token: re.Pattern[str]) -> Turns | None:
    """The turns of a template, by rendering conversations; None where they cannot be told from the rest. `token`: a control
    token that the template wrote."""
    try:
        asked, prompted = render(_CONVERSATION[:1]), render(_CONVERSATION[:1], add_generation_prompt=True)
        conversation = render(_CONVERSATION)
    except TemplateError:
        return None
    prompt = prompted[_num_shared(asked, prompted) :]
    between = _between(conversation, [_ASKED, _ANSWERED, _ASKED_AGAIN, _ANSWERED_AGAIN])
    if between is None:
        return None
    header = min((_longest_start(prompt, between[number]) for number in (1, 3)), key=len)
    if not header.strip():
        return None
    ends, begins = [token.search(between[4])], [token.search(header), token.search(between[2])]
    if ends[0] is not None:
        ends.append(begins.pop())
    turns = Turns(header, prompt.removeprefix(header), _texts(ends), _texts(begins))
    if _learned(turns, conversation, _CONVERSATION) != [_ANSWERED, _ANSWERED_AGAIN]:
        return None
    return replace(turns, knows_tools=_knows_tools(turns, render))


def _num_shared(first: str, second: str) -> int:
    """The length of the start that two texts share."""
    return next((at for at, (one, other) in enumerate(zip(first, second)) if one != other), min(len(first), len(second)))


def _between(text: str, contents: list[str]) -> list[str] | None:
    """What is before, between and behind contents; None if one of them is not there."""
    parts = []
    for content in contents:
        before, found, text = text.partition(content)
        if not found:
            return None
        parts.append(before)
    return [*parts, text]


def _longest_start(prompt: str, text: str) -> str:
    """The longest start of a generation prompt that is in a text."""
    return next((prompt[:stop] for stop in range(len(prompt), 0, -1) if prompt[:stop] in text), "")


def _texts(tokens: list[re.Match[str] | None]) -> tuple[str, ...]:
    return tuple(sorted({token[0] for token in tokens if token is not None}))


def _learned(turns: Turns, marked: str, conversation: list[dict[str, Any]]) -> list[str]:
    """The contents of a conversation that are within answers, even in part."""
    spans, learned, place = turns.spans(marked), [], 0
    for message in filter(lambda message: message["content"], conversation):
        start = marked.find(message["content"], place)
        if start < 0:
            return []
        place = start + len(message["content"])
        learned += [message["content"] for span in spans if span[0] < place and start < span[1]]
    return learned


def _knows_tools(turns: Turns, render: Render) -> bool:
    for arguments in ({"a": 2}, '{"a": 2}'):
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": arguments}}
        conversation = [
            {"role": "user", "content": _ASKED},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "add", "tool_call_id": "abcdefghi", "content": _RESULT},
            {"role": "assistant", "content": _ANSWERED},
        ]
        try:
            return _learned(turns, render(conversation, _TOOLS), conversation) == [_ANSWERED]
        except TemplateError:  # some templates expect arguments as JSON
            continue
    return False
