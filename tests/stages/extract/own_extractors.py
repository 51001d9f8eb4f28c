"""Classes that the tests of `extract.html` name as engines."""


class Shouts:
    def extract(self, page: str) -> str | None:
        return page.upper() if "gives up" not in page else None


class Wrong:
    def extract(self, page: str) -> object:
        return 7


class WithoutMethod:
    pass


class WithArguments(Shouts):
    def __init__(self, language: str, *, times: int = 1) -> None:
        self.language = language
