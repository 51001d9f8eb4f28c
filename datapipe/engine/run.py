"""One run of a mixture into its output: prepare, lock, resume, execute, publish.

mixture ─▶ request ─▶ lock ─▶ ledger ─▶ driver + engine ─▶ snapshot
        └▶ kernels compiled, in processes beside all this
"""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from shlex import quote
from time import perf_counter

from datapipe.config import Mixture
from datapipe.dataclass import dataclass, field, replace
from datapipe.engine.driver import Driver
from datapipe.engine.events import Observer, UserMessage
from datapipe.engine.freeing import Freeing, freed_inputs, has_freed_rows
from datapipe.engine.history import basis_of, estimated, kept_by_last_run, was_whole, write_inputs, write_run
from datapipe.engine.kernels_used import kernels_of_run
from datapipe.engine.local import LocalEngine, usable_cores
from datapipe.engine.prepare import Show, prepare
from datapipe.engine.protocol import Engine, no_exit
from datapipe.engine.retries import stopped_by
from datapipe.errors import DatapipeError, UserError
from datapipe.kernels.compiling import Compilation
from datapipe.machine.memory import without_collection
from datapipe.quantities import counted, size
from datapipe.records.ledger import Ledger
from datapipe.records.names import MIXTURE, WORK
from datapipe.shards.manifest import Snapshot
from datapipe.shards.snapshots import newest_manifest
from datapipe.snapshots.clean import WorkBytes, work_bytes
from datapipe.snapshots.committed_steps import read_steps, tasks_of_snapshots
from datapipe.snapshots.generations import Generation, begun_generation, check_not_grown, check_readable, check_same_steps
from datapipe.snapshots.index.write import INDEX
from datapipe.snapshots.publish import MakeReport, publish, unpublished
from datapipe.steps.kind import Plan
from datapipe.steps.kinds import compile_plan
from datapipe.steps.request import Request
from datapipe.steps.simulation import Prices, Simulation, simulate
from datapipe.steps.trusted import offer, trusted_warning
from datapipe.steps.warnings import RunWarning
from datapipe.storage.lock import LeaseLostError, OutputLock, exclusive
from datapipe.storage.outages import free_bytes
from datapipe.storage.root import Root

EngineFactory = Callable[[Root, Request], Engine]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """How a mixture is run. Raises UserError for options that do not go together."""

    # "local" or "ray". Kernels are compiled on this machine for tasks that run on it; Ray compiles its own.
    engine: str = "local"
    workers: int | None = None  # processes; None for one on each core
    address: str | None = None  # of a running Ray cluster; None for one that is started for the run
    limit: int | None = None  # documents of each source to read at most; None for all
    replaces: bool = False  # whether the mixture may publish into the output of another one
    # whether the run may publish one part of each source where there are several
    rebuilds: bool = False
    # whether it keeps records that other versions of libraries made
    trusts_records: bool = False

    def __post_init__(self) -> None:
        if self.engine not in ("local", "ray"):
            raise UserError(f"engine {self.engine!r}: expected local or ray")
        if self.address is not None and self.engine != "ray":
            raise UserError(f"address {self.address}: it goes with the engine ray, and this is {self.engine}")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers: found {self.workers}, expected at least 1, or none for one on each core")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit: found {self.limit}, expected at least 1, or None for all documents.")

    def start_engine(self, root: Root, request: Request) -> Engine:
        if self.engine == "ray":
            from datapipe.engine.ray import RayEngine

            return RayEngine(root, request, self.address, self.workers)
        return self.local_engine(root, request.mixture)

    def local_engine(self, root: Root, mixture: Mixture) -> LocalEngine:
        return LocalEngine(root.url, self.workers or usable_cores(), mixture.execution)


