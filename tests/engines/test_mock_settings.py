"""What a mock engine can be, and the sentences for what it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from engines.mock.__main__ import parser, settings_of
from engines.mock.hardware import Hardware
from engines.mock.settings import MockSettings, SettingsError
from engines.model.roofline import Roofline
from engines.model.specs import GPUS, MODELS


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": "gpt-7"}, "--model gpt-7: not known. Known: .*qwen2.5-3b"),
        ({"gpu": "abacus"}, "--gpu abacus: not known. Known: .*a40"),
        ({"dialect": "tgi"}, "--dialect tgi"),
        ({"role": "chef"}, "--role chef: not known. Known: both, decode, prefill"),
        ({"kv_connector": "pigeon"}, "--kv-connector pigeon: not known. Known: .*nixl"),
        ({"kv_connector": "nixl", "dialect": "sglang"}, "--kv-connector nixl: engines of the sglang dialect"),
        (
            {"kv_load_failure_policy": "cry"},
            "--kv-load-failure-policy cry: not known. Known: fail, recompute",
        ),
        ({"kv_lease_s": 0}, "--kv-lease-s 0: must be above 0"),
        ({"kv_bandwidth_gbps": 0}, "--kv-bandwidth-gbps 0: must be above 0"),
        ({"kv_latency_s": -1}, "--kv-latency-s -1: must not be negative"),
        ({"dp_size": 0}, "--dp-size 0: 1 to 256 ranks"),
        (
            {"dp_size": 2, "kv_connector": "mooncake"},
            "--kv-connector mooncake: .*data-parallel ranks with nixl only; use --count",
        ),
        ({"dp_size": 2, "dialect": "sglang", "role": "decode"}, "--kv-connector sglang: .*nixl only"),
        ({"time_scale": 0}, "--time-scale 0: must be above 0"),
        ({"output_tokens": -1}, "--output-tokens -1: must be above 0"),
        ({"max_num_seqs": 0}, "--max-num-seqs 0: must be at least 1"),
        ({"kv_tokens": 0}, "--kv-tokens 0: must be at least 1"),
        ({"max_num_queued_reqs": 0}, "--max-num-queued-reqs 0: must be at least 1"),
        ({"shutdown_timeout_s": -1}, "--shutdown-timeout -1: must not be negative"),
        ({"sigterm": "shout"}, "--sigterm shout"),
    ],
)
def test_a_wrong_knob_is_refused_with_its_name_its_value_and_what_is_allowed(
    values: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        MockSettings(**values)


def test_a_cache_that_cannot_hold_one_request_is_refused() -> None:
    with pytest.raises(SettingsError, match="--kv-tokens 100, --max-model-len 4096"):
        Hardware.of(MockSettings(kv_tokens=100, max_model_len=4096))


def test_measured_times_exist_for_some_pairs_only() -> None:
    assert not isinstance(Hardware.of(MockSettings(step_times="measured")).clock, Roofline)
    with pytest.raises(SettingsError, match="nothing was measured for mistral-7b on a40"):
        Hardware.of(MockSettings(model="mistral-7b", step_times="measured"))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gpu", GPUS)
def test_every_pair_of_the_specs_is_an_engine(model: str, gpu: str) -> None:
    hardware = Hardware.of(MockSettings(model=model, gpu=gpu))
    assert hardware.config.max_model_len <= MODELS[model].context_tokens
    assert isinstance(hardware.clock, Roofline)


@pytest.mark.parametrize(
    ("gpu", "limits"), [("a40", (256, 2048)), ("a100", (1024, 8192)), ("h100", (1024, 8192))]
)
def test_batch_limits_follow_the_gpus_memory(gpu: str, limits: tuple[int, int]) -> None:
    config = Hardware.of(MockSettings(gpu=gpu)).config
    assert (config.max_num_seqs, config.max_num_batched_tokens) == limits


def test_kv_tokens_are_the_usable_capacity() -> None:
    config = Hardware.of(MockSettings(kv_tokens=1600, max_model_len=512)).config
    assert (config.num_blocks, config.block_size) == (101, 16)


def test_output_tokens_is_the_mean_of_the_lengths() -> None:
    lengths = Hardware.of(MockSettings(output_tokens=200)).config.output_lengths
    assert lengths is not None
    drawn = [lengths.draw(index.to_bytes(8, "big")) for index in range(4000)]
    assert sum(drawn) / len(drawn) == pytest.approx(200, rel=0.1)


@pytest.mark.parametrize(
    ("values", "connector"),
    [
        ({}, "none"),
        ({"role": "prefill"}, "nixl"),
        ({"role": "decode"}, "nixl"),
        ({"role": "decode", "kv_connector": "none"}, "none"),
        ({"kv_connector": "nixl"}, "nixl"),
    ],
)
def test_an_engine_of_one_role_hands_kv_over_with_nixl_unless_told_otherwise(
    values: dict[str, Any], connector: str
) -> None:
    assert MockSettings(**values).connector == connector


def test_a_block_and_the_wire_follow_the_model_and_the_settings() -> None:
    link = Hardware.of(MockSettings(kv_bandwidth_gbps=8, kv_latency_s=0.5)).link
    block_bytes = 16 * MODELS["qwen2.5-3b"].kv_bytes_per_token
    assert link.seconds(2) == pytest.approx(0.5 + 2 * block_bytes / 1e9)


def test_the_command_line_without_flags_is_the_default_engine() -> None:
    assert settings_of(parser().parse_args([])) == MockSettings()


def test_every_flag_reaches_its_setting() -> None:
    flags = (
        "--model mistral-7b --gpu h100 --served-model-name m --dialect sglang --time-scale 0.5 --seed 7 "
        "--max-num-seqs 8 --max-num-batched-tokens 512 --max-model-len 4096 --block-size 32 "
        "--kv-tokens 65536 --api-key k --max-num-queued-reqs 3 --sse-keep-alive-interval 2 "
        "--no-enable-prompt-tokens-details "
        "--enable-request-id-headers --shutdown-timeout 9 --sigterm silence --restart-delay 4 "
        "--output-tokens 50 --scheduling-policy priority --no-enable-auto-tool-choice --step-times roofline "
        "--enable-server-load-tracking --role decode --kv-connector none --kv-lease-s 12 "
        "--kv-load-failure-policy recompute --kv-bandwidth-gbps 25 --kv-latency-s 0.5 "
        "--kv-side-channel-host decode-0 --dp-size 2"
    )
    expected = MockSettings(
        model="mistral-7b", gpu="h100", served_model_name="m", dialect="sglang", time_scale=0.5, seed=7,
        max_num_seqs=8, max_num_batched_tokens=512, max_model_len=4096, block_size=32, kv_tokens=65536,
        api_key="k", max_num_queued_reqs=3, sse_keep_alive_interval_s=2.0,
        enable_prompt_tokens_details=False, enable_request_id_headers=True, shutdown_timeout_s=9.0,
        sigterm="silence", restart_delay_s=4.0, output_tokens=50.0, scheduling_policy="priority",
        enable_auto_tool_choice=False, enable_server_load_tracking=True,
        role="decode", kv_connector="none", kv_lease_s=12.0, kv_load_failure_policy="recompute",
        kv_bandwidth_gbps=25.0, kv_latency_s=0.5, kv_side_channel_host="decode-0", dp_size=2,
    )  # fmt: skip
    assert settings_of(parser().parse_args(flags.split())) == expected


def test_a_fleet_of_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="--count 0"):
        settings_of(parser().parse_args(["--count", "0"]))
