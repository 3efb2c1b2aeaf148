"""Faults that real runs were given by their costs and options: `explain` names each first."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.base.files import to_json
from ppsim.runs.loss_attribution import attribute_losses
from ppsim.runs.timeline_import import import_result
from ppsim.runtime.launch import launch_all
from ppsim.simulation.cost_files import costs_from
from tests.runtime.cases import config_of

PASSES = ("forward_s", "backward_input_s", "backward_weight_s")
FAULTS = {
    "slow first passes": ({"first_pass_s": 0.06}, ()),
    "straggling steps": ({}, ((1, 4.0),)),
    "waits for messages": ({"transfer_s": 0.02}, ()),
    "uneven microbatches": ({"forward_s": [[0.01, 0.1, 0.01, 0.01]]}, ()),
}


@pytest.mark.torch
def test_a_late_first_pass_a_straggling_step_a_slow_hop_and_a_long_microbatch_are_named_first(
    tmp_path: Path,
) -> None:
    """1F1B on two ranks, passes of 10 ms; 40 to 90 ms are injected, and a busy host adds much less."""
    table = ppsim.build("1f1b", pp=2, microbatches=4)
    configs, given = [], []
    for number, (words, straggling) in enumerate(FAULTS.values()):
        costs = dict.fromkeys(PASSES, 0.01) | words
        path = tmp_path / f"{number}.json"
        path.write_text(to_json(costs))
        given.append(costs_from(costs))
        configs.append(
            config_of(
                table, tmp_path, emulate_costs=str(path), num_steps=3, num_warm_up=1, straggling_steps=straggling
            )
        )
    runs = [
        import_result(result, table, costs).run
        for result, costs in zip(launch_all(configs, quiet=True), given, strict=True)
    ]
    assert [attribute_losses(run).reasons[0].cause for run in runs] == list(FAULTS)
    took = (runs[0].end - runs[0].start)[:, table.rank_offsets[:-1]]
    assert (took >= 0.07).all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"straggling_steps": {0: 2.0}}, "--straggling-step is for --emulate-costs"),
        ({"straggling_steps": {3: 2.0}, "emulate_costs": "costs"}, "one of the 3 recorded steps, from 0 on"),
        ({"straggling_steps": {0: -1.0}, "emulate_costs": "costs"}, "a factor above 0: got 0:-1"),
        ({"emulate_costs": "hops"}, "transfers that differ by microbatch cannot be emulated"),
    ],
)
def test_what_cannot_be_put_in_is_refused_before_anything_is_started(options, sentence) -> None:  # type: ignore[no-untyped-def]
    costs = ppsim.StageCosts(**dict.fromkeys(PASSES, 0.01))
    given = {"costs": costs, "hops": costs.replace(transfer_s=[[0.01, 0.02]])}
    options = options | {name: given[value] for name, value in options.items() if name == "emulate_costs"}
    with pytest.raises(ConfigError, match=sentence):
        ppsim.train(ppsim.build("1f1b", pp=2, microbatches=2), **options)
