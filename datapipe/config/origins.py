"""Where every value of a mixture comes from, so that any later error can name the line.

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
        file: the mixture's file; empty where the mixture was built in Python.
        places: "mixture.yaml:14" or "--set" by path.
    """

    file: str = ""
    places: Mapping[KeyPath, str] = field(default_factory=dict)

    @staticmethod
    def of(text: YamlText, file: str) -> Origins:
        return Origins(file=file, places={path: f"{file}:{line}" for path, line in text.lines.items()})

    def where(self, path: KeyPath) -> str:
        """The place of a path, or of the nearest key above it that was written down, and the path itself."""
        place = next((self.places[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.places), self.file)
        return ": ".join(part for part in (place, dotted(path)) if part)

    def replaced(self, path: KeyPath, data: Any, place: str) -> Origins:
        """These origins after `data` was put at `path` by the command-line option `place`."""
        kept = {at: known for at, known in self.places.items() if at[: len(path)] != path}
        return Origins(file=self.file, places=kept | dict.fromkeys(_paths(data, path), place))


def _paths(data: Any, path: KeyPath) -> list[KeyPath]:
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(at for part, child in children for at in _paths(child, (*path, part)))]
