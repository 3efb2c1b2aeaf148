"""A local batch in microbatches and rounds: rounds · local batch · replicas = global batch."""

from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.trainers.local_batch import LocalBatch

BATCH = LocalBatch(of_round=8, of_microbatch=2, without_pipeline=4, source="run.sh")


@pytest.mark.parametrize(
    ("pp", "global_batch", "expected"),
    [
        (2, 64, {"micro_batch": 2, "global_batch": 64}),
        (2, None, {"micro_batch": 2, "microbatches": 4}),
        (2, -1, {"micro_batch": 2, "microbatches": 4}),
        (1, 0, {"micro_batch": 4, "microbatches": 1}),
        (1, 1, {"micro_batch": 4, "global_batch": 1}),
    ],
)
def test_without_a_global_batch_a_step_is_one_round(
    pp: int, global_batch: int | None, expected: dict[str, int]
) -> None:
    assert BATCH.words(pp, global_batch) == expected


def test_a_round_of_no_whole_microbatches_is_refused() -> None:
    odd = LocalBatch(8, 3, 4, "run.sh")
    with pytest.raises(ConfigError, match=r"run\.sh: local_batch_size 8 is no multiple of the microbatch size 3"):
        odd.words(2, None)
    with pytest.raises(ConfigError, match="a round of 8 sequences is no multiple of --micro-batch-size 3"):
        odd.fill({"pp": 2, "dp": 1}, ())


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        # 64 = rounds · 8 · dp 2
        ({"pp": 2, "dp": 2, "global_batch": 64}, (), {"micro_batch": 2, "gradient_accumulation_steps": 4}),
        # one round of 8 / 2 microbatches
        ({"pp": 2, "dp": 2}, (), {"micro_batch": 2, "microbatches": 4, "gradient_accumulation_steps": 1}),
        # 12 microbatches of 2 on each replica are 3 rounds of 8
        ({"pp": 2, "dp": 2, "microbatches": 12}, ("microbatches",), {"gradient_accumulation_steps": 3}),
        # without a pipeline, a round is a microbatch: 48 = rounds · 4 · 2
        ({"dp": 2, "global_batch": 48}, (), {"micro_batch": 4, "gradient_accumulation_steps": 6}),
        ({"dp": 2, "global_batch": 48, "micro_batch": 3}, ("micro_batch",), {"gradient_accumulation_steps": 8}),
        (
            {"pp": 2, "dp": 2, "global_batch": 64, "micro_batch": 4},
            ("micro_batch",),
            {"gradient_accumulation_steps": 4},
        ),
        # replicas = 16 GPUs / (tp 2 · pp 2)
        ({"pp": 2, "tp": 2, "gpus": 16, "global_batch": 64}, (), {"gradient_accumulation_steps": 2}),
        ({"pp": 2, "tp": 2, "gpus": 2, "global_batch": 64}, (), {"gradient_accumulation_steps": 8}),
        # experts on 4 ranks need 4 replicas of tp 1
        ({"pp": 2, "ep": 4, "global_batch": 64}, (), {"gradient_accumulation_steps": 2}),
        (
            {"pp": 2, "dp": 2, "global_batch": 65, "gradient_accumulation_steps": 5},
            ("gradient_accumulation_steps",),
            {"gradient_accumulation_steps": 5},
        ),
    ],
)
def test_rounds_are_what_the_global_batch_takes(
    options: dict[str, Any], given: tuple[str, ...], expected: dict[str, int]
) -> None:
    BATCH.fill(options, given)
    assert {name: options[name] for name in expected} == expected


def test_a_step_of_no_whole_rounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="a step of 60 sequences is no multiple of local batch 8 · dp 2"):
        BATCH.fill({"pp": 2, "dp": 2, "global_batch": 60}, ())
