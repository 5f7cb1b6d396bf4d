"""What ``config.json`` may and may not say."""

import json
from pathlib import Path

import pytest

from models.deepseek_v4 import DeepseekV4Config, LayerKind
from models.deepseek_v4.config import YarnScaling
from tests.random_models import TINY, tiny_config

NEEDED = {name: value for name, value in TINY.items() if name not in ("rope_scaling", "hc_sinkhorn_iters")}
FLASHLIKE = Path(__file__).parent.parent / "fixtures" / "target" / "flashlike" / "config.json"


def test_a_real_config_reads_as_written() -> None:
    values = json.loads(FLASHLIKE.read_text())
    config = DeepseekV4Config.from_dict(values)
    assert config.compress_ratios == (0, 0, 4, 16, 4)
    assert config.rope_scaling == YarnScaling(factor=16, original_max_position_embeddings=256)
    assert config.hidden_size == values["hidden_size"]
    assert config.hc_sinkhorn_iters == values["hc_sinkhorn_iters"]


def test_layer_kinds_follow_the_ratios() -> None:
    config = tiny_config(num_hidden_layers=4, compress_ratios=(0, 4, 128, 2))
    assert [config.kind(layer) for layer in range(4)] == [
        LayerKind.WINDOW,
        LayerKind.CSA,
        LayerKind.HCA,
        LayerKind.HCA,
    ]
    config = tiny_config(num_hidden_layers=2, compress_ratios=(4, 2), csa_ratio=2)
    assert [config.kind(layer) for layer in range(2)] == [LayerKind.HCA, LayerKind.CSA]


def test_defaults_are_flash_s() -> None:
    config = DeepseekV4Config.from_dict(NEEDED)
    assert (config.hc_mult, config.hc_sinkhorn_iters, config.hc_eps, config.rms_norm_eps) == (4, 20, 1e-6, 1e-6)
    assert (config.rope_theta, config.compress_rope_theta, config.rope_scaling) == (10000.0, 160000.0, None)
    assert (config.routed_scaling_factor, config.swiglu_limit, config.csa_ratio) == (1.5, 10.0, 4)
    assert config.simulate_quantization is False


def test_unknown_keys_are_ignored() -> None:
    extras = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "dspark_block_size": 5,
        "torch_dtype": "bfloat16",
        "name": None,
    }
    assert DeepseekV4Config.from_dict(NEEDED | extras) == DeepseekV4Config.from_dict(NEEDED)


@pytest.mark.parametrize("extra", [0, 1, 3])
def test_ratios_past_the_layers_are_dropped(extra: int) -> None:
    ratios = [*NEEDED["compress_ratios"], *[0] * extra]
    config = DeepseekV4Config.from_dict(NEEDED | {"compress_ratios": ratios})
    assert config.compress_ratios == NEEDED["compress_ratios"]


def test_too_few_ratios() -> None:
    with pytest.raises(ValueError, match="compress_ratios needs an entry for each of the 3 layers, got 2"):
        DeepseekV4Config.from_dict(NEEDED | {"compress_ratios": [0, 4]})


@pytest.mark.parametrize("key", sorted(NEEDED))
def test_every_needed_key_is_named_when_it_is_missing(key: str) -> None:
    with pytest.raises(ValueError, match=key) as caught:
        DeepseekV4Config.from_dict({name: value for name, value in NEEDED.items() if name != key})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "deepseek_v41"),
        ("scoring_func", "sigmoid"),
        ("n_shared_experts", 2),
        ("num_key_value_heads", 8),
        ("attention_bias", True),
        ("tie_word_embeddings", True),
    ],
)
def test_variants_that_v4_does_not_have_are_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"config key {key}: wanted .*, got {value!r}"):
        DeepseekV4Config.from_dict(NEEDED | {key: value})


def test_fixed_keys_may_be_said_or_left_out() -> None:
    said = {
        "model_type": "deepseek_v4",
        "scoring_func": "sqrtsoftplus",
        "n_shared_experts": 1,
        "num_key_value_heads": 1,
    }
    assert DeepseekV4Config.from_dict(NEEDED | said) == DeepseekV4Config.from_dict(NEEDED)


