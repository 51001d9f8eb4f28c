from typing import Any

import pytest
from pydantic import ValidationError

from datapipe.config import Mixture


def _source(**more: Any) -> dict[str, Any]:
    return {"name": "m", "output": "runs/m", "sources": {"web": {"path": "a", **more}}}


@pytest.mark.parametrize(
    ("written", "dates"),
    [
        ("2024-05-17", ("2024-05-17", "2024-05-17")),
        ("2024-02", ("2024-02", "2024-02")),
        (2024, ("2024", "2024")),
        ({"from": "2023-11", "to": "2024-05-17"}, ("2023-11", "2024-05-17")),
        ({"from": "2024-05-17", "to": "2024-05"}, ("2024-05-17", "2024-05")),
        ({"from": 2020, "to": 2024}, ("2020", "2024")),
    ],
)
def test_collected_is_a_date_or_a_range(written: Any, dates: tuple[str, str]) -> None:
    mixture = Mixture.model_validate(_source(collected=written))
    assert mixture.sources["web"].collected == dates
    assert Mixture.model_validate(mixture.model_dump()) == mixture


@pytest.mark.parametrize(
    "written",
    ["2024-13", "2023-02-29", "May 2024", True, 24, "", {"from": "2024"}, {"from": "2024-06", "to": "2024-05"}, ["2024"]],
)
def test_collected_that_is_not_in_the_calendar_is_refused(written: Any) -> None:
    with pytest.raises(ValidationError, match="expected"):
        Mixture.model_validate(_source(collected=written))


@pytest.mark.parametrize("written", ["example.org", "file:///etc/passwd", "https://", "javascript:alert(1)", "https://a b"])
def test_a_homepage_is_a_web_page(written: str) -> None:
    assert Mixture.model_validate(_source(homepage="https://example.org/a?b=c#d")).sources["web"].homepage
    with pytest.raises(ValidationError, match="URL that begins with https://"):
        Mixture.model_validate(_source(homepage=written))
