"""Communication of a layout with execution options."""

from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.costs.execution_context import ExecutionContext
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.execution import Execution
from ppsim.parallel.layout import Layout
from tests.defaults import field_defaults

H100 = load_cluster("dgx-h100")


def context(cluster: Any = H100, execution: Execution | None = None, **sizes: int) -> ExecutionContext:
    return ExecutionContext(cluster=cluster, layout=Layout(**sizes), execution=execution or Execution())


def test_tokens_of_a_rank_are_a_part_of_the_sequence() -> None:
    assert context(cp=4).tokens(3, 4096) == 3 * 1024
    with pytest.raises(ConfigError, match="cp must divide the sequence: got 3 with 4096"):
        context(cp=3).tokens(1, 4096)


def test_exchanges_hold_multiprocessors_and_hide_less() -> None:
    cores = H100.device.num_cores
    pass_s: Any = SimpleNamespace(busy_s=3.0)
    one = context(execution=Execution(overlap_ep=0.5, dispatcher_sms=33))
    assert one.dispatch_slowdown == 33 / cores
    assert one.collective_slowdown == 16 / cores
    assert one.hidden_ep_s(4.0, pass_s) == pytest.approx(0.5 * 3.0 * (1 - 33 / cores))
    assert one.hidden_ep_s(2.0, pass_s) == pytest.approx(0.5 * 2.0 * (1 - 33 / cores))
    assert context(execution=Execution(dispatcher_sms=10**4)).dispatch_slowdown == 1


def test_collectives_hold_two_channels_per_adapter_or_all() -> None:
    cores = H100.device.num_cores
    assert context(dp=8).held_cores("dp") == 16 / cores  # within a node
    assert context(tp=4, dp=8).held_cores("dp") == 2 * 2 / cores  # two ranks of a group in each node
    assert context(dp=16).held_cores("dp") == 16 / cores


def test_compiled_products_pipeline_messages_of_tensor_parallel_ranks() -> None:
    asynchronous = {"compile": True, "sequence_parallel": True, "hidden_tp_forward": 0.5}
    assert context(execution=Execution(**asynchronous), tp=2).is_async
    assert context(execution=Execution(**asynchronous), tp=2).gathers_in_products
    for change in ({"compile": None}, {"sequence_parallel": False}, {"hidden_tp_forward": 0.0}):
        assert not context(execution=Execution(**(asynchronous | change)), tp=2).is_async
    assert not context(execution=Execution(**asynchronous), tp=1).is_async
    by_row = context(execution=Execution(**asynchronous, dtype="float8-row"), tp=2)
    assert (by_row.is_async, by_row.gathers_in_products) == (True, False)


def test_a_region_is_left_by_a_sum_or_by_a_scatter_and_a_gather() -> None:
    plain, parallel, cast = (
        context(execution=Execution(sequence_parallel=is_on, dtype=dtype), tp=8)
        for is_on, dtype in ((False, "bfloat16"), (True, "bfloat16"), (True, "float8"))
    )
    size = 1e8
    assert plain.sum_over_tp_s(size) == plain.reduced_s(size) == plain.seconds("all-reduce", size, "tp")
    assert plain.gathered_s(size) == 0.0
    scattered, gathered = (parallel.seconds(how, size, "tp") for how in ("reduce-scatter", "all-gather"))
    assert parallel.sum_over_tp_s(size) == scattered + gathered
    assert (parallel.reduced_s(size), parallel.gathered_s(size)) == (scattered, gathered)
    assert cast.sum_over_tp_s(size) == scattered + parallel.seconds("all-gather", size / 2, "tp")
    assert cast.sum_over_tp_s(size, "etp") == pytest.approx(scattered + gathered)


def test_operands_have_a_second_copy_unless_products_accept_both_layouts() -> None:
    b200 = load_cluster("dgx-b200")
    copies = {dtype: context(b200, Execution(dtype=dtype)).operand_copies for dtype in ("float8", "mxfp8")}
    assert copies == {"float8": 1, "mxfp8": 2}
    assert context(execution=Execution(dtype="float8")).operand_copies == 2


def test_hybridep_permutes_tokens_only_if_it_exchanges_them() -> None:
    hybrid = Execution(moe_dispatcher="hybridep")
    assert context(execution=hybrid, dp=2, ep=2).permutes_in_exchange
    assert not context(execution=hybrid, dp=2).permutes_in_exchange
    assert not context(dp=2, ep=2).permutes_in_exchange


def test_a_vocabulary_is_not_padded_by_default() -> None:
    assert field_defaults(ExecutionContext) == {"vocab_multiple": 1}
