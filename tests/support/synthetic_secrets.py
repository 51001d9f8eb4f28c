"""Secrets of the right form that open nothing: drawn by lot, each time from a seed, so that none stands in the sources.

Tokens are drawn for every row of `stages/redact/rules/secrets.toml`, values for every alphabet and length of `VALUES`.
"""

import random
import string
from collections.abc import Iterator
from typing import Any

from datapipe.kernels.redact.tokens import members_of, parsed_runs
from stages.redact._rules import built_in
from tests.oracles.randomness import best_evidence, has_entropy, is_placeholder
from tests.oracles.secrets import fits

_LETTERS = string.ascii_letters + string.digits
_LONGEST = 40
"""Characters that a run may have above the fewest."""
ALPHABETS = {
    "letters and digits": _LETTERS,
    "small letters and digits": string.ascii_lowercase + string.digits,
    "hexadecimal": "0123456789abcdef",
    "base64": _LETTERS + "+/",
    "base64url": _LETTERS + "-_",
    "letters": string.ascii_letters,
    "small letters": string.ascii_lowercase,
    "with signs": _LETTERS + "!@#$%^&*",
}
LENGTHS = (16, 20, 24, 32, 40, 64)
QUOTED = {
    "JSON": '{{"user": "a", "db_password": "{}", "port": 1}}',
    "JSON in a text": r'body = "{{\"token\": \"{}\"}}"',
    "YAML in quotes": "db:\n  password: '{}'\n",
    "attribute": '<add key="DbPassword" value="{}"/>',
    "list of pairs": '- name: DB_PASSWORD\n  value: "{}"\n',
    "Python": 'API_KEY = b"{}"\n',
    "typed": 'const token: string = "{}";',
    "argument": "connect(user='a', client_secret='{}')",
    "call": 'os.getenv("API_TOKEN", "{}")',
    "scheme": 'auth_token: "Bearer {}"',
    "hash": "'secret' => '{}',",
    "acmeKey": 'acmeKey = "{}"',
    "fallback": 'const secret = process.env.SECRET || "{}";',
    "IDENTIFIED BY": "CREATE USER a IDENTIFIED BY '{}';",
    "SQL": "ALTER USER a WITH PASSWORD '{}';",
}
PLAIN = {
    ".env": "A=1\nDB_PASSWORD={}\nB=2\n",
    "export": "export API_TOKEN={}\n",
    "YAML": "db:\n  password: {}\n  user: a\n",
    "INI": "[db]\npassword = {}\nuser = a\n",
    "XML": "<db><password>{}</password></db>",
    "acme_key": "acme_key: {}\n",
    "key=": "key={}\n",
    "bold": "**Password:** {}\n",
    "docker": "docker run -e DB_PASSWORD={} -p 80:80 image",
    "option": "tool --password {} --verbose",
    "header": "curl -H 'Authorization: Bearer {}' https://h.com",
    "URL": "https://h.com/?access_token={}&page=2",
    "table": "| name | value |\n|---|---|\n| db password | {} |\n",
    "table of code": "| db password | `{}` |\n",
    "netrc": "machine h.com\n  login a\n  password {}\n",
    "curl -u": "curl -u admin:{} https://h.com\n",
    "mysql -p": "mysql -u root -p{} db\n",
    ".pgpass": "h.com:5432:db:a:{}\n",
    "list of parameters": "Server=db;Password={};Port=1\n",
}
FRAMES = {**QUOTED, **PLAIN}
"""Where values stand. A value is where `{}` is; the frames of the second group have no quotes around it."""


def _drawn_run(rng: random.Random, name: str, least: int, most: int) -> str:
    """A run of a form: characters of its alphabet, or its sign."""
    if name == "uuid":
        return "-".join("".join(rng.choices("0123456789abcdef", k=length)) for length in (8, 4, 4, 4, 12))
    members = built_in()["alphabets"].get(name, name) if len(name) > 1 else name
    drawn = rng.choices([chr(byte) for byte in members_of(members)], k=rng.randint(least, min(most, least + _LONGEST)))
    return "".join(drawn)


def drawn_token(rng: random.Random, rule: dict[str, Any]) -> tuple[str, str, str]:
    """What is written before a token of a rule, the token, and what is behind it: drawn again until it looks random."""
    if rule["form"] == "pem":
        lines = "\n".join("".join(rng.choices(_LETTERS + "+/", k=64)) for _ in range(6))
        return "", f"-----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----", ""
    for _ in range(20):
        keyword = rng.choice(rule["keywords"])
        before = "".join(_drawn_run(rng, *run) for run in parsed_runs(rule.get("before", "")))
        parts = [_drawn_run(rng, *run) if run[1:] != (0, 0) else run[0] for run in parsed_runs(rule["form"])]
        names = [run[0] for run in parsed_runs(rule["form"])]
        whole = "".join(part for part, name in zip(parts, names) if name not in "()")
        opening = names.index("(") if "(" in names else -1
        secret = "".join(parts[opening + 1 : names.index(")")]) if opening >= 0 else before + keyword + whole
        drawn = (secret if opening >= 0 else before + keyword + whole if before else whole).encode()
        least = rule.get("evidence", 10 if len(keyword) <= 4 else 0)
        millibits = round(1000 * rule.get("entropy", 3.5))
        if (millibits and not fits(drawn, rule, least)) or whole[-1] in ",;":
            continue
        if opening < 0:
            return "", secret, ""
        return (
            keyword + "".join(parts[:opening]),
            secret,
            "".join(parts[names.index(")") + 1 :]) + "h.com" * rule.get("open", False),
        )
    raise AssertionError(f"no random token fits the rule {rule['id']}")


def drawn_tokens(seed: int) -> Iterator[tuple[str, str, str, str]]:
    """One token for each row of the table of issuers: its kind, what is before it, the token, what is behind it."""
    rng = random.Random(seed)
    for rule in built_in()["issuers"]:
        yield (rule["kind"], *drawn_token(rng, rule))


def drawn_secrets(seed: int) -> list[tuple[str, str]]:
    """One or more secrets of each kind but `assignment` and `custom`, which need no name: (kind, secret)."""
    return [(kind, token) for kind, before, token, _ in drawn_tokens(seed) if not before]


def drawn_value(rng: random.Random, alphabet: str, length: int) -> str:
    """A value of an alphabet that does not read like a name: 1 % to 3 % of those of 16 characters do."""
    while True:
        value = "".join(rng.choices(ALPHABETS[alphabet], k=length))
        data = value.encode()
        if best_evidence(data) >= 64 * 12 and has_entropy(data, 3500) and not is_placeholder(data):
            return value
