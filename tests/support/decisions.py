"""Decisions of filters on single texts, for tables of one line a case: the rule that drops a text, and what it measured."""

from collections.abc import Mapping
from typing import Any, TypeVar

from datapipe.stage import Filter, FilterResult, StageContext
from datapipe.stage.documents import DocumentBatch
from tests.support.global_stages import batch_of

_Opened = TypeVar("_Opened", bound=Filter)


def opened(stage: _Opened) -> _Opened:
    """The stage, opened as a worker opens it."""
    stage.open(StageContext(name="stage", seed=1))
    return stage


def reasons(stage: Filter, batch: DocumentBatch) -> list[str | None]:
    """The rule that drops each document; None for one that is kept."""
    return _names(stage, stage.process(batch))


def decision(kind: type[Filter], options: Mapping[str, Any], text: str) -> tuple[str | None, float]:
    """The rule that drops a text, or None, and the value."""
    stage = kind.model_validate(options)
    result = stage.process(batch_of([text]))
    return _names(stage, result)[0], float(result.value[0])


def assert_decides(kind: type[Filter], options: Mapping[str, Any], text: str, rule: str | None, value: float = 0) -> None:
    """A text is kept (`rule` is None), or dropped by a rule with a value. A limit that equals the value keeps the text."""
    found = decision(kind, options, text)
    if rule is None:
        assert found[0] is None
        return
    assert found == (rule, value)
    option = next(one.option for one in kind.model_validate(options).rules() if one.name == rule)
    if option:
        limit = int(value) if value == int(value) else value
        assert decision(kind, {**options, option: limit}, text)[0] != rule


def edited(kind: type[Filter], options: Mapping[str, Any], text: str) -> str:
    """The text of a kept document."""
    result = kind.model_validate(options).process(batch_of([text]))
    assert result.keep[0]
    return result.columns["text"][0].as_py() if "text" in result.columns else text


def _names(stage: Filter, result: FilterResult) -> list[str | None]:
    return [None if rule < 0 else stage.rules()[rule].name for rule in result.rule.tolist()]
