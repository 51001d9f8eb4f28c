"""From a mixture to a request: lists the inputs and binds the stages. All I/O of planning is here."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from time import monotonic
from typing import cast

from datapipe.config import catalogue
from datapipe.config.mixture import Mixture
from datapipe.config.option_paths import forget_urls
from datapipe.config.sources.amount import sample_of
from datapipe.dataclass import replace
from datapipe.engine.binding import bind, stage_digest, with_cut
from datapipe.engine.cell_tables import with_cell_tables
from datapipe.engine.chat_templates import with_templates
from datapipe.engine.fields import check_fields, deciding_columns, kept_columns
from datapipe.engine.history import read_mixture, read_types
from datapipe.engine.tokenizer_file import UsersTokenizer, added_tokens, separators, users_tokenizer, with_separators
from datapipe.errors import UserError, suggest
from datapipe.inputs.discovery import discover, probe_large_files, would_take
from datapipe.inputs.entries import Notes, same_files
from datapipe.metrics import UnreadableFile
from datapipe.records.names import OWN_FILES, TOKENIZER
from datapipe.rng import seed_for
from datapipe.shards.manifest import Snapshot, read_snapshot, snapshot_file
from datapipe.shards.snapshot_folder import snapshot_folder
from datapipe.snapshots.cells import check_same_cells
from datapipe.snapshots.generations import Generation
from datapipe.snapshots.index.reference_rows import find_reference_rows
from datapipe.snapshots.index.write import index_of_snapshot
from datapipe.snapshots.snapshot_sources import check_tokenizer, with_snapshot_sources
from datapipe.snapshots.takedown import named_in
from datapipe.stage.field_types import FoundType
from datapipe.stage.global_stage import Global
from datapipe.stage.reader import InputFile, Reader, Sample
from datapipe.stage.tables import drops_for_others
from datapipe.steps.counts import unreadable_text
from datapipe.steps.pipeline import BoundStage
from datapipe.steps.request import PlannedSource, Request, joined_types, row_files
from datapipe.steps.splits import group_splits
from datapipe.steps.stage_order import conversation_warnings, order_warnings
from datapipe.steps.warnings import RunWarning, files_warning, normalized_warning, same_file_warning, unreadable_warning
from datapipe.storage.http import is_http
from datapipe.storage.root import Root, is_remote
from datapipe.weights import changes_in_words

Show = Callable[[str], None]


def prepare(
    mixture: Mixture, limit: int | None = None, show: Show | None = None, generation: Generation | None = None
) -> Request:
    """The request of a mixture as of now. `show` gets lines about the listing of input files where it takes more than a
    second, and about downloads of files that stages read. `generation`: the files that are read, and added to the newest
    snapshot; None for all files. Raises UserError for everything that is wrong with the mixture."""
    forget_urls(show)
    given, root, own_rows = with_cell_tables(with_templates(mixture)), Root(mixture.output), None
    newest = None if generation is None else read_snapshot(root)
    sources, warnings = _own_sources(given, limit, show, generation)
    stages = {name: source.stages for name, source in sources.items()}
    warnings += _missing_tokens(stages)
    if newest is not None:
        check_same_cells(given, newest)
    named_in(given.takedown, None if newest is None else [])  # a list that cannot be read ends the run before it begins
    mixture, taken = with_snapshot_sources(given) if newest is None else (_as_published(given, newest), {})
    warnings += [*_unused(mixture), *_rounded(mixture)]
    if not given.tokenizer.is_none:  # weights that look like shares of a whole that they do not add up to
        warnings += [normalized_warning(*one) for one in given.incomplete_shares()]
    if newest is None:
        tokenizer = users_tokenizer(mixture, encodes=bool(sources))
        check_tokenizer(mixture, taken, tokenizer.content)
    else:
        content = root.read_bytes(snapshot_file(root, newest, TOKENIZER)) if newest.has_tokens else b""
        tokenizer = UsersTokenizer(content=content)
        bound_stages = (bound.stage for listed in stages.values() for bound in listed)
        if any(isinstance(stage, Global) and not stage.makes_contents for stage in bound_stages):
            own_rows = index_of_snapshot(root, newest)
    warnings += () if taken else tokenizer.warnings  # rows that are taken have their tokens
    return Request(
        mixture=mixture,
        sources=sources,
        added_to=newest,
        tokenizer_content=tokenizer.content,
        tokenizer_notes=tokenizer.notes,
        limit=limit,
        deciding={name: deciding_columns(mixture, name, stages[name])[0] for name in sources},
        warnings=tuple(warnings),
        reference_rows=find_reference_rows(mixture, stages, {name: list(of.files) for name, of in sources.items()}, own_rows),
        taken=taken,
    )


def _own_sources(
    mixture: Mixture, limit: int | None, show: Show | None, generation: Generation | None
) -> tuple[dict[str, PlannedSource], list[RunWarning]]:
    tokens = added_tokens(mixture)
    stages = {name: _bound(mixture, name, tokens) for name in mixture.sources}
    listing, is_later = Listing(show), generation is not None
    notes = {name: Notes(on_file=partial(listing.add, name), may_grow=is_later) for name in mixture.sources}
    every_file = {name: _discovered(mixture, name, notes[name]) for name in mixture.sources}
    files = every_file
    if generation is not None:
        chosen = {name: set(generation.files.get(name, ())) for name in every_file}
        files = {name: [each for each in listed if each[0].path in chosen[name]] for name, listed in every_file.items()}
    warnings = _checked_files(mixture, files, notes)
    if limit is None:
        size, where = mixture.execution.split_bytes, {name: mixture.where("sources", name, "path") for name in files}
        files = {name: probe_large_files(of, size, where[name], partial(listing.probe, name)) for name, of in files.items()}
    # of files that are added, the types are those of all files, so that they have the columns of those before
    probed = every_file if is_later else files
    checked = {name: check_fields(mixture, name, probed[name], stages[name]) for name in mixture.sources}
    warnings += [warning for of_source, _ in checked.values() for warning in of_source]
    known = read_types(Root(mixture.output)) if is_later else {}  # wider types may have been found by reading
    sources = {}
    for name, (_, found) in checked.items():
        types, before = found, known.get(name, {})
        for field in (field for field in found if field in before):
            types = {**types, field: joined_types(mixture.where("sources", name, "keep"), field, found[field], before[field])}
        sources[name] = _planned(mixture, name, files[name], stages[name], types, tokens)
    if limit is not None:  # one task reads a source up to the limit, so its files need no cuts
        sources = {name: planned.with_whole(planned.files) for name, planned in sources.items()}
    return sources, warnings


def _checked_files(
    mixture: Mixture, files: Mapping[str, Sequence[tuple[InputFile, Reader]]], notes: Mapping[str, Notes]
) -> list[RunWarning]:
    """Warnings about the input files as they were listed. Raises UserError for files that cannot be read as they are."""
    own = {name: [file for file, _ in listed] for name, listed in files.items()}
    for name, listed in own.items():
        _check_outside(mixture, name, [file.url for file in listed])
    stages = {name: mixture.stages_of(name) for name in own}
    warnings = [*order_warnings(stages), *conversation_warnings(stages)]
    for name, of in notes.items():
        noted = {
            "broken_links": sorted(set(of.passed_over)),
            "linked_again": sorted(set(of.linked_again)),
            "named_twice": of.named_twice,
        }
        warnings += [files_warning(kind, name, entries) for kind, entries in noted.items() if entries]
    warnings += _read_twice(mixture, own)
    return [*warnings, *(warning for name in own for warning in _damaged(mixture, name, files[name]))]


def _bound(mixture: Mixture, name: str, tokens: Mapping[str, bool]) -> tuple[BoundStage, ...]:
    bound = tuple(with_cut(name, bind(use)) for use in with_separators(mixture, name, tokens))
    if mixture.tokenizer.is_none and "source" in mixture.sources[name].kept_fields:
        raise UserError(
            f"{mixture.where('sources', name, 'keep')}: 'source' cannot be kept: written documents have a column of this name, "
            f"with the source of the mixture. Keep it under another name, {{origin: source}}, or add a tokenizer."
        )
    _check_global_stages(mixture, name, [stage for stage in bound if isinstance(stage.stage, Global)])
    return bound


def _check_global_stages(mixture: Mixture, source: str, bound: Sequence[BoundStage]) -> None:
    """Raises UserError where a global stage would overwrite a column that the source keeps or
    another stage writes, and where `source_order` names a source that the mixture does not have."""
    taken = dict.fromkeys(mixture.sources[source].kept_fields, "the source keeps")
    for bound_stage in bound:
        stage, where = cast(Global, bound_stage.stage), f"sources.{source}: {bound_stage.name}"
        columns = {"size_column": stage.size_column, "cluster_column": stage.cluster_column}
        for option, column in columns.items():
            if column is None:
                continue
            if not drops_for_others(stage.exchanges()):
                problem = "this stage cuts text out of documents, so there are no clusters of them. Leave the option out."
                raise UserError(f"{where}: {option}: {problem}")
            if column in taken:
                problem = f"{column} is the name of a column that {taken[column]}. Expected another name."
                raise UserError(f"{where}: {option}: {problem}")
            taken[column] = f"{bound_stage.name} writes"
        for name in stage.source_order() or ():
            if name not in mixture.sources:
                raise UserError(
                    f"{where}: source_order names '{name}', which is not a source of the mixture."
                    f"{suggest(name, mixture.sources)} Expected some of: {', '.join(mixture.sources)}."
                )


def _as_published(mixture: Mixture, newest: Snapshot) -> Mixture:
    """The mixture in which sources that are other snapshots, and the replay, are those of the newest snapshot of the output,
    with their versions, weights and tokenizer. The other outputs are not opened: their rows are in this one."""
    if not mixture.snapshot_sources and mixture.mixture.replay is None:
        return mixture
    published = read_mixture(Root(mixture.output).within(snapshot_folder(newest.fingerprint)))
    sources = {**mixture.sources, **published.snapshot_sources}
    tokenizer = mixture.tokenizer if mixture.tokenizer.path is not None else published.tokenizer
    return mixture.model_copy(update={"all_sources": sources, "mixture": published.mixture, "tokenizer": tokenizer})


def _check_outside(mixture: Mixture, name: str, urls: Iterable[str]) -> None:
    """Raises UserError for an input that the run itself would overwrite or delete, and for one that it writes."""
    root, source = Root(mixture.output), mixture.sources[name]
    folder = os.path.abspath(root.local) if root.local else root.url
    own = would_take(source.path, source.exclude, [f"{folder}/{file}" for file in OWN_FILES])
    if own is not None:
        raise UserError(
            f"{mixture.where('sources', name, 'path')}: the pattern takes {own.rpartition('/')[2]} in the output "
            f"{mixture.output} too, which the run writes. Give another output, or move the input to a folder below."
        )
    is_local = not is_remote(mixture.output)
    home = os.path.realpath(root.location) if is_local else root.location
    taken = re.compile(re.escape(home) + r"/(shards|documents|lists|snapshots|work|length-\d+)/")
    real_folder = lru_cache(maxsize=None)(os.path.realpath)  # links to folders are followed
    for url in urls:
        if is_remote(url) == is_local or is_http(url):
            continue
        path = f"{real_folder(os.path.dirname(url))}/" if is_local else Root(url).location
        if taken.match(path):
            raise UserError(
                f"{mixture.where('sources', name, 'path')}: {url} lies inside the output {mixture.output}, where the run "
                f"writes and deletes files. Give another output, or move the input."
            )


class Listing:
    """Emits how many files are found and probed, after a second and each time that the seconds have doubled."""

    def __init__(self, show: Show | None) -> None:
        self._show = show
        self._began, self._next_s, self._num_files = monotonic(), 1.0, 0

    def add(self, source: str) -> None:
        self._num_files += 1
        self._emit(f"  listing input files: {self._num_files:,} found, now of {source} …")

    def probe(self, source: str, num_files: int, of: int) -> None:
        self._emit(f"  searching places to cut large files: {num_files:,} of {of:,} of {source} …")

    def _emit(self, line: str) -> None:
        elapsed_s = monotonic() - self._began
        if self._show is not None and elapsed_s > self._next_s:
            self._next_s = 2 * elapsed_s
            self._show(line)


def _discovered(mixture: Mixture, name: str, notes: Notes) -> list[tuple[InputFile, Reader]]:
    source = mixture.sources[name]
    where = mixture.where("sources", name, "path")

    def reader_for(path: str) -> Reader:
        if source.format.name == "auto":
            return catalogue.reader_for(path, where)
        return catalogue.build_reader(source.format, mixture.where("sources", name, "format"))

    return discover(source.path, reader_for, source.fingerprint, where, source.exclude, prefix=source.prefix, notes=notes)


def listed_files(mixture: Mixture, notes: Notes) -> dict[str, list[InputFile]]:
    """The input files of each source as of now. Raises UserError where they cannot be listed."""
    return {name: [file for file, _ in _discovered(mixture, name, notes)] for name in mixture.sources}


def _missing_tokens(stages: Mapping[str, Sequence[BoundStage]]) -> list[RunWarning]:
    """Warnings about chat templates that spell tokens which the tokenizer lacks."""
    warnings: list[RunWarning] = []
    for name, bound_stages in stages.items():
        if tokens := [token for bound in bound_stages for token in bound.stage.missing_tokens()]:
            text = (
                f"the chat template of the tokenizer writes {', '.join(tokens)}, and the tokenizer has no such control tokens. "
                f"They become text. Add them to the tokenizer, or name another `template`."
            )
            warnings.append(RunWarning.of("missing_tokens", name, text, tokens=tokens))
    return warnings


def _damaged(mixture: Mixture, name: str, files: Iterable[tuple[InputFile, Reader]]) -> list[RunWarning]:
    """Warnings about files of which nothing can be read. Raises UserError for more of them than the mixture allows."""
    damaged = [UnreadableFile(path=file.path, position=0, error=file.damage) for file, _ in files if file.damage]
    if not damaged:
        return []
    text, allowed = unreadable_text(name, damaged), mixture.max_unreadable_files
    if len(damaged) > allowed:
        raise UserError(
            f"{mixture.where('sources', name, 'path')}: {text}. max_unreadable_files allows {allowed}. Replace the files, "
            f"`exclude` them from the source, or raise max_unreadable_files to go on without them."
        )
    return [unreadable_warning(name, damaged)]


def _unused(mixture: Mixture) -> list[RunWarning]:
    keys = mixture.unused_keys()
    if not keys:
        return []
    why = (
        "the run writes all kept documents as text (tokenizer: none)"
        if mixture.tokenizer.is_none
        else "the mixture has a tokenizer; `tokenizer: none` writes documents"
    )
    return [RunWarning(kind="unused_keys", text=f"not used: {', '.join(keys)}: {why}.", details={"keys": keys})]


def _rounded(mixture: Mixture) -> list[RunWarning]:
    changed = {} if mixture.tokenizer.is_none else mixture.rounded_shares()
    if not changed:
        return []
    text = f"weights: {changes_in_words(changed)}."
    return [RunWarning(kind="rounded_weights", text=text, details={"shares": {name: list(of) for name, of in changed.items()}})]


def _read_twice(mixture: Mixture, files: Mapping[str, Sequence[InputFile]]) -> list[RunWarning]:
    """A warning for each set of sources that read the same file, with the first one. Sources that
    take another field of it as their text, or read it in another format, have other documents."""
    by_sources: dict[tuple[str, ...], list[list[tuple[str, str]]]] = {}
    for readings in same_files(files):
        by_text: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for name, file in readings:
            source = mixture.sources[name]
            by_text.setdefault((repr(source.needed_fields), repr(source.format)), []).append((name, file.url))
        for same in by_text.values():
            if len(same) > 1:
                by_sources.setdefault(tuple(dict.fromkeys(name for name, _ in same)), []).append(same)
    return [same_file_warning(groups[0], len(groups) - 1) for groups in by_sources.values()]


def _planned(
    mixture: Mixture,
    name: str,
    files: Sequence[tuple[InputFile, Reader]],
    stages: tuple[BoundStage, ...],
    types: Mapping[str, FoundType],
    tokens: Mapping[str, bool],
) -> PlannedSource:
    listed = [(file if file.schema is None else replace(file, schema=None), reader) for file, reader in files]
    readers = {file.path: reader for file, reader in listed}
    keys = {path: (type(reader), repr(reader)) for path, reader in readers.items()}
    different = {keys[path]: reader for path, reader in readers.items()}
    for reader in different.values():
        catalogue.libraries_of(reader)
    digests = {key: stage_digest(reader, "reader") for key, reader in different.items()}
    source, sample = mixture.sources[name], sample_of(mixture.sources[name])
    keep, declared, of_rows = kept_columns(source, stages), source.types, row_files(source)
    if source.repository is not None and of_rows is not None:
        between = separators(mixture, name, source.repository.separators, tokens)
        of_rows = replace(of_rows, separators=tuple(between), seed=seed_for(mixture.seed, name, "files"))
    return PlannedSource(
        row_files=of_rows,
        sample=None if sample is None or sample.of == "cleaned" else Sample(seed=mixture.seed, share=sample.share),
        groups=tuple(group_splits(listed, mixture.execution.split_bytes)),
        readers=readers,
        reader_digests={path: digests[key] for path, key in keys.items()},
        keep=keep,
        types=types,
        declared={field: declared[column] for column, field in keep.items() if column in declared},
        stages=stages,
    )
