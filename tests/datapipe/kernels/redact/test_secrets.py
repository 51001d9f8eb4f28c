"""What the rules find: random tokens of every issuer and random values in every place; what is none; hostile bytes."""

import random
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.kernels.redact import secrets
from stages.redact._rules import built_in
from stages.redact.secrets import KINDS
from tests.support.marked_spans import scraps
from tests.support.secret_texts import rules
from tests.support.synthetic_secrets import ALPHABETS, FRAMES, LENGTHS, QUOTED, drawn_tokens, drawn_value

ALL = (1 << len(KINDS)) - 1
VALUE = "q8Zt5Lw2Rx9Vb3KdTm4y"


def _found(texts: list[str], min_entropy: float = 3.5) -> list[list[tuple[str, str]]]:
    """(kind, secret) of each text."""
    offsets, data = columns.text_buffers(pa.array([text.encode() for text in texts], pa.large_binary()))
    spans = secrets.find(offsets, data, rules(), ALL, min_entropy)
    documents = np.searchsorted(offsets[1:], spans.starts, side="right")
    found: list[list[tuple[str, str]]] = [[] for _ in texts]
    for document, kind, start, stop in zip(documents, spans.kinds, spans.starts, spans.stops):
        found[document].append((KINDS[kind], data[start:stop].tobytes().decode(errors="replace")))
    return found


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(2))
def test_find_a_token_of_every_rule_in_every_place(seed: int) -> None:
    drawn = list(drawn_tokens(seed))
    for frame in ("at {} and", 'x = "{}"\n', "curl -H 'X-Auth: {}' x", "é{}\n", "\t{},", "`{}`"):
        found = _found([frame.format(before + token + after) for _, before, token, after in drawn])
        expected = [[(kind, token)] for kind, _, token, _ in drawn]
        assert [pair for pair in zip(found, expected) if pair[0] != pair[1]] == []


@pytest.mark.medium
def test_find_a_token_that_goes_on_or_hangs_on_a_word_is_none() -> None:
    drawn = [
        (rule["id"], token)
        for rule, (_, before, token, _) in zip(built_in()["issuers"], drawn_tokens(5))
        if not before and not rule.get("before") and rule["form"] != "pem" and rule["keywords"][0][0].isalnum()
    ]
    found = _found([f"x_{token}" for _, token in drawn])
    assert [(name, one) for (name, token), one in zip(drawn, found) if token in [secret for _, secret in one]] == []


@pytest.mark.medium
@pytest.mark.parametrize(
    "alphabet", [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("base64", "with signs"))) for name in ALPHABETS]
)
def test_find_random_values_behind_names_in_every_place(alphabet: str) -> None:
    """Where it is not written in quotes, a sign may end a value: there, and at `key=`, 0.9 of values with signs are found."""
    rng = random.Random(alphabet)
    for place, frame in FRAMES.items():
        values = [drawn_value(rng, alphabet, length) for length in LENGTHS for _ in range(8)]
        found = _found([frame.format(value) for value in values])
        share = sum(value in [secret for _, secret in one] for value, one in zip(values, found)) / len(values)
        assert share >= (0.95 if place in QUOTED or alphabet != "with signs" else 0.8), (place, share)


def test_find_names_and_signs_of_every_style() -> None:
    names = scraps("acme_key acmeKey key client_secret PGPASSWORD DB_PASSWORD_2 refreshToken SMTP_PASS")
    for name, sign, value in product(names, ("=", ": ", " := ", " => ", " ?= "), (VALUE, VALUE * 200)):
        assert _found([f'{name}{sign}"{value}"\n', f"{name}{sign}{value}\n"]) == [[("assignment", value)]] * 2, (name, sign)


