"""`datapipe run --follow`: builds what is new in the sources, again and again, and publishes it where there is enough.

    no snapshot ─▶ a whole run
    list ─▶ enough that is new? ─ no ─▶ wait, and report what for
              └ yes ─▶ begin a generation ─▶ run it, which publishes the next snapshot ─▶ list

What is published depends on the files of each generation alone, not on when it was built or how
often it was stopped.

    listing ─▶ files that no snapshot has ─▶ same size and time as at the listing before ─▶ ready
                                         └▶ changed since, or seen for the first time ─▶ still being written, perhaps

A file that appears under its name at once, by a rename or in an object store, is ready at the
second listing, so `--once` lists twice. A file that a list names (`path: "@new.txt"`) is ready at the first: its writer is
done. A line without its end, and a file that is not there yet, are left to a later listing.

A file of a snapshot that changed is reported, and not read again: its rows are published.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from operator import itemgetter

from datapipe.config import catalogue
from datapipe.config.interpolation import parsed_yaml
from datapipe.config.mixture import Mixture
from datapipe.dataclass import dataclass, field
from datapipe.engine.events import Adding, Observer, Published, SourcesListed, UserMessage, Waiting
from datapipe.engine.history import facts_of_files
from datapipe.engine.prepare import listed_files
from datapipe.errors import UserError
from datapipe.inputs.entries import Notes
from datapipe.inputs.path_lists import SIGN
from datapipe.quantities import counted, size
from datapipe.records.names import FOLLOWER, FOLLOWING, MIXTURE, WORK
from datapipe.report.card.write import complete_about
from datapipe.shards.document_files import files_of, files_with_hashes, find_keys
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.snapshot_folder import snapshot_folder
from datapipe.shards.snapshots import newest_manifest, publications
from datapipe.snapshots.generations import Generation, begin_generation, begun_generation
from datapipe.snapshots.index.write import INDEX
from datapipe.snapshots.takedown import named_in, take_down
from datapipe.stage.global_stage import Global
from datapipe.stage.reader import InputFile
from datapipe.steps.reasons import flat, value_changes
from datapipe.storage.lock import exclusive
from datapipe.storage.outages import OutageError
from datapipe.storage.root import Root

RunOne = Callable[[Mixture, Generation | None], None]
"""Runs a mixture to its end, reading the files of a generation, or all; raises what ended it."""

_SHOWN = 3

_FROZEN = (
    *("tokenizer.train", "tokenizer.eos", "tokenizer.bos"),
    *("pack.sequence_length", "shards.format", "documents.format", "seed"),
)
"""Options that stay as they are while a mixture is followed."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changes that a listing finds."""

    ready: Mapping[str, tuple[str, ...]]  # by source, paths of the new files that can be read, sorted
    ready_bytes: int  # of them
    # new files that were not the same at the listing before, and lines of lists whose files are not there yet
    unfinished: tuple[str, ...]
    changed: tuple[str, ...]  # files of a snapshot that are not as they were when they were read
    gone: tuple[str, ...]  # files of a snapshot that are no longer there


