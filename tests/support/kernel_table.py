"""One row per kernel: the kernel, its oracle, and how its arguments are made of a case. Tests and benchmarks walk the table.

    tests/support/kernel_rows/<family>.py   the rows of the kernels in that folder of `datapipe/kernels`
    CASES                                   batches of texts: random, hostile and generated; with a seed for other arguments

Adding a kernel is adding a row, a function of a case that yields twice:

    @row(text_hashes.squeeze_space, valid_only=True)
    def squeeze_space(case: Case) -> Steps:
        yield [case.offsets, case.data], [*room(len(case.offsets), np.int64), *room(len(case.data), np.uint8)]
        texts = [oracle.squeeze_space(text.decode()).encode() for text in case.texts]
        yield None, [offsets_of(texts), joined(texts)]

First it yields the inputs and the outputs of the kernel, fresh ones each time; then what the kernel returns, and what is at
the start of each output. The oracle is computed before the kernel runs.

Importing this module imports no kernel: `kernel_names` reads the sources, and `all_rows` imports what it needs.
"""

from __future__ import annotations

import ast
import importlib
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from datapipe.kernels import Kernel, KernelByType
    from datapipe.kernels.text.words import Lines, Words

PARAMETER = "kernel_name"
"""The parameter of tests that walk the table. The kernels that it names are compiled before the first test runs."""

RUNS_AS_PYTHON = os.environ.get("NUMBA_DISABLE_JIT", "0") != "0"

_ROWS_FOLDER = Path(__file__).parent / "kernel_rows"
_HUGE_LINE_BYTES = 4_000 if RUNS_AS_PYTHON else 12_000


Steps = Iterator[tuple[Any, Sequence[Any]]]
"""(inputs, outputs), then (what the kernel returns, the start of each output); a record of arrays is one output, and the
oracle gives its arrays one by one."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A batch of texts, which need not be UTF-8, somewhere inside a larger buffer.

    Attributes:
        texts: the bytes of each document.
        seed: for arguments that are not text.
        valid: whether every text is UTF-8.
        before, after: bytes of the buffer that belong to no document.
    """

    texts: tuple[bytes, ...]
    seed: int = 0
    valid: bool = True
    before: bytes = b"#\xe2\x80"
    after: bytes = b"\xa6. the"

    @cached_property
    def data(self) -> np.ndarray:
        """(num_bytes,) uint8."""
        return np.frombuffer(self.before + b"".join(self.texts) + self.after, np.uint8)

    @cached_property
    def offsets(self) -> np.ndarray:
        """(num_docs + 1,) int64."""
        return offsets_of(self.texts, len(self.before))

    @property
    def begins(self) -> list[int]:
        return self.offsets[:-1].tolist()

    @property
    def generator(self) -> np.random.Generator:
        """A fresh generator, so that arguments are the same each time they are made."""
        return np.random.default_rng(self.seed)

    @cached_property
    def words(self) -> Words:
        from datapipe.kernels.text.words import find_words

        with np.errstate(over="ignore"):
            return find_words(self.offsets, self.data)

    @cached_property
    def lines(self) -> Lines:
        from datapipe.kernels.text.words import find_lines

        with np.errstate(over="ignore"):
            return find_lines(self.words, self.data)

    def having(self, texts: Iterable[bytes], before: bytes = b"#\xe2\x80", after: bytes = b"\xa6. the") -> Case:
        """A case with other texts."""
        return replace(self, texts=tuple(texts), before=before, after=after)

    def spiced(self, spices: Sequence[bytes], share: float) -> Case:
        """The case with a share of its words replaced by others."""
        rng = random.Random(self.seed)
        texts = [text.split(b" ") for text in self.texts]
        return self.having(b" ".join(rng.choice(spices) if rng.random() < share else word for word in text) for text in texts)

    def spans(self, starts: np.ndarray, lengths: np.ndarray) -> list[bytes]:
        """The bytes of words or lines."""
        return [self.data[start : start + length].tobytes() for start, length in zip(starts, lengths, strict=True)]


def offsets_of(items: Iterable[Sized], first: int = 0) -> np.ndarray:
    """(num_items + 1,) int64: where each item begins and the last one ends, where they lie end to end."""
    return np.cumsum([first, *map(len, items)], dtype=np.int64)


def joined(texts: Iterable[bytes]) -> np.ndarray:
    """The bytes of all texts."""
    return np.frombuffer(b"".join(texts), np.uint8)


def columns(rows: Iterable[Sequence[Any]], number: int) -> list[list[Any]]:
    """The first columns of rows, which may be none."""
    kept = list(rows)
    return [[entries[column] for entries in kept] for column in range(number)]


