"""References `${…}` in the text values of a mixture, and the mixture as YAML that keeps them.

    ${CORPUS}                  the environment variable CORPUS; an error if it is not set
    ${python:stdlib}           the folder of this Python's standard library: a corpus that every machine has
    ${python:site-packages}    the folder of its installed packages
    $${CORPUS}                 the text ${CORPUS} itself

References in keys, and in the values of references, stay as they are. What is written of a mixture
keeps its references to environment variables, since their values may be secrets (`references`):

    path: s3://${KEY}:${SECRET}@bucket/*.jsonl       as it was written
    path: s3://***@bucket/*.jsonl                    of credentials that were written out
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Collection, Mapping
from typing import Any

from datapipe.config.yaml import KeyPath, dotted, dump_yaml, parse_yaml
from datapipe.credentials import masked_urls, remember
from datapipe.dataclass import dataclass, field, replace
from datapipe.errors import UserError, suggest


@dataclass(frozen=True, kw_only=True, slots=True)
class Origins:
    """The file and line, or the command-line option, of every key path of a mixture."""

    file: str = ""  # the mixture's file; empty for a mixture built in Python
    locations: Mapping[KeyPath, str] = field(default_factory=dict)  # "mixture.yaml:14" or "--set", by path
    # texts with environment variables as they were written, by path
    references: Mapping[KeyPath, str] = field(default_factory=dict)

    def where(self, path: KeyPath) -> str:
        """The location of a path, or of its nearest parent that was written down, and the path itself."""
        parents = (path[:end] for end in range(len(path), 0, -1))
        location = next((self.locations[parent] for parent in parents if parent in self.locations), self.file)
        return ": ".join(part for part in (location, dotted(path)) if part)

    def without_references(self, paths: Collection[KeyPath]) -> Origins:
        """These origins for other values at `paths`, which hold no reference."""
        return replace(self, references={path: text for path, text in self.references.items() if path not in paths})

    def replaced(self, path: KeyPath, data: Any, location: str) -> Origins:
        """These origins after the command-line option `location` has replaced the value at `path` by `data`."""
        kept = {known: origin for known, origin in self.locations.items() if known[: len(path)] != path}
        return Origins(file=self.file, locations=kept | dict.fromkeys(_paths(data, path), location))


def _paths(data: Any, path: KeyPath) -> list[KeyPath]:
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(below for part, child in children for below in _paths(child, (*path, part)))]


_PYTHON_FOLDERS = {"python:site-packages": "purelib", "python:stdlib": "stdlib"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"(?P<escaped>\$\$\{)|\$\{(?P<name>[^{}]*)\}|(?P<open>\$\{)")


def interpolated(data: Any, origins: Origins, path: KeyPath = (), *, keep_unset: bool = False) -> Any:
    """`data` with every reference in its text values replaced; those to variables that are not set
    are left with `keep_unset`, else a UserError names the reference and its line."""
    if isinstance(data, dict):
        return {key: interpolated(value, origins, (*path, key), keep_unset=keep_unset) for key, value in data.items()}
    if isinstance(data, list):
        return [interpolated(value, origins, (*path, index), keep_unset=keep_unset) for index, value in enumerate(data)]
    if isinstance(data, str) and "${" in data:
        return _REFERENCE.sub(lambda match: _replacement(match, origins.where(path), keep_unset), data)
    return data


def references(data: Any, path: KeyPath = ()) -> dict[KeyPath, str]:
    """The text values of `data` that refer to environment variables, by path."""
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    deeper_references = {deeper: text for key, value in children for deeper, text in references(value, (*path, key)).items()}
    if isinstance(data, str) and any(_NAME.fullmatch(match["name"] or "") for match in _REFERENCE.finditer(data)):
        deeper_references[path] = data
    return deeper_references


def _replacement(match: re.Match[str], where: str, keep_unset: bool) -> str:
    if match["escaped"]:
        return "${"
    name = match["name"]
    if name is None:
        raise UserError(f"{where}: found '${{' without '}}'. Expected ${{NAME}}. Write $${{ for the text itself.")
    if name in _PYTHON_FOLDERS:
        return sysconfig.get_path(_PYTHON_FOLDERS[name])
    if not _NAME.fullmatch(name):
        known = ", ".join(f"${{{folder}}}" for folder in _PYTHON_FOLDERS)
        raise UserError(
            f"{where}: found ${{{name}}}.{suggest(name, _PYTHON_FOLDERS)} Expected the name of an environment variable, "
            f"or one of: {known}. Write $${{ for the text itself."
        )
    if name not in os.environ and keep_unset:
        return match[0]
    if name not in os.environ:
        raise UserError(
            f"{where}: the environment variable {name} is not set. Set it, or write $${{{name}}} for the text itself."
        )
    remember(os.environ[name], match[0], match.string)
    return os.environ[name]


def written_yaml(data: Mapping[str, Any], references: Mapping[KeyPath, str]) -> str:
    """Dumped data as YAML, with the texts `references` in place of their values, by path."""
    return dump_yaml(_plain(data, references))


def parsed_yaml(text: str) -> Mapping[str, Any]:
    """The data of `written_yaml`, with references as they are written. Raises ValueError for other text."""
    try:
        return dict(parse_yaml(text, "mixture.yaml").data or {})
    except (UserError, TypeError) as error:
        raise ValueError(str(error)) from error


def _plain(data: Any, references: Mapping[KeyPath, str], path: KeyPath = ()) -> Any:
    """Data for YAML: tuples become lists, text that looks like a reference is escaped, and references come back."""
    if path in references:
        return masked_urls(references[path])
    if isinstance(data, Mapping):
        return {key: _plain(value, references, (*path, key)) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value, references, (*path, index)) for index, value in enumerate(data)]
    return masked_urls(data).replace("${", "$${") if isinstance(data, str) else data