@dataclass(slots=True)
class Follower:
    """Follows the sources of a mixture, listed every `every_s` seconds. `emit` gets the events between runs."""

    mixture: Mixture
    every_s: float
    run_one: RunOne
    emit: Observer
    wait: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    _seen: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)  # by source and path, at the last listing
    _emitted: set[str] = field(default_factory=set)
    _taken_down: set[str] = field(default_factory=set)
    _waits_for: str = ""

    def follow(self, num_listings: int | None = None) -> None:
        """Follows until an exception ends it, such as KeyboardInterrupt, or for so many listings.
        Raises UserError where another process follows, and the error of a last listing that fails."""
        root = Root(self.mixture.output)
        with exclusive(root.within(FOLLOWING)):
            try:
                self._follow(root, num_listings)
            finally:
                self._note("")

    def _follow(self, root: Root, num_listings: int | None) -> None:
        _check_keeps_index(self.mixture, root)
        if newest_manifest(root) is None:
            self.run_one(self.mixture, None)
        _check_is_as_before(self.mixture, root)
        listings = 0
        while num_listings is None or listings < num_listings:
            snapshot = read_snapshot(root)
            try:
                if self._takes_down(root, snapshot):
                    continue
                generation = self._begun(root, snapshot)
                changes = self.list_changes(root, snapshot) if generation is None else None
                self.emit(SourcesListed())
            except (UserError, OutageError) as error:  # a store or a folder is away for a while, or a list is wrong
                generation, changes = None, None
                if listings + 1 == num_listings:
                    raise
                self._waits(f"listing again in {self.every_s:g} s: {error}")
            if changes is not None:
                self._emit_changes(changes)
                if self._is_enough(root, snapshot, changes):
                    generation = begin_generation(root, snapshot, changes.ready)
            listings += changes is not None or generation is None
            if generation is not None:
                self._add(root, snapshot, generation)
            elif num_listings is None or listings < num_listings:
                self.wait(self.every_s)

    def list_changes(self, root: Root, snapshot: Snapshot) -> Changes:
        known, facts = files_of(root, snapshot), facts_of_files(root)
        notes, sources = Notes(may_grow=True), self.mixture.sources
        lists = {name for name in sources if all(path.startswith(SIGN) for path in sources[name].path)}
        now = {(name, file.path): file for name, files in listed_files(self.mixture, notes).items() for file in files}
        new = {key: file for key, file in now.items() if key not in known}
        ready = {key: file for key, file in new.items() if key[0] in lists or self._seen.get(key) == _fact(file)}
        self._seen = {key: _fact(file) for key, file in new.items()}
        changed = (key for key in known & now.keys() if facts.get(key[0], {}).get(key[1]) not in (None, _fact(now[key])))
        return Changes(
            ready={name: tuple(path for _, path in group) for name, group in groupby(sorted(ready), key=itemgetter(0))},
            ready_bytes=sum(file.num_bytes for file in ready.values()),
            unfinished=(*_names(new.keys() - ready.keys()), *notes.not_there_yet),
            changed=_names(changed),
            gone=_names(key for key in known - now.keys() if key[0] in sources),
        )

    def _takes_down(self, root: Root, snapshot: Snapshot) -> bool:
        if self.mixture.takedown is None or not snapshot.has_tokens:
            return False
        wrong: list[str] = []
        named = frozenset(named_in(self.mixture.takedown, wrong)) - self._taken_down
        for line in wrong:
            self._emit_once(line)
        keys = dict(zip(named, find_keys(files_with_hashes(root, snapshot), named))) if named else {}
        documents_found = [document for document, key in keys.items() if key is not None]
        self._taken_down |= set(documents_found)
        for document in sorted(keys.keys() - documents_found)[:_SHOWN]:
            self._emit_once(f"{document}: no file of a snapshot has it so far. It is taken down once one has")
        if not documents_found:
            return False
        newest, done = take_down(root, sorted(documents_found))
        if (line := complete_about(root, newest)) is not None:  # also where a takedown before was killed
            self.emit(UserMessage(line))
        if done.num_new:
            self.emit(Published(snapshot=newest.fingerprint, taken_down=done.num_new, is_generation=False))
        return done.num_new > 0

    def _note(self, line: str) -> None:
        """Leaves what the follower does or waits for, for `datapipe status`; nothing where it has ended."""
        with suppress(OSError):
            Root(self.mixture.output).write_atomic(FOLLOWER, json.dumps({"doing": line}).encode())

    def _emit_once(self, line: str) -> None:
        if line not in self._emitted:
            self.emit(UserMessage(line))
        self._emitted.add(line)

    def _begun(self, root: Root, snapshot: Snapshot) -> Generation | None:
        begun = begun_generation(root, snapshot)
        if begun is None:
            return None
        listed = listed_files(self.mixture, Notes(may_grow=True))
        there = {name: {file.path for file in files} for name, files in listed.items()}
        gone = [f"{name}/{path}" for name, paths in begun.files.items() for path in paths if path not in there.get(name, ())]
        if gone:
            self.emit(UserMessage(f"{gone[0]} is gone, or excluded now, so new files are chosen again"))
            return None
        return begun

    def _add(self, root: Root, before: Snapshot, generation: Generation) -> None:
        self._waits_for = ""
        number = sum(map(len, generation.files.values()))
        adding = Adding(generation=before.last_part + 1, sources=sorted(generation.files), files=number)
        self.emit(adding)
        self._note(str(adding))
        self.run_one(self.mixture, generation)
        after = read_snapshot(root)
        more = {
            name: sum(getattr(shard, name) for shard in after.shards[len(before.shards) :]) for name in ("documents", "tokens")
        }
        taken_down = after.num_removed - before.num_removed
        self.emit(Published(snapshot=after.fingerprint, taken_down=taken_down, is_generation=True, **more))

    def _emit_changes(self, changes: Changes) -> None:
        """Emits, once, which files are not as they were when they were read."""
        for names, what in ((changes.changed, "changed since it was read"), (changes.gone, "is gone")):
            fresh = [name for name in names if f"{name} {what}" not in self._emitted]
            for name in fresh[:_SHOWN]:
                line = f"{name} {what}. Its rows stay in the snapshots; `datapipe run --rebuild` reads all files again"
                self.emit(UserMessage(line))
            if len(fresh) > _SHOWN:
                self.emit(UserMessage(f"… and {counted(len(fresh) - _SHOWN, 'more file')}"))
            self._emitted |= {f"{name} {what}" for name in fresh}

    def _is_enough(self, root: Root, snapshot: Snapshot, changes: Changes) -> bool:
        """Whether the new files are published now. Emits what it waits for, if that has changed."""
        policy, still = self.mixture.publish, ""
        if changes.unfinished:
            first, *others = changes.unfinished
            still = f"; {first}{f' and {len(others)} more' if others else ''} may still be written"
        if not changes.ready:
            return self._waits(f"waiting for new files{still}")
        if policy.min_tokens is None and policy.or_every is None:
            return True
        facts = facts_of_files(root)
        read_bytes = sum(facts[name][path][0] for name, path in files_of(root, snapshot) if path in facts.get(name, {}))
        per_byte = sum(shard.tokens for shard in snapshot.shards) / read_bytes if read_bytes and snapshot.has_tokens else 0.25
        expected = int(changes.ready_bytes * per_byte)
        if policy.min_tokens is not None and expected >= policy.min_tokens:
            return True
        published_at = publications(root)[-1].published_at or 0.0
        if policy.or_every is not None and self.now() - published_at >= policy.or_every:
            return True
        wants = [f"{policy.min_tokens:,} tokens"] if policy.min_tokens is not None else []
        if policy.or_every is not None:
            wants.append(f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(published_at + policy.or_every))}")
        number = sum(map(len, changes.ready.values()))
        have = f"{counted(number, 'new file')} of {size(changes.ready_bytes)}, about {expected:,} tokens"
        return self._waits(f"{have}; waiting for {' or '.join(wants)}{still}")

    def _waits(self, line: str) -> bool:
        if line != self._waits_for:
            self._note(line)
            self.emit(Waiting(what=line))
        self._waits_for = line
        return False


