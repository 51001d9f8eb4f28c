"""Conversations filled into a form are those that their template renders, whatever it does with contents."""

from __future__ import annotations

from typing import Any

import pytest

from stages.extract._chat.templates import BUILT_IN, ChatTemplate, TemplateError, built_in
from tests.support.chats import conversations, rendered

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

NOT_READING = (
    "{{ m.content }}",
    "{{ m['content'] | trim }}",
    "{{ m.content.strip() }}",
    "{{ m.content ~ '<|end|>' ~ m.content }}",
    "{{ m.content * 2 }}",
    "{{ m.content or 'nothing' }}",
    "{% if m.content is string %}{{ m.content | string }}{% endif %}",
    "{{ m.content | default('nothing') }}",
    "{{ 'has one' if 'content' in m }}{{ m.get('content') }}",
    "{% set n = namespace(c=m.content) %}{{ n.c }}",
    "{% for name, value in m.items() %}{{ name }}={{ value }}{% endfor %}",
    "{% macro shown(x) %}[{{ x }}]{% endmacro %}{{ shown(m.content) }}",
    "{{ m.content | tojson }}{{ m | tojson(indent=2) }}{{ {'a': [m.content ~ m.role, 1]} | tojson }}",
    "{{ m.content | trim | trim ~ m.content.lstrip() ~ m.content.rstrip().strip() }}{{ (' a ' ~ m.content).strip() }}",
    "{{ (m.content ~ m.content).rstrip() ~ (m.content | tojson | trim) }}",
    "{{ '<|end|>' ~ (['<|end|>', m.content | trim] | tojson) }}",
    "{{ messages[1:] | length }}{{ (messages | last).content }}{{ loop.index % 2 }}",
)
READING = (
    "{{ m.content[0] }}",
    "{{ m.content[:3] }}",
    "{{ (m.content ~ 'xyz')[-3:] }}",
    "{{ m.content | upper }}",
    "{{ m.content.upper() }}",
    "{{ m.content | length }}",
    "{{ 'a' if 'x' in m.content else 'b' }}",
    "{{ 'a' if m.content == 'xx' else 'b' }}",
    "{{ m.content < 'm' }}",
    "{{ m.content.split('x')[0] }}",
    "{{ m.content.rstrip('x') }}",
    "{{ m }}",
    "{{ m ~ '' }}",
    "{{ m.values() | list | string }}",
    "{{ m.values() | sort | join(',') }}",
    "{{ m.values() | max }}",
    "{{ m | dictsort }}",
    "{{ (m.content | safe).upper() }}",
    "{% set c %}<b>{{ m.content }}{% endset %}{{ c.title() }}",
    "{{ m.content.replace('x', 'y') }}",
    "{{ m.content | replace('x', 'y') }}",
    "{{ '%.1s' % m.content }}",
    "{{ '%r' % m.content }}",
    "{{ m.content % () }}",
    "{{ '{:>9}'.format(m.content) }}",
    "{{ m.content.format(1) }}",
    "{{ 'xyx'.count(m.content) }}",
    "{{ (m.content ~ 'x').endswith('xx') }}",
    "{% set c = '<think>' ~ m.content %}{{ c.split('x')[-1] }}",
    "{% for each in m.content %}{{ each }}-{% endfor %}",
    "{{ 'same' if m == messages[0] }}",
    "{{ 'same' if m.content == messages[0].content }}",
    "{{ messages | map(attribute='content') | join(',') }}",
    "{{ messages | selectattr('content', 'equalto', 'xx') | list | length }}",
    "{{ messages | map(attribute='content') | sort | first }}",
    "{{ m.content is upper }}",
    "{{ m.content is in 'xx yy' }}",
    "{{ m.content | first }}",
    "{{ m.content | int }}",
    "{{ m.content.isdigit() }}",
    "{{ {'xx': 'found'}.get(m.content, 'none') }}",
    "{{ {'xx': 'found'}[m.content] }}",
    "{{ [m.content, 'b'] | min }}",
    "{{ m.content | wordcount }}",
    "{{ m.content | indent }}",
    "{% filter upper %}{{ m.content }}{% endfilter %}",
    "{{ loop.changed(m.content) }}",
    "{{ m.content | e }}",
)
CONTENTS = (
    *("xx", "x y", "  stands apart ", "XX", "7", "y", "", "line\nend\n"),
    *("a % b {0} \\ ' \" <|end|> {{ m }}", "\U000f0000", "\ue000 é"),
)


