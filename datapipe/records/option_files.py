"""Files that options of stages name, such as models and lists: as they were planned, and where each machine has them.

    plan: path, size, times, SHA-256 ─▶ OptionFile ─▶ with the tasks ─▶ path_here
                                            └─ to a Ray cluster: OUTPUT/work/files/DIGEST/NAME ──▲

A process uses the file at the planned path if it is the planned one, else the copy in the cache of
its machine, which it makes from OUTPUT where it is missing. No process reads another content.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from datapipe.credentials import masked, masked_urls
from datapipe.dataclass import dataclass
from datapipe.errors import CorruptionError, UserError
from datapipe.machine.files import replacing
from datapipe.quantities import size
from datapipe.records.names import OPTION_FILES
from datapipe.storage.file_cache import cache, cached_file, copied, digest_of, folder
from datapipe.storage.local import FileState
from datapipe.storage.outages import error_line
from datapipe.storage.root import Root, current_state


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionFile:
    path: Path  # on the machine that planned, as the stage holds it
    location: Path  # the same, absolute: workers may have another working directory
    digest: str  # SHA-256 of the content, in 64 hex digits
    state: FileState  # when it was planned
    origin: str  # the path or URL that the mixture names, without credentials
    stage: str  # the name of the stage in the run

    @property
    def path_in_output(self) -> str:
        return f"{OPTION_FILES}/{self.digest}/{self.path.name}"

    @property
    def num_bytes(self) -> int:
        return self.state.num_bytes


def planned_file(path: Path, origin: str, stage: str) -> OptionFile:
    """A local file as it is now. Raises OSError, and UserError where it changes meanwhile."""
    state = current_state(str(path))
    digest = digest_of(path)
    if current_state(str(path)) != state:
        raise UserError(f"{stage}: {origin} changes while it is read. Run the same command again when it is complete.")
    return OptionFile(path=path, location=path.absolute(), digest=digest, state=state, origin=masked_urls(origin), stage=stage)


def path_here(file: OptionFile, root: Root) -> Path:
    """The path of the planned content on this machine. Raises OSError, and UserError where it is neither here nor in OUTPUT."""
    state = _state_of(file.location)
    if state is not None and _is_same(state, file.state):
        return file.location
    cached = cached_file(file.digest, file.path.name, file.num_bytes)
    if cached is not None:
        return cached
    if state is not None and state.num_bytes == file.num_bytes and digest_of(file.location) == file.digest:
        return file.location
    try:
        return cache(file.digest, file.path.name, file.num_bytes, lambda: root.open_unmapped(file.path_in_output))
    except FileNotFoundError:
        found = "is not on this machine" if state is None else "has changed since the run was planned"
        raise UserError(
            f"{file.stage}: {file.origin} {found}. Expected the file of the plan, with the SHA-256 {file.digest[:12]}…, until "
            f"the run ends. Run the same command again: it reads the file as it is then."
        ) from None
    except CorruptionError as error:
        damaged = root.child_url(file.path_in_output)
        raise CorruptionError(f"{damaged} is damaged: {error}. Delete it, and run the same command again.") from error


def _state_of(path: Path) -> FileState | None:
    try:
        return current_state(str(path))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):  # a disk without an answer is an outage
        return None


def _is_same(here: FileState, planned: FileState) -> bool:
    """Whether two files are one by size and times. A shared disk has other device numbers on each machine."""
    facts = [(state.num_bytes, state.mtime_ns, state.ctime_ns) for state in (here, planned)]
    return facts[0] == facts[1]


def put_into_output(files: Iterable[OptionFile], root: Root) -> None:
    """Copies files to OUTPUT for machines that lack them, and deletes those of earlier runs there.

    Raises OSError, and UserError for a file that has changed since the run was planned."""
    wanted = {file.path_in_output: file for file in files}
    stored = dict(root.list_files(OPTION_FILES))
    for path in stored.keys() - wanted.keys():
        root.delete(path)
    root.delete_empty_folders(OPTION_FILES)
    for path, file in wanted.items():
        if stored.get(path) != file.num_bytes:
            _put(file, root, path)


def _put(file: OptionFile, root: Root, target: str) -> None:
    with path_here(file, root).open("rb") as source:
        if root.local is None:
            with root.open_output(target) as sink:
                _check(file, copied(source, sink.write))
        else:
            with replacing(root.local / target) as temporary, temporary.open("wb") as sink:
                _check(file, copied(source, sink.write))


def _check(file: OptionFile, digest: str) -> None:
    if digest != file.digest:
        raise UserError(
            f"{file.stage}: {file.origin} has changed since the run was planned. Run the same command again, and change the "
            f"file after the run."
        )


def paths_in(value: Any) -> Iterator[Path]:
    """The paths in the options of a stage, or in any value of them."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, BaseModel):
        yield from paths_in([getattr(value, name) for name in type(value).model_fields])
    elif isinstance(value, Mapping):
        yield from paths_in(list(value.values()))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from paths_in(item)


def with_paths(value: Any, paths: Mapping[Path, Path]) -> Any:
    """A value of the options of a stage, or a stage, with other paths in the place of those in `paths`."""
    if isinstance(value, Path):
        return paths.get(value, value)
    if isinstance(value, BaseModel):
        options = {name: getattr(value, name) for name in type(value).model_fields}
        moved = {name: with_paths(option, paths) for name, option in options.items()}
        return value.model_copy(update={name: option for name, option in moved.items() if option != options[name]})
    if isinstance(value, Mapping):
        return {name: with_paths(each, paths) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(with_paths(item, paths) for item in value)
    return value


def unavailable(file: OptionFile, root: Root) -> str:
    """Why this machine cannot have a file, in words; empty if it has. Never raises an exception."""
    lack = f"it cannot get {file.origin} ({size(file.num_bytes)}), which {file.stage} reads"
    try:
        path_here(file, root)
    except OSError as error:
        where = f"from {root.child_url(file.path_in_output)} to {folder()}"
        advice = "Give it access and room there, or set XDG_CACHE_HOME to a folder with room"
        return masked(f"{lack}, {where}: {error_line(error)}. {advice}")
    except Exception as error:
        return masked(f"{lack}: {error_line(error)}")
    return ""
