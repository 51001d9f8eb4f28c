"""The tokens of known issuers as one table: a prefix, then runs of characters of given alphabets and lengths.

    TABLE  --parsed once-->  a trie of the prefixes  +  the runs behind each prefix
    bytes at the start of a word  --trie-->  prefixes  --runs-->  start, stop and kind of the token

The trie costs one look-up for a word whose first byte begins no prefix. Prefixes, alphabets and lengths are facts that the
issuers document, or that the configuration of gitleaks 8.30 and the detectors of detect-secrets 1.5 list. In neither are glwt-
(GitLab), sk-or-v1- (OpenRouter), gsk_ (Groq), xai-, tskey- (Tailscale), sbp_ (Supabase), nfp_ (Netlify) and r8_ (Replicate);
their forms are those in use in 2026, and no list to check them against was at hand.

A row of the table is a kind, its prefixes, `|`, and the runs. `hex{32}` is a run of 32 characters of the alphabet `hex`,
`token{20,64}` one of 20 to 64, and a sign alone is itself. A run takes as many characters as it may. No letter, digit, `_` or
`-` follows a token, and no character of its last alphabet. What follows the prefix must look random, and behind a prefix of
four characters or fewer not like a name (`randomness.py`). A word behind a second `|`
is one more condition on it:

    mixed   digits, capitals and small letters
    loose   looks random with 2 bits a character: numbers among the parts
    cased   a quarter of the letters or more are capitals, and a quarter or more are small; in camelCase fewer are capitals
    unnamed does not look like a name, whatever the prefix

The rows of a prefix are tried in order, and the longest prefix wins. The prefix is a part of the token unless it ends in `/`,
`=` or `"`: then it is the address or the name before the token.
"""

from __future__ import annotations

import re
import string
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.redact.ascii import TOKEN, is_in
from datapipe.kernels.redact.randomness import CAPITALS, DIGITS, SMALL, is_cased, is_name, is_random, sorts_in