def _rendered(template: ChatTemplate, messages: list[dict[str, Any]], learn: Any, tools: Any = None) -> Any:
    try:
        return rendered(template, messages, tools, learn)
    except TemplateError as error:
        return str(error)


def _without_forms(text: str, tokens: tuple[str, ...] = ("<|end|>",)) -> tuple[ChatTemplate, ChatTemplate]:
    each, with_forms = (ChatTemplate.load(text, SPECIAL, tokens) for _ in range(2))
    each._forms = None
    return each, with_forms


@pytest.mark.parametrize("expression", [*NOT_READING, *READING])
def test_filled_conversations_are_those_that_the_template_renders(expression: str) -> None:
    text = "{% for m in messages %}<|end|>{{ m.role }}:" + expression + "{% endfor %}"
    each, with_forms = _without_forms(text)
    is_filled = []
    for number, content in enumerate(CONTENTS):
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": CONTENTS[number - 1]}]
        assert _rendered(with_forms, messages, "all") == _rendered(each, messages, "all")
        assert with_forms._forms is not None
        is_filled.append(with_forms._forms.filled(messages, None, "all") is not None)
    assert any(is_filled) == (expression in NOT_READING)


READING_CALLS = (
    "{{ call.function.arguments.location }}",
    "{{ call.function.arguments['location'] }}",
    "{{ call.function.arguments | length }}",
    "{{ call.function.arguments }}",
    "{{ call.function.arguments ~ '' }}",
    "{{ 'x' if call.function.arguments == {} }}",
    "{{ 'x' if 'days' in call.function.arguments }}",
    "{% for name in call.function.arguments %}{{ name }}{% endfor %}",
    "{% for name, value in call.function.arguments.items() %}{{ name }}{% endfor %}",
    "{{ dict(call.function.arguments, x=1) | length }}",
    "{{ tools[0].function.name }}",
    "{{ tools[0] | dictsort }}",
    "{{ tools | tojson | length }}",
)


@pytest.mark.parametrize("expression", READING_CALLS)
def test_calls_that_a_template_reads_are_those_that_it_renders(expression: str) -> None:
    each, with_forms = _without_forms(
        "{% for m in messages %}{{ m.role }}{% for call in m.tool_calls or [] %}" + expression + "{% endfor %}{% endfor %}"
    )
    num_called = 0
    for messages, tools in conversations(40):
        assert _rendered(with_forms, messages, "all", tools) == _rendered(each, messages, "all", tools)
        assert with_forms._forms is not None
        num_called += (is_called := any("tool_calls" in message for message in messages))
        assert not is_called or with_forms._forms.filled(messages, tools, "all") is None
    assert num_called > 5


@pytest.mark.parametrize("learn", ["all", "assistant", "last"])
@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_templates_are_filled(name: str, learn: Any) -> None:
    each, with_forms = _without_forms(built_in(name), ())
    num_filled = {True: 0, False: 0}
    for messages, tools in conversations(200):
        assert _rendered(with_forms, messages, learn, tools) == _rendered(each, messages, learn, tools)
        assert with_forms._forms is not None
        num_filled[tools is None] += with_forms._forms.filled(messages, tools, learn) is not None
    assert num_filled[True] > 10 and (num_filled[False] > 10) == (name != "harmony")