def grouped(offsets: np.ndarray, items: Any) -> list[Any]:
    """The items of each document."""
    return [items[start:stop] for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def room(size: Any, *types: Any) -> list[np.ndarray]:
    """Outputs in which something else is written than a kernel writes there."""
    return [np.full(size, 85, kind) for kind in types]


class Comparison(NamedTuple):
    """A kernel's results beside its oracle's: how many values were compared, and the first difference."""

    num_values: int
    difference: str | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A kernel beside what it must equal.

    Attributes:
        kernel: as declared in `datapipe/kernels`.
        steps: its arguments and its results for a case.
        variant: tells rows of one kernel apart.
        valid_only: the kernel is promised UTF-8, and declares it.
    """

    kernel: Kernel[..., Any] | KernelByType[..., Any]
    steps: Callable[[Case], Steps]
    variant: str = ""
    valid_only: bool = False

    @property
    def name(self) -> str:
        return f"{self.kernel.name}-{self.variant}" if self.variant else self.kernel.name

    def arguments(self, case: Case) -> list[Any]:
        inputs, outputs = next(self.steps(case))
        return [*inputs, *outputs]

    def run(self, case: Case) -> tuple[Any, list[Any]]:
        """What the kernel returns and its outputs."""
        return self._call(*next(self.steps(case)))

    @property
    def cases(self) -> dict[str, Case]:
        """The cases that the kernel must handle: all, or those of UTF-8 where the kernel is promised UTF-8."""
        return {name: case for name, case in CASES.items() if case.valid or not self.valid_only}

    def compare(self, case: Case) -> Comparison:
        """Runs the kernel and its oracle on a case."""
        arguments, (expected_return, expected) = self.steps(case)
        returned, outputs = self._call(*arguments)
        num_values = sum(map(len, expected)) + (expected_return is not None)
        if returned != expected_return:
            return Comparison(num_values, f"returned {returned}, expected {expected_return}")
        for number, (output, start) in enumerate(zip(outputs, expected, strict=True)):
            wanted = np.asarray(start, output.dtype).reshape(-1, *output.shape[1:])
            try:
                np.testing.assert_array_equal(output[: len(start)], wanted)
            except AssertionError as error:
                return Comparison(num_values, f"output {number}: {error}")
        return Comparison(num_values, None)

    def _call(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, list[Any]]:
        returned = self.kernel(*inputs, *outputs)
        return returned, [array for output in outputs for array in (output if isinstance(output, tuple) else (output,))]


_ROWS: list[Row] = []
"""The rows of the files that were imported."""


def row(kernel: Any, *arguments: Any, variant: str = "", valid_only: bool = False) -> Callable[..., Any]:
    """Declares the row of a kernel, or one of several: its function gets these arguments after the case."""

    def declare(steps: Callable[..., Steps]) -> Callable[..., Steps]:
        make = partial(_made, steps, arguments)
        _ROWS.append(Row(kernel=kernel, steps=make, variant=variant, valid_only=valid_only))
        return steps

    return declare


def _made(steps: Callable[..., Steps], arguments: Sequence[Any], case: Case) -> Steps:
    return steps(case, *arguments)


def all_rows() -> list[Row]:
    """The rows of every file in `kernel_rows/`."""
    for path in sorted(_ROWS_FOLDER.glob("*.py")):
        importlib.import_module(f"tests.support.kernel_rows.{path.stem}")
    return _ROWS


@cache
def rows_by_kernel() -> dict[str, list[Row]]:
    """The rows of each kernel, by its name. A kernel has several where its options matter."""
    rows: dict[str, list[Row]] = {}
    for each in all_rows():
        rows.setdefault(each.kernel.name, []).append(each)
    return rows


def kernel_names() -> list[str]:
    """Names ("words.find_words") of the functions of `datapipe/kernels` that are decorated with `@kernel`."""
    package = find_spec("datapipe.kernels")
    assert package is not None
    assert package.origin is not None
    files = sorted(Path(package.origin).parent.rglob("*.py"))
    return sorted(f"{path.stem}.{name}" for path in files for name in _decorated(path.read_text(encoding="utf-8")))


def declared_name(kernel: Kernel[..., Any]) -> str:
    """The name of the function that is decorated, also of a kernel for one of several types."""
    return f"{kernel.function.__module__.rpartition('.')[2]}.{kernel.function.__code__.co_name}"


def _decorated(source: str) -> Iterator[str]:
    if "@kernel\n" not in source:
        return
    for node in ast.parse(source).body:
        for decorator in getattr(node, "decorator_list", []):
            match decorator, node:
                case ast.Name(id="kernel"), ast.FunctionDef(name=name):
                    yield name


def prose(seed: int, num_words: int, vocabulary: int = 60, repeated: float = 0.2) -> str:
    """Sentences with stop words, punctuation, lists and paragraphs, some said again: a few words in every line."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("etaoinshrdluéß中ж", [9] * 12 + [1] * 4, k=rng.randint(1, 9))) for _ in range(vocabulary)]
    words += ["the", "The", "and", "of", "to", "with", "“that”", "(have)", "be,", "#tag", "wait...", "so…", "—", "3.5"]
    words += ["a" * 12]
    lines: list[str] = []
    while num_words > 0:
        if lines and rng.random() < repeated:
            lines.append(rng.choice(lines))
        else:
            sentence = " ".join(rng.choices(words, k=rng.randint(1, 15)))
            lines.append(rng.choice(["", "", "", "- ", "• ", "  "]) + sentence + rng.choice([".", "...", "…", "!", "", " "]))
        num_words -= len(lines[-1].split())
    return "".join(line + rng.choice(["\n", "\n", "\n\n", "\r\n", "\n \n"]) for line in lines)


def _random_bytes(seed: int) -> tuple[bytes, ...]:
    rng = random.Random(seed)
    return tuple(rng.randbytes(rng.randint(0, 60)) for _ in range(12))


def _random_characters(seed: int) -> tuple[bytes, ...]:
    """Every plane, with much white space, punctuation and combining marks."""
    rng = random.Random(seed)
    picks = [
        lambda: rng.choice(" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"),
        lambda: rng.choice(".#…-*•‣◦●▪“”'!$+…...\u200b"),
        lambda: rng.choice("theTHEbofandvwiAZ09ée\u0301\u0327中ж\u1161\u11a8\uac00"),
        lambda: chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])),
    ]
    return tuple("".join(rng.choice(picks)() for _ in range(rng.randint(0, 50))).encode() for _ in range(12))


