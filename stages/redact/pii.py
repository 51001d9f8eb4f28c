"""Replaces personal data in the text: addresses, phone numbers, and numbers of cards, accounts and persons.

| kind | what is replaced |
|---|---|
| `email` | e-mail addresses in any script, also with `%40` or `＠`; not `git@host.com:team/project.git` or `pkg@2.0.0.rc` |
| `ip` | public IP addresses of hosts; not versions (`numpy==1.2.3.4`, `gem "rails", "4.2.7.1"`) |
| `phone` | with `+`: numbers of any region; without: numbers of `phone_regions`, with a word such as tel, or by their shape |
| `card`, `iban` | numbers of payment cards, of bank accounts |
| `ssn` | US social security numbers; taxpayer numbers beside a word such as tax |
| `url_credentials` | the `user:password@` of a URL |

A phone number that is known by its shape alone must have an assigned area; behind a `+` or a word, of some seventy languages
(`kernels/redact/phone_words.py`), the length that its country has. A date after such a word is not replaced. `phone_regions:
auto` takes the countries of a document's URL and languages (`_regions.py`). The report counts how the regions were chosen.

Numbers may be typeset, with no-break spaces, dashes such as U+2011 and U+2013, and fullwidth digits. Four groups of digits
count as an address unless their context makes them a version: a missed address harms a person, a replaced version harms a line
of code. Names and streets are not replaced. stages/README.md has the recall by kind; precision is 1.0 on the same sets.

The replacement of a span is a function of its bytes, the name of the stage and the seed of the run. Redacting the output again
changes nothing; with `replace: delete`, text that moves together may form a new span.
"""

from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator

from datapipe.dataclass import replace
from datapipe.kernels.redact import identifiers, phones, pii
from datapipe.kernels.redact.spans import FoundSpans
from datapipe.stage import FilterResult
from datapipe.stage.base import PHONE_REGIONS
from datapipe.stage.documents import DocumentBatch
from stages.redact import _regions
from stages.redact._edit import Redacting

Kind = Literal["email", "ip", "phone", "card", "iban", "ssn", "url_credentials"]
_KINDS: tuple[Kind, ...] = ("email", "ip", "phone", "card", "iban", "ssn", "url_credentials")
_TAGS = (b"<EMAIL>", b"<IP>", b"<IP>", b"<CREDENTIALS>@", b"<CARD>", b"<IBAN>", b"<SSN>", b"<PHONE>")
_WANTS = {"card": identifiers.WANTS_CARD, "iban": identifiers.WANTS_IBAN, "ssn": identifiers.WANTS_SSN}


class Pii(Redacting):
    """Replaces e-mail and IP addresses, phone, card, account and social security numbers, and passwords in URLs."""

    kinds: tuple[Kind, ...] = Field(default=_KINDS, min_length=1, description=f"Kinds of data to replace: {', '.join(_KINDS)}.")
    phone_regions: Literal["auto"] | tuple[str, ...] = Field(
        default="auto",
        description="Regions of national phone numbers, as ISO 3166 codes: [US, DE]. auto: the countries of the top-level "
        "domain in the column `url` and of the languages in `html_lang`, `language` and `languages`, where documents have "
        "them; US where they have none. A national number must have an unambiguous shape, or follow a word such as tel, fax, "
        "телефон or 電話. Numbers with + may be of any region.",
    )
    replace: Literal["tag", "fake", "delete"] = Field(
        default="tag",
        description="The replacement. tag: <EMAIL>, <IP>, <PHONE>, <CARD>, <IBAN>, <SSN> or <CREDENTIALS>. fake: an invalid or "
        "reserved value of the same kind; equal values get equal replacements throughout the run. delete: nothing.",
    )

    libraries: ClassVar[tuple[str, ...]] = ("phonenumbers", "pyarrow")
    counts: ClassVar[tuple[str, ...]] = _KINDS + PHONE_REGIONS
    tags = _TAGS
    span_kinds: ClassVar[tuple[str, ...]] = ("email", "ip", "ip", "url_credentials", "card", "iban", "ssn", "phone")
    stand_ins = tuple(range(len(_TAGS)))

    def input_files(self) -> tuple[str, ...]:
        return (str(_regions.TABLES),) if self.phone_regions == "auto" and "phone" in self.kinds else ()

    @property
    def _has_numbers(self) -> bool:
        return not {*_WANTS, "phone"}.isdisjoint(self.kinds)

    def unused_kernels(self) -> tuple[str, ...]:
        return super().unused_kernels() if self._has_numbers else (*super().unused_kernels(), f"{identifiers.__name__}:")

    @field_validator("phone_regions")
    @classmethod
    def _check_regions(cls, regions: Literal["auto"] | tuple[str, ...]) -> Literal["auto"] | tuple[str, ...]:
        unknown = [] if regions == "auto" else [each for each in regions if each not in _regions.supported_regions()]
        if unknown:
            raise ValueError(
                f"'{unknown[0]}' is not a region with phone numbers; expected an ISO 3166 code such as US, GB or DE"
            )
        return regions

    def process(self, batch: DocumentBatch) -> FilterResult:
        chosen = np.zeros((batch.num_docs, len(PHONE_REGIONS)), np.int32)

        def find(offsets: np.ndarray, data: np.ndarray, rows: np.ndarray) -> FoundSpans:
            return self.find(offsets, data, rows, batch.record, chosen)

        result = self.redacted(batch, find)
        choices = {name: pa.array(chosen[:, column]) for column, name in enumerate(PHONE_REGIONS)}
        return replace(result, columns={**result.columns, **choices})

    def find(
        self, offsets: np.ndarray, data: np.ndarray, rows: np.ndarray, record: pa.RecordBatch, chosen: np.ndarray
    ) -> FoundSpans:
        """The spans of all `kinds`, in the order of the text. `rows`: of the texts in `record`; `chosen`: (record.num_rows, 3)
        int32, set to 1 for documents with a candidate, by what their regions are chosen by."""
        addresses = pii.find(offsets, data, *(kind in self.kinds for kind in ("email", "ip", "url_credentials")))
        if not self._has_numbers:
            return addresses
        from stages.redact import _phones  # and phonenumbers, in 0.04 s

        wanted = sum(bit for kind, bit in _WANTS.items() if kind in self.kinds)
        if "phone" in self.kinds:
            is_auto = self.phone_regions == "auto"
            shapes = phones.AMERICAN_SHAPES | phones.TRUNK_SHAPES if is_auto else _phones.shapes_of(self.phone_regions)
            wanted |= identifiers.WANTS_PHONE | shapes
        numbers = identifiers.find(offsets, data, wanted).outside(addresses)
        national = numbers.starts[_phones.is_national(numbers)]
        texts = np.searchsorted(offsets[1:], national, side="right")
        return addresses.merged(_phones.validated(data, numbers, self._regions(rows[texts], record, chosen)))

    def _regions(self, rows: np.ndarray, record: pa.RecordBatch, chosen: np.ndarray) -> list[_regions.Regions]:
        if self.phone_regions != "auto":
            return [_regions.Regions(self.phone_regions)] * len(rows)
        if not len(rows):
            return []
        documents, places = np.unique(rows, return_inverse=True)
        regions = _regions.regions_of(record, documents)
        chosen[documents, [source for _, source in regions]] = 1
        return [regions[place][0] for place in places.tolist()]
