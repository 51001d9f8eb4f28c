"""The tables of `scale`: runs by size, exponents, steps, and what the way from web archives to shards costs beside peers."""

import math
from collections.abc import Callable, Sequence

from tests.benchmarks.scale_figures import GROWING, Figures, exponent, exponent_of_increase
from tests.benchmarks.tables import Table

_COLUMNS: dict[str, Callable[[Figures], str]] = {
    "documents": lambda each: f"{each.documents:,}",
    "kept": lambda each: f"{each.kept_documents / each.documents:.1%}",
    "tokens, M": lambda each: f"{each.tokens / 1e6:,.1f}",
    "tasks": lambda each: f"{sum(each.tasks.values()):,}",
    "wall, s": lambda each: f"{each.wall_seconds:,.0f}",
    "workers, core s": lambda each: f"{sum(each.core_seconds.values()):,.0f}",
    "driver, core s": lambda each: f"{each.driver_seconds:,.1f}",
    "driver, peak MB": lambda each: f"{each.peak_driver_bytes / 1e6:,.0f}",
    "worker, peak MB": lambda each: f"{each.peak_worker_bytes / 1e6:,.0f}",
    "read, GB": lambda each: _gb(each.bytes_read),
    "reads": lambda each: f"{each.reads:,}",
    "written, GB": lambda each: _gb(sum(each.bytes_written.values())),
    "work/, peak GB": lambda each: _gb(each.peak_work_bytes),
    "OUTPUT, peak GB": lambda each: _gb(each.peak_output_bytes),
    "PUT": lambda each: _requests(each, "PUT"),
    "GET": lambda each: _requests(each, "GET"),
    "HEAD": lambda each: _requests(each, "HEAD"),
    "LIST": lambda each: _requests(each, "LIST"),
    "DELETE": lambda each: _requests(each, "DELETE"),
}

_PEERS = (
    ("NeMo Curator", "heuristic filters on CPUs", "", "117 to 148 documents/s a core"),
    ("NeMo Curator", "fuzzy deduplication, RedPajama v2, 8 TB", "1, 2, 4 nodes of 8 H100", "2.05, 1.01, 0.50 h"),
    ("Data-Juicer", "MinHash deduplication, 5 TB", "1,280 cores", "2.8 h"),
    ("Spark", "MinHash deduplication, 253 M documents", "9 r5d.8xlarge", "under 5 h"),
    ("Common Crawl extraction", "2.8 TB to 0.52 TB", "30 CPU nodes", "under 38 h"),
)


def sizes(records: Sequence[Figures]) -> Table:
    killed = [_gb(each.text_bytes) for each in records if each.was_killed]
    return Table(
        title="Runs by size",
        note="`datapipe run mixtures/fineweb.yaml` with two workers, over copies of English web pages with other words in "
        "each copy (`tests/support/varied_pages.py`). Core seconds are CPU. Bytes read, and calls of the system for them, are "
        "those of all processes, code included; bytes written are those of committed files. Requests are those of the same "
        f"run to S3 on loopback. Killed half-way and run again: {', '.join(killed) or 'none'} GB.{_measured(records)}",
        header=("text, GB", "`keep_work`", *_COLUMNS),
        rows=[(_gb(each.text_bytes), f"`{each.keep_work}`", *(cell(each) for cell in _COLUMNS.values())) for each in records],
    )


def growth(records: Sequence[Figures]) -> Table:
    """The exponents of each figure."""
    measured = {name: [each for each in records if figure(each) > 0] for name, figure in GROWING.items()}
    return Table(
        title="Growth with the corpus",
        note=f"The exponent p of n^p by least squares over the logarithms of the {len(records)} sizes of *Runs by size*. 1 is "
        "in proportion; n log n has 1.05 over a hundredfold. The exponent of the increase is the p of a + b n^p, from what "
        "each further byte of text adds: it leaves out the constant a, which hides growth in the first one. "
        "A run that was killed has started twice. [`scale.svg`](scale.svg) draws the figures.",
        header=("figure", "exponent", "of the increase", "at the smallest", "at the largest"),
        rows=[
            (
                name,
                _shown(exponent(having, GROWING[name])),
                _shown(exponent_of_increase(having, GROWING[name])),
                *(f"{GROWING[name](each):,.4g}" for each in (having[0], having[-1])),
            )
            for name, having in measured.items()
            if len(having) > 1
        ],
    )


def steps(record: Figures) -> Table:
    """What each step of a run took."""
    rows = []
    for name, spent in record.steps.items():
        seconds = (f"{spent[f'{who}_seconds']:,.1f}" for who in ("core", "driver"))
        rows.append((name, f"{spent['tasks']:,}", *seconds, _gb(spent["bytes_read"]), _gb(spent["bytes_written"])))
    return Table(
        title="Steps of the largest run",
        note=f"CPU, and bytes of read and write calls, while each step ran, over {_gb(record.text_bytes)} GB of text. Between "
        f"steps: the start of the driver, and the files of the snapshot.{_measured([record])}",
        header=("step", "tasks", "workers, core s", "driver, core s", "read, GB", "written, GB"),
        rows=rows,
    )


def costs(records: Sequence[Figures], price: float) -> Table:
    """Speeds and dollars of a core for whole runs. `price`: dollars for a core and hour."""
    rows = []
    for each in records:
        core_s = each.paid_core_seconds
        rates = (each.input_bytes / core_s / 1e6, each.text_bytes / core_s / 1e6, each.tokens / core_s, each.documents / core_s)
        dollars = [core_s / 3600 * price / num_bytes * 1e12 for num_bytes in (each.input_bytes, each.text_bytes)]
        cells = (f"{_gb(each.input_bytes)}", *(f"{rate:,.3g}" for rate in rates[:2]), *(f"{rate:,.0f}" for rate in rates[2:]))
        rows.append((f"`mixtures/{each.recipe}.yaml`", *cells, *(f"{value:,.2f}" for value in dollars)))
    return Table(
        title="From WARC to loadable shards",
        note="`commoncrawl.yaml` reads web archives: extraction, the filters of FineWeb, MinHash, a tokenizer, packed shards. "
        "`fineweb.yaml` reads extracted text. Core time is the wall time of the command, with start and end, times two cores. "
        "Bytes are those before compression; text is the extracted text. Dollars at "
        f"{price:g} $ for a core and hour.{_measured(records)}",
        header=(
            *("recipe", "input, GB", "MB/s of input a core", "MB/s of text a core", "tokens/s a core", "documents/s a core"),
            *("$ a TB of input", "$ a TB of text"),
        ),
        rows=rows,
    )


def peers() -> Table:
    return Table(
        title="Published figures of peers",
        note="The peers' own figures, of parts of the way from WARC to shards, on other data and machines. None was measured "
        "here. We know of no published tokens/s a core, or dollars a TB, for the whole way.",
        header=("peer", "work", "on", "published"),
        rows=_PEERS,
    )


def _gb(num_bytes: float) -> str:
    """GB with three digits: 0.00512, 1.23, 20.0."""
    digits = 2 if num_bytes <= 0 else max(0, 2 - math.floor(math.log10(num_bytes / 1e9)))
    return f"{num_bytes / 1e9:,.{digits}f}"


def _requests(figures: Figures, name: str) -> str:
    return f"{figures.requests.get(name, 0):,}" if figures.requests else ""


def _shown(slope: float | None) -> str:
    return "" if slope is None else f"{slope:.2f}"


def _measured(records: Sequence[Figures]) -> str:
    """When and on what records of earlier runs were measured."""
    return "".join(f" Measured {text}" for text in dict.fromkeys(each.measured for each in records) if text)
