"""The tools of BFCL's tasks: functions that are only named, and the classes that its conversations act on."""

from __future__ import annotations

import copy
import importlib
import inspect
import threading
from typing import Any

from agentgym.errors import TaskError
from agentgym.tasks.bfcl_data import importable, place, rows, schema
from agentgym.types import ToolSpec

SOURCE = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
CLASSES = {  # module, and the file of its documentation
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
STATELESS = ("MathAPI",)
MAX_DEPTH = 50
DIGITS = 15  # mpmath's precision at first; the package's calculator sets it for the whole process
_ALONE = threading.Lock()


class Named:
    """Functions that do nothing: what counts is how they are called."""

    checked = False  # what they are called with is for the verifier to judge

    def __init__(self, functions: list[dict[str, Any]]) -> None:
        self.specs = [
            ToolSpec(name=one["name"], description=one.get("description", ""), parameters=schema(one["parameters"]))
            for one in functions
        ]

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        return "called"

    def state(self) -> Any:
        return None


class Office:
    """Instances of the package's classes, loaded with the scenario of a task.

    Args:
        classes: names of them, some of CLASSES.
        scenario: what each of them begins with.
        excluded: methods that are not on offer.
        path: where the package lies, if it is not installed.
        long_context: whether its tools return much.
    """

    checked = False  # the package's functions answer bad arguments themselves

    def __init__(
        self,
        classes: list[str],
        scenario: dict[str, Any],
        excluded: list[str] | None = None,
        path: str = "",
        long_context: bool = False,
    ) -> None:
        importable(path)
        self.digits = DIGITS
        self.context = importlib.import_module("mpmath").mp if "MathAPI" in classes else None
        self.instances: dict[str, Any] = {}
        self.methods: dict[str, Any] = {}
        self.specs: list[ToolSpec] = []
        for name in classes:
            if name not in CLASSES:
                raise TaskError(f"bfcl: unknown class {name!r}; known: {', '.join(CLASSES)}")
            instance = getattr(importlib.import_module(f"{SOURCE}.{CLASSES[name]}"), name)()
            if name not in STATELESS:
                instance._load_scenario(copy.deepcopy(scenario.get(name, {})), long_context=long_context)
            self.instances[name] = instance
            for one in rows(place(path), f"multi_turn_func_doc/{CLASSES[name]}.json"):
                if one["name"] not in (excluded or ()):
                    self._offer(instance, one)

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        if self.context is None:
            return public(self.methods[name](**arguments))
        with _ALONE:
            self.context.dps = self.digits
            try:
                return public(self.methods[name](**arguments))  # how a number is written depends on it as well
            finally:
                self.digits = self.context.dps

    def state(self) -> dict[str, Any]:
        return {name: public(held(instance)) for name, instance in self.instances.items()}

    def _offer(self, instance: Any, documented: dict[str, Any]) -> None:
        name = documented["name"]
        self.methods[name] = getattr(instance, name)
        parameters = schema(documented["parameters"])
        self.specs.append(ToolSpec(name=name, description=documented.get("description", ""), parameters=parameters))


def parameters_of(classes: list[str], path: str) -> dict[str, list[str]]:
    """The names of the parameters of each method of the classes."""
    importable(path)
    found = {}
    for name in classes:
        kind = getattr(importlib.import_module(f"{SOURCE}.{CLASSES[name]}"), name)
        for method, function in inspect.getmembers(kind, inspect.isfunction):
            found[method] = [one for one in inspect.signature(function).parameters if one != "self"]
    return found


def public(value: Any, depth: int = 0) -> Any:
    """Plain data of whatever an instance holds, as far as it is public; a tree's way back up is left out."""
    if depth > MAX_DEPTH:
        raise TaskError("bfcl: a state is nested too deeply")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, dict):
        return {str(key): public(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        items = [public(item, depth + 1) for item in value]
        return sorted(items, key=repr) if isinstance(value, set) else items
    return public(held(value), depth + 1) if held(value) else repr(value)


def held(instance: Any) -> dict[str, Any]:
    """The public attributes of an instance."""
    attributes = getattr(instance, "__dict__", {})
    return {key: item for key, item in attributes.items() if not key.startswith("_") and key != "parent"}
