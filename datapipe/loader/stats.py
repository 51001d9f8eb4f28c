"""Whether the data is the bottleneck: the times that a loader measures, and the diagnosis.

    trainer   │ step ───────────── │ wait │ step ───────────── │ wait │         the clock is read twice a step: when the trainer
              └ takes              asks   takes                asks   takes    asks for a batch, and when it gets it
    loader    │ build │ build │ build │ …                                      the builder measures its own seconds

    R_compute    batches/s that the trainer would take without waiting: 1 / mean step
    R_pipeline   batches/s that the loader builds: batches / seconds of building * threads
    lost share   wait / (wait + step): the share of the accelerator's time that is spent waiting for data

The wait for the first batch of each iteration, in which shards are opened and threads start, is counted separately: in a short
run it would outweigh all other waits. Builds in the workers of a DataLoader are not measured.
"""

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Literal

from datapipe.dataclass import dataclass, replace
from datapipe.loader.prefetch import PrefetchCounts, Prefetcher

Diagnosis = Literal["data-bound", "compute-bound", "unknown"]

HANDOVER_S = 1e-3  # the most time to hand over a batch that is ready, a sleeping thread included
LOST_SHARE = 0.01  # From this share of waiting on, a loader is data-bound


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderStats:
    """The figures of a loader over all its iterations so far; `print` shows them."""

    rank: int
    split: str
    steps: int
    # tokens, bytes: of these batches; tokens are 0 where no field has one number per token
    tokens: int
    bytes: int
    first_wait_s: float
    # wait_s, longest_wait_s: seconds waited for all other batches
    wait_s: float
    longest_wait_s: float
    compute_s: float  # seconds between taking a batch and asking for the next
    num_waits: int  # steps over which `wait_s` and `compute_s` are sums: all but the first of each iteration
    # build_s, built: seconds of building and batches built, without the first of each iteration
    build_s: float
    built: int
    num_threads: int  # threads that build; 0 where workers do
    depth: int  # the most batches that are requested ahead
    # batches that were ready when one was asked for, on average; and that are ready now
    buffer_mean: float
    buffer_now: int
    # the most batches that exist at a time: built ahead, and held by the trainer with the rest of their chunk
    host_batches: int
    # workers of a DataLoader that build. `build_s`, `built`, `buffer_mean` and `buffer_now` are 0 then.
    num_workers: int = 0

    @property
    def wait_per_step_s(self) -> float:
        return self.wait_s / self.num_waits if self.num_waits else 0.0

    @property
    def lost_share(self) -> float:
        total = self.wait_s + self.compute_s
        return self.wait_s / total if total else 0.0

    @property
    def compute_rate(self) -> float:
        return self.num_waits / self.compute_s if self.compute_s else 0.0

    @property
    def pipeline_rate(self) -> float:
        return self.built / self.build_s * self.num_threads if self.build_s else 0.0

    @property
    def host_bytes(self) -> int:
        return self.host_batches * -(-self.bytes // max(1, self.steps))

    @property
    def memory(self) -> str:
        return f"{self.host_bytes / 1e6:,.1f} MB in at most {self.host_batches} batches at a time"

    @property
    def diagnosis(self) -> Diagnosis:
        if not self.num_waits:
            return "unknown"
        return "data-bound" if self.lost_share >= LOST_SHARE else "compute-bound"

    @property
    def reason(self) -> str:
        if self.diagnosis == "unknown":
            return "fewer than two batches were taken; take more to get a diagnosis"
        builder = "the workers build" if self.num_workers else f"the loader builds {self.pipeline_rate:,.1f} batches/s"
        rates = f"{builder} and the trainer would take {self.compute_rate:,.1f}/s"
        lost = f"{self.lost_share:.2%} of the time was spent waiting"
        if self.diagnosis == "compute-bound":
            return f"{lost}; {rates}"
        if self.compute_s < HANDOVER_S * self.num_waits:
            remedy = (
                f"less than {HANDOVER_S * 1e3:g} ms between batches: the loop trains nothing. Measure it with the training step"
            )
        elif self.num_workers:
            remedy = f"num_workers={self.num_workers} are too few. Raise num_workers, or ask for fewer fields"
        elif self.pipeline_rate < self.compute_rate:
            remedy = "more prefetch will not help. Ask for fewer fields, or read from faster storage"
        elif self.depth == 0:
            remedy = "nothing is built ahead. Set prefetch=2"
        elif 2 * self.buffer_mean >= self.depth and self.wait_per_step_s < HANDOVER_S:
            remedy = (
                f"batches were ready, and handing one over takes {self.wait_per_step_s * 1e3:.2f} ms, which no setting changes"
            )
        else:
            remedy = f"the mean rate suffices, but builds are uneven (longest wait {self.longest_wait_s:.3g} s). Raise prefetch"
        return f"{lost}; {rates}: {remedy}"

    def __str__(self) -> str:
        total_s = self.wait_s + self.compute_s
        rate = f", {self.tokens / total_s:,.0f} tokens/s" if total_s else ""
        buffer = f"buffer   {self.buffer_mean:.1f} batches ready on average, {self.buffer_now} now"
        if self.num_workers:
            buffer = f"workers  {self.num_workers}, whose builds and buffers are not measured"
        return "\n".join(
            [
                f"rank {self.rank}, {self.split}: {self.steps:,} steps, {self.tokens:,} tokens, "
                f"{self.bytes / 1e6:,.1f} MB{rate}",
                f"wait     {self.wait_per_step_s * 1e3:.3f} ms a step, {self.longest_wait_s * 1e3:.3f} ms at most, "
                f"{self.wait_s:.3f} s in all; {self.first_wait_s:.3f} s for first batches",
                buffer,
                f"memory   {self.memory}",
                f"{self.diagnosis}: {self.reason}",
            ]
        )


class StepClock:
    """Reads the time around every take, by one thread. Prefetchers count into `counts`."""

    def __init__(self, token_field: str | None, now: Callable[[], float] = perf_counter) -> None:
        self._token_field = token_field
        self.now = now
        self.counts, self._before = PrefetchCounts(), PrefetchCounts()  # before: when this iteration began
        self._builder: Prefetcher | None = None
        self._start_s, self._started = 0.0, 0  # building the first batches, in which shards are opened
        self._taken_at: float | None = None
        self._tokens = self._num_waits = 0
        self._first_wait_s = self._wait_s = self._longest_wait_s = self._compute_s = 0.0

    def start(self, builder: Prefetcher | None = None) -> None:
        """Begins an iteration; the time since the last one is not counted. `builder`: None for workers of a DataLoader."""
        self._before, self._builder, self._taken_at = replace(self.counts), builder, None

    def count_tokens(self, batch: Mapping[str, Any]) -> int:
        return 0 if self._token_field is None else batch[self._token_field].size

    def takes(self, asked_at: float, num_tokens: int) -> None:
        """Called when the trainer gets a batch of `num_tokens` tokens, for which it asked at `asked_at`."""
        now = self.now()
        wait = now - asked_at
        if self._taken_at is None:
            self._first_wait_s += wait
            # the first batch opens shards, so it is slower than those that follow
            self._start_s += self.counts.build_s - self._before.build_s
            self._started += self.counts.batches - self._before.batches
        else:
            self._compute_s += asked_at - self._taken_at
            self._wait_s += wait
            self._num_waits += 1
            if wait > self._longest_wait_s:  # noqa: PLR1730 - a call of max() costs a tenth of this method
                self._longest_wait_s = wait
        self._tokens += num_tokens
        self._taken_at = now

    def stats(self, *, rank: int, split: str, depth: int, num_threads: int) -> LoaderStats:
        counts, builder = self.counts, self._builder
        return LoaderStats(
            rank=rank,
            split=split,
            steps=counts.batches,
            tokens=self._tokens,
            bytes=counts.bytes,
            first_wait_s=self._first_wait_s,
            wait_s=self._wait_s,
            longest_wait_s=self._longest_wait_s,
            compute_s=self._compute_s,
            num_waits=self._num_waits,
            build_s=counts.build_s - self._start_s,
            built=counts.batches - self._started,
            num_threads=max(1, min(depth, num_threads)),
            depth=depth,
            buffer_mean=counts.ready_sum / max(1, counts.batches),
            buffer_now=0 if builder is None else builder.num_ready,
            host_batches=max(1, depth) + (1 if builder is None else builder.chunk_steps),
        )
