"""The sources of a mixture that are other outputs: each becomes the sources that it has, with their share of its weight.

    old: {snapshot: runs/2025, weight: 0.1}      ─▶  old.web 0.08, old.code 0.02      by the tokens of their rows
    replay: {from: runs/2025, share: 5%}         ─▶  replay.web, replay.code: 5 % of all, as that run draws them

A snapshot of which one source is taken keeps the name that the mixture gives it. The names, weights and versions that result
are in the mixture that the output keeps, so that it can be run again when the other outputs have newer snapshots.

Their shards are linked into the output on one disk, copied by the store, or copied here:

    runs/2025/shards/web/part-00003-00000-<digest>.arrow     ─▶  shards/old.web/part-00003-00000-<digest>.arrow
    runs/2025/shards/web+2/part-00000-00000-<digest>.arrow   ─▶  shards/old.web+2/part-00000-00000-<digest>.arrow

An output stays whole by itself: the other one may be cleaned, moved or deleted. On one disk a link takes no room.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from shlex import quote
from time import monotonic

from datapipe.config.mixture import Mixture
from datapipe.config.sources.provenance import license_refusal
from datapipe.config.sources.source import SnapshotSource, Source
from datapipe.config.tokenizer_spec import TokenizerSpec
from datapipe.credentials import masked
from datapipe.dataclass import dataclass
from datapipe.errors import CorruptionError, SnapshotError, UserError, suggest
from datapipe.quantities import size
from datapipe.records.checksum import file_checksum
from datapipe.shards.document_files import files_with_hashes
from datapipe.shards.manifest import FurtherLength, Snapshot, TokenizerEntry, read_snapshot, read_tokens, snapshot_file
from datapipe.shards.shard_table import ShardEntry, ShardTable, shard_path
from datapipe.steps import weighting
from datapipe.steps.request import TakenSource
from datapipe.storage.outages import input_error
from datapipe.storage.root import Root
from datapipe.tokens.encoder import Encoder, load_tokenizer

REPLAY = "replay"
_REPORT_EVERY_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opened:
    """An output that a mixture names under the key `where`. Its snapshot has the sequence lengths of the mixture, in order."""

    where: str
    url: str
    root: Root
    snapshot: Snapshot


def with_snapshot_sources(mixture: Mixture) -> tuple[Mixture, dict[str, TakenSource]]:
    """The mixture in which every source that is another output, and the replay, is one source of it; and these sources.
    Raises UserError for an output whose rows do not fit, and SnapshotError for one that has no such snapshot."""
    if not mixture.snapshot_sources and mixture.mixture.replay is None:
        return mixture, {}
    sources: dict[str, Source | SnapshotSource] = {}
    weights: dict[str, dict[str, Fraction]] = {}
    taken: dict[str, TakenSource] = {}
    opened: list[_Opened] = []
    named = [*mixture.all_sources.items()]
    if (replay := mixture.mixture.replay) is not None:
        named.append((REPLAY, SnapshotSource(snapshot=replay.from_, version=replay.version)))
    for name, source in named:
        if isinstance(source, Source):
            sources[name] = source
            continue
        is_replay = source is not mixture.all_sources.get(name)
        path = ("mixture", "replay") if is_replay else ("sources", name)
        found = _open(mixture, source, mixture.where(*path))
        shares = _shares(found, source, is_replay)
        names = {part: name if len(source.sources) == 1 else f"{name}.{part}" for part in shares}
        for part, new in names.items():
            if new in sources or (new != name and new in mixture.all_sources):
                raise UserError(
                    f"{found.where}: '{part}' of {found.url} becomes '{new}', which is a source already. Rename one."
                )
            sources[new] = source.model_copy(update={"sources": (part,), "version": found.snapshot.fingerprint})
            taken[new] = TakenSource(root=found.root, snapshot=found.snapshot, source=part)
            if refusal := license_refusal(mixture.licenses, taken[new].entry.license):
                raise UserError(f"{found.where}: '{taken[new].source}' of {found.url} {refusal}")
        weights["" if is_replay else name] = {names[part]: share for part, share in shares.items()}
        opened.append(found)
    _check_together(opened)
    return _with_tokenizer(mixture.with_sources(sources, weights), opened), taken


def _open(mixture: Mixture, source: SnapshotSource, where: str) -> _Opened:
    root, url = Root(source.snapshot.rstrip("/")), masked(source.snapshot)
    if root.url == Root(mixture.output.rstrip("/")).url or root.location == Root(mixture.output).location:
        raise UserError(f"{where}: {url} is the output of this mixture itself. Expected another one.")
    try:
        found = read_snapshot(root, source.version)
        read_tokens(root, source.version)  # which refuses documents
    except OSError as error:
        raise input_error(error, where, "cannot read the snapshot of", url) from error
    except SnapshotError as error:
        raise SnapshotError(f"{where}: {error}") from error
    wanted = mixture.pack.sequence_length
    missing = [length for length in wanted if length not in found.sequence_lengths]
    if missing:
        there = ", ".join(map(str, found.sequence_lengths))
        raise UserError(
            f"{where}: the rows of {url} have {there} tokens, and pack.sequence_length is {missing[0]}. Rows are mixed as they "
            f"are: set pack.sequence_length to {there}, or take the text instead, as a source with a path."
        )
    if found.shard_format != mixture.shards.format:
        raise UserError(
            f"{where}: the shards of {url} are {found.shard_format} files, and shards.format is {mixture.shards.format}. "
            f"Set shards.format to {found.shard_format}."
        )
    if found.bos_aligned != mixture.pack.bos_aligned:
        held = "beginnings of documents alone" if found.bos_aligned else "documents that go on in other rows"
        ours, theirs = (str(is_aligned).lower() for is_aligned in (mixture.pack.bos_aligned, found.bos_aligned))
        raise UserError(
            f"{where}: the rows of {url} hold {held}, and pack.bos_aligned is {ours}. Rows are mixed as they are: set it to "
            f"{theirs}, or take the text instead, as a source with a path."
        )
    unknown = next((name for name in source.sources if name not in found.sources), None)
    if unknown is not None:
        known = ", ".join(found.sources)
        raise UserError(f"{where}.sources: {url} has no source '{unknown}'.{suggest(unknown, found.sources)} It has: {known}.")
    first, *further = map(found.of_length, wanted)
    snapshot = first.model_copy(update={"further": tuple(map(FurtherLength.of, further))})
    return _Opened(where=where, url=url, root=root, snapshot=snapshot)


def _shares(found: _Opened, source: SnapshotSource, is_replay: bool) -> dict[str, Fraction]:
    """The share of each source that is taken in the weight of all: by the tokens of its rows, or as its run draws it."""
    from datapipe.loader.order.batch_order import drawn_tokens, run_order  # few mixtures have such sources

    snapshot = found.snapshot
    names = source.sources or tuple(snapshot.sources)
    if is_replay:
        drawn = drawn_tokens(snapshot, run_order(snapshot))
        parts = weighting.drawn_shares(snapshot) if drawn is None else {name: Fraction(drawn[name]) for name in drawn}
    else:
        tokens = weighting.epoch_tokens(snapshot.sources, snapshot.shards, snapshot.sequence_length)
        parts = {name: Fraction(tokens[name]) for name in names}
    shown = {name: parts[name] for name in names if parts[name]}
    if not shown:
        raise UserError(f"{found.where}: {found.url} has no rows to train on in {', '.join(names)}. Leave the source out.")
    return {name: part / sum(shown.values()) for name, part in shown.items()}


def _check_together(opened: list[_Opened]) -> None:
    """Raises UserError for outputs whose tokens are not those of one tokenizer, or whose rows are not of one kind."""
    first, *others = opened
    for other in others:
        versions = [opened.snapshot.fingerprint[:12] for opened in (other, first)]
        theirs, ours = other.snapshot.tokenizer, first.snapshot.tokenizer
        if (theirs.fingerprint, theirs.bos_id) != (ours.fingerprint, ours.bos_id):
            raise UserError(
                f"{other.where}: snapshot {versions[0]} of {other.url} has another tokenizer ({_in_words(theirs)}) than "
                f"snapshot {versions[1]} of {first.url} ({_in_words(ours)}). Rows are mixed as they are: leave one of "
                f"them out, or take its text instead, as a source with a path."
            )
    lengths = {one.url: _has_pieces(one.snapshot) for one in opened}
    if len(set(lengths.values())) > 1:
        [url, *_] = [url for url, has_pieces in lengths.items() if has_pieces]
        raise UserError(
            f"{url} was packed with method: buckets, and the others were not. Expected rows of one kind: leave one out."
        )


def _in_words(entry: TokenizerEntry) -> str:
    begin = "their text" if entry.bos_id is None else f"token {entry.bos_id}"
    return f"{entry.fingerprint.rpartition(':')[2][:12]}, documents begin with {begin}"


def _has_pieces(snapshot: Snapshot) -> bool:
    return ShardTable.of(snapshot.shards).column("piece_length").null_count < len(snapshot.shards)


def _with_tokenizer(mixture: Mixture, opened: list[_Opened]) -> Mixture:
    """The mixture with the tokenizer of the snapshots, unless it names the same one. Raises UserError for another one."""
    found = opened[0]
    root, snapshot = found.root, found.snapshot
    if (mixture.pack.method == "buckets") != _has_pieces(snapshot) and mixture.sources:
        raise UserError(
            f"{found.where}: the rows of {found.url} were {'' if _has_pieces(snapshot) else 'not '}packed with method: "
            f"buckets, and pack.method is {mixture.pack.method}. Expected rows of one kind: set pack.method as it was there."
        )
    if mixture.tokenizer.path is not None:
        return mixture
    path = snapshot_file(root, snapshot, snapshot.tokenizer.path)
    tokenizer, entry = load_tokenizer(root.child_url(path), root.read_bytes(path)), snapshot.tokenizer
    bos = None if entry.bos_id is None else tokenizer.id_to_token(entry.bos_id)
    spec = TokenizerSpec(path=root.child_url(path), eos=tokenizer.id_to_token(entry.eos_id), bos=bos)
    return mixture.model_copy(update={"tokenizer": spec})


def check_tokenizer(mixture: Mixture, taken: Mapping[str, TakenSource], content: bytes) -> None:
    """Raises UserError where the mixture's own tokenizer, of this content, is not that of the snapshots."""
    spec = mixture.tokenizer
    encoder = Encoder(content, eos=spec.eos, bos=spec.bos) if taken else None
    for name, source in taken.items():
        theirs = source.snapshot.tokenizer
        if encoder is not None and (encoder.fingerprint, encoder.eos_id, encoder.bos_id) != (
            theirs.fingerprint,
            theirs.eos_id,
            theirs.bos_id,
        ):
            raise UserError(
                f"{mixture.where('tokenizer')}: {masked(mixture.tokenizer.path or '')} is not the tokenizer of "
                f"{masked(source.root.url)}, from which '{name}' takes its rows. Leave the tokenizer out to use that one, or "
                f"take the text instead, as a source with a path."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenShard:
    """A shard as the new manifest names it, and its root and path in the other output."""

    entry: ShardEntry
    root: Root
    path: str


def taken_shards(taken: Mapping[str, TakenSource], sequence_length: int, folder: str, seed: int) -> list[TakenShard]:
    """The shards of all taken sources, with paths that begin with `folder`; the parts of a source are
    shuffled as one. Ranges of shuffle hashes hold for the same seed."""
    found: list[TakenShard] = []
    for name, source in taken.items():
        snapshot = source.snapshot.of_length(sequence_length)
        for shard in snapshot.shards:
            if shard.source == source.source:
                changes = {"path": shard_path(folder, name, shard.part, shard.path), "source": name, "part": None}
                hashes = shard.hashes if snapshot.seed == seed else None
                entry = shard.model_copy(update={**changes, "hashes": hashes})
                found.append(TakenShard(entry=entry, root=source.root, path=shard.path))
    return found


def taken_files(taken: Mapping[str, TakenSource]) -> Iterator[tuple[int, str, str]]:
    """Hash, source and path of the input files behind the documents of all taken sources."""
    for name, source in taken.items():
        for number, there, path in files_with_hashes(source.root, source.snapshot):
            if there == source.source:
                yield number, name, path


def copy_shards(
    target: Root,
    shards: Sequence[TakenShard],
    staging: str,
    show: Callable[[str], None] | None = None,
    clock: Callable[[], float] = monotonic,
) -> None:
    """Puts shards that are not there into an output, by way of links in `staging`. `show` gets a
    line every ten seconds. Raises CorruptionError for a shard that is not as in its manifest."""
    total, done, reported_at = sum(shard.entry.bytes for shard in shards), 0, clock()
    for number, shard in enumerate(shards):
        if show is not None and clock() - reported_at > _REPORT_EVERY_S:
            reported_at = clock()
            show(f"  taking shards of other snapshots: {number:,} of {len(shards):,}, {size(done)} of {size(total)}")
        done += shard.entry.bytes
        if target.size(shard.entry.path) == shard.entry.bytes:
            continue
        found = (shard.entry.checksum, shard.entry.bytes)
        if shard.root.size(shard.path) != found[1] or file_checksum(shard.root, shard.path, found[0]) != found:
            raise CorruptionError(
                f"{shard.root.child_url(shard.path)}: the shard is gone, or not the one that its snapshot names. "
                f"`datapipe verify {quote(shard.root.url)}` shows which shards are damaged; run its mixture again to "
                f"restore them."
            )
        target.take(shard.root, shard.path, shard.entry.path, f"{staging}/taken-{number:06d}")
