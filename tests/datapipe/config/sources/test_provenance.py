from typing import Any

import pytest

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
