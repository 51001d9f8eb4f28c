"""Regions whose national phone numbers a document may hold, by its URL and its languages.

    url        https://www.nhs.uk/x  ->  .uk     ->  GB           the country of the top-level domain
    html_lang  en-IE                             ->  IE; US, GB…  the country of the tag, and the countries of its language
    language   en, eng_Latn                      ->  US, GB…      `languages`: the first, which is the best

Countries of the URL and of tags are `main`, without one the first country of the language. The others of the language are
`others`, whose numbers must be valid everywhere. A top-level domain of two letters is its country by ISO 3166, but for those
that are sold as generic; `rules/regions.txt` has these, and the countries of other domains and of languages.
"""

import re
from collections.abc import Mapping, Set
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from datapipe.columns import compute as pc

BY_URL, BY_LANGUAGE, BY_DEFAULT = range(3)
"""What the regions of a document are chosen by: the first of these that gives a region."""

TABLES = Path(__file__).parent / "rules" / "regions.txt"
"""Countries of languages and of domains: in each section entries of words, separated by | or a new line."""
_TOP_LEVEL = r"(?i)^(?:[a-z][a-z0-9+.-]*:)?(?://)?(?:[^/?#@]*@)?[^/?#:@]*\.(?P<name>[^/?#:@.]+)\.?(?::[0-9]*)?(?:[/?#]|$)"


@cache
def _table(section: str) -> Mapping[str, tuple[str, ...]]:
    content = TABLES.read_text("utf-8").partition(f"[{section}]")[2].partition("\n\n")[0]
    regions: dict[str, tuple[str, ...]] = {}
    for entry in content.replace("|", "\n").splitlines():
        words = entry.split()
        regions |= dict.fromkeys([word for word in words if not word.isupper()], tuple(filter(str.isupper, words)))
    return regions


class Regions(NamedTuple):
    """Regions of national numbers: `main` ones, whose possible numbers count behind a word, and `others`."""

    main: tuple[str, ...]
    others: tuple[str, ...] = ()


DEFAULT = Regions(("US",))


def regions_of(record: pa.RecordBatch, rows: np.ndarray) -> list[tuple[Regions, int]]:
    """The regions of documents, rows of `record`, and what they are chosen by: BY_URL, BY_LANGUAGE or BY_DEFAULT."""
    nothing = [None] * len(rows)
    known = [
        read(record.column(name).take(pa.array(rows))) if name in record.schema.names else nothing
        for name, read in _COLUMNS.items()
    ]
    return [_chosen(url or "", tuple(filter(None, tags))) for url, *tags in zip(*known, strict=True)]


def _strings(column: pa.Array) -> pa.Array:
    values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    return values if is_text else pa.nulls(len(values), pa.string())


def _firsts(column: pa.Array) -> list[str | None]:
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    values = column.to_pylist() if is_list else []
    firsts = [value[0] if value and isinstance(value[0], str) else None for value in values]
    return firsts if is_list else [None] * len(column)


_COLUMNS: dict[str, Any] = {  # the URL is the first
    "url": lambda column: pc.struct_field(pc.extract_regex(_strings(column), _TOP_LEVEL), "name").to_pylist(),
    "html_lang": lambda column: _strings(column).to_pylist(),
    "language": lambda column: _strings(column).to_pylist(),
    "languages": _firsts,
}


@lru_cache(maxsize=1 << 12)
def _chosen(top_level: str, tags: tuple[str, ...]) -> tuple[Regions, int]:
    """The regions of a top-level domain and of tags of languages, and what they are chosen by."""
    of_url = list(_of_domain(top_level.lower()))
    of_tags, spoken = list[str](), list[str]()
    for tag in tags:
        country, countries = _of_tag(tag)
        of_tags += country
        spoken += countries
    if not (of_url or of_tags or spoken):
        return DEFAULT, BY_DEFAULT
    main = tuple(dict.fromkeys(of_url + of_tags)) or (spoken[0],)
    others = tuple(region for region in dict.fromkeys(spoken) if region not in main)
    return Regions(main, others), BY_URL if of_url else BY_LANGUAGE


def supported_regions() -> Set[str]:
    """The regions that have phone numbers: ISO 3166 codes."""
    import phonenumbers

    return phonenumbers.SUPPORTED_REGIONS


def _of_domain(name: str) -> tuple[str, ...]:
    country = name.upper()
    is_country = len(name) == 2 and name not in _table("generic") and country in supported_regions()
    return _table("domains").get(name) or ((country,) if is_country else ())


def _of_tag(tag: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The country of a tag such as en-GB, and the countries of its language."""
    language, *subtags = re.split("[-_]", re.split("[,;]", tag.strip())[0])
    countries = ["GB" if subtag.upper() == "UK" else subtag.upper() for subtag in subtags]
    named = tuple(country for country in countries if country in supported_regions())[:1]
    return named, _table("languages").get(language.lower(), ())
