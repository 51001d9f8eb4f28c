"""Conversations made by rule, tools for them, and tokenizers of `transformers` that have the control tokens of templates."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import AddedToken, Tokenizer

from datapipe.columns import text_buffers
from datapipe.stage.segments import SEGMENTS_TYPE, segments_of, text_and_segments
from datapipe.tokens import Encoder
from datapipe.tokens.segments import encode_segments
from stages.extract._chat.filling import Filling
from stages.extract._chat.templates import ChatTemplate, Learn
from tests.support.chat_tokenizer import chat_tokenizer

Message = dict[str, Any]

TOKENS = {
    "chatml": ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"),
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"),
    "harmony": ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
}

_WORDS = (
    *(
        "hello",
        "how",
        "are you",
        "fine,\n\n",
        "thanks!",
        "é漢字",
        "🙂🏽",
        "מה",
        "  two  ",
        "\t",
        "\n",
        "1.5",
        "e\u0301",
        "user",
        "assistant",
    ),
    *("{{ 7 * 7 }}", "{% for x in y %}", "{# note #}", "{%- endgeneration -%}", "'\"\\", "</b>", "<p>", "[x]"),
    *("\r\n", "\u200b", "\u2028", "\x00"),
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Gets the weather.\nOf a place.",
            "parameters": {
                "type": "object",
                "properties": {
                    "location": {"type": "string", "description": "The city, e.g. São Paulo"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "at": {"type": "object", "properties": {"hour": {"type": ["number", "null"]}}},
                },
                "required": ["location"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "get_time", "description": "", "parameters": {"type": "object", "properties": {}}},
    },
]


def conversations(count: int, seed: int = 5, words: Iterable[str] = _WORDS) -> list[tuple[list[Message], list[Any] | None]]:
    """Conversations and their tools: with and without system messages, calls of tools and their results, reasoning."""
    rng = random.Random(seed)
    return [_conversation(rng, tuple(words)) for _ in range(count)]


def _conversation(rng: random.Random, words: tuple[str, ...]) -> tuple[list[Message], list[Any] | None]:
    def text(least: int = 1) -> str:
        return rng.choice(("", " ")).join(rng.choices(words, k=rng.randrange(least, 12)))

    tools = TOOLS[: rng.randrange(1, 3)] if rng.random() < 0.4 else None
    messages: list[Message] = [{"role": "system", "content": text(0)}] if rng.random() < 0.5 else []
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": text()})
        reasoning = {"reasoning_content": text()} if rng.random() < 0.3 else {}
        if tools and rng.random() < 0.6:
            identity = f"call{rng.randrange(10**5):05}"
            call = {"name": "get_weather", "arguments": {"location": text(), "days": [1, 2]}}
            of_call = {"id": identity, "type": "function", "function": call}
            messages.append({"role": "assistant", "content": text(0), "tool_calls": [of_call], **reasoning})
            messages.append({"role": "tool", "tool_call_id": identity, "name": "get_weather", "content": text()})
        messages.append({"role": "assistant", "content": text(), **reasoning})
    return (messages if rng.random() < 0.9 else messages[:-1]), tools


def rendered(template: ChatTemplate, messages: list[Message], tools: list[Any] | None, learn: Learn) -> list[dict[str, Any]]:
    """The segments of a conversation by a template, each with its text or its token."""
    filling = Filling(1, np.zeros(1, np.int64), np.zeros(0, np.uint8))
    form, texts = template.filled(messages, tools, learn)
    filling.add_texts(form, 0, texts)
    columns = filling.columns()
    text, rows = columns[0][0].as_py().encode(), columns[1][0].as_py()
    stops = [*(row["start"] for row in rows[1:]), len(text)]
    shown = [
        {"text": text[row["start"] : stop].decode()} if row["token"] is None else {"token": row["token"]}
        for row, stop in zip(rows, stops)
    ]
    return [{**each, "learn": row["learned"]} for each, row in zip(shown, rows)]


@cache
def tokenizer_of(tokens: tuple[str, ...]) -> tuple[Encoder, Any]:
    """A byte-level tokenizer with control tokens: as our encoder, and for `transformers`."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = chat_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])
    content = tokenizer.to_str()
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(content), bos_token="<s>", eos_token="</s>")
    return Encoder(content.encode()), fast


def encoded(encoder: Encoder, segments: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """The ids of a document of segments, and whether each is learned."""
    text, rows = text_and_segments(segments)
    texts = pa.array([text], pa.large_string())
    made = encode_segments(encoder, texts, segments_of(pa.array([rows], SEGMENTS_TYPE), text_buffers(texts)[0]))
    assert made.learned is not None
    return made.ids.tolist(), made.learned.astype(int).tolist()


def encoded_by_transformers(
    fast: Any, template: str, messages: list[Message], tools: list[Any] | None, special_tokens: Mapping[str, str] | None = None
) -> tuple[list[int], list[int]]:
    """The same by `apply_chat_template`, on the day that templates write here."""
    found = fast.apply_chat_template(
        messages, tools, chat_template=template, return_assistant_tokens_mask=True, **(special_tokens or {})
    )
    return found["input_ids"], found["assistant_masks"]
