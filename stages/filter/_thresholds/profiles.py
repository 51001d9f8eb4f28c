"""Filters with published variants: a profile gives the defaults of options.

    {"profile": "dclm"}    ->  {"words": "unicode", ..., "profile": "dclm"}

The record of a stage holds every value that the stage runs with, and so does its fingerprint.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from datapipe.stage import Filter


class ProfiledFilter(Filter):
    """A filter with an option `profile`. Options that are given override it."""

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]]
    """The options of each profile that differ from the defaults, as Python values."""

    writes = ()

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Adds the options that the given ones imply."""
        if not isinstance(given, dict):
            return given
        # lists of YAML as tuples
        return {name: tuple(value) if isinstance(value, list) else value for name, value in cls._completed(given).items()}

    @classmethod
    def _completed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        profile = given.get("profile", cls.model_fields["profile"].default)
        return {**cls._with_profile(profile), **given}

    @classmethod
    def _with_profile(cls, profile: Any) -> dict[str, Any]:
        return {**cls.profiles.get(profile, {}), "profile": profile} if isinstance(profile, str) else {}
