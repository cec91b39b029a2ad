"""Each attempt in each sandbox with walls: what is open is exactly what the table in docs/sandboxes.md says."""

import pytest

from agentgym.environments.cgroups import no_cgroups
from agentgym.environments.plain import no_mounts
from tests.environments.attacks import ATTACKS, OPEN, Attack, attempt, attempt_bare

BY_CGROUP = {"memory by shared memory", "fork bomb"}
BY_MOUNT = {"disk", "disk by /tmp", "inodes"}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_walls_hold(kind: str, attack: Attack) -> None:
    if kind == "plain":
        pytest.skip("there are no walls")
    if kind == "bubblewrap" and attack.name in BY_CGROUP and no_cgroups():
        pytest.skip(f"no cgroups here: {no_cgroups()}")
    if kind == "bubblewrap" and attack.name in BY_MOUNT and no_mounts():
        pytest.skip(f"no file systems of limited size here: {no_mounts()}")
    how = await attempt(kind, attack)
    assert bool(how) == (attack.name in OPEN[kind]), how


async def test_what_the_attempts_look_for_is_there() -> None:
    """Without walls some attempts must succeed: else they would prove nothing."""
    by_name = {attack.name: attack for attack in ATTACKS}
    for name in ("seeing other processes", "killing other processes", "loopback, with the run's own servers", "the host's files"):  # fmt: skip
        assert by_name[name].harmless and await attempt_bare(by_name[name]), name


def test_dangerous_attempts_are_never_made_without_walls() -> None:
    dangerous = {attack.name for attack in ATTACKS if not attack.harmless}
    assert {"fork bomb", "killing everything", "signals to the first process", "mounting", "the clock"} <= dangerous
    assert len(ATTACKS) >= 40 and len({attack.name for attack in ATTACKS}) == len(ATTACKS)
