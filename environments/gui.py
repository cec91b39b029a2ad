"""A web page in a real browser: the policy acts by clicks and keys, and is judged by the state that is left.

A task's `data["site"]` names what is shown (see `gui_sites`); the site serves itself, and the browser reaches nothing
else. Episodes share nothing but the browser's process.
"""

from __future__ import annotations

import contextlib
from typing import Any

from agentgym.env import Env, Info
from agentgym.environments.gui_actions import NO_ACTION, SPACES, Action, Malformed, offered, read
from agentgym.environments.gui_browser import in_browser, the_browser
from agentgym.environments.gui_outcomes import ActionError, DialogOpen, PageCrashed, Unresponsive
from agentgym.environments.gui_pages import Pages
from agentgym.environments.gui_perform import perform
from agentgym.environments.gui_sites import site_of
from agentgym.environments.gui_snapshot import MIMES, clean, look, photograph
from agentgym.errors import InfrastructureError, UsageError
from agentgym.types import Image, Message, Observation, StepResult, Task

SHOWS = ("text", "screenshot", "both")
PROTOCOLS = ("tools", "block")
MAX_CRASHES = 3
TRIES = 4  # to look at a page
SYSTEM = {
    "tools": "You work in a web browser. Act by calling one tool a message; end the work with `answer`.",
    "block": "You work in a web browser. Answer with one ```action block holding one action.\n{actions}",
}
LOST = "The page did not answer."