def test_heads_divide_into_groups() -> None:
    with pytest.raises(ValueError, match=r"num_attention_heads \(4\) must be a multiple of o_groups \(3\)"):
        tiny_config(o_groups=3)


@pytest.mark.parametrize("count", [0, 7])
def test_as_many_experts_as_there_are(count: int) -> None:
    with pytest.raises(ValueError, match=rf"num_experts_per_tok must lie in 1..n_routed_experts \(6\), got {count}"):
        tiny_config(num_experts_per_tok=count)


def test_yarn_s_extra_keys_are_ignored_and_its_needed_ones_named() -> None:
    scaling = {
        "type": "yarn",
        "rope_type": "yarn",
        "rope_theta": 1.0,
        "factor": 4,
        "original_max_position_embeddings": 8,
    }
    config = DeepseekV4Config.from_dict(NEEDED | {"rope_scaling": scaling})
    assert config.rope_scaling == YarnScaling(factor=4, original_max_position_embeddings=8, beta_fast=32, beta_slow=1)
    for key in ("factor", "original_max_position_embeddings"):
        with pytest.raises(ValueError, match=key):
            DeepseekV4Config.from_dict(
                NEEDED | {"rope_scaling": {name: value for name, value in scaling.items() if name != key}}
            )


@pytest.mark.parametrize(
    ("scaling", "wanted"),
    [
        ("yarn", "rope_scaling: wanted an object or null, got 'yarn'"),
        ({"type": "linear", "factor": 4}, "rope_scaling: wanted type yarn, got 'linear'"),
        ({}, "rope_scaling has no factor, original_max_position_embeddings"),
        ({"factor": "4", "original_max_position_embeddings": 8}, "rope_scaling.factor: wanted a number, got '4'"),
    ],
)
def test_other_scalings_are_refused(scaling: object, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        DeepseekV4Config.from_dict(NEEDED | {"rope_scaling": scaling})


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("hidden_size", "32", "wanted an integer, got '32'"),
        ("num_hidden_layers", 3.0, "wanted an integer, got 3.0"),
        ("index_topk", None, "wanted an integer, got None"),
        ("swiglu_limit", [10], r"wanted a number, got \[10\]"),
        ("simulate_quantization", 1, "wanted true or false, got 1"),
        ("compress_ratios", None, "wanted a list of integers from 0, got None"),
        ("compress_ratios", [0, 4, "128"], "wanted a list of integers from 0"),
        ("compress_ratios", [0, 4, -1], "wanted a list of integers from 0"),
    ],
)
def test_values_of_another_kind_are_named(key: str, value: object, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"config key {key}: {wanted}"):
        DeepseekV4Config.from_dict(NEEDED | {key: value})


def test_a_whole_number_may_stand_for_a_fraction() -> None:
    assert DeepseekV4Config.from_dict(NEEDED | {"rope_theta": 10000}).rope_theta == 10000


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"head_dim": 68}, "head_dim - qk_rope_head_dim in multiples of 64, got 60"),
        ({"head_dim": 72, "index_head_dim": 48}, "index_head_dim to be a power of two of at least 32, got 48"),
        ({"head_dim": 72, "index_head_dim": 16}, "index_head_dim to be a power of two of at least 32, got 16"),
    ],
)
def test_sizes_that_the_quantization_simulation_has_no_blocks_for(changes: dict, wanted: str) -> None:
    assert not tiny_config(**changes).simulate_quantization
    with pytest.raises(ValueError, match=f"simulate_quantization needs {wanted}: set simulate_quantization to false"):
        tiny_config(**changes, simulate_quantization=True)


def test_no_rope_scaling_is_none() -> None:
    assert DeepseekV4Config.from_dict(NEEDED | {"rope_scaling": None}).rope_scaling is None


def test_a_config_does_not_change() -> None:
    with pytest.raises(AttributeError):
        tiny_config().hidden_size = 3
