"""The input of plan compilation: the mixture, its sources with files and bound stages, rows of earlier runs, and warnings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from datapipe.config.mixture import Mixture
from datapipe.config.sources.source import Source
from datapipe.credentials import masked
from datapipe.dataclass import dataclass, field, replace
from datapipe.errors import UserError
from datapipe.quantities import counted
from datapipe.records.outputs import Tables
from datapipe.shards.manifest import Snapshot
from datapipe.shards.source_entry import SourceEntry
from datapipe.stage.field_types import FoundType, NoCommonTypeError
from datapipe.stage.reader import FieldNames, InputFile, Reader, RowFiles, Sample, Split
from datapipe.steps.pipeline import BoundStage
from datapipe.storage.root import Root

_NAMED_SOURCES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class RunWarning:
    kind: str  # one of those in `report/README.md`
    source: str = ""  # empty where it is about no source, or about several
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)  # the numbers and names behind the text, as JSON

    def __str__(self) -> str:
        return masked(self.text)

    @classmethod
    def of(cls, kind: str, source: str, text: str, **details: Any) -> RunWarning:
        """A warning about a source, which the text names first."""
        return cls(kind=kind, source=source, text=f"source '{source}': {text}", details=details)

    @classmethod
    def of_sources(cls, kind: str, sources: Sequence[str], text: str) -> RunWarning:
        """A warning about one source or several, which the text names."""
        if len(sources) == 1:
            return cls(kind=kind, source=sources[0], text=f"source '{sources[0]}': {text}")
        return cls(kind=kind, text=f"{named(sources)}: {text}", details={"sources": list(sources)})

    def to_json(self) -> dict[str, Any]:
        return {**self.details, "kind": self.kind, "source": self.source or None, "text": str(self)}


def named(sources: Sequence[str]) -> str:
    listed = [f"'{source}'" for source in sources[:_NAMED_SOURCES]]
    more = len(sources) - len(listed)
    return f"{counted(len(sources), 'source')} ({', '.join(listed)}{f' and {more:,} more' if more else ''})"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSource:
    """The inputs and stages of one source."""

    groups: tuple[tuple[Split, ...], ...]  # the splits that each map task reads
    # readers, reader_digests: by input path, the reader, and the digest of its code and options
    readers: Mapping[str, Reader]
    reader_digests: Mapping[str, str]
    keep: Mapping[str, str]  # input fields that documents keep, by column
    # by kept field, its type as far as it is known before the source is read
    types: Mapping[str, FoundType] = field(default_factory=dict)
    # by kept field, the name of the type that the mixture declares
    declared: Mapping[str, str] = field(default_factory=dict)
    row_files: RowFiles | None = None  # how the files of a record become documents
    sample: Sample | None = None  # of its records
    stages: tuple[BoundStage, ...]

    def field_names(self, source: Source) -> FieldNames:
        types = {name: seen.kind for name, seen in self.types.items()}
        return replace(field_names(source, self.keep, types, self.declared, self.row_files), sample=self.sample)

    def with_wider(self, wider: Iterable[Mapping[str, Mapping[str, str]]], where: str) -> PlannedSource:
        """The source with types that also hold the values that tasks have found. Raises UserError where none does."""
        types = dict(self.types)
        for name, seen in (item for of_task in wider for item in of_task.items()):
            more = FoundType.from_json(seen)
            types[name] = more if name not in types else joined_types(where, name, types[name], more)
        kinds, before = ({name: seen.kind for name, seen in each.items()} for each in (types, self.types))
        assert kinds != before, f"{where}: reading found wider types, and they are not wider"  # else it would never end
        return replace(self, types=types)

    def with_whole(self, paths: Collection[str]) -> PlannedSource:
        """The source with each of these files read by one task, in the place of its first range."""
        groups: list[tuple[Split, ...]] = []
        for group in self.groups:
            kept = tuple(
                Split(file=split.file) if split.file.path in paths else split
                for split in group
                if split.start == 0 or split.file.path not in paths
            )
            groups += [kept] if kept else []
        return replace(self, groups=tuple(groups))

    @property
    def splits(self) -> tuple[Split, ...]:
        return tuple(split for group in self.groups for split in group)

    @property
    def files(self) -> dict[str, InputFile]:
        return {split.file.path: split.file for split in self.splits}


def field_names(
    source: Source,
    columns: Mapping[str, str] | None = None,
    types: Mapping[str, pa.DataType] | None = None,
    declared: Mapping[str, str] | None = None,
    files: RowFiles | None = None,
) -> FieldNames:
    """What is read of a source: its content, its ids, and fields for `columns`. `types`, `declared`: as in `FieldNames`."""
    columns, made, files = columns or {}, source.json_fields, files or row_files(source)
    return FieldNames(
        text=None if made or files is not None else source.text,
        id=source.id,
        json=made,
        files=files,
        replaces_surrogates=source.replaces_surrogates,
        keep=tuple(dict.fromkeys((*columns.values(), *made, *(() if files is None else (files.field,))))),
        columns=columns,
        types=types or {},
        declared={**(declared or {}), **dict.fromkeys(made, "json")},
    )


def row_files(source: Source) -> RowFiles | None:
    """How the files of records become documents, without the tokens of a tokenizer; None for a source of other records."""
    spec = source.repository
    if spec is None or spec.files is None:
        return None
    return RowFiles(
        field=spec.files,
        path=spec.path,
        text=spec.text,
        license=spec.license,
        name=spec.name,
        order=spec.order,
        most_bytes=spec.max_bytes,
        separators=spec.separators or (),
    )


def joined_types(where: str, name: str, first: FoundType, second: FoundType) -> FoundType:
    """The type of a field of two files. Raises UserError where no type holds the values of both."""
    try:
        return first.with_more(second)
    except NoCommonTypeError as error:
        raise UserError(
            f"{where}: the field '{name}' has no one type: {error}. Declare the type of the column in the source, as in "
            f"types: {{{name}: string}}, or make two sources of the files."
        ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenSource:
    """A source of another output, named `source` there, whose shards are mixed as they are."""

    root: Root  # where the files of the snapshot are
    snapshot: Snapshot
    source: str

    @property
    def entry(self) -> SourceEntry:
        """The source as the other manifests have it."""
        return self.snapshot.sources[self.source]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Everything that a plan depends on, except the committed records."""

    mixture: Mixture
    sources: Mapping[str, PlannedSource]
    added_to: Snapshot | None = None  # the newest snapshot, where the files are added to it; None where they are all files
    # the user's tokenizer.json, or that of `added_to`; empty when the run trains a tokenizer
    tokenizer_content: bytes = b""
    tokenizer_notes: tuple[str, ...] = ()  # lines about its special tokens
    limit: int | None = None  # at most so many documents of each source; None for all
    trusts_records: bool = False  # whether records count that other versions of libraries made
    # by source, the kept fields that a stage or the source decides by, each with what asks for it
    deciding: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    warnings: tuple[RunWarning, ...] = ()  # about the mixture and its inputs, for the user
    # rows of earlier runs that a global stage compares with, by its name and digest
    reference_rows: Mapping[tuple[str, str], Tables] = field(default_factory=dict)
    taken: Mapping[str, TakenSource] = field(default_factory=dict)  # the sources without input files

    @property
    def part(self) -> int | None:
        """The number of its shards in the manifest, as a further part of each source; None for the first."""
        return None if self.added_to is None else self.added_to.last_part + 1
