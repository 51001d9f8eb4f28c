"""A source of a mixture: its input files, its weight, where it comes from, and its stages."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator

from datapipe.config.fields import Count, Globs, Paths, Record, Texts, Weight
from datapipe.config.mixture_schedule import StrataSpec
from datapipe.config.problems import Problem, ProblemsError, described
from datapipe.config.sources.amount import ShareOrSample
from datapipe.config.sources.arrangement import DocumentPrefixSpec, FimSpec
from datapipe.config.sources.chat import TOOLS, MessageFields, TemplateOrText, option_problems
from datapipe.config.sources.provenance import Collected, CostSpec, Homepage, License, SyntheticSpec
from datapipe.config.sources.repository import RepositorySpec, repository_problems
from datapipe.config.sources.split import SplitSpec
from datapipe.config.stage_use import FormatEntry, StageList, StageUse
from datapipe.credentials import masked
from datapipe.errors import suggest
from datapipe.reserved_columns import OWN_COLUMNS


def _by_column(value: Any) -> Any:
    """Kept fields by the column that each becomes: of a list of names and of {column: field}, or of one mapping."""
    if not isinstance(value, list | tuple | Mapping):
        raise ValueError("expected a list")
    entries = [value] if isinstance(value, Mapping) else value
    kept: dict[str, str] = {}
    for index, entry in enumerate(entries):
        for column, field in entry.items() if isinstance(entry, Mapping) else [(entry, entry)]:
            if not isinstance(field, str) or not field:
                raise ProblemsError([((index,), f"found {described(field)}, expected text: put it in quotes")])
            if column in OWN_COLUMNS:
                raise ValueError(
                    f"'{column}' cannot be kept: every document already has a column of this name. Leave it out, or keep it "
                    f"under another name: {{NAME: {field}}}"
                )
            if column in kept or field in kept.values():
                raise ValueError("expected each field once")
            kept[column] = field
    return kept


TypeName = Literal["string", "bool", "int64", "float64", "date", "timestamp", "json"]
"""json is the JSON text of a value, as a string. See `steps/read_batches.py`."""

_NAMES = {"type": "object", "additionalProperties": {"type": "string"}}
Kept = Annotated[
    Mapping[str, str],
    BeforeValidator(_by_column),
    PlainSerializer(lambda kept: [column if column == field else {column: field} for column, field in kept.items()]),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"anyOf": [{"type": "string"}, _NAMES]}}, _NAMES]}),
]
SourceWeight = Annotated[
    Weight,
    Field(
        description="Share of the training tokens, relative to the other sources: 0.7, 70%, 1/3. With 0 the source is prepared "
        "but not drawn. Several sources of a snapshot share it in proportion to their rows.",
        json_schema_extra={"default": 1},
    ),
]
MaxEpochs = Annotated[
    float | None, Field(gt=0, description="Maximum number of epochs: how often training repeats the source. Default: no limit.")
]


def _of_keys(data: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    return SyntheticSpec.model_validate(data) if isinstance(data, dict) else validate(data)


class Source(Record):
    """A corpus: its files, its weight in the mixture, and its stages."""

    path: Paths = Field(
        description="Glob or list of globs of the input files: local paths or URLs (s3://…, https://…). Relative paths start "
        "at the working directory. '@files.txt' is a list of paths or URLs, one a line."
    )
    prefix: str | None = Field(
        default=None,
        min_length=1,
        description="Folder or URL that the lines of a list are relative to. Default: the folder of the list.",
    )
    exclude: Globs = Field(default=(), description="Globs of files to leave out: '**/site-packages/**'.")
    format: FormatEntry = Field(
        default=StageUse(name="auto", alias="auto"),
        description="Format of the files: the name of a reader, one name with its options as in `csv: {delimiter: ';'}`, or "
        "auto to infer it from their endings.",
        json_schema_extra={"default": "auto"},
    )
    text: str = Field(
        default="text", min_length=1, description="Input field with the text. Dots reach into objects: content.text."
    )
    messages: MessageFields = Field(
        default=(),
        exclude_if=lambda fields: not fields,  # mixtures of outputs of the version before lack it, and `longer`
        description="Input field with the conversation of a document, in place of `text`, or the fields that make one, "
        "[prompt, completion]. The stage extract.chat writes it as text with control tokens.",
    )
    template: TemplateOrText | None = Field(
        default=None,
        description="With messages, the template: tokenizer, chatml, llama3, harmony, or the path of a .jinja file. "
        "Default: tokenizer, the template of the tokenizer.",
    )
    learn: Literal["all", "assistant", "last"] | None = Field(
        default=None,
        description="With messages, the tokens that a loss counts. assistant (default): those of assistants. "
        "last: those of the last answer. all: every token.",
    )
    tools: str | None = Field(
        default=None,
        min_length=1,
        description="With messages, the field with the tools. Default: the field `tools`, if records have one.",
    )
    id: str = Field(
        default="id", min_length=1, description="Input field with the id. A document without it gets SOURCE/PATH:POSITION."
    )
    keep: Kept = Field(
        default_factory=dict,
        description="Further input fields to keep as columns: [url, date]. {origin: source} keeps the field source as origin.",
        json_schema_extra={"default": []},
    )
    types: Mapping[str, TypeName] = Field(
        default_factory=dict,
        description="Types of kept columns, {zip: string}: string, bool, int64, float64, date, timestamp, json. Documents with "
        "another value are quarantined. Default: the type that holds the values of all files.",
    )
    check_fields: bool = Field(
        default=True,
        description="Whether the first records must have `text`, and the fields under `keep` that stages decide by. "
        "false: a missing field is a warning until the source is read. Use it when only later records have "
        "the field.",
    )
    lone_surrogates: Literal["quarantine", "replace"] = Field(
        default="quarantine",
        description="What happens to half a surrogate pair in a string of JSON. Programs that cut text write it. "
        "quarantine: the document is invalid. replace: U+FFFD replaces it.",
    )
    weight: SourceWeight = Fraction(1)
    max_epochs: MaxEpochs = None
    sample: ShareOrSample | None = Field(
        default=None,
        description="Share of the records that is read, by a keyed hash of each: 5%. It is part of every larger share, and the "
        "same while files are added. {share: 5%, of: cleaned}: of the documents that the stages keep.",
    )
    max_tokens: Count | None = Field(
        default=None,
        description="Maximum tokens to train on: 10B. Documents are taken in shuffled order until one does not fit.",
    )
    strata: StrataSpec | None = Field(
        default=None,
        description="Divides the source by a number of each document, and sets how often and in which order its parts "
        "are drawn.",
    )
    split: SplitSpec | None = Field(
        default=None, description="Splits the source by columns of its documents into cells, each with its weight and repeats."
    )
    repository: RepositorySpec | None = Field(
        default=None,
        description="Joins the files of a repository to one document, with control tokens of the tokenizer between them.",
    )
    fim: FimSpec | None = Field(default=None, description="Reorders documents of code for filling in the middle.")
    document_prefix: DocumentPrefixSpec | None = Field(
        default=None,
        description="Text before the text of each document, made of its columns, such as the URL. No loss counts it.",
    )
    max_document_tokens: Count | None = Field(
        default=None,
        description="With messages, maximum tokens of a conversation, with those that begin and end documents. Default: no "
        "limit; a conversation above pack.sequence_length is then cut anywhere.",
    )
    longer: Literal["cut", "drop"] = Field(
        default="cut",
        exclude_if=lambda value: value == "cut",
        description="With max_document_tokens, what happens to longer conversations. cut: cut behind the last whole answer "
        "that fits, or drop if the first does not fit; needs learn: assistant. drop: drop all of them.",
    )
    license: License | None = Field(
        default=None,
        description="Licence of the corpus as an expression of SPDX: CC-BY-4.0, MIT OR Apache-2.0, LicenseRef-NAME.",
    )
    license_field: str | None = Field(
        default=None,
        min_length=1,
        description="Field with the licence of each document. The licence of the source is for documents without one.",
    )
    homepage: Homepage | None = Field(default=None, description="Web page about the corpus. The snapshot records it.")
    collected: Collected | None = Field(
        default=None, description="When it was collected: 2024-05-17, 2024-05, 2024, or {from: 2023-11, to: 2024-05}."
    )
    synthetic: Annotated[bool | SyntheticSpec, WrapValidator(_of_keys)] = Field(
        default=False, description="Whether a model wrote the corpus: true, or {model: NAME, prompt: TEXT}."
    )
    cost: CostSpec | None = Field(
        default=None, description="What the text cost: {usd: 1200}, or {usd_per_million_tokens: 0.2}. The report counts it."
    )
    stages: StageList | None = Field(default=None, description="Stages of this source. They replace the mixture's list.")
    fingerprint: Literal["stat", "content"] = Field(
        default="stat", description="How the run detects changed files. stat: by size and time. content: by reading them."
    )

    def problems(self) -> Iterator[Problem]:
        yield from option_problems(self)
        if self.license_field in OWN_COLUMNS:
            text = f"'{self.license_field}' is a column that every document has. Expected the field with the license"
            yield ("license_field",), text
        unknown = next((column for column in self.types if column not in self.kept_fields), None)
        if unknown is not None:
            text = f"'{unknown}' is no kept column.{suggest(unknown, self.kept_fields)} Name it under `keep`, too"
            yield ("types",), text
        if self.split is not None and self.strata is not None:
            yield ("strata",), "found beside split, expected one of them: {column: NAME, bounds: […]} in split.by makes strata"
        if self.fim is not None and self.document_prefix is not None:
            yield ("fim",), "found beside document_prefix, expected one of them: a document has a prefix or a gap"
        yield from repository_problems(self)

    @property
    def json_fields(self) -> tuple[str, ...]:
        """The fields that make the content of documents where it is no text (`FieldNames.json`)."""
        return tuple(dict.fromkeys((*self.messages, self.tools or TOOLS))) if self.messages else ()

    @property
    def needed_fields(self) -> tuple[str, ...]:
        """The fields that documents are made of, and must have."""
        return self.messages or (self.files_field or self.text,)

    @property
    def files_field(self) -> str | None:
        """The field with the files of a document; None where its content is no list of them."""
        return None if self.repository is None else self.repository.files

    @property
    def content_option(self) -> str:
        """The option that names the needed fields."""
        if self.messages:
            return "messages"
        return "text" if self.files_field is None else "repository"

    @property
    def replaces_surrogates(self) -> bool:
        return self.lone_surrogates == "replace"

    @property
    def kept_fields(self) -> Mapping[str, str]:
        """The input fields that documents keep, by column: `keep`, and those with their license and repository."""
        own, license = list[str](), self.license_field
        if self.repository is not None:
            own += self.repository.columns
            license = None if license == self.repository.license else license
        own += [] if license is None else [license]
        return {**self.keep, **{name: name for name in own if name not in self.keep}}

    def option_of(self, column: str) -> str:
        """The option that names a kept column."""
        return "keep" if column in self.keep else "license_field" if column == self.license_field else "repository"

    def entry(self) -> dict[str, Any]:
        """Where the source comes from, and how it is drawn beside its weight, as manifests of shards have it."""
        return {**self.provenance(), "strata": self.strata and self.strata.entry()}

    def provenance(self) -> dict[str, Any]:
        """Where the source comes from, as manifests have it."""
        synthetic = self.synthetic
        if not isinstance(synthetic, bool):
            synthetic = {name: text and masked(text) for name, text in synthetic.model_dump().items()}
        return {
            "license": self.license,
            "synthetic": synthetic,
            "license_field": self.license_field,
            "homepage": self.homepage and masked(self.homepage),
            "collected": self.collected,
        }


class SnapshotSource(Record):
    """Another output as a source. Its rows are neither read as text nor tokenized nor packed again."""

    snapshot: str = Field(
        min_length=1,
        description="Another output, a path or URL. Its rows become a source, all of them or those of some `sources`. "
        "The tokenizer, sequence length and shard format must be the same.",
    )
    version: str | None = Field(
        default=None, min_length=1, description="Fingerprint of the snapshot, or its first digits. Default: the newest one."
    )
    sources: Texts = Field(default=(), description="Sources of that snapshot to take. Default: all.")
    weight: SourceWeight = Fraction(1)
    max_epochs: MaxEpochs = None


def _of_kind(data: Any, validate: ValidatorFunctionWrapHandler) -> Source | SnapshotSource:
    """The kind of source whose key there is, so that problems name the keys of that kind."""
    if isinstance(data, Source | SnapshotSource):
        return data
    return (SnapshotSource if isinstance(data, dict) and "snapshot" in data else Source).model_validate(data)


AnySource = Annotated[Source | SnapshotSource, WrapValidator(_of_kind)]
"""Input files, or another output."""
