"""The judge that follows rules of the config: regular expressions and comparisons over an exchange.

`judge.rules` is a list of mappings, tried in order. A rule applies if all of its conditions do; a rule without any
always does, and comes last. The first that applies and has a `score` decides; the `hint`s of all that apply on the way
are candidates.

    score        -1, 0 or 1
    hint         a text for the teacher
    matches      a regular expression (of the package `regex`), searched for in
    where        next_state (default), response, or task
    role         of the next state, only the messages of this role
    ignore_case  true or false (default)
    path         info.NAME (and deeper), reward, outcome, last or turn; compared by one or more of
    equals, above, below, exists
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, get_args

import regex

from agentgym.config import Config
from agentgym.errors import ConfigError
from agentgym.judge import JudgeCache
from agentgym.policies.judge import HintingJudge, Verdict
from agentgym.policy import Policy
from agentgym.registry import nearest
from agentgym.types import Exchange, Role
from agentgym.untrusted import head_and_tail

BUDGET_S = 1.0  # of processor time for one search: an expression may take for ever on a text made for it
MAX_CHARS = 200_000  # of a text that is searched, head and tail
KEYS = ("score", "hint", "matches", "where", "role", "ignore_case", "path", "equals", "above", "below", "exists")
WHERE = ("next_state", "response", "task")
ROOTS = ("info", "reward", "outcome", "last", "turn")
MISSING = object()

Condition = Callable[[Exchange], bool]  # raises TimeoutError


class Rule:
    """One rule, checked and compiled. Raises ConfigError, naming it, if it cannot work."""

    def __init__(self, number: int, given: Any) -> None:
        self.name = f"judge.rules[{number}]"
        if not isinstance(given, dict):
            raise ConfigError(f"{self.name}: expected a mapping, got {given!r}")
        for key in given:
            if key not in KEYS:
                raise ConfigError(
                    f"{self.name}: unknown key {key!r}{nearest(str(key), KEYS)}; known: {', '.join(KEYS)}"
                )
        self.score, self.hint = given.get("score"), given.get("hint", "")
        if self.score is not None and (isinstance(self.score, bool) or self.score not in (-1, 0, 1)):
            raise ConfigError(f"{self.name}: score={self.score!r}: expected -1, 0 or 1")
        if not isinstance(self.hint, str) or (self.score is None and not self.hint):
            raise ConfigError(f"{self.name}: has neither a score nor a hint of text")
        self.conditions = [*self._search(given), *self._comparison(given)]

    def applies(self, exchange: Exchange) -> bool:
        """Whether all conditions hold. Raises TimeoutError."""
        return all(holds(exchange) for holds in self.conditions)

    def _search(self, given: dict[str, Any]) -> list[Condition]:
        if "matches" not in given:
            if extra := {"where", "role", "ignore_case"} & given.keys():
                raise ConfigError(f"{self.name}: {min(extra)} goes with matches")
            return []
        where, role, pattern = given.get("where", "next_state"), given.get("role"), given["matches"]
        if where not in WHERE:
            raise ConfigError(f"{self.name}: where={where!r}: expected one of {', '.join(WHERE)}")
        if role is not None and (role not in get_args(Role) or where != "next_state"):
            raise ConfigError(f"{self.name}: role={role!r}: one of {', '.join(get_args(Role))}, with where=next_state")
        if not isinstance(ignore_case := given.get("ignore_case", False), bool):
            raise ConfigError(f"{self.name}: ignore_case={ignore_case!r}: expected true or false")
        try:
            compiled = regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
        except (regex.error, TypeError) as error:
            raise ConfigError(f"{self.name}: matches={pattern!r} is no regular expression: {error}") from error
        return [lambda exchange: _found(compiled, text_of(exchange, where, role))]

    def _comparison(self, given: dict[str, Any]) -> list[Condition]:
        asked = [key for key in ("equals", "above", "below", "exists") if key in given]
        if "path" not in given:
            if asked:
                raise ConfigError(f"{self.name}: {asked[0]} goes with path")
            return []
        path = str(given["path"]).split(".")
        if path[0] not in ROOTS or (len(path) > 1) != (path[0] == "info") or not all(path):
            raise ConfigError(f"{self.name}: path={given['path']!r}: expected info.NAME, {', '.join(ROOTS[1:])}")
        if not asked:
            raise ConfigError(f"{self.name}: path needs one of equals, above, below, exists")
        for key, kinds in (("above", int | float), ("below", int | float), ("exists", bool)):
            if key in given and (
                not isinstance(given[key], kinds) or isinstance(given[key], bool) != (key == "exists")
            ):
                raise ConfigError(
                    f"{self.name}: {key}={given[key]!r}: expected {'a number' if key != 'exists' else 'true or false'}"
                )
        return [lambda exchange: all(TESTS[key](value_at(exchange, path), given[key]) for key in asked)]


class RulesJudge(HintingJudge):
    """One vote, by the first rule that applies; unscored where none does or they take too long."""

    kind = "rules"

    def __init__(self, config: Config, *, ask: Policy | None = None, cache: JudgeCache | None = None) -> None:
        super().__init__(config)
        self.rules = [Rule(number, given) for number, given in enumerate(config.judge.rules)]
        if not self.rules:
            raise ConfigError("judge.kind=rules needs judge.rules: see docs/learning.md")
        for rule in self.rules[:-1]:
            if not rule.conditions and rule.score is not None:
                raise ConfigError(f"{rule.name} always applies: those after it never would; put it last")

    async def verdict(self, exchange: Exchange) -> Verdict:
        return await asyncio.to_thread(self._verdict, exchange)

    def _verdict(self, exchange: Exchange) -> Verdict:
        hints: list[str] = []
        for rule in self.rules:
            try:
                if not rule.applies(exchange):
                    continue
            except TimeoutError:
                return Verdict((None,), tuple(hints), f"{rule.name} took too long: make its expression simpler")
            hints += [rule.hint] if rule.hint else []
            if rule.score is not None:
                return Verdict((int(rule.score),), tuple(hints))
        return Verdict((None,), tuple(hints), "no rule applies")


def text_of(exchange: Exchange, where: str, role: str | None = None) -> str:
    """The text that a rule searches."""
    if where == "task":
        return exchange.task
    if where == "response":
        calls = [f"{call.name}({call.arguments})" for call in exchange.response.tool_calls]
        return "\n".join([exchange.response.content, *calls])
    return "\n".join(message.content for message in exchange.next_state if role in (None, message.role))


def value_at(exchange: Exchange, path: Sequence[str]) -> Any:
    """The value at a path such as info.exit_code, or MISSING."""
    value: Any = getattr(exchange, path[0])
    for key in path[1:]:
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = value[key]
    return value


def _found(pattern: Any, text: str) -> bool:
    head, _, tail = head_and_tail(text, MAX_CHARS)
    parts = (head, tail) if tail else (head,)
    return any(pattern.search(part, timeout=BUDGET_S, concurrent=True) for part in parts)


def _equals(value: Any, wanted: Any) -> bool:
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "equals": _equals,
    "above": lambda value, bound: _is_number(value) and value > bound,
    "below": lambda value, bound: _is_number(value) and value < bound,
    "exists": lambda value, wanted: (value is not MISSING and value is not None) == wanted,
}
