import pytest

from agentgym.env import Env
from agentgym.environments.terminal import TerminalEnv
from agentgym.errors import UsageError
from agentgym.policies.scripted import NoopPolicy, OraclePolicy, ScriptedPolicy
from agentgym.policy import Session
from agentgym.types import Completion, Message, Prompt, Sampling, Task

PROMPT = Prompt(messages=(Message(role="user", content="hi"),))
TASK = Task(
    id="t",
    env="terminal",
    instruction="Make f.",
    data={"expect": [{"kind": "text", "path": "f", "text": "1"}], "solution": ["echo 1 > f"]},
)


class Letters:
    """A template of one id a character, 0 at the end of a turn."""

    def encode_prompt(self, session: Session, prompt: Prompt) -> tuple[int, ...]:
        new = prompt.messages[session.n_messages :]
        return session.ids + tuple(ord(letter) for message in new for letter in message.content)

    def encode_response(self, message: Message) -> tuple[int, ...]:
        return (*map(ord, message.content), 0)


async def ask(policy: ScriptedPolicy, session: Session, prompt: Prompt = PROMPT) -> Completion:
    return await policy(prompt, session=session, sampling=Sampling())


async def test_a_script_is_read_anew_in_each_session_and_its_last_line_repeated() -> None:
    policy = ScriptedPolicy(["a", Message(role="assistant", content="b")])
    one, two = Session("1"), Session("2")
    said = [(await ask(policy, session)).message.content for session in (one, one, two, one, two)]
    assert said == ["a", "b", "a", "b", "b"]


async def test_a_function_answers_the_prompt() -> None:
    policy = ScriptedPolicy(lambda prompt: prompt.messages[-1].content.upper())
    assert (await ask(policy, Session("1"))).message == Message(role="assistant", content="HI")


async def test_without_a_template_there_are_no_ids() -> None:
    session = Session("1")
    completion = await ask(NoopPolicy(), session)
    assert (completion.prompt_ids, completion.ids, completion.message.content) == ((), (), "")
    assert (session.ids, session.n_messages) == ((), 2)


async def test_a_template_gives_ids_that_nobody_sampled() -> None:
    session, policy = Session("1"), ScriptedPolicy(["yo"], Letters())
    first = await ask(policy, session)
    assert (first.prompt_ids, first.ids) == ((104, 105), (121, 111, 0))
    assert (first.logprobs, first.versions, first.finish_reason) == ((None,) * 3, (-1,) * 3, "stop")
    assert (session.ids, session.n_messages) == ((104, 105, 121, 111, 0), 2)
    longer = Prompt(messages=(*PROMPT.messages, first.message, Message(role="user", content="!")))
    second = await ask(policy, session, longer)
    assert second.prompt_ids == (104, 105, 121, 111, 0, 33) and session.n_messages == 4


async def test_a_prompt_of_ids_is_served_as_it_is() -> None:
    session = Session("1")
    completion = await ask(ScriptedPolicy(["a"], Letters()), session, Prompt(ids=(7, 8)))
    assert (completion.prompt_ids, session.ids) == ((7, 8), (7, 8, 97, 0))


async def test_the_oracle_gives_the_environments_solution_then_nothing() -> None:
    policy, env = OraclePolicy(), TerminalEnv(max_steps=4)
    one, two = Session("1"), Session("2")
    await policy.begin(one, env, TASK)
    said = [(await ask(policy, one)).message.content for _ in range(3)]
    assert said == ["```bash\necho 1 > f\n```", "Done.", ""]
    assert (await ask(policy, two)).message.content == ""


async def test_the_oracle_solves_and_doing_nothing_does_not() -> None:
    async def play(policy: ScriptedPolicy, env: Env) -> float:
        session = Session("1")
        await policy.begin(session, env, TASK)
        observation, _ = await env.reset(options={"task": TASK})
        while True:
            completion = await ask(policy, session, Prompt(messages=observation.messages))
            observation, reward, terminated, truncated, _ = await env.step(completion.message)
            if terminated or truncated:
                await env.close()
                return reward

    assert (await play(OraclePolicy(), TerminalEnv()), await play(NoopPolicy(), TerminalEnv())) == (1.0, 0.0)


def test_an_empty_script_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one message"):
        ScriptedPolicy([])
