"""Sentences about the options of a job."""

import pytest

from ppsim.costs.job_description import dp_overlap_text, stack_description
from ppsim.model.optimizer import Optimizer
from tests.projection.jobs import job


@pytest.mark.parametrize(
    ("zero_stage", "reduction", "gather", "text"),
    [
        (1, True, True, "overlapped"),
        (1, False, False, "exposed"),
        (1, True, False, "reduction overlapped, all-gather exposed"),
        (1, False, True, "all-gather overlapped, reduction exposed"),
        (0, True, False, "overlapped"),
    ],
)
def test_the_stack_names_the_exposed_data_parallel_messages(
    zero_stage: int, reduction: bool, gather: bool, text: str
) -> None:
    found = job(
        dp=2, overlap_grad_reduce=reduction, overlap_param_gather=gather, optimizer=Optimizer(zero_stage=zero_stage)
    )
    assert dp_overlap_text(found) == text
    assert stack_description(found).endswith(f"ZeRO {zero_stage}, DP {text}")
