"""Loads a Mixture from a file and the command line, or from Python. A UserError has one line for each problem.

mixture.yaml ── yaml ──▶ data ── --set, --output ──▶ data ── ${…} replaced ──▶ data ── models ──▶ Mixture
                    └──▶ origins: the file and line, or the option, of every value ────────────────┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from datapipe.config.interpolation import interpolated, references
from datapipe.config.mixture import Mixture
from datapipe.config.origins import Origins
from datapipe.config.overrides import apply_override, apply_values
from datapipe.config.problems import problems_error
from datapipe.config.yaml import plain_data, read_yaml_mapping


def load_mixture(
    mixture: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    output: str | Path | None = None,
    *,
    keep_unset: bool = False,
) -> Mixture:
    """The mixture in a file, or one that a program has built. Raises UserError.

    Args:
        mixture: the file, or the mixture as nested dicts and lists, whose errors name keys and no lines.
        overrides: the values of `--set`, each "key.path=value", or values of Python by key path; applied in order.
        output: the value of `--output`, or the argument of a program; it replaces the mixture's own.
        keep_unset: leave references to environment variables that are not set, to look at a mixture that does not run.
    """
    data, origins = _data_of(mixture)
    if isinstance(overrides, Mapping):
        data, origins = apply_values(data, origins, overrides)
    else:
        for override in overrides:
            data, origins = apply_override(data, origins, override)
    if output is not None:
        option = "" if isinstance(overrides, Mapping) else "--output"
        data, origins = data | {"output": str(output)}, origins.replaced(("output",), str(output), option)
    origins = replace(origins, references=references(data))
    data = interpolated(data, origins, keep_unset=keep_unset)
    try:
        loaded = Mixture.model_validate(data)
    except ValidationError as error:
        raise problems_error(error, Mixture, data, origins.where) from error
    return loaded.with_origins(origins)


def _data_of(mixture: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Origins]:
    if isinstance(mixture, Mapping):
        return plain_data(mixture, "mixture"), Origins()
    text = read_yaml_mapping(mixture)
    return text.data, Origins.of(text, str(mixture))
