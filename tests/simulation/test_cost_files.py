"""The `--costs` file: what it means, and that it comes back as it went."""

import json

import numpy as np
import pytest
from hypothesis import given

from ppsim import build, simulate
from ppsim.base.errors import ConfigError
from ppsim.simulation import cost_files
from ppsim.simulation.cost_files import costs_from, costs_to_json, message_bytes_in, read_costs
from ppsim.simulation.stage_costs import OVERHEADS
from tests.strategies import tables_and_costs

REQUIRED = {"forward_s": 1.0, "backward_input_s": 2.0, "backward_weight_s": 0.5}


def test_only_the_costs_are_required_and_the_rest_has_the_documented_defaults():
    costs = costs_from(REQUIRED)
    resolved = costs.resolved(num_stages=4, num_ranks=2)
    assert (costs.communication, costs.channel, costs.receives) == ("overlap", "ideal", "torch")
    assert (costs.action_overhead_s, costs.hop_overhead_s) == (0.0, 0.0)
    assert resolved.backward_s.tolist() == [2.5] * 4
    assert resolved.transfer_s.tolist() == [0.0] * 4
    assert resolved.activation_bytes.tolist() == [0.0] * 4
    assert resolved.static_bytes.tolist() == [0.0] * 2


def test_what_w_keeps_is_the_whole_activation_where_it_is_not_given():
    costs = costs_from(REQUIRED | {"activation_bytes": 7.0, "activation_bytes_kept_for_weight": None})
    assert costs.resolved(num_stages=2, num_ranks=2).kept_bytes.tolist() == [7.0, 7.0]


def test_a_link_is_latency_plus_bytes_over_bandwidth():
    link = {"latency_s": 0.25, "bytes": 3e9, "bandwidth_bytes_per_s": 2e9}
    assert costs_from(REQUIRED | {"transfer_s": link}).transfer_s == 0.25 + 1.5
    del link["latency_s"]
    assert costs_from(REQUIRED | {"transfer_s": link}).transfer_s == 1.5


@given(tables_and_costs())
def test_costs_survive_their_file(table_and_costs):
    table, costs = table_and_costs
    costs = costs.replace(overlap_slowdown=0.125, step_overhead_s=0.25)
    again = costs_from(json.loads(json.dumps(costs_to_json(costs))))
    one, other = costs.resolved_for(table), again.resolved_for(table)
    fields = set(one.__dataclass_fields__) - {"by_microbatch"}
    assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in fields)
    assert one.by_microbatch.keys() == other.by_microbatch.keys()
    assert all(np.array_equal(values, other.by_microbatch[name]) for name, values in one.by_microbatch.items())
    for name in ("communication", "channel", "receives", *OVERHEADS):
        assert getattr(costs, name) == getattr(again, name)


def test_a_file_is_named_in_what_is_said_of_it(tmp_path):
    (tmp_path / "C.json").write_text('{"forward_s": -1}')
    with pytest.raises(ConfigError) as error:
        read_costs(tmp_path / "C.json")
    assert str(error.value).startswith(f"{tmp_path / 'C.json'} is wrong: ")
    assert "forward_s: must be at least 0, got -1" in str(error.value)
    assert "backward_input_s: missing" in str(error.value)


@pytest.mark.parametrize(
    ("times", "starts"),
    [
        ((3.0, 0.0, 0.0), [(0.0, 4.0), (1.0, 7.0), (2.0, 10.0)]),  # each message waits for the one before
        ((0.0, 3.0, 0.0), [(0.0, 4.0), (1.0, 5.0), (2.0, 6.0)]),
        ((0.0, 0.0, 3.0), [(0.0, 4.0), (4.0, 8.0), (8.0, 12.0)]),  # the sender waits before it sends
    ],
)
def test_a_slow_link_queues_delays_or_blocks(times: tuple[float, ...], starts: list[tuple[float, float]]):
    costs = costs_from({**REQUIRED, "slow_links": [[0, 1, *times]], "channel": "edge", "receives": "deferred"})
    assert costs_to_json(costs)["slow_links"] == [[0.0, 1.0, *times]]
    timeline = simulate(build("gpipe", pp=2, microbatches=3), costs)
    by_name = {str(action): timeline.start[entry] for entry, action in enumerate(timeline.schedule)}
    assert [(by_name[f"0F{mb}"], by_name[f"1F{mb}"]) for mb in range(3)] == starts
    assert by_name["0B0"] == by_name["1B0"] + 2.5, "the other direction is not slow"


def test_a_slow_link_has_two_ranks_and_three_times():
    with pytest.raises(ConfigError, match=r"slow_links is .*; give rows of two ranks and three times"):
        costs_from({**REQUIRED, "slow_links": [[0.0, 1.0, 2.0]]})


def test_without_pydantic_a_file_is_checked_by_the_costs_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(cost_files, "find_spec", lambda name: None)
    path = tmp_path / "C.json"
    path.write_text(json.dumps(REQUIRED))
    assert read_costs(path).forward_s == 1.0
    for text, sentence in (
        ("[1]", "the whole must be a JSON object"),
        ('{"forward": 1}', r"got an unexpected keyword argument 'forward'"),
        ('{"forward_s": -1, "backward_s": 1}', "costs are wrong: forward_s holds -1"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=rf"^{path} is wrong: {sentence}"):
            read_costs(path)


def test_a_message_has_the_bytes_of_its_link(tmp_path):
    path = tmp_path / "C.json"
    path.write_text(json.dumps(REQUIRED | {"transfer_s": {"bytes": 3, "bandwidth_bytes_per_s": 2}}))
    assert message_bytes_in(path) == 3.0
    path.write_text(json.dumps(REQUIRED | {"transfer_s": 0.5}))
    assert message_bytes_in(path) is None


def test_costs_without_split_backwards_need_only_the_full_backward():
    costs = costs_from({"forward_s": 1.0, "backward_s": 3.0})
    assert (costs.backward_input_s, costs.backward_weight_s) == (None, None)
    with pytest.raises(ConfigError, match="backward_weight_s: missing"):
        costs_from({"forward_s": 1.0, "backward_s": 3.0, "backward_input_s": 1.0})
