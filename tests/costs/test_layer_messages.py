"""What tensor-parallel ranks gather and sum around the operators of a layer."""

from dataclasses import replace

import pytest

from ppsim.costs.analytic import layer_estimate
from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.layer_messages import LayerMessages
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.execution import Execution
from ppsim.model.fine_tuning import fine_tuning_of
from ppsim.model.registry import find_model
from ppsim.parallel.layout import Layout
from tests.costs.timed import timed

TOKENS, E = 4096, 2


def place(*, sequence_parallel: bool = True, etp: int | None = None, **execution) -> ExecutionContext:
    words = {"sequence_parallel": sequence_parallel} | execution
    layout = Layout(tp=4, dp=4, etp=etp)
    return ExecutionContext(cluster=load_cluster("dgx-h100"), layout=layout, execution=Execution(**words))


def messages(name: str, where: ExecutionContext) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Columns that are gathered, summed, and exchanged for pairs, by operator."""
    found = LayerMessages.of(timed(find_model(name).layers[-1], where, tokens=TOKENS))
    return tuple(
        {of: size / (TOKENS * E) for of, size in one.items()} for one in (found.gathered, found.summed, found.pairs)
    )


def test_a_dense_layer_gathers_before_two_gemms_and_sums_behind_two() -> None:
    gathered, summed, pairs = messages("llama3-8b", place())
    assert gathered == {"qkv": 4096, "fed up": 4096}
    assert summed == {"attention output": 4096, "fed down": 4096}
    assert not pairs


def test_latents_are_gathered_instead_of_hidden_states() -> None:
    """And a shared expert as a dense part; routed experts that are whole on a rank exchange nothing among tp."""
    gathered, summed, _ = messages("deepseek-v3", place(etp=1))
    assert gathered == {"queries up": 1536, "keys and values up": 512, "shared up": 7168}
    assert summed == {"attention output": 7168, "shared down": 7168}


def test_ranks_that_share_an_expert_gather_and_sum_its_pairs() -> None:
    """Two experts per token, 4096 columns: pairs of the whole tensor-parallel group."""
    _, summed, pairs = messages("mixtral-8x7b", place(etp=4))
    assert summed == {"attention output": 4096}
    assert pairs == {"routed down": 2 * 4096}
    gathered, summed, pairs = messages("mixtral-8x7b", place(sequence_parallel=False, etp=4))
    assert gathered == {"qkv": 4096, "routed up": 4096}
    assert summed == {"attention output": 4096, "routed down": 4096}
    assert not pairs


def test_pairs_of_shared_experts_are_not_hidden_by_gemms() -> None:
    """TransformerEngine's userbuffers know only the messages of dense GEMMs."""
    layer, hidden = find_model("mixtral-8x7b").layers[-1], {"hidden_tp_forward": 1.0, "hidden_tp_backward": 1.0}
    where = place(etp=4, **hidden)
    exchange_s = where.sum_over_tp_s(2 * 4096 * TOKENS * E, "etp")
    found = LayerMessages.of(timed(layer, where, tokens=TOKENS))
    assert found.forward_s() == pytest.approx(exchange_s)
    assert found.backward_s() == pytest.approx(exchange_s)


def test_without_sequence_parallelism_outputs_are_summed_forward_and_inputs_backward() -> None:
    layer, where = find_model("deepseek-v3").layers[-1], place(sequence_parallel=False, etp=1)
    found = layer_estimate(layer, where, micro_batch=1, sequence_length=TOKENS)

    def summed_s(*columns: int) -> float:
        return sum(where.seconds("all-reduce", float(one * TOKENS * E), "tp") for one in columns)

    pairs_s = where.sum_over_tp_s(8 * 7168 * TOKENS * E / 4, "etp")
    assert found.forward.tp_s == pytest.approx(summed_s(7168, 7168) + pairs_s)
    assert found.backward_input.tp_s == pytest.approx(summed_s(1536, 512, 7168) + pairs_s)


def test_recomputing_a_module_repeats_the_messages_of_its_operators() -> None:
    layer = find_model("deepseek-v3").layers[-1]
    for recompute, gathered, summed in (("mla_up_proj", (1536, 512), ()), ("shared_experts", (7168,), (7168,))):
        where = place(etp=1, recompute=recompute)
        found = layer_estimate(layer, where, micro_batch=1, sequence_length=TOKENS)
        expected = sum(where.seconds("all-gather", float(one * TOKENS * E), "tp") for one in gathered)
        expected += sum(where.seconds("reduce-scatter", float(one * TOKENS * E), "tp") for one in summed)
        assert found.sent_again_s == pytest.approx(expected)


@pytest.mark.parametrize(("tp", "is_parallel"), [(1, False), (2, False), (2, True)])
def test_adapters_gather_their_outputs_and_sum_gradients(tp: int, is_parallel: bool) -> None:
    """By hand, of LoRA at rank 8 on the matrix of queries, keys and values, whose outputs tp ranks divide."""
    tuning = fine_tuning_of("8", "")
    assert tuning is not None
    layer = find_model("llama3-8b").with_layers(1).with_fine_tuning(tuning).layers[0]
    where = place(sequence_parallel=is_parallel)
    where = replace(where, layout=Layout(tp=tp, dp=4))
    operators = timed(layer, where)
    found = LayerMessages.of(operators).adapters
    if tp == 1:
        assert set(found.values()) == {(0.0, 0.0)}
        return
    by_name = {one.name: one for one in operators.operators}
    for name, (forward_s, backward_s) in found.items():
        one = by_name[name]
        assert one.weight is not None
        rows = operators.rows[one.rows] * 2
        read, written = operators.tensors[one.reads[0]].columns, one.writes[0].columns
        gather_s = where.seconds("all-gather", rows * written, "tp") if one.weight.outputs < written else 0.0
        sum_s = where.seconds("all-reduce", rows * read, "tp")
        if name.endswith(" B"):
            assert (forward_s, backward_s) == pytest.approx((gather_s, sum_s + (gather_s if is_parallel else 0)))
        elif gather_s:
            assert (forward_s, backward_s) == pytest.approx((gather_s, 0.0 if is_parallel else sum_s))
        else:
            assert (forward_s, backward_s) == pytest.approx(
                (where.seconds("all-reduce", rows * written, "tp"), 0.0)
            )
    messages = LayerMessages.of(operators)
    plain = replace(messages, adapters={})
    assert messages.forward_s() - plain.forward_s() == pytest.approx(sum(forward for forward, _ in found.values()))
    assert messages.backward_s() - plain.backward_s() == pytest.approx(
        sum(backward for _, backward in found.values())
    )


@pytest.mark.parametrize("etp", [1, 4])
def test_adapters_of_routed_experts_send_among_the_ranks_of_an_expert(etp: int) -> None:
    tuning = fine_tuning_of("8", "")
    layer = find_model("mixtral-8x7b").with_layers(1).with_fine_tuning(tuning).layers[0]
    adapters = LayerMessages.of(timed(layer, place(sequence_parallel=False, etp=etp))).adapters
    routed = [sum(seconds) for name, seconds in adapters.items() if name.startswith("routed")]
    assert len(routed) == 4, "A and B of both matrices"
    assert all((seconds > 0) is (etp > 1) for seconds in routed)
    assert all(sum(seconds) > 0 for name, seconds in adapters.items() if name.startswith("qkv"))