class GuiEnv(Env):
    """A browser, with a site that the task names.

    A message holds one action, as a tool call or as one line in an ```action block, whichever `protocol` says is on
    offer. The episode ends with the action `answer`, with a message without an action after at least one (it says that
    it is done), when the site itself ends it, at `max_steps`, or after `max_parse_errors` unusable messages in a row;
    whichever it is, the state is judged and that step's reward is the outcome.

    What the policy or the page does wrong is told: a ref that is gone or covered, a script that does not end, a page
    that crashed (`info["action_error"]`). A browser that dies or hangs is an InfrastructureError.

    Args:
        observation: `text` (the accessibility tree with refs), `screenshot` or `both`.
        actions: `refs`, `coordinates` (0 to 1000) or `all`.
        protocol: `tools` puts the actions on offer as tools, `block` lists them in the system message.
        max_steps: messages the policy may write.
        max_parse_errors: unusable messages in a row that end the episode.
        max_chars: of one observation's text; about four make a token.
        image: `png` or `jpeg`.
        action_timeout_s: seconds that anything asked of a page may take.
        system_prompt: replaces the first message; empty for none.
    """

    name = "gui"

    def __init__(
        self,
        *,
        observation: str = "text",
        actions: str = "refs",
        protocol: str = "tools",
        max_steps: int = 40,
        max_parse_errors: int = 3,
        max_chars: int = 6000,
        image: str = "jpeg",
        action_timeout_s: float = 3.0,
        system_prompt: str | None = None,
    ) -> None:
        for what, value, known in (
            ("observation", observation, SHOWS), ("actions", actions, SPACES), ("protocol", protocol, PROTOCOLS),
            ("image", image, tuple(MIMES)),
        ):  # fmt: skip
            if value not in known:
                raise UsageError(f"gui: unknown {what} {value!r}; known: {', '.join(known)}")
        if observation == "screenshot" and actions == "refs":
            raise UsageError("gui: a screenshot shows no refs: set actions=coordinates, or observation=both")
        if max_steps < 1 or max_parse_errors < 1 or max_chars < 200 or action_timeout_s <= 0:
            raise UsageError("gui: max_steps, max_parse_errors and action_timeout_s must be > 0, max_chars >= 200")
        self.shows, self.space, self.protocol, self.image = observation, actions, protocol, image
        self.max_steps, self.max_parse_errors, self.max_chars = max_steps, max_parse_errors, max_chars
        self.action_timeout_s = action_timeout_s
        self.system_prompt = system_prompt
        self.pages: Pages | None = None
        self.task: Task | None = None
        self.ended = True

    async def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        task = (options or {}).get("task")
        if not isinstance(task, Task):
            raise UsageError('gui: reset needs options={"task": Task}')
        await self.close()
        first = await in_browser(self._reset(task, task.seed if seed is None else seed))
        self.task, self.ended = task, False
        self.steps = self.acted = self.parse_errors = 0
        return first

    async def step(self, action: Message) -> StepResult:
        if self.task is None:
            raise UsageError("gui: step before reset, or after close")
        if self.ended:
            return StepResult(_say("The episode has ended."), 0.0, True, False, {"ended": True})
        return await in_browser(self._step(action))

    async def close(self) -> None:
        self.task = None
        if self.pages is not None:
            pages, self.pages = self.pages, None
            await in_browser(pages.close())

    async def oracle(self, task: Task) -> list[Message]:
        """What solves `task`, found by playing it in a context of its own; empty if nobody knows."""
        return await in_browser(self._oracle(task))

    async def _open(self, task: Task, seed: int) -> Pages:
        pages = Pages(the_browser(), site_of(task, seed), timeout_s=self.action_timeout_s)
        try:
            await pages.open()
            await pages.site.ready(pages)
            pages.network.check()
        except ActionError as error:
            await pages.close()
            raise InfrastructureError(f"the site did not open: {error}") from error
        except BaseException:
            await pages.close()
            raise
        return pages

    async def _reset(self, task: Task, seed: int) -> tuple[Observation, Info]:
        self.pages = await self._open(task, seed)
        self.specs = offered(self.space, self.pages.site.without)
        text, images = await self._see(self.pages)
        first = Message(role="user", content=f"{self.pages.site.instruction}\n\n{text}", images=images)
        listed = "\n".join(f"  {spec.usage}: {spec.description}" for spec in self.specs.values())
        system = SYSTEM[self.protocol].format(actions=listed) if self.system_prompt is None else self.system_prompt
        messages = (Message(role="system", content=system), first) if system else (first,)
        return Observation(messages=messages, tools=self._tools()), {"task": task.id}

    async def _step(self, message: Message) -> StepResult:
        self.steps += 1
        try:
            action = read(message, self.specs)
        except Malformed as problem:
            if str(problem) == NO_ACTION and self.acted:
                return await self._end(message, "done", "", {}, said=message.content)
            return await self._teach(message, str(problem))
        self.parse_errors = 0
        self.acted += 1
        if action.name == "answer":
            return await self._end(message, "answer", "", {}, said=action.arguments["text"])
        assert self.pages is not None
        info = {"action": action.name}
        if error := await self._act(self.pages, action):
            info["action_error"] = error
        text, images = await self._see(self.pages, error)
        if await self.pages.site.over(self.pages):
            return await self._end(message, "over", text, info)
        if self.steps >= self.max_steps:
            return await self._end(message, "max_steps", text, info)
        return StepResult(self._reply(message, text, images), 0.0, False, False, info)

    async def _act(self, pages: Pages, action: Action) -> str:
        """Do an action; returns what the policy did wrong, if anything."""
        error = ""
        try:
            await perform(pages, action)
        except DialogOpen:
            return ""
        except ActionError as refused:
            error = str(refused)
        except Unresponsive:
            error = LOST
            await pages.revive()
        except PageCrashed as lost:
            error = await self._crashed(pages, str(lost))
        await self._recovering(pages, pages.site.tick(pages, action.name))
        return clean(error)

    async def _see(self, pages: Pages, error: str = "") -> tuple[str, tuple[Image, ...]]:
        """What is shown now, after what went wrong and what happened."""
        tree = ""
        images: tuple[Image, ...] = ()
        for attempt in range(TRIES):
            try:
                if self.shows != "screenshot":
                    tree = await look(pages, self.max_chars, points=self.space != "refs")
                if self.shows != "text":
                    await pages.settle()
                    images = (await photograph(pages, self.image),)
                break
            except DialogOpen:
                break
            except PageCrashed as lost:
                await self._crashed(pages, str(lost))
            except (ActionError, Unresponsive) as refused:
                if attempt == TRIES - 1:
                    raise InfrastructureError(f"the page cannot be looked at: {refused}") from refused
                if attempt > 0:
                    await pages.replace("The page could not be read.")
                elif isinstance(refused, Unresponsive):
                    await pages.revive()
        pages.network.check()
        return self._text(pages, tree, error), images

    def _text(self, pages: Pages, tree: str, error: str) -> str:
        said = [f"Error: {error}"] if error else []
        said += pages.notes
        pages.notes.clear()
        if pages.dialog is not None:
            kind, text = pages.dialog.type, pages.dialog.message[:500]
            return clean("\n".join([*said, f"A dialog is open ({kind}): {text!r}. Answer it with `dialog`."]))
        if pages.chooser is not None:
            files = ", ".join(pages.site.uploads) or "none"
            said.append(f"A field asks for a file: answer with `upload`. There are: {files}.")
        number, tabs = pages.tabs.index(pages.page) + 1, len(pages.tabs)
        where = f"Page {pages.page.url[:200]}" + (f" (tab {number} of {tabs})" if tabs > 1 else "")
        return clean("\n".join(filter(None, [*said, where, tree])))

    async def _crashed(self, pages: Pages, why: str) -> str:
        if not await pages.browser.answers():
            await pages.browser.give_up()
            raise InfrastructureError("the browser ended")
        await pages.replace(why)
        if pages.crashes >= MAX_CRASHES:
            raise InfrastructureError(f"the page crashed {pages.crashes} times")
        return why

    async def _recovering(self, pages: Pages, work: Any) -> None:
        """Do what the site asks of the page; what the page does against it is seen when it is looked at."""
        with contextlib.suppress(ActionError, DialogOpen, Unresponsive, PageCrashed):
            await work

    async def _teach(self, message: Message, problem: str) -> StepResult:
        self.parse_errors += 1
        info = {"parse_error": problem, "parse_errors": self.parse_errors}
        how = "Call one tool." if self.protocol == "tools" else "Answer with one block:\n```action\nACTION\n```"
        text = clean(f"Not understood: {problem}. {how}")
        if self.parse_errors >= self.max_parse_errors or self.steps >= self.max_steps:
            end = "parse_errors" if self.parse_errors >= self.max_parse_errors else "max_steps"
            return await self._end(message, end, text, info)
        return StepResult(self._reply(message, text, ()), 0.0, False, False, info)

    async def _end(self, message: Message, end: str, text: str, info: Info, said: str = "") -> StepResult:
        assert self.pages is not None
        self.ended = True
        reward, judged = await self.pages.site.judge(self.pages, said)
        reply = self._reply(message, text, ()) if text else Observation(messages=())
        return StepResult(reply, reward, True, False, {**info, "end": end, "steps": self.steps, **judged})

    def _reply(self, message: Message, text: str, images: tuple[Image, ...]) -> Observation:
        """An observation: the answers to the calls of a message, or a user's message. Pictures are the user's to show."""
        if not message.tool_calls:
            return Observation(messages=(Message(role="user", content=text, images=images),), tools=self._tools())
        first, *others = message.tool_calls
        answers = [Message(role="tool", tool_call_id=first.id, name=first.name, content=text)]
        answers += [
            Message(role="tool", tool_call_id=call.id, name=call.name, content="Not done: one action a message.")
            for call in others
        ]
        shown = [Message(role="user", content="The page now:", images=images)] if images else []
        return Observation(messages=(*answers, *shown), tools=self._tools())

    def _tools(self) -> tuple[Any, ...]:
        return tuple(spec.tool() for spec in self.specs.values()) if self.protocol == "tools" else ()

    async def _oracle(self, task: Task) -> list[Message]:
        if self.shows == "screenshot" or not site_of(task, task.seed).solvable:
            return []
        pages = await self._open(task, task.seed)
        actions: list[Action] = []
        try:
            await self._see(pages)
            async for action in pages.site.solve(pages):
                actions.append(action)
                if action.name == "answer":
                    break
                if error := await self._act(pages, action):
                    raise InfrastructureError(f"task {task.id}: the oracle's {action.name} failed: {error}")
                await self._see(pages)
                if await pages.site.over(pages):
                    break
        except (ActionError, DialogOpen, Unresponsive, PageCrashed) as error:
            raise InfrastructureError(f"task {task.id}: the oracle failed: {error}") from error
        finally:
            await pages.close()
        return [self._write(action, index) for index, action in enumerate(actions)]

    def _write(self, action: Action, index: int) -> Message:
        if self.protocol == "block":
            return Message(role="assistant", content=action.block())
        return Message(role="assistant", tool_calls=(action.call(f"call_{index}"),))


def _say(text: str) -> Observation:
    return Observation(messages=(Message(role="user", content=text),))
