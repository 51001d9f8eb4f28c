"""Lists the input files of a source: globs over local folders and object stores, with the facts that planning needs.

    patterns, lists ─▶ paths, sorted, each once ─▶ size, stamp, compression, pieces ─▶ InputFile

A file's path is relative to the fixed part of its pattern, so a corpus may move without its documents changing their keys. A
part with `[` that exists as it is written is no pattern. Hidden files and `__pycache__` match only by name. A pattern with an
ending such as `*.parquet` refuses broken links and folders with this ending; others pass over folders, and report broken links.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from datapipe.credentials import masked
from datapipe.dataclass import dataclass, replace
from datapipe.errors import DamagedInputError, UserError, suggest
from datapipe.inputs.entries import FOLDER, NO_FILE, Entry, Notes, entry_at
from datapipe.inputs.local_folders import LocalFolders
from datapipe.inputs.path_lists import SIGN, listed_files, listed_paths
from datapipe.quantities import counted
from datapipe.records.checksum import intact
from datapipe.stage.decoding import COMPRESSION_OF_ENDING
from datapipe.stage.reader import InputFile, Reader
from datapipe.storage.http import is_http, state_of
from datapipe.storage.hub import is_hub, pinned, without_revision
from datapipe.storage.outages import input_error, right_url
from datapipe.storage.root import is_remote, open_input, resolve, split_query
from datapipe.storage.written import chunks_checksum

_WILD = re.compile(r"[*?\[]")
_WILDCARDS = re.compile(r"(\*\*/|\*\*|\[([!^])?+(.[^]]*)\]|.)", re.DOTALL)  # a class has one character or more, also `]`
_THREADS = 16
_LITERAL_ENDING = re.compile(r"\.[^*?\[\]/.]+$")


def discover(
    patterns: Sequence[str],
    reader_for: Callable[[str], Reader],
    fingerprint: str,  # "stat" (size and time) or "content" (a digest, which reads every byte)
    where: str,  # file, line and key of the patterns, for errors
    exclude: Sequence[str] = (),
    prefix: str | None = None,  # that the lines of lists (`@files.txt`) are relative to; None for the folder of each list
    notes: Notes | None = None,
) -> list[tuple[InputFile, Reader]]:
    """The files of a source in path order, each with its reader. Raises UserError."""
    notes = notes or Notes()
    files: dict[str, tuple[InputFile, Reader]] = {}
    urls: set[str] = set()
    schemas: dict[pa.Schema, pa.Schema] = {}
    excluded = _left_out(exclude, where)

    def is_left_out(url: str) -> bool:
        return any(glob.fullmatch(without_revision(_bare(url))) for glob in excluded)

    for pattern in patterns:
        is_list = pattern.startswith(SIGN)
        listed = (
            _listed(pattern, prefix, is_left_out, where, notes) if is_list else _matches(pattern, where, is_left_out, notes)
        )
        matched = [file for file in listed if not is_left_out(file.url)]
        if not matched and not is_list:  # a list that is being written may name no file so far
            left_out = f" {counted(len(listed), 'file')}, and `exclude` leaves out all."
            reason = left_out if listed else f" no file.{_what_is_there(pattern)}"
            raise UserError(f"{where}: '{pattern}' matches{reason}")
        for file in matched:
            if file.url in urls:
                continue
            urls.add(file.url)
            if file.path in files:
                raise UserError(
                    f"{where}: {file.url} and {files[file.path][0].url} are both '{file.path}' below the fixed part of their "
                    f"patterns, so their documents would have the same keys. Make two sources of them, or one pattern."
                )
            if not is_list:
                notes.on_file()
            reader = reader_for(_bare(file.url))
            examined = _examined(file, reader, fingerprint, where)
            if examined.schema is not None:  # files of one schema share it: those of a corpus may be a hundred thousand
                examined = replace(examined, schema=schemas.setdefault(examined.schema, examined.schema))
            files[file.path] = (examined, reader)
    return [files[path] for path in sorted(files)]


def probe_large_files(
    files: Sequence[tuple[InputFile, Reader]], split_bytes: int, where: str, on_file: Callable[[int, int], None]
) -> list[tuple[InputFile, Reader]]:
    """The files, with what cutting those of more than `split_bytes` of text needs. `on_file`: number done, and of all."""

    def probe(each: tuple[InputFile, Reader]) -> InputFile:
        file, reader = each
        try:
            return reader.probe_large(file, open_input)
        except OSError as error:
            raise input_error(error, where, "cannot read", file.url) from error

    large = [(file, reader) for file, reader in files if not file.damage and file.text_bytes > split_bytes]
    known: dict[str, InputFile] = {}
    with ThreadPoolExecutor(_THREADS) as threads:
        for file in threads.map(probe, large):
            known[file.path] = file
            on_file(len(known), len(large))
    return [(known.get(file.path, file), reader) for file, reader in files]


def would_take(patterns: Sequence[str], exclude: Sequence[str], paths: Sequence[str]) -> str | None:
    """The first of some absolute paths or URLs that would be an input file, if it were there; None where none would."""
    named = [pattern for pattern in patterns if not pattern.startswith(SIGN)]
    globs = [_glob_of(_absolute(pattern), "").expression for pattern in named if _WILD.search(_bare(pattern))]
    left_out = _left_out(exclude, "")
    taken = (path for path in paths if any(glob.fullmatch(path) for glob in globs))
    return next((path for path in taken if not any(glob.fullmatch(path) for glob in left_out)), None)


def _left_out(exclude: Sequence[str], where: str) -> list[re.Pattern[str]]:
    patterns = (each if each.startswith("**") else without_revision(_absolute(each)) for each in exclude)
    return [_glob_of(pattern, where).expression for pattern in patterns]


def _examined(file: InputFile, reader: Reader, fingerprint: str, where: str) -> InputFile:
    try:
        file.url.encode()
        if not is_remote(file.url) and not os.access(file.url, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file.url)
        stamp = content_digest(file.url) if fingerprint == "content" else file.stamp
        try:
            return replace(intact(lambda: reader.probe(file, open_input)), stamp=stamp)
        except DamagedInputError as error:
            return replace(file, stamp=stamp, damage=str(error))
    except UnicodeEncodeError:
        raise _not_utf8(where, file.url) from None
    except OSError as error:
        raise input_error(error, where, "cannot read", file.url) from error


def _not_utf8(where: str, path: str) -> UserError:
    return UserError(f"{where}: the file name {path!a} is not UTF-8. Rename the file, or `exclude` it.")


def _bare(url: str) -> str:
    return split_query(url)[0]


def _absolute(pattern: str) -> str:
    base = _bare(pattern)
    return base if is_remote(base) else os.path.abspath(os.path.expanduser(base.removeprefix("file://")))


def _listed(pattern: str, prefix: str | None, is_left_out: Callable[[str], bool], where: str, notes: Notes) -> list[InputFile]:
    base, query = _absolute(pattern.removeprefix(SIGN)), split_query(pattern)[1]
    below = None if prefix is None else _absolute(prefix) + split_query(prefix)[1]
    compression = COMPRESSION_OF_ENDING.get(Path(base).suffix.lower())
    listed = listed_paths(base + query, compression, below, where, notes)
    return listed_files(pattern, listed, is_left_out, where, notes)


def _matches(pattern: str, where: str, is_left_out: Callable[[str], bool], notes: Notes) -> list[InputFile]:
    base, query = _absolute(pattern), split_query(pattern)[1]
    try:
        if is_http(base):
            return [_of_web(pattern, base, query, where)]
        if is_hub(base):
            base = pinned(base)
        entry = entry_at(base, query)
        if entry is not None and not entry.instead:  # also a file whose name holds a wildcard character
            return [entry.file(base[: base.rindex("/") + 1], query)]
        if entry is not None and entry.instead == FOLDER:
            inside = os.path.join(pattern, "**")
            raise UserError(f"{where}: '{pattern}' is a folder. Expected files: '{inside}' takes all below it")
        glob = _glob_of(base, where, lambda path: entry_at(path, query) is not None)
        if not glob.is_pattern:
            return []
        prefix = glob.prefix
        listed = list(_listed_remotely(glob, query) if is_remote(base) else glob.folders(notes).entries())
    except UnicodeEncodeError:
        raise _not_utf8(where, base) from None
    except OSError as error:
        raise input_error(error, where, "cannot list", error.filename or _fixed_prefix(base)) from error
    except UserError as error:
        if where in str(error) or is_hub(base) or not is_remote(base):
            raise
        raise UserError(f"{where}: {str(error).replace('://bucket/folder', '://bucket/folder/*.parquet')}") from None
    except (ValueError, NotImplementedError) as error:  # of the client of a store
        if not is_remote(base):
            raise
        raise UserError(
            f"{where}: cannot open {base}: {str(error).rstrip('.')}. Expected a URL such as {right_url(base)}"
        ) from None
    for entry in listed:
        if is_left_out(entry.path):
            continue
        if glob.expects_file(entry):
            inside = f": '{entry.path}/**' takes all files below it" if entry.instead == FOLDER else ""
            raise UserError(
                f"{where}: '{pattern}' takes files, and {entry.path} is {entry.instead}. Expected a file{inside}. `exclude` "
                f"leaves it out."
            )
        if entry.instead not in ("", FOLDER):
            notes.passed_over.append(entry.path)
    return [entry.file(prefix, query) for entry in listed if not entry.instead]


def _of_web(pattern: str, base: str, query: str, where: str) -> InputFile:
    """The file at a URL, whose name may hold brackets."""
    try:
        if "*" not in base:
            return Entry(base, state_of(base + query)).file(base[: base.rindex("/") + 1], query)
    except FileNotFoundError:
        if not _WILD.search(base):
            raise
    raise UserError(
        f"{where}: '{masked(pattern)}' is a pattern, and a web server does not list its files. Expected the URL of a file, or "
        f"a list of paths: '@files.txt' or '@https://host/files.txt', one path or URL a line"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Glob:
    """A pattern: the folders before its first wildcard, with a slash at the end, the rest, and an expression of the path."""

    prefix: str
    below: str
    is_pattern: bool
    expression: re.Pattern[str]

    @property
    def depth(self) -> int | None:
        """How many folders down from the prefix its files are; None for any number."""
        return None if "**" in self.below else self.below.count("/")

    @property
    def takes_hidden(self) -> bool:
        return _is_hidden(self.below)

    def expects_file(self, entry: Entry) -> bool:
        """Whether something else has a name that the pattern expects of files: with an ending. `**` enters such folders."""
        has_ending = _LITERAL_ENDING.search(self.below) is not None
        return bool(entry.instead) and has_ending and (entry.instead != FOLDER or self.depth is not None)

    def folders(self, notes: Notes) -> LocalFolders:
        return LocalFolders(
            prefix=self.prefix,
            depth=self.depth,
            enters=lambda name: self.takes_hidden or not _is_hidden(name),
            matches=self.matches,
            notes=notes,
        )

    def matches(self, path: str) -> bool:
        return self.expression.fullmatch(path) is not None and (self.takes_hidden or not _is_hidden(path[len(self.prefix) :]))


def _fixed_prefix(base: str) -> str:
    wild = _WILD.search(base)
    return base[: base.rindex("/", 0, wild.start() if wild else len(base)) + 1]


def _glob_of(base: str, where: str, exists: Callable[[str], bool] = os.path.lexists) -> _Glob:
    """The pattern of an absolute path or URL. A part with `[` and no other wildcard is none where it exists as written."""
    start = 0
    while (wild := _WILD.search(base, start)) is not None:
        part_start = base.rfind("/", 0, wild.start()) + 1
        part_stop = f"{base}/".find("/", part_start)
        part = base[part_start:part_stop]
        if "*" in part or "?" in part or not exists(base[:part_stop]):
            break
        start = part_stop
    prefix = base[: base.rfind("/", 0, wild.start() if wild else len(base)) + 1]
    expression = _expression(base, len(prefix) if wild else len(base), where)
    return _Glob(prefix=prefix, below=base[len(prefix) :], is_pattern=wild is not None, expression=expression)


def _listed_remotely(glob: _Glob, query: str) -> Iterator[Entry]:
    store, folder = resolve(glob.prefix + query)
    assert store is not None
    start = len(folder) + 1 if folder else 0
    for key, state in store.entries(folder, recursive=glob.depth != 0):
        below = key[start:]
        if glob.matches(glob.prefix + below):
            escaped = below if is_hub(glob.prefix) else below.replace("%", "%25").replace("?", "%3F")
            yield Entry(glob.prefix + escaped, state or NO_FILE, FOLDER if state is None else "")


def _expression(pattern: str, num_fixed: int, where: str) -> re.Pattern[str]:
    """A glob as a regular expression over the whole path. Its first `num_fixed` characters are taken as they are written."""
    wildcards = (_expression_of(*found.groups()) for found in _WILDCARDS.finditer(pattern, num_fixed))
    try:
        return re.compile(re.escape(pattern[:num_fixed]) + "".join(wildcards), re.DOTALL)
    except re.error as error:
        raise UserError(
            f"{where}: '{pattern}' is not a glob: {error.msg}. Expected [a-z], [abc] or [!abc] in brackets"
        ) from None


def _expression_of(wildcard: str, negation: str | None, inside: str | None) -> str:
    if inside is None:
        return {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(wildcard, re.escape(wildcard))
    characters = "".join(char if char == "-" else re.escape(char) for char in inside)
    return f"(?!/)[{'^' if negation else ''}{characters}]"


def _is_hidden(relative: str) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in relative.split("/"))


def content_digest(url: str) -> str:
    with open_input(url) as stream:
        return chunks_checksum(iter(lambda: stream.read(8 << 20), b""))[0]


def _what_is_there(pattern: str) -> str:
    """The part of a path that exists, and the nearest name to the part that does not."""
    base, _ = split_query(pattern)
    if "[" in base:
        return (
            " A `[` opens a character class, as in part-[0-9].txt, and nothing has this very name. In a name that has the sign "
            "itself, write `[[]` for it."
        )
    if is_remote(base):
        return " Check bucket, folder and credentials; a glob's * stays within a folder, ** crosses folders."
    path = Path(os.path.abspath(os.path.expanduser(base.removeprefix("file://"))))
    if "{" in pattern:
        return " Braces are not expanded; write a list of patterns."
    if os.path.lexists(path):
        return " The path exists, but it is a broken link, or neither file nor folder."
    existing = next(folder for folder in path.parents if folder.is_dir())
    missing = path.relative_to(existing).parts[0]
    near = suggest(missing, sorted(os.listdir(existing))) if not _WILD.search(missing) else ""
    return (
        f" {existing} exists, but no file in it matches '{path.relative_to(existing)}'.{near} ** crosses folders, * does not."
    )
