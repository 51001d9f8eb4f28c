"""A source of a mixture: its input files, its weight, where it comes from, and its stages."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from datapipe.config.fields import Globs, Paths, Record, Texts, Weight
from datapipe.config.mixture_schedule import StrataSpec
from datapipe.config.problems import ProblemsError
from datapipe.config.sources.provenance import Collected, CostSpec, Homepage, License, SyntheticSpec
from datapipe.config.stage_use import FormatEntry, StageList, StageUse
from datapipe.own_columns import OWN_COLUMNS


def _kept_fields(names: tuple[str, ...]) -> tuple[str, ...]:
    taken = [name for name in names if name in OWN_COLUMNS]
    if taken:
        raise ValueError(f"'{taken[0]}' cannot be kept: every document already has a column of this name. Leave it out")
    if len(set(names)) < len(names):
        raise ValueError("expected each field once")
    return names


class Source(Record):
    """A corpus: its files, its weight in the mixture, and its stages."""

    path: Paths = Field(
        description="Glob or list of globs of the input files: local paths or URLs (s3://…, https://…). Relative paths start "
        "at the working directory. '@files.txt' is a list of paths or URLs, one a line."
    )
    prefix: str | None = Field(
        default=None,
        min_length=1,
        description="Folder or URL that the lines of a list are relative to: https://data.commoncrawl.org. Default: the folder "
        "of the list.",
    )
    exclude: Globs = Field(default=(), description="Globs of files to leave out: '**/site-packages/**'.")
    format: FormatEntry = Field(
        default=StageUse(name="auto", alias="auto"),
        description="Format of the files: the name of a reader, one name with its options as in `csv: {delimiter: ';'}`, or "
        "auto to infer it from their endings.",
        json_schema_extra={"default": "auto"},
    )
    text: str = Field(
        default="text",
        min_length=1,
        description="Input field with the text. Dots reach into objects, content.text, or the key itself has them.",
    )
    id: str = Field(
        default="id", min_length=1, description="Input field with the id. A document without it gets SOURCE/PATH:POSITION."
    )
    keep: Annotated[Texts, AfterValidator(_kept_fields)] = Field(
        default=(), description="Further input fields to keep as columns."
    )
    check_fields: bool = Field(
        default=True,
        description="Whether the first records must have `text` and the fields under `keep` that stages decide by. false: for "
        "fields that only records further on have; then a lack of them is a warning until the source is read.",
    )
    lone_surrogates: Literal["quarantine", "replace"] = Field(
        default="quarantine",
        description="Half a surrogate pair in a string of JSON, as some programs write where they cut text. quarantine: the "
        "document is no valid Unicode. replace: U+FFFD takes its place.",
    )
    weight: Weight = Field(
        default=Fraction(1),
        description="Share of the training tokens, relative to the other sources: 0.7, 70%, 1/3. With 0 the source is prepared "
        "but not drawn.",
        json_schema_extra={"default": 1},
    )
    max_epochs: float | None = Field(
        default=None, gt=0, description="Largest number of times that training repeats the source. Default: no limit."
    )
    strata: StrataSpec | None = Field(
        default=None,
        description="Divides the source by a number of each document. Sets how often and in which order its parts are drawn.",
    )
    license: License | None = Field(
        default=None,
        description="License of the corpus, an expression of SPDX: CC-BY-4.0, MIT OR Apache-2.0, LicenseRef-NAME for any "
        "other. The snapshot records it.",
    )
    license_field: str | None = Field(
        default=None,
        min_length=1,
        description="Field with the license of each document, which is kept. Documents without one have that of the source.",
    )
    homepage: Homepage | None = Field(default=None, description="Web page about the corpus. The snapshot records it.")
    collected: Collected | None = Field(
        default=None,
        description="When the corpus was collected: 2024-05-17, 2024-05, 2024, or {from: 2023-11, to: 2024-05}. The snapshot "
        "records it.",
    )
    synthetic: bool | SyntheticSpec = Field(
        default=False,
        description="Whether a model wrote the corpus: true, or {model: NAME, prompt: TEXT}. The snapshot records it.",
    )
    cost: CostSpec | None = Field(
        default=None, description="What the text cost: {usd: 1200}, or {usd_per_million_tokens: 0.2}. The report counts it."
    )
    stages: StageList | None = Field(default=None, description="Stages of this source. They replace the mixture's list.")
    fingerprint: Literal["stat", "content"] = Field(
        default="stat", description="How the run detects changed files. stat: by size and time. content: by reading them."
    )

    @model_validator(mode="after")
    def _license_field_is_free(self) -> Source:
        if self.license_field in OWN_COLUMNS:
            text = f"'{self.license_field}' is a column that every document has. Expected the field with the license"
            raise ProblemsError([(("license_field",), text)])
        return self

    @property
    def replaces_surrogates(self) -> bool:
        return self.lone_surrogates == "replace"

    @property
    def kept_fields(self) -> tuple[str, ...]:
        """The input fields that documents keep as columns: `keep`, and the field with their license."""
        own = () if self.license_field is None or self.license_field in self.keep else (self.license_field,)
        return (*self.keep, *own)
