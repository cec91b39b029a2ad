"""Software engineering: the policy edits a repository in a sandbox, and its patch is graded in another one.

The patch is the difference of the trees. What the repository's history could tell is gone: the agent finds one commit.
See `swe_grade` for what a task's data holds.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from agentgym.env import Info
from agentgym.environments import patches
from agentgym.environments.acting import ShellEnv, ShellSettings
from agentgym.environments.defences import strays
from agentgym.environments.swe_grade import (
    LIMITS,
    Instance,
    PatchReport,
    Trees,
    grade_patch,
    instance_of,
    opening,
    run_paths,
    started,
    trees_of,
)
from agentgym.environments.toolbox import PLACE, toolbox, wrapper
from agentgym.errors import SandboxError, UsageError
from agentgym.types import Message, Task

CHUNK = 50_000  # characters of a patch in one message of the oracle
INFO_PATCH = 100_000  # characters of the patch that the info keeps
REWARDS = ("resolved", "share")


class SWEEnv(ShellEnv):
    """A repository in a sandbox; see `ShellEnv` for how an episode goes and its arguments.

    Args:
        reward: `resolved` (1 if every named test passes, else 0), or `share` (of FAIL_TO_PASS that pass, as long as
            every PASS_TO_PASS does).
        test_timeout_s: seconds that the tests may take; a task may name its own.
    """

    name = "swe"
    defaults = ShellSettings(max_steps=50, max_parse_errors=3, command_timeout_s=60.0, max_output_chars=8000)
    place = (
        "You work in a Linux shell, in the root of a source repository. Change it so that the problem is solved; the tests "
        "that count are hidden."
    )

    def __init__(self, *, reward: str = "resolved", test_timeout_s: float | None = None, **shared: Any) -> None:
        super().__init__(**shared)
        if reward not in REWARDS:
            raise UsageError(f"swe: unknown reward {reward!r}; known: {', '.join(REWARDS)}")
        self.reward = reward
        self.test_timeout_s = test_timeout_s

    async def oracle(self, task: Task) -> list[Message]:
        instance = instance_of(task)
        patch = (await asyncio.to_thread(trees_of, instance)).patch if instance.fixed else instance.patch
        return self.script(apply_commands(patch))

    async def _open(self, task: Task) -> None:
        instance = instance_of(task)
        if self.test_timeout_s is not None:
            instance = msgspec.structs.replace(instance, timeout_s=self.test_timeout_s)
        self.instance: Instance = instance
        base = None
        if instance.image:
            self.sandbox = await started(self._sandbox(task, LIMITS, **opening(instance)))
            base = patches.read_tar(await self.sandbox.download("."))
        self.trees: Trees = await asyncio.to_thread(trees_of, instance, base)
        self.sandbox = self.sandbox or await started(self._sandbox(task, LIMITS, **opening(instance)))
        await self._lay_out()

    async def _lay_out(self) -> None:
        assert self.sandbox is not None
        base, instance = self.trees.base, self.instance
        if instance.image:
            await self.sandbox.run("rm -rf .git", timeout_s=60)
        else:
            tools = {**toolbox(instance.requirements), **wrapper(run_paths(instance, base))}
            await self.sandbox.upload(await asyncio.to_thread(patches.write_tar, {**base, **tools}))
        await self.sandbox.upload(self.trees.repository)
        await self.sandbox.write(".git/info/exclude", f"{PLACE}/\n".encode())
        await self.sandbox.run(f'export PATH="$PWD/{PLACE}/bin:$PATH" GIT_PAGER=cat PAGER=cat')

    async def _judge(self, said: str) -> tuple[float, Info]:
        try:
            patch = await self.patch()
        except SandboxError as error:
            return await self._spoilt(error)
        await self._stop()  # the agent is gone before anything is graded
        report = await grade_patch(self.instance, self.trees, patch, kind=self.kind)
        return self._reward(report), {"patch": patch[:INFO_PATCH], **plain(report)}

    async def patch(self) -> str:
        """The difference between the tree at the start and as it is now."""
        assert self.sandbox is not None
        after = await asyncio.to_thread(patches.read_tar, await self.sandbox.download("."))
        return await asyncio.to_thread(patches.diff, self.trees.base, strays(self.trees.base, after))

    def _reward(self, report: PatchReport) -> float:
        if self.reward == "resolved" or report.resolved:
            return float(report.resolved)
        fatal = any(hack.fatal for hack in report.hacks)
        return report.fail_to_pass if report.pass_to_pass == 1.0 and not fatal else 0.0


def plain(report: PatchReport) -> Info:
    """A report as plain data; `hack` counts what was found that could bend the tests."""
    told: dict[str, Any] = msgspec.to_builtins(report)
    return {**told, "solved": report.resolved, "hack": len(report.hacks)}


def apply_commands(patch: str) -> list[str]:
    """Commands that apply a patch in the repository, however long it is."""
    chunks = [""]
    for line in patches.normalise(patch).removesuffix("\n").split("\n"):
        if len(chunks[-1]) + len(line) > CHUNK and chunks[-1]:
            chunks.append("")
        chunks[-1] += f"{line}\n"
    file = f"{PLACE}/solution.patch"
    commands = [f"cat >> {file} <<'END OF PATCH'\n{chunk}END OF PATCH" for chunk in chunks]
    return [f"mkdir -p {PLACE}", *commands, f"git apply --whitespace=nowarn {file}"]
