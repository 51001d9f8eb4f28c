"""Additions: new files of the sources, built by themselves, and published as further parts of the sources.

    new files ─▶ additions/00001/files.json    the choice, before anything runs: a run that was stopped goes on with it
                 additions/00001/              an output of its own: its tasks, index and shards
    newest snapshot + these shards ─▶ the next snapshot of the output, whose manifest names them as a part, and whose report
                                      is of all that it was made of

An addition is compared with the rows of all that came before, and has the tokenizer and the thresholds of the first snapshot.
Nothing that was read, tokenized or packed before is touched. The validation split stays that of the first snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from datapipe.config import catalogue
from datapipe.config.interpolation import parsed_yaml
from datapipe.config.mixture import Mixture
from datapipe.config.mixture_schedule import MixtureSpec
from datapipe.config.stage_use import StageUse
from datapipe.config.tokenizer_spec import TokenizerSpec
from datapipe.errors import DatapipeError, SnapshotError, UserError
from datapipe.records.names import FILES, MIXTURE, REMOVED, REPORT, SNAPSHOT, TOKENIZER, WORK
from datapipe.report.card.write import whole_report
from datapipe.report.report import Addition as AddedTo
from datapipe.shards.document_files import files_in, files_of, files_parquet, files_with_hashes
from datapipe.shards.manifest import Snapshot, has_snapshot, read_snapshot, snapshot_file, snapshot_folder
from datapipe.shards.removed import removed_entry
from datapipe.shards.shard_table import ShardTable
from datapipe.shards.snapshots import ADDED, newest_manifest, note_publication, published_additions
from datapipe.snapshots.additions import Addition, is_base
from datapipe.snapshots.composed_manifest import keep_tasks, make_snapshot, publish_files
from datapipe.snapshots.index.write import INDEX, open_index
from datapipe.snapshots.takedown import delete_from_indexes, named_in, removed_documents, take_down_from_additions
from datapipe.stage.base import Filter
from datapipe.stage.global_stage import Global
from datapipe.steps.warnings import RunWarning
from datapipe.storage.lock import exclusive
from datapipe.storage.root import Root


def mixture_of(mixture: Mixture, root: Root, addition: Addition) -> Mixture:
    """The mixture that builds an addition. Raises UserError for what cannot be followed.

    What is learnt is read in the folder of the newest snapshot: a run that failed since has left its own in the output.
    """
    newest = read_snapshot(root)
    earlier = [root.url, *map(root.child_url, published_additions(root, newest))]
    learnt = root.child_url(snapshot_folder(newest.fingerprint)) if has_snapshot(root, newest.fingerprint) else root.url
    added = {name: source for name, source in mixture.sources.items() if name in addition.files}
    sources = {
        name: source.model_copy(
            update={"weight": 1} | ({} if source.stages is None else {"stages": _frozen(source.stages, learnt, earlier)})
        )
        for name, source in added.items()
    }
    spec = mixture.tokenizer
    eos = spec.train.eos if spec.train is not None else spec.eos
    return mixture.as_addition(
        output=root.child_url(addition.folder),
        all_sources=sources,
        stages=_frozen(mixture.stages, learnt, earlier),
        tokenizer=TokenizerSpec(path=root.child_url(snapshot_file(root, newest, TOKENIZER)), eos=eos, bos=spec.bos),
        validation=0.0,
        takedown=None,
        mixture=MixtureSpec(),
    )


def check_can_follow(mixture: Mixture) -> None:
    """Raises UserError for a mixture whose additions cannot be packed by themselves."""
    lengths = mixture.pack.sequence_length
    if mixture.snapshot_sources or mixture.mixture.replay is not None:
        raise UserError(
            "--follow: this mixture takes rows of other snapshots, which cannot be followed so far. Follow the files by a "
            "mixture of their own, and take its output as a source with `snapshot:`."
        )
    if mixture.tokenizer.is_none:
        raise UserError("--follow: this mixture has `tokenizer: none`. Only runs that make tokens can be followed so far.")
    if len(lengths) > 1:
        raise UserError(
            f"--follow: pack.sequence_length lists {len(lengths)} lengths. Expected one: additions with several are not there "
            f"yet."
        )


def check_is_as_before(mixture: Mixture, root: Root) -> None:
    """Raises UserError where the mixture has another tokenizer, sequence length, shard format or seed than the newest snapshot:
    what was learnt and how rows look is frozen while it is followed."""
    path = f"{snapshot_folder(read_snapshot(root).fingerprint)}/{MIXTURE}"
    if not root.exists(path):
        return
    before, now = parsed_yaml(root.read_bytes(path).decode()), parsed_yaml(mixture.resolved_yaml())
    for names in _FROZEN:
        was, is_now = _value(before, names), _value(now, names)
        if was != is_now:
            raise UserError(
                f"--follow: {'.'.join(names)} was {was} when {root.url} was published, and is {is_now} now. While a mixture is "
                f"followed it stays: set it back, or build anew with `datapipe run --repack`."
            )


_FROZEN = (
    ("tokenizer", "train"),
    ("tokenizer", "eos"),
    ("tokenizer", "bos"),
    ("pack", "sequence_length"),
    ("shards", "format"),
    ("seed",),
)


def _value(content: Any, names: Sequence[str]) -> Any:
    for name in names:
        content = content.get(name) if isinstance(content, dict) else None
    return content


def _frozen(stages: tuple[StageUse, ...], learnt: str, earlier: list[str]) -> tuple[StageUse, ...]:
    """The stages with all that was learnt from the first snapshot, and compared with what came before."""
    return tuple(use.model_copy(update={"options": use.options | _fixed(use, learnt, earlier)}) for use in stages)


def _fixed(use: StageUse, learnt: str, earlier: list[str]) -> dict[str, Any]:
    stage = catalogue.build_stage(use)
    if isinstance(stage, Global):
        return {"against": list(dict.fromkeys([*stage.against, *earlier]))}
    share = stage.kept_share() if isinstance(stage, Filter) else None
    return {"threshold_from": learnt} if share is not None and not share.threshold_from else {}


def num_parts(snapshot: Snapshot) -> int:
    """Parts of the source that has the most."""
    parts = ShardTable.of(snapshot.shards).parts
    return int(parts.max()) + 1 if len(parts) else 1


def publish_addition(root: Root, mixture: Mixture, addition: Addition) -> tuple[Snapshot, list[RunWarning]]:
    """The next snapshot of an output: its newest one, and an addition that is built. Returns it with its warnings. Where one of
    their reports is missing or of another version, it has that of the addition.

    Raises DatapipeError where the newest snapshot is another one than the addition was begun for.
    """
    with exclusive(root) as lock:
        before, added = read_snapshot(root), read_snapshot(root.within(addition.folder))
        if not before.has_tokens or not added.has_tokens or not is_base(root, addition.base, before.fingerprint):
            raise DatapipeError(
                f"{root.url}: another run has published a snapshot since the addition {addition.folder} was begun. Follow "
                f"again: what is new is then chosen anew."
            )
        forms = [(each.sequence_length, each.shard_format, each.seed, each.tokenizer.fingerprint) for each in (before, added)]
        assert forms[0] == forms[1], forms  # `check_is_as_before`, and `mixture_of` freezes the tokenizer
        part = num_parts(before)
        shards = [entry.model_copy(update={"path": f"{addition.folder}/{entry.path}", "part": part}) for entry in added.shards]
        within = root.within(addition.folder)
        files = files_parquet([*files_with_hashes(root, before), *files_with_hashes(within, added)])
        length = before.sequence_length
        named = named_in(mixture.takedown, wrong=[])
        removed = removed_documents(root, named, {}, files)
        entry, listed = removed_entry(removed, REMOVED)
        joined = [*before.shards, *shards]
        snapshot, warnings = make_snapshot(mixture, length, before.tokenizer, joined, files, removed=entry)
        about_it = AddedTo(part=part, folder=addition.folder, added_to=before.fingerprint)
        added_report = root.read_bytes(f"{addition.folder}/{snapshot_folder(added.fingerprint)}/{REPORT}")
        try:
            # not that in the output: a later run that failed has written its own there
            report_before = root.read_bytes(f"{snapshot_folder(before.fingerprint)}/{REPORT}")
            report = whole_report(mixture, report_before, added_report, snapshot, about_it, warnings)
        except (FileNotFoundError, ValueError):
            report = added_report
        note_publication(root, snapshot.fingerprint)
        keep_tasks(root, before, snapshot)
        needed = {TOKENIZER: root.read_bytes(snapshot_file(root, before, TOKENIZER)), FILES: files, **listed}
        folders = json.dumps([*published_additions(root, before), addition.folder]).encode()
        about = {MIXTURE: mixture.resolved_yaml().encode(), REPORT: report, ADDED: folders}
        publish_files(lock, snapshot, needed, about, [REPORT, MIXTURE])
        if snapshot.removed != before.removed:
            take_down_from_additions(root, snapshot, removed)
            delete_from_indexes(root, removed)
    return snapshot, warnings


def restore_newest(root: Root) -> bool:
    """Whether snapshot.json of an output was damaged, and is restored with its files from the folder of the newest snapshot."""
    with suppress(SnapshotError):
        read_snapshot(root)
        return False
    with exclusive(root) as lock:
        newest = newest_manifest(root)
        if newest is None:
            return False
        own = snapshot_folder(newest.fingerprint)
        paths = [path for path in (*newest.own_files, REPORT, MIXTURE, SNAPSHOT) if root.exists(f"{own}/{path}")]
        lock.replace({path: root.read_bytes(f"{own}/{path}") for path in paths})
    return True


def check_is_published(root: Root) -> None:
    """Raises UserError where a run over all files was stopped while it published: the index of the output then has rows of
    files that the newest snapshot has not, or has as additions, and what is new would be compared with those."""
    if not root.exists(f"{WORK}/{INDEX}"):
        return
    newest = read_snapshot(root)
    added = [files_in(root.read_bytes(f"{folder}/{FILES}")) for folder in published_additions(root, newest)]
    whole = files_of(root, newest) - {(source, path) for files in added for _, source, path in files}
    strange = sorted({(file.source, file.path) for file in open_index(root.url).files} - whole)
    if strange:
        repack = " --repack" if added else ""
        raise UserError(
            f"--follow: a run over all files of {root.url} was stopped while it published, among them {'/'.join(strange[0])}. "
            f"Finish it with `datapipe run MIXTURE{repack}`, and follow again."
        )
