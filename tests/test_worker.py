"""The inside of a worker, here in this process and spoken to over a real pipe."""

import asyncio
import contextlib
import pickle
import socket
import time

import msgspec
import pytest

from agentgym.config import load_config
from agentgym.errors import UsageError
from agentgym.policy import PolicyAddress
from agentgym.registry import TASK_SETS
from agentgym.remote import RemoteWorker, _read_trajectory
from agentgym.rollout import EpisodeRequest
from agentgym.supervise import explain
from agentgym.types import Sampling, Trajectory
from agentgym.wire import (
    Beat,
    Cancel,
    Cancelled,
    Ended,
    Start,
    Stop,
    decode_from_worker,
    encode,
    frames,
    receive,
    send,
)  # fmt: skip
from agentgym.worker import Setup, Worker, make_policy, unpack
from tests.fakes import EchoEnv, Parrot, StubbornEnv, TokenPolicy, Words, completion, word_task

CONFIG = load_config(None, ["rollout.worker_timeout_s=0.5", "rollout.close_timeout_s=0.5"])
ADDRESS = PolicyAddress(factory="tests.fakes:Parrot")


def request(word: str = "yes", index: int = 0) -> EpisodeRequest:
    return EpisodeRequest(id=f"e{index}", group_id="g", task=word_task(word, index), seed=index, sampling=Sampling())


class Owner:
    """The other end of a worker's pipe."""

    def __init__(self, reader, writer, working) -> None:
        self.reader, self.writer, self.working = reader, writer, working

    def say(self, said) -> None:
        send(self.writer, encode(said))

    async def hear(self, *kinds):
        """The next that the worker says, of these kinds."""
        async for frame in frames(self.reader):
            said = decode_from_worker(frame)
            if isinstance(said, kinds):
                return said


@contextlib.asynccontextmanager
async def worker(policy=None, make_env=lambda task: StubbornEnv()):
    ours, theirs = socket.socketpair()
    inside = await asyncio.open_connection(sock=theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    working = asyncio.create_task(Worker(*inside, policy or Parrot(), CONFIG, make_env).run())
    yield Owner(reader, writer, working)
    writer.close()
    await asyncio.wait_for(working, 5)  # the end of the pipe ends it
    inside[1].close()
    with contextlib.suppress(ConnectionError):
        await inside[1].wait_closed()


async def test_a_request_goes_in_and_a_trajectory_comes_out():
    async with worker() as owner:
        owner.say(Start(key=4, request=request()))
        ended = await owner.hear(Ended, Cancelled)
    trajectory = msgspec.msgpack.decode(ended.trajectory, type=Trajectory)
    assert (ended.key, trajectory.id, trajectory.status, trajectory.outcome) == (4, "e0", "completed", 1.0)
    assert trajectory.turns[0].completion.ids == tuple(map(ord, "Say yes."))


async def test_a_cancelled_episode_is_told_like_any_other_end_and_its_environment_is_closed():
    env = StubbornEnv()
    async with worker(make_env=lambda task: env) as owner:
        owner.say(Start(key=1, request=request("sleep 60")))
        await asyncio.sleep(0.05)
        owner.say(Cancel(key=1))
        owner.say(Cancel(key=99))  # long gone
        assert await asyncio.wait_for(owner.hear(Ended, Cancelled), 2) == Cancelled(key=1)
    assert env.closed == 1


async def test_stop_cancels_what_runs_and_closes_the_policy():
    class Closing(Parrot):
        closed = 0

        async def close(self):
            self.closed += 1

    policy = Closing()
    async with worker(policy) as owner:
        owner.say(Start(key=1, request=request("sleep 60")))
        await asyncio.sleep(0.05)
        owner.say(Stop())
        assert await asyncio.wait_for(owner.hear(Ended, Cancelled), 2) == Cancelled(key=1)
        await asyncio.wait_for(owner.working, 2)
    assert policy.closed == 1


async def test_beats_tell_how_many_run_and_how_late_the_loop_is():
    async with worker() as owner:
        calm = await owner.hear(Beat)
        assert (calm.running, calm.lag_s < 0.2) == (0, True)
        owner.say(Start(key=1, request=request("sleep 60")))
        await asyncio.sleep(0.05)
        time.sleep(0.4)  # noqa: ASYNC251 (blocks the loop that both ends share)
        lags = [await owner.hear(Beat) for _ in range(2)]
        assert max(beat.lag_s for beat in lags) > 0.25
        assert lags[-1].running == 1


async def test_a_trajectory_that_cannot_be_encoded_or_read_is_a_failed_one():
    class Surrogate(TokenPolicy):
        async def __call__(self, prompt, *, session, sampling):
            return completion((1,), (2,), "\ud800")

    class Wrong(TokenPolicy):
        async def __call__(self, prompt, *, session, sampling):
            return completion((1,), ("two",), "yes")

    for policy, reason in (
        (Surrogate(), "the trajectory cannot be stored: "),
        (Wrong(), "the trajectory holds nonsense"),
    ):
        async with worker(policy, lambda task: EchoEnv()) as owner:
            owner.say(Start(key=1, request=request()))
            ended = await owner.hear(Ended, Cancelled)
        trajectory = _read_trajectory(request(), ended.trajectory)
        assert (trajectory.id, trajectory.status, trajectory.outcome) == ("e0", "infrastructure", None)
        assert trajectory.reason.startswith(reason)


async def test_half_a_frame_is_no_frame():
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    with theirs:
        theirs.sendall((3).to_bytes(8, "big") + b"one" + (5).to_bytes(8, "big") + b"tw")
        assert await receive(reader) == b"one"
    assert await receive(reader) is None
    writer.close()
    await writer.wait_closed()


def test_a_setup_carries_config_address_and_names():
    class Here(Words):
        name = "here"

    TASK_SETS.register("here", Here)
    try:
        packed = Setup(CONFIG, ADDRESS, lambda task: EchoEnv(turns=3)).pack()
    finally:
        del TASK_SETS._factories["here"]
    try:
        parts = unpack(packed)
        assert TASK_SETS.make("here", n_train=3).tasks("train")[2] == Words(n_train=3).tasks("train")[2]
    finally:
        del TASK_SETS._factories["here"]
    assert (parts["config"], parts["address"]) == (CONFIG, ADDRESS)
    assert parts["make_env"](word_task("yes")).turns == 3
    assert isinstance(make_policy(parts["address"]), Parrot)


def test_a_make_env_that_cannot_travel_is_refused_at_once():
    with socket.socket() as held, pytest.raises(UsageError, match="make_env cannot be sent"):
        Setup(CONFIG, ADDRESS, lambda task, lock=(i for i in (held,)): EchoEnv()).pack()


def test_exit_codes_in_words():
    assert [explain(code) for code in (0, 3, -9, 137, 143)] == [
        "exit code 0", "exit code 3", "killed by SIGKILL", "killed by SIGKILL", "killed by SIGTERM",
    ]  # fmt: skip


async def test_silence_counts_only_while_its_owner_listens():
    worker = RemoteWorker(pickle.dumps(None))
    worker.ended.set_result("")
    assert worker.check(4.0, 10.0, 1e12) == ""
    assert worker.check(7.0, 10.0, 1e12) == "no heartbeat for 10 s"
    worker._hear(Beat(lag_s=0.1, running=0))
    assert worker.check(4.0, 10.0, 1e12) == ""
