"""The loader of one rank: an iterator over batches whose only state is its next step.

Opening a loader reads the manifest. A shard is opened when its first row is read, and threads start
at the first batch, so a loader may be opened before a fork.
"""

import json
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datapipe.credentials import masked
from datapipe.errors import DroppedRowsWarning, EndlessError, SnapshotError, UserError
from datapipe.loader.batches import Batch
from datapipe.loader.field_table import GLOBAL, PER_TOKEN
from datapipe.loader.options import LoaderOptions, checked_options, taking
from datapipe.loader.order.batch_order import RunSteps, check_step_number
from datapipe.loader.order.layout import Split
from datapipe.loader.order.state import LoaderState, read_state, state_at
from datapipe.loader.prefetch import Prefetcher, SharedIterator, Turns
from datapipe.loader.remote.address import is_service
from datapipe.loader.share import warn_of_ragged_ranks
from datapipe.loader.source import FileSource
from datapipe.loader.stats import LoaderStats, StepClock
from datapipe.shards.manifest import Snapshot

if TYPE_CHECKING:
    from datapipe.loader.remote.source import ServiceSource

LEAST_PREFETCH, MOST_PREFETCH, PREFETCH_BYTES, FETCHED_BYTES = 4, 32, 6 << 20, 8 << 20
"""The default number of batches built ahead: as many as fit into PREFETCH_BYTES, or into FETCHED_BYTES where building waits
for a store or a service, between the two limits. Batches that take 8 MB together stay in the processor's cache: 16 rows of
2,048 ids and labels are written in 23 µs, and in 49 where they take 12 MB (EPYC, 2026-11-30)."""


