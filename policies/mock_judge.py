"""A judge endpoint without a model: a mock policy server that answers each question about a turn with a verdict.

    python -m agentgym.policies.mock_judge --port 8090 --score 1 --hint "Use mkdir -p first." --fault 500=0.5

It repeats the code that its prompt asks for, as a model would; latency and faults are those of `policies/mock.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from agentgym.policies.mock import FAULTS, Answer, MockPolicyServer
from agentgym.policies.mock_answers import ids_of, text_of

CODE = re.compile(r'"code": "([0-9a-f]+)"')
Say = Callable[[str, str, random.Random], str]  # prompt, code and random numbers to the text of the answer


def verdict(score: int = 1, hint: str = "", reason: str = "") -> Say:
    """Always the same verdict, in the form that is asked for."""
    return lambda prompt, code, rng: json.dumps({"reason": reason, "code": code, "score": score, "hint": hint})


def saying(say: Say) -> Answer:
    """`say` as what a `MockPolicyServer` answers chat completions with.

    Example:
        async with MockPolicyServer(answer=saying(verdict(-1)), faults={"500": 0.5}) as server:
            config.judge.url, config.judge.model = server.url, "mock"
    """

    def answer(prompt: Sequence[int], params: dict[str, Any], rng: random.Random) -> Sequence[int]:
        text = text_of(prompt)
        codes = CODE.findall(text)
        return ids_of(say(text, codes[-1] if codes else "", rng))  # what is judged stands before the last one

    return answer


async def _main(options: argparse.Namespace) -> None:
    faults = {name: float(share) for name, _, share in (fault.partition("=") for fault in options.fault)}
    answer = saying(verdict(options.score, options.hint))
    async with MockPolicyServer(
        port=options.port, latency_s=options.latency_s, answer=answer, faults=faults, seed=options.seed
    ) as server:
        print(f"{server.url}/v1", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve until the process is ended; prints the URL for `judge.url`."""
    parser = argparse.ArgumentParser(prog="python -m agentgym.policies.mock_judge", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency-s", type=float, default=0.0)
    parser.add_argument("--score", type=int, default=1, choices=(-1, 0, 1))
    parser.add_argument("--hint", default="")
    parser.add_argument("--fault", action="append", default=[], metavar="NAME=SHARE", help=", ".join(FAULTS))
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
