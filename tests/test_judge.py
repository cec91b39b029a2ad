"""Votes and what becomes of them."""

import math
from contextlib import closing

import pytest

from agentgym.config import Config, check_resumable
from agentgym.errors import ConfigError
from agentgym.judge import JudgeCache, MemoryCache, majority_vote, make_judge, vote_entropy
from agentgym.policies.scripted import ScriptedPolicy
from agentgym.store import Store


@pytest.mark.golden("majority_vote")
def test_the_most_frequent_valid_vote_counts(case):
    assert majority_vote(case["votes"]) == case["score"]


def test_entropy_of_votes_is_that_of_their_shares():
    assert vote_entropy([1, 1, None]) == vote_entropy([]) == 0.0
    assert vote_entropy([1, 0, -1]) == pytest.approx(math.log(3))


def judged(kind="verifier", **settings):
    config = Config()
    config.judge.kind = kind
    for key, value in settings.items():
        section, _, name = key.partition("_")
        setattr(getattr(config, section), name, value)
    return config


def test_each_kind_has_its_judge():
    assert make_judge(judged("none")) is None
    made = [
        make_judge(judged("verifier")),
        make_judge(judged("rules", judge_rules=[{"score": 0}])),
        make_judge(judged("llm"), ask=ScriptedPolicy(["x"])),
    ]
    assert [judge.kind for judge in made] == ["verifier", "rules", "llm"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kind": "verifier", "hints_source": "judge"}, "writes no hints"),
        ({"kind": "rules"}, "needs judge.rules"),
        (
            {"kind": "rules", "judge_rules": [{"scor": 1}]},
            r"judge.rules\[0\]: unknown key 'scor' \(did you mean 'score'",
        ),
        ({"kind": "llm"}, "needs judge.url, or the run's own engine"),
        ({"kind": "llm", "judge_url": "http://127.0.0.1:1"}, "needs judge.model"),
        ({"kind": "llm", "judge_url": "127.0.0.1:1", "judge_model": "m"}, "expected http://HOST/v1"),
        ({"kind": "llm", "judge_url": "http://me:pw@h/v1", "judge_model": "m"}, "holds a user or a password"),
        (
            {"kind": "llm", "judge_url": "http://h", "judge_model": "m", "judge_key_env": "AGENTGYM_NO_SUCH_KEY"},
            "not set",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(settings, says):
    with pytest.raises(ConfigError, match=says):
        make_judge(judged(**settings))


def test_a_name_of_a_model_without_its_url_is_refused():
    with pytest.raises(ConfigError, match=r"go with judge\.url"):
        make_judge(judged("llm", judge_model="m"), ask=ScriptedPolicy(["x"]))


def test_an_empty_key_is_no_key(monkeypatch):
    """A placeholder that hides a missing key would fail hours later."""
    monkeypatch.setenv("AGENTGYM_EMPTY_KEY", "  ")
    with pytest.raises(ConfigError, match="not set, or is empty"):
        make_judge(judged("llm", judge_url="http://h", judge_model="m", judge_key_env="AGENTGYM_EMPTY_KEY"))


def test_the_first_answer_kept_stands_in_memory_and_in_the_store(tmp_path):
    with closing(Store(tmp_path / "store.sqlite")) as store:
        caches: list[JudgeCache] = [MemoryCache(), store]
        for cache in caches:
            assert cache.cached("k") is None
            cache.cache("k", "first")
            cache.cache("k", "second")
            assert cache.cached("k") == "first"


def test_a_run_may_go_on_with_other_deadlines_and_not_with_another_judge():
    check_resumable(
        judged("llm"), judged("llm", judge_timeout_s=5.0, judge_retries=9, judge_concurrency=2, judge_key_env="K")
    )
    with pytest.raises(ConfigError, match=r"judge\.url"):
        check_resumable(judged("llm"), judged("llm", judge_url="http://h/v1"))