TABLE = """
aws           AKIA ASIA ABIA ACCA                                  | upper{16}
aws           A3T                                                  | upper{17}
aws           ABSK                                                 | base64{109,269} ={0,2}
aws           bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t         | base64{0,2000} ={0,2}
gcp           AIza                                                 | token{35}
google_oauth  GOCSPX-                                              | token{28}
google_oauth  ya29.                                                | token{20,1000}
github        ghp_ gho_ ghu_ ghs_ ghr_                             | alnum{36,255}
github        github_pat_                                          | token{60,255}
gitlab        glpat- glrt-                                         | token{20,300} . lower{9}
gitlab        glpat- gldt- glft- glsoat- glffct- glrt- glrtr- glwt- | token{20,300}
gitlab        glcbt- GR1348941                                     | token{20,300}
gitlab        glimt-                                               | token{25,26}
gitlab        glptt-                                               | token{40}
gitlab        glagent-                                             | token{50,1024}
gitlab        gloas-                                               | token{64}
gitlab        _gitlab_session=                                     | lower{32}
slack         xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs-            | digit{1,14} - token{10,255} | loose
slack         xapp- xoxe.xoxb- xoxe.xoxp-                          | digit - token{20,255} | loose
slack         xoxa- xoxr-                                          | alnum{16,64} | mixed
slack         hooks.slack.com/services/ hooks.slack-gov.com/services/ | word{8,14} / word{8,14} / word{16,32}
slack         hooks.slack.com/workflows/ hooks.slack.com/triggers/ | base64{30,90}
slack         hooks.slack-gov.com/workflows/ hooks.slack-gov.com/triggers/ | base64{30,90}
stripe        sk_live_ rk_live_ sk_test_ rk_test_ sk_prod_ rk_prod_ | alnum{10,255}
stripe        whsec_                                               | base64{24,255} ={0,2}
openai        sk-                                                  | token{32,255} | mixed
anthropic     sk-ant-                                              | token{40,255}
hugging_face  hf_ api_org_                                         | alnum{34} | cased
npm           npm_                                                 | alnum{36}
npm           _authToken=                                          | hex{8} - hex{4} - hex{4} - hex{4} - hex{12}
npm           _auth= _auth="                                         | base64{18,400} ={0,2}
pypi          pypi-AgE                                             | token{50,2000}
jwt           ZXlK                                                 | base64{60,2000} ={0,2} | mixed
artifactory   AKCp                                                 | alnum{69}
artifactory   cmVmd                                                | alnum{59}
atlassian     ATATT3                                               | field{186}
atlassian     ATCTT3xFfG                                           | field{171,200}
digitalocean  dop_v1_ doo_v1_ dor_v1_                              | hex{64}
discord       discord.com/api/webhooks/ discordapp.com/api/webhooks/ | digit{17,20} / token{60,80}
discord       discord.com/api/v6/webhooks/ discord.com/api/v7/webhooks/ | digit{17,20} / token{60,80}
discord       discord.com/api/v8/webhooks/                         | digit{17,20} / token{60,80}
discord       discord.com/api/v9/webhooks/ discord.com/api/v10/webhooks/ | digit{17,20} / token{60,80}
discord       discordapp.com/api/v6/webhooks/ discordapp.com/api/v7/webhooks/ | digit{17,20} / token{60,80}
discord       discordapp.com/api/v8/webhooks/ discordapp.com/api/v9/webhooks/ | digit{17,20} / token{60,80}
facebook      EAAM EAAC                                            | alnum{100,400}
grafana       eyJrIjoi                                             | alnum{70,400} ={0,3}
grafana       glc_                                                 | base64{32,400} ={0,3}
grafana       glsa_                                                | alnum{32} _ hex{8}
hashicorp     hvs.                                                 | token{90,120}
hashicorp     hvb. hvr.                                            | token{138,300}
hashicorp     s.                                                   | alnum{24} | mixed
heroku        HRKU-AA                                              | token{58}
sendgrid      SG.                                                  | token{16,24} . token{36,50}
sentry        sntrys_eyJpYXQiO                                     | base64{40,600} ={0,2} _ base64{43}
sentry        sntryu_                                              | hex{64}
shopify       shpat_ shpca_ shppa_ shpss_                          | hex{32}
square        sq0csp-                                              | token{43}
square        sq0atp-                                              | token{22,60}
square        EAAA                                                 | token{60} | mixed
twilio        SK AC                                                | hex{32}
other         sk-or-v1-                                            | hex{64}
other         gsk_                                                 | alnum{52}
other         xai-                                                 | alnum{80}
other         tskey-auth- tskey-api- tskey-client- tskey-scim- tskey-webhook- | alnum{8,24} - alnum{16,64} | unnamed
other         sbp_ sbp_oauth_                                      | hex{40}
other         nfp_                                                 | alnum{36}
other         r8_                                                  | alnum{37}
other         dnkey-                                               | word{26} - field{52}
other         NRJS-                                                | hex{19}
other         A3-                                                  | upper{6} - upper{11} - upper{5} - upper{5} - upper{5}
other         A3-                      | upper{6} - upper{6} - upper{5} - upper{5} - upper{5} - upper{5}
other         ops_eyJ                                              | base64{250,4000} ={0,3}
other         p8e-                                                 | alnum{32}
other         AGE-SECRET-KEY-1                                     | upper{58}
other         pat                                                  | alnum{14} . hex{64}
other         LTAI                                                 | alnum{20} | mixed
other         sc_ ext_ scauth_ authress_                           | lower{5,30} . lower{4,6} . token{14,36} . path{30,120}
other         4b1d                                                 | alnum{38} | mixed
other         CLOJARS_                                             | alnum{60}
other         v1.0-                                                | hex{24} - hex{146}
other         dapi                                                 | hex{32} -{0,1} digit{0,1}
other         dp.pt. dp.ct. dp.sa. dp.scim. dp.audit.              | alnum{40,44}
other         sl.                                                  | field{130,200}
other         duffel_test_ duffel_live_                            | field{43}
other         dt0c01.                                              | alnum{24} . alnum{64}
other         EZAK EZTK                                            | alnum{54}
other         FLWSECK_TEST- FLWSECK-                               | lower{32} - upper
other         FLWSECK_TEST-                                        | lower{12}
other         fo1_                                                 | token{43}
other         fm1a_ fm1r_ fm2_                                     | base64{100,4000} ={0,3}
other         fio-u-                                               | field{64}
other         pat. sat.                                            | token{22} . alnum{24} . alnum{20}
other         ico-                                                 | alnum{32} | mixed
other         s-s4t2ud- s-s4t2af-                                  | hex{64}
other         lin_api_ lin_oauth_                                  | alnum{40,64}
other         webhook.office.com/webhookb2/                        | uuid{36} @ uuid{36} / alnum{15} / lower{32} / uuid{36}
other         NRAK-                                                | upper{27}
other         NRII-                                                | token{32}
other         ntn_                                                 | digit{11} alnum{35}
other         API-                                                 | upper{26}
other         sha256~                                              | token{43}
other         pplx-                                                | alnum{48}
other         pscale_tkn_ pscale_oauth_ pscale_pw_                 | dotted{32,64}
other         PMAK-                                                | hex{24} - hex{34}
other         pnu_                                                 | alnum{36}
other         pul-                                                 | hex{40}
other         rdme_                                                | lower{70}
other         rubygems_                                            | hex{48}
other         tk-us-                                               | token{48}
other         xkeysib-                                             | hex{64} - alnum{16}
other         sm_aat_ sm_pat_ sm_sat_                              | alnum{16}
other         shippo_live_ shippo_test_                            | hex{40}
other         squ_ sqp_ sqa_                                       | alnum{40}
other         sgp_                                                 | hex{16} _ hex{40}
other         sgp_ sgp_local_                                      | hex{40}
other         tfp_                                                 | dotted{59}
other         AQVN                                                 | token{35,38} | mixed
other         access-sandbox- access-development- access-production- | uuid{36}
other         AAAAAAAAAAAAAAAAAAAAAA                               | percent{80,100}
"""
Kind = Literal[
    "aws",
    "gcp",
    "azure",
    "github",
    "gitlab",
    "slack",
    "stripe",
    "openai",
    "anthropic",
    "hugging_face",
    "npm",
    "pypi",
    "jwt",
    "google_oauth",
    "private_key",
    "assignment",
    "artifactory",
    "atlassian",
    "digitalocean",
    "discord",
    "facebook",
    "grafana",
    "hashicorp",
    "heroku",
    "mailchimp",
    "sendgrid",
    "sentry",
    "shopify",
    "square",
    "telegram",
    "twilio",
    "other",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""The kinds of secrets, in the order of their numbers."""
NO_KIND = -1
TOKEN_MILLIBITS = 2_800
"""Least entropy of what follows a prefix, in thousandths of a bit a character."""
_LOOSE_MILLIBITS = 2_000

_SMALL, _CAPITAL, _DIGIT = string.ascii_lowercase, string.ascii_uppercase, string.digits
_ALNUM = _DIGIT + _SMALL + _CAPITAL
_ALPHABETS = {
    "digit": _DIGIT,
    "lower": _DIGIT + _SMALL,
    "upper": _DIGIT + _CAPITAL,
    "hex": string.hexdigits,
    "uuid": string.hexdigits + "-",
    "alnum": _ALNUM,
    "word": _ALNUM + "_",
    "token": _ALNUM + "_-",
    "field": _ALNUM + "_-=",
    "dotted": _ALNUM + "_-=.",
    "path": _ALNUM + "_-=+/",
    "base64": _ALNUM + "+/",
    "percent": _ALNUM + "%",
    **{sign: sign for sign in "._-=/@"},
}
_BITS = {name: 1 << bit for bit, name in enumerate(_ALPHABETS)}
_CONDITIONS = {"": 0, "mixed": 1, "cased": 2, "loose": 3, "unnamed": 4}
_MIXED, _CASED, _LOOSE, _UNNAMED = 1, 2, 3, 4
_MAX_SHORT_PREFIX = 4


class _Form(NamedTuple):
    """One prefix of a row: the runs behind it as (bit of the alphabet, least, most), and the row's condition."""

    prefix: bytes
    kind: int
    runs: list[tuple[int, int, int]]
    condition: int


def _forms() -> list[_Form]:
    """The rows of the table, one for each prefix, those of one prefix together and in order."""
    forms = []
    for row in TABLE.strip().splitlines():
        head, written, condition = ([part.strip() for part in row.split("|")] + [""])[:3]
        kind, *prefixes = head.split()
        runs = [re.fullmatch(r"(\w{2,}|.)(?:\{(\d+)(?:,(\d+))?\})?", run) for run in written.split()]
        parsed = [(_BITS[run[1]], int(run[2] or 1), int(run[3] or run[2] or 1)) for run in runs if run]
        assert len(parsed) == len(runs), row
        forms += [_Form(prefix.encode(), KINDS.index(kind), parsed, _CONDITIONS[condition]) for prefix in prefixes]
    return sorted(forms, key=lambda form: form.prefix)


def _alphabets_of() -> np.ndarray:
    """The alphabets of each byte: (256,) uint32."""
    table = np.zeros(256, np.uint32)
    for name, members in _ALPHABETS.items():
        table[np.frombuffer(members.encode(), np.uint8)] |= _BITS[name]
    return table


def _trie(forms: list[_Form]) -> tuple[np.ndarray, np.ndarray]:
    """The prefixes as a tree of bytes.

    Returns:
        The node of each first byte, 0 for none: (256,) int64; and for each node its byte, its first child and its next sibling
        (0 for none), and the range of `forms` with this prefix: (num_nodes, 5) int64. Node 0 is the root.
    """
    nodes, roots = [[0, 0, 0, 0, 0]], np.zeros(256, np.int64)
    for number, form in enumerate(forms):
        node = 0
        for byte in form.prefix:
            child = nodes[node][1]
            while child and nodes[child][0] != byte:
                child = nodes[child][2]
            if not child:
                child = len(nodes)
                nodes.append([byte, 0, nodes[node][1], 0, 0])
                nodes[node][1] = child
            node = child
        nodes[node][3:] = [nodes[node][3] if nodes[node][4] else number, number + 1]
    node = nodes[0][1]
    while node:
        roots[nodes[node][0]], node = node, nodes[node][2]
    return roots, np.array(nodes, np.int64)


def _runs_of(forms: list[_Form]) -> tuple[np.ndarray, np.ndarray]:
    """The runs of all forms, (num_runs, 3) int64, and where those of each form start and stop, (num_forms + 1,) int64."""
    runs = np.array([run for form in forms for run in form.runs], np.int64)
    return runs, np.cumsum([0, *(len(form.runs) for form in forms)], dtype=np.int64)


_FORMS = _forms()
_ALPHABETS_OF = _alphabets_of()
_ROOTS, _NODES = _trie(_FORMS)
_RUNS, _RUN_BORDERS = _runs_of(_FORMS)
_FACTS = np.array(
    [
        (
            form.kind,
            form.condition,
            form.prefix[-1:] in (b"/", b"=", b'"'),
            len(form.prefix) > _MAX_SHORT_PREFIX and form.condition != _UNNAMED,
        )
        for form in _FORMS
    ],
    np.int64,
)
"""Of each form: its kind, its condition, whether its prefix is no part of the token, and whether a name may follow."""


def _first_pairs(forms: list[_Form]) -> np.ndarray:
    """Whether a prefix begins with two bytes, at 128 times the first and the second: (16384,) uint8."""
    table = np.zeros(1 << 14, np.uint8)
    table[[form.prefix[0] << 7 | form.prefix[1] for form in forms]] = 1
    return table


_FIRST_PAIRS = _first_pairs(_FORMS)


@inline
def begins_token(first, second) -> Any:
    """Whether a prefix may begin with two bytes; false for nearly all words."""
    return _FIRST_PAIRS[np.int64(first & 0x7F) << 7 | np.int64(second & 0x7F)] != 0


@inline
def _runs_stop(data, start, end, form):
    """The stop of the runs behind a prefix; -1 where they are not there or the token goes on."""
    j, alphabet = start, np.int64(0)
    for number in range(_RUN_BORDERS[form], _RUN_BORDERS[form + 1]):
        alphabet, least, most = _RUNS[number]
        first, limit = j, min(end, j + most)
        while j < limit and _ALPHABETS_OF[data[j]] & alphabet:
            j += 1
        if j - first < least:
            return -1
    goes_on = j < end and (is_in(data[j], TOKEN) or _ALPHABETS_OF[data[j]] & alphabet != 0)
    return -1 if goes_on else j


@inline
def _fits(data, start, stop, condition, counts):
    """Whether what follows a prefix looks random and fits the condition of its row, but for names."""
    if condition == _MIXED and sorts_in(data, start, stop) != DIGITS | CAPITALS | SMALL:
        return False
    if condition == _CASED and not is_cased(data, start, stop):
        return False
    return is_random(data, start, stop, _LOOSE_MILLIBITS if condition == _LOOSE else TOKEN_MILLIBITS, counts)


@inline
def find_token(data, start, end, counts):
    """Start, stop and kind of the token whose prefix is at `start`; start equals stop where there is none."""
    first, stop, kind = start, start, np.int64(NO_KIND)
    node, j = _ROOTS[data[start]], start + 1
    while node > 0:
        for form in range(_NODES[node, 3], _NODES[node, 4]):
            after = _runs_stop(data, j, end, form)
            if (
                after > 0
                and _fits(data, j, after, _FACTS[form, 1], counts)
                and (_FACTS[form, 3] or not is_name(data, j, after))
            ):
                first, stop, kind = (j if _FACTS[form, 2] else start), after, _FACTS[form, 0]
                break
        if j == end:
            break
        node = _NODES[node, 1]
        while node > 0 and _NODES[node, 0] != data[j]:
            node = _NODES[node, 2]
        j += 1
    return first, stop, kind
