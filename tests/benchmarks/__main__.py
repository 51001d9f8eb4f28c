"""Benchmarks: their tables, the README that holds them, and ratios that are bounded on any machine.

    python -m tests.benchmarks NAME … [--quick] [--only TEXT] [--data FOLDER]     prints tables
    python -m tests.benchmarks --write [NAME …]         replaces their sections of tests/benchmarks/README.md
    python -m tests.benchmarks --check [NAME …]         fails where a bound is broken; made-up text, five minutes

Names are the modules of this folder. Each has `tables(settings)`, and `bounds(folder)` where a ratio of two figures of one
run has a bound. Cells of a peer that is not installed have no figure.
"""

import argparse
import importlib
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from datapipe.bench.bench import one_core
from tests.benchmarks.tables import Bound, Settings, Table
from tests.benchmarks.texts import write_web

README = Path(__file__).parent / "README.md"
ROOT = README.parents[2]
BENCHMARKS = (
    *("cleaning", "secrets", "classifiers", "web", "dedup", "dedup_quality", "near_copies", "decontamination"),
    *("encoders", "loader", "service", "driver", "task_memory", "work_bytes", "browse", "scale", "kernels", "peers"),
)
ON_ALL_CORES = ("service", "driver", "scale")
"""Benchmarks of several processes; all others run on one core."""

_PACKAGES = ("numpy", "numba", "pyarrow", "fastokens", "tokenizers")


def main() -> None:
    given = _arguments()
    names = given.names or BENCHMARKS
    with tempfile.TemporaryDirectory(prefix="datapipe-benchmarks-") as scratch:
        if given.check:
            sys.exit(not check(names, Path(scratch)))
        for name in names:
            folder = Path(scratch) / name
            folder.mkdir()
            tables = measured(name, _settings(given, folder))
            print("\n".join(table.to_markdown() for table in tables), flush=True)
            if given.write:
                kept = [table for table in tables if not table.kept_in]
                README.write_text(rewritten(README.read_text(encoding="utf-8"), kept, measured_on()), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--write", action="store_true", help="write the tables to README.md")
    parser.add_argument("--check", action="store_true", help="check bounds on made-up text")
    parser.add_argument("--quick", action="store_true", help="smallest sizes")
    parser.add_argument("--only", default="", metavar="TEXT", help="what has this in its name: kernels, sets, tasks")
    parser.add_argument("--documents", type=int, default=0, help="the size of what grows: dedup, browse, driver")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data", help="the folder of real corpora")
    parser.add_argument("--sizes", type=_bytes, default=(), metavar="GB,…", help="corpora of scale, in GB of text")
    parser.add_argument("--figures", type=Path, metavar="FILE", help="the JSON file of figures of scale, or peers")
    parser.add_argument("--price", type=float, default=0.04, metavar="DOLLARS", help="of a core and hour, for scale")
    parser.add_argument("--against", default="", metavar="COMMIT", help="a commit or file to compare results of peers with")
    return parser.parse_args()


def _bytes(gigabytes: str) -> tuple[int, ...]:
    return tuple(round(float(size) * 1e9) for size in gigabytes.split(","))


def _settings(given: argparse.Namespace, folder: Path) -> Settings:
    options = {name: getattr(given, name) for name in vars(given) if name not in ("names", "check")}
    web = write_web(given.data, folder, 40 if given.quick else None) if given.data.is_dir() else Path()
    return Settings(folder=folder, web=web, **options)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"tests.benchmarks.{name}")


def measured(name: str, settings: Settings) -> list[Table]:
    """The tables of one benchmark."""
    with nullcontext() if name in ON_ALL_CORES else one_core():
        return list(_module(name).tables(settings))


def check(names: Sequence[str], scratch: Path) -> bool:
    """Prints every bound, and returns whether all hold. Other work may break a bound once, so it is measured again."""
    broken: list[Bound] = []
    for name in names:
        if hasattr(_module(name), "bounds"):
            started = time.monotonic()
            bounds = _bounds(name, scratch / name)
            if not all(bound.holds for bound in bounds):
                again = {bound.name: bound for bound in _bounds(name, scratch / f"{name}-again")}
                bounds = [bound if bound.holds else again[bound.name] for bound in bounds]
            print(f"{name}, {time.monotonic() - started:.0f} s", *bounds, sep="\n    ", flush=True)
            broken += [bound for bound in bounds if not bound.holds]
    print(f"{len(broken)} bounds broken: {', '.join(bound.name for bound in broken)}" if broken else "all bounds hold")
    return not broken


def _bounds(name: str, folder: Path) -> list[Bound]:
    folder.mkdir()
    with nullcontext() if name in ON_ALL_CORES else one_core():
        return list(_module(name).bounds(folder))


def rewritten(readme: str, tables: Iterable[Table], measured: str) -> str:
    """The README with the sections of these tables replaced by their titles, or added at its end."""
    opening, *sections = re.split(r"^(?=## )", readme, flags=re.MULTILINE)
    by_title = {section.partition("\n")[0]: section for section in sections}
    for table in tables:
        section = table.to_markdown(measured)
        by_title[section.partition("\n")[0]] = section + "\n"
    return (opening + "".join(by_title.values())).rstrip("\n") + "\n"


def measured_on() -> str:
    """When and on what the figures of a section were measured."""
    versions = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    python = f"CPython {platform.python_version()}"
    today = time.strftime("%Y-%m-%d", time.gmtime())
    return f"{today}, {_commit()}, {_processor()}, {os.cpu_count()} cores, {python}, {versions}."


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + (" with changes" if git("status", "--porcelain", "-uno") else "")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
