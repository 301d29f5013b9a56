"""The predictor takes the most telling source that has seen enough, and says when it has not."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.predict import Grouping, LengthPredictor, PredictorSettings, Source, Traits
from router.core.predict_error import MIN_JUDGED, Trust
from router.core.predict_match import prompt_hash, template_hash
from router.core.predict_mean import TenantMeans, geometric_steps
from router.core.predict_outlook import Outlook, bounded
from router.core.predict_state import export, restore
from router.core.prompt_key import PromptKey
from tests.core.fleet_examples import request

H = 80


def predictor(**settings: Any) -> LengthPredictor:
    return LengthPredictor(PredictorSettings(**settings), b"salt")


def teach(made: LengthPredictor, traits: Traits, *tokens: int, now: float = 0.0, ended: bool = True) -> None:
    for n, length in enumerate(tokens):
        made.learn(traits, made.outlook(traits, now + n), length, now + n, ended=ended)


def test_who_has_seen_nothing_says_so_and_counts_as_staying() -> None:
    outlook = predictor().outlook(Traits("m"), 0.0)
    assert outlook.source is Source.UNKNOWN
    assert outlook.expected_tokens is None
    assert {outlook.steps(written) for written in (0, 100, 10**6)} == {H + 1}


def test_the_most_telling_source_with_enough_lengths_is_taken() -> None:
    made = predictor()
    mine = Traits("m", "t", prompt=1, template=2)
    teach(made, Traits("m", "t"), *[500] * 7)
    assert made.outlook(mine, 7.0).source is Source.UNKNOWN
    teach(made, Traits("m", "t"), 500, now=7.0)
    assert made.outlook(mine, 8.0).source is Source.TENANT
    teach(made, Traits("m", "other"), *[500] * 24, now=8.0)
    assert made.outlook(mine, 32.0).source is Source.MODEL
    teach(made, Traits("m", "t", prompt=9, template=2), *[300] * 8, now=32.0)
    assert made.outlook(mine, 40.0).source is Source.TEMPLATE
    teach(made, mine, *[20] * 8, now=40.0)
    outlook = made.outlook(mine, 48.0)
    assert (outlook.source, outlook.steps(0), outlook.expected_tokens) == (Source.PROMPT, 20, 20)


def test_survival_alone_looks_at_no_prompt() -> None:
    one = request("1", key=PromptKey.of_text("m", "hello"))
    assert predictor(grouping=Grouping.SURVIVAL).traits(one).prompt is None
    assert predictor().traits(one).prompt is not None
    assert predictor().traits(request("2")).prompt is None


def test_an_old_prompt_is_forgotten_for_the_model() -> None:
    made = predictor(half_life_s=100.0)
    teach(made, Traits("m", prompt=1), *[20] * 8)
    assert made.outlook(Traits("m", prompt=1), 8.0).source is Source.PROMPT
    assert made.outlook(Traits("m", prompt=1), 60.0).source is not Source.PROMPT


def test_the_tenants_own_mean_is_expected_where_only_the_model_is_known() -> None:
    made = predictor()
    teach(made, Traits("m", "long"), *[900] * 20)
    teach(made, Traits("m", "short"), *[100] * 20, now=20.0)
    outlook = made.outlook(Traits("m", "short"), 40.0)
    assert outlook.source is Source.MODEL
    assert outlook.expected_tokens == pytest.approx(100)
    assert made.outlook(Traits("m", "new"), 40.0).expected_tokens == pytest.approx(500, abs=60)


# --- what the client demands ---------------------------------------------------------------------------


def test_a_dictated_length_is_known_and_teaches_nothing() -> None:
    made = predictor()
    traits = Traits("m", max_tokens=200, ignore_eos=True)
    outlook = made.outlook(traits, 0.0)
    assert (outlook.source, outlook.expected_tokens) == (Source.CLIENT, 200)
    assert [outlook.steps(written) for written in (0, 112, 128, 192, 208)] == [H + 1, H + 1, 72, 8, 1]
    made.learn(traits, outlook, 200, 1.0, ended=False)
    assert len(made.tenants) == len(made.models) == 0
    endless = made.outlook(Traits("m", ignore_eos=True), 0.0)
    assert (endless.source, endless.steps(10**5)) == (Source.UNKNOWN, H + 1)


@given(
    st.binary(max_size=40).map(lambda b: bytes([min(max(x, 1), H + 1) for x in b])),
    st.integers(1, H + 1),
    st.none() | st.integers(1, 900),
    st.none() | st.integers(0, 900),
    st.integers(0, 60),
)
def test_demands_bound_every_entry(
    table: bytes, beyond: int, most: int | None, least: int | None, index: int
) -> None:
    written = 16 * index
    outlook = Outlook(Source.MODEL, table, beyond, None, 300.0)
    within = bounded(outlook, Traits("m", max_tokens=most, min_tokens=least), H)
    steps = within.steps(written)
    assert 1 <= steps <= H + 1
    if most is not None:
        assert steps <= max(most - written, 1)
        assert within.expected_tokens is not None
        assert within.expected_tokens <= most
    if least is not None and (most is None or least <= most) and written < least:
        assert steps >= min(least - written, H + 1, outlook.steps(written) if most else H + 1)
    if most is None and not least:
        assert steps == outlook.steps(written)


def test_a_length_that_was_cut_is_not_taken_for_an_end() -> None:
    made = predictor(min_lengths=8)
    teach(made, Traits("m"), *[100] * 16, ended=False)
    assert made.outlook(Traits("m"), 16.0).source is not Source.MODEL
    teach(made, Traits("m"), *[400] * 8, now=16.0)
    outlook = made.outlook(Traits("m"), 24.0)
    assert outlook.source is Source.MODEL
    assert outlook.steps(96) == H + 1


# --- repetitions ---------------------------------------------------------------------------------------


def test_prompts_match_by_salt_partition_and_text() -> None:
    key = PromptKey.of_text("m", "hello")
    assert prompt_hash(key, b"a") == prompt_hash(PromptKey.of_text("m", "hello"), b"a")
    others = [
        prompt_hash(key, b"b"),
        prompt_hash(PromptKey.of_text("n", "hello"), b"a"),
        prompt_hash(PromptKey.of_text("m", "hello!"), b"a"),
    ]
    assert prompt_hash(key, b"a") not in others


def chat(system: str | None, user: str, model: str = "m", tools: str | None = None) -> PromptKey:
    messages = [{"role": "user", "content": user}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    fields = {"messages": json.dumps(messages).encode()}
    if tools is not None:
        fields["tools"] = tools.encode()
    return PromptKey(model, lambda: fields)


def test_a_template_is_what_stands_before_the_first_user() -> None:
    one = template_hash(chat("be brief", "why?"), b"")
    assert one == template_hash(chat("be brief", "how?"), b"")
    assert one != template_hash(chat("be long", "why?"), b"")
    assert one != template_hash(chat("be brief", "why?", model="n"), b"")
    tools = [template_hash(chat(None, text, tools='[{"name":"f"}]'), b"") for text in ("a", "b")]
    assert tools[0] == tools[1] is not None


def test_without_one_it_is_how_a_long_prompt_begins() -> None:
    assert template_hash(chat(None, "short"), b"") is None
    assert template_hash(chat(None, "x" * 400 + "a"), b"") == template_hash(chat(None, "x" * 400 + "b"), b"")
    ids = PromptKey("m", lambda: {"prompt": json.dumps([1] * 65).encode()})
    few = PromptKey("m", lambda: {"prompt": json.dumps([1] * 64).encode()})
    assert template_hash(ids, b"") is not None
    assert template_hash(few, b"") is None


# --- the mean ------------------------------------------------------------------------------------------


def test_a_mean_alone_means_the_same_chance_at_each_token() -> None:
    by_hand = sum(0.99**n for n in range(H))
    assert geometric_steps(100.0, H) == pytest.approx(by_hand)
    assert geometric_steps(1.0, H) == 1.0
    assert geometric_steps(1e9, H) == pytest.approx(H, rel=1e-6)


def test_a_running_mean_forgets_and_is_bounded() -> None:
    means = TenantMeans(limit=2, memory=20)
    for _ in range(20):
        means.learn("t", "m", 100, ended=True)
    for _ in range(100):
        means.learn("t", "m", 200, ended=True)
    mean = means.get("t", "m")
    assert mean is not None
    assert mean.tokens == pytest.approx(200, abs=1)
    means.learn("t", "m", 50, ended=False)
    assert mean.samples == 120, "it would have been longer, but that is no news"
    means.learn("u", "m", 1, ended=True)
    means.learn("v", "m", 1, ended=True)
    assert means.get("t", "m") is None
    assert len(means) == 2


# --- errors and drift ----------------------------------------------------------------------------------


def traffic(made: LengthPredictor, mean: float, count: int, now: float, seed: int = 1) -> None:
    source = random.Random(seed)
    for n in range(count):
        traits = Traits("m", "t")
        at = now + n
        outlook = made.outlook(traits, at)
        made.learn(traits, outlook, max(1, round(source.gauss(mean, mean / 10))), at, ended=True)


def test_true_predictions_have_small_errors() -> None:
    made = predictor()
    traffic(made, 400, 600, 0.0)
    errors = made.errors()
    assert errors["model"].samples == pytest.approx(600, abs=40)
    assert errors["model"].brier is not None
    assert errors["model"].brier < 0.12
    assert errors["model"].bias_steps == pytest.approx(0, abs=6)
    assert errors["model"].mae_tokens == pytest.approx(400 / 10 * 0.8, rel=0.3)
    assert errors["prompt"].samples == 0
    assert made.trust is Trust.FULL


def test_when_lengths_change_trust_goes_and_comes_back_with_the_new_ones() -> None:
    made = predictor(model_lengths=256)
    traffic(made, 400, MIN_JUDGED + 50, 0.0)
    traffic(made, 4_000, 60, 400.0, seed=2)
    assert made.trust < Trust.FULL
    traffic(made, 4_000, 900, 500.0, seed=3)
    assert made.trust is Trust.FULL


# --- bounds and state ----------------------------------------------------------------------------------


def test_memory_is_bounded_whatever_comes() -> None:
    made = predictor(max_matches=8, matched_lengths=4, max_models=3, model_lengths=16, max_tenants=5)
    for n in range(300):
        teach(made, Traits(f"m{n % 7}", f"t{n}", prompt=n, template=n // 2), n + 1, now=float(n))
    assert (len(made.prompts), len(made.templates), len(made.models), len(made.tenants)) == (8, 8, 3, 5)
    assert max(len(lengths) for lengths in made.models.values()) <= 16


def test_a_length_costs_a_few_bytes() -> None:
    made = predictor()
    teach(made, Traits("m"), *range(1, 1_025))
    lengths = made.models["m"]
    held = sum(sys.getsizeof(getattr(lengths, slot)) for slot in ("_tokens", "_at"))
    assert held < 1_024 * 20


def test_saved_and_restored_it_predicts_the_same() -> None:
    made, again = predictor(), predictor()
    mine = Traits("m", "t", prompt=2**63 + 1, template=5)
    for n in range(10, 60):
        made.learn(mine, None, n, 100.0 + n, ended=n % 10 > 0)
    restore(again, json.loads(json.dumps(export(made, 200.0))), 7.0)
    for traits in (mine, Traits("m", "t", template=5), Traits("m", "t"), Traits("m", "u"), Traits("n")):
        old, new = made.outlook(traits, 200.0), again.outlook(traits, 7.0)
        assert old.source is new.source
        assert old.table == new.table
        assert old.expected_tokens == pytest.approx(new.expected_tokens)
    assert again.errors() == made.errors()


def test_lengths_age_while_the_router_is_away() -> None:
    made, again = predictor(half_life_s=100.0), predictor(half_life_s=100.0)
    teach(made, Traits("m", prompt=1), *[20] * 16)
    restore(again, export(made, 16.0), 0.0, away_s=1_000.0)
    assert made.outlook(Traits("m", prompt=1), 16.0).source is Source.PROMPT
    assert again.outlook(Traits("m", prompt=1), 0.0).source is not Source.PROMPT


def test_errors_of_another_horizon_are_left_out() -> None:
    made, other = predictor(), predictor(horizon_steps=40)
    traffic(made, 100, 60, 0.0)
    restore(other, export(made, 60.0), 60.0)
    assert other.errors()["overall"].samples == 0
    assert len(other.models) == 1


@pytest.mark.parametrize(
    "data", [{}, {"version": 1}, {"version": "x"}, {"prompts": []}], ids=["empty", "part", "type", "shape"]
)
def test_what_is_no_saved_state_is_refused_and_adds_nothing(data: dict[str, object]) -> None:
    made = predictor()
    with pytest.raises(ValueError, match="no saved predictor"):
        restore(made, data, 0.0)
    with pytest.raises(ValueError, match="version 2"):
        restore(made, export(made, 0.0) | {"version": 2}, 0.0)
    damaged = export(made, 0.0) | {"prompts": {"zz": {"tokens": [1], "ages_s": [1.0]}}}
    with pytest.raises(ValueError, match="invalid literal"):
        restore(made, damaged, 0.0)
    assert len(made.prompts) == 0


def test_representations_say_how_much_is_known() -> None:
    assert repr(predictor()) == "<LengthPredictor full [0 prompts | 0 templates | 0 models | 0 tenants]>"
