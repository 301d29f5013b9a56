"""Laws of the gates: exact counts, equal answers, and whose fault it is."""

from __future__ import annotations

from router.studies.calibrate.gates import Counted, judge_counts, judge_greedy, judge_tokenizers


def test_exact_counts_pass() -> None:
    assert judge_counts({"a": [Counted(7, 7, 20), Counted(16, 16, 20)]}).passed


def test_an_engine_that_stops_early_is_named_with_both_counts() -> None:
    result = judge_counts({"a": [Counted(7, 7, 20)], "b": [Counted(7, 7, 20), Counted(16, 9, 20)]})
    assert not result.passed
    assert result.workers == ("b",)
    assert "b counts 9 output tokens where 16 were asked for" in result.said


def test_one_prompt_that_counts_differently_twice_fails() -> None:
    result = judge_counts({"a": [Counted(7, 7, 20), Counted(16, 16, 21)]})
    assert result.workers == ("a",)
    assert "20 and 21" in result.said


def test_equal_greedy_answers_pass() -> None:
    assert judge_greedy({"a": ["x", "y"], "b": ["x", "y"]}).passed
    assert judge_greedy({"a": ["x"]}).passed
    assert judge_greedy({}).passed


def test_of_three_the_odd_one_is_blamed_from_the_character_on_where_it_parts() -> None:
    result = judge_greedy({"a": ["same", "abcdef"], "b": ["same", "abcXef"], "c": ["same", "abcdef"]})
    assert result.workers == ("b",)
    assert "greedy prompt 2" in result.said
    assert "'Xef' from character 3" in result.said
    assert "'def'" in result.said


def test_of_two_both_are_suspect() -> None:
    result = judge_greedy({"a": ["x"], "b": ["y"]})
    assert result.workers == ("a", "b")
    assert "cannot be told" in result.said


def test_an_answer_that_is_cut_short_parts_at_its_end() -> None:
    result = judge_greedy({"a": ["abc"], "b": ["abcdef"], "c": ["abcdef"]})
    assert result.workers == ("a",)
    assert "from character 3" in result.said


def test_other_lengths_mean_another_tokenizer() -> None:
    result = judge_tokenizers({"a": [5, 6], "b": [5, 6], "c": [7, 9]})
    assert result.workers == ("c",)
    assert "7, 9" in result.said
    assert "5, 6" in result.said
