"""Every stage names the libraries whose versions may change what it does: fingerprints have no other versions."""

import re
from pathlib import Path

import pytest

from datapipe.config import catalogue
from datapipe.records.source_code import code_of_class
from datapipe.stage.base import Stage

ROOT = Path(__file__).resolve().parents[2]

CALLS = {
    "pyarrow": re.compile(
        r"\b(utf8_normalize|utf8_(?:lower|upper|trim\w*|is_\w+)|\w+_substring_regex|extract_regex|strptime|floor_temporal)\b"
        r"|\bpyarrow\.(?:csv|json|orc|parquet)\b"
    ),
    "numpy": re.compile(r"\bnp\.(exp|log\w*|power|mean|std|var|dot|median|quantile|percentile|tanh)\("),
}
"""By library, calls whose results depend on its tables, its parsers, or how it rounds. Casts of numbers do not."""

KERNEL_CALLS = re.compile(r"\b(?:np|math)\.(exp|log|log1p|sin|cos|tanh|power)\(")
"""What numba compiles to a function of a library, and not to instructions. `log2` only fills tables, in Python."""

ALL = {name: catalogue.stage_class(name) for name in catalogue.stage_names()}
ALL |= {f"read.{name}": kind for name, kind in catalogue.readers().items()}


def _source(module: str) -> str:
    path = ROOT.joinpath(*module.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [pytest.param(kind, id=name) for name, kind in ALL.items()])
def test_stage_names_the_libraries_whose_versions_decide(kind: type[Stage]) -> None:
    sources = {module: _source(module) for module in code_of_class(kind).modules}
    # every stage imports datapipe.columns, where only `numbers_in` reads text with functions of Arrow
    sources.pop("datapipe.columns", None)
    used = {name for name, calls in CALLS.items() for text in sources.values() if calls.search(text)}
    used |= {"pyarrow" for text in sources.values() if "numbers_in(" in text}
    of_kernels = (text for module, text in sources.items() if module.startswith("datapipe.kernels."))
    used |= {"numba" for text in of_kernels if re.search(r"@kernel|@inline", text) and KERNEL_CALLS.search(text)}
    assert used <= {*kind.libraries}
