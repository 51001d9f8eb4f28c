"""Options that are not given, filled in: by the published profile, and over that by the settings of a language.

    {"profile": "dclm"}    ->  {"words": "unicode", ..., "profile": "dclm"}
    {"language": "de"}     ->  {"profile": "datatrove", "max_mean_word_length": 15, ..., "language": "de"}

So a stage's record holds every value that it runs with, and so does its fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from datapipe.errors import UserError
from stages.filter._fineweb2 import Settings, settings


def filled_in(given: Any, profiles: Mapping[str, Mapping[str, Any]], of_language: Callable[[Settings], dict[str, Any]]) -> Any:
    """The options with those of the profile and the language under them; what is no mapping is left for pydantic to refuse.

    Args:
        given: the options of the mixture.
        profiles: options by profile, the default first. FineWeb-2 ran the last one, which a language therefore implies.
        of_language: the options that a language decides.
    """
    if not isinstance(given, dict):
        return given
    language = given.get("language")
    profile = given.get("profile", next(iter(profiles)) if language is None else list(profiles)[-1])
    base = {**profiles.get(profile, {}), "profile": profile} if isinstance(profile, str) else {}
    if isinstance(language, str):
        try:
            base |= of_language(settings(language))
        except UserError as error:
            raise ValueError(str(error)) from error
    as_written = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}  # strict: no list
    return {**base, **as_written}


def words_of(found: Settings) -> str:
    """What a word is in a language: by Unicode where nothing stands between words, else with signs apart."""
    return (
        "unicode"
        if found.code.partition("_")[2] in ("Hani", "Hans", "Hant", "Jpan", "Thai", "Laoo", "Khmr", "Mymr")
        else "english"
    )
