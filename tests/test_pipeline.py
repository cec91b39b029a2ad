"""What is refused before a run begins."""

import pytest

from agentgym.config import load_config
from agentgym.errors import ConfigError
from agentgym.pipeline import check_judging


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["algorithm.estimator=step_wise"], "step_wise compares scored turns: set judge.kind=verifier"),
        (["algorithm.preset=opd"], "w_opd=1 distils from hints, and nobody gives any: set judge.kind=verifier"),
        (["algorithm.preset=hybrid", "judge.kind=rules"], "judge.rules"),
        (["algorithm.preset=hybrid", "judge.kind=verifier", "hints.source=judge"], "hints.source"),
        (["judge.kind=llm", "judge.url=ftp://host", "judge.model=m"], "judge.url"),
        (["judge.kind=llm", "judge.url=http://host/v1"], "judge.model"),
        (["judge.kind=llm", "judge.url=http://host/v1", "judge.model=m", "judge.key_env=NOT_SET_ANYWHERE"], "NOT_SET"),
    ],
)  # fmt: skip
def test_what_nobody_could_judge_or_distil_is_refused_at_the_start(overrides, says):
    with pytest.raises(ConfigError, match=says):
        check_judging(load_config(None, overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["judge.kind=verifier"],
        ["algorithm.preset=hybrid", "judge.kind=verifier"],
        ["algorithm.preset=hybrid", "judge.kind=llm", "hints.source=both"],
        ["algorithm.preset=opd", "judge.kind=llm", "judge.url=http://host/v1", "judge.model=m"],
    ],
)
def test_what_can_be_judged_is_not(overrides):
    check_judging(load_config(None, overrides))
