"""Replaces keys, tokens and passwords in code, configuration and text.

    text  ->  keywords of all rules in one scan  ->  tokens of issuers, values behind names, your rules  ->  their copies

The rules are data, `stages/redact/rules/secrets.toml`: 227 forms of tokens by keyword, alphabet and length, and the names of
assignments. `rules` takes a file in the form of gitleaks, whose own rules can be read as they are (`datapipe[rules]`).

| kind | what |
|---|---|
| `aws` | key ids, Bedrock keys, and values of 40 letters of base64 behind a name of secrets |
| `azure` | secrets of Entra ID, signatures of URLs (`sig=`), values of 86 letters and `==` behind a name of secrets |
| `private_key` | whole PEM blocks, in the JSON of service accounts too |
| `jwt` | JSON web tokens, also without signature or in base64 once more |
| `assignment` | values behind names such as password, secret, token, api_key and acme_key, in headers and in URLs |
| `custom` | what the file of `rules` finds |
| `other` | tokens of other issuers; the other kinds are the tokens of one issuer each |

A value behind a name is found in quotes, to the end of its line (`.env`, YAML, INI), in XML, JSON, URLs, tables of Markdown,
netrc and behind "is", up to 4,096 characters; `curl -u`, `mysql -u root -p` and `.pgpass` (port 5432) need no name. It must
look random (`datapipe/kernels/redact/randomness.py`): words, paths, dotted keys, slugs, variables, templates, patterns and
placeholders remain, and so does a password that reads like words. In prose a value of letters alone remains. A value without
quotes ends before "<", ">", "|", a quote or a backslash.

**Copies** of a secret in its document are replaced too, if it has 12 characters and does not read like a word.
"""

from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, get_args

import numpy as np
from pydantic import Field

from datapipe.dataclass import replace
from datapipe.kernels.redact import secrets
from datapipe.kernels.redact.pii import SECRET
from datapipe.kernels.redact.spans import FoundSpans
from datapipe.stage import FilterResult
from datapipe.stage.documents import DocumentBatch
from stages.redact._edit import Redacting
from stages.redact._patterns import LIBRARY
from stages.redact._rules import BUILT_IN, compiled_rules, user_rules

_Platforms = Literal["aws", "gcp", "azure", "github", "gitlab", "slack", "stripe", "openai", "anthropic", "hugging_face"]
_Forms = Literal["npm", "pypi", "jwt", "google_oauth", "private_key", "assignment"]
_Issuers = Literal["artifactory", "atlassian", "digitalocean", "discord", "facebook", "grafana", "hashicorp", "heroku"]
_OtherIssuers = Literal["mailchimp", "sendgrid", "sentry", "shopify", "square", "telegram", "twilio"]
Kind = Literal[_Platforms, _Forms, _Issuers, _OtherIssuers, "other", "custom"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # the kinds of secrets, in the order of their numbers


class Secrets(Redacting):
    """Replaces API keys, tokens, private keys and passwords."""

    kinds: tuple[Kind, ...] = Field(
        default=KINDS, min_length=1, description=f"Kinds of secrets to replace: {', '.join(KINDS)}."
    )
    rules_file: Path | None = Field(
        default=None,
        alias="rules",
        description="A TOML file of rules in the form of gitleaks. What they find counts as `custom`. The built-in rules count "
        "too, unless the file has useDefault = false under [extend].",
    )
    min_entropy: float = Field(
        default=3.5,
        ge=0,
        le=5,
        description="Minimum entropy of the value of an assignment, in bits per character, measured over the "
        "characters of the value. The limit is for a value of 32 different characters. It is lower in "
        "proportion for shorter values and smaller alphabets: 2.8 for hexadecimal digits.",
    )
    replace: Literal["tag", "fake", "delete"] = Field(
        default="tag",
        description="What replaces a secret. tag: <SECRET> or <PRIVATE_KEY>. fake: EXAMPLE- and 16 digits, the same "
        "for equal secrets. delete: nothing.",
    )

    counts: ClassVar[tuple[str, ...]] = KINDS
    span_kinds = KINDS
    tags = tuple(b"<PRIVATE_KEY>" if kind == "private_key" else b"<SECRET>" for kind in KINDS)
    stand_ins = (SECRET,) * len(KINDS)

    def check_options(self) -> None:
        user_rules(self.rules_file)

    def input_files(self) -> tuple[str, ...]:
        return (str(BUILT_IN), *([str(self.rules_file)] if self.rules_file is not None else []))

    def libraries_used(self) -> tuple[str, ...]:
        return (*self.libraries, *([LIBRARY] if self.rules_file is not None else []))

    def notes(self) -> tuple[str, ...]:
        return user_rules(self.rules_file).notes

    @cached_property
    def _tables(self) -> secrets.Rules:
        tables = compiled_rules(KINDS, user_rules(self.rules_file))
        return tables if "custom" in self.kinds else replace(tables, patterns=None)

    def process(self, batch: DocumentBatch) -> FilterResult:
        wanted = sum(1 << KINDS.index(kind) for kind in set(self.kinds))

        def find(offsets: np.ndarray, data: np.ndarray, rows: np.ndarray) -> FoundSpans:
            return secrets.find(offsets, data, rules=self._tables, wanted=wanted, min_entropy=self.min_entropy)

        return self.redacted(batch, find)
