"""A user's file of rules for `redact.secrets`, in the form of gitleaks.

Read are `[[rules]]` with `id`, `regex`, `secretGroup`, `entropy`, `keywords` and their allowlists, `[allowlist]` and
`[[allowlists]]` for all rules, and `[extend]` with `useDefault` and `disabledRules`. The built-in rules count too, unless
`useDefault = false`. All rules of gitleaks 8 itself can be read. Paths and commits have no effect: `datapipe plan` names them.
"""

import tomllib
from pathlib import Path
from typing import Any

from datapipe.dataclass import dataclass
from datapipe.errors import UserError, suggest
from stages.redact._patterns import Allowance, Pattern, compiled

_SPEED = (
    "{}: each of its {} rules reads every text that has one of its keywords. With the 222 rules of gitleaks code is read at "
    "10 MB/s and prose at 40; the built-in rules alone read 100 and 400"
)
_TOP = {"title", "description", "minVersion", "extend", "rules", "allowlist", "allowlists"}
_RULE = {"id", "description", "regex", "secretGroup", "entropy", "keywords", "path", "tags", "skipReport"}
_RULE |= {"allowlist", "allowlists"}
_ALLOWLIST = {"id", "description", "condition", "paths", "commits", "regexTarget", "regexes", "stopwords", "targetRules"}
_EXTEND = {"useDefault", "disabledRules", "path", "url"}
_TYPES: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("id", "regex"), (str, "a text")),
    **dict.fromkeys(("keywords", "regexes", "stopwords"), (list, "a list of texts")),
    **dict.fromkeys(("disabledRules", "targetRules"), (list, "a list of ids")),
    "secretGroup": (int, "a number of a group"),
    "entropy": ((int, float), "a number of bits"),
    "useDefault": (bool, "true or false"),
    "condition": (str, '"OR" or "AND"'),
    "regexTarget": (str, '"secret", "match" or "line"'),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class UserRules:
    """The rules of a file, ids of built-in rules that are off, or whether all are, and notes: what has no effect."""

    patterns: tuple[Pattern, ...] = ()
    uses_built_in: bool = True
    disabled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_rules(path: Path, built_in_ids: list[str]) -> UserRules:
    """The rules of a file. Raises UserError, which names the file, the rule and the key."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"rules: cannot read {path}: {error.strerror}. Expected a readable TOML file of rules.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"rules: {path} is no TOML: {error}. Correct the file.") from error
    return _File(path).read(table, built_in_ids)


class _File:
    def __init__(self, path: Path) -> None:
        self._path, self._notes = path, list[str]()

    def _error(self, place: str, text: str) -> UserError:
        return UserError(f"rules: {self._path}: {place}: {text}")

    def _checked(self, table: Any, known: set[str], place: str) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise self._error(place, f"found {type(table).__name__}, expected a table with keys.")
        for key, value in table.items():
            if key not in known:
                raise self._error(
                    place, f"unknown key '{key}'.{suggest(key, known)} Expected one of: {', '.join(sorted(known))}."
                )
            kind, expected = _TYPES.get(key, (object, ""))
            is_wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool and kind is not object)
            if is_wrong or (isinstance(value, list) and kind is list and not all(isinstance(item, str) for item in value)):
                raise self._error(place, f"{key}: found {value!r}, expected {expected}.")
        return table

    def read(self, table: dict[str, Any], built_in_ids: list[str]) -> UserRules:
        self._checked(table, _TOP, "top level")
        extend = self._checked(table.get("extend", {}), _EXTEND, "[extend]")
        for key in ("path", "url"):
            if key in extend:
                raise self._error("[extend]", f"{key}: other files are not read. Copy their rules into this file.")
        disabled = tuple(extend.get("disabledRules", ()))
        for name in disabled:
            if name not in built_in_ids:
                hint = f"{suggest(name, built_in_ids)} `stages/redact/rules/secrets.toml` lists the ids."
                raise self._error("[extend]", f"disabledRules: no built-in rule is called '{name}'.{hint}")
        everywhere = self._allowlists(table, "top level")
        rules, patterns, ids = table.get("rules", []), [], set[str]()
        if not isinstance(rules, list):
            raise self._error("rules", "found a single table. Write [[rules]], with two brackets.")
        for number, rule in enumerate(rules, 1):
            pattern = self._rule(rule, number, everywhere, ids)
            patterns += [pattern] if pattern is not None else []
        uses_built_in = extend.get("useDefault", True)
        if not patterns and not (disabled and uses_built_in):
            raise self._error("top level", "no rule with a regex. Write a [[rules]] table, or disabledRules under [extend].")
        if patterns:
            self._notes.append(_SPEED.format(self._path, len(patterns)))
        if not uses_built_in:
            self._notes.append(f"{self._path}: the built-in rules are off, by useDefault = false")
        return UserRules(
            patterns=tuple(patterns), uses_built_in=uses_built_in, disabled=disabled, notes=tuple(dict.fromkeys(self._notes))
        )

    def _rule(self, rule: Any, number: int, everywhere: list[tuple[Allowance, list[str]]], ids: set[str]) -> Pattern | None:
        place = f"rule '{rule['id']}'" if isinstance(rule, dict) and isinstance(rule.get("id"), str) else f"rule {number}"
        self._checked(rule, _RULE, place)
        if not rule.get("id"):
            raise self._error(place, "has no id. Give every rule one.")
        if rule["id"] in ids:
            raise self._error(place, "is there twice. Give every rule its own id.")
        ids.add(rule["id"])
        if "path" in rule:
            self._notes.append(f"{self._path}: {place}: path has no effect, since documents have no path")
        if "regex" not in rule:
            self._notes.append(f"{self._path}: {place} has no regex and finds nothing")
            return None
        pattern = self._pattern(rule["regex"], place, "regex")
        group = rule.get("secretGroup", 0)
        if not 0 <= group <= pattern.groups:
            raise self._error(place, f"secretGroup: found {group}, expected 0 to {pattern.groups}, the groups of its regex.")
        own = [exception for exception, _ in self._allowlists(rule, place)]
        own += [exception for exception, targets in everywhere if not targets or rule["id"] in targets]
        keywords = tuple(word.lower() for word in rule.get("keywords", ()) if word)
        if not keywords:
            self._notes.append(f"{self._path}: {place} has no keywords, so its regex reads every text, which is slow")
        return Pattern(
            id=rule["id"],
            keywords=keywords,
            pattern=pattern,
            group=group,
            entropy=rule.get("entropy", 0),
            exceptions=tuple(own),
        )

    def _pattern(self, written: str, place: str, key: str) -> Any:
        try:
            return compiled(written)
        except ValueError as error:
            raise self._error(place, f"{key} {error}, in {self._path}.") from error

    def _allowlists(self, table: dict[str, Any], place: str) -> list[tuple[Allowance, list[str]]]:
        """The allowlists of a table, each with the ids of the rules that it is for; [] for all."""
        lists = [table["allowlist"]] if "allowlist" in table else []
        lists += table.get("allowlists", [])
        allowlists = []
        for written in lists:
            allowlist = self._checked(written, _ALLOWLIST, f"{place}: allowlist")
            for key in {"paths", "commits"} & set(allowlist):
                self._notes.append(f"{self._path}: {place}: {key} of an allowlist have no effect")
            condition, target = allowlist.get("condition", "OR"), allowlist.get("regexTarget", "secret")
            if condition.upper() not in ("OR", "AND", "||", "&&"):
                raise self._error(place, f'condition: found "{condition}", expected "OR" or "AND".')
            if target not in ("secret", "match", "line", ""):
                raise self._error(place, f'regexTarget: found "{target}", expected "secret", "match" or "line".')
            patterns = tuple(
                self._pattern(pattern, f"{place}: allowlist", "regexes") for pattern in allowlist.get("regexes", ())
            )
            words = tuple(word.lower().encode() for word in allowlist.get("stopwords", ()))
            needs_all = condition.upper() in ("AND", "&&")
            exception = Allowance(patterns=patterns, stop_words=words, target=target or "secret", needs_all=needs_all)
            allowlists.append((exception, allowlist.get("targetRules", [])))
        return allowlists
