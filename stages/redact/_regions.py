"""Regions whose national phone numbers a document may hold, by its URL and its languages.

    url        https://www.nhs.uk/x  ->  .uk     ->  GB           the country of the top-level domain
    html_lang  en-IE                             ->  IE; US, GB…  the country of the tag, and the countries of its language
    language   en, eng_Latn                      ->  US, GB…      `languages`: the first, which is the best

The columns are read where documents have them, and only of documents that hold a candidate. Countries of the URL and of tags
are `main`. Without one, the first country of the language is. The other countries of the language are `others`, whose numbers
must be valid everywhere. Documents about which nothing is known have the regions `DEFAULT`.

A top-level domain of two letters is its country by ISO 3166, but for `uk` and those that are sold as generic (`_GENERIC`, after
Google's list). All others have no country, but for those of `_DOMAINS`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import phonenumbers
import pyarrow as pa

from datapipe.columns import compute as pc

BY_URL, BY_LANGUAGE, BY_DEFAULT = range(3)
"""What the regions of a document are chosen by: the first of these that tells a region."""

_LANGUAGES = """
af afr ZA NA|am amh ET|ar ara arb arz ary EG SA AE MA DZ IQ JO KW LB TN QA OM BH LY SY SD YE PS|as asm IN|az aze azj AZ
be bel BY|bg bul BG|bn ben BD IN|bs bos BA HR RS|ca cat ES AD|cs ces CZ|cy cym GB|da dan DK GL FO|de deu DE AT CH LI LU
dv div MV|dz dzo BT|el ell GR CY|en eng US GB CA AU IE NZ IN ZA|et est ekk EE|eu eus ES FR|fa fas pes IR AF|fi fin FI
fo fao FO|fy fry NL|fr fra FR BE CH CA LU MC MA TN DZ SN CI CM|ga gle IE GB|gd gla GB|gl glg ES|gu guj IN|ha hau NG NE
he iw heb IL|hi hin IN|hr hrv HR BA|ht hat HT|hu hun HU RO|hy hye AM|id ind ID|ig ibo NG|is isl IS|it ita IT CH SM VA
ja jpn JP|jv jav ID|ka kat GE|kk kaz KZ|kl kal GL|km khm KH|kn kan IN|ko kor KR|ky kir KG|lb ltz LU|lo lao LA|lt lit LT
lv lav lvs LV|mg mlg plt MG|mi mri NZ|mk mkd MK|ml mal IN|mn mon khk MN|mr mar IN|ms msa zsm MY SG BN|mt mlt MT|my mya MM
ne nep npi NP|nl nld NL BE SR|no nb nn nor nob nno NO|or ori ory IN|pa pan pnb IN PK|pl pol PL|prs AF|ps pus pbt AF PK
pt por BR PT AO MZ|rm roh CH|ro ron RO MD|ru rus RU KZ BY|rw kin RW|sd snd PK|si sin LK|sk slk SK|sl slv SI|so som SO
sq sqi als AL XK MK|sr srp RS BA ME|st sot ZA LS|su sun ID|sv swe SE FI|sw swa swh KE TZ|ta tam IN LK SG|te tel IN|tg tgk TJ
th tha TH|ti tir ER ET|tk tuk TM|tl fil tgl PH|tn tsn BW ZA|tr tur TR CY|tt tat RU|uk ukr UA|ur urd PK IN|uz uzb uzn UZ
vi vie VN|xh xho ZA|yo yor NG|zh zho cmn CN TW HK MO SG|yue HK CN|zu zul ZA
es spa ES MX AR CO CL PE VE EC GT CU BO DO HN PY SV NI CR PA UY PR US
"""
"""Codes of each language by ISO 639-1 and 639-3, then the countries where it is written most, the largest first."""
_DOMAINS = """
uk scot wales cymru london GB|su moscow рус рф xn--p1ai xn--p1acf москва xn--80adxhks RU|gov edu mil nyc US|бел xn--90ais BY
укр xn--j1amh UA|бг xn--90ae BG|срб xn--90a3ac RS|қаз xn--80ao21a KZ|мкд xn--d1alf MK|мон xn--l1acc MN|ελ xn--qxam GR
中国 中國 xn--fiqs8s xn--fiqz9s CN|香港 xn--j6w193g HK|台湾 台灣 xn--kprw13d xn--kpry57d TW|한국 xn--3e0b707e KR
ไทย xn--o3cw4h TH
भारत xn--h2brj9c IN|berlin hamburg koeln bayern ruhr saarland DE|paris bzh alsace corsica FR|wien tirol AT|swiss zuerich CH
amsterdam frl NL|brussels vlaanderen gent BE|tokyo osaka nagoya kyoto JP|madrid barcelona eus gal ES|istanbul TR
sydney melbourne AU
"""
_GENERIC = "ad ag ai am as bz cc cd co dj fm gg io la ly me ms nu sc sh sr st tk to tv vc ws"
_TOP_LEVEL = r"(?i)^(?:[a-z][a-z0-9+.-]*:)?(?://)?(?:[^/?#@]*@)?[^/?#:@]*\.(?P<name>[^/?#:@.]+)\.?(?::[0-9]*)?(?:[/?#]|$)"


def _by_code(table: str) -> dict[str, tuple[str, ...]]:
    """The regions of each code of a table: codes are in lower case, regions in upper case."""
    regions = {}
    for entry in table.replace("|", "\n").splitlines():
        words = entry.split()
        regions |= dict.fromkeys([word for word in words if not word.isupper()], tuple(filter(str.isupper, words)))
    return regions


class Regions(NamedTuple):
    """Regions of national numbers.

    Attributes:
        main: regions whose possible numbers count behind a word such as tel.
        others: regions whose numbers count where they are valid.
    """

    main: tuple[str, ...]
    others: tuple[str, ...] = ()


DEFAULT = Regions(("US",))


def regions_of(record: pa.RecordBatch, rows: np.ndarray) -> list[tuple[Regions, int]]:
    """The regions of documents, and what they are chosen by: BY_URL, BY_LANGUAGE or BY_DEFAULT.

    Args:
        record: the documents.
        rows: (num_rows,) int64.
    """
    taken = {name: record.column(name).take(pa.array(rows)) for name in _COLUMNS if name in record.schema.names}
    if not taken:
        return [(DEFAULT, BY_DEFAULT)] * len(rows)
    known = [_COLUMNS[name](column) for name, column in taken.items()]
    names = [name == "url" for name in taken]
    return [
        _chosen(
            tuple(value for value, is_url in zip(values, names) if value and is_url),
            tuple(value for value, is_url in zip(values, names) if value and not is_url),
        )
        for values in zip(*known, strict=True)
    ]


def _top_levels(column: pa.Array) -> list[str | None]:
    urls = _strings(column)
    return pc.struct_field(pc.extract_regex(urls, _TOP_LEVEL), "name").to_pylist()


def _strings(column: pa.Array) -> pa.Array:
    """The column as strings; nulls where it has none."""
    values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    return values if is_text else pa.nulls(len(values), pa.string())


def _firsts(column: pa.Array) -> list[str | None]:
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    values = column.to_pylist() if is_list else []
    firsts = [value[0] if value and isinstance(value[0], str) else None for value in values]
    return firsts if is_list else [None] * len(column)


_COLUMNS: dict[str, Any] = {
    "url": _top_levels,
    "html_lang": lambda column: _strings(column).to_pylist(),
    "language": lambda column: _strings(column).to_pylist(),
    "languages": _firsts,
}


@lru_cache(maxsize=1 << 12)
def _chosen(top_levels: tuple[str, ...], tags: tuple[str, ...]) -> tuple[Regions, int]:
    """The regions of top-level domains and tags of languages, and what they are chosen by."""
    of_url = [region for name in top_levels for region in _of_domain(name.lower())]
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


def _of_domain(name: str) -> tuple[str, ...]:
    """The country of a top-level domain, where it has one."""
    country = name.upper()
    is_country = len(name) == 2 and name not in _WITHOUT_COUNTRY and country in phonenumbers.SUPPORTED_REGIONS
    return _OF_DOMAIN.get(name) or ((country,) if is_country else ())


def _of_tag(tag: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The country of a tag such as en-GB, and the countries of its language."""
    language, *subtags = re.split("[-_]", re.split("[,;]", tag.strip())[0])
    countries = ["GB" if subtag.upper() == "UK" else subtag.upper() for subtag in subtags]
    named = tuple(country for country in countries if country in phonenumbers.SUPPORTED_REGIONS)[:1]
    return named, _OF_LANGUAGE.get(language.lower(), ())


_OF_LANGUAGE, _OF_DOMAIN = _by_code(_LANGUAGES), _by_code(_DOMAINS)
_WITHOUT_COUNTRY = frozenset(_GENERIC.split())
