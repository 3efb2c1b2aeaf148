"""Updates shared by whole layers: as long as that of the replica with most of them."""

from dataclasses import replace

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.costs.assemble_job import assemble_job
from ppsim.model.optimizer import Optimizer
from tests.projection.jobs import job


@pytest.mark.parametrize("name", ["adam", "muon"])
@pytest.mark.parametrize(("dp", "most"), [(2, 4), (8, 1), (16, 1)])
def test_of_eight_layers_the_fullest_replica_has_its_share_rounded_up(name: str, dp: int, most: int) -> None:
    """⌈8 / dp⌉ layers of 8 instead of 8 / dp: the same up to dp 8, twice as long at 16."""
    one = job(layers=32, pp=4, dp=dp, optimizer=Optimizer(name=name))
    table = ppsim.build("1f1b", pp=4, microbatches=one.num_microbatches)
    evenly, whole = (
        assemble_job(replace(one, optimizer=replace(one.optimizer, layer_wise=by)), table, split="even").step_costs
        for by in (False, True)
    )
    assert whole.optimizer_s[1] == pytest.approx(evenly.optimizer_s[1] * most * dp / 8)


def test_a_stage_of_one_layer_is_updated_by_one_replica() -> None:
    one = job(layers=4, pp=4, dp=8, optimizer=Optimizer())
    table = ppsim.build("1f1b", pp=4, microbatches=one.num_microbatches)
    evenly, whole = (
        assemble_job(replace(one, optimizer=replace(one.optimizer, layer_wise=by)), table, split="even").step_costs
        for by in (False, True)
    )
    assert whole.optimizer_s[1] == pytest.approx(8 * evenly.optimizer_s[1])


def test_without_shared_state_there_is_nothing_to_share_by_layers() -> None:
    with pytest.raises(ConfigError, match="--zero 0 shares nothing"):
        Optimizer(zero_stage=0, layer_wise=True)
