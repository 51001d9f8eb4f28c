"""Takes personal data out of the text: addresses, phone numbers, and numbers of cards, accounts and persons.

    text  ->  addresses (`kernels/redact/pii.py`)    ->  spans  ->  the text with each span replaced
          ->  numbers (`kernels/redact/identifiers.py`, `kernels/redact/phones.py`)  ->  `phonenumbers` judges the candidates

The kinds: `email`; `ip`, public addresses only; `phone`; `card`, payment cards; `iban`; `ssn`, of the US; `url_credentials`,
the `user:password@` of a URL. Names and streets are left alone. A span found by two scans is the address.

Each kind is defined where it is looked for, on the side of precision. A number without `+` is a phone number only where a word
says so or its shape does, and only of the configured regions.

Found of what is labelled, by kind, on two Presidio sets of 1,500 and 2,109 synthetic sentences; "valid" are the labels that are
valid numbers by `phonenumbers` (in the regions), Luhn, 97 or `ipaddress`. Nothing that is not labelled was taken: precision is
1.0 in every row. The same in 15 MB of novels, papers, a manual, questions and patents, but for one example address.

    kind                       all labels          valid labels
    email                       49/49    58/58
    ip                          14/14    10/11     14/14    10/10
    card                       135/136  212/212   135/136  212/212
    iban                        21/21    28/28
    ssn                         16/16    44/44
    phone, [US]                 19/92    21/136    17/17    20/24
    phone, 28 regions           68/92    76/136    68/83    76/128    the rest has neither word nor shape

One core of a 2-core AMD EPYC does 410 MB/s of web text with all kinds, 350 MB/s where each phone number is new to it, and
770 MB/s with `email` and `ip` alone.

What replaces a span is a function of its bytes, the stage's name and the seed of the run: the same on every worker, in every
document. What was replaced is read again, so that redacting the output of tags or fakes changes nothing.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import phonenumbers
from pydantic import Field, PrivateAttr, field_validator

from datapipe import rng
from datapipe.kernels.redact import identifiers, pii
from datapipe.kernels.redact.pii import FoundSpans
from datapipe.stage import Filter, FilterResult, Rule, StageContext
from datapipe.stage.documents import DocumentBatch
from stages.redact import _phones
from stages.redact._edit import Editor

Kind = Literal["email", "ip", "phone", "card", "iban", "ssn", "url_credentials"]
_KINDS: tuple[Kind, ...] = ("email", "ip", "phone", "card", "iban", "ssn", "url_credentials")
_SPAN_KINDS: tuple[Kind, ...] = ("email", "ip", "ip", "url_credentials", "card", "iban", "ssn", "phone")
"""The option's word for each kind of span of `kernels/redact/pii.py`."""
_TAGS = (b"<EMAIL>", b"<IP>", b"<IP>", b"<CREDENTIALS>@", b"<CARD>", b"<IBAN>", b"<SSN>", b"<PHONE>")
_WANTS = {"card": identifiers.WANTS_CARD, "iban": identifiers.WANTS_IBAN, "ssn": identifiers.WANTS_SSN}


class Pii(Filter):
    """Replaces e-mail and IP addresses, phone, card, account and social security numbers, and passwords in URLs."""

    mode: Literal["drop", "tag"] = Field(
        default="drop",
        description="drop: replace, and drop the documents with more hits than `max_hits`. tag: replace nothing and drop "
        "nothing, only count; the report says `(tag)` behind the counts.",
    )
    kinds: tuple[Kind, ...] = Field(default=_KINDS, min_length=1, description=f"What to look for: {', '.join(_KINDS)}.")
    phone_regions: tuple[str, ...] = Field(
        default=("US",),
        description="Where national phone numbers may be from, as ISO 3166 codes: [US, DE]. They count in a shape that is "
        "hardly anything else, or behind a word such as tel, phone, call, fax or mobile. Numbers with + count from anywhere.",
    )
    replace: Literal["tag", "fake", "delete"] = Field(
        default="tag",
        description="tag: write <EMAIL>, <IP>, <PHONE>, <CARD>, <IBAN>, <SSN> or <CREDENTIALS>. fake: write something of the "
        "kind that nobody has, the same for the same throughout the run. delete: write nothing.",
    )
    max_hits: int | None = Field(
        default=None, ge=0, description="Drop documents with more hits than this; null: none. OLMo's recipe has 5."
    )

    libraries: ClassVar[tuple[str, ...]] = ("phonenumbers",)
    counts: ClassVar[tuple[str, ...]] = _KINDS
    _seed: int = PrivateAttr(default=0)

    @field_validator("phone_regions")
    @classmethod
    def _regions_are_known(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [region for region in regions if region not in phonenumbers.SUPPORTED_REGIONS]
        if unknown:
            raise ValueError(f"'{unknown[0]}' is no region with phone numbers; write an ISO 3166 code such as US, GB or DE")
        return regions

    def open(self, context: StageContext) -> None:
        self._seed = rng.seed_for(context.seed, context.name, "fake")

    def rules(self) -> list[Rule]:
        return [] if self.max_hits is None else [self.at_most("too_many_hits", "max_hits")]

    def process(self, batch: DocumentBatch) -> FilterResult:
        editor = Editor(
            find=self.find,
            replace=self.replace,
            seed=self._seed,
            tags=_TAGS,
            stand_ins=tuple(range(len(_TAGS))),
            count_columns=tuple(_KINDS.index(kind) for kind in _SPAN_KINDS),
        )
        return editor.judged(batch, self.counts, self.rules())

    def find(self, offsets: np.ndarray, data: np.ndarray) -> FoundSpans:
        """All spans of the wanted kinds, in the order of the text."""
        wanted = sum(bit for kind, bit in _WANTS.items() if kind in self.kinds)
        if "phone" in self.kinds:
            wanted |= identifiers.WANTS_PHONE | _phones.shapes_of(self.phone_regions)
        addresses = pii.find(offsets, data, *(kind in self.kinds for kind in ("email", "ip", "url_credentials")))
        if not wanted:
            return addresses
        numbers = identifiers.find(offsets, data, wanted).outside(addresses)
        return addresses.merged(_phones.judged(data, numbers, self.phone_regions))
