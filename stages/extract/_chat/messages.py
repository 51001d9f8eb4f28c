"""The forms in which conversations are stored, each as messages in the form of OpenAI.

| form | a conversation is |
|---|---|
| OpenAI | a list of {role, content, tool_calls, tool_call_id, name, reasoning_content or thinking} |
| ShareGPT | a list of {from: human, gpt, system, function_call or observation, value} |
| Dolma | a list of {role, text} |
| pairs | a list of {input, output}, or one object {prompt, completion} or {instruction, input, output} |
| within an object | {messages or conversations: a list, system: a text, tools: a list} |

A value that is text may be JSON text. Members that are null count as absent, also in arguments, because columns of structs
have them for what a row lacks; arguments that are JSON text keep theirs. Other members are not read.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

Message = dict[str, Any]


class MalformedError(Exception):
    """A conversation that is none: what was found, and the reason by which it is counted. Both can be stored: half of a
    surrogate pair is written as its escape."""

    def __init__(self, reason: str, found: str) -> None:
        super().__init__(f"{found}\n{reason}".encode(errors="backslashreplace").decode())


NOT_JSON = "no valid JSON"
TOO_DEEP = "values nested too deeply"
NO_LIST = "no list of messages"
NO_ROLE = "unknown role"
NO_TEXT = "content that is no text"
OTHER_PART = "a part that is no text"
NO_ARGUMENTS = "arguments that are no JSON object"
NO_CALL = "a tool call without a name"
SURROGATE = "half of a surrogate pair"
NO_TOOLS = "tools that are no list of objects"

_ROLES: Mapping[str, Sequence[str]] = {
    "system": ("system",),
    "developer": ("developer",),
    "user": ("user", "human", "prompter"),
    "assistant": ("assistant", "gpt", "model", "bot", "chatgpt", "ai"),
    "tool": ("tool", "function", "observation", "tool_response", "function_response", "ipython", "environment"),
    "function_call": ("function_call", "tool_call"),
}
ROLE_OF = {name: role for role, names in _ROLES.items() for name in names}
_LISTS = ("messages", "conversations", "conversation", "turns", "dialogue", "dialog")
_ASKED, _ANSWERED = ("prompt", "instruction", "question", "query", "input"), ("completion", "output", "response", "answer")
ROLE_NAMES, CONTENTS, CALLS = ("role", "from"), ("content", "value", "text"), ("tool_calls", "function_call")
REASONING, OWN_TEXTS = ("reasoning_content", "thinking", "reasoning"), ("tool_call_id", "name")
"""The members of messages that are read."""

_SHOWN_CHARS = 80
_MOST_LEVELS = 100
_HALF = re.compile(r"\\u[dD]")  # an escape of a surrogate


def conversation_of(content: str, fields: Sequence[str], tools_field: str) -> tuple[list[Message], list[Any] | None]:
    """The messages and tools in the JSON text of fields. Raises MalformedError."""
    try:
        record = _loaded(content)
    except ValueError as error:
        raise MalformedError(NOT_JSON, str(error)) from None
    values = {name: record[name] for name in fields if record.get(name) is not None}
    value = _decoded(next(iter(values.values()), None)) if len(fields) == 1 else values
    if len(fields) > 1 and fields[0] in values and values.keys().isdisjoint(_ANSWERED):
        value = {"messages": values[fields[0]], **values}  # beside others, such as `system`
    inner = value.get("tools") if isinstance(value, dict) else None
    tools = record.get(tools_field)
    given = _given(tools)
    messages, listed = messages_of(value), tools_of(inner if given is None else tools, given)
    if "\\u" in content and _HALF.search(content):
        _check_unicode([messages, listed])
    return messages, listed


def _check_unicode(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise MalformedError(SURROGATE, f"found {error.object[error.start : error.end]!a}, expected whole characters") from None


def messages_of(value: Any) -> list[Message]:
    """The messages of a conversation in any form. Raises MalformedError."""
    listed = _listed(value)
    if listed is None or not all(type(item) is dict for item in listed):
        raise MalformedError(NO_LIST, f"found {_shown(value)}, expected a list of objects with a role and a content")
    made: list[Message] = []
    for number, item in enumerate(listed):
        if "role" in item or "from" in item:
            made.append(_message(number, item))
        else:
            made += _of_pair(number, item)
    return made


def _listed(value: Any) -> list[Any] | None:
    """The items of a conversation, in a list or within an object; None where there are none."""
    value = _decoded(value)
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return None
    system = value.get("system")
    before = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    for name in _LISTS:
        if isinstance(inner := _decoded(value.get(name)), list):
            return [*before, *inner]
    return [*before, value]


def _of_pair(number: int, item: Mapping[str, Any]) -> list[Message]:
    """The messages of a question and its answer."""
    answer = next((item[name] for name in _ANSWERED if item.get(name) is not None), None)
    given = [item[name] for name in _ASKED if item.get(name) is not None]
    asked = [_turns_or_text(value) for value in given if value != ""] or given[:1]
    if answer is None or not asked:
        names = ", ".join(map(str, item)) or "none"
        raise MalformedError(NO_LIST, f"messages[{number}]: found the members {names}, expected a role and a content")
    before = asked[0] if isinstance(asked[0], list) else [{"role": "user", "content": _joined(number, asked)}]
    answer = _turns_or_text(answer)
    behind = answer if isinstance(answer, list) else [{"role": "assistant", "content": answer}]
    return [_message(number + place, message) for place, message in enumerate([*before, *behind])]


def _turns_or_text(value: Any) -> Any:
    """A list of messages, also one that is JSON text; any other value as it is: an answer may be a list in JSON."""
    listed = _decoded(value)
    is_turns = isinstance(listed, list) and all(
        isinstance(each, dict) and ("role" in each or "from" in each) for each in listed
    )
    return listed if is_turns and listed else value


def _joined(number: int, texts: Sequence[Any]) -> str:
    """An instruction and its input, a line each."""
    return "\n".join(_text(number, text) for text in texts)


def _message(number: int, item: Any) -> Message:
    if not isinstance(item, dict):
        raise MalformedError(NO_LIST, f"messages[{number}]: found {_shown(item)}, expected an object with a role and a content")
    name = item.get("role") if item.get("role") is not None else item.get("from")
    role = ROLE_OF.get(name.lower()) if isinstance(name, str) else None
    if role is None:
        raise MalformedError(NO_ROLE, f"messages[{number}]: found {_shown(name)}, expected one of {', '.join(ROLE_OF)}")
    content = item.get(CONTENTS[0])
    if content is None:
        content = next((item[key] for key in CONTENTS if item.get(key) is not None), None)
    if role == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": _calls(number, content)}
    message: Message = {"role": role}
    calls = None
    if role == "assistant":
        calls = _given(item.get("tool_calls")) or _given(item.get("function_call"))
        message |= _reasoning(number, item, content)
    message["content"] = content if type(content) is str else _content(number, role, content, is_needed=not calls)
    if calls:
        message["tool_calls"] = _calls(number, calls)
    for key in OWN_TEXTS:
        if isinstance(value := item.get(key), str) and value:
            message[key] = value
    return message


def _content(number: int, role: str, content: Any, *, is_needed: bool) -> str:
    if content is None and not is_needed:
        return ""
    if role == "tool" and isinstance(content, dict):
        return json.dumps(_without_nulls(content), ensure_ascii=False)
    return _text(number, content)


def _text(number: int, content: Any) -> str:
    """A text, or parts of type text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise MalformedError(NO_TEXT, f"messages[{number}]: found {_shown(content)}, expected a text, or a list of parts")
    texts = [part if isinstance(part, str) else _text_of_part(number, part) for part in content]
    return "".join(texts)


