"""The command of a configuration: what differs from the usual one is typed, and no more."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.tuning.command_line import _exact_size, command_of
from ppsim.tuning.space import Configuration
from tests.tuning.questions import question

QUESTION = question()
JOB = QUESTION.job
USUAL = {
    "tp": 2, "cp": 1, "ep": 1, "dp": 4, "pp": 2, "vpp": 1, "micro_batch": 1, "recompute": "none", "schedule": "1f1b",
    "split": "even",
}  # fmt: skip
BEFORE = "ppsim project --model llama3-8b --cluster dgx-h100 --gpus 16 --tp 2 --cp 1 --ep 1"
BATCH = "--micro-batch-size 1 --global-batch-size 32 --seq-len 8192"
SHAPE = f"--pp 2 --vpp 1 --schedule 1f1b {BATCH}"
END = "--recompute none --memory-limit 75GiB"


def of_cluster(name: str) -> Any:
    return replace(
        QUESTION, calibration_file="mine.json", job=replace(JOB, cluster=replace(JOB.cluster, name=name))
    )


def with_launches(**fields: Any) -> Any:
    return replace(QUESTION, job=replace(JOB, launch_s=2e-6), **fields)


@pytest.mark.parametrize(
    ("asked", "fields", "command"),
    [
        (QUESTION, {}, f"{BEFORE} {SHAPE} --split even {END} --stack plain"),
        (QUESTION, {"split": "searched"}, f"{BEFORE} {SHAPE} --split auto {END} --stack plain"),
        (QUESTION, {"split": "auto"}, f"{BEFORE} {SHAPE} --split 17,15 {END} --stack plain"),
        (
            QUESTION, {"schedule": "auto", "split": "auto"},
            f"{BEFORE} --pp 2 --vpp 1 --schedule auto {BATCH} --split auto {END} --stack plain",
        ),
        (
            QUESTION, {"schedule": "auto"},
            f"{BEFORE} --pp 2 --vpp 1 --schedule auto {BATCH} --split even {END} --stack plain",
        ),
        (
            QUESTION, {"vpp": 2, "schedule": "interleaved-1f1b"},
            f"{BEFORE} --pp 2 --vpp 2 --schedule interleaved-1f1b {BATCH} --split even {END} --stack plain",
        ),
        (
            QUESTION, {"pp": 1, "dp": 8, "zero": 3},
            f"{BEFORE} --pp 1 --vpp 1 --schedule 1f1b {BATCH} {END} --zero 3 --stack plain",
        ),
        (
            QUESTION, {"recompute": "auto", "split": "searched"},
            f"{BEFORE} {SHAPE} --plan auto --memory-limit 75GiB --stack plain",
        ),
        (
            replace(QUESTION, memory_limit_bytes=None), {},
            f"{BEFORE} {SHAPE} --split even --recompute none --stack plain",
        ),
        (of_cluster("dgx-h100"), {}, f"{BEFORE} {SHAPE} --split even {END} --stack plain --calibration mine.json"),
        (
            of_cluster("mine"), {},
            f"{BEFORE.replace(' --cluster dgx-h100', '')} {SHAPE} --split even {END} --stack plain --calibration mine.json",
        ),
        (with_launches(), {}, f"{BEFORE} {SHAPE} --split even {END} --stack plain --launch-ms 0.002"),
        (
            with_launches(overheads=(("action_overhead_s", 1.0),)), {},
            f"{BEFORE} {SHAPE} --split even {END} --stack plain",
        ),
        (question(layers=8), {}, f"{BEFORE} {SHAPE} --split even {END} --layers 8 --stack plain"),
        (
            QUESTION, {"switched": ("sequence_parallel=False",)},
            f"{BEFORE} {SHAPE} --split even {END} --stack plain --no-sequence-parallel",
        ),
        (
            replace(QUESTION, sequence_parallel=False), {},
            f"{BEFORE} {SHAPE} --split even {END} --stack plain --no-sequence-parallel",
        ),
        (
            QUESTION, {"switched": ("offload=0.25",)},
            f"{BEFORE} {SHAPE} --split even {END} --offload 0.25 --stack plain",
        ),
    ],
)  # fmt: skip
def test_the_command_has_the_sizes_and_what_differs(asked: Any, fields: dict[str, Any], command: str) -> None:
    assert command_of(asked, Configuration(**USUAL | fields)) == command  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(75.0 * 2**30, "75GiB"), (0.5 * 2**30, "0.5GiB"), (1e9 + 1, "1000000001.0B")]
)
def test_a_limit_is_in_gib_if_that_is_exact(num_bytes: float, text: str) -> None:
    assert _exact_size(num_bytes) == text
