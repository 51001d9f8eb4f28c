"""Texts with made-up secrets for the kernels that find them, and what the oracle makes of their hits."""

import random
from functools import cache

import numpy as np

from datapipe.kernels.redact.keywords import Hits, HitsOut, find_keywords
from datapipe.kernels.redact.secrets import Rules
from datapipe.kernels.types import input_record
from stages.redact._rules import built_in, compiled_rules, spelt_names, user_rules
from stages.redact.secrets import KINDS
from tests.oracles.secrets import Hit
from tests.support.kernel_table import Case
from tests.support.synthetic_secrets import ALPHABETS, FRAMES, LENGTHS, drawn_tokens


@cache
def rules() -> Rules:
    """The built-in rules."""
    return compiled_rules(KINDS, user_rules(None))


@cache
def words() -> list[str]:
    """The keywords by their numbers."""
    written = [word.lower() for rule in built_in()["issuers"] for word in rule["keywords"]]
    return list(dict.fromkeys([*written, *(name for rule in built_in()["assignments"] for name in spelt_names(rule))]))


@cache
def _scraps(seed: int) -> list[str]:
    """Tokens, values in their places, their halves, and signs."""
    rng = random.Random(seed)
    tokens = [before + token + after for _, before, token, after in drawn_tokens(seed)]
    values = ["".join(rng.choices(ALPHABETS[rng.choice([*ALPHABETS])], k=rng.choice(LENGTHS))) for _ in range(60)]
    framed = [FRAMES[rng.choice([*FRAMES])].format(value) for value in values]
    halves = [part for text in tokens for part in (text[: len(text) // 2], text[len(text) // 2 :])]
    words = ('", "', "=>", ":=", '\\"', "reset/password", "Bearer ", "next_token", " value = ")
    signs = [*"=:'\"` .-_\n>~|/@]?,\\&;%<${(", *words]
    return [*tokens, *framed, *values, *halves, *(sign for sign in signs for _ in range(12)), "api_key", "EXAMPLE", "é"]


def secret_texts(case: Case) -> Case:
    """The texts of a case with scraps of secrets around them."""
    rng, scraps = random.Random(case.seed), _scraps(case.seed % 5)
    texts = [
        "".join(rng.choices(scraps, k=6)).encode() + text[:200] + ("\n" + "".join(rng.choices(scraps, k=8))).encode()
        for text in case.texts
    ]
    return case.having(texts, b"ghp_", b"AK")


def hits_of(case: Case) -> Hits:
    """All hits of the built-in keywords."""
    size = 20 * len(case.data) + 99
    out = HitsOut(np.empty(size, np.int64), np.empty(size, np.int32), np.empty(1, np.int64))
    number = find_keywords(case.offsets, case.data, int(case.offsets[0]), rules().keywords, out)
    return input_record(Hits, (out.positions[:number], out.numbers[:number]))


def by_document(case: Case, hits: Hits) -> list[list[Hit]]:
    """The hits of each document, in its own bytes."""
    documents = np.searchsorted(case.offsets[1:], hits.positions, side="right")
    found: list[list[Hit]] = [[] for _ in case.texts]
    for document, position, number in zip(documents.tolist(), hits.positions.tolist(), hits.numbers.tolist()):
        found[document].append((position - case.begins[document], words()[number]))
    return found