def _text_of_part(number: int, part: Any) -> str:
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if kind in ("thinking", "reasoning"):
        return ""
    text = part.get("text") if kind in ("text", "input_text", "output_text") else None
    if not isinstance(text, str):
        found = f"a part of type {_shown(kind)}" if isinstance(kind, str) and kind != "text" else _shown(part)
        raise MalformedError(OTHER_PART, f"messages[{number}]: found {found}, expected parts of type text")
    return text


def _reasoning(number: int, item: Mapping[str, Any], content: Any) -> Message:
    """What an assistant thought, under both names by which templates ask for it."""
    thought = None
    for key in REASONING:
        if thought is None and isinstance(value := item.get(key), str) and value:
            thought = value
    if thought is None and isinstance(content, list):
        parts = [part.get(part["type"]) for part in content if _is_thought(part)]
        thought = "".join(part for part in parts if isinstance(part, str)) or None
    return {} if thought is None else {"reasoning_content": thought, "thinking": thought}


def _is_thought(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("thinking", "reasoning")


def _calls(number: int, calls: Any) -> list[Message]:
    """Calls of tools, each {id, type: function, function: {name, arguments: an object}}."""
    calls = _decoded(calls)
    listed = calls if isinstance(calls, list) else [calls]
    return [_call(number, call) for call in listed] or _refuse_call(number, calls)


def _call(number: int, call: Any) -> Message:
    call = _decoded(call)
    if not isinstance(call, dict):
        _refuse_call(number, call)
    function = call.get("function")
    function = function if isinstance(function, dict) else call
    name = function.get("name")
    if not isinstance(name, str) or not name:
        _refuse_call(number, call)
    own = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    given = function.get("arguments")
    given = function.get("parameters") if given is None else given
    return {**own, "type": "function", "function": {"name": name, "arguments": _arguments(number, name, given)}}


def _refuse_call(number: int, call: Any) -> NoReturn:
    raise MalformedError(NO_CALL, f"messages[{number}]: found the call {_shown(call)}, expected the name of a function")


def _arguments(number: int, name: str, given: Any) -> dict[str, Any]:
    arguments = given
    if isinstance(given, str):
        arguments = _parsed_arguments(given)
    elif isinstance(given, dict):
        arguments = _without_nulls(given)
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, dict):
        raise MalformedError(NO_ARGUMENTS, f"messages[{number}]: the call of {name}: found {_shown(given)}, expected an object")
    return arguments