class Loader:
    """Streams the batches of one rank; see `field_table.py` for the fields, and `datapipe/loader/README.md` for states.

    A loader keeps its position: each `for` and each `next(loader)` continues where the last one stopped, also after a break or
    an exception. A training loader stays at its end. A validation loader starts over with each `for`, unless a state or `seek`
    has just set its position. A copy by `pickle` or `copy.deepcopy` has the same position and opens its own files. Several
    threads may take batches: each batch is handed out once.

    The arguments apply from the position on. A state with another batch size or fewer skips is accepted; later states record
    the change in their lineage.

    Args: output: path or URL of the output of a run, or its URL on a service, such as grpc+tls://a:8815,b:8815/runs/web, which
    builds the batches (`datapipe serve`).
    """

    @taking(LoaderOptions)
    def __init__(self, output: str | Path, **options: Any) -> None:
        checked = checked_options(options).with_rank()
        if not GLOBAL.intersection(checked.fields):  # which scale the loss
            warn_of_ragged_ranks(checked.own_mesh, checked.num_rows)
        self._start(str(output), checked)

    def _start(self, output: str, options: LoaderOptions) -> None:
        self.options, self.mesh = options, options.own_mesh
        self.turns = Turns()
        if is_service(output):
            from datapipe.loader.remote.source import open_service  # gRPC takes 50 ms to import

            self._source: FileSource | ServiceSource = open_service(output, options)
        else:
            self._source = FileSource(output, options)
        per_token = [field for field in options.fields if field in PER_TOKEN]
        num_tokens = self.mesh.num_rows(options.num_rows) * self.snapshot.sequence_length
        batch_bytes = num_tokens * options.itemsize * len(per_token)
        most_bytes = FETCHED_BYTES if self._source.waits_for_network else PREFETCH_BYTES
        planned = max(LEAST_PREFETCH, min(MOST_PREFETCH, most_bytes // max(1, batch_bytes)))
        self._prefetch = planned if options.prefetch is None else options.prefetch
        self.clock = StepClock(per_token[0] if per_token else None)
        self._warns_of_dropped = options.drop_last is None and (self.mesh.data_rank, self.mesh.context_rank) == (0, 0)
        self._ahead: Prefetcher | None = None  # of `next`; an iterator would hold the loader, whose threads would outlive it
        self.seek(0)
        self._is_positioned = False  # by a state or a seek, since batches were last asked for

    @property
    def snapshot(self) -> Snapshot:
        """The manifest: sequence length, tokenizer, sources. From a service it lacks the shards."""
        return self._source.snapshot

    @property
    def batch_order(self) -> RunSteps:
        """The order of the run: its steps, its lineage and, if read from files, the addresses of its rows."""
        return self._source.run

    @property
    def sources(self) -> tuple[str, ...]:
        """Source names; the field `sources` holds indices into them."""
        return self._source.run.sources

    @property
    def split(self) -> Split:
        return self.options.split

    @property
    def global_batch_size(self) -> int:
        return self._source.run.lineage.global_batch_size

    @property
    def num_steps(self) -> int | None:
        """Number of steps, skipped ones included; None for an endless loader.

        Training ends when the next whole batch would exceed `tokens` of the mixture, or the `max_epochs` of a source. With
        `drop_last=False` the rows before that end make a last, smaller batch.
        """
        return self._source.run.num_steps

    def __len__(self) -> int:
        """Number of batches of the whole run, including those before the position. Raises EndlessError for a run without
        end."""
        num_batches = self._source.run.steps.num_batches
        if num_batches is None:
            raise EndlessError(
                "this run has no end, so the loader has no length. Count steps in the training loop; or give the run an end: "
                "`tokens` of the mixture, or `max_epochs` of its sources."
            )
        return num_batches

    def __bool__(self) -> bool:
        return True  # a loader is no container, which would be false when empty

    @property
    def step(self) -> int:
        return self._step

    def batch(self, step: int) -> Batch:
        """This rank's batch at `step`. It depends on the snapshot, the lineage and the arguments, and not on earlier reads."""
        self._source.run.check_step(step)
        return self._source.build(step)

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the next step on. Closing or dropping the iterator stops its threads."""
        with self.turns.lock:
            self._end_next()
            if self.split == "validation" and not self._is_positioned:
                self.seek(0)
            self._is_positioned = False
            return SharedIterator(self.iterate(), self.turns)

    def __next__(self) -> Batch:
        """The batch of the next step, built ahead as in a `for`. Raises StopIteration at the end."""
        with self.turns.lock:
            self._is_positioned = False
            if not self.has_more():
                self._end_next()
                self.warn_of_dropped(stacklevel=3)
                raise StopIteration
            if self._ahead is None:
                self._ahead = self._prefetcher(stride=1)
            try:
                return self._take(self._ahead, 1, None, stacklevel=4)
            except BaseException:
                self._end_next()
                raise

    def iterate(
        self, stride: int = 1, convert: Callable[[Batch], Batch] | None = None, stacklevel: int = 4
    ) -> Generator[Batch, None, None]:
        """The batches of every `stride`-th step from the position on, which it moves. The caller holds the lock of `turns`.
        `convert` is applied to each batch, within the time that the trainer waits. `stacklevel` is that of the warning
        of dropped rows; 0 for none."""
        while self.has_more():
            run, ahead = self._source.run, self._prefetcher(stride)
            try:
                while run is self._source.run and self.has_more():
                    yield self._take(ahead, stride, convert, stacklevel and stacklevel + 1)
            finally:
                ahead.close()
        self.warn_of_dropped(stacklevel)

    def _take(self, ahead: Prefetcher, stride: int, convert: Callable[[Batch], Batch] | None, stacklevel: int) -> Batch:
        asked_at = self.clock.now()
        arrays = ahead.take(self._step)
        batch = arrays if convert is None else convert(arrays)
        self.clock.takes(asked_at, self.clock.count_tokens(arrays))
        step = self._source.run.steps.following(self._step, stride)
        if step is None:
            self.warn_of_dropped(stacklevel)  # before the position moves: as an error, it must cost no batch
            step = self._source.run.steps.num_steps or 0
        self._step = step
        return batch

    def _end_next(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def warn_of_dropped(self, stacklevel: int) -> None:
        """Warns, once, of rows at the end that are left out; with the last batch, since not all trainers ask for another."""
        num_dropped = self._source.run.steps.num_dropped
        if stacklevel and self._warns_of_dropped and num_dropped:
            self._warns_of_dropped = False
            warnings.warn(
                f"the run ends with {num_dropped} rows that make no whole batch of {self.global_batch_size}, and they are left "
                f"out. Loader(drop_last=False) hands them out as a smaller batch; drop_last=True leaves them out silently.",
                DroppedRowsWarning,
                stacklevel=stacklevel,
            )

    def _prefetcher(self, stride: int) -> Prefetcher:
        ahead = self._source.prefetcher(self._prefetch, stride)
        ahead.counts = self.clock.counts
        self.clock.start(ahead)
        return ahead

    def stats(self) -> LoaderStats:
        """Figures of all iterations so far, and whether the data is the bottleneck: `print(loader.stats())`."""
        threads = self._source.num_threads
        return self.clock.stats(rank=self.mesh.data_rank, split=self.split, depth=self._prefetch, num_threads=threads)

    def seek(self, step: int) -> None:
        """Continues at `step`, or at the next step that is not skipped, in constant time, also within an iteration."""
        check_step_number(step)
        if step < 0:
            raise UserError(f"step {step}: steps count from 0. Give a step of at least 0.")
        with self.turns.lock:
            self._step, self._is_positioned = self._within(self._source.run.steps.next(step)), True

    def next_step(self, count: int) -> int:
        """The step `count` steps after the next one, without skipped steps; at most the end."""
        return self._within(self._source.run.steps.advance(self._step, count))

    def _within(self, step: int) -> int:
        end = self.num_steps
        return step if end is None or step < end else end

    def has_more(self) -> bool:
        return self._step != self._source.run.steps.num_steps  # which the position never passes

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The state after the batches handed out, ready for JSON.

        Args: step: the next step to train, for a trainer that takes batches ahead: `batch["step"] + 1` of the last batch it
        trained on. The state counts the batches before this step.
        """
        return self._state(step).as_dict()

    def _state(self, step: int | None = None) -> LoaderState:
        with self.turns.lock:
            if step is None:
                return state_at(self._step, self._source.run)
            if isinstance(step, bool) or not isinstance(step, Integral) or not 0 <= step <= self._step:
                raise UserError(
                    f"state_dict(step={step!r}): expected the next step to train, from 0 to {self._step}, which follows those "
                    f'handed out. After training on a batch, it is batch["step"] + 1.'
                )
            return state_at(min(self._step, self._source.run.steps.next(int(step))), self._source.run)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after the batches that `state` counts, on any rank of any world.

        Raises SnapshotError for a state of another order and, without `migrate`, of other data or another mixture.
        """
        saved, lineage = read_state(state)
        with self.turns.lock:
            try:
                self._source.resume(saved, lineage)
            except SnapshotError as error:
                raise self._with_way_out(error, saved.snapshot) from error
            self._end_next()
            self.seek(saved.step)

    def _with_way_out(self, error: SnapshotError, fingerprint: str) -> SnapshotError:
        if fingerprint == self.snapshot.fingerprint:
            return error
        shown = json.dumps(masked(self._source.output), ensure_ascii=False)
        return SnapshotError(
            f"{error} The snapshot of the state is another one, and continues with it: "
            f'Loader({shown}, snapshot="{fingerprint[:12]}", …), and the other arguments as before. `loader.advance()` then '
            f"moves to the newest. If `datapipe snapshots` does not list it, the state is of another output, or the snapshot "
            f"was deleted."
        )

    def advance(self, snapshot: str | None = None) -> str:
        """Moves to a later snapshot of the output, by default the newest, at the next step; returns its fingerprint.

        All ranks must move to the same snapshot at the same step: one rank calls `advance()` and sends the result to the
        others, which pass it. If rows that were drawn are gone, raises SnapshotError and does not move.
        """
        with self.turns.lock:
            before = self._source
            self._source = before.moved(snapshot, self._state(), before.run.lineage)
            if self._source is not before:
                before.close()
                self._end_next()
                self.seek(self._step)
            return self.snapshot.fingerprint

    def most_runs(self, num_steps: int | None = None) -> int:
        """A `pad_cu_seqlens` that suffices for the next `num_steps` batches of all ranks. Default: all that are left. Reads
        the lengths."""
        return self._source.most_runs(self._step, num_steps)

    def close(self) -> None:
        """Closes shards or connections, and stops building ahead. The loader stays usable."""
        with self.turns.lock:
            self._end_next()
        self._source.close()

    def __getstate__(self) -> dict[str, Any]:
        """The arguments, the position and the history, with which a copy opens the files itself."""
        return {"output": self._source.output, "options": self.options, "state": self.state_dict()}

    def __setstate__(self, copied: dict[str, Any]) -> None:
        saved, lineage = read_state(copied["state"])
        output, options = copied["output"], copied["options"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the original has warned
            try:  # a run may have published a newer one
                self._start(output, options.model_copy(update={"snapshot": saved.snapshot}))
            except SnapshotError:
                self._start(output, options)
        self._source.resume(saved, lineage, is_exact=True)
        self._step, self._is_positioned = saved.step, True
