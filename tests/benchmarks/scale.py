"""How runs grow with the corpus: `mixtures/fineweb.yaml` by the real command, at several sizes.

    pages ─▶ varied copies, 64 MB a file ─▶ `datapipe run` ─▶ scale.json ─▶ tables, exponents, scale.svg

    python -m tests.benchmarks scale --write                0.2, 0.6, 2, 6 and 20 GB of text
    python -m tests.benchmarks scale --sizes 0.005,0.015,0.045 --figures /tmp/scale.json

The two smallest sizes also run on S3, behind a proxy that counts requests. The middle size also
runs with all of work/ kept, and from web archives by `mixtures/commoncrawl.yaml`. The largest run
is killed half-way, with its workers, and the same command runs again.

Figures are kept in `--figures`, by default tests/benchmarks/scale.json. A run with figures there is
not measured again, so a command that was stopped goes on with the next run. Delete the file to
measure all runs again.

A largest size below 20 GB makes files, splits, buckets and shards smaller in proportion, so that
the corpora have as many files and tasks as those by default.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from datapipe.storage.root import Root
from tests.benchmarks import scale_tables
from tests.benchmarks.scale_figures import GROWING, Figures, FiguresFile, exponent, exponent_of_increase, figures_of
from tests.benchmarks.scale_plot import write_plot
from tests.benchmarks.tables import Bound, Settings, Table
from tests.benchmarks.texts import made_up_texts, read_texts
from tests.support.articles import mixed, news
from tests.support.counting_store import counting
from tests.support.measured_run import EventLog, MeasuredRun, run_measured
from tests.support.object_store import object_store
from tests.support.varied_files import VariedFiles, archive_files, text_files

MIXTURES = Path(__file__).parents[2] / "mixtures"
KEPT = Path(__file__).with_suffix(".json")
WORKERS = 2
SIZES = (200_000_000, 600_000_000, 2_000_000_000, 6_000_000_000, 20_000_000_000)
_QUICK_SIZES, _TINY_SIZES = (400_000, 1_600_000), (110_000, 330_000, 990_000)
_FILES, _TINY_FILES = 312, 96  # of the largest corpus; 312 of 64 MB are more than are read without a merge
_SIZES_OF_OPTIONS = {
    "execution.split_bytes": 32 << 20,
    "execution.bucket_bytes": 256 << 20,
    "shards.target_bytes": 256 << 20,
    "tokenizer.train.sample_bytes": 256 << 20,
}
_LEAST_BYTES = 16 << 10
_LIMIT = 1.15  # of figures that may grow as n log n, with noise
_BOUNDED = ("requests", "bytes written", "peak bytes of work/", "driver seconds", "peak memory of the driver")
_INCREASES_BOUNDED = ("bytes read", "reads", "bytes written")


def tables(settings: Settings) -> Iterator[Table]:
    from tests.benchmarks.__main__ import measured_on

    sizes = settings.sizes or (_QUICK_SIZES if settings.quick else SIZES)
    figures = settings.figures or (settings.folder / "scale.json" if settings.quick else KEPT)
    lab = Laboratory(settings=settings, sizes=sorted(sizes), kept=FiguresFile(path=figures), measured=measured_on())
    records = lab.by_size()
    kept = lab.on_disk(lab.middle, "resume")
    yield scale_tables.sizes([*records, kept])
    yield scale_tables.growth(records)
    yield scale_tables.steps(records[-1])
    yield scale_tables.costs([lab.from_archives(lab.middle), records[-1]], settings.price)
    yield scale_tables.peers()
    write_plot(figures.with_suffix(".svg"), records)


def bounds(folder: Path) -> Iterator[Bound]:
    settings = Settings(quick=True, data=Path(), folder=folder, web=Path())
    kept = FiguresFile(path=folder / "scale.json")
    records = Laboratory(settings=settings, sizes=_TINY_SIZES, kept=kept, num_files=_TINY_FILES, kills=False).by_size()
    for name in _BOUNDED:
        yield Bound(name=f"{name}, exponent", ratio=exponent(records, GROWING[name]) or 0.0, most=_LIMIT)
    for name in _INCREASES_BOUNDED:
        slope = exponent_of_increase(records, GROWING[name]) or 0.0
        yield Bound(name=f"{name}, exponent of the increase", ratio=slope, most=_LIMIT)


@dataclass(frozen=True, kw_only=True)
class Laboratory:
    """Runs over corpora of these sizes, ascending, each measured once.

    Attributes:
        kept: the file of their figures.
        measured: when and on what.
        num_files: of the largest corpus, where it is smaller than by default.
        kills: whether the largest run is killed half-way.
    """

    settings: Settings
    sizes: Sequence[int]
    kept: FiguresFile
    measured: str = ""
    num_files: int = _FILES
    kills: bool = True

    @property
    def middle(self) -> int:
        return self.sizes[len(self.sizes) // 2]

    @property
    def share(self) -> float:
        """Of the largest size by default, for the sizes of files, splits and so on."""
        return min(1.0, self.sizes[-1] / SIZES[-1])

    def by_size(self) -> list[Figures]:
        """The figures of each size; of the smaller ones with requests."""
        records = [self.on_disk(size, "none") for size in self.sizes]
        smallest = records[: min(2, len(records) - 1)]
        counted = [self.kept.with_requests(record, partial(self._requests, record.target_bytes)) for record in smallest]
        return [*counted, *records[len(smallest) :]]

    def on_disk(self, size: int, keep_work: str) -> Figures:
        def measure() -> Figures:
            is_killed = self.kills and keep_work == "none" and size == self.sizes[-1]
            return self._measured(self._texts, self._fineweb, "CRAWL", size, keep_work=keep_work, is_killed=is_killed)

        return self.kept.measured_once(("fineweb", size, keep_work, self._split_bytes), measure)

    def from_archives(self, size: int) -> Figures:
        def measure() -> Figures:
            mixture, step = MIXTURES / "commoncrawl.yaml", "normalize.unicode"
            return self._measured(self._archives, mixture, "WARC", size, recipe="commoncrawl", text_step=step)

        return self.kept.measured_once(("commoncrawl", size, "none", self._split_bytes), measure)

    def _measured(
        self,
        corpus: VariedFiles,
        mixture: Path,
        variable: str,
        size: int,
        *,
        recipe: str = "fineweb",
        keep_work: str = "none",
        is_killed: bool = False,
        text_step: str = "",
    ) -> Figures:
        self._compiled  # noqa: B018
        folder, run = self.settings.folder / "run", MeasuredRun()
        input_bytes = corpus.linked(size, folder / "in")
        output, crawl = folder / "out", {variable: str(folder / "in")}
        command = self._command(mixture, str(output), keep_work)
        if is_killed:
            run_measured(command, run, folder / "log", output, kills=_is_half_way, **crawl)
        run_measured(command, run, folder / "log", output, **crawl)
        facts = {"recipe": recipe, "target_bytes": size, "keep_work": keep_work, "workers": WORKERS}
        facts |= {"split_bytes": self._split_bytes, "input_bytes": input_bytes, "measured": self.measured}
        figures = figures_of(run, Root(str(output)), text_step, **facts)
        shutil.rmtree(folder)
        return figures

    def _requests(self, size: int) -> Mapping[str, int]:
        """Requests of the same run to S3."""
        folder = self.settings.folder / "run"
        self._texts.linked(size, folder / "in")
        with object_store("bucket") as query, counting(query) as store:
            command = self._command(self._fineweb, f"s3://bucket/out{store.query}", "none")
            run_measured(command, MeasuredRun(), folder / "log", CRAWL=str(folder / "in"))
            requests = dict(store.requests)
        shutil.rmtree(folder)
        return requests

    @cached_property
    def _compiled(self) -> None:
        """Compiles kernels and fills the cache of files, by a run that is not measured."""
        folder = self.settings.folder / "first"
        self._texts.linked(1, folder / "in")
        command = [*self._command(self._fineweb, str(folder / "out"), "none"), "--limit", "100"]
        run_measured(command, MeasuredRun(), folder / "log", CRAWL=str(folder / "in"))
        shutil.rmtree(folder)

    def _command(self, mixture: Path, output: str, keep_work: str) -> list[str]:
        options = {name: self._shared(size) for name, size in _SIZES_OF_OPTIONS.items()}
        if self.share < 0.1:
            options["tokenizer.train.vocab_size"] = 2000
        values = [f"execution.keep_work={keep_work}", *(f"{name}={value}" for name, value in options.items() if self.share < 1)]
        sets = itertools.chain.from_iterable(("--set", value) for value in values)
        return ["run", str(mixture), "--output", output, "--workers", str(WORKERS), *sets]

    # -------------------------------------------------------------------------------------------- what is read

    def _shared(self, num_bytes: int) -> int:
        return max(_LEAST_BYTES, int(self.share * num_bytes))

    @property
    def _split_bytes(self) -> int:
        return self._shared(_SIZES_OF_OPTIONS["execution.split_bytes"])

    @property
    def _file_bytes(self) -> int:
        return int(self.share * SIZES[-1] / self.num_files)

    @cached_property
    def _texts(self) -> VariedFiles:
        texts = read_texts(self.settings.web) if self._is_real else made_up_texts(500)
        return text_files(self.settings.folder / "texts", texts.to_pylist(), self._file_bytes)

    @cached_property
    def _archives(self) -> VariedFiles:
        articles = [*mixed(self.settings.data), *news(self.settings.data)][: 20 if self.settings.quick else None]
        return archive_files(self.settings.folder / "archives", [article.html for article in articles], self._file_bytes)

    @property
    def _is_real(self) -> bool:
        return self.settings.web.is_file()

    @cached_property
    def _fineweb(self) -> Path:
        """The mixture; without the language of made-up text, which is none."""
        mixture = MIXTURES / "fineweb.yaml"
        if self._is_real:
            return mixture
        lines = mixture.read_text(encoding="utf-8").splitlines(keepends=True)
        made_up = self.settings.folder / "fineweb.yaml"
        made_up.write_text("".join(line for line in lines if "filter.language" not in line), encoding="utf-8")
        return made_up


def _is_half_way(events: EventLog) -> bool:
    """Whether half of the input is read: the longest step."""
    return 2 * events.committed["web/read"] >= events.tasks.get("web/read", float("inf"))
