"""Tools of an episode: Python functions, classes whose state lasts for the episode, and MCP servers.

What a task names (`Task.data["tools"]`, plain data) is one of

    {"function": "module:name"}                                    a typed function, sync or async
    {"class": "module:Class", "options": {...}, "only": [...]}     each public method of one instance per episode
                                                                   (a ToolSource, such as PythonTool: what it offers)
    {"provider": "module:Class", "options": {...}}                 an object with `specs` and `call` (see `Provider`)
    {"mcp": {"command": ["python", "server.py"]}}                  see `mcp.py`
    {"mcp": {"url": "http://127.0.0.1:8000/mcp"}}

A call never raises for what the policy did: unknown names, bad arguments, exceptions inside the tool and time-outs are
results that say what is wrong. A tool raises InfrastructureError where the machine is at fault, and that passes.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import msgspec

from agentgym.environments.tool_schema import Signature
from agentgym.environments.tool_thread import TimeUp, ToolThread
from agentgym.environments.tool_values import Misfit, fit, plain, serialise
from agentgym.errors import AgentgymError, InfrastructureError, TaskError, UsageError
from agentgym.registry import nearest
from agentgym.types import Struct, ToolCall, ToolSpec

_SIGNATURES: WeakKeyDictionary[Callable[..., Any], dict[str, Signature]] = WeakKeyDictionary()


class ToolResult(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What a call came to: `content` is what the model reads, `error` which kind of failure it is (empty: none)."""

    id: str
    name: str
    content: str
    error: str = ""  # "unknown_tool", "bad_json", "bad_arguments", "exception", "timeout", "refused"
    seconds: float = 0.0

    @property
    def misspelt(self) -> bool:
        """Whether the call itself was wrong, before any tool ran."""
        return self.error in ("unknown_tool", "bad_json", "bad_arguments")


class ToolFailed(Exception):
    """A tool says that it failed; the model reads its message as it is."""


class Tool(ABC):
    """One tool on offer."""

    spec: ToolSpec

    @abstractmethod
    async def call(self, arguments: dict[str, Any], timeout_s: float) -> Any:
        """What the tool returns, as it is or as text.

        Raises:
            Misfit: the arguments are not what the schema asks for.
            TimeoutError: it took longer than `timeout_s`.
            InfrastructureError: the machine is at fault. Whatever else it raises is the tool's answer to the model.
        """


class ToolSource(ABC):
    """Where tools come from; lives as long as an episode."""

    @abstractmethod
    async def start(self) -> Sequence[Tool]:
        """Make the tools ready. Raises TaskError or InfrastructureError."""

    def state(self) -> Any:
        """What the tools have changed, as plain data; None if that is not known."""
        return None

    async def close(self) -> None:
        """Free everything; safe to call twice and after a failure."""


class FunctionTool(Tool):
    """A typed function, or a method bound to its instance; a sync one runs in `thread`."""

    def __init__(self, function: Callable[..., Any], thread: ToolThread, name: str = "") -> None:
        self.function, self.thread = function, thread
        self.signature = _signature(getattr(function, "__func__", function), name)
        self.spec = self.signature.spec

    async def call(self, arguments: dict[str, Any], timeout_s: float) -> Any:
        given = _converted(self.signature, arguments)
        if inspect.iscoroutinefunction(inspect.unwrap(self.function)):
            async with asyncio.timeout(timeout_s):
                return await self.function(**given)
        return await self.thread.call(lambda: self.function(**given), timeout_s)


