"""Where the text of a report comes from, under which licences it is kept, and what it cost: `provenance` in report.json."""

from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from datapipe.shards.source_entry import Provenance, SyntheticEntry


class Collected(BaseModel, frozen=True):
    model_config = ConfigDict(serialize_by_alias=True)

    first: str = Field(alias="from")
    last: str = Field(alias="to")


class Origin(BaseModel, frozen=True):
    license: str | None
    synthetic: bool | SyntheticEntry
    license_field: str | None
    homepage: str | None
    collected: Collected | None
    cost_usd: float | None = None

    @classmethod
    def of(cls, source: Provenance | Self, **more: Any) -> Self:
        """What a manifest records of a source, or another record of it."""
        dates = source.collected
        if isinstance(dates, tuple):
            dates = Collected.model_validate(dict(zip(("from", "to"), dates)))
        return cls.model_validate({**dict(source), "collected": dates, **more})


class TakenSource(Origin, frozen=True):
    """A source whose rows are those of another snapshot."""

    documents: int
    tokens: int
    sequences: int


class Kept(BaseModel, frozen=True):
    """The kept documents of one licence. Tokens are None in a run without a tokenizer, drawn
    tokens in one without an end, and bytes where rows of another snapshot are among them."""

    documents: int | None
    bytes: int | None
    tokens: int | None
    drawn_tokens: int | None

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """The sum; None where one of the numbers is not known."""
        listed = list(parts)
        columns = {name: [getattr(part, name) for part in listed] for name in cls.model_fields}
        return cls(**{name: None if None in numbers else sum(numbers) for name, numbers in columns.items()})


Rounded = Annotated[float, AfterValidator(lambda number: round(number, 6))]


class Cost(BaseModel, frozen=True):
    """Core-hours of committed tasks, and money where the mixture has prices."""

    core_hours: Rounded
    core_hours_by_step: dict[str, Rounded]
    core_hours_by_source: dict[str, Rounded]
    core_hours_shared: Rounded
    node_hours: Rounded | None
    sources_usd: Rounded | None
    compute_usd: Rounded | None
    cluster_usd: Rounded | None
    total_usd: Rounded | None


class ReportProvenance(BaseModel, frozen=True):
    sources: dict[str, Origin] = {}
    licenses: dict[str, Kept] = {}
    synthetic: dict[str, Kept] = {}
    cost: Cost | None = None
