"""Loads a Mixture from a file and the command line. A UserError has one line for each problem.

mixture.yaml ── yaml ──▶ data ── --set, --output ──▶ data ── ${…} replaced ──▶ data ── models ──▶ Mixture
                    └──▶ origins: the file and line, or the option, of every value ────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from datapipe.config.interpolation import interpolated, references
from datapipe.config.mixture import Mixture
from datapipe.config.origins import Origins
from datapipe.config.overrides import apply_override
from datapipe.config.problems import problems_error
from datapipe.config.yaml import read_yaml_mapping


def load_mixture(
    path: str | Path, overrides: Sequence[str] = (), output: str | None = None, *, keep_unset: bool = False
) -> Mixture:
    """The mixture in a file. Raises UserError.

    Args:
        overrides: the values of `--set`, each "key.path=value", applied in order.
        output: the value of `--output`; it replaces the mixture's own.
        keep_unset: leave references to environment variables that are not set, to look at a mixture that does not run.
    """
    text = read_yaml_mapping(path)
    data, origins = text.data, Origins.of(text, str(path))
    for override in overrides:
        data, origins = apply_override(data, origins, override)
    if output is not None:
        data, origins = data | {"output": output}, origins.replaced(("output",), output, "--output")
    origins = replace(origins, references=references(data))
    data = interpolated(data, origins, keep_unset=keep_unset)
    try:
        mixture = Mixture.model_validate(data)
    except ValidationError as error:
        raise problems_error(error, Mixture, data, origins.where) from error
    return mixture.with_origins(origins)
