"""Filters with published variants: options that are not given are filled in by a profile, and over that by a language.

    {"profile": "dclm"}    ->  {"words": "unicode", ..., "profile": "dclm"}
    {"language": "de"}     ->  {"profile": "datatrove", "max_mean_word_length": 15, ..., "language": "de"}

So a stage's record holds every value that it runs with, and so does its fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from datapipe.errors import UserError
from datapipe.stage import Filter
from stages.filter._fineweb2 import Settings, settings

_WITHOUT_SPACES = ("Hani", "Hans", "Hant", "Jpan", "Thai", "Laoo", "Khmr", "Mymr")


class ProfiledFilter(Filter):
    """A filter with an option `profile`, and perhaps `language`. Given options win over both."""

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]]
    """By profile, the options that differ from the defaults, as Python values."""

    profile_of_languages: ClassVar[str] = ""
    """The profile that FineWeb-2's thresholds belong to, which a language implies."""

    @classmethod
    def of_language(cls, found: Settings) -> dict[str, Any]:
        """The options that a language decides."""
        return {}

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """The options with the others under them; what is no mapping or profile is left for pydantic to refuse."""
        if not isinstance(given, dict):
            return given
        language = given.get("language") if "language" in cls.model_fields else None
        implied = cls.model_fields["profile"].default if language is None else cls.profile_of_languages
        profile = given.get("profile", implied)
        base = {**cls.profiles.get(profile, {}), "profile": profile} if isinstance(profile, str) else {}
        if isinstance(language, str):
            try:
                base |= cls.of_language(settings(language))
            except UserError as error:
                raise ValueError(str(error)) from error
        options = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}  # no longer JSON
        return {**base, **options}


def words_of(found: Settings) -> str:
    """What a word is in a language: by Unicode where nothing stands between words, else with signs apart."""
    return "unicode" if found.code.partition("_")[2] in _WITHOUT_SPACES else "english"
