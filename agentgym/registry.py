"""Names for environments and task sets: registered as "module:Class", by decorator, or by entry point."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from agentgym.errors import UsageError


class Registry:
    """Lazy factories by name; nothing is imported before it is made."""

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind  # for messages: "environment"
        self.group = group  # entry-point group
        self._factories: dict[str, str | Callable[..., Any]] = {}
        self._scanned = False

    def register(self, name: str, factory: str | Callable[..., Any] | None = None) -> Any:
        """Register `factory` ("module:Class" or a callable); without it, return a decorator."""
        if factory is None:
            return lambda made: (self.register(name, made), made)[1]
        if isinstance(factory, str) and ":" not in factory:
            raise UsageError(f"{self.kind} {name!r}: expected 'module:Class', got {factory!r}")
        self._factories[name] = factory
        return factory

    def names(self) -> list[str]:
        """All registered names, sorted."""
        self._scan()
        return sorted(self._factories)

    @property
    def factories(self) -> dict[str, str | Callable[..., Any]]:
        """What each name was registered as."""
        self._scan()
        return dict(self._factories)

    def load(self, name: str) -> Callable[..., Any]:
        """The factory registered as `name`; an unknown name answers with the nearest one."""
        self._scan()
        if name not in self._factories:
            raise UsageError(
                f"unknown {self.kind} {name!r}{nearest(name, self._factories)}; known: {', '.join(self.names())}"
            )
        factory = self._factories[name]
        if isinstance(factory, str):
            module, _, attribute = factory.partition(":")
            factory = getattr(importlib.import_module(module), attribute)
        return factory

    def make(self, name: str, **kwargs: Any) -> Any:
        """Make `name` with its keyword arguments."""
        factory = self.load(name)
        signature = inspect.signature(factory)
        try:
            signature.bind(**kwargs)
        except TypeError as error:
            unknown = [key for key in kwargs if key not in signature.parameters]
            hint = nearest(unknown[0], signature.parameters) if unknown else ""
            raise UsageError(f"{self.kind} {name!r} cannot be made with {sorted(kwargs)}: {error}{hint}") from error
        try:
            return factory(**kwargs)
        except (TypeError, ValueError, AttributeError) as error:
            if not kwargs:
                raise
            raise UsageError(
                f"{self.kind} {name!r} cannot be made with {kwargs}: {type(error).__name__}: {error}"
            ) from error

    def _scan(self) -> None:
        if not self._scanned:
            self._scanned = True
            for point in entry_points(group=self.group):
                self._factories.setdefault(point.name, point.value)


def nearest(name: str, known: Any) -> str:
    """A did-you-mean clause for messages, empty if nothing is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


ENVIRONMENTS = Registry("environment", "agentgym.environments")
TASK_SETS = Registry("task set", "agentgym.task_sets")
ENGINES = Registry("engine", "agentgym.engines")
TOOL_FORMATS = Registry("tool format", "agentgym.tool_formats")
JUDGES = Registry("judge", "agentgym.judges")
TEACHERS = Registry("teacher", "agentgym.teachers")
WRAPPERS = Registry("wrapper", "agentgym.wrappers")

ENVIRONMENTS.register("terminal", "agentgym.environments.terminal:TerminalEnv")
ENVIRONMENTS.register("task-folder", "agentgym.environments.task_folder:TaskFolderEnv")
ENVIRONMENTS.register("agentbench-os", "agentgym.environments.agentbench_os:AgentBenchOSEnv")
ENVIRONMENTS.register("conversation", "agentgym.environments.conversation:ConversationEnv")
ENVIRONMENTS.register("gui", "agentgym.environments.gui:GuiEnv")
ENVIRONMENTS.register("swe", "agentgym.environments.swe:SWEEnv")
ENVIRONMENTS.register("toolcall", "agentgym.environments.toolcall:ToolCallEnv")
TASK_SETS.register("terminal/basics", "agentgym.tasks.terminal_basics:TerminalBasics")
TASK_SETS.register("terminal/folders", "agentgym.tasks.task_folders:TaskFolders")
TASK_SETS.register("agentbench/os", "agentgym.tasks.agentbench_os:AgentBenchOS")
TASK_SETS.register("conversation/preferences", "agentgym.tasks.conversation:ConversationPreferences")
TASK_SETS.register("gui/shop", "agentgym.tasks.shop:ShopTasks")
TASK_SETS.register("gui/miniwob", "agentgym.tasks.miniwob:MiniWoB")
TASK_SETS.register("swe/bench", "agentgym.tasks.swe:SWEBench")
TASK_SETS.register("swe/quixbugs", "agentgym.tasks.swe:QuixBugs")
TASK_SETS.register("swe/pypi", "agentgym.tasks.swe_pairs:PypiPairs")
TASK_SETS.register("toolcall/desk", "agentgym.tasks.desk:Desks")
TASK_SETS.register("toolcall/gsm8k", "agentgym.tasks.gsm8k:GSM8K")
TASK_SETS.register("toolcall/bfcl", "agentgym.tasks.bfcl:BFCL")
ENGINES.register("vllm", "agentgym.policies.vllm:VLLMPolicy")
ENGINES.register("transformers", "agentgym.policies.transformers:TransformersPolicy")
TOOL_FORMATS.register("hermes", "agentgym.policies.formats_json:Hermes")
TOOL_FORMATS.register("json", "agentgym.policies.formats_json:JsonBlock")
TOOL_FORMATS.register("openai", "agentgym.policies.formats_json:OpenAI")
TOOL_FORMATS.register("qwen_xml", "agentgym.policies.formats_xml:QwenXML")
TOOL_FORMATS.register("llama3", "agentgym.policies.formats_marks:Llama3")
TOOL_FORMATS.register("mistral", "agentgym.policies.formats_marks:Mistral")
JUDGES.register("verifier", "agentgym.policies.judge_verifier:VerifierJudge")
JUDGES.register("rules", "agentgym.policies.judge_rules:RulesJudge")
JUDGES.register("llm", "agentgym.policies.judge_llm:LLMJudge")
TEACHERS.register("http", "agentgym.policies.teacher:HTTPTeacher")
WRAPPERS.register("time_limit", "agentgym.environments.wrappers:TimeLimit")
WRAPPERS.register("step_limit", "agentgym.environments.wrappers:StepLimit")
WRAPPERS.register("token_budget", "agentgym.environments.wrappers:TokenBudget")
WRAPPERS.register("truncate", "agentgym.environments.wrappers:TruncateObservation")
WRAPPERS.register("shape_reward", "agentgym.environments.wrappers:ShapeReward")
WRAPPERS.register("tool_format", "agentgym.environments.wrappers_tools:ToolFormat")
WRAPPERS.register("recording", "agentgym.environments.wrappers_recording:Recording")
WRAPPERS.register("faults", "agentgym.environments.wrappers_faults:Faults")
