"""Verdicts on an episode of tool calls: the final answer, the state that the tools are left in, the calls themselves.

An expectation is plain data with a `kind` and what that kind asks for:

    answer    value, compare ("number": the last number said, default for numbers; "text": equal but for case and space;
              "contains": said somewhere as words of their own), tolerance (of a number, relative; 1e-6)
    state     value (plain data), source (which of the stateful tools; 0), ignore (keys left out at the top)
    replay    turns: for each of the user's messages the calls that are right; the state must be as they leave it, after
              each message. They are replayed on tools of their own. With results: true what they return must have come
              back to the policy as well, by then.
    no_calls  nothing more: the right thing is to call no tool, and to say something
    function  function ("module:name") that gets the Evidence and the expectation and returns what is wrong, or ""
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from agentgym.environments.tool_values import differences, named, plain
from agentgym.environments.tools import Toolbox, ToolResult, load, sources_from
from agentgym.errors import AgentgymError, TaskError
from agentgym.types import Struct, ToolCall

Expectation = dict[str, Any]
MAX_DIFFERENCES = 5
NUMBER = re.compile(r"[-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?|[-−]?\.\d+")
MARKED = re.compile(r"####\s*|\\boxed\{|<answer>")  # what models put before a final answer


class Made(Struct, frozen=True, kw_only=True):
    """A call that was made, and what came of it."""

    call: ToolCall
    result: ToolResult


class Evidence(Struct, frozen=True, kw_only=True):
    """What an episode left behind, as data; turns are the user's messages."""

    answer: str  # the last message of the policy without calls, its thinking left out
    made: tuple[tuple[Made, ...], ...] = ()  # per turn
    said: tuple[str, ...] = ()  # the policy's words at the end of each turn
    states: tuple[list[Any], ...] = ()  # of the stateful tools, after each turn
    errors: int = 0  # malformed calls
    tools: tuple[dict[str, Any], ...] = ()  # as the task names them
    max_chars: int = 8000  # of a result

    @property
    def calls(self) -> list[Made]:
        """All calls in order."""
        return [made for turn in self.made for made in turn]


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Whether one expectation holds, and in words why not."""

    kind: str
    ok: bool
    why: str = ""


async def verify(expectations: Iterable[Expectation], evidence: Evidence) -> list[Verdict]:
    """One verdict per expectation. Raises TaskError for a malformed one, or where there is none."""
    verdicts = []
    for expectation in expectations:
        kind = expectation.get("kind") if isinstance(expectation, dict) else None
        if kind not in JUDGES:
            raise TaskError(f"unknown expectation {kind!r}; known: {', '.join(JUDGES)}")
        try:
            why = JUDGES[kind](expectation, evidence)
            why = await why if inspect.isawaitable(why) else why
        except AgentgymError:
            raise
        except Exception as error:
            raise TaskError(f"the verifier {kind!r} raised {type(error).__name__}: {error}") from error
        verdicts.append(Verdict(kind=kind, ok=not why, why=why))
    if not verdicts:
        raise TaskError("the task expects nothing: it could not be judged")
    return verdicts


def number_in(text: str) -> float | None:
    """The number that a text gives as its answer: after `####`, in a box, else the last one; None without."""
    marks = list(MARKED.finditer(text))
    found = NUMBER.search(text, marks[-1].end()) if marks else None
    if found is None:
        found = next(reversed(list(NUMBER.finditer(text))), None)
    return float(found[0].replace(",", "").replace("−", "-")) if found else None


def _answer(expectation: Expectation, evidence: Evidence) -> str:
    wanted, said = expectation["value"], evidence.answer
    numeric = isinstance(wanted, int | float) and not isinstance(wanted, bool)
    compare = expectation.get("compare", "number" if numeric else "text")
    if compare == "number":
        found = number_in(said)
        tolerance = float(expectation.get("tolerance", 1e-6))
        if found is not None and math.isclose(found, float(wanted), rel_tol=tolerance, abs_tol=tolerance):
            return ""
        return f"the answer is {'no number' if found is None else f'{found:g}'} instead of {wanted}"
    if compare == "text":
        return "" if _folded(said) == _folded(wanted) else f"the answer is {named(said)} instead of {named(wanted)}"
    if compare == "contains":
        words = re.escape(_folded(wanted))
        return "" if re.search(rf"(?<!\w){words}(?!\w)", _folded(said)) else f"the answer does not say {named(wanted)}"
    raise TaskError(f"an answer cannot be compared by {compare!r}; known: number, text, contains")


def _folded(text: Any) -> str:
    return " ".join(str(text).casefold().split())


def _state(expectation: Expectation, evidence: Evidence) -> str:
    states = evidence.states[-1] if evidence.states else []
    source = expectation.get("source", 0)
    if source >= len(states):
        raise TaskError(f"there is no state of source {source}: {len(states)} of the tools have one")
    return differ(states[source], expectation["value"], expectation.get("ignore", ()))


def differ(found: Any, wanted: Any, ignore: Iterable[str] = ()) -> str:
    """In words where two states differ; empty if they do not."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        left_out = set(ignore)
        found = {key: item for key, item in found.items() if key not in left_out}
        wanted = {key: item for key, item in wanted.items() if key not in left_out}
    listed = []
    for one in differences(found, plain(wanted)):
        listed.append(one)
        if len(listed) == MAX_DIFFERENCES:
            break
    return "; ".join(listed)


