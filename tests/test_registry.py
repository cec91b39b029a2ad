from importlib.metadata import entry_points

import pytest

import agentgym
from agentgym.errors import UsageError
from agentgym.registry import ENGINES, ENVIRONMENTS, TASK_SETS, Registry, nearest


class Thing:
    def __init__(self, *, size: int = 1) -> None:
        self.size = size


@pytest.fixture
def registry() -> Registry:
    return Registry("thing", "agentgym.no_such_group")


def test_a_factory_by_its_name(registry):
    registry.register("path", "pathlib:PurePosixPath")
    registry.register("thing", Thing)
    assert registry.names() == ["path", "thing"]
    assert registry.make("thing", size=3).size == 3
    assert str(registry.load("path")("a/b")) == "a/b"


def test_the_decorator_gives_its_class_back(registry):
    made = registry.register("thing")(Thing)
    assert made is Thing and registry.load("thing") is Thing


def test_nothing_is_imported_before_it_is_made(registry):
    registry.register("absent", "no_such_module:Class")
    assert registry.names() == ["absent"]
    with pytest.raises(ModuleNotFoundError):
        registry.make("absent")


def test_an_unknown_name_answers_with_the_nearest(registry):
    registry.register("terminal", Thing)
    with pytest.raises(UsageError, match=r"unknown thing 'terminl' \(did you mean 'terminal'\?\); known: terminal"):
        registry.make("terminl")
    assert nearest("xyz", ["terminal"]) == ""


def test_a_string_without_a_class_is_refused(registry):
    with pytest.raises(UsageError, match="expected 'module:Class'"):
        registry.register("thing", "module.Class")


def test_wrong_keywords_are_a_usage_error(registry):
    registry.register("thing", Thing)
    with pytest.raises(UsageError, match=r"'thing' cannot be made with \['colour'\]"):
        registry.make("thing", colour="red")


def test_entry_points_of_other_packages_are_found():
    consoles = Registry("script", "console_scripts")
    assert "agentgym" in consoles.names()
    assert "agentgym" in {point.name for point in entry_points(group="console_scripts")}


@pytest.mark.parametrize(
    "registry, name", [(ENVIRONMENTS, "terminal"), (TASK_SETS, "terminal/basics"), (ENGINES, "vllm")]
)
def test_what_ships_is_registered(registry, name):
    assert name in registry.names()


def test_the_public_names_are_the_registries():
    assert agentgym.make.__self__ is ENVIRONMENTS and agentgym.make_tasks.__self__ is TASK_SETS
    with pytest.raises(UsageError, match="did you mean 'terminal'"):
        agentgym.make("terminnal")
