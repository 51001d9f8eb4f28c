"""Conversations rendered here and by `apply_chat_template` of transformers: the same ids, and the same mask."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stages.extract._chat.sandbox import TODAY
from stages.extract._chat.templates import BUILT_IN, ChatTemplate, built_in
from tests.support.chats import TOKENS, conversations, encoded, encoded_by_transformers, rendered, tokenizer_of

pytestmark = pytest.mark.needs("transformers")

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(autouse=True)
def _same_day(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import chat_template_utils

    class Today:
        @staticmethod
        def now() -> Any:
            return TODAY

    monkeypatch.setattr(chat_template_utils, "datetime", Today)


@pytest.mark.parametrize("count", [40, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_templates_give_the_ids_and_mask_of_transformers(name: str, count: int) -> None:
    encoder, fast = tokenizer_of(TOKENS[name])
    template = ChatTemplate.load(built_in(name), SPECIAL, encoder.control_tokens)
    for messages, tools in conversations(count):
        found = encoded(encoder, rendered(template, messages, tools, "assistant"))
        assert found == encoded_by_transformers(fast, built_in(name), messages, tools)


ROLE_IN_TOKEN = """
{{- bos_token }}
{%- for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{{ '\n' }}{% endif %}"""

TOKEN_IN_TWO_PARTS = """
{%- set start = '<|im_' ~ 'start|>' %}
{%- for m in messages %}
{{ start }}{{ m['role'] ~ '\n' }}{{ m['content'] | trim }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}{{ start ~ 'assistant\n' }}{% endif %}"""

READS_CONTENTS = """
{%- for m in messages %}
    {%- set content = m.content %}
    {%- if '</b>' in content %}{% set content = content.split('</b>')[-1] %}{% endif %}
<|im_start|>{{ m.role }}
{{ content.strip('\n').replace('two', '<think>') }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"""

CUTS_WHAT_IT_WROTE = """
{%- set effort = 'high' | capitalize %}
{%- for m in messages %}
    {%- set text = '<think></think>' ~ m.content if m.role == 'user' else m.content %}
    {%- if '</think>' in text %}{% set text = text.split('</think>')[-1] ~ '</think>' %}{% endif %}
<|im_start|>{{ m.role }}
{{ '<%s>%d%%' | format('think', 5) ~ effort.upper() ~ text.replace('</', '<think></').strip('> ') }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"""

READS_WHAT_IT_WROTE = """
{%- set ns = namespace(last='none') %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = m.role %}{% endif %}
    {%- if role == 'model' or ns.last.startswith('mod') %}<think>{% endif %}
    {%- set ns.last = role %}
<|im_start|>{{ role }}
{{ m.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>model{{ '\n' }}{% endif %}"""

TEMPLATES = {
    "a role within the token": (ROLE_IN_TOKEN, ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")),
    "a token in two parts": (TOKEN_IN_TWO_PARTS, TOKENS["chatml"]),
    "contents that are read": (READS_CONTENTS, TOKENS["chatml"]),
    "what it wrote is cut": (CUTS_WHAT_IT_WROTE, TOKENS["chatml"]),
    "what it wrote is read": (READS_WHAT_IT_WROTE, TOKENS["chatml"]),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_without_generation_tags_give_the_ids_of_transformers(name: str) -> None:
    source, tokens = TEMPLATES[name]
    encoder, fast = tokenizer_of(tokens)
    template = ChatTemplate.load(source, SPECIAL, encoder.control_tokens)
    for messages, tools in conversations(60):
        ids, learned = encoded(encoder, rendered(template, messages, tools, "all"))
        assert ids == encoded_by_transformers(fast, source, messages, tools)[0]
        assert all(learned)


def installed_templates() -> list[str]:
    """The chat templates in the code of transformers: in 5.23 those of SmolVLM and Qwen 2 Audio."""
    spec = find_spec("transformers")
    assert spec is not None and spec.origin is not None
    sources = [path.read_text("utf-8") for path in sorted(Path(spec.origin).parent.glob("models/*/processing_*.py"))]
    trees = [ast.parse(source) for source in sources if "in messages" in source]
    texts = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [text for text in texts if isinstance(text, str) and re.search(r"\{% ?for .* in messages", text)]


def test_templates_within_transformers_give_its_ids() -> None:
    templates = installed_templates()
    assert templates
    for source in templates:
        tokens = tuple(sorted(set(re.findall(r"<\|?\w+\|?>", source))))
        encoder, fast = tokenizer_of(tokens)
        template = ChatTemplate.load(source, SPECIAL, encoder.control_tokens)
        for messages, _ in conversations(20):
            in_parts = [{**m, "content": [{"type": "text", "text": m.get("content", "")}]} for m in messages]
            ids, _ = encoded(encoder, rendered(template, in_parts, None, "all"))
            assert ids == encoded_by_transformers(fast, source, in_parts, None)[0]