class Functions(ToolSource):
    """Functions, each a tool."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self.functions = functions
        self.thread = ToolThread()

    async def start(self) -> Sequence[Tool]:
        return [FunctionTool(function, self.thread) for function in self.functions]

    async def close(self) -> None:
        self.thread.close()


class Stateful(ToolSource):
    """The public methods of an instance that is made for the episode, and whose state a verifier may compare.

    Its state is what its method `state` returns, else its public attributes; `state` itself is no tool.
    """

    def __init__(
        self, make: Callable[..., Any], options: dict[str, Any] | None = None, only: Sequence[str] = ()
    ) -> None:
        self.make, self.options, self.only = make, options or {}, tuple(only)
        self.thread = ToolThread()
        self.instance: Any = None

    async def start(self) -> Sequence[Tool]:
        self.instance = self.make(**self.options)
        names = [name for name, _ in inspect.getmembers(type(self.instance), inspect.isfunction)]
        order = list(vars(type(self.instance)))  # as they were written
        offered = sorted((name for name in names if _offered(name)), key=lambda n: order.index(n) if n in order else -1)
        if missing := set(self.only) - set(offered):
            raise TaskError(f"{type(self.instance).__name__} has no method {sorted(missing)[0]!r}")
        chosen = self.only or offered
        return [FunctionTool(getattr(self.instance, name), self.thread, name) for name in chosen]

    def state(self) -> Any:
        return state_of(self.instance)

    async def close(self) -> None:
        self.thread.close()
        self.instance = None


class Provider(Protocol):
    """Tools that bring schemas of their own: what a reader of somebody else's data makes."""

    specs: Sequence[ToolSpec]
    checked: bool  # whether arguments are held to the schemas before a call

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """What the tool returns or raises; it runs in a thread of the episode's."""

    def state(self) -> Any:
        """What the tools have changed, as plain data; None without."""


class ProvidedTool(Tool):
    """One tool of a provider."""

    def __init__(self, provider: Provider, spec: ToolSpec, thread: ToolThread) -> None:
        self.provider, self.spec, self.thread = provider, spec, thread

    async def call(self, arguments: dict[str, Any], timeout_s: float) -> Any:
        given = fit(arguments, self.spec.parameters) if self.provider.checked else arguments
        return await self.thread.call(lambda: self.provider.call(self.spec.name, given), timeout_s)


class Provided(ToolSource):
    """The tools of a provider that is made for the episode."""

    def __init__(self, make: Callable[..., Any], options: dict[str, Any] | None = None) -> None:
        self.make, self.options = make, options or {}
        self.thread = ToolThread()
        self.provider: Provider | None = None

    async def start(self) -> Sequence[Tool]:
        self.provider = self.make(**self.options)
        return [ProvidedTool(self.provider, spec, self.thread) for spec in self.provider.specs]

    def state(self) -> Any:
        state = None if self.provider is None else self.provider.state()
        return None if state is None else plain(state)

    async def close(self) -> None:
        self.thread.close()
        self.provider = None


def state_of(instance: Any) -> Any:
    """The state of an instance as plain data: what its method `state` returns, else its public attributes."""
    if instance is None:
        return None
    if callable(getattr(instance, "state", None)):
        return plain(instance.state())
    return plain({name: value for name, value in vars(instance).items() if not name.startswith("_")})


