"""What a process may do that holds an output, and how another run that takes it meanwhile is kept from harm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from shlex import quote

from datapipe.errors import DatapipeError
from datapipe.storage.root import Root


class LeaseLostError(DatapipeError):
    """Another run has taken the output. This one deletes and publishes nothing more."""


class Hold:
    """An output that this process alone may change, on a local disk: a process that is paused holds it on.

    Attributes:
        condemned: paths that a run which lost the output may still be deleting.
    """

    condemned: frozenset[str] = frozenset()

    def __init__(self, root: Root) -> None:
        self.root = root

    def check(self) -> None:
        """Raises LeaseLostError where another run has taken the output, as far as this process knows. Costs nothing."""

    def check_condemned(self, wanted: Iterable[str]) -> None:
        """Raises DatapipeError where a cleaning that was interrupted, or is paused, deletes a file that is to be published."""
        condemned = next((path for path in wanted if path in self.condemned), None)
        if condemned is not None:
            raise DatapipeError(
                f"{self.root.url}: a `datapipe clean` that did not end is deleting {condemned}, which is to be published. Make "
                f"sure that it no longer runs, end it with `datapipe clean {quote(self.root.url)}`, and run the same command "
                f"again."
            )

    @contextmanager
    def deleting(self, paths: Sequence[str], below: str = "") -> Iterator[None]:
        """A context in which these files and folders may be deleted, even if the process is paused within it and another run
        takes the output: that run does not use them. Raises LeaseLostError where that has happened already.

        Args:
            below: with these paths all that is condemned below this folder is deleted, and condemned no longer.
        """
        yield

    def replace(self, files: Mapping[str, bytes]) -> None:
        """Writes files, in this order, that a newer run may have written. Raises LeaseLostError where one has."""
        for path, content in files.items():
            self.root.write_atomic(path, content)
