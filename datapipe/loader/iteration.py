"""A position in a run that moves over its batches, which threads build ahead."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from numbers import Integral

from datapipe.errors import EndlessError, UserError
from datapipe.loader.batches import Batch, BatchBuilder
from datapipe.loader.cache.cache import ReadAhead
from datapipe.loader.options import warn_of_dropped_rows
from datapipe.loader.order.batch_order import BatchOrder, check_step_number
from datapipe.loader.order.layout import Split
from datapipe.loader.prefetch import MAX_THREADS, Prefetcher
from datapipe.loader.share import Mesh
from datapipe.loader.stats import LoaderStats, StepClock
from datapipe.loader.turns import SharedIterator, Turns, interrupted


class Iteration:
    """The iterator of a rank. Every `for` and `next` moves the one position that there is, one thread at a time."""

    mesh: Mesh
    turns: Turns
    clock: StepClock
    _builder: BatchBuilder
    _read_ahead: ReadAhead | None
    _prefetch: int
    _is_local: bool
    _tells_dropped: bool
    _is_positioned: bool
    """By a state or a seek, since batches were last asked for."""

    _step = 0
    _ahead: Prefetcher | None = None
    """Of `next`. An iterator would hold the loader, whose threads would outlive it."""

    @property
    def batch_order(self) -> BatchOrder:
        """The order of the run: from steps to addresses, and its lineage."""
        return self._builder.batch_order

    @property
    def split(self) -> Split:
        """The split that the loader reads."""
        return self.batch_order.inventory.split

    @property
    def global_batch_size(self) -> int:
        return self.batch_order.lineage.global_batch_size

    @property
    def num_steps(self) -> int | None:
        """Number of steps, skipped ones included; None for an endless loader.

        Training ends after `total_tokens // (S * global_batch_size)` whole batches if the mixture sets `tokens`, or before the
        first batch in which a source would pass its `max_epochs`, whichever comes first. With `drop_last=False` a smaller batch
        of the rows before that end follows.
        """
        return self.batch_order.num_steps

    def __len__(self) -> int:
        """Number of batches of the whole run, those before the position included. Raises EndlessError where it has no end."""
        num_batches = self.batch_order.steps.num_batches
        if num_batches is None:
            raise EndlessError(
                "this run has no end, so the loader has no length. Count steps in the training loop; or give the run an end: "
                "`tokens` of the mixture, or `max_epochs` of its sources."
            )
        return num_batches

    def __bool__(self) -> bool:
        """True: a loader is not a container, which would be false where it is empty."""
        return True

    @property
    def step(self) -> int:
        """The next step to hand out."""
        return self._step

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the next step on. Closing or dropping the iterator stops its threads."""
        with self.turns.lock:
            self._end_next()
            if self.split == "validation" and not self._is_positioned:
                self.seek(0)
            self._is_positioned = False
            return SharedIterator(self._iterate(), self.turns)

    def __next__(self) -> Batch:
        """The batch of the next step, built ahead as in a `for`. Raises StopIteration at the end, and whenever asked there."""
        with self.turns.lock:
            self._is_positioned = False
            if not self._has_more():
                self._end_next()
                self.tell_dropped(stacklevel=4)
                raise StopIteration
            if self._ahead is None:
                self._ahead = self.prefetcher(stride=1)
            try:
                return self._take(self._ahead, stacklevel=5)
            except KeyboardInterrupt as stop:
                with suppress(KeyboardInterrupt):  # a second one, while threads end
                    self._end_next()
                raise interrupted(stop) from None
            except BaseException:
                self._end_next()
                raise

    def _iterate(self) -> Generator[Batch, None, None]:
        while self._has_more():
            builder, ahead = self._builder, self.prefetcher(stride=1)
            try:
                while builder is self._builder and self._has_more():
                    yield self._take(ahead, stacklevel=6)
            finally:
                ahead.close()
        self.tell_dropped()

    def _take(self, ahead: Prefetcher, stacklevel: int) -> Batch:
        asked_at = self.clock.asks()
        batch = ahead.take(self._step)
        self.clock.takes(asked_at, self.clock.count_tokens(batch))
        steps = self._builder.batch_order.steps
        step, end = steps.advance(self._step, 1), steps.num_steps
        if end is not None and step >= end:
            step = end
            self.tell_dropped(stacklevel)  # before the position moves: as an error, it must cost no batch
        self._step = step
        return batch

    def _end_next(self) -> None:
        """Drops the batches that were built ahead for `next`, and ends its threads."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def tell_dropped(self, stacklevel: int = 5) -> None:
        """Warns, once, that rows at the end are left out. Told with the last batch: not all trainers ask for another."""
        num_dropped = self.batch_order.steps.num_dropped
        if self._tells_dropped and num_dropped:
            self._tells_dropped = False
            warn_of_dropped_rows(num_dropped, self.global_batch_size, stacklevel)

    def next_step(self, count: int) -> int:
        """The step that follows the next step by `count`, skipped ones not counted; at most the end."""
        return self._within(self._builder.batch_order.steps.advance(self._step, count))

    def handed_out(self, step: int) -> int:
        """`step` as the next step of a state. Raises UserError where a batch before it was not handed out."""
        if isinstance(step, bool) or not isinstance(step, Integral) or not 0 <= step <= self._step:
            raise UserError(
                f"state_dict(step={step!r}): expected the next step to train, from 0 to {self._step}, which follows those "
                f'handed out. After training on a batch, it is batch["step"] + 1.'
            )
        return min(self._step, self.batch_order.steps.next(int(step)))

    def _within(self, step: int) -> int:
        end = self._builder.batch_order.steps.num_steps
        return step if end is None or step < end else end

    def prefetcher(self, stride: int) -> Prefetcher:
        """Begins an iteration over every `stride`-th step, which the clock counts. Threads start at the first batch."""
        steps, builder, read_ahead = self.batch_order.steps, self._builder, self._read_ahead

        def successor(step: int) -> int | None:
            after = steps.advance(step, stride)
            return after if steps.num_steps is None or after < steps.num_steps else None

        def build_many(wanted: Sequence[int]) -> list[Batch]:
            if read_ahead is not None:
                read_ahead.announce(builder.batch_order, wanted[0])
            return builder.build_many(wanted)

        build, depth = builder.build_many if read_ahead is None else build_many, self._prefetch
        ahead = Prefetcher(build, depth, successor=successor, num_threads=self.num_threads(depth))
        self.clock.start(ahead)
        return ahead

    def stats(self) -> LoaderStats:
        """Figures of all iterations so far, and whether the data is the bottleneck: `print(loader.stats())`."""
        depth = self._prefetch
        return self.clock.stats(rank=self.mesh.data_rank, split=self.split, depth=depth, num_threads=self.num_threads(depth))

    def num_threads(self, depth: int) -> int:
        """Threads that build where `depth` batches are built ahead."""
        return 1 if self._is_local else min(depth, MAX_THREADS)

    def seek(self, step: int) -> None:
        """Continues at `step`, the next one that is not skipped, or the end; in constant time, also in an iteration."""
        check_step_number(step)
        if step < 0:
            raise UserError(f"step {step}: steps count from 0. Give a step of at least 0.")
        with self.turns.lock:
            self._step, self._is_positioned = self._within(self.batch_order.steps.next(step)), True

    def _has_more(self) -> bool:
        return self._step != self._builder.batch_order.steps.num_steps  # which the position never passes
