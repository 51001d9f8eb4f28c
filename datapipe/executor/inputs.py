"""Finding the input files of a source: globs over local folders and object stores, with what planning must know of each.

    patterns ─▶ paths, sorted, each once ─▶ size, stamp, compression, pieces ─▶ InputFile

A file's path is relative to the fixed part of its pattern, so a corpus may move without its documents changing their keys.
`*` and `?` stay within a folder, `**` crosses folders. Hidden files and `__pycache__` are found only by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.fs as pafs
import xxhash

from datapipe.errors import UserError, suggest
from datapipe.stage import InputFile, Reader
from datapipe.storage import is_remote, open_input, resolve, split_query

_WILD = re.compile(r"[*?\[]")
_COMPRESSION = {".gz": "gzip", ".zst": "zstd"}


def discover(
    name: str,
    patterns: Sequence[str],
    reader_for: Callable[[str], Reader],
    fingerprint: str,
    where: str,
    exclude: Sequence[str] = (),
) -> list[tuple[InputFile, Reader]]:
    """The files of a source in path order, each with its reader.

    Args:
        name: of the source.
        fingerprint: "stat" (size and time) or "content" (a digest, which reads every byte).
        where: file, line and key of the patterns, for errors.
        exclude: patterns of files to leave out.

    Raises:
        UserError: a pattern that matches nothing, two files of one relative path, or a file no reader takes.
    """
    found: dict[str, tuple[InputFile, Reader]] = {}
    urls: set[str] = set()
    left_out = [_expression(pattern if pattern.startswith("**") else os.path.abspath(pattern)) for pattern in exclude]
    for pattern in patterns:
        matched = [file for file in _matches(pattern, where) if not any(one.fullmatch(_bare(file.url)) for one in left_out)]
        if not matched:
            raise UserError(f"{where}: '{pattern}' matches no file.{_what_is_there(pattern)}")
        for file in matched:
            if file.url in urls:
                continue
            urls.add(file.url)
            if file.path in found:
                raise UserError(
                    f"{where}: {file.url} and {found[file.path][0].url} are both '{file.path}' below the fixed part of their "
                    f"patterns, so their documents would have the same keys. Make two sources of them, or one pattern."
                )
            reader = reader_for(_bare(file.url))
            stamp = _content_digest(file.url) if fingerprint == "content" else file.stamp
            found[file.path] = (replace(file, stamp=stamp, pieces=reader.probe(file, open_input)), reader)
    return [found[path] for path in sorted(found)]


def _bare(url: str) -> str:
    return split_query(url)[0]


def _matches(pattern: str, where: str) -> list[InputFile]:
    """The files of one pattern; none where nothing matches."""
    base, query = split_query(pattern)
    if not is_remote(base):
        base = os.path.abspath(os.path.expanduser(base.removeprefix("file://")))
    prefix = _fixed_prefix(base)
    try:
        filesystem, root = resolve(prefix + query)
        root = root.rstrip("/")
        folder = base[: base.rindex("/") + 1]
        info = filesystem.get_file_info(root + base[len(prefix.rstrip("/")) :])
        if info.type == pafs.FileType.File:  # also one whose name holds what is a wildcard elsewhere
            return [_input_file(base + query, folder, info)]
        if info.type == pafs.FileType.Directory and not _WILD.search(base):
            raise UserError(f"{where}: '{pattern}' is a folder. Expected files: '{pattern.rstrip('/')}/**' takes all below it")
        if not _WILD.search(base):
            return []
        below = base[len(prefix) :]
        listed = list(_listed(filesystem, root, depth=None if "**" in below else below.count("/")))
    except OSError as error:
        raise UserError(f"{where}: cannot look into {prefix}: {error}") from error
    expression = _expression(base)
    named = _names_hidden(below)
    files = ((prefix.rstrip("/") + info.path[len(root) :], info) for info in listed)
    return [
        _input_file(path + query, prefix, info)
        for path, info in files
        if expression.fullmatch(path) and (named or not _is_hidden(path[len(prefix) :]))
    ]


def _fixed_prefix(base: str) -> str:
    """The folder part before the first wildcard, with its slash."""
    wild = _WILD.search(base)
    return base[: base.rindex("/", 0, wild.start() if wild else len(base)) + 1]


def _listed(filesystem: pafs.FileSystem, root: str, depth: int | None) -> Iterator[pafs.FileInfo]:
    """The files below a folder, at most `depth` folders down."""
    if isinstance(filesystem, pafs.LocalFileSystem):
        yield from _listed_locally(filesystem, root or "/", depth)
        return
    selector = pafs.FileSelector(root, allow_not_found=True, recursive=depth != 0)
    yield from (info for info in filesystem.get_file_info(selector) if info.type == pafs.FileType.File)


def _listed_locally(filesystem: pafs.FileSystem, root: str, depth: int | None) -> Iterator[pafs.FileInfo]:
    """All files below a local folder. Arrow's selector stops at the first broken link or folder it may not enter."""
    paths: list[str] = []
    for folder, folders, names in os.walk(root, followlinks=False):
        paths += [os.path.join(folder, name) for name in names]
        if depth is not None and folder[len(root) :].count("/") >= depth:
            folders.clear()
    for start in range(0, len(paths), 1000):
        infos = filesystem.get_file_info(paths[start : start + 1000])
        yield from (info for info in infos if info.type == pafs.FileType.File)


def _expression(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression over the whole path."""
    out, at = [], 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out.append("(?:.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            out.append(".*")
            at += 2
        elif pattern[at] == "*":
            out.append("[^/]*")
            at += 1
        elif pattern[at] == "?":
            out.append("[^/]")
            at += 1
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2)) > 0:
            inside = pattern[at + 1 : end].replace("\\", r"\\")
            out.append(f"[{'^' + inside[1:] if inside[0] in '!^' else inside}]")
            at = end + 1
        else:
            out.append(re.escape(pattern[at]))
            at += 1
    return re.compile("".join(out), re.DOTALL)


def _names_hidden(pattern: str) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in pattern.split("/"))


def _is_hidden(relative: str) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in relative.split("/"))


def _input_file(url: str, prefix: str, info: pafs.FileInfo) -> InputFile:
    bare = _bare(url)
    return InputFile(
        url=url,
        path=bare[len(prefix) :],
        num_bytes=info.size,
        stamp=str(info.mtime_ns),
        compression=_COMPRESSION.get(Path(bare).suffix),
    )


def _content_digest(url: str) -> str:
    hasher = xxhash.xxh3_128()
    with open_input(url) as stream:
        while piece := stream.read(8 << 20):
            hasher.update(piece)
    return f"xxh3_128:{hasher.hexdigest()}"


def _what_is_there(pattern: str) -> str:
    """The part of a path that does exist, and the nearest name to the one that does not."""
    base, _ = split_query(pattern)
    if is_remote(base):
        return " Check bucket, folder and credentials; a glob's * stays within a folder, ** crosses folders."
    path = Path(os.path.abspath(os.path.expanduser(base.removeprefix("file://"))))
    if "{" in pattern:
        return " Braces are not expanded; write a list of patterns."
    there = next(folder for folder in path.parents if folder.is_dir())
    missing = path.relative_to(there).parts[0]
    near = suggest(missing, sorted(os.listdir(there))) if not _WILD.search(missing) else ""
    return f" {there} exists, but nothing in it matches '{path.relative_to(there)}'.{near} ** crosses folders, * does not."