@dataclass(slots=True)
class Run:
    """A run, and its request, plan and snapshot. `plan` is set as soon as the run has one, even if it fails later."""

    mixture: Mixture
    emit: Observer  # gets its events
    options: RunOptions = field(default_factory=RunOptions)
    make_engine: EngineFactory | None = None  # for another engine than that of the options
    # the files that are read, and added to the newest snapshot; None for all files
    generation: Generation | None = None
    make_report: MakeReport | None = None  # makes the report that is kept with the snapshot; None for none
    started_s: float = field(default_factory=perf_counter)  # of `perf_counter`
    # the snapshot that was the newest one before this run; None before the first
    before: Snapshot | None = None
    request: Request | None = None
    plan: Plan | None = None
    snapshot: Snapshot | None = None
    work: WorkBytes | None = None  # what work/ takes at the end of a run that published a snapshot
    of_snapshot: Sequence[RunWarning] = ()  # the warnings of its publication
    # a local one with a worker, until the driver takes it
    _early: LocalEngine | None = field(default=None, init=False, repr=False)
    _beside: ExitStack = field(
        default_factory=ExitStack, init=False, repr=False
    )  # what goes on beside the run, and ends with it
    _is_compiling: bool = field(default=False, init=False, repr=False)

    @property
    def root(self) -> Root:
        return Root(self.mixture.output)

    @property
    def is_new(self) -> bool:
        """Whether it has published a new snapshot of its output."""
        before = None if self.before is None else self.before.fingerprint
        return self.snapshot is not None and self.snapshot.fingerprint != before

    def show(self, line: str) -> None:
        self.emit(UserMessage(line))

    @no_exit()
    def execute(self) -> Snapshot:
        """Runs to the end. Raises UserError or DatapipeError; the next run uses everything committed until then."""
        try:
            with ExitStack() as self._beside:
                self._begin_early()
                return self._run_and_publish()
        except Exception as error:
            if isinstance(error, DatapipeError) or (stopped := stopped_by(error, self.mixture.output)) is None:
                raise
            raise stopped from error

    def _begin_early(self) -> None:
        """In a new output all tasks are still to run, so a worker starts, and kernels are compiled, while the inputs are
        listed. The stages are known by now: what they added to `sys.path` reaches the worker."""
        folder = self.root.local
        if self.options.address is not None and self.make_engine is None:
            from datapipe.engine.ray import connected

            self._beside.enter_context(connected(self.options.address))
        if self.options.engine != "local" or folder is None or (folder / WORK).exists():
            return
        if self.make_engine is None:
            self._early = self.options.local_engine(self.root, self.mixture)
            self._beside.callback(self._close_early)
            self._early.start_worker()
        self._compile_kernels()

    def _close_early(self) -> None:
        if self._early is not None:
            self._early.close()

    def _compile_kernels(self) -> None:
        """Begins to compile the kernels of the run that the machine does not have, once."""
        if self.options.engine == "local" and not self._is_compiling:
            self._is_compiling = True
            self._beside.enter_context(Compilation(kernels_of_run(self.mixture), usable_cores(), self._compiled))

    def _engine(self, request: Request) -> Engine:
        early, self._early = self._early, None
        return early or (self.make_engine or self.options.start_engine)(self.root, request)

    def _compiled(self, name: str, number: int, count: int) -> None:
        self.show(f"  compiled kernel {number} of {count}, once for this machine: {name}")

    def _run_and_publish(self) -> Snapshot:
        request = None if self.generation else prepare(self.mixture, self.options.limit, self.show)
        folder = self.root.local
        if folder is not None and folder.exists() and not folder.is_dir():
            raise UserError(f"output {self.root.url} is a file. Expected a folder, or a path where one can be made.")
        with exclusive(self.root) as lock:
            if self.generation is None and not self.options.rebuilds:
                check_readable(self.root)
            self.before = newest_manifest(self.root)
            if request is None:  # which reads the index of the output
                if self.before is None or begun_generation(self.root, self.before) != self.generation:
                    raise DatapipeError(
                        f"{self.root.url}: another run has published a snapshot since files were chosen to be added. Follow "
                        f"again: new files are then chosen again."
                    )
                request = prepare(self.mixture, None, self.show, self.generation)
            self.request = request = replace(request, trusts_records=self.options.trusts_records)
            if self.before is not None:
                self._check_before(request, self.before)
            self.root.write_atomic(MIXTURE, request.mixture.resolved_yaml().encode())
            write_inputs(self.root, request)
            ledger = Ledger(self.root, lock.pending_deletions)
            ledger.load()
            ledger.delete_orphans(lock)
            if ledger.files.num_refused:
                self.show(f"{counted(ledger.files.num_refused, 'task')} of another version of datapipe will run again")
            earlier = () if request.added_to is None else read_steps(ledger, request.added_to)
            kept_before = kept_by_last_run(self.root)
            freeing = self._freeing(request, ledger, lock)
            driver = Driver(request, ledger, self.emit, lock, kept_before, earlier, freeing)
            plan = self._execute(driver, request)
            while again := unpublished(ledger, request, plan):
                driver.run_again(again)
                plan = self._execute(driver, request)
            keeps_index = freeing.keeps_index and not has_freed_rows(ledger, plan)
            self.snapshot, self.of_snapshot = publish(lock, request, plan, self.make_report, self.show, keeps_index=keeps_index)
            freeing.published(plan, tasks_of_snapshots(self.root, without=self.snapshot.fingerprint))
            freeing.free()
            ledger.forget_replaced()
            ledger.delete_orphans(lock)
            steps = plan.with_earlier().steps
            self.work = work_bytes(self.root, steps, ledger.is_freed, keeps_index=bool(self.snapshot.last_part))
        return self.snapshot

    def _freeing(self, request: Request, ledger: Ledger, lock: OutputLock) -> Freeing:
        level = request.mixture.execution.keep_work
        keeps_index = level != "none" or request.added_to is not None or self.root.exists(f"{WORK}/{INDEX}")
        others = set[str]() if level == "resume" else tasks_of_snapshots(self.root)
        return Freeing(ledger, lock, level, keeps_index, others)

    def _execute(self, driver: Driver, request: Request) -> Plan:
        try:
            plan = driver.compile()
            check_same_steps(plan)
            if not plan.is_committed:
                if not request.trusts_records and (offered := offer(request, driver.ledger.look_up_any_version, plan)):
                    self.show(str(offered))
                self._check_disk(request, plan)
                self._compile_kernels()
                with closing(self._engine(request)) as engine:
                    plan = driver.run(engine)
        except BaseException as error:
            if isinstance(error, DatapipeError):  # attempts that were under way left files, which may fill the disk
                with suppress(OSError, LeaseLostError):
                    driver.ledger.delete_orphans(driver.lock)
            with suppress(OSError):  # a full disk must not hide why the run failed
                driver.lock.check()
                self._write_history(driver, request)
            raise
        self._write_history(driver, request)
        return plan

    def _check_before(self, request: Request, before: Snapshot) -> None:
        """Raises UserError for an output that holds the snapshot of another mixture, of a whole run, which that of a limited
        run would replace, or one to which files were added later, which a run of all files would pack again."""
        if not self.options.replaces:
            self._check_same_mixture(request.mixture, before)
            if self.options.limit is not None and was_whole(self.root):
                raise UserError(
                    f"{self.root.url} holds the snapshot of a whole run, and a run with --limit would publish a newer one. "
                    f"Give the limited run another output: --output {quote(self.root.url + '-sample')}"
                )
        if not self.options.rebuilds and request.added_to is None:
            check_not_grown(self.root, before)

    def _check_same_mixture(self, mixture: Mixture, before: Snapshot) -> None:
        """Raises UserError where the snapshot of the output has another name, or no common source."""
        url = self.root.url
        if before.name != mixture.name:
            problem = f"{url} holds a snapshot of the mixture '{before.name}', and this one is '{mixture.name}'."
        elif not before.sources.keys() & mixture.all_sources.keys():
            there, here = ", ".join(sorted(before.sources)), ", ".join(sorted(mixture.all_sources))
            problem = f"{url} holds a snapshot of the sources {there}, and this mixture has none of them, but {here}."
        else:
            return
        raise UserError(
            f"{problem} Give this mixture another output (--output), or pass --replace: its snapshot becomes the newest in "
            f'{url}, and Loader({json.dumps(url, ensure_ascii=False)}, snapshot="{before.fingerprint[:12]}") still loads the '
            "other."
        )

    def _check_disk(self, request: Request, plan: Plan) -> None:
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
        if driver.plan is not None:
            self.plan = driver.plan.with_earlier()
            write_run(self.root, self.plan, request)