class Toolbox:
    """The tools of one episode, by name.

    Args:
        sources: where they come from.
        timeout_s: deadline of each call.
        max_chars: of a result that the model reads; head and tail are kept.

    Example:
        box = Toolbox([Functions(add)])
        await box.start()
        result = await box.call(ToolCall(id="1", name="add", arguments='{"a": 1}'))
        await box.close()
    """

    def __init__(self, sources: Sequence[ToolSource], *, timeout_s: float = 20.0, max_chars: int = 8000) -> None:
        self.sources = list(sources)
        self.timeout_s, self.max_chars = timeout_s, max_chars
        self.tools: dict[str, Tool] = {}

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What is on offer, in order."""
        return tuple(tool.spec for tool in self.tools.values())

    async def start(self) -> None:
        """Start each source. Raises TaskError where two tools have one name, or what they raise."""
        for source in self.sources:
            try:
                started = await source.start()
            except UsageError as error:
                raise TaskError(str(error)) from error
            except AgentgymError:
                raise
            except Exception as error:
                raise TaskError(f"the tools cannot be made: {type(error).__name__}: {error}") from error
            for tool in started:
                if self.tools.setdefault(tool.spec.name, tool) is not tool:
                    raise TaskError(f"two tools are called {tool.spec.name!r}")

    async def call(self, call: ToolCall, timeout_s: float | None = None) -> ToolResult:
        """What a call comes to. Raises InfrastructureError where the machine is at fault, never for the policy's."""
        began = time.monotonic()
        error, value = await self._answer(call, timeout_s or self.timeout_s)
        content = serialise(value if not error else f"error: {value}", self.max_chars)
        return ToolResult(
            id=call.id, name=call.name, content=content, error=error, seconds=round(time.monotonic() - began, 4)
        )

    async def _answer(self, call: ToolCall, timeout_s: float) -> tuple[str, Any]:
        began = time.monotonic()
        tool = self.tools.get(call.name)
        if tool is None:
            known = ", ".join(self.tools)
            return (
                "unknown_tool",
                f"there is no tool {call.name!r}{nearest(call.name[:200], self.tools)}; known: {known}",
            )
        try:
            arguments = _decode(call.arguments)
        except ValueError as problem:
            return "bad_json", f"the arguments of {call.name} {problem}"
        try:
            return "", await tool.call(arguments, timeout_s)
        except Misfit as misfit:
            return "bad_arguments", f"{call.name}: {misfit}"
        except (TimeoutError, TimeUp) as late:
            if time.monotonic() - began < timeout_s - 0.01:  # one of the tool's own
                return "exception", f"{type(late).__name__}: {late}"
            return "timeout", f"{call.name} took longer than {timeout_s:.3g} s"
        except InfrastructureError:
            raise
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            return "exception", f"{call.name} was cancelled"
        except ToolFailed as failed:
            return "exception", str(failed)
        except (Exception, SystemExit, BaseExceptionGroup) as raised:
            return "exception", f"{type(raised).__name__}: {raised}"

    def state(self) -> list[Any]:
        """The state of each source that has one."""
        return [state for source in self.sources if (state := source.state()) is not None]

    async def close(self) -> None:
        """Close each source, also if another fails; safe to call twice."""
        sources, self.sources, self.tools = self.sources, [], {}
        errors = []
        for source in reversed(sources):
            try:
                await source.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def sources_from(listed: Sequence[dict[str, Any]]) -> list[ToolSource]:
    """The sources that a task names. Raises TaskError for what is no source, or cannot be imported."""
    return [_source(entry) for entry in listed]


def _source(entry: dict[str, Any]) -> ToolSource:
    kinds = [kind for kind in ("function", "class", "provider", "mcp") if kind in entry]
    if len(kinds) != 1:
        raise TaskError(f"{entry!r:.200} names no tools: expected one of function, class, provider, mcp")
    if kinds == ["function"]:
        return Functions(load(entry["function"]))
    if kinds == ["class"]:
        made = load(entry["class"])
        if isinstance(made, type) and issubclass(made, ToolSource):
            return _made(made, entry.get("options") or {})
        return Stateful(made, entry.get("options"), entry.get("only", ()))
    if kinds == ["provider"]:
        return Provided(load(entry["provider"]), entry.get("options"))
    from agentgym.environments.mcp import MCPServer  # loads the SDK

    try:
        return MCPServer(**entry["mcp"])
    except (TypeError, UsageError) as error:
        raise TaskError(f"an MCP server cannot be made of {entry['mcp']!r:.200}: {error}") from error


def _made(kind: type[ToolSource], options: dict[str, Any]) -> ToolSource:
    try:
        return kind(**options)
    except (TypeError, UsageError) as error:
        raise TaskError(f"{kind.__name__} cannot be made with {options!r:.200}: {error}") from error


def load(path: str) -> Any:
    """What "module:name" names. Raises TaskError."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise TaskError(f"{path!r}: {error}") from error


def _offered(name: str) -> bool:
    return not name.startswith("_") and name != "state"


def _signature(function: Callable[..., Any], name: str) -> Signature:
    """Made once for each function, as long as it lives: an episode begins in a moment."""
    try:
        made = _SIGNATURES.setdefault(function, {})
    except TypeError:  # a callable that no weak reference can hold
        return Signature(function, name)
    if name not in made:
        made[name] = Signature(function, name)
    return made[name]


def _converted(signature: Signature, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return signature.arguments(arguments)
    except msgspec.ValidationError as error:  # a date that is none, and the like
        raise Misfit([str(error)]) from error


def _decode(text: str) -> dict[str, Any]:
    """The arguments of a call. Raises ValueError that continues "the arguments of x ..."."""
    if not text.strip():
        return {}  # what some servers send for a call without arguments
    try:
        decoded = json.loads(text, parse_constant=_no_number, strict=False)
    except RecursionError:
        raise ValueError("are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"are not valid JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise ValueError("must be a JSON object")
    fit(decoded, {"type": "object"})
    return decoded


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")
