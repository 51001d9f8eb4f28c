"""Runs every benchmark and writes their tables to `tests/benchmarks/README.md`.

    python -m tests.benchmarks.write_readme [--quick] [--data FOLDER] [--only NAME …]
        [--streaming PYTHON] [--datatrove PYTHON --datatrove-script SCRIPT]

About seven minutes on one idle core. Everything above the heading "Earlier measurements" is written anew; the rest stays.
With `--quick` or `--only` the file is left alone and the tables are printed. Peers run in environments of their own, named by
their Python; the rows of a peer that is not given say so.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import zstandard

from datapipe.bench.one_core import one_core
from tests.benchmarks.tables import Settings, Table

README = Path(__file__).parent / "README.md"
ROOT = README.parents[2]
EARLIER = "## Earlier measurements\n"
BENCHMARKS = (
    *("recipes", "datatrove", "minhash", "near_copies", "dedup_scale", "encoders", "web_archives"),
    *("loader", "loader_fields", "loader_start", "fasttext_scoring", "classifiers", "browse", "kernels"),
)
"""Modules beside this one, imported when they run: each has `table(settings)`."""

_PACKAGES = ("numpy", "numba", "llvmlite", "pyarrow", "tokenizers", "fasttext-predict")
_WEB = ("prose/cleaneval_web.jsonl.zst", "prose/govuk_news.jsonl.zst", "prose/govuk_commoncrawl_wet.jsonl.zst")


def main() -> None:
    given = _arguments()
    with tempfile.TemporaryDirectory(prefix="datapipe-benchmarks-") as scratch, one_core():
        settings = Settings(
            quick=given.quick,
            data=given.data,
            folder=Path(scratch),
            web=write_web(given.data, Path(scratch), 40 if given.quick else None),
            streaming=given.streaming,
            datatrove=given.datatrove,
            datatrove_script=given.datatrove_script,
        )
        tables = [measured(name, settings) for name in given.only or BENCHMARKS]
    if given.quick or given.only:
        print("\n".join(table.to_markdown() for table in tables))
    else:
        README.write_text(rewritten(README.read_text(encoding="utf-8"), introduction(), tables), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smallest sizes; prints, writes nothing")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, help="some benchmarks; prints, writes nothing")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data", help="the folder of real corpora")
    parser.add_argument("--streaming", default="", help="a Python with mosaicml-streaming and torch")
    parser.add_argument("--datatrove", default="", help="a Python with datatrove and spaCy")
    parser.add_argument("--datatrove-script", default="", help="the script that it runs, see tests/benchmarks/datatrove.py")
    return parser.parse_args()


def write_web(data: Path, folder: Path, limit: int | None) -> Path:
    """English web text in one file: the first `limit` documents of each corpus, all of them by default, with made-up URLs."""
    web = folder / "web/web.jsonl.zst"
    web.parent.mkdir()
    with zstandard.open(web, "wt", encoding="utf-8") as file:
        for name in _WEB:
            with zstandard.open(data / name, "rt", encoding="utf-8") as corpus:
                for number, line in enumerate(corpus):
                    if limit is None or number < limit:
                        url = f"https://{Path(name).parent}.example/{number}"
                        file.write(json.dumps({"text": json.loads(line)["text"], "url": url}) + "\n")
    return web


def measured(name: str, settings: Settings) -> Table:
    """The table of one benchmark."""
    started = time.perf_counter()
    table = importlib.import_module(f"tests.benchmarks.{name}").table(settings)
    print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return table


def rewritten(readme: str, opening: str, tables: Sequence[Table]) -> str:
    """The README with everything above the earlier measurements replaced."""
    _, heading, earlier = readme.partition(EARLIER)
    return opening + "\n".join(table.to_markdown() for table in tables) + "\n" + heading + earlier


def introduction() -> str:
    """What was measured, on what, and when."""
    versions = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    return f"""# Benchmarks

Written by `python -m tests.benchmarks.write_readme`. Do not edit above "Earlier measurements".

| | |
|---|---|
| date | {time.strftime("%Y-%m-%d", time.gmtime())} |
| commit | {_commit()} |
| processor | {_processor()}, {os.cpu_count()} cores; one is used |
| Python | {platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()} |
| packages | {versions} |

MB are 10^6 bytes. Rates are the best or the median of several runs, as each paragraph says. Compare figures of one run only.

"""


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + (", with changes" if git("status", "--porcelain") else "")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
