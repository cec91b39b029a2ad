"""What environments with a shell take, and what is said about what they do not."""

import inspect
from typing import Any

import pytest
from typer.testing import CliRunner

import agentgym
from agentgym.cli import app
from agentgym.environments.acting import ShellEnv, ShellSettings
from agentgym.environments.swe import SWEEnv
from agentgym.environments.terminal import TerminalEnv
from agentgym.errors import UsageError

SHARED = list(ShellSettings.__struct_fields__)
OWN = {
    "terminal": ["partial_credit"],
    "swe": ["reward", "test_timeout_s"],
    "task-folder": ["image", "partial_credit"],
    "agentbench-os": ["image"],
}


@pytest.mark.parametrize("name", OWN)
def test_the_signature_holds_what_all_take_and_what_is_its_own(name: str) -> None:
    parameters = inspect.signature(agentgym.registry.ENVIRONMENTS.load(name)).parameters
    assert list(parameters) == SHARED + OWN[name]
    assert all(one.kind is one.KEYWORD_ONLY and one.default is not one.empty for one in parameters.values())
    shown = CliRunner().invoke(app, ["envs", "show", name]).output
    steps = parameters["max_steps"].default
    assert f"max_steps: int = {steps}" in shown and "protocol: Literal['block', 'tools'] = 'block'" in shown.replace(
        '"', "'"
    )


def test_each_has_its_own_defaults() -> None:
    assert (TerminalEnv().settings.max_steps, SWEEnv().settings.max_steps) == (8, 50)
    assert SWEEnv(max_steps=3, reward="share").settings.max_output_chars == 8000
    assert TerminalEnv(partial_credit=True, command_timeout_s=3).settings.command_timeout_s == 3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_stepz": 3}, "did you mean 'max_steps'"),
        ({"partial_credits": True}, "did you mean 'partial_credit'"),
        ({"protocol": "tool"}, "did you mean 'tools'"),
        ({"max_steps": "three"}, "max_steps.*int"),
        ({"max_steps": 0}, "max_steps must be > 0"),
        ({"command_timeout_s": -1.0}, "command_timeout_s must be > 0"),
        ({"context_tokens": -1}, "context_tokens"),
        ({"tokenizer": "/nowhere"}, "cannot read"),
        ({"network": "host"}, "network"),
    ],
)
def test_what_it_does_not_take_is_told(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        agentgym.make("terminal", **options)


def test_an_environment_of_ones_own_may_take_more_or_less() -> None:
    class More(TerminalEnv):
        defaults = ShellSettings(max_steps=2)

        def __init__(self, *, colour: str = "red", **shared: Any) -> None:
            super().__init__(**shared)
            self.colour = colour

    class Less(More):
        def __init__(self, *, colour: str = "blue") -> None:
            super().__init__(colour=colour)

    assert list(inspect.signature(More).parameters) == [*SHARED, "colour", "partial_credit"]
    assert list(inspect.signature(Less).parameters) == ["colour"]
    assert (More(partial_credit=True).settings.max_steps, Less().colour) == (2, "blue")
    with pytest.raises(TypeError, match="did you mean 'colour'"):
        More(color="x")


def test_the_first_message_says_how_to_act() -> None:
    assert TerminalEnv().system_prompt == (
        "You work in a Linux shell. Answer with one ```bash block holding one command. Say when you are done."
    )
    assert (
        TerminalEnv(max_steps=1, protocol="tools").system_prompt == "You work in a Linux shell. Use the tools to act."
    )
    bench = agentgym.make("agentbench-os", protocol="tools").system_prompt
    assert "say it without a tool call: `Answer: ...`" in bench and issubclass(type(agentgym.make("swe")), ShellEnv)
    assert TerminalEnv(system_prompt="").system_prompt == ""
