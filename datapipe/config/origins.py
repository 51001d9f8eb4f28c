"""The origin of every value of a mixture, so that later errors can name the line and written copies keep its references.

where(("sources", "web", "weight"))   ->   "mixture.yaml:14: sources.web.weight"
where(("stages", 2))                  ->   "mixture.yaml:23: stages[2]"
where(("pack", "method"))             ->   "--set: pack.method"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from datapipe.config.yaml import KeyPath, YamlText, dotted


@dataclass(frozen=True, kw_only=True, slots=True)
class Origins:
    """The file and line, or the command-line option, of every key path of a mixture.

    Attributes:
        file: the mixture's file; empty for a mixture built in Python.
        locations: "mixture.yaml:14" or "--set", by path.
        references: texts with environment variables as they were written, "s3://${KEY}:${SECRET}@bucket", by path.
    """

    file: str = ""
    locations: Mapping[KeyPath, str] = field(default_factory=dict)
    references: Mapping[KeyPath, str] = field(default_factory=dict)

    @staticmethod
    def of(text: YamlText, file: str) -> Origins:
        return Origins(file=file, locations={path: f"{file}:{line}" for path, line in text.lines.items()})

    def where(self, path: KeyPath) -> str:
        """The location of a path, or of its nearest parent that was written down, and the path itself."""
        parents = (path[:end] for end in range(len(path), 0, -1))
        location = next((self.locations[parent] for parent in parents if parent in self.locations), self.file)
        return ": ".join(part for part in (location, dotted(path)) if part)

    def replaced(self, path: KeyPath, data: Any, location: str) -> Origins:
        """These origins after the command-line option `location` has replaced the value at `path` by `data`."""
        kept = {known: origin for known, origin in self.locations.items() if known[: len(path)] != path}
        return Origins(file=self.file, locations=kept | dict.fromkeys(_paths(data, path), location))


def _paths(data: Any, path: KeyPath) -> list[KeyPath]:
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(below for part, child in children for below in _paths(child, (*path, part)))]