def test_find_values_with_digits_behind_a_name_and_a_space() -> None:
    for frame in ("machine h.com login a password {}\n", "ENV DB_PASSWORD {}\n", "the secret {}."):
        assert _found([frame.format(VALUE), frame.format("correcthorsebatterystaple")]) == [[("assignment", VALUE)], []]
    assert _found([f"npm-token 2.10.1-2+deb13u1 keys {VALUE}"]) == [[]]


WHOLE = [
    *(
        "curl -u admin:{} https://h.com",
        "curl --user 'admin:{}' https://h.com",
        "postgres://a:{}@h.com/x",
        "INFO token={} to h.com",
    ),
    *("mysql -u root -p{} db", "h.com:5432:db:a:{}\n", "docker run -e A_PASSWORD={} image", "curl -H 'X-Api-Key: {}' h"),
]


@pytest.mark.parametrize("frame", WHOLE)
def test_find_whole_values_whatever_their_signs_and_length(frame: str) -> None:
    for signs, times in product(("", "+=", "@", "!%^*-_=+?.~", ":," if "//" in frame else "/,"), (1, 15, 200)):
        value = VALUE[:9] + signs + VALUE[9:] * times
        assert _found([frame.format(value)]) == [[("assignment", value)]], signs


def test_find_keys_of_clouds_by_their_length() -> None:
    base64 = (VALUE * 5)[:86]
    assert _found([f"AccountKey={base64}==;"]) == [[("azure", base64 + "==")]]
    assert _found([f'secret_access_key: "{base64[:40]}"']) == [[("aws", base64[:40])]]


NO_SECRETS = {
    "hashes and identifiers": """
        commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b
        sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
        "integrity": "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg"
        id = "550e8400-e29b-41d4-a716-446655440000"  etag: "33a64df551425fcc55e4d42a148795d9f25f89d4"
        "AWS::IAM::AccessKey": "62d91b17309e76c8", "nextToken": "eyJOZXh0VG9rZW4iOiBudWxsLCAiYm90b190cnV"
        processorArchitecture="*" publicKeyToken="1fc8b3b9a1e18e3b"
    """,
    "keys that are no secrets": """
        cache_key = "a1b2c3d4e5f6a7b8c9d0e1f2"  primaryKey: 'k2j4h5g6f7d8s9a0q1w2e3'  sort_key="q8Zt5Lw2Rx9Vb3KdTm4y"
        public_key = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE"  t("message.key", "settings.account.delete.confirmation")
        <input name=key value=""> WHERE key = 'user_settings_2024' ORDER BY key;
        .key { color: #a1b2c3 } keyboard: "qZ8wLk2mPx7vR4tY"
        "license_key": "hpnd-uc-export-us", "spdx_license_key": "BSD-3-Clause-LBNL", monkey = "q8Zt5Lw2Rx9Vb3KdTm4y"
    """,
    "placeholders": """
        API_KEY=<your-key-goes-here-1234>  password: "EXAMPLE-9f86d081884c7d65"  token = xxxxxxxxxxxxxxxxxxxxxxxx
        secret="${DB_PASSWORD_2024_abc}" pwd: "{{ vault_secret_99 }}" token = "#{ENV['TOKEN_12ab34']}"
        key="112233445566778899AABBCCDDEEFF00"
        password = "changeme123456" AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY key = b"fedcba9876543210"
        ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx AKIAIOSFODNN7EXAMPLE ghp_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
    """,
    "code": """
        token = getOAuth2AccessTokenOfTheFirstRequest  password=self.passwords[a1b2c3d4e5f6]  secret: requiredTypesForDisplay2
        password = os.environ["DB_PASSWORD_1a2b3c4d5e"]  token = next_token_from_stream_v2_1
        secret = base64.b64decode(q8Zt5Lw2Rx9Vb3Kd)  if password == "a1b2c3d4e5f6a7b8c9d0e1":
        x.append(" .password = ").append(HexDump.shortToHex(field_1_password)).append(" .next = ")
        token = r'[^\\W\\d]\\w*'  password: "^(?=.*[A-Z])(?=.*\\d)[A-Za-z\\d]{8,}$"  pass_ = '%d.%d.%d-10-g92584ed'
        self.hf_requiredCharacteristicTypesForDisplayMetadata npm_config_registry_and_more_of_such_names
    """,
    "names": """
        secret: "/srv/app/v2/accounts/forgot-password"  api_key: "arn:aws:iam::210987654321:role/backup-writer2"
        token: "https://login.company.com/oauth2/v2.0/token"  password = "correcthorsebatterystaple"
        pwd = "hunter2"
        credentials = "projects/417/secrets/mailer/versions/12"  secret: 's3://company-backups/nightly1/dump.tar'
        passwd="ResetPasswordToken2Serializer"  private_key = 'src/components/PasswordForm2.tsx'
        token="editor.token.colors.background3"
    """,
    "shortcuts, constants, files, fingerprints": """
        { "key": "ctrl+shift+alt+f12" } Key: Cmd+Option+Shift+K  key = 0x9E3779B97F4A7C15 uint64_t key = 0x5bd1e9955bd1e995ULL;
        s3 key: backups/2024/01/31/db-9f86d081884c7d659a2feaa0c55ad015.tar.gz
        token: 0xdAC17F958D2ee523a2206206994597C13D831ec7
        "ClientToken": "7c9e6679-7425-40de-944b-e07fc1f90ae7"  md5 key = 8f14e45fceea167a5a36dedd4bea2543
        fingerprint key: SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU  protein key: MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ
        api_key=api_key=api_key
        | key | 9f86d081884c7d659a2feaa0c55ad015 |  the token is required_field_2024  git push -u https://h.com/a/9f86d081884c7d65
    """,
    "pictures and public blocks": """
        src="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4"
        -----BEGIN PUBLIC KEY-----MFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBAJ-----END PUBLIC KEY-----
        ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGw2 user@host  -----BEGIN PRIVATE KEY----- ... -----END PRIVATE KEY-----
    """,
}


