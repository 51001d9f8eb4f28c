"""Secrets of the right shape that open nothing: drawn by lot, each time from a seed, so that none stands in the sources."""

from __future__ import annotations

import base64
import json
import random
import string

_LETTERS = string.ascii_letters + string.digits
_TOKEN = _LETTERS + "_-"


def drawn_secrets(seed: int) -> list[tuple[str, str]]:
    """One or more secrets of each kind but `assignment`: (kind, secret); those of `aws` and `azure` may need a name before."""
    rng = random.Random(seed)

    def drawn(length: int, alphabet: str = _LETTERS) -> str:
        return "aZ7" + "".join(rng.choices(alphabet, k=length - 3))

    def encoded(record: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(record).encode()).decode().rstrip("=")

    lines = "\n".join(drawn(64, _LETTERS + "+/") for _ in range(6))
    return [
        ("aws", "AKIA" + "".join(rng.sample("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16))),
        ("gcp", "AIza" + drawn(35, _TOKEN)),
        ("github", "ghp_" + drawn(36)),
        ("github", "gho_" + drawn(36)),
        ("github", "github_pat_" + drawn(22) + "_" + drawn(59)),
        ("gitlab", "glpat-" + drawn(20, _TOKEN)),
        ("slack", f"xoxb-{rng.randrange(10**11, 10**12)}-{rng.randrange(10**12, 10**13)}-{drawn(24)}"),
        ("stripe", "sk_live_" + drawn(24)),
        ("openai", "sk-" + drawn(20) + "T3BlbkFJ" + drawn(20)),
        ("openai", "sk-proj-" + drawn(120, _TOKEN)),
        ("anthropic", "sk-ant-api03-" + drawn(93, _TOKEN) + "AA"),
        ("hugging_face", "hf_" + drawn(34)),
        ("npm", "npm_" + drawn(36)),
        ("pypi", "pypi-AgEIcHlwaS5vcmc" + drawn(150, _TOKEN)),
        ("jwt", f"{encoded({'alg': 'HS256'})}.{encoded({'sub': drawn(9)})}.{drawn(43, _TOKEN)}"),
        ("google_oauth", "ya29." + drawn(120, _TOKEN)),
        ("google_oauth", "GOCSPX-" + drawn(28, _TOKEN)),
        ("private_key", f"-----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----"),
        ("private_key", "-----BEGIN PRIVATE KEY-----" + repr(lines)[1:-1] + "\\n-----END PRIVATE KEY-----"),
    ]


def drawn_keys(seed: int) -> list[tuple[str, str]]:
    """Keys that are known by the name before them: (kind, key)."""
    rng = random.Random(seed)
    alphabet = _LETTERS + "+/"
    return [
        ("aws", "aZ7" + "".join(rng.choices(alphabet, k=37))),
        ("azure", "".join(rng.choices(alphabet, k=86)) + "=="),
    ]