def _check_is_as_before(mixture: Mixture, root: Root) -> None:
    """Raises UserError for an output that cannot grow by this mixture: rows and documents of the newest snapshot differ."""
    newest = read_snapshot(root)
    if newest.has_tokens == mixture.tokenizer.is_none:
        there, here = ("tokens", "documents") if newest.has_tokens else ("documents", "tokens")
        raise UserError(f"--follow: {root.url} holds {there}, and this mixture makes {here}. Give the run another output.")
    path = f"{snapshot_folder(newest.fingerprint)}/{MIXTURE}"
    if not root.exists(path):
        return
    before, now = parsed_yaml(root.read_bytes(path).decode()), parsed_yaml(mixture.resolved_yaml())
    # without a tokenizer, rows of other snapshots bring theirs
    frozen = [name for name in _FROZEN if name.partition(".")[0] in now]
    for change in value_changes(flat(before), flat(now), frozen):
        raise UserError(
            f"--follow: {root.url} was published with another option: {change}. While a mixture is followed it stays: set it "
            f"back, or run `datapipe run MIXTURE --rebuild`."
        )


def _names(files: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(map("/".join, sorted(files)))


def _fact(file: InputFile) -> tuple[int, str]:
    return file.num_bytes, file.stamp


def _check_keeps_index(mixture: Mixture, root: Root) -> None:
    """Raises UserError for a mixture whose runs delete the rows that later files are compared with."""
    if mixture.execution.keep_work != "none" or root.exists(f"{WORK}/{INDEX}"):
        return
    uses = (use for name in mixture.sources for use in mixture.stages_of(name))
    compares = next((use.name for use in uses if issubclass(catalogue.stage_class(use.name), Global)), None)
    if compares is not None:
        raise UserError(
            f"{mixture.where('execution', 'keep_work')}: none deletes the rows that {compares} would compare later files with. "
            f"Expected inspect or resume in a mixture that is followed."
        )
