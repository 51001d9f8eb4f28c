"""Classes that the tests of `extract.html` name as engines."""

from __future__ import annotations

import os
import signal


class Shouts:
    def extract(self, page: str) -> str | None:
        return page.upper() if "gives up" not in page else None


class Crashes:
    """Kills its process at pages that say so, as a parser in C may."""

    def extract(self, page: str) -> str | None:
        if "kill" in page:
            os.kill(os.getpid(), signal.SIGKILL)
        return page


class Wrong:
    def extract(self, page: str) -> object:
        return 7


class WithoutMethod:
    pass


class WithArguments(Shouts):
    def __init__(self, language: str, *, times: int = 1) -> None:
        self.language = language
