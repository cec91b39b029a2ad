from dataclasses import fields, is_dataclass

import pytest

from agentgym.config import CHOICES, POSITIVE, PRESETS, Config, check_config, find_config, knobs, load_config, to_yaml
from agentgym.errors import ConfigError


def test_defaults_pass_their_own_checks():
    check_config(Config())
    assert load_config() == Config()


def test_a_file_wins_over_defaults_and_arguments_over_the_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("seed: 3\ntrainer:\n  steps: 7\n  learning_rate: 2e-5\n")
    config = load_config(file, ["trainer.steps=9"])
    assert (config.seed, config.trainer.steps, config.trainer.learning_rate) == (3, 9, 2e-5)


def test_a_preset_wins_over_defaults_and_loses_to_keys(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("algorithm:\n  preset: grpo\n  clip_high: 0.3\n")
    algorithm = load_config(file).algorithm
    assert (algorithm.aggregation, algorithm.kl_coef, algorithm.clip_high) == ("sample_mean", 0.04, 0.3)
    assert load_config(file, ["algorithm.kl_coef=0.5"]).algorithm.kl_coef == 0.5


@pytest.mark.parametrize("preset", PRESETS)
def test_each_preset_loads(preset):
    algorithm = load_config(overrides=[f"algorithm.preset={preset}"]).algorithm
    assert all(getattr(algorithm, key) == value for key, value in PRESETS[preset].items())


def test_a_resolved_config_reads_back_to_the_same(tmp_path):
    config = load_config(overrides=["algorithm.preset=gspo", "engine.args=[--seed,1]", "tasks.options={levels: [1]}"])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert load_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    "override, message",
    [
        ("trainer.leraning_rate=1e-6", "did you mean 'trainer.learning_rate'"),
        ("learning_rate=1e-6", "did you mean 'trainer.learning_rate'"),
        ("trainer.steps=many", "trainer.steps"),
        ("trainer=5", "'trainer' is a section"),
        ("trainer.steps", "not of the form key=value"),
        ("algorithm.ratio=tokens", "algorithm.ratio=tokens: expected one of"),
        ("algorithm.preset=ppo", "algorithm.preset=ppo: expected one of"),
        ("trainer.learning_rate=0", "must be greater than 0"),
        ("rollout.temperature=0", "rollout.temperature must be greater than 0"),
        ("rollout.max_tokens=4096", "leaves no room for a prompt"),
        ("trainer.micro_batch_tokens=16", "cannot hold one sequence"),
    ],
)
def test_a_wrong_argument_is_named(override, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        load_config(overrides=[override])


def test_a_misspelt_key_names_its_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("trainer:\n  leraning_rate: 1e-6\n")
    with pytest.raises(ConfigError, match=r"run\.yaml: unknown key 'trainer\.leraning_rate'.*trainer\.learning_rate"):
        load_config(file)


@pytest.mark.parametrize("content", ["- a\n- b\n", "trainer: [1\n", "just words\n"])
def test_a_file_that_is_no_config(tmp_path, content):
    file = tmp_path / "run.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        load_config(file)


def test_an_unknown_config_lists_those_that_ship():
    with pytest.raises(ConfigError, match="no config 'no-such-config'"):
        find_config("no-such-config")


def test_each_knob_has_its_documentation():
    assert all(doc and doc == doc.strip() for _, _, doc in knobs())


def test_choices_and_ranges_name_existing_keys():
    keys = {key for key, _, _ in knobs()}
    assert set(CHOICES) | set(POSITIVE) <= keys
    algorithm = {key.removeprefix("algorithm.") for key in keys if key.startswith("algorithm.")}
    assert {key for preset in PRESETS.values() for key in preset} <= algorithm


def test_configs_do_not_share_their_lists():
    first, second = Config(), Config()
    first.engine.args.append("--seed")
    assert second.engine.args == []


def test_every_section_is_a_dataclass_or_a_plain_value():
    sections = [getattr(Config(), item.name) for item in fields(Config)]
    assert sum(is_dataclass(section) for section in sections) >= 9
