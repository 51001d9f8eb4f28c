"""The rules of `redact.secrets` as tables of kernels: `rules/secrets.toml`, and the rules of a user's file.

rules/secrets.toml ─▶ forms, names ─┐
                                    ├▶ one table of keywords ─▶ `kernels.redact.secrets.Rules`
FILE.toml ─▶ patterns ──────────────┘
"""

import itertools
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.kernels.redact.assignments import Names, compiled_names
from datapipe.kernels.redact.keywords import keyword_numbers, keyword_table
from datapipe.kernels.redact.randomness import BITS, suffixes
from datapipe.kernels.redact.secrets import Rules
from datapipe.kernels.redact.tokens import Form, compiled_forms, members_of
from stages.redact._gitleaks import UserRules, read_rules
from stages.redact._patterns import Patterns

BUILT_IN = Path(__file__).parent / "rules" / "secrets.toml"
_SHORT_KEYWORD, _ENTROPY, _EVIDENCE = 4, 3.5, 10
_JOINTS = ("", "_", "-", ".", " ")


@cache
def built_in() -> dict[str, Any]:
    """The table of rules, with every keyword that a written one stands for: `[0-9]Q~` are ten."""
    table = tomllib.loads(BUILT_IN.read_text())
    issuers = [
        {**rule, "keywords": [word for written in rule["keywords"] for word in _spelt(written)]} for rule in table["issuers"]
    ]
    return {**table, "issuers": issuers}


def _spelt(keyword: str) -> list[str]:
    """The keywords that one with alphabets in brackets stands for."""
    parts = [members_of(part[1:-1]) if part[0] == "[" else part.encode() for part in re.findall(r"\[.+?\]|.", keyword)]
    return [bytes(word).decode() for word in itertools.product(*parts)]


def built_in_ids() -> list[str]:
    return [rule["id"] for rule in (*built_in()["issuers"], *built_in()["assignments"])]


def user_rules(path: Path | None) -> UserRules:
    """The rules of a user's file; none without one. Raises UserError."""
    return UserRules() if path is None else read_rules(path, built_in_ids())


def compiled_rules(kinds: Sequence[str], user: UserRules) -> Rules:
    """The tables of the built-in rules that count, and of a user's patterns; `kinds` in the order of their numbers."""
    table, patterns = built_in(), user.patterns
    disabled = user.disabled if user.uses_built_in else built_in_ids()
    issuers = [rule for rule in table["issuers"] if rule["id"] not in disabled]
    assignments = [rule for rule in table["assignments"] if rule["id"] not in disabled]
    names = [spelt_names(rule) for rule in assignments]
    numbers = keyword_numbers(
        [
            [keyword for rule in issuers for keyword in rule["keywords"]],
            [name for spelt in names for name in spelt],
            [keyword for pattern in patterns for keyword in pattern.keywords],
        ]
    )
    placeholders = suffixes(table["placeholders"])
    forms = [form for rule in issuers for form in _forms_of(rule, kinds, numbers)]
    read = Patterns(patterns, numbers, kinds.index("custom")) if patterns else None
    return Rules(
        keywords=keyword_table(numbers),
        forms=compiled_forms(forms, table["alphabets"], len(numbers), placeholders),
        names=_names(assignments, names, kinds, numbers),
        patterns=read,
    )


def _forms_of(rule: dict[str, Any], kinds: Sequence[str], numbers: dict[str, int]) -> list[Form]:
    return [
        Form(
            kind=kinds.index(rule["kind"]),
            keyword=keyword,
            number=numbers[keyword.lower()],
            before=rule.get("before", ""),
            after=rule["form"],
            millibits=round(1000 * rule.get("entropy", _ENTROPY)),
            evidence=rule.get("evidence", _EVIDENCE if len(keyword) <= _SHORT_KEYWORD else 0),
            is_open=rule.get("open", False),
            unless=rule.get("unless", ""),
            is_mixed=rule.get("mixed", False),
        )
        for keyword in rule["keywords"]
    ]


def spelt_names(rule: dict[str, Any]) -> list[str]:
    """The names of a rule in every spelling of their spaces."""
    return [joint.join(name.split()) for name in rule["names"] for joint in (_JOINTS if " " in name else ("",))]


def _names(
    assignments: Sequence[dict[str, Any]], names: Sequence[Sequence[str]], kinds: Sequence[str], numbers: dict[str, int]
) -> Names:
    of_keyword, lengths = np.full(len(numbers), -1, np.int32), np.array([len(word) for word in numbers], np.int32)
    facts = np.zeros((len(assignments), 9), np.int64)
    unless = list[str]()
    for number, (rule, spelt) in enumerate(zip(assignments, names)):
        of_keyword[[numbers[name] for name in spelt]] = number
        evidence = (round(rule["quoted"] * BITS), round(rule["plain"] * BITS))
        flags = (rule.get(flag, False) for flag in ("word", "header", "weak"))
        words = rule.get("unless", [])
        facts[number] = (kinds.index("assignment"), *evidence, rule["length"], *flags, len(unless), len(unless) + len(words))
        unless += words
    key_kinds = np.array([kinds.index("aws"), kinds.index("azure")], np.int64)
    tables = (suffixes(unless), suffixes(built_in()["placeholders"]), suffixes(built_in()["schemes"]))
    return compiled_names(of_keyword, lengths, facts, key_kinds, *tables)