def _cut_characters() -> tuple[bytes, ...]:
    """Lone continuation bytes, characters cut at the end, overlong forms, surrogates, and bytes that never occur."""
    cut = ["é".encode()[:1], "…".encode()[:2], "…".encode()[:1], "😀".encode()[:3], "😀".encode()[:1]]
    bad = [b"\x80", b"\xbf\xbf\xbf\xbf\xbf", b"\xc0\x80", b"\xc0\xa0", b"\xe0\x80\xa0", b"\xf0\x80\x80\xa0"]
    bad += [
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
        b"\xff\xfe",
        b"\xe2\x80\xe2\x80\xa6",
        b"\xe3\x80\x20",
    ]
    around = [b"%b", b"the%b", b"%bthe", b"a %b\n", b"%b %b"]
    return tuple(frame.replace(b"%b", piece) for piece in cut + bad for frame in around)


def huge_line(num_bytes: int) -> Case:
    """Lines without an end, one of words and one that is a word."""
    return Case(texts=(b"", b"the word " * (num_bytes // 9), b"x" * num_bytes, "…".encode()), seed=50)


_CHARACTERS = ["", *" \na\0\ufeff😀\u3000", "\r\n\r\n", "\0a\0", "\ufeff\ufeffa", "a\ufeff", "😀 😀😀\n😀"]
_FORMS = [
    *"é\rﬁ",
    "e\u0301",
    "\u1100\u1161\u11a8",
    "\u0327\u0301a",
    "a\0\u0301",
    "a\rb\r\nc\n\rd",
    "\x85a\x85",
    "x\u2028y\u2029",
]
_LINES = ("a\n\na\n\na", "a\nb\n\na\nb\n \nc", "\n\n\n", "  a  \n\ta\r\na", "- a\n* b\n• c", "...\n…\n..\n", "# # # ...... ….")
_REPEATS = ("a " * 40, "a b c d e f g h i j k l " * 3, "x y " * 30 + "z", "a b b a b b a", "a\n" * 30)

CASES: dict[str, Case] = {
    "no documents": Case(texts=()),
    "empty documents": Case(texts=(b"", b"", b"")),
    "characters": Case(texts=tuple(text.encode() for text in _CHARACTERS), seed=1),
    "forms": Case(texts=tuple(text.encode() for text in _FORMS), seed=2),
    "lines": Case(texts=tuple(text.encode() for text in _LINES), seed=3),
    "repeats": Case(texts=tuple(text.encode() for text in _REPEATS), seed=4),
    "cut characters": Case(texts=_cut_characters(), seed=5, valid=False),
    **{f"random bytes {seed}": Case(texts=_random_bytes(seed), seed=seed, valid=False) for seed in range(10, 16)},
    **{f"random characters {seed}": Case(texts=_random_characters(seed), seed=seed) for seed in range(20, 30)},
    **{
        f"prose {seed}": Case(texts=tuple(prose(seed + 100 * n, 150).encode() for n in range(4)), seed=seed)
        for seed in (30, 31)
    },
    "few words": Case(texts=(prose(40, 300, vocabulary=3, repeated=0.5).encode(),), seed=40),
    "one huge line": huge_line(_HUGE_LINE_BYTES),
}
