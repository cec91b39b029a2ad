"""An algorithm is one function and one line: what a config may name is what there is."""

from agentgym.config import CHOICES
from agentgym.schema import PRESETS, AlgorithmConfig
from agentgym.trainers.assemble import ESTIMATES
from agentgym.trainers.loss import AGGREGATIONS, RATIOS
from agentgym.trainers.opd import MODES


def test_every_choice_has_its_function_and_every_function_its_name():
    for key, registry in (("ratio", RATIOS), ("aggregation", AGGREGATIONS), ("opd", MODES), ("estimator", ESTIMATES)):
        assert set(CHOICES[f"algorithm.{key}"]) == set(registry), key


def test_presets_name_what_there_is():
    for preset, bundle in PRESETS.items():
        for key, value in bundle.items():
            assert hasattr(AlgorithmConfig(), key), (preset, key)
            assert value in CHOICES.get(f"algorithm.{key}", (value,)), (preset, key)
