"""The specs add up to what the models' publishers say."""

import dataclasses

import pytest

from engines.model.specs import GPUS, MODELS


def test_the_names_are_those_that_scripts_rely_on() -> None:
    assert list(MODELS) == [
        "qwen2.5-3b",
        "mistral-7b",
        "llama-3-8b",
        "llama-3-70b",
        "qwen3-30b-a3b",
        "deepseek-v3",
    ]
    assert list(GPUS) == ["a40", "a6000", "a100", "h100", "h200", "ascend-910c"]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen2.5-3b", 3_085_938_688),
        ("mistral-7b", 7_241_732_096),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_parameters_equal_the_checkpoint_s_own_count(name: str, parameters: int) -> None:
    assert MODELS[name].parameters == parameters


@pytest.mark.parametrize(
    ("name", "billions", "body_billions"),
    [
        ("qwen2.5-3b", 3.086, 2.775),
        ("mistral-7b", 7.242, 6.980),
        ("llama-3-8b", 8.030, 6.980),
        ("llama-3-70b", 70.55, 68.45),
        ("deepseek-v3", 671, None),
    ],
)
def test_parameters_agree_with_the_published_table(
    name: str, billions: float, body_billions: float | None
) -> None:
    model = MODELS[name]
    assert model.parameters / 1e9 == pytest.approx(billions, rel=5e-4)
    if body_billions is not None:
        assert model.body_parameters / 1e9 == pytest.approx(body_billions, rel=5e-4)


@pytest.mark.parametrize(("name", "active_billions"), [("qwen3-30b-a3b", 3.3), ("deepseek-v3", 37.0)])
def test_a_token_activates_the_published_share_of_an_expert_model(name: str, active_billions: float) -> None:
    model = MODELS[name]
    # The publishers count embedding and head among the active weights.
    with_head = model.active_body_parameters + 2 * model.head_parameters
    without_head = model.active_body_parameters
    assert without_head / 1e9 < active_billions < with_head / 1e9 * 1.01


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("qwen2.5-3b", 36_864),
        ("mistral-7b", 131_072),
        ("llama-3-8b", 131_072),
        ("llama-3-70b", 327_680),
        ("qwen3-30b-a3b", 2 * 48 * 4 * 128 * 2),
        ("deepseek-v3", 70_272),
    ],
)
def test_kv_bytes_of_a_token(name: str, kv_bytes: int) -> None:
    assert MODELS[name].kv_bytes_per_token == kv_bytes


@pytest.mark.parametrize("name", MODELS)
def test_a_dense_model_activates_its_whole_body_and_an_expert_model_does_not(name: str) -> None:
    model = MODELS[name]
    if model.experts is None:
        assert model.active_body_parameters == model.body_parameters
        assert model.routed_parameters == 0
    else:
        idle = 1 - model.experts.active / model.experts.routed
        assert model.body_parameters - model.active_body_parameters == model.routed_parameters * idle


def test_weight_bytes_follow_the_width_of_a_weight() -> None:
    assert MODELS["mistral-7b"].weight_bytes == 2 * MODELS["mistral-7b"].parameters
    assert MODELS["deepseek-v3"].weight_bytes == MODELS["deepseek-v3"].parameters


def test_latent_attention_decodes_with_more_arithmetic_and_fewer_bytes_than_it_prefills() -> None:
    attention = MODELS["deepseek-v3"].attention
    assert attention.flops_per_position_decode > attention.flops_per_position_prefill
    assert attention.kv_values_per_token == 512 + 64


def test_eight_bit_weights_use_the_eight_bit_units_where_there_are_some() -> None:
    h100 = GPUS["h100"]
    assert h100.flops_per_s(1) == 1_979e12
    assert h100.flops_per_s(2) == 989e12
    assert dataclasses.replace(h100, flops_8bit_per_s=None).flops_per_s(1) == 989e12


def test_specs_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MODELS["mistral-7b"].layers = 1  # type: ignore[misc]  # the point of the test
    with pytest.raises(TypeError):
        GPUS["a40"] = GPUS["h100"]  # type: ignore[index]  # the point of the test
