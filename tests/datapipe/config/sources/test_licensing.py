from typing import Any

import pytest
from pydantic import ValidationError

from datapipe.config import Mixture
from datapipe.config.stage_use import StageUse

WEIGHTS = {"web": {"path": "a", "weight": 3}, "gen": {"path": "b", "weight": 1, "synthetic": {"model": "m"}}}


def _mixture(**more: Any) -> Mixture:
    return Mixture.model_validate({"name": "m", "output": "runs/m", "sources": {"web": {"path": "a"}}, **more})


def _web(**more: Any) -> dict[str, Any]:
    return {"web": {"path": "a", **more}}


def test_a_source_must_have_a_licence_that_is_allowed() -> None:
    with pytest.raises(ValidationError):
        _mixture(licenses=["mit"])
    with pytest.raises(ValidationError):
        _mixture(licenses=["mit", "unknown"], sources=_web(license="gpl-3.0-only"))
    assert _mixture(licenses=["mit", "unknown"]).stages_of("web") == ()
    assert _mixture(licenses="MIT", sources=_web(license="mit OR gpl-3.0-only")).stages_of("web") == ()


def test_documents_with_licences_are_filtered_first_or_where_the_stages_say() -> None:
    def stages(*listed: Any, allowed: tuple[str, ...] = ("MIT",), **source: Any) -> list[tuple[str, Any]]:
        mixture = _mixture(licenses=allowed, stages=list(listed), sources=_web(license_field="terms", **source))
        return [(use.alias, use.options) for use in mixture.stages_of("web")]

    options = {"field": "terms", "allowed": ["MIT"], "missing": "drop"}
    assert stages("dedup.exact") == [("filter.license", options), ("dedup.exact", {})]
    assert stages("dedup.exact", license="mit")[0] == ("filter.license", options | {"missing": "keep"})
    assert stages("dedup.exact", license="isc")[0] == ("filter.license", options)
    assert stages("dedup.exact", allowed=("MIT", "unknown"))[0][1]["missing"] == "keep"
    named: Any = {"filter.license": {"as": "terms", "missing": "keep"}}
    assert stages("extract.html", named) == [("extract.html", {}), ("terms", options | {"missing": "keep"})]
    assert _mixture(stages=["dedup.exact"], sources=_web(license_field="terms")).stages_of("web") == (
        StageUse(name="dedup.exact", alias="dedup.exact"),
    )
    with pytest.raises(ValidationError):
        stages({"filter.field": {"field": "terms", "drop": ["x"], "as": "filter.license"}})


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({}, False),
        ({"field": "terms", "allowed": ["mit"]}, False),
        ({"allowed": ["MIT", "ISC OR mit"]}, False),
        ({"allowed": ["MIT", "CC-BY-NC-4.0"]}, True),
        ({"allowed": ["MIT", "unknown"]}, True),
        ({"field": "url"}, True),
        ({"mode": "tag"}, True),
    ],
)
def test_a_filter_in_the_stages_does_not_undo_the_list(options: dict[str, Any], is_refused: bool) -> None:
    def mixture(*listed: Any) -> Mixture:
        return _mixture(licenses=["MIT"], stages=list(listed), sources=_web(license_field="terms", keep=["url"]))

    if not is_refused:
        mixture({"filter.license": options})
        return
    with pytest.raises(ValidationError, match=r"filter.license has options that undo `licenses` \((allowed|field|mode)\)"):
        mixture({"filter.license": options})
    mixture("filter.license", {"filter.license": {**options, "as": "second"}})


def test_a_field_with_licences_is_kept_once() -> None:
    assert _mixture(sources=_web(license_field="terms", keep=["url"])).sources["web"].kept_fields == {
        "url": "url",
        "terms": "terms",
    }
    assert _mixture(sources=_web(license_field="url", keep=["url"])).sources["web"].kept_fields == {"url": "url"}


def test_more_synthetic_text_than_is_allowed_is_refused() -> None:
    assert _mixture(sources=WEIGHTS, mixture={"max_synthetic": "25%"})
    with pytest.raises(ValidationError, match=r"25\.00% of the tokens from sources that models wrote \(gen\), and 24\.90%"):
        _mixture(sources=WEIGHTS, mixture={"max_synthetic": 0.249})
    phases = [{"until": "50%", "weights": {"web": 1}}, {"until": 1, "weights": {"gen": 1}}]
    with pytest.raises(ValidationError, match=r"50\.00%"):
        _mixture(sources=WEIGHTS, mixture={"max_synthetic": 0.4, "tokens": 1000, "phases": phases})
    assert _mixture(sources=WEIGHTS, tokenizer="none", mixture={"max_synthetic": 0})