@no_exit()
@without_collection()
def planned(
    mixture: Mixture,
    limit: int | None = None,
    show: Show | None = None,
    *,
    rebuilds: bool = False,
    trusts_records: bool = False,
) -> tuple[Request, Plan]:
    """The plan of a mixture as of now; runs and locks nothing. `show` is as for `prepare`, the options as for a run. Records
    of other versions that a run could keep are a warning of the request."""
    request, root = replace(prepare(mixture, limit, show), trusts_records=trusts_records), Root(mixture.output)
    if not rebuilds and (before := newest_manifest(root)) is not None:
        check_not_grown(root, before)
    ledger = Ledger(root)
    ledger.load()
    any_version = ledger.look_up_any_version
    look_up = any_version if trusts_records else ledger.look_up
    plan, again = compile_plan(request, look_up), set[str]()
    while freed := freed_inputs(ledger, plan):
        ledger.restore(freed)
        again |= freed
        plan = compile_plan(request, look_up)
    plan.again = again
    warning = trusted_warning(plan) if trusts_records else offer(request, any_version, plan)
    return (request if warning is None else replace(request, warnings=(*request.warnings, warning))), plan


def simulation(root: Root, request: Request, plan: Plan, text_bytes: int, cores: int | None, prices: Prices) -> Simulation:
    """The run of a plan at another size, on Ray where it has more cores than this machine. Raises UserError for a mixture
    without input files."""
    if not any(source.files for source in request.sources.values()):
        raise UserError(f"{request.mixture.name}: the mixture has no input files, so there is no run of another size")
    here = usable_cores()
    about = {"is_local": root.local is not None, "on_ray": (cores or here) > here}
    return simulate(request, plan, basis_of(root, request, plan), text_bytes, cores or here, prices, **about)
