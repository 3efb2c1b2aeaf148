"""Sequences of different lengths: what is drawn, what a microbatch of them takes, and what is said of it."""

import numpy as np
import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.projection.lengths import SampledLengths, quadratic_part, read_lengths

JOB = {
    "model": "llama3-8b",
    "stack": "plain",
    "pp": 4,
    "tp": 4,
    "micro_batch": 2,
    "global_batch": 16,
    "seq_len": 4096,
}


def test_sequences_of_the_sequence_length_change_nothing_but_what_is_said():
    plain, drawn = ppsim.project(**JOB), ppsim.project(**JOB, lengths=[4096] * 16)
    assert drawn.iteration_time_s == pytest.approx(plain.iteration_time_s, rel=1e-9)
    assert drawn.tokens_per_s == pytest.approx(plain.tokens_per_s, rel=1e-9)
    assert drawn.model_flops_utilization == pytest.approx(plain.model_flops_utilization, rel=1e-9)
    assert drawn.timeline.memory.peak_bytes == pytest.approx(plain.timeline.memory.peak_bytes, rel=1e-9)


def test_two_sequences_of_half_the_length_take_half_of_what_the_job_of_four_such_does():
    half = ppsim.project(**JOB | {"seq_len": 2048, "micro_batch": 4, "global_batch": 32})
    drawn = ppsim.project(**JOB, lengths=[2048] * 16)
    assert half.stage_cost_set.split == drawn.stage_cost_set.split
    assert 2 * drawn.timeline.busy_s == pytest.approx(half.timeline.busy_s, rel=1e-9)
    assert drawn.tokens_per_s * drawn.iteration_time_s == pytest.approx(16 * 2048)


def test_a_sequence_of_twice_the_length_takes_more_than_twice_and_holds_twice_the_activations():
    job = JOB | {"split": "even"}  # the fastest split depends on the length
    short, long = (ppsim.project(**job, lengths=[tokens] * 16).timeline for tokens in (4096, 8192))
    assert (long.busy_s > 2 * short.busy_s).all()
    assert long.memory.peak_activation_bytes == pytest.approx(2 * short.memory.peak_activation_bytes)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "dualpipe"])
def test_the_components_of_sequences_of_different_lengths_sum_to_the_peak(schedule):
    made = ppsim.project(**JOB, schedule=schedule, lengths=[256] * 12 + [8192] * 4)
    assert sum(made.peak_components_bytes.values()) == pytest.approx(
        made.timeline.memory.peak_bytes.max(), rel=1e-9
    )


def test_components_of_sequences_of_the_sequence_length_are_those_without_lengths():
    plain, drawn = ppsim.project(**JOB), ppsim.project(**JOB, lengths=[4096] * 16)
    assert drawn.peak_components_bytes == plain.peak_components_bytes


def test_of_a_profile_the_squares_are_by_flops():
    plan = ppsim.project(pp=2, microbatches=4, lengths=[100, 200, 300, 400]).plan
    part = quadratic_part(plan)
    whole = ppsim.project(pp=2, microbatches=4)
    s = whole.plan.source.sequence_length
    drawn = ppsim.project(pp=2, microbatches=4, lengths=[2 * s] * 99)
    assert drawn.timeline.busy_s == pytest.approx(whole.timeline.busy_s * (2 * (1 - part) + 4 * part))


def test_a_step_takes_each_sequence_once_while_there_are_enough_and_the_seed_decides_which():
    one, same, other = (
        SampledLengths.of(tuple(range(1, 17)), num_microbatches=8, length=16, micro_batch=2, seed=seed).tokens
        for seed in (0, 0, 1)
    )
    assert sorted(one.ravel()) == list(range(1, 17))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_packing_evenly_moves_sequences_between_microbatches_and_loses_none():
    drawn = SampledLengths(np.array([[8.0, 8.0], [1.0, 1.0], [4.0, 4.0]]), 8)
    even = drawn.packed_evenly()
    assert sorted(even.tokens.ravel()) == sorted(drawn.tokens.ravel())
    assert even.quadratic_factor.max() < drawn.quadratic_factor.max()


def test_the_step_is_of_the_order_drawn_and_a_line_says_what_others_would_take():
    lengths = [256] * 12 + [8192] * 4
    found = ppsim.project(**JOB, lengths=lengths, seed=3)
    (line,) = (line for line in found.assumptions if line.startswith("order: as drawn"))
    assert "shortest microbatch first" in line
    assert "longest first" in line
    even = float(line.rsplit("packed evenly ", 1)[1].split(" %")[0])
    assert even < 0
    equal = float(line.rsplit("equal microbatches ", 1)[1].split(" %")[0])
    assert equal < even
    assert sum(found.summary.time_breakdown_s.values()) == pytest.approx(found.iteration_time_s)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("12\n4x\n", "line 2 is '4x'; give the tokens"), ("0\n", "line 1 is '0'"), ("\n", "holds no sequence")],
)
def test_a_list_that_is_none_is_refused_by_its_line(tmp_path, text, sentence):
    (tmp_path / "L").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_lengths(tmp_path / "L")
    assert sentence in str(error.value)
    assert str(tmp_path / "L") in str(error.value)


def test_transfers_grow_with_the_tokens_of_a_sequence_not_with_their_square():
    one, twice = (
        ppsim.project(**JOB, split="even", lengths=[tokens] * 16).stage_cost_set.costs for tokens in (4096, 8192)
    )
    assert twice.transfer_s == pytest.approx(2 * np.asarray(one.transfer_s))


def test_a_list_has_a_length_per_line_up_to_a_billion_tokens_and_empty_lines(tmp_path):
    (tmp_path / "L").write_text("1\n\n  1000000000 \n27\n")
    assert read_lengths(tmp_path / "L") == (1, 10**9, 27)
    (tmp_path / "L").write_text("5\n1000000001\n")
    with pytest.raises(ConfigError, match="line 2 is '1000000001'"):
        read_lengths(tmp_path / "L")


def test_the_quadratic_part_of_a_profile_is_attention_over_attention_and_weights():
    plan = ppsim.project(pp=2, microbatches=4).plan
    s, h = plan.source.sequence_length, plan.source.hidden_size
    assert quadratic_part(plan) == s / (s + 12 * h + 1)


def test_the_assumptions_tell_what_was_drawn_and_whether_sequences_are_repeated():
    def text(lengths):
        return next(
            line for line in ppsim.project(**JOB, lengths=lengths, seed=3).assumptions if "drawn with" in line
        )

    assert "lengths: 16 of 3 sequences, drawn with seed 3, some more than once; " in text([512, 4096, 1024])
    assert text([512] * 16).startswith("lengths: 16 of 16 sequences, drawn with seed 3; 1024 to 1024 tokens per")
    assert "1024 in the mean" in text([512] * 17)


def test_the_quadratic_part_of_a_job_is_that_of_causal_attention():
    """FLOPs per token are linear in the length; at one token, attention is nothing but a token's own."""
    plan = ppsim.project(**JOB).plan
    model = plan.job.model
    at_one, at_all = (model.training_flops(tokens, causal=True) for tokens in (1, 4096))
    assert quadratic_part(plan) == pytest.approx(1 - at_one / at_all)
    h, layers = 4096, 32
    assert at_all - at_one == pytest.approx(4095 * layers * 6 * h)  # 12 · s · h for all pairs, half of them causal
