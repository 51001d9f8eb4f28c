"""Conversations rendered here and by `apply_chat_template` of transformers: the same ids, and the same mask."""

from __future__ import annotations

from typing import Any

import pytest

from stages.extract._chat.sandbox import TODAY
from stages.extract._chat.templates import BUILT_IN, ChatTemplate, built_in
from tests.support.chats import TOKENS, conversations, encoded, encoded_by_transformers, tokenizer_of

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
        found = encoded(encoder, template.render(messages, tools, "assistant"))
        assert found == encoded_by_transformers(fast, built_in(name), messages, tools)


TEMPLATES = {
    "a role within the token": (
        "{{ bos_token }}{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"),
    ),
    "a token in two parts": (
        "{% set start = '<|im_' ~ 'start|>' %}{% for m in messages %}{{ start }}{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}{{ start ~ 'assistant\n' }}{% endif %}",
        TOKENS["chatml"],
    ),
    "contents that are read": (
        "{% for m in messages %}{% set content = m.content %}{% if '</b>' in content %}{% set content = content.split('</b>')[-1] %}"
        "{% endif %}<|im_start|>{{ m.role }}\n{{ content.strip('\n').replace('two', '<think>') }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        TOKENS["chatml"],
    ),
    "what it wrote is cut": (
        "{% set effort = 'high' | capitalize %}{% for m in messages %}{% set text = '<think></think>' ~ m.content if m.role == 'user' "
        "else m.content %}{% if '</think>' in text %}{% set text = text.split('</think>')[-1] ~ '</think>' %}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ effort.upper() ~ text.replace('</', '<think></').strip('> ') }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        TOKENS["chatml"],
    ),
    "what it wrote is read": (
        "{% set ns = namespace(last='none') %}{% for m in messages %}{% if m.role == 'assistant' %}{% set role = 'model' %}{% else %}"
        "{% set role = m.role %}{% endif %}{% if role == 'model' or ns.last.startswith('mod') %}<think>{% endif %}{% set ns.last = role %}"
        "<|im_start|>{{ role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}",
        TOKENS["chatml"],
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_without_generation_tags_give_the_ids_of_transformers(name: str) -> None:
    source, tokens = TEMPLATES[name]
    encoder, fast = tokenizer_of(tokens)
    template = ChatTemplate.load(source, SPECIAL, encoder.control_tokens)
    for messages, tools in conversations(60):
        ids, learned = encoded(encoder, template.render(messages, tools, "all"))
        assert ids == encoded_by_transformers(fast, source, messages, tools)[0]
        assert all(learned)
