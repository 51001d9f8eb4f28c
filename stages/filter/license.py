"""Keeps documents by the licence that they carry.

    value of the field ─▶ a name of SPDX, in any case and as an expression, "LicenseRef-…", or none
                                  └─▶ in `allowed`? else dropped       rules `unknown` (none), `not_allowed`

`A OR B` is allowed if one of the two is, `A AND B` and a list in JSON only if all are. Text that is no licence of SPDX is
compared by a name: "Public Domain" is LicenseRef-public-domain (`datapipe/stage/licenses.py`). A mixture with `licenses` adds
this stage to each source with a `license_field`: first, or where the source names it without options.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.licenses import UNKNOWN, allowed_name, is_allowed, license_codes


class License(Filter):
    """Drops documents whose licence is not allowed."""

    field: str = Field(
        default="license", min_length=1, description="Column with the licence; the source must name it as its `license_field`."
    )
    allowed: tuple[str, ...] = Field(
        min_length=1, description="Licences to keep, by their names in SPDX: [CC0-1.0, MIT, LicenseRef-public-domain]."
    )
    missing: Literal["keep", "drop"] = Field(
        default="drop",
        description="What happens to a document without a licence. In a mixture the default is keep if the source's licence is "
        "allowed.",
    )

    before_text: ClassVar[bool] = True
    libraries = ("license-expression", "pyarrow")
    writes = ()

    @field_validator("allowed")
    @classmethod
    def _are_licenses(cls, listed: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(allowed_name(name) for name in listed)

    def columns_read(self) -> Mapping[str, str]:
        return {self.field: "field"}

    def rules(self) -> Sequence[Rule]:
        return [Rule(name=name, limit=0, side="max") for name in ("unknown", "not_allowed")]

    def process(self, batch: DocumentBatch) -> FilterResult:
        codes, names = license_codes(batch.column(self.field, "filter.license"), self.field)
        # is_unknown, is_refused: (num_names,) bool
        is_unknown = np.array([name == UNKNOWN for name in names], np.bool_)
        is_refused = np.array([not is_allowed(name, self.allowed) for name in names], np.bool_) & ~is_unknown
        is_missing = is_unknown & (self.missing == "drop" and UNKNOWN not in self.allowed)
        return FilterResult.from_rules(self.rules(), [is_missing[codes], is_refused[codes]])
