from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from datapipe.stage.percent import Share


@pytest.mark.parametrize(
    ("written", "share"), [("50%", 0.5), (" 29 % ", 0.29), ("0.07%", 0.0007), ("0.47%", 0.0047), (".5%", 0.005), (0.5, 0.5)]
)
def test_percentage_is_the_number_nearest_to_it(written: str | float, share: float) -> None:
    assert TypeAdapter(Share).validate_python(written) == share


@pytest.mark.parametrize("written", ["50", "half", "%", "-1%", "101%", 1.5])
def test_share_that_is_none_is_refused(written: str | float) -> None:
    with pytest.raises(ValueError, match=r"share from 0 to 1|equal to"):
        TypeAdapter(Share).validate_python(written)
