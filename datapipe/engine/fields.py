"""Previews the first records of a source, before anything runs: do they have the fields that the mixture names?

    readers, stages ─▶ is a text there for each stage that reads it? ─▶ else an error
    stages, strata, split ─▶ columns that they decide by ─▶ kept fields, or columns of earlier stages? ─▶ else an error
    input files    ─▶ a few records of one split, of more splits while a field is missing ─▶ the fields that occur, their types
                                                    └─▶ text or a field that decides: an error. Any other kept field: a warning

The field of strata, or of bounds and quantiles, must hold a number in one of the records. A field may be rare, so it is missing
only where none of `MOST_SPLITS` splits has it, spread over all files and within them. A record that has the field with the
value null counts. Unreadable files are left to the run. With `check_fields: false` of the source a missing field is only a
warning.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import pyarrow as pa

from datapipe.config.mixture import Mixture
from datapipe.config.sources.source import Source
from datapipe.dataclass import dataclass
from datapipe.errors import UserError, suggest
from datapipe.quantities import counted
from datapipe.reserved_columns import OWN_COLUMNS
from datapipe.stage.base import Filter
from datapipe.stage.field_types import FoundType, plain, type_in
from datapipe.stage.global_stage import Global
from datapipe.stage.reader import FieldNames, InputFile, Reader, Split
from datapipe.stage.repositories import FILES
from datapipe.stage.row_files import files_problem
from datapipe.steps.cells import value_problem
from datapipe.steps.pipeline import BoundStage
from datapipe.steps.request import field_names, joined_types, row_files
from datapipe.steps.warnings import RunWarning
from datapipe.storage.root import open_input

MOST_SPLITS = 16  # Splits that are previewed before a field counts as missing
_STRATA, _SPLIT, _PREFIX = "strata.by", "split.by", "document_prefix.text"
# by the option that names the field
_CONTENTS = {"text": "text", "messages": "conversation", "repository": "files", "tools": "tools"}
_LISTS = ("messages", "conversations", "conversation")  # fields in which conversations are published
_SPLIT_BYTES = 1 << 20
_LISTED_FILES, _LISTED_NAMES = 3, 30
_LISTED_VALUES, _SHOWN_CHARS = 1000, 40

Item = TypeVar("Item")
Files = Sequence[tuple[InputFile, Reader]]


@dataclass(slots=True)
class _Seen:
    """The fields of the previewed records."""

    num_files: int
    num_records: int = 0
    files: dict[str, None] = dataclasses.field(default_factory=dict)  # of previewed records, by path
    found: set[str] = dataclasses.field(default_factory=set)
    names: dict[str, None] = dataclasses.field(default_factory=dict)  # fields that occur
    # of kept fields, in files without a schema
    types: list[dict[str, FoundType]] = dataclasses.field(default_factory=list)

    def lack(self, name: str) -> str:
        listed = ", ".join(list(self.files)[:_LISTED_FILES]) + (", …" if len(self.files) > _LISTED_FILES else "")
        names = list(self.names)
        more = f", and {len(names) - _LISTED_NAMES:,} others" if len(names) > _LISTED_NAMES else ""
        known = f"the fields {', '.join(names[:_LISTED_NAMES])}{more}" if names else "no fields beside the text"
        return (
            f"none of the {counted(self.num_records, 'record')} probed has the field '{name}' ({len(self.files):,} of "
            f"{counted(self.num_files, 'file')}: {listed}).{suggest(name, names)} They have {known}."
        )


def check_fields(
    mixture: Mixture, name: str, files: Files, stages: Sequence[BoundStage]
) -> tuple[list[RunWarning], dict[str, FoundType]]:
    """Warnings about kept fields that no previewed record has, and the type of each kept field that
    the mixture declares no type for. Raises UserError for missing fields that decide, for a field
    of no common type, and for one that a file has twice."""
    source = mixture.sources[name]
    _check_text(mixture, name, files, stages)
    needed, absent = deciding_columns(mixture, name, stages)
    kept = kept_columns(source, stages)
    _check_twice(mixture, name, files, kept)
    is_json = set(source.json_fields)
    undeclared = {field: pa.null() for column, field in kept.items() if column not in source.types and field not in is_json}
    wanted = dict.fromkeys((*kept.values(), *absent))
    probed = field_names(source, {field: field for field in wanted}, undeclared)
    contents = dict.fromkeys(source.needed_fields, source.content_option) | ({source.tools: "tools"} if source.tools else {})
    seen = _preview(files, probed, is_json.difference(contents))
    problems = [_absent(mixture, name, column, asked_by, seen) for column, asked_by in absent.items()]
    columns = {**dict.fromkeys(contents, ""), **{kept[column]: column for column in kept}}
    missing = [each for each in columns if each not in seen.found]
    warnings: list[RunWarning] = []
    for lacked in missing if seen.num_records else ():
        column = columns[lacked]
        is_content = lacked in contents
        is_needed = is_content or column in needed
        decides = f"{needed.get(column)} decides by it. Correct the name, or leave that out."
        option = contents[lacked] if is_content else source.option_of(column)
        remedy = f"Write the name of the field with the {_CONTENTS[option]}.{_of_chat(option, seen)}" if is_content else decides
        lack = f"{mixture.where('sources', name, option)}: {seen.lack(lacked)}"
        if is_needed and source.check_fields:
            problems.append(f"{lack} {remedy} If records further on have it, set check_fields: false for the source.")
        else:
            text = f"{lack} {remedy if is_needed else 'It will be null in documents like these.'}"
            warnings.append(RunWarning.of("missing_field", name, text, field=lacked, fields=list(seen.names)[:_LISTED_NAMES]))
    for column, option in _of_numbers(source):
        odd = _not_numbers(mixture, name, column, option, files) if column in needed else []
        problems += odd if source.check_fields else []
        warnings += [RunWarning(kind="not_numbers", source=name, text=text) for text in odd if not source.check_fields]
    if problems:
        raise UserError("\n".join(problems))
    types = {field: FoundType(kind=kind, path="") for field, kind in undeclared.items()}
    where = mixture.where("sources", name, "keep")
    for kinds in (*_of_schemas(files, undeclared), *seen.types):
        types |= {field: joined_types(where, field, types[field], kind) for field, kind in kinds.items()}
    _check_files(mixture, name, types)
    for axis in () if source.split is None else source.split.by:
        found = types.get(kept.get(axis.column, ""))
        problem = None if axis.has_numbers or found is None else value_problem(axis.column, found.kind)
        if problem is not None:
            raise UserError(f"{mixture.where('sources', name, 'split', 'by')}: {problem}")
    return warnings, types


def _check_files(mixture: Mixture, name: str, types: Mapping[str, FoundType]) -> None:
    """Raises UserError where the files of documents are a field of a type that lists none."""
    spec = row_files(mixture.sources[name])
    found = None if spec is None else types.get(spec.field)
    problem = None if spec is None or found is None else files_problem(found.kind, spec)
    if found is not None and problem is not None and mixture.sources[name].check_fields:
        raise UserError(
            f"{mixture.where('sources', name, 'repository')}: {found.path}: {problem}. Name the field and the members of its "
            f"objects by `files`, `path` and `text`; where each record is a file, write group_by in place of files."
        )


def _of_chat(option: str, seen: _Seen) -> str:
    """Advice for records that look like conversations and lack the text."""
    field = next((name for name in _LISTS if name in seen.names), None)
    return f" For conversations write `messages: {field}` in place of `text`." if option == "text" and field else ""


def _check_text(mixture: Mixture, name: str, files: Files, stages: Sequence[BoundStage]) -> None:
    """Raises UserError where the text of pages is needed, or texts are extracted."""
    where, by_kind = mixture.where("sources", name), {reader.gives: file.path for file, reader in reversed(files)}
    if fields := mixture.sources[name].json_fields:
        _check_json(where, fields[0], by_kind.get("html"), stages)
        return
    if len(by_kind) > 1:
        raise UserError(
            f"{where}: {by_kind['html']} holds pages and {by_kind['text']} holds texts. Make two sources of them: pages need "
            f"extract.html, and texts must not have it."
        )
    extracting = next((bound for bound in stages if _extracts(bound)), None)
    if "html" not in by_kind:
        if extracting is not None and by_kind:
            raise UserError(
                f"{where}: {extracting.name} makes texts of pages, and the files of this source hold texts: "
                f"{by_kind['text']}. Leave the stage out here: name it under `stages` of the sources that hold pages."
            )
        return
    if "html" in mixture.sources[name].kept_fields.values():
        raise UserError(f"{mixture.where('sources', name, 'keep')}: 'html' is the page itself, which ends with extraction.")
    before = stages if extracting is None else stages[: stages.index(extracting)]
    asking = next((bound for bound in before if not bound.stage.before_text), None)
    if asking is not None:
        remedy = "Put extract.html before it." if extracting is None else f"Put {extracting.name} before it."
        raise UserError(f"{where}: {asking.name} reads the text, and documents of {by_kind['html']} are pages there. {remedy}")
    if extracting is None:
        raise UserError(f"{where}: the documents of {by_kind['html']} are pages. Add the stage extract.html.")
    again = next((bound for bound in stages[len(before) + 1 :] if _extracts(bound)), None)
    if again is not None:
        raise UserError(f"{where}: {again.name} takes pages, and {extracting.name} has made texts of them. Leave one out.")


def _check_json(where: str, field: str, page: str | None, stages: Sequence[BoundStage]) -> None:
    """Raises UserError where a text is needed before it is made of a field, or where pages are read."""
    if page is not None:
        raise UserError(f"{where}: {page} holds pages, which have no field '{field}'. Make a source with `text` of the files.")
    making = [bound for bound in stages if bound.stage.takes_json]
    if len(making) > 1:
        raise UserError(f"{where}: {making[1].name} and {making[0].name} make texts of the field '{field}'. Leave one out.")
    asking = next((bound for bound in stages if not bound.stage.before_text), None)
    if asking is not None and asking is not making[0]:
        raise UserError(
            f"{where}: {asking.name} reads the text, and documents are the field '{field}' there. Put {making[0].name} "
            "before it."
        )
    if (extracting := next((bound for bound in stages if _extracts(bound)), None)) is not None:
        raise UserError(f"{where}: {extracting.name} makes texts of pages, and the source has none. Leave the stage out here.")


def _extracts(bound: BoundStage) -> bool:
    return isinstance(bound.stage, Filter) and bound.stage.extracts


def deciding_columns(mixture: Mixture, name: str, stages: Sequence[BoundStage]) -> tuple[dict[str, str], dict[str, str]]:
    """The kept fields that stages, strata or cells go by, and the columns that they go by and documents lack. Each with what
    asks for it: "dedup.exact (field)". After a stage that does not declare what it writes, any column may exist."""
    source = mixture.sources[name]
    written: set[str] | None = {*OWN_COLUMNS, *_made_of_files(source)}
    kept = kept_columns(source, stages)
    needed: dict[str, str] = {}
    absent: dict[str, str] = {}

    def ask(column: str, asked_by: str) -> None:
        if written is not None and column not in written:
            (needed if column in kept else absent).setdefault(column, asked_by)

    for bound in stages:
        for column in bound.when.columns if bound.when is not None else ():
            ask(column, f"{bound.name} (when)")
        for column, option in bound.stage.columns_read().items():
            ask(column, f"{bound.name} ({option})")
        more = _written_by(bound)
        written = None if more is None or written is None else written | more
    if source.strata is not None:
        ask(source.strata.by, _STRATA)
    for column in () if source.split is None else source.split.columns:
        ask(column, _SPLIT)
    if source.document_prefix is not None:
        for column in source.document_prefix.columns:
            ask(column, _PREFIX)
    return needed, absent


def _of_numbers(source: Source) -> Iterator[tuple[str, str]]:
    """The columns of numbers by which a source is divided, each with the option that names it."""
    if source.strata is not None:
        yield source.strata.by, _STRATA
    for axis in () if source.split is None else source.split.by:
        if axis.has_numbers:
            yield axis.column, _SPLIT


def _made_of_files(source: Source) -> set[str]:
    """The columns of documents that are made of the files of a record."""
    if source.repository is None or source.repository.files is None:
        return set()
    license = source.repository.license
    return {FILES} if license is None else {FILES, license}


def kept_columns(source: Source, stages: Sequence[BoundStage]) -> Mapping[str, str]:
    """The input fields that documents keep, by column: those under `keep`, and a further one unless a stage writes it."""
    further = source.kept_fields.keys() - source.keep.keys()
    return source.keep if any(further & (_written_by(bound) or set()) for bound in stages) else source.kept_fields


def _written_by(bound: BoundStage) -> set[str] | None:
    """The columns that a stage adds to documents; None where unknown."""
    stage = bound.stage
    if isinstance(stage, Global):
        return {column for column in (*(stage.writes or ()), stage.size_column, stage.cluster_column) if column is not None}
    if stage.writes is None:
        return None
    tags: set[str] = set()
    if isinstance(stage, Filter) and stage.mode == "tag":
        tags = {f"{bound.name}.{tag}" for tag in ("rule", "value", *(rule.name for rule in stage.rules()))}
    return {*stage.writes, *tags}


def _absent(mixture: Mixture, name: str, column: str, asked_by: str, seen: _Seen) -> str:
    """The error about a column that a stage decides by and documents lack."""
    of_source = asked_by in (_STRATA, _SPLIT, _PREFIX)
    where = mixture.where("sources", name, *(asked_by.split(".") if of_source else ["keep"]))
    problem = f"{where}: {'' if of_source else f'{asked_by}: '}documents have no column '{column}'."
    if column in seen.found:
        return f"{problem} The input has the field: name it under `keep`."
    known = dict.fromkeys([*mixture.sources[name].kept_fields, *seen.names])
    listed = f" The input has the fields {', '.join(list(known)[:_LISTED_NAMES])}." if known else ""
    remedy = "If the input has it, name it under `keep`; otherwise put a stage before that writes it."
    return f"{problem}{suggest(column, known)}{listed} Correct the name. {remedy}"


def _not_numbers(mixture: Mixture, name: str, kept: str, option: str, files: Files) -> list[str]:
    """The problem that no previewed value of a kept field that divides a source is a number. One is enough: a filter may drop
    others."""
    source = mixture.sources[name]
    column = source.kept_fields[kept]
    fields, values = field_names(source, {column: column}), pa.nulls(0)
    for split, reader in first_splits(files):
        with suppress(OSError):  # the run opens the file again, and reports it
            batches = (batch.extra[column].drop_null() for batch in reader.read(split, fields, open_input))
            values = next((array[:_LISTED_VALUES] for array in batches if len(array)), values)
        if len(values):
            break
    for value in values:
        with suppress(pa.ArrowException):
            value.cast(pa.float64(), safe=False)  # as the strata do
            return []
    if not len(values):
        return []
    where, example = mixture.where("sources", name, *option.split(".")), str(values[0])[:_SHOWN_CHARS]
    return [
        f"{where}: the field '{column}' holds no numbers in the {len(values):,} probed records, but {example!r}. Expected the "
        f"name of a field with a number for each document. If records further on have numbers, set check_fields: false for the "
        f"source."
    ]


def _preview(files: Files, fields: FieldNames, optional: Collection[str] = ()) -> _Seen:
    """Previews one split after another until every field but `optional` ones has occurred, and its type is known: by
    the schema of a file, or by the records of one split where all are alike."""
    seen, wanted = _Seen(num_files=len(files)), {*fields.wanted}.difference(optional)
    for split, reader in first_splits([(file, reader) for file, reader in files if not file.damage]):
        has_types = split.file.schema is not None or not fields.types
        if wanted <= seen.found and (has_types or (seen.types and not reader.has_json)):
            continue
        try:
            fresh = reader.fields_seen(split, fields, open_input)
        except OSError:  # the run opens the file again, and reports it
            continue
        if fresh.num_records:
            seen.files[split.file.path] = None
            seen.num_records += fresh.num_records
            seen.found |= fresh.found
            seen.names |= dict.fromkeys(fresh.names)
        if fresh.types and not has_types:
            known = fields.types.keys() & fresh.types.keys()
            seen.types.append({field: FoundType(kind=fresh.types[field], path=split.file.path) for field in known})
    return seen


def lacking_fields(files: Files, fields: FieldNames) -> list[str]:
    """A sentence for each field that no previewed record has, with the existing ones."""
    seen = _preview(files, fields)
    return [seen.lack(name) for name in fields.wanted if seen.num_records and name not in seen.found]


def first_splits(files: Files) -> Iterator[tuple[Split, Reader]]:
    """At most `MOST_SPLITS` splits, spread over the files and within them, the first of the first file first."""
    chosen = _spread(files, MOST_SPLITS)
    of_each = MOST_SPLITS // max(1, len(chosen))
    for file, reader in chosen:
        size = sum(num_bytes for _, num_bytes in file.row_groups) or file.num_bytes
        for split in _spread(reader.cut(file, max(_SPLIT_BYTES, -(-size // of_each))), of_each):
            yield split, reader


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    return [items[number * len(items) // count] for number in range(count)] if len(items) > count else list(items)


def _schemas(files: Files) -> dict[pa.Schema, str]:
    """Each schema with the first file that has it. Files of equal schemas share one."""
    schemas: dict[pa.Schema, str] = {}
    for file, _ in files:
        if file.schema is not None:
            schemas.setdefault(file.schema, file.path)
    return schemas


def _check_twice(mixture: Mixture, name: str, files: Files, keep: Mapping[str, str]) -> None:
    source = mixture.sources[name]
    asked = {
        **dict.fromkeys(source.needed_fields, source.content_option),
        source.id: "id",
        **dict.fromkeys(keep.values(), "keep"),
    }
    for schema, path in _schemas(files).items():
        for field, option in asked.items():
            try:
                type_in(schema, field)
            except ValueError as error:
                raise UserError(
                    f"{mixture.where('sources', name, option)}: the field '{field}' is not one field of {path}: {error}. "
                    f"Rename one of them in the file, or name another field."
                ) from None


def _of_schemas(files: Files, fields: Iterable[str]) -> Iterator[dict[str, FoundType]]:
    for schema, path in _schemas(files).items():
        kinds = {field: type_in(schema, field) for field in fields}
        yield {
            field: FoundType(kind=plain(kind), path=path, has_schema=True) for field, kind in kinds.items() if kind is not None
        }