def _parsed_arguments(text: str) -> Any:
    try:
        return _loaded(text) if text.strip() else {}
    except ValueError:
        return text


def tools_of(value: Any, given: Any = None) -> list[Any] | None:
    """The tools of a conversation, each {type: function, function: {…}}; None for none. Raises MalformedError. `given`: the
    value without JSON text around it, where it is known."""
    listed = _given(value) if given is None else given
    if listed is None or listed in ("", [], {}):
        return None
    if not isinstance(listed, list) or not all(isinstance(tool, dict) for tool in listed):
        raise MalformedError(NO_TOOLS, f"tools: found {_shown(value)}, expected a list of objects")
    has_nulls = not isinstance(value, str) or "null" in value
    return [_tool(_without_nulls(tool) if has_nulls else tool) for tool in listed]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return tool if "function" in tool or "name" not in tool else {"type": "function", "function": tool}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _decoded(value: Any) -> Any:
    """A value; of a text that is a JSON list or object, what it has."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return _loaded(value)
        except ValueError:
            return value
    return value


def _given(value: Any) -> Any:
    """Calls or tools as `_decoded`; None also for JSON text of null."""
    return None if isinstance(value, str) and value.strip() == "null" else _decoded(value)


def _loaded(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for another text, and MalformedError for one that is nested too deeply. How
    deep Python itself goes depends on its caller."""
    try:
        value = json.loads(text)
        if text.count("{") + text.count("[") < _MOST_LEVELS or not _is_deep(value):
            return value
    except RecursionError:
        pass
    raise MalformedError(TOO_DEEP, f"found objects and lists on more than {_MOST_LEVELS} levels")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MOST_LEVELS):
        inner = (each.values() if type(each) is dict else each for each in level if type(each) in (dict, list))
        level = [child for children in inner for child in children if type(child) in (dict, list)]
        if not level:
            return False
    return True


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError, TypeError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
