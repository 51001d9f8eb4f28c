"""One finished output with documents of every fate, for all tests of the package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import browsed
from tests.support.browsed import Browsed


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browsed]:
    """Endpoints about an output with tokens. The functions of its mixture stay importable."""
    folder = tmp_path_factory.mktemp("browsed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield browsed.browse(browsed.make(folder, "{train: {vocab_size: 400, sample_bytes: 64KiB}}"))