@pytest.mark.parametrize("kind", NO_SECRETS)
def test_find_what_is_no_secret_is_left(kind: str) -> None:
    lines = NO_SECRETS[kind].strip().splitlines()
    assert [pair for pair in zip(lines, _found(lines)) if pair[1]] == []


def test_find_values_by_their_entropy() -> None:
    assert [_found(['password = "zqzq12zqzq12zq"'], least) != [[]] for least in (1.0, 3.5)] == [True, False]


def test_find_several_documents_stay_inside_them() -> None:
    token = next(token for kind, _, token, _ in drawn_tokens(1) if kind == "github")
    assert _found([token[:9], token[9:], token, "", "password =", f'"{VALUE}"']) == [[], [], [("github", token)], [], [], []]


@pytest.mark.medium
def test_find_many_bytes_of_one_fragment_is_linear() -> None:
    """Each in a fraction of a second; what reads a text once more at every byte takes many minutes."""
    fragments = scraps("a - = ' \x80 token= token=' ghp_ ya29. eyJaaaaaaaa. abc8Q~ _auth= &sig= | ZXlK/ SG. token:= ://a: key:")
    fragments += ["eyJ" + "a" * 13 + "==.", "-----BEGIN PRIVATE KEY-----\n" + "a" * 70, "password = 'aZ7b1C2d3E4f5G6h' "]
    fragments += ["sk-ant-" + "aZ7b1C2d3" * 9 + " ", "password='\\", 'token"\n"value', "pass: str = "]
    for fragment in fragments:
        assert len(_found([fragment * (200_000 // len(fragment))])[0]) <= 200_000 // 8


@pytest.mark.slow
def test_find_copies_of_many_secrets_that_begin_alike_is_linear() -> None:
    rng = random.Random(2)
    text = "".join(f'token="AAAAAAAA{drawn_value(rng, "letters and digits", 24)}"\n' for _ in range(8_000))
    assert len(_found([text + text])[0]) >= 8_000
