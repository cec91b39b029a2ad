"""Sessions to three: how soon an agent that learns from its users satisfies one of them by its first replies.

The fewest sessions until the first reply satisfies the user in three consecutive sessions; lower is better, capped at 72
(2603.10165). Sessions are counted up to and including the third of the three, so the best is 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from agentgym.errors import UsageError
from agentgym.stats import bootstrap_mean
from agentgym.types import Trajectory

STREAK, CAP, LEAST_SEEDS = 3, 72, 5


class SessionsToThree(NamedTuple):
    """The mean over seeds and users with its 95% interval over seeds, and how many users were never satisfied by then."""

    mean: float
    interval: tuple[float, float]
    never: int
    seeds: int


def sessions_to_three(satisfied: Iterable[bool], *, streak: int = STREAK, cap: int = CAP) -> int:
    """Sessions until `streak` in a row were satisfied at once; `cap` if that takes longer, or does not happen in them.

    Args:
        satisfied: of each session of one user in order, whether the first reply was as wanted.

    Example:
        sessions_to_three([False, True, True, False, True, True, True])  # 7
    """
    if streak < 1 or cap < streak:
        raise UsageError(f"sessions_to_three: needs 1 <= streak <= cap, got streak={streak}, cap={cap}")
    run = 0
    for session, good in enumerate(satisfied, 1):
        run = run + 1 if good else 0
        if session > cap:
            break
        if run == streak:
            return session
    return cap


def joint_sessions(by_user: Mapping[str, Iterable[bool]], *, streak: int = STREAK, cap: int = CAP) -> float:
    """The mean over users who are served by one agent, each counted in sessions of their own."""
    if not by_user:
        raise UsageError("joint_sessions: there are no users")
    return fmean(sessions_to_three(sessions, streak=streak, cap=cap) for sessions in by_user.values())


def over_seeds(
    seeds: Sequence[Mapping[str, Sequence[bool]]], *, streak: int = STREAK, cap: int = CAP, least: int = LEAST_SEEDS
) -> SessionsToThree:
    """The metric as it is published: over at least five seeds, each with the sessions of every user.

    Raises:
        UsageError: there are fewer seeds, which would say little.
    """
    if len(seeds) < least:
        raise UsageError(f"sessions to three: {len(seeds)} seeds, and at least {least} are needed")
    values_S = [joint_sessions(by_user, streak=streak, cap=cap) for by_user in seeds]
    never = sum(not reached(sessions, streak=streak, cap=cap) for by_user in seeds for sessions in by_user.values())
    return SessionsToThree(fmean(values_S), bootstrap_mean(values_S), never, len(seeds))


def reached(satisfied: Sequence[bool], *, streak: int = STREAK, cap: int = CAP) -> bool:
    """Whether the streak came within `cap` sessions."""
    good = list(satisfied)[:cap]
    return any(all(good[start : start + streak]) for start in range(len(good) - streak + 1))


def first_replies(trajectories: Iterable[Trajectory]) -> list[bool]:
    """Of each session, in the order in which they began, whether the user was satisfied with the first reply.

    Sessions that the machine ended before there was one do not count.
    """
    told = sorted((one for one in trajectories if one.turns), key=lambda one: (one.started, one.id))
    return [bool(one.turns[0].info.get("satisfied")) for one in told]
