"""From a trajectory to the sequences that are trained on.

Invariants: ids are as served and as sampled, never made again from text; append-only turns merge into one sample and
a broken prefix starts another; outside the responses the mask is 0; what must not be trained on (aborted, cut off,
degenerate) is masked, and a sample without a trained token is rejected with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.config import AlgorithmConfig
from agentgym.types import Completion, Sample, TokenSpan, Trajectory

REPETITION_N = 8


class _Building:
    def __init__(self, first_turn: int, completion: Completion) -> None:
        self.first_turn = first_turn
        self.temperature = completion.temperature
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float | None] = []
        self.versions: list[int] = []
        self.spans: list[TokenSpan] = []

    def continues(self, completion: Completion) -> bool:
        n = len(self.ids)
        return completion.temperature == self.temperature and completion.prompt_ids[:n] == tuple(self.ids)

    def add(self, turn: int, completion: Completion, trained: bool) -> None:
        served = completion.prompt_ids[len(self.ids) :]
        self.ids += served
        self.mask += [0] * len(served)
        self.logprobs += [None] * len(served)
        self.versions += [-1] * len(served)
        start = len(self.ids)
        self.ids += completion.ids
        self.mask += [int(trained)] * len(completion.ids)
        self.logprobs += completion.logprobs
        self.versions += completion.versions
        self.spans.append(TokenSpan(turn=turn, start=start, end=len(self.ids)))

    def sample(self, trajectory: Trajectory) -> Sample:
        return Sample(
            id=f"{trajectory.id}/{self.first_turn}",
            trajectory_id=trajectory.id,
            group_id=trajectory.group_id,
            ids=tuple(self.ids),
            mask=tuple(self.mask),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            spans=tuple(self.spans),
            temperature=self.temperature,
        )


def samples_from(trajectory: Trajectory, algorithm: AlgorithmConfig) -> tuple[list[Sample], list[str]]:
    """The samples of a trajectory and, one per turn that is masked, the reason why.

    Example: two append-only turns give one sample whose spans are the two responses.
    """
    done: list[_Building] = []
    reasons: list[str] = []
    for turn in trajectory.turns:
        completion = turn.completion
        reason = untrained_reason(completion, algorithm)
        if reason:
            reasons.append(reason)
        if not done or not done[-1].continues(completion):
            done.append(_Building(turn.index, completion))
        done[-1].add(turn.index, completion, trained=reason is None)
    return [building.sample(trajectory) for building in done], reasons


def untrained_reason(completion: Completion, algorithm: AlgorithmConfig) -> str | None:
    """Why a response must not be trained on (algorithms.md section 6), or None."""
    if not completion.ids:
        return "empty"
    if completion.finish_reason == "abort":
        return "aborted"
    if completion.finish_reason == "length" and algorithm.truncation == "mask":
        return "truncated"
    if repetition(completion.ids) > algorithm.repetition_share:
        return "repetition"
    return None


def repetition(ids: Sequence[int], n: int = REPETITION_N) -> float:
    """Share of the n-grams of `ids` that occurred before in it, in [0, 1]; 0 if it is shorter than n."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
