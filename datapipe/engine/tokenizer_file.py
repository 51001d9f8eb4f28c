"""The user's tokenizer, read and checked before anything runs, and the warnings about its special tokens.

    tokenizer.path   a tokenizer.json, a tiktoken rank file, or the folder of a Hugging Face tokenizer
      └─▶ tokenizer.json ── Encoder ──▶ refused, or the content with warnings and notes
          tokenizer_config.json ── hints: bos_token, eos_token, add_bos_token

A run writes one token after every document, and one before it where the mixture has `tokenizer.bos`. The post-processor of
the file never runs, and the hints decide nothing: both are compared with the tokens of the run, and differences are reported.
The proof which library encodes is made here, when the run is planned (`tokens/proof.py`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from datapipe.config.mixture import Mixture
from datapipe.config.sources.repository import STAGE as JOIN
from datapipe.config.stage_use import StageUse
from datapipe.config.tokenizer_spec import TokenizerSpec
from datapipe.dataclass import dataclass, field
from datapipe.errors import UserError
from datapipe.records.names import CHAT_TEMPLATE
from datapipe.steps.warnings import RunWarning
from datapipe.storage.outages import input_error, outage_of
from datapipe.storage.root import open_input, split_query
from datapipe.tokens.encoder import LARGEST_FILE, TOKENIZER, Encoder
from datapipe.tokens.fim import Fim, check_fim
from datapipe.tokens.separators import separators_in
from datapipe.tokens.tiktoken import convert, is_rank_file
from datapipe.tokens.vocabulary import is_in_brackets

CONFIG = "tokenizer_config.json"


def _listed(tokens: tuple[str, ...]) -> str:
    return " ".join(map(repr, tokens))


@dataclass(frozen=True, kw_only=True, slots=True)
class UsersTokenizer:
    """A tokenizer.json with notes and warnings. Empty where the run trains one."""

    content: bytes = b""
    notes: tuple[str, ...] = ()
    warnings: tuple[RunWarning, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Hints:
    bos: str | None = None
    eos: str | None = None
    adds_bos: bool = False


def users_tokenizer(mixture: Mixture, *, encodes: bool = True) -> UsersTokenizer:
    """The tokenizer at `tokenizer.path`, proved if the run encodes. Raises UserError for one that cannot be used."""
    spec, where = mixture.tokenizer, mixture.where("tokenizer", "path")
    if spec.path is None:
        return UsersTokenizer()
    content, folder = _opened(spec.path, where)
    hints = _Hints() if folder is None else _hints(folder, where)
    try:
        content = _as_json(content, spec)
        encoder = Encoder(content, eos=spec.eos, bos=spec.bos)
    except UserError as error:
        named = "" if spec.eos is not None or hints.eos is None else f". {CONFIG} names {hints.eos!r} as eos_token"
        raise UserError(f"{where}: {spec.path}: {error}{named}") from error
    _check_fim(encoder, mixture)
    warnings = [RunWarning(kind="special_tokens", text=f"{where}: {text}") for text in _differences(encoder, spec, hints)]
    notes = list(_notes(encoder, hints))
    if encodes:  # the proof takes a second
        proof = encoder.proof
        slow = f" (short strings at {proof.mb_per_s:.1f} MB/s a core)" if proof.choice.reason else ""
        notes.append(f"{proof.choice.words}{slow}")
    return UsersTokenizer(content=content, notes=tuple(notes), warnings=tuple(warnings))


def _opened(path: str, where: str) -> tuple[bytes, str | None]:
    """As `_found`. Raises UserError, which names `where`, and OutageError."""
    try:
        return _found(path)
    except OSError as error:
        raise input_error(error, where, "cannot read the tokenizer", path) from error
    except UserError as error:
        raise UserError(f"{where}: {path}: {error}") from error


def added_tokens(mixture: Mixture) -> dict[str, bool]:
    """The added tokens of the tokenizer at a path, and which are special; none without one, or where no source joins files.
    Raises UserError for one that cannot be used, and OutageError."""
    spec, sources = mixture.tokenizer, mixture.sources
    joins = any(
        source.repository or any(use.name == JOIN for use in mixture.stages_of(name)) for name, source in sources.items()
    )
    if spec.path is None or not joins:
        return {}
    content, _ = _opened(spec.path, mixture.where("tokenizer", "path"))
    try:
        listed = json.loads(_as_json(content, spec)).get("added_tokens") or ()
        return {token["content"]: bool(token.get("special")) for token in listed}
    except (ValueError, LookupError, TypeError, AttributeError, UserError):
        users_tokenizer(mixture, encodes=False)  # raises what is wrong with it
        raise


def with_separators(mixture: Mixture, source: str, tokens: Mapping[str, bool]) -> list[StageUse]:
    """The stages of a source, the one that joins the files of repositories with control tokens, of the `added_tokens`. Raises
    UserError for others."""
    uses = mixture.stages_of(source)
    return [_with_separators(mixture, source, use, tokens) if use.name == JOIN else use for use in uses]


def _with_separators(mixture: Mixture, source: str, use: StageUse, tokens: Mapping[str, bool]) -> StageUse:
    named = separators(mixture, source, use.options.get("separators"), tokens)
    return use.model_copy(update={"options": {**use.options, "separators": named}})


def separators(mixture: Mixture, source: str, named: Sequence[str] | None, tokens: Mapping[str, bool]) -> list[str]:
    """The control tokens between files, of the `added_tokens`; none where no tokenizer at a path encodes documents."""
    if mixture.tokenizer.path is None:
        return list(named or ())
    try:
        found = list(separators_in(tokens, named))
    except UserError as error:
        raise UserError(f"{mixture.where('sources', source, 'repository')}: {error}") from error
    if not found and mixture.sources[source].fim is not None:
        raise UserError(
            f"{mixture.where('sources', source, 'fim')}: needs control tokens between files, which it changes one by one, and "
            f"found none. Name two of the tokenizer by repository.separators, or leave fim out"
        )
    return found


def _check_fim(encoder: Encoder, mixture: Mixture) -> None:
    """Raises UserError where the tokenizer cannot put the documents of a source into the order of filling in the middle."""
    for name, source in mixture.sources.items():
        if source.fim is not None:
            try:
                check_fim(encoder, Fim(**source.fim.model_dump()))
            except UserError as error:
                raise UserError(f"{mixture.where('sources', name, 'fim')}: {error}") from error


def _found(path: str) -> tuple[bytes, str | None]:
    """The file at a path, or that of the folder there, with the folder. Raises OSError, UserError."""
    try:
        return _read(path), None
    except OSError as error:  # stores know no folders
        if outage_of(error, path) is not None:
            raise
        base, query = split_query(path)
        try:
            content = _read(f"{base.rstrip('/')}/{TOKENIZER}{query}")
        except FileNotFoundError:
            if isinstance(error, IsADirectoryError):
                raise UserError(
                    f"found a folder without {TOKENIZER}. A tokenizer of transformers writes one: "
                    f"`AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)`"
                ) from error
            raise error from None
        return content, path


def _read(path: str) -> bytes:
    with open_input(path) as stream:
        if stream.size() > LARGEST_FILE:
            raise UserError(f"found {stream.size():,} bytes, expected a tokenizer of at most {LARGEST_FILE:,}")
        return stream.read()


def _hints(folder: str, where: str) -> _Hints:
    """The hints of a configuration; none where it is missing, or cannot be understood. Raises as `_beside`."""
    config = _config(folder, where)
    bos, eos = _named(config.get("bos_token")), _named(config.get("eos_token"))
    return _Hints(bos=bos, eos=eos, adds_bos=config.get("add_bos_token") is True)


def _config(folder: str, where: str) -> Mapping[str, Any]:
    """The configuration in a folder; empty where it is missing, or cannot be understood. Raises as `_beside`."""
    with suppress(ValueError, RecursionError):
        config = json.loads(_beside(folder, CONFIG, where) or b"{}")
        if isinstance(config, dict):
            return config
    return {}


def _beside(folder: str, name: str, where: str) -> bytes | None:
    """A file in the folder of a tokenizer; None if it is missing. Raises UserError, which names `where`, and OutageError."""
    base, query = split_query(folder)
    path = f"{base.rstrip('/')}/{name}{query}"
    try:
        return _read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise input_error(error, where, "cannot read", path) from error
    except UserError as error:
        raise UserError(f"{where}: {path}: {error}") from error


def _named(token: Any) -> str | None:
    """A token as `transformers` writes it: its text, or a mapping with its content."""
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) and content else None


def _as_json(content: bytes, spec: TokenizerSpec) -> bytes:
    if is_rank_file(content):
        return convert(content, spec.pattern, spec.special_tokens)
    for name in ("pattern", "special_tokens"):
        if getattr(spec, name) is not None:
            raise UserError(
                f"`{name}` is an option for ranks of tiktoken, and this file is a tokenizer.json. Leave the option out"
            )
    return content


def _differences(encoder: Encoder, spec: TokenizerSpec, hints: _Hints) -> Iterator[str]:
    """Differences between the special tokens of the tokenizer and those of the run."""
    before, behind = encoder.adds.before, encoder.adds.behind
    begin = "their text" if encoder.bos_token is None else repr(encoder.bos_token)
    if before and before != (encoder.bos_token,):
        may_begin = len(before) == 1 and before[0] != encoder.eos_token
        advice = f" To write it, add `bos: {json.dumps(before[0])}`." if may_begin else ""
        yield (
            f"the post-processor of the tokenizer puts {_listed(before)} before a text, and documents begin with {begin}. A "
            f"model that was trained with {_listed(before)} expects it.{advice}"
        )
    elif encoder.bos_token is None and hints.adds_bos and hints.bos is not None:
        yield (
            f"{CONFIG} puts {hints.bos!r} before a text (add_bos_token), and documents begin with {begin}. To write it, add "
            f"`bos: {json.dumps(hints.bos)}`."
        )
    if behind and behind != (encoder.eos_token,):
        yield (
            f"the post-processor of the tokenizer puts {_listed(behind)} behind a text, and documents end with "
            f"{encoder.eos_token!r}. `eos` names another token."
        )
    if spec.eos is None and hints.eos is not None and hints.eos != encoder.eos_token:
        yield (
            f"{CONFIG} names {hints.eos!r} as eos_token, and documents end with {encoder.eos_token!r}. `eos` names another "
            f"token."
        )


def _notes(encoder: Encoder, hints: _Hints) -> Iterator[str]:
    begin = "" if encoder.bos_token is None else f"begin with {encoder.bos_token!r} and "
    yield f"documents {begin}end with {encoder.eos_token!r}"
    around = {"before": encoder.adds.before, "behind": encoder.adds.behind}
    added = " and ".join(f"{_listed(tokens)} {side}" for side, tokens in around.items() if tokens)
    if added:
        yield f"the post-processor of the tokenizer, which does not run, adds {added} a text"
    named = [f"{key} {token!r}" for key, token in (("bos_token", hints.bos), ("eos_token", hints.eos)) if token is not None]
    if named:
        yield f"{CONFIG} names {' and '.join(named)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatTokens:
    """What a chat template needs of a tokenizer."""

    template: str | None = None  # its own
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # by the name of the variable, "bos_token"
    control_tokens: tuple[str, ...] = ()  # that a template may write; empty without a tokenizer


def chat_tokens(mixture: Mixture) -> ChatTokens:
    """What the tokenizer of a mixture has for chat templates. Raises UserError."""
    spec, where = mixture.tokenizer, mixture.where("tokenizer", "path")
    if spec.train is not None:
        control = (spec.train.eos, *spec.train.control_tokens)
        return ChatTokens(special_tokens={"eos_token": spec.train.eos}, control_tokens=tuple(dict.fromkeys(control)))
    if spec.path is None:
        return ChatTokens()
    content, folder = _opened(spec.path, where)
    folder = _folder_of(spec.path) if folder is None else folder
    config = _config(folder, where)
    given = {name: token for name, token in (("bos_token", spec.bos), ("eos_token", spec.eos)) if token is not None}
    named = {name: token for name, each in config.items() if name.endswith("_token") and (token := _named(each)) is not None}
    return ChatTokens(
        template=_own_template(folder, config, where),
        special_tokens={**named, **given},
        control_tokens=_control_tokens(content, spec),
    )


def _control_tokens(content: bytes, spec: TokenizerSpec) -> tuple[str, ...]:
    """The control tokens of a tokenizer; none of one that cannot be used."""
    try:
        added = json.loads(_as_json(content, spec)).get("added_tokens") or ()
        names = [(str(each["content"]), each.get("special")) for each in added]
        return tuple(name for name, is_special in names if is_special or is_in_brackets(name))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UserError):  # `users_tokenizer` reports it
        return ()


def _folder_of(path: str) -> str:
    base, query = split_query(path)
    return f"{base.rpartition('/')[0] or '.'}{query}"


def _own_template(folder: str, config: Mapping[str, Any], where: str) -> str | None:
    """The chat template in the folder of a tokenizer; None without one. Of several by name it is the one named default. Raises
    as `_beside`."""
    content = _beside(folder, CHAT_TEMPLATE, where)
    if content is not None:
        return content.decode("utf-8", "replace")
    own = config.get("chat_template")
    if isinstance(own, list):
        named = {each["name"]: each.get("template") for each in own if isinstance(each, Mapping) and "name" in each}
        own = named.get("default") or next(iter(named.values()), None)
    return own if isinstance(own, str) and own else None
