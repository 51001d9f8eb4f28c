"""Commands that are killed before any one of the changes that they make to files, and what a folder then holds."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from datapipe.storage.root import Root

CHANGES = ("write_atomic", "open_output", "take", "delete", "delete_folder", "delete_empty_folders")
"""Methods of `Root` that change files."""


class Killed(BaseException):
    """Stands for the end of the process."""


def is_killed(act: Callable[[], object], num_changes: int) -> bool:
    """Calls `act`, which is killed when it has changed files so many times: no later change is made either.

    Returns False where it ends before.
    """
    left, was_killed = num_changes, False

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left, was_killed
            left -= 1
            if left < 0:
                was_killed = True
                raise Killed
            return original(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(Root, name, counted(getattr(Root, name)))
        with suppress(Killed):
            act()
    return was_killed


def content_of(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder, by its path there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
