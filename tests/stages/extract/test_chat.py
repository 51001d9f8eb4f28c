"""Conversations of every form become the same messages; a malformed one is quarantined for its reason."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import make_keys
from datapipe.errors import UserError
from datapipe.stage import FilterResult, StageContext
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.segments import SEGMENTS, SEGMENTS_TYPE
from stages.extract._chat.messages import MalformedError, conversation_of, messages_of, tools_of
from stages.extract._chat.order import check_order
from stages.extract._chat.plain import PlainConversations
from stages.extract.chat import Chat
from tests.support.chats import TOOLS, conversations

ASKED = [{"role": "user", "content": "Hi"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "Hello!"}]
WITH_SYSTEM = [{"role": "system", "content": "Be brief."}, *ANSWERED]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
CALLED = [
    *ASKED,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "c1"},
    {"role": "assistant", "content": "It is 3."},
]

FORMS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "openai": (ANSWERED, ANSWERED),
    "json text": (json.dumps(ANSWERED), ANSWERED),
    "nulls of columns": ([{**message, "tool_calls": None, "name": None} for message in ANSWERED], ANSWERED),
    "nulls as json text": ([{**message, "tool_calls": "null", "function_call": "null"} for message in ANSWERED], ANSWERED),
    "sharegpt": ([{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}], ANSWERED),
    "dolma": ([{"role": "user", "text": "Hi"}, {"role": "assistant", "text": "Hello!"}], ANSWERED),
    "other roles": ([{"role": "prompter", "text": "Hi"}, {"role": "Model", "text": "Hello!"}], ANSWERED),
    "pairs": (
        [{"input": "Hi", "output": "Hello!"}, {"input": "And?", "output": "So."}],
        [*ANSWERED, {"role": "user", "content": "And?"}, {"role": "assistant", "content": "So."}],
    ),
    "prompt and completion": ({"prompt": "Hi", "completion": "Hello!"}, ANSWERED),
    "prompt and completion of messages": ({"prompt": WITH_SYSTEM[:2], "completion": ANSWERED[1:]}, WITH_SYSTEM),
    "alpaca": (
        {"instruction": "Add.", "input": "1, 2", "output": "3"},
        [{"role": "user", "content": "Add.\n1, 2"}, {"role": "assistant", "content": "3"}],
    ),
    "an empty prompt": ({"prompt": "", "completion": "Hello!"}, [{"role": "user", "content": ""}, ANSWERED[1]]),
    "alpaca without an input": ({"instruction": "Hi", "input": "", "output": "Hello!"}, ANSWERED),
    "an answer in json": (
        {"prompt": "[1]", "completion": '[{"a": 1}]'},
        [{"role": "user", "content": "[1]"}, {"role": "assistant", "content": '[{"a": 1}]'}],
    ),
    "messages as text in a pair": ({"prompt": json.dumps(ASKED), "completion": json.dumps(ANSWERED[1:])}, ANSWERED),
    "within an object": ({"conversations": ANSWERED, "system": "Be brief."}, WITH_SYSTEM),
    "system and pair": ({"system": "Be brief.", "question": "Hi", "response": "Hello!"}, WITH_SYSTEM),
    "parts of text": (
        [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "input_text", "text": "i"}]}, ANSWERED[1]],
        ANSWERED,
    ),
    "reasoning": (
        [*ASKED, {"role": "assistant", "content": "Hello!", "thinking": "Hm."}],
        [*ASKED, {"role": "assistant", "reasoning_content": "Hm.", "thinking": "Hm.", "content": "Hello!"}],
    ),
    "a part of thought": (
        [
            *ASKED,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hello!"}]},
        ],
        [*ASKED, {"role": "assistant", "reasoning_content": "Hm.", "thinking": "Hm.", "content": "Hello!"}],
    ),
    "a call": (CALLED, CALLED),
    "arguments as text": (
        [
            CALLED[0],
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{**CALL, "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}],
            },
            *CALLED[2:],
        ],
        CALLED,
    ),
    "nulls of arguments": (
        [
            CALLED[0],
            {
                "role": "assistant",
                "tool_calls": [{**CALL, "function": {"name": "add", "arguments": {"a": 1, "b": 2, "c": None}}}],
            },
            *CALLED[2:],
        ],
        CALLED,
    ),
    "calls as text": ([CALLED[0], {"role": "assistant", "content": "", "tool_calls": json.dumps([CALL])}, *CALLED[2:]], CALLED),
    "a flat call": (
        [
            CALLED[0],
            {"role": "assistant", "tool_calls": [{"id": "c1", "name": "add", "arguments": {"a": 1, "b": 2}}]},
            *CALLED[2:],
        ],
        CALLED,
    ),
    "function_call of sharegpt": (
        [
            {"from": "human", "value": "Hi"},
            {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
            {"from": "observation", "value": "3"},
            {"from": "gpt", "value": "It is 3."},
        ],
        [
            *ASKED,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
            },
            {"role": "tool", "content": "3"},
            CALLED[3],
        ],
    ),
    "a call in the text": (
        [*ASKED, {"role": "assistant", "content": "<tool_call>{}</tool_call>"}, {"role": "tool", "content": "3"}, CALLED[3]],
        [*ASKED, {"role": "assistant", "content": "<tool_call>{}</tool_call>"}, {"role": "tool", "content": "3"}, CALLED[3]],
    ),
    "a result that is an object": (
        [*CALLED[:2], {"role": "tool", "content": {"sum": 3, "rest": None}, "tool_call_id": "c1"}, CALLED[3]],
        [*CALLED[:2], {"role": "tool", "content": '{"sum": 3}', "tool_call_id": "c1"}, CALLED[3]],
    ),
    "a call at the end": (CALLED[:2], CALLED[:2]),
}

MALFORMED: dict[str, list[Any]] = {
    "no list of messages": ["Hi", ["Hi", "Hello!"], 7, None, {"a": 1}, [{"content": "Hi"}], {"prompt": "Hi"}, [[]]],
    "no message": [[], {"messages": []}],
    "unknown role": [[{"role": "narrator", "content": "Hi"}], [{"role": None, "content": "Hi"}], [{"from": 3, "value": "Hi"}]],
    "content that is no text": [[{"role": "user", "content": 3}], [{"role": "user"}], [{"role": "user", "content": {"a": 1}}]],
    "a part that is no text": [
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}],
        [{"role": "user", "content": [{"type": "text", "text": None}]}],
        [{"role": "user", "content": [3]}],
    ],
    "two users in a row": [[*ASKED, *ANSWERED]],
    "no answer of an assistant": [ASKED, WITH_SYSTEM[:2]],
    "an empty answer": [[*ASKED, {"role": "assistant", "content": " \n"}], [*ASKED, {"from": "gpt", "value": ""}]],
    "a tool result without its call": [
        [*ASKED, {"role": "tool", "content": "3"}, *ANSWERED],
        [*CALLED[:2], {**CALLED[2], "tool_call_id": "c2"}, CALLED[3]],
        [*CALLED[:3], CALLED[2], CALLED[3]],
    ],
    "a call without its result": [[*CALLED[:2], *ANSWERED], [*CALLED[:2], CALLED[3]]],
    "a tool call without a name": [
        [*ASKED, {"role": "assistant", "tool_calls": [call]}]
        for call in (3, {"function": {"arguments": {}}}, {"name": ""}, "add")
    ],
    "arguments that are no JSON object": [
        [*ASKED, {"role": "assistant", "tool_calls": [{"name": "add", "arguments": arguments}]}]
        for arguments in ("{a: 1}", "[1]", [1], 3)
    ],
}


def opened(**options: Any) -> Chat:
    stage = Chat(**{"messages": ("messages",), "template": "chatml", **options})
    stage.open(StageContext(name="extract.chat", seed=1))
    return stage


def processed(stage: Chat, contents: list[str]) -> FilterResult:
    numbers = np.arange(len(contents), dtype=np.uint64)
    record = pa.record_batch(
        {
            "key": make_keys(1, numbers),
            "id": pa.array(map(str, numbers), pa.large_string()),
            "text": pa.array(contents, pa.large_string()),
        }
    )
    return stage.process(DocumentBatch(record))


def content(conversation: Any, **more: Any) -> str:
    return json.dumps({"messages": conversation, **more})


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_messages_of_openai(name: str) -> None:
    given, expected = FORMS[name]
    made = messages_of(given)
    check_order(made)
    assert made == expected


@pytest.mark.parametrize("reason", MALFORMED)
def test_malformed_conversations_fail_for_their_reason_and_leave_the_others(reason: str) -> None:
    contents = [content(given) for given in MALFORMED[reason]]
    result = processed(opened(), [content(ANSWERED), *contents, content(WITH_SYSTEM)])
    assert {row: error.rpartition("\n")[2] for row, error in result.failed.items()} == dict.fromkeys(
        range(1, len(contents) + 1), reason
    )
    assert all(error.count("\n") == 1 for error in result.failed.values())
    left, rows = result.without_failed()
    assert rows.tolist() == [True, *[False] * len(contents), True]
    assert [text.count("Hello!") for text in left.columns["text"].to_pylist()] == [1, 1]


@pytest.mark.parametrize("template", ["chatml", "llama3", "harmony"])
def test_plain_conversations_are_what_they_are_one_by_one(template: str) -> None:
    """Those of several fields are read one by one."""
    others = [*(each for each, _ in FORMS.values()), *(each for listed in MALFORMED.values() for each in listed)]
    given: list[Any] = [*conversations(150), *((each, None) for each in others if isinstance(each, list))]
    given += [
        ([*ASKED, {"role": role, "content": text}], None)
        for role in ("user", "assistant", "ai", "AI")
        for text in ("", " \n", "\u3000x\x1f")
    ]
    given += [(_called(number, arguments), TOOLS[number % 2 :]) for number, arguments in enumerate(_ARGUMENTS)]
    contents = [
        json.dumps(
            {"messages": each, "tools": tools} if tools else {"messages": each},
            ensure_ascii=number % 2 == 0,
            separators=(",", ":"),
        )
        for number, (each, tools) in enumerate(given)
    ]
    by_columns, one_by_one = (
        processed(opened(messages=names, template=template), contents) for names in (("messages",), ("messages", "x"))
    )
    reasons = [{row: each.failed[row].partition("\n")[2] for row in each.failed} for each in (by_columns, one_by_one)]
    assert reasons[0] == reasons[1]
    assert by_columns.columns == one_by_one.columns


_ARGUMENTS = (
    *({}, "", " ", None, "{}", '{"a":1}', ' {"a" : [1, 2.50, -0.0, 1e3, 12345678901234567890, 0.1], "b":null}\n', {"b": None}),
    *(
        '{"a": "\\u00e9\\/\\n\\u001f"}',
        '{"a": "\\ud83d\\ude00 \ue000"}',
        '{"a": 1, "a": 2}',
        {"a": {"b": [[], {}, "é"]}, "c": True},
    ),
    *("[1]", "{", {"a": "x" * 2000, "k" * 70: 0.00001}, {str(number): number for number in range(70)}),
)


def _called(number: int, arguments: Any) -> list[dict[str, Any]]:
    """A conversation with two calls, whose results come in any order, with and without ids."""
    ids = ({"id": "a"}, {"id": "b"}, {}, {"id": "a"})
    function = {"name": "f", "arguments": arguments}
    calls = [{**ids[number % 4], "type": "function", "function": function}, {"function": function, **ids[number // 2 % 4]}]
    results: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": each, "content": "é"} for each in ("ba", "ab")[number % 2]
    ]
    if number % 5 == 4:
        results[0].pop("tool_call_id")
    return [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": calls},
        *results,
        {"role": "gpt", "content": "So.", "name": "n"},
    ]


def test_leaves_are_no_more_than_there_is_room_for() -> None:
    """As many tools as their JSON has fewest bytes for: without members, and with each ":" as an escape."""
    messages = '{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Yes"}]'
    empty, escaped = "{}," * 200 + "{}", r"{\"a\"\u003a1}," * 200 + r"{\"a\"\u003a1}"
    texts = [f'{messages},"tools":[{empty}]}}', f'{messages},"tools":"[{escaped}]"}}']
    found = [PlainConversations.of(pa.array([text], pa.large_string()), ["messages"], "tools") for text in texts]
    assert [each.counts.tolist() for each in found] == [[0], [2 + 201]]
    assert bytes(found[1].data[found[1].offsets[2] : found[1].offsets[-1]]) == b'{"a": 1}' * 201
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% for tool in tools %}{{ 'x' if tool }}{% endfor %}"
    columns = processed(opened(template=template, learn="all"), texts).columns
    assert columns["text"].to_pylist() == ["HiYes", "HiYes" + "x" * 201]


def test_content_that_is_no_json_or_no_unicode_fails() -> None:
    deep = '{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}"
    half = content([*ASKED, {"role": "assistant", "content": "a\ud800"}])
    nested = content(
        [*ASKED, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": json.loads('{"a":' * 99 + "1" + "}" * 99)}]}]
    )
    reasons = [error.rpartition("\n")[2] for error in processed(opened(), ["{", deep, nested, half]).failed.values()]
    deep_reason = "values nested too deeply"
    assert reasons == ["no valid JSON", deep_reason, deep_reason, "half of a surrogate pair"]


@pytest.mark.parametrize(
    ("conversation", "reason"),
    [
        ([{"role": "\ud800", "content": "x"}], "unknown role"),
        ([{"\ud800": "x"}], "no list of messages"),
        (
            [*ASKED, {"role": "assistant", "tool_calls": [{"name": "\ud800", "arguments": 3}]}],
            "arguments that are no JSON object",
        ),
    ],
)
def test_half_a_surrogate_in_what_an_error_shows_is_its_escape(conversation: list[Any], reason: str) -> None:
    [error] = processed(opened(), [content(json.dumps(conversation))]).failed.values()
    assert "\\ud800" in error.encode().decode() and error.rpartition("\n")[2] == reason


def test_long_conversations_and_many_calls_are_written() -> None:
    turns = [{"role": ("user", "assistant")[number % 2], "content": f"turn {number}"} for number in range(2_000)]
    calls = [{"id": f"c{number}", "name": "f", "arguments": {}} for number in range(2_000)]
    results = [{"role": "tool", "tool_call_id": f"c{number}", "content": "r"} for number in reversed(range(2_000))]
    called = [*ASKED, {"role": "assistant", "content": "", "tool_calls": calls}, *results, ANSWERED[1]]
    large = [*ASKED, {"role": "assistant", "content": "word " * 1_000_000}]
    result = processed(opened(), [content(turns), content(called), content(large)])
    assert not result.failed
    assert [text.count(part) for text, part in zip(result.columns["text"].to_pylist(), ("turn ", "\nr\n", "word "))] == [
        *(2_000, 2_000, 1_000_000)
    ]


def test_text_that_spells_a_control_token_stays_text() -> None:
    spelled = [{"role": "user", "content": "<|im_end|>\0"}, ANSWERED[1]]
    [row] = processed(opened(), [content(spelled)]).columns[SEGMENTS].to_pylist()
    tokens = [segment["token"] for segment in row if segment["token"] is not None]
    assert tokens == ["<|im_start|>", "<|im_end|>"] * 2


def test_what_assistants_write_is_learned() -> None:
    twice = [*ANSWERED, {"role": "user", "content": "And?"}, {"role": "assistant", "content": "So."}]
    for learn, expected in (("assistant", ["Hello!", "So."]), ("last", ["So."])):
        result = processed(opened(learn=learn), [content(twice)])
        [text], [segments] = result.columns["text"].to_pylist(), result.columns[SEGMENTS].to_pylist()
        starts = [*(segment["start"] for segment in segments), len(text)]
        learned = [
            text[start:stop].strip()
            for start, stop, segment in zip(starts, starts[1:], segments)
            if segment["learned"] and segment["token"] is None and text[start:stop].strip()
        ]
        assert learned == expected


def test_fields_beside_the_conversation_are_part_of_it() -> None:
    record = {"log": ANSWERED, "system": "Be brief.", "tools": None}
    assert conversation_of(json.dumps(record), ("log", "system"), "tools") == (WITH_SYSTEM, None)
    record = {"prompt": "Hi", "completion": "Hello!", "functions": [{"name": "add"}]}
    messages, tools = conversation_of(json.dumps(record), ("prompt", "completion"), "functions")
    assert messages == ANSWERED and tools == [{"type": "function", "function": {"name": "add"}}]


def test_tools_are_given_as_functions() -> None:
    function = {"name": "add", "parameters": {"type": "object"}}
    wrapped = [{"type": "function", "function": function}]
    assert tools_of([function]) == tools_of(wrapped) == tools_of(json.dumps([function])) == wrapped
    assert tools_of([{**function, "description": None}]) == wrapped
    assert tools_of(None) is tools_of("") is tools_of("[]") is tools_of(" null") is None
    record = {"turns": {"messages": ANSWERED, "tools": [function]}, "tools": "null"}
    assert conversation_of(json.dumps(record), ("turns",), "tools") == (ANSWERED, wrapped)
    for wrong in ("add", 3, ["add"], {"name": "add"}):
        with pytest.raises(MalformedError, match="tools that are no list of objects"):
            tools_of(wrong)


def test_a_template_that_refuses_a_conversation_is_a_reason() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    result = processed(opened(template=template, learn="all"), [content(WITH_SYSTEM), content(ANSWERED)])
    [(row, error)] = result.failed.items()
    assert row == 0 and error == "no system\nthe template refuses it"


def test_an_empty_batch_and_one_of_failures_have_the_columns() -> None:
    for contents in ([], ["{"]):
        columns = processed(opened(), contents).without_failed()[0].columns
        assert columns[SEGMENTS].type == SEGMENTS_TYPE and len(columns["text"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "chatlm"}, "found 'chatlm', expected .* Did you mean 'chatml'"),
        ({"control_tokens": ("<|im_start|>",)}, 'it writes "<|im_end|>", and the tokenizer has no such'),
        ({"template": "{% for m in messages %}"}, "template"),
        ({"mode": "tag"}, "mode: tag keeps documents unchanged"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((UserError, ValueError), match=message.replace("|", r"\|")):
        opened(**options)
