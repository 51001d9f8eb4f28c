"""One row per kernel: the kernel, its oracle, and how its arguments are made of a case. Tests and benchmarks walk the table.

    tests/kernel_rows/<module>.py   ROWS of datapipe/kernels/<module>.py, found by looking into the folder
    CASES                           batches of texts: random, hostile and generated; each with a seed for what is no text

Adding a kernel is adding a row:

    Row(kernel=words.split_words, arguments=make_arguments, oracle=expected, num_outputs=6)

`make_arguments(case)` returns the kernel's arguments, outputs last. `expected(*inputs)` gets those before the outputs and
returns (what the kernel returns, [what is at the start of each output, ...]).
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numba
import numpy as np

from datapipe.kernels import Kernel

_ROWS_FOLDER = Path(__file__).parent / "kernel_rows"
_HUGE_LINE_BYTES = 4_000 if numba.config.DISABLE_JIT else 100_000


@dataclass(frozen=True, kw_only=True)
class Case:
    """A batch of texts, which need not be UTF-8, somewhere inside a larger buffer.

    Attributes:
        texts: the bytes of each document.
        seed: for arguments that are not text.
        valid: whether every text is UTF-8.
    """

    texts: tuple[bytes, ...]
    seed: int = 0
    valid: bool = True

    @cached_property
    def data(self) -> np.ndarray:
        """The texts' bytes between some that belong to no document: (num_bytes,) uint8."""
        return np.frombuffer(b"#\xe2\x80" + b"".join(self.texts) + b"\xa6. the", np.uint8)

    @cached_property
    def offsets(self) -> np.ndarray:
        """(num_docs + 1,) int64."""
        return np.cumsum([3, *map(len, self.texts)], dtype=np.int64)

    @property
    def generator(self) -> np.random.Generator:
        """A fresh generator, so that arguments are the same each time they are made."""
        return np.random.default_rng(self.seed)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A kernel beside what it must equal.

    Attributes:
        kernel: as declared in `datapipe/kernels`.
        arguments: makes them of a case, fresh ones each time.
        oracle: the inputs -> (what is returned, the start of each output).
        num_outputs: how many of the last arguments the kernel writes to.
        variant: tells rows of one kernel apart.
        valid_only: the kernel is promised UTF-8, and says so.
        from_case: the oracle is given the case, where its texts are not among the inputs.
    """

    kernel: Kernel
    arguments: Callable[[Case], Sequence[Any]]
    oracle: Callable[..., tuple[Any, Sequence[Any]]]
    num_outputs: int = 1
    variant: str = ""
    valid_only: bool = False
    from_case: bool = False

    @property
    def name(self) -> str:
        return f"{self.kernel.name}-{self.variant}" if self.variant else self.kernel.name

    def run(self, case: Case) -> tuple[Any, list[Any]]:
        """What the kernel returns and its outputs."""
        arguments = list(self.arguments(case))
        returned = self.kernel(*arguments)
        return returned, arguments[len(arguments) - self.num_outputs :]

    def expected(self, case: Case) -> tuple[Any, Sequence[Any]]:
        if self.from_case:
            return self.oracle(case)
        arguments = self.arguments(case)
        return self.oracle(*arguments[: len(arguments) - self.num_outputs])


def all_rows() -> list[Row]:
    """The rows of every file in `kernel_rows/`."""
    names = sorted(path.stem for path in _ROWS_FOLDER.glob("*.py"))
    return [row for name in names for row in importlib.import_module(f"tests.kernel_rows.{name}").ROWS]


def prose(seed: int, num_words: int, vocabulary: int = 60, repeated: float = 0.2) -> str:
    """Sentences with stop words, punctuation, lists and paragraphs, some said again: a few words in every line."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("etaoinshrdluéß中ж", [9] * 12 + [1] * 4, k=rng.randint(1, 9))) for _ in range(vocabulary)]
    words += [
        "the",
        "The",
        "and",
        "of",
        "to",
        "with",
        "“that”",
        "(have)",
        "be,",
        "#tag",
        "wait...",
        "so…",
        "—",
        "3.5",
        "a" * 12,
    ]
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


_CHARACTERS = (
    "",
    " ",
    "\n",
    "\r\n\r\n",
    "a",
    "\0",
    "\0a\0",
    "\ufeff",
    "\ufeff\ufeffa",
    "a\ufeff",
    "😀",
    "😀 😀😀\n😀",
    "\u3000",
)
_FORMS = (
    "e\u0301",
    "é",
    "\u1100\u1161\u11a8",
    "ﬁ",
    "\u0327\u0301a",
    "a\0\u0301",
    "\r",
    "a\rb\r\nc\n\rd",
    "\x85a\x85",
    "x\u2028y\u2029",
)
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
    "one huge line": Case(texts=(b"", b"the word " * (_HUGE_LINE_BYTES // 9), b"x" * _HUGE_LINE_BYTES, "…".encode()), seed=50),
}
