"""All comparisons, and the tables of their results. All of it runs on one core."""

import sys
from collections.abc import Iterator

from tests.benchmarks.peers import loaders, recipes, results
from tests.benchmarks.peers.comparison import Comparison, measured
from tests.benchmarks.peers.results import Result, Results, number, spread
from tests.benchmarks.tables import Settings, Table

NUM_PAIRS, _QUICK_PAIRS = 5, 1
_TABLES = {
    "recipe": (
        "Peers: from JSON lines to packed tokens",
        "MB of text for each CPU second of one core, starts apart: the rules of Gopher, C4 and FineWeb, e-mail and IP "
        "addresses, the tokenizer of GPT-2. No MinHash, and no language identification, whose model datatrove downloads. "
        "datatrove merges and shuffles tokens by document, and leaves the cut into rows to the loader.",
    ),
    "loader": (
        "Peers: loaders",
        "Microseconds a batch of 16 rows of 2,048 tokens, int64, in a random order: the first epoch with opening, of "
        f"{loaders.NUM_ROWS:,} rows that each library wrote in its own form. One process without workers on one core, which "
        "has imported the library and read a few other rows before. numpy: a gather from a memory map, without checks or "
        "state. torch: a DataLoader over that map. megatron-core: its samples have labels, a loss mask and position ids. Of "
        f"{loaders.FEWER_ROWS:,} rows: from another process, a service of ours or a worker of torch's; from S3, into an empty "
        f"cache, whose server on the same core answers each request {loaders.DELAY_S * 1e3:.0f} ms late.",
    ),
}
"""Title and note of the table of each kind of work."""


def every(settings: Settings) -> list[Comparison]:
    return [*recipes.comparisons(settings), *loaders.comparisons(settings)]


def tables(settings: Settings) -> Iterator[Table]:
    before = results.read_at(settings.against) if settings.against else {}  # first: an unknown commit costs no measurement
    found = results.read_at(str(settings.figures)) if settings.figures else _measure(settings)
    new = {name: result for name, result in found.items() if not result.error}
    shown: Results = found
    if settings.write:
        kept = results.read_kept() | new
        results.write(results.KEPT, kept)
        shown = found | kept
    yield from as_tables({each.name: shown[each.name] for each in every(settings) if each.name in shown})
    if settings.against:
        yield results.changes(before, new, settings.against)


def _measure(settings: Settings) -> dict[str, Result]:
    found: dict[str, Result] = {}
    for comparison in every(settings):
        if settings.only in comparison.name:
            result = found[comparison.name] = measured(comparison, _QUICK_PAIRS if settings.quick else NUM_PAIRS)
            print(
                f"{comparison.name}: {result.error or f'{number(result.times)} ({spread(result)})'}",
                file=sys.stderr,
                flush=True,
            )
    return found


def as_tables(found: Results) -> Iterator[Table]:
    for kind, (title, note) in _TABLES.items():
        rows = [_row(name.removeprefix(f"{kind}, "), result) for name, result in found.items() if name.startswith(kind)]
        if rows:
            yield Table(
                title=title,
                note=f"{note} Medians, and how many times as fast for each pair of measurements in turn.",
                header=(
                    "work",
                    "peer",
                    "datapipe",
                    "peer's",
                    "times as fast",
                    "lowest to highest",
                    "pairs",
                    "kept",
                    "measured",
                ),
                rows=rows,
            )


def _row(name: str, result: Result) -> tuple[str, ...]:
    work = name.rpartition(": ")[0]
    if result.error:
        return (work, result.peer, "", "", result.error, "", "", "", "")
    when = ", ".join(result.measured.split(", ")[:2])  # the day and the commit
    figures = map(number, (*result.medians, result.times))
    return (work, result.peer, *figures, spread(result), str(len(result.pairs)), _kept(result), when)


def _kept(result: Result) -> str:
    if result.kept is None:
        return ""
    shares = " and ".join(f"{share:.1%}" for share in result.kept)
    return shares if result.same_share else f"{shares}, **not the same**"
