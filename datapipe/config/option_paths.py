"""Options of type `Path`: a URL becomes the path of a local copy before a stage is built, and a pattern the files that match.

    model: s3://bucket/model.bin ─▶ ~/.cache/datapipe/files/DIGEST/model.bin        and where it comes from
    against: [evals/*.jsonl]     ─▶ [evals/a.jsonl, evals/b.jsonl]                  where the option takes several paths

An option is of this type if its annotation names `Path`: by itself, in unions, lists and mappings,
and in models below it. A URL is asked once a plan (`forget_urls`).
"""

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel

from datapipe.config.yaml import KeyPath
from datapipe.credentials import masked
from datapipe.dataclass import dataclass, field, replace
from datapipe.errors import UserError
from datapipe.quantities import size
from datapipe.storage.file_cache import CachedFile, fetched
from datapipe.storage.http import is_http
from datapipe.storage.hub import is_hub, pinned
from datapipe.storage.outages import OutageError, outage_of
from datapipe.storage.root import Root, is_remote, split_query

_LISTS = (list, tuple, set, frozenset)
T = TypeVar("T")

_fetched: dict[str, CachedFile] = {}  # by URL, since the last plan began
_shown_by: list[Callable[[str], None]] = []  # what gets the lines of that plan


def forget_urls(show: Callable[[str], None] | None = None) -> None:
    """Files at URLs may have changed: each is asked again when it is needed next. `show` gets a line for each download."""
    _fetched.clear()
    _shown_by[:] = [show] if show is not None else []


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Options with local paths in the place of URLs. `origins`: the URL of each path that is a copy."""

    options: Mapping[str, Any]
    origins: Mapping[Path, str]

    def named(self, text: str) -> str:
        """A text with the URLs of copies in the place of their paths."""
        for path, url in self.origins.items():
            text = text.replace(str(path), url)
        return text


def local_options(kind: type[BaseModel], options: Mapping[str, Any], where: Callable[[KeyPath], str]) -> LocalOptions:
    """The options of a stage without URLs. `where`: the location and name of an option. Raises UserError or OutageError for a
    file that cannot be read, and UserError for a pattern without files."""
    localizer = _Localizer(where=where)
    return LocalOptions(options=localizer.localized(kind, options, ()), origins=localizer.origins)


@dataclass(frozen=True, kw_only=True)
class _Localizer:
    where: Callable[[KeyPath], str]
    origins: dict[Path, str] = field(default_factory=dict)

    def localized(self, annotation: Any, value: Any, key: KeyPath) -> Any:
        kinds = list(_kinds(annotation))
        if isinstance(value, str) and Path in kinds:
            takes_several = any(Path in _kinds(item) for item in _items(kinds))
            return self._expanded(value, key) if takes_several and _is_pattern(value) else self._path(value, key)
        if isinstance(value, list):
            return self._list(next(iter(_items(kinds)), Any), value, key)
        if isinstance(value, Mapping):
            return self._mapping(kinds, value, key)
        return value

    def _list(self, item: Any, values: list[Any], key: KeyPath) -> list[Any]:
        listed: list[Any] = []
        takes_paths = Path in _kinds(item)
        for number, value in enumerate(values):
            if isinstance(value, str) and takes_paths and _is_pattern(value):
                listed += self._expanded(value, (*key, number))
            else:
                listed.append(self.localized(item, value, (*key, number)))
        return listed

    def _mapping(self, kinds: Iterable[Any], values: Mapping[str, Any], key: KeyPath) -> dict[str, Any]:
        types: dict[str, Any] = {}
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                types |= {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
            elif get_origin(kind) is dict:
                types |= dict.fromkeys(values, get_args(kind)[1])
        return {name: self.localized(types.get(name), value, (*key, name)) for name, value in values.items()}

    def _expanded(self, pattern: str, key: KeyPath) -> list[str]:
        paths = _attempt(lambda: _matching(pattern), pattern, self.where(key))
        if not paths:
            raise UserError(f"{self.where(key)}: no file matches {pattern}. Expected at least one; * stays within a folder.")
        return [self._path(path, key) for path in paths]

    def _path(self, text: str, key: KeyPath) -> str:
        if not is_remote(text):
            return text.removeprefix("file://")
        if text not in _fetched:
            _fetched[text] = _attempt(lambda: fetched(text, partial(_show_download, text)), text, self.where(key))
        path = _fetched[text].path
        self.origins.setdefault(path, text)
        return str(path)


def _show_download(url: str, num_bytes: int) -> None:
    for show in _shown_by:
        show(f"  fetching {masked(url)}, {size(num_bytes)} …")


def _attempt(read: Callable[[], T], url: str, where: str) -> T:
    """What `read` returns. Its errors name the option and the URL."""
    try:
        return read()
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    except (OSError, ValueError, NotImplementedError) as error:
        outage = outage_of(error, url)
        if outage is not None:
            raise OutageError(replace(outage, where=f"{where}: {outage.where}")) from error
        found = (error.strerror if isinstance(error, OSError) else None) or str(error).rstrip(".")
        raise UserError(
            f"{where}: cannot read {url}: {found}. Expected a file that this user may read: check the URL and the credentials"
        ) from error


def _kinds(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _kinds(arguments[0])
    elif origin in (Union, UnionType):
        for member in arguments:
            yield from _kinds(member)
    else:
        yield annotation


def _items(kinds: Iterable[Any]) -> Iterator[Any]:
    """The annotations of the items of lists among some types."""
    for kind in kinds:
        if get_origin(kind) in _LISTS and get_args(kind):
            yield get_args(kind)[0]


def _is_pattern(text: str) -> bool:
    """Whether a text names files by wildcards. Web servers list no files, and a file may have such a name."""
    return glob.has_magic(split_query(text)[0]) and not is_http(text) and (is_remote(text) or not os.path.lexists(text))


def _matching(pattern: str) -> list[str]:
    """The files that match, sorted."""
    if not is_remote(pattern):
        return sorted(glob.glob(pattern.removeprefix("file://"), recursive=True))
    base, query = split_query(pattern)
    parts = base.split("/")
    num_fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    folder, below = "/".join(parts[:num_fixed]), parts[num_fixed:]
    listed = Root((pinned(folder) if is_hub(folder) else folder) + query).list_files("", recursive=len(below) > 1)
    return [f"{folder}/{path}{query}" for path, _ in listed if _matches(path.split("/"), below)]


def _matches(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
