"""Replaces keys, tokens and passwords in code, configuration and text.

    text  ->  tokens by prefix, alphabet and length; PEM blocks; values of assignments  ->  replaced

    aws             key ids, Bedrock keys, and 40 characters after a name such as aws_secret_access_key
    azure           client secrets of Entra ID, 88 characters after AccountKey, and signatures of URLs (sig=)
    npm             tokens, also those after _authToken= and _auth=
    slack, discord  tokens, and the addresses of webhooks
    hashicorp       tokens of Vault and Terraform
    jwt             JSON web tokens, also without signature or in base64 once more
    private_key     whole PEM blocks, in the JSON of service accounts too
    assignment      values after a name that ends in password, secret, token or api_key, and those of Authorization headers
    other           tokens of some fifty services more: 1Password, Airtable, Databricks, Groq, Notion, OpenRouter, RubyGems, …

The other kinds are the tokens of one service each: anthropic, artifactory, atlassian, digitalocean, facebook, gcp, github,
gitlab, google_oauth, grafana, heroku, hugging_face, mailchimp, openai, pypi, sendgrid, sentry, shopify, square, stripe,
telegram and twilio. `datapipe/kernels/redact/tokens.py` lists the prefixes.

A value of an assignment is in quotes and of high entropy, or it has no quotes and more digits than names have. Words, paths,
dotted keys, variables and placeholders are not replaced: a weak password remains, and so does a key that contains EXAMPLE or
xxxx. Of random values of 16 letters and digits, one in a hundred reads like words and remains.

| corpus | replaced by mistake |
|---|---|
| 48 MB of functions, solutions, a manual and web text | nothing |
| 365 MB of Python packages | 96 values, in examples of manuals and in tests: 84 of them are one UUID |

Of the positives in the tests of two scanners, without placeholders and without the rules that take any value after the name of
a service, two thirds were read while the rules were written and one third was not:

| scanner | read | not read |
|---|---|---|
| detect-secrets | 30 of 32 | 17 of 19 |
| gitleaks | 109 of 111 | 45 of 46 |

Random secrets of every form are all found (`tests/datapipe/kernels/redact/test_secrets.py`).
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

from pydantic import Field, PrivateAttr

from datapipe import rng
from datapipe.kernels.redact import secrets
from datapipe.kernels.redact.pii import SECRET
from datapipe.kernels.redact.tokens import KINDS, Kind
from datapipe.stage import Filter, FilterResult, Rule, StageContext
from datapipe.stage.documents import DocumentBatch
from stages.redact._edit import Editor

_TAGS = tuple(b"<PRIVATE_KEY>" if kind == "private_key" else b"<SECRET>" for kind in KINDS)


class Secrets(Filter):
    """Replaces API keys, tokens, private keys and passwords."""

    mode: Literal["drop", "tag"] = Field(
        default="drop",
        description="drop: replace spans, and drop documents with more than `max_hits`. tag: only count; nothing is replaced "
        "or dropped, and the report marks the counts with `(tag)`.",
    )
    kinds: tuple[Kind, ...] = Field(
        default=KINDS, min_length=1, description=f"Kinds of secrets to replace: {', '.join(KINDS)}."
    )
    min_entropy: float = Field(
        default=3.5,
        ge=0,
        le=8,
        description="Least entropy of the value of an assignment, in bits a character, by the character frequencies of the "
        "value: random hexadecimal digits have up to 4, words about 3.",
    )
    replace: Literal["tag", "fake", "delete"] = Field(
        default="tag",
        description="The replacement. tag: <SECRET> or <PRIVATE_KEY>. fake: EXAMPLE- and 16 digits; equal secrets get equal "
        "replacements throughout the run. delete: nothing.",
    )
    max_hits: int | None = Field(
        default=None, ge=0, description="Most secrets of a document; documents with more are dropped. null: no limit."
    )

    counts: ClassVar[tuple[str, ...]] = KINDS
    writes = ()
    _seed: int = PrivateAttr(default=0)

    def open(self, context: StageContext) -> None:
        self._seed = rng.seed_for(context.seed, context.name, "fake")

    def rules(self) -> list[Rule]:
        return [] if self.max_hits is None else [self.at_most("too_many_hits", "max_hits")]

    def process(self, batch: DocumentBatch) -> FilterResult:
        wanted = sum(1 << KINDS.index(kind) for kind in set(self.kinds))
        editor = Editor(
            find=partial(secrets.find, wanted=wanted, min_entropy=self.min_entropy),
            replace=self.replace,
            seed=self._seed,
            tags=_TAGS,
            stand_ins=(SECRET,) * len(_TAGS),
            count_columns=tuple(range(len(KINDS))),
        )
        return editor.result(batch, self.counts, self.rules())
