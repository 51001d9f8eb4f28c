"""One run of a mixture into its output: prepare, lock, resume, execute, publish.

mixture ─▶ request ─▶ lock ─▶ ledger ─▶ driver + engine ─▶ snapshot
        └▶ kernels compiled, in processes beside all this
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from shlex import quote
from time import perf_counter

from datapipe.config import Mixture
from datapipe.engine.driver import Driver, Observer
from datapipe.engine.figures import DriverFigures
from datapipe.engine.history import add_node_hours, estimated, kept_by_last_run, was_whole, write_inputs, write_run
from datapipe.engine.kernels_used import kernels_of_run
from datapipe.engine.local import usable_cores
from datapipe.engine.prepare import Only, Say, prepare
from datapipe.engine.protocol import Engine, no_exit
from datapipe.engine.retries import stopped_by
from datapipe.errors import DatapipeError, UserError
from datapipe.kernels.compiling import Compilation
from datapipe.machine.memory import without_collection
from datapipe.quantities import counted, size
from datapipe.records.ledger import Ledger
from datapipe.records.names import MIXTURE, TOKENIZER
from datapipe.report.report import Report
from datapipe.shards.manifest import Manifest, Snapshot, snapshot_file
from datapipe.shards.removed import read_removed
from datapipe.shards.shard_table import ShardTable
from datapipe.shards.snapshots import newest_manifest
from datapipe.snapshots.index.reference_rows import earlier_runs
from datapipe.snapshots.index.write import index_of_run, write_index
from datapipe.snapshots.publish import MakeReport, publish
from datapipe.snapshots.takedown import delete_from_indexes
from datapipe.steps.compile import Plan, compile_plan
from datapipe.steps.estimate import KeptShares, StepCost, step_costs
from datapipe.steps.request import Request
from datapipe.steps.warnings import RunWarning
from datapipe.storage.hold import LeaseLostError
from datapipe.storage.lock import exclusive
from datapipe.storage.outages import free_bytes
from datapipe.storage.root import Root

EngineFactory = Callable[[Root, Request], Engine]


@dataclass(slots=True)
class Run:
    """A run, and its request, plan and snapshot. `plan` is set as soon as the run has one, even if it fails later.

    Attributes:
        report: makes the content of the report that is kept with the snapshot; None for none.
        replaces: whether the mixture may publish into the output of another one.
        of_snapshot: the warnings of its publication.
        told: the content of the report that is kept with the snapshot, once it is made.
        before: the snapshot that was the newest one before this run; None before the first.
        engine: "local" or "ray". Kernels are compiled on this machine for tasks that run on it; Ray compiles its own.
        workers: processes; None for one on each core.
        started_s: of `perf_counter`.
        figures: of its driver.
        only: by source, the paths of the files that are read; None for all.
        repacks: whether the run may publish one part of each source where there are several.
        kept_before: the share of text that each step kept in the run before, once it was asked for.
    """

    mixture: Mixture
    make_engine: EngineFactory
    observer: Observer
    limit: int | None = None
    engine: str = "local"
    workers: int | None = None
    started_s: float = field(default_factory=perf_counter)
    report: MakeReport | None = None
    replaces: bool = False
    only: Only | None = None
    repacks: bool = False
    before: Manifest | None = None
    request: Request | None = None
    plan: Plan | None = None
    snapshot: Manifest | None = None
    of_snapshot: Sequence[RunWarning] = ()
    told: Report | None = None
    figures: DriverFigures = field(default_factory=DriverFigures)
    kept_before: KeptShares | None = None

    @property
    def root(self) -> Root:
        return Root(self.mixture.output)

    @property
    def is_addition(self) -> bool:
        """Whether its snapshot is a part of that of another output, which is published later."""
        return self.only is not None

    def step_times(self, plan: Plan) -> Mapping[str, StepCost]:
        """About how long each step of a plan of this run takes on one core."""
        assert self.request is not None
        if self.kept_before is None:
            self.kept_before = kept_by_last_run(self.root)
        return step_costs(self.request, plan, self.kept_before)

    @no_exit()
    def execute(self) -> Manifest:
        """Runs to the end. Raises UserError or DatapipeError; the next run uses everything committed until then."""
        names = kernels_of_run(self.mixture) if self.engine == "local" else []
        try:
            with Compilation(names, usable_cores(), self._tell_compiled):
                return self._run_and_publish()
        except Exception as error:
            if isinstance(error, DatapipeError) or (stopped := stopped_by(error, self.mixture.output)) is None:
                raise
            raise stopped from error

    def _tell_compiled(self, name: str, number: int, count: int) -> None:
        self.observer.say(f"  compiled kernel {number} of {count}, once for this machine: {name}")

    def _run_and_publish(self) -> Manifest:
        self.request = request = prepare(self.mixture, self.limit, self.observer.say, self.only)
        _check_output(self.root)
        with exclusive(self.root) as hold:
            self.before = newest_manifest(self.root)
            self._guard_other()
            self._guard_limit()
            self._guard_parts()
            self.root.write_atomic(MIXTURE, request.mixture.resolved_yaml().encode())
            write_inputs(self.root, request)
            ledger = Ledger(self.root, hold.condemned)
            ledger.load()
            ledger.sweep(hold)
            if ledger.num_refused:
                self.observer.say(
                    f"{counted(ledger.num_refused, 'task')} committed by another version of datapipe will run again"
                )
            plan = self._execute(Driver(request, ledger, self.observer, hold, self.figures), request)
            index = index_of_run(self.root, request, plan)
            if index is not None:
                write_index(index)
            self.snapshot, self.of_snapshot = publish(hold, request, plan, self.report, self.observer.say)
            if self.snapshot.num_taken_down:
                delete_from_indexes(self.root, read_removed(self.root, self.snapshot))
            ledger.sweep(hold)
        return self.snapshot

    def new_tokenizer(self, after: Manifest | None) -> list[RunWarning]:
        """A warning where a corpus that grew is packed anew with another tokenizer: trainers of the old one cannot move."""
        before = self.before
        if not (self.repacks and isinstance(before, Snapshot) and isinstance(after, Snapshot)) or (
            before.tokenizer.fingerprint == after.tokenizer.fingerprint
        ):
            return []
        path = self.root.child_url(snapshot_file(self.root, before, TOKENIZER))
        text = (
            f"a tokenizer was trained anew, so no trainer of snapshot {before.fingerprint[:12]} can move to this one. To keep "
            f"the old one, copy {path}, and name it in the mixture: tokenizer: {{path: FILE}}"
        )
        return [RunWarning(kind="new_tokenizer", text=text)]

    def _execute(self, driver: Driver, request: Request) -> Plan:
        """Runs what is not committed; writes the history of the run whether it fails or not."""
        try:
            plan = driver.compile()
            if not plan.is_committed:
                self._check_disk(request, plan)
                plan = self._run(driver, request)
        except BaseException as error:
            if isinstance(error, DatapipeError):  # attempts that were under way left files, which may fill the disk
                with suppress(OSError, LeaseLostError):
                    driver.ledger.sweep(driver.hold)
            with suppress(OSError):  # a full disk must not hide why the run failed
                driver.hold.check()
                self._write_history(driver, request)
            raise
        self._write_history(driver, request)
        return plan

    def _check_disk(self, request: Request, plan: Plan) -> None:
        """Raises UserError where the disk of the output has less room than the estimate."""
        folder = self.root.local
        if not self.mixture.execution.check_disk or folder is None:
            return
        free, expected = free_bytes(str(folder)), estimated(self.root, request, plan)
        if free is None or expected.bytes <= free:
            return
        unless = (
            ", if it keeps all documents; a run with --limit 10000 first measures what it keeps" if expected.is_all_kept else ""
        )
        raise UserError(
            f"{self.root.url}: the disk has {size(free)} free, and the run would write about {size(expected.bytes)}{unless}. "
            f"Free space, or give another output (--output). With execution.check_disk: false the run begins anyway, and "
            f"waits where the disk is full."
        )

    def _write_history(self, driver: Driver, request: Request) -> None:
        self.plan = driver.plan
        if driver.plan is not None:
            stages = (bound for source in request.sources.values() for bound in source.stages)
            write_run(self.root, driver.plan, request, earlier_runs(stages))

    def _run(self, driver: Driver, request: Request) -> Plan:
        engine = self.make_engine(self.root, request)
        try:
            return driver.run(engine)
        finally:
            engine.close()
            if engine.node_seconds:
                add_node_hours(self.root, engine.node_seconds / 3600)

    def _guard_other(self) -> None:
        """Raises UserError where the output holds the snapshot of another mixture."""
        if self.before is None or self.replaces:
            return
        url, before = self.root.url, self.before
        way_out = (
            f"Give this mixture another output (--output), or say --replace: its snapshot becomes the newest in {url}, and "
            f'Loader({json.dumps(url, ensure_ascii=False)}, snapshot="{before.fingerprint[:12]}") still loads the other.'
        )
        if before.name != self.mixture.name:
            raise UserError(
                f"{url} holds a snapshot of the mixture '{before.name}', and this one is '{self.mixture.name}'. {way_out}"
            )
        sources = self.mixture.all_sources if self.request is None else self.request.mixture.all_sources
        if not before.sources.keys() & sources.keys():
            there, here = (", ".join(sorted(names)) for names in (before.sources, sources))
            raise UserError(
                f"{url} holds a snapshot of the sources {there}, and this mixture has none of them, but {here}. {way_out}"
            )

    def _guard_limit(self) -> None:
        """Raises UserError where a limited run would replace the snapshot of a whole one."""
        if self.limit is None or self.before is None or self.replaces:
            return
        if was_whole(self.root):
            raise UserError(
                f"{self.root.url} holds the snapshot of a whole run, and a run with --limit would publish a newer one. "
                f"Give the limited run another output: --output {quote(self.root.url + '-look')}"
            )

    def _guard_parts(self) -> None:
        """Raises UserError where a run of all files would pack anew what was added by and by."""
        if self.repacks or not isinstance(self.before, Snapshot):
            return
        parts = ShardTable.of(self.before.shards).parts
        if len(parts) and parts.max():
            raise UserError(
                f"{self.root.url} holds a snapshot to which files were added in {counted(int(parts.max()), 'part')}, and this "
                f"run would pack all rows anew, in another order. To add what is new, run `datapipe run MIXTURE --follow "
                f"SECONDS`; to pack all anew, so that rows are shuffled across parts, `datapipe run MIXTURE --repack`."
            )


@no_exit()
@without_collection()
def planned(mixture: Mixture, limit: int | None = None, say: Say | None = None) -> tuple[Request, Plan]:
    """The plan of a mixture as of now; runs and locks nothing. `say` is as for `prepare`."""
    request = prepare(mixture, limit, say)
    ledger = Ledger(Root(mixture.output))
    ledger.load()
    return request, compile_plan(request, ledger.look_up)


def _check_output(root: Root) -> None:
    if root.local is not None and root.local.exists() and not root.local.is_dir():
        raise UserError(f"output {root.url} is a file. Expected a folder, or a path where one can be made.")
