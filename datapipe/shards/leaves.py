"""What a loader draws from: the cells of the sources that are cut into cells, and the other sources. Each is a leaf.

    sources    books, crawl (cells en/science, en/sport, ja/science)
    leaves     books, crawl/en/science, crawl/en/sport, crawl/ja/science
    weights    {books: 1, crawl: 2, "crawl/*/science": 1}  ->  the pattern takes two cells, crawl the third

A key of weights takes leaves: a source takes itself, or those of its cells that no other key takes; a pattern takes the cells
that it matches, from the keys before it. The cells that a key takes divide its weight in proportion to `Cells.weights`.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import lcm

from datapipe.cell_names import is_pattern, matches, source_of
from datapipe.shards.source_entry import SourceEntry
from datapipe.weights import below_limit


def leaf_name(source: str, cell: str) -> str:
    return f"{source}/{cell}"


def leaves_of(sources: Mapping[str, SourceEntry]) -> dict[str, tuple[str, int | None]]:
    """By name, sorted: the source of each leaf, and the number of its cell; None for a source without cells."""
    leaves: dict[str, tuple[str, int | None]] = {}
    for name, entry in sources.items():
        if entry.cells is None:
            leaves[name] = name, None
        else:
            leaves.update({leaf_name(name, cell): (name, number) for number, cell in enumerate(entry.cells.names)})
    return dict(sorted(leaves.items()))


def leaf_limits(sources: Mapping[str, SourceEntry]) -> dict[str, float]:
    """`max_epochs` of the leaves that have one."""
    limits = {
        leaf: entry.max_epochs if cell is None or entry.cells is None else entry.cells.max_epochs[cell]
        for leaf, (name, cell) in leaves_of(sources).items()
        for entry in (sources[name],)
    }
    return {leaf: limit for leaf, limit in limits.items() if limit is not None}


def problem_of(key: str, sources: Mapping[str, SourceEntry]) -> str | None:
    """Why no leaf can have this name, and no pattern can match one: "which is not a source"."""
    source, slash, cell = key.partition("/")
    if key in sources and not slash:
        return None
    if source not in sources:
        return "which is not a source"
    cells = sources[source].cells
    if cells is None:
        return f"and source '{source}' has no cells"
    form = "/".join([source, *(f"{{{axis.column}}}" for axis in cells.axes)])
    if is_pattern(cell):
        parts = len(cells.axes)
        return None if cell.count("/") + 1 == parts else f"and the cells of '{source}' have names of {parts} parts: {form}"
    return (
        None if cell in cells.numbers else f"which is not a cell of source '{source}': {form}, where * stands for all of a part"
    )


def claimed(keys: Iterable[str], sources: Mapping[str, SourceEntry]) -> dict[str, list[int | None]]:
    """The leaves that each key takes, as numbers of cells of its source; None for a source without cells. Every key must be one
    that `problem_of` allows."""
    taken: dict[str, list[int | None]] = {key: [] for key in keys}
    by_source: dict[str, list[str]] = {}
    for key in taken:
        by_source.setdefault(source_of(key), []).append(key)
    for source, own in by_source.items():
        cells = sources[source].cells
        if cells is None:
            taken[source] = [None]
            continue
        owner: dict[int, str] = dict.fromkeys(range(len(cells.names)), source) if source in own else {}
        for key in own:
            name = key.partition("/")[2]
            if name:
                owner.update(dict.fromkeys(matches(name, cells.names, cells.numbers), key))
        for number, key in owner.items():
            taken[key].append(number)
    return taken


def leaves_named(keys: Iterable[str], sources: Mapping[str, SourceEntry]) -> list[str]:
    """The leaves that any of the keys names: with a source, all its cells."""
    found: list[str] = []
    for key in keys:
        source, cells = source_of(key), sources[source_of(key)].cells
        found += [
            source if number is None or cells is None else leaf_name(source, cells.names[number])
            for number in claimed([key], sources)[key]
        ]
    return list(dict.fromkeys(found))


def leaf_weights(weights: Mapping[str, int | Fraction], sources: Mapping[str, SourceEntry]) -> dict[str, int]:
    """Weights of keys as integer weights of leaves, sorted by name, without zeros. They are exact up to a sum of 2^61, and
    beyond it have fewer bits."""
    parts = [(Fraction(weights[key]) / total, own) for key, (total, own) in drawn_by(weights, sources).items() if weights[key]]
    scale = lcm(*(share.denominator for share, _ in parts))
    scaled = [(int(share * scale), own) for share, own in parts]
    whole = {leaf: factor * weight for factor, own in scaled for leaf, weight in own if weight}
    return dict(sorted(below_limit(whole).items()))


def drawn_by(keys: Iterable[str], sources: Mapping[str, SourceEntry]) -> dict[str, tuple[int, list[tuple[str, int]]]]:
    """The leaves among which each key divides its weight, with their parts of it, after the sum of these. A key whose cells all
    have weight 0 takes nothing, and is left out; but for the name of one cell."""
    drawn: dict[str, tuple[int, list[tuple[str, int]]]] = {}
    for key, numbers in claimed(keys, sources).items():
        source, _, name = key.partition("/")
        cells = sources[source].cells
        if cells is None:
            own = [(source, 1)]
        elif name and not is_pattern(name):
            own = [(key, 1)] if numbers else []
        else:
            own = [(leaf_name(source, cells.names[number]), cells.weights[number]) for number in numbers if number is not None]
        total = sum(weight for _, weight in own)
        if total:
            drawn[key] = total, own
    return drawn
