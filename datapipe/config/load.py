"""Loads a Mixture from a file and the command line, or from Python. A UserError has one line for each problem.

mixture.yaml ── yaml ──▶ data ── --set, --output ──▶ data ── ${…} replaced ──▶ data ── models ──▶ Mixture
                    └──▶ origins: the file and line, or the option, of every value ────────────────┘
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from datapipe.config.interpolation import Origins, interpolated, references
from datapipe.config.mixture import Mixture
from datapipe.config.problems import described, problems_error
from datapipe.config.stage_use import parse_stage
from datapipe.config.yaml import KeyPath, dotted, parse_yaml, plain_data, read_yaml_mapping
from datapipe.dataclass import replace
from datapipe.errors import UserError, suggest


def load_mixture(
    # the file, or the mixture as nested dicts and lists, whose errors name keys and no lines
    mixture: str | Path | Mapping[str, Any],
    # the values of `--set`, each "key.path=value", or values of Python by key path; applied in order
    overrides: Sequence[str] | Mapping[str, Any] = (),
    output: str | Path | None = None,  # replaces the mixture's own
    *,
    # leave references to environment variables that are not set, to show mixtures that do not run
    keep_unset: bool = False,
) -> Mixture:
    """The mixture in a file, or one that a program has built. Raises UserError."""
    if isinstance(mixture, Mapping):
        data, origins = plain_data(mixture, "mixture"), Origins()
    else:
        text = read_yaml_mapping(mixture)
        lines = {path: f"{mixture}:{line}" for path, line in text.lines.items()}
        data, origins = text.data, Origins(file=str(mixture), locations=lines)
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            parts, plain = _parts(str(key), ARGUMENT), plain_data(value, f"{ARGUMENT}: {key}")
            data, origins = _with_value(data, origins, parts, plain, ARGUMENT)
    else:
        for override in overrides:
            data, origins = apply_override(data, origins, override)
    if output is not None:
        option = "" if isinstance(overrides, Mapping) else "--output"
        folder = plain_data(str(output), option, ("output",))
        data, origins = data | {"output": folder}, origins.replaced(("output",), folder, option)
    origins = replace(origins, references=references(data))
    data = interpolated(data, origins, keep_unset=keep_unset)
    try:
        loaded = Mixture.model_validate(data)
    except ValidationError as error:
        raise problems_error(error, Mixture, data, origins.where) from error
    return loaded.with_origins(origins)


def starter_mixture() -> str:
    """The commented mixture that `datapipe init` writes. It explains every option, and runs unchanged."""
    return Path(__file__).with_name("starter.yaml").read_text(encoding="utf-8")


OPTION, ARGUMENT = "--set", "set"
"""Where a value comes from: the option of the command line, the argument of `datapipe.run`."""


def apply_override(data: dict[str, Any], origins: Origins, override: str) -> tuple[dict[str, Any], Origins]:
    """A copy of `data` with one value replaced, as `--set` names it, and the origins of its values. Raises UserError."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"{OPTION}: found '{override}', expected KEY=VALUE such as pack.sequence_length=1024.")
    parts = _parts(key, OPTION)
    return _with_value(data, origins, parts, parse_yaml(text, f"{OPTION} {key}").data, OPTION)


def _parts(key: str, option: str) -> list[str]:
    """The path of an override, split at its dots. Names that contain dots are joined later."""
    parts = re.sub(r"\[([^\]]*)\]", r".\1", key.strip()).split(".")
    if not all(parts):
        raise UserError(f"{option}: found '{key}', expected a path of keys such as sources.web.weight.")
    return parts


def _with_value(
    data: dict[str, Any], origins: Origins, parts: list[str], value: Any, option: str
) -> tuple[dict[str, Any], Origins]:
    changed = deepcopy(data)
    node: Any = changed
    path: KeyPath = ()
    replaced: KeyPath | None = None
    while True:
        part, parts = _next_part(node, path, parts, option)
        is_new = isinstance(node, dict) and node.get(part) is None
        replaced = (*path, part) if is_new and replaced is None else replaced
        if not parts:
            break
        if is_new and path == ("sources",):
            near, names = suggest(str(part), node), ", ".join(node)
            raise UserError(f"{option}: {dotted((*path, part))}: unknown source.{near} Expected one of: {names}.")
        if is_new:
            node[part] = {}
        node, path = node[part], (*path, part)
        if path[-2:-1] == ("stages",) and isinstance(part, int):
            node, path = _options_of(changed, path)
    node[part] = value
    replaced = replaced or (*path, part)
    return changed, origins.replaced(replaced, _value_at(changed, replaced), option)


def _next_part(node: Any, path: KeyPath, parts: list[str], option: str) -> tuple[str | int, list[str]]:
    """The key or index below `node` that `parts` begins with, and the remaining parts."""
    if isinstance(node, dict):
        ends = (end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in node)
        end = next(ends, 1)
        return ".".join(parts[:end]), parts[end:]
    if not isinstance(node, list):
        raise UserError(
            f"{option}: {dotted((*path, *parts))}: {dotted(path)} is {described(node)}, which has no keys. "
            f"Expected a path such as sources.web.weight."
        )
    if parts[0].isdigit() and int(parts[0]) < len(node):
        return int(parts[0]), parts[1:]
    names = _stage_names(node) if path[-1:] == ("stages",) else {}
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in names:
            return names[".".join(parts[:end])], parts[end:]
    near = suggest(".".join(parts), names)
    indexes = f"an index from 0 to {len(node) - 1}" if node else "nothing: the list is empty"
    listed = f", or one of: {', '.join(names)}" if names else ""
    raise UserError(f"{option}: {dotted((*path, *parts))}: no such item.{near} Expected {indexes}{listed}.")


def _stage_names(entries: list[Any]) -> dict[str, int]:
    names = {}
    for index, entry in enumerate(entries):
        try:
            names[parse_stage(entry).alias] = index
        except ValueError:  # the validation after all replacements reports this entry
            continue
    return names


def _options_of(data: Any, path: KeyPath) -> tuple[Any, KeyPath]:
    """The options of the stage at `path`; for one without options an empty mapping."""
    entries, index = _value_at(data, path[:-1]), path[-1]
    entry = entries[index]
    name = entry if isinstance(entry, str) else next(iter(entry)) if isinstance(entry, dict) and entry else None
    if name is None:
        return entry, path
    options = {} if isinstance(entry, str) else entry[name]
    entries[index] = {name: {} if options is None else options}
    return entries[index][name], (*path, name)


def _value_at(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data[part]
    return data
