"""Pictures of what benchmarks measured: lines, and points beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Points = Sequence[tuple[float, float]]


def draw(
    path: Path,
    x_label: str,
    y_label: str,
    points: Mapping[str, Points],
    lines: Mapping[str, Points] | None = None,
    log: bool = False,
) -> None:
    """Writes a picture in the format that the path's ending names. Needs matplotlib.

    Args:
        points: measured, each with a legend; joined where there are no lines.
        lines: what they are held against, in the same colours by place.
        log: both axes by powers of ten.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "datapipe"  # the same picture for the same numbers
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for number, (name, listed) in enumerate(points.items()):
        style = "o" if lines else "o-" if number < 10 else "s--"
        axes.plot(*zip(*listed), style, markersize=4, linewidth=1, color=f"C{number % 10}", label=name)
    for number, listed in enumerate((lines or {}).values()):
        axes.plot(*zip(*listed), linewidth=1, color=f"C{number % 10}")
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
