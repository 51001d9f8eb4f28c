"""Secrets of the right form that open nothing: drawn by lot, each time from a seed, so that none stands in the sources."""

from __future__ import annotations

import base64
import json
import random
import re
import string

from datapipe.kernels.redact.tokens import TABLE
from tests.oracles.secrets import is_cased, is_mixed, is_name, is_random

_LETTERS = string.ascii_letters + string.digits
_TOKEN = _LETTERS + "_-"
_SMALL, _CAPITAL = string.ascii_lowercase + string.digits, string.ascii_uppercase + string.digits
_HEX = "0123456789abcdef"
_ALPHABETS = {"digit": string.digits, "lower": _SMALL, "upper": _CAPITAL, "hex": _HEX, "alnum": _LETTERS}
_ALPHABETS |= {"word": _LETTERS + "_", "token": _TOKEN, "field": _TOKEN, "dotted": _TOKEN + ".", "path": _TOKEN + "+/"}
_ALPHABETS |= {"base64": _LETTERS + "+/", "percent": _LETTERS + "%"}
_LONGEST = 40
"""Characters that a run may have above the fewest."""


def _drawn(rng: random.Random, length: int, alphabet: str = _LETTERS) -> str:
    return "aZ7" + "".join(rng.choices(alphabet, k=length - 3))


def _drawn_run(rng: random.Random, written: str) -> str:
    """A run of the table, such as `hex{32}`, `token{20,300}` or a sign."""
    match = re.fullmatch(r"(\w{2,}|.)(?:\{(\d+)(?:,(\d+))?\})?", written)
    assert match is not None
    least, most = int(match[2] or 1), int(match[3] or match[2] or 1)
    if match[1] == "uuid":
        return "-".join("".join(rng.choices(_HEX, k=length)) for length in (8, 4, 4, 4, 12))
    drawn = rng.choices(_ALPHABETS.get(match[1], match[1]), k=rng.randint(least, min(most, least + _LONGEST)))
    return "".join(drawn)


def _drawn_rest(rng: random.Random, runs: str, condition: str) -> str:
    """What follows a prefix: drawn again until it looks random and fits the condition of its row."""
    while True:
        rest = "".join(_drawn_run(rng, run) for run in runs.split())
        fits = {"": True, "loose": True, "unnamed": True, "mixed": is_mixed(rest.encode()), "cased": is_cased(rest.encode())}[
            condition
        ]
        if fits and is_random(rest.encode(), 2800) and not is_name(rest.encode()):
            return rest


def drawn_tokens(seed: int) -> list[tuple[str, str, str]]:
    """One token for each row of the table of issuers: (kind, what is written before the token, the token)."""
    rng, tokens = random.Random(seed), []
    for row in TABLE.strip().splitlines():
        head, runs, condition = ([part.strip() for part in row.split("|")] + [""])[:3]
        kind, *prefixes = head.split()
        prefix, rest = rng.choice(prefixes), _drawn_rest(rng, runs, condition)
        tokens.append((kind, prefix, rest) if prefix[-1] in '/="' else (kind, "", prefix + rest))
    return tokens


def drawn_shapes(seed: int) -> list[tuple[str, str]]:
    """Secrets that have no prefix: (kind, secret)."""
    rng = random.Random(seed)

    def encoded(record: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(record).encode()).decode().rstrip("=")

    lines = "\n".join(_drawn(rng, 64, _LETTERS + "+/") for _ in range(6))
    number = str(rng.randrange(10**17, 10**18))
    return [
        ("jwt", f"{encoded({'alg': 'HS256'})}.{encoded({'sub': _drawn(rng, 9)})}.{_drawn(rng, 43, _TOKEN)}"),
        ("jwt", f"{encoded({'alg': 'none'})}.{encoded({'sub': _drawn(rng, 9)})}."),
        ("private_key", f"-----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----"),
        ("private_key", "-----BEGIN PRIVATE KEY-----" + repr(lines)[1:-1] + "\\n-----END PRIVATE KEY-----"),
        ("mailchimp", "".join(rng.choices(_HEX, k=32)) + f"-us{rng.randrange(1, 40)}"),
        ("telegram", f"{rng.randrange(10**8, 10**10)}:AA{_drawn(rng, 33)}"),
        ("discord", f"{base64.b64encode(number.encode()).decode()}.G{_drawn(rng, 5)}.{'Xq' * 4}{_drawn(rng, 30, _TOKEN)}"),
        ("facebook", f"{rng.randrange(10**14, 10**16)}|{_drawn(rng, 27)}"),
        ("hashicorp", f"{_drawn(rng, 14)}.atlasv1.{_drawn(rng, 66)}"),
        ("azure", f"{_drawn(rng, 3)}8Q~{_drawn(rng, 34, _TOKEN + '~')}"),
    ]


def drawn_secrets(seed: int) -> list[tuple[str, str]]:
    """One or more secrets of each kind but `assignment`: (kind, secret). None needs a name before it."""
    return [(kind, token) for kind, before, token in drawn_tokens(seed) if not before] + drawn_shapes(seed)


def drawn_keys(seed: int) -> list[tuple[str, str]]:
    """Keys that are known by the name before them: (kind, key)."""
    rng = random.Random(seed)
    alphabet = _LETTERS + "+/"
    return [
        ("aws", "aZ7" + "".join(rng.choices(alphabet, k=37))),
        ("azure", "".join(rng.choices(alphabet, k=86)) + "=="),
    ]
