"""Filters with published variants: a profile gives the defaults of options, and a language overrides the profile.

    {"profile": "dclm"}    ->  {"words": "unicode", ..., "profile": "dclm"}
    {"language": "de"}     ->  {"profile": "datatrove", "max_mean_word_length": 15, ..., "language": "de"}

The record of a stage holds every value that the stage runs with, and so does its fingerprint.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from datapipe.errors import UserError
from datapipe.stage import Filter
from stages.filter._thresholds.fineweb2 import language_settings


class ProfiledFilter(Filter):
    """A filter with an option `profile`, and perhaps `language`. Options that are given override both."""

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]]
    """The options of each profile that differ from the defaults, as Python values."""

    writes = ()

    of_languages: ClassVar[Mapping[str, Any]] = {}
    """The options that any language implies: the profile of FineWeb-2's thresholds, and the rules that it lacks."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Adds the options of profile and language to the given ones."""
        if not isinstance(given, dict):
            return given
        language = given.get("language") if "language" in cls.model_fields else None
        implied = {} if language is None else cls.of_languages
        profile = given.get("profile", implied.get("profile", cls.model_fields["profile"].default))
        base = {**cls.profiles.get(profile, {}), "profile": profile} if isinstance(profile, str) else {}
        if isinstance(language, str):
            try:
                settings = language_settings(language)
            except UserError as error:
                raise ValueError(str(error)) from error
            own = {name: value for name, value in settings.items() if name in cls.model_fields}
            base = {**base, **implied, **own, "profile": profile}
        # lists of YAML as tuples
        return base | {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
