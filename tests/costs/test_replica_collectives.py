"""Collectives of data-parallel ranks by hand: each takes a second per byte, all-reduces two."""

from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.costs import replica_collectives as collectives_of
from ppsim.costs.replica_collectives import num_buckets, passes_s, per_step_s, replica_collectives_s, slowed_s
from ppsim.parallel.groups import RankGroup

RANKS = {"dp-cp": RankGroup("dp-cp", 8, (4, 2)), "expert-dp": RankGroup("expert-dp", 2, (2, 1))}
HELD = SimpleNamespace(
    trained=100, trained_expert=40, matrices=60, gemms=70, expert_gemms=30, frozen_expert=0, dense=120, expert=50
)


@pytest.fixture(autouse=True)
def _seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(operation: str, num_bytes: float, group: RankGroup, _: Any) -> float:
        return num_bytes * (2.0 if operation == "all-reduce" else 1.0) * (group.num_ranks > 1)

    monkeypatch.setattr(collectives_of.collectives, "seconds", seconds)


def job(zero: int = 1, instances: int = 1, **others: Any) -> Any:
    optimizer = SimpleNamespace(
        zero_stage=zero, bytes_of_gradient=4, weight_bytes=2, fp8_param_gather=others.pop("fp8", False),
        instances_among=lambda number: min(instances, number),
    )  # fmt: skip
    place = SimpleNamespace(ranks=RANKS.get, held_cores={"dp-cp": 0.25, "expert-dp": 0.5}.get)
    overlaps = {"overlap_param_gather": True, "overlap_grad_reduce": True}
    settings = SimpleNamespace(gathered_bytes=1, vocabulary_of=lambda model: 1024 // 4)
    return SimpleNamespace(optimizer=optimizer, place=place, settings=settings, cluster=None, **(overlaps | others))


def test_gradients_of_trained_parameters_are_reduced_and_primary_weights_gathered_in_8_bits() -> None:
    assert replica_collectives_s(job(), HELD, "reduce-scatter") == {"dp-cp": 400.0, "expert-dp": 160.0}
    # 60 of 100 in one byte, the others in two; all 30 GEMM weights of 40
    assert replica_collectives_s(job(), HELD, "all-gather") == {"dp-cp": 140.0, "expert-dp": 50.0}
    # ZeRO 3: also frozen ones, and all GEMM weights
    assert replica_collectives_s(job(3), HELD, "all-gather") == {"dp-cp": 170.0, "expert-dp": 70.0}


def test_frozen_experts_are_neither_reduced_nor_gathered() -> None:
    frozen = SimpleNamespace(**(vars(HELD) | {"trained_expert": 0, "frozen_expert": 50}))
    assert list(replica_collectives_s(job(), frozen, "reduce-scatter")) == ["dp-cp"]
    assert list(replica_collectives_s(job(), frozen, "all-gather")) == ["dp-cp"]
    partly = SimpleNamespace(**(vars(HELD) | {"frozen_expert": 10}))
    assert replica_collectives_s(job(), partly, "all-gather")["expert-dp"] == 80.0  # 16-bit, as none is primary


def test_gradients_are_summed_over_instances_after_the_collective_within_one() -> None:
    """Two instances of 4 ranks: 400 within, and an all-reduce of a quarter of the bytes; experts have 1 rank each."""
    made = replica_collectives_s(job(instances=2), HELD, "reduce-scatter")
    assert made == {"dp-cp": 400.0 + 2 * 100.0, "expert-dp": 0.0 + 2 * 160.0}
    assert replica_collectives_s(job(instances=2), HELD, "all-gather") == {"dp-cp": 140.0, "expert-dp": 0.0}


@pytest.mark.parametrize(
    ("zero", "of_passes", "of_steps"),
    [
        (0, (0.0, 0.0), (0.0, 1120.0)),
        (1, (0.0, 0.0), (190.0, 560.0)),
        (2, (0.0, 560.0), (190.0, 0.0)),
        (3, (240.0, 560.0), (0.0, 0.0)),
    ],
)
def test_zero_decides_what_is_per_step_and_what_per_pass(
    zero: int, of_passes: tuple[float, float], of_steps: tuple[float, float]
) -> None:
    assert passes_s(job(zero), HELD) == of_passes
    assert per_step_s(job(zero), HELD) == of_steps


@pytest.mark.parametrize(
    ("zero", "others", "expected"),
    [
        (0, {}, (0.0, 0.5 * (0.25 * 800 + 0.5 * 320))),
        (1, {}, (0.5 * (0.25 * 140 + 0.5 * 50), 0.5 * (0.25 * 400 + 0.5 * 160))),
        (2, {}, (0.0, 0.5 * (0.25 * 400 + 0.5 * 160))),
        (1, {"overlap_param_gather": False}, (0.0, 90.0)),
        (1, {"overlap_grad_reduce": False}, (30.0, 0.0)),
    ],
)
def test_compute_is_slower_by_the_multiprocessors_that_hidden_collectives_hold(
    zero: int, others: dict[str, bool], expected: tuple[float, float]
) -> None:
    assert slowed_s(job(zero, **others), HELD, 0.5) == pytest.approx(expected)


def buckets(*, trains: bool = True, tied: bool = False, head: bool = False, zero: int = 1, **others: Any) -> float:
    model = SimpleNamespace(tied_embeddings=tied, trains=lambda _: trains, table=lambda rows: rows * 10)
    stage = SimpleNamespace(embedding=others.pop("embedding", True), head=head)
    layout = SimpleNamespace(tp=4, dp=others.pop("dp", 2), cp=2)
    held = SimpleNamespace(trained=others.pop("trained", 9000), trained_expert=1000)
    one = job(zero, model=model, layout=layout, bucket_size=others.pop("bucket_size", 2000), **others)
    return num_buckets(one, stage, held)


TABLE = 1024 // 4 * 10
"""Parameters of the part of the table of a rank: a quarter of 1024 rows."""


def test_the_last_bucket_of_the_first_stage_has_the_table_and_half_a_bucket() -> None:
    assert buckets() == 10000 / (TABLE + 1000)
    assert buckets(trains=False) == 10000 / 1000
    assert buckets(fp8=True, head=True) == 10000 / (2 * TABLE + 1000)
    assert buckets(fp8=True, head=True, tied=True) == buckets(fp8=True) == buckets(head=True) == buckets()
    assert buckets(bucket_size=10**6) == 1.0  # one bucket
    assert buckets(trained=1000) == 1.0  # less than its table


def test_buckets_of_other_stages_are_equal() -> None:
    assert buckets(embedding=False) == 5
    assert buckets(zero=2) == 5
    assert buckets(embedding=False, trained=9001) == 6
    assert buckets(embedding=False, trained=-1000) == 1
    million = 1_000_000
    assert buckets(embedding=False, bucket_size=None, trained=119 * million - 1000) == 3  # of 40 million each
    assert buckets(embedding=False, bucket_size=None, dp=30, trained=119 * million) == 2  # of 60 million each
