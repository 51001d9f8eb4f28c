"""How runs grow with the corpus: `mixtures/fineweb.yaml` by the real command, at several sizes.

    pages ─▶ varied copies, 64 MB a file ─▶ `datapipe run` ─▶ scale.json ─▶ tables, exponents, scale.svg

    python -m tests.benchmarks scale --write                0.2, 0.6, 2, 6 and 20 GB of text
    python -m tests.benchmarks scale --sizes 0.005,0.015,0.045 --figures /tmp/scale.json

Each size also runs on S3, behind a proxy that counts requests, in twice the time of a run on a disk.
The middle size also runs with all of work/ kept, and from web archives by `mixtures/commoncrawl.yaml`.
The largest run is killed half-way, with its workers, and the same command runs again.

Figures are kept in `--figures`, by default tests/benchmarks/scale.json. A run with figures there is
not measured again, and requests may be those of a later commit, so a command that was stopped goes on
with the next run. Delete the file to measure all runs again.

The largest corpus has at least 96 files. So a small one has smaller files and splits, and a corpus of
megabytes has as many tasks as one of gigabytes; its buckets and shards are no smaller than 4 MiB,
since tables are read by blocks of a fixed size.
"""

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
_FILE_BYTES, _LEAST_FILES = 64_000_000, 96  # 313 files of 20 GB are more than are read without a merge
_SPLIT_BYTES = "execution.split_bytes"
_SIZES_OF_OPTIONS = {  # by default, and at least
    _SPLIT_BYTES: (32 << 20, 8 << 10),
    "execution.bucket_bytes": (256 << 20, 4 << 20),
    "shards.target_bytes": (256 << 20, 4 << 20),
    "tokenizer.train.sample_bytes": (256 << 20, 1 << 20),
}
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
    records = Laboratory(settings=settings, sizes=_TINY_SIZES, kept=kept, is_tiny=True).by_size()
    for name in _BOUNDED:
        yield Bound(name=f"{name}, exponent", ratio=exponent(records, GROWING[name]) or 0.0, most=_LIMIT)
    for name in _INCREASES_BOUNDED:
        slope = exponent_of_increase(records, GROWING[name])  # None of a figure that falls between two sizes
        slope = exponent(records, GROWING[name]) if slope is None else slope
        yield Bound(name=f"{name}, exponent of the increase", ratio=slope or 0.0, most=_LIMIT)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A mixture and what it reads, in the folder that the variable of the environment names. `text_step`: the first work on
    text, where the mixture reads pages."""

    name: str
    mixture: Path
    variable: str
    corpus: VariedFiles
    text_step: str = ""


@dataclass(frozen=True, kw_only=True)
class Laboratory:
    """Runs over corpora of these sizes, ascending, each measured once.

    Attributes:
        kept: the file of their figures.
        measured: when and on what.
        is_tiny: whether no run is killed, and none compiles kernels before the first.
    """

    settings: Settings
    sizes: Sequence[int]
    kept: FiguresFile
    measured: str = ""
    is_tiny: bool = False

    @property
    def middle(self) -> int:
        return self.sizes[len(self.sizes) // 2]

    def by_size(self) -> list[Figures]:
        """The figures of each size, with requests."""
        records = [self.on_disk(size, "none") for size in self.sizes]
        return [self.kept.with_requests(record, partial(self._requests, record.target_bytes)) for record in records]

    def on_disk(self, size: int, keep_work: str) -> Figures:
        is_killed = not self.is_tiny and keep_work == "none" and size == self.sizes[-1]
        key = "fineweb", size, keep_work, self._option(_SPLIT_BYTES)
        return self.kept.measured_once(key, lambda: self._measured(self._fineweb, size, keep_work, is_killed=is_killed))

    def from_archives(self, size: int) -> Figures:
        key = "commoncrawl", size, "none", self._option(_SPLIT_BYTES)
        return self.kept.measured_once(key, lambda: self._measured(self._commoncrawl, size, "none"))

    def _measured(self, recipe: Recipe, size: int, keep_work: str, *, is_killed: bool = False) -> Figures:
        if not self.is_tiny:
            self._compiled  # noqa: B018
        folder, run = self.settings.folder / "run", MeasuredRun()
        input_bytes = recipe.corpus.linked(size, folder / "in")
        output, crawl = folder / "out", {recipe.variable: str(folder / "in")}
        command = self._command(recipe, str(output), keep_work)
        if is_killed:
            run_measured(command, run, folder / "log", output, kills=_is_half_way, **crawl)
        run_measured(command, run, folder / "log", output, **crawl)
        facts = {"recipe": recipe.name, "target_bytes": size, "keep_work": keep_work, "workers": WORKERS}
        facts |= {"split_bytes": self._option(_SPLIT_BYTES), "input_bytes": input_bytes, "measured": self.measured}
        figures = figures_of(run, Root(str(output)), recipe.text_step, **facts)
        shutil.rmtree(folder)
        return figures

    def _requests(self, size: int) -> Mapping[str, int]:
        """Requests of the same run to S3."""
        folder, recipe = self.settings.folder / "run", self._fineweb
        recipe.corpus.linked(size, folder / "in")
        with object_store("bucket") as query, counting(query) as store:
            command = self._command(recipe, f"s3://bucket/out{store.query}", "none")
            run_measured(command, MeasuredRun(), folder / "log", **{recipe.variable: str(folder / "in")})
            requests = dict(store.requests)
        shutil.rmtree(folder)
        return requests

    @cached_property
    def _compiled(self) -> None:
        """Compiles kernels and fills the cache of files, by a run that is not measured."""
        folder, recipe = self.settings.folder / "first", self._fineweb
        recipe.corpus.linked(1, folder / "in")
        command = [*self._command(recipe, str(folder / "out"), "none"), "--limit", "100"]
        run_measured(command, MeasuredRun(), folder / "log", **{recipe.variable: str(folder / "in")})
        shutil.rmtree(folder)

    def _command(self, recipe: Recipe, output: str, keep_work: str) -> list[str]:
        # the estimate is that of a run which keeps all documents and all of work/
        values = {"execution.keep_work": keep_work, "execution.check_disk": "false"}
        if self._share < 1:
            values |= {name: str(self._option(name)) for name in _SIZES_OF_OPTIONS}
        if self._share < 0.1:
            values["tokenizer.train.vocab_size"] = "2000"
        sets = itertools.chain.from_iterable(("--set", f"{name}={value}") for name, value in values.items())
        return ["run", str(recipe.mixture), "--output", output, "--workers", str(WORKERS), *sets]

    # -------------------------------------------------------------------------------------------- what is read

    @property
    def _file_bytes(self) -> int:
        return min(_FILE_BYTES, self.sizes[-1] // _LEAST_FILES)

    @property
    def _share(self) -> float:
        """Of the size of a file by default: splits and so on are smaller in proportion."""
        return self._file_bytes / _FILE_BYTES

    def _option(self, name: str) -> int:
        by_default, least = _SIZES_OF_OPTIONS[name]
        return max(least, int(self._share * by_default))

    @cached_property
    def _fineweb(self) -> Recipe:
        """The recipe over text; over made-up text without its language, which is none."""
        mixture, web, folder = MIXTURES / "fineweb.yaml", self.settings.web, self.settings.folder
        texts = read_texts(web) if web.is_file() else made_up_texts(500)
        if not web.is_file():
            lines = mixture.read_text(encoding="utf-8").splitlines(keepends=True)
            mixture = folder / "fineweb.yaml"
            mixture.write_text("".join(line for line in lines if "filter.language" not in line), encoding="utf-8")
        corpus = text_files(folder / "texts", texts.to_pylist(), self._file_bytes)
        return Recipe(name="fineweb", mixture=mixture, variable="CRAWL", corpus=corpus)

    @cached_property
    def _commoncrawl(self) -> Recipe:
        articles = [*mixed(self.settings.data), *news(self.settings.data)][: 20 if self.settings.quick else None]
        pages = [article.html for article in articles]
        corpus = archive_files(self.settings.folder / "archives", pages, self._file_bytes)
        mixture = MIXTURES / "commoncrawl.yaml"
        return Recipe(name="commoncrawl", mixture=mixture, variable="WARC", corpus=corpus, text_step="normalize.unicode")


def _is_half_way(events: EventLog) -> bool:
    """Whether half of the input is read: the longest step."""
    return 2 * events.committed["web/read"] >= events.tasks.get("web/read", float("inf"))