async def _replay(expectation: Expectation, evidence: Evidence) -> str:
    right = await replay(evidence.tools, expectation["turns"], evidence.max_chars)
    if len(evidence.states) < len(right):
        return f"the conversation ended in message {len(evidence.states)} of {len(right)}"
    came_back: list[str] = []
    for index, (results, states) in enumerate(right):
        came_back += [made.result.content for made in evidence.made[index]]
        if not expectation["turns"][index]:
            continue  # whatever the policy did, the next message's state shows it
        for here, there in zip(evidence.states[index], states, strict=True):
            if why := differ(here, there, expectation.get("ignore", ())):
                return f"after message {index + 1}: {why}"
        if expectation.get("results") and (missing := _missing(results, came_back, evidence.made[index])):
            return f"after message {index + 1}: {missing}"
    return ""


def _missing(results: list[str], came_back: list[str], made: tuple[Made, ...]) -> str:
    """What the right calls of a turn return that never came back to the policy."""
    if not made:
        return "no tool was called"
    left = list(came_back)
    for result in results:
        if result not in left:
            return f"no call returned {named(result)}"
        left.remove(result)
    return ""


async def replay(
    tools: Iterable[dict[str, Any]], turns: Iterable[list[dict[str, Any]]], max_chars: int
) -> list[tuple[list[str], list[Any]]]:
    """What calls return on tools of their own, and the states that they leave, per turn. Raises TaskError for wrong ones."""
    box = Toolbox(sources_from(list(tools)), max_chars=max_chars)
    replayed = []
    try:
        await box.start()
        for turn in turns:
            results = []
            for call in turn:
                made = ToolCall(id="replay", name=call["name"], arguments=json.dumps(call.get("arguments", {})))
                result = await box.call(made)
                if result.misspelt:
                    raise TaskError(f"the right calls cannot be made: {result.content}")
                results.append(result.content)
            replayed.append((results, box.state()))
    finally:
        await asyncio.shield(box.close())
    return replayed


def _no_calls(expectation: Expectation, evidence: Evidence) -> str:
    if evidence.calls or evidence.errors:
        return "a tool was called"
    return "" if evidence.answer.strip() else "nothing was said"


async def _function(expectation: Expectation, evidence: Evidence) -> str:
    judged = load(expectation["function"])(evidence, expectation)
    why = await judged if inspect.isawaitable(judged) else judged
    if not isinstance(why, str):
        raise TaskError(f"{expectation['function']} returned {named(why)} instead of a text")
    return why


JUDGES: dict[str, Callable[[Expectation, Evidence], str | Awaitable[str]]] = {
    "answer": _answer,
    "state": _state,
    "replay": _replay,
    "no_calls": _no_calls,
    "function": _function,
}
