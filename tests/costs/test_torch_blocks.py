"""What torch passes over memory beside products, counted byte by byte on a device of a byte a second."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.costs.analytic import layer_estimate
from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.recomputation import forward_again
from ppsim.costs.torch_blocks import TorchKernels, num_amax
from ppsim.machine.cluster_files import load_cluster
from ppsim.machine.kernels.times import KernelTime
from ppsim.model.execution import Execution
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.pipeline_stages import Stage
from ppsim.model.registry import find_model
from ppsim.parallel.layout import Layout
from tests.costs.timed import kernels, operators, passing, products_of, timed
from tests.model.stages import stage_activations

LAYER = find_model("llama3-8b").layers[0]
H, Q, K, F, E = 4096, 4096, 1024, 14336, 2


@dataclass
class Bytes:
    """A device that takes a second for a byte that moves, and nothing for the rest."""

    seen: list[tuple] = field(default_factory=list)

    def product_s(self, form, m, n, k, *, groups=1):
        self.seen.append((form, m, n, k))
        return 0.0

    def moved_s(self, kernel, num_bytes, *, launches=1):
        return num_bytes

    def peak(self, of):
        return 1e12

    def is_measured(self, of):
        return False


def place_of(tp: int = 1, **execution) -> ExecutionContext:
    words = {"compile": True, "sequence_parallel": tp > 1, "recompute": "full"} | execution
    place = ExecutionContext(cluster=load_cluster("dgx-h100"), layout=Layout(tp=tp), execution=Execution(**words))
    object.__setattr__(place, "times", Bytes())
    return place


def bytes_of(place: ExecutionContext, *, tokens: int = 1) -> tuple[float, float, float]:
    """Bytes a token beyond those of Megatron-LM's kernels, of F, I and W."""
    usual = replace(place, execution=replace(place.execution, compile=None, hidden_tp_forward=0.0))
    object.__setattr__(usual, "times", Bytes())
    ours, theirs = (passing(LAYER, one, tokens=tokens) for one in (place, usual))
    return tuple(one.memory_s - other.memory_s for one, other in zip(ours.passes, theirs.passes, strict=True))


def test_compiled_blocks_rotate_by_complex_numbers_repeat_keys_and_sum_gradients_of_inputs() -> None:
    """Without tp: 16 a rotated column and e(q + k) for keys and for values either way; n - 1 sums beside a norm."""
    around = 16 * (Q + K) + 2 * E * (Q + K)
    assert bytes_of(place_of()) == pytest.approx((around, around + (2 + 1) * E * H, 0))


def test_tensor_parallel_ranks_copy_what_is_gathered_and_scattered_along_the_sequence() -> None:
    """Twice 2eh for gathers and for scatters either way, and n + 1 passes for sums of n gradients."""
    around, copies = (16 + 2 * E) * (Q + K) / 4, 2 * (2 * E * H + 2 * E * H)
    assert bytes_of(place_of(4)) == pytest.approx((around + copies, around + copies + (4 + 3) * E * H, 0))


def test_products_that_are_pipelined_copy_no_gathers_and_add_up_what_ranks_sent() -> None:
    place = place_of(4, hidden_tp_forward=0.5, hidden_tp_backward=0.5)
    around = (16 + 2 * E) * (Q + K) / 4
    assert place.is_async
    assert bytes_of(place) == pytest.approx(
        (around + 2 * 1.25 * E * H, around + 2 * 2 * E * H + (4 + 3) * E * H, 0)
    )


def test_a_repeated_forward_ends_before_the_last_product_its_scatter_and_its_residual() -> None:
    place = place_of(4)
    of, times = kernels(LAYER, place, tokens=8), place.times
    again = forward_again(timed(LAYER, place, tokens=8), of)[0].memory_s
    assert passing(LAYER, place, tokens=8).forward.memory_s - again == pytest.approx(
        8 * (2 * E * H + 3 * E * H / 4)
    )
    times.seen.clear()
    object.__setattr__(place, "wide_times", place_of(1).times)
    object.__setattr__(place.wide_times, "attention_s", lambda part, core: 0.0)
    layer_estimate(LAYER, place, micro_batch=1, sequence_length=8)
    downs = [one for one in times.seen if one[0] == "forward" and one[3] == F // 4]
    assert len(downs) == 1
    assert len([one for one in times.seen if one[0] == "forward"]) == 7  # each matrix for itself


def test_pipelined_products_are_one_for_each_ranks_tokens_where_a_message_is_inside() -> None:
    """Forwards, and the gradients of inputs of the two whose outputs are scattered; weights' gradients are whole."""
    place = place_of(4, hidden_tp_forward=0.5, hidden_tp_backward=0.5)
    found = products_of(LAYER, place, tokens=8)
    assert [one.count for one in found.passes] == [7 * 4, 5 + 2 * 4, 7]
    rows = {(form, m, n) for form, m, n, k in place.times.seen if k == F // 4 or n == F // 4}
    assert {("forward", 2, H), ("input", 2, F // 4)} <= rows


@pytest.mark.parametrize("tp", [1, 4])
def test_products_that_are_not_pipelined_are_one_for_each_matrix_and_pass(tp: int) -> None:
    place = place_of(tp)
    assert [one.count for one in products_of(LAYER, place, tokens=8).passes] == [7, 7, 7]
    forwards = sorted((n, k) for form, _, n, k in place.times.seen if form == "forward")
    columns = [(Q // tp, H), (K // tp, H), (K // tp, H), (H, Q // tp), (F // tp, H), (F // tp, H), (H, F // tp)]
    assert forwards == sorted(columns)


def test_scales_of_what_is_gathered_keep_gathers_out_of_products_and_scatters_in_them() -> None:
    """A scale a row: gathers are copied, waited for whole and not hidden, as without asynchronous tp; scatters are."""
    hidden = {"hidden_tp_forward": 0.5, "hidden_tp_backward": 0.5}
    plain, tensor, row = (place_of(4, **words) for words in ({}, hidden, hidden | {"dtype": "float8-row"}))
    apart = place_of(4, dtype="float8-row")
    assert (tensor.gathers_in_products, row.is_async, row.gathers_in_products) == (True, True, False)
    saved = [one - other for one, other in zip(bytes_of(apart), bytes_of(row), strict=True)]
    assert saved == pytest.approx([2 * (2 - 1.25) * E * H, 0, 0])  # of two scatters
    found = products_of(LAYER, row, tokens=8)
    assert [one.count for one in found.passes] == [5 + 2 * 4, 7, 7]
    exposed = {
        name: [
            getattr(layer_estimate(LAYER, place, micro_batch=1, sequence_length=8192), of).tp_s
            for of in ("forward", "backward_input")
        ]
        for name, place in (("plain", plain), ("tensor", tensor), ("row", row), ("apart", apart))
    }
    gather_s, scatter_s = (2 * plain.seconds(of, 8192.0 * H * E, "tp") for of in ("all-gather", "reduce-scatter"))
    assert exposed["plain"] == pytest.approx([gather_s + scatter_s] * 2)
    assert exposed["tensor"] == pytest.approx([gather_s / 2 + scatter_s / 2, gather_s / 2 + scatter_s])
    assert exposed["row"] == pytest.approx([gather_s + scatter_s / 2, gather_s + scatter_s])
    assert exposed["apart"] == pytest.approx(exposed["plain"])


def test_every_second_layer_computed_again_takes_half_of_all_in_time_and_the_mean_in_bytes() -> None:
    words = {"model": "llama3-8b", "gpus": 8, "stack": "torchtitan", "pp": 1, "cross_entropy": "unfused"}
    none, half, full = (
        ppsim.project(**words, recompute=word).summary.time_breakdown_s.get("recomputation", 0.0)
        for word in ("none", "full/2", "full")
    )
    assert (none, half) == (0.0, pytest.approx(full / 2))
    model = ppsim.job(**words).model
    kept = [
        sum(
            stage_activations(
                model, Stage(model.layers), MemorySettings(1, 8192, execution=Execution(recompute=word))
            ).values()
        )
        for word in ("none", "full/2", "full")
    ]
    assert kept[1] == pytest.approx((kept[0] + kept[2]) / 2, rel=1e-6)


def test_eager_operators_pass_over_memory_one_by_one() -> None:
    """Norms in float32: 36 bytes forward and 84 backward with e = 2, where kernels need 2e and 5e."""
    eager, fused = bytes_of(place_of(compile=False)), bytes_of(place_of())
    assert eager[0] - fused[0] == pytest.approx(2 * (36 - 2 * E) * H + 2 * E * F)
    assert eager[1] - fused[1] == pytest.approx(2 * (84 - 5 * E) * H + 4 * E * F + (3 - 1) * (2 + 1) * E * H)


def test_eight_bits_are_cast_before_they_are_gathered_with_one_scale_a_tensor_and_behind_it_with_one_a_row() -> (
    None
):
    """Bytes beside 16 bits' of H gathered (own and so a quarter), q and f on the rank."""
    usual = bytes_of(place_of(4))
    weights = (H * (Q + 2 * K) + Q * H + 3 * H * F) / 4
    tensor, row = (bytes_of(place_of(4, dtype=dtype)) for dtype in ("float8", "float8-row"))
    inputs, outputs = 2 * H + (Q + F) / 4, 2 * H + (Q + 2 * K + 2 * F) / 4
    own_inputs, own_outputs = 2 * H / 4 + (Q + F) / 4, 2 * H / 4 + (Q + 2 * K + 2 * F) / 4
    saved = 2 * 2 * (E - 1) * H  # of the copies of two gathers
    assert tensor[0] - usual[0] == pytest.approx((2 * E + 1) * own_inputs - saved)
    assert tensor[1] - usual[1] == pytest.approx((2 * E + 1) * own_outputs + 2 * weights - saved)
    assert tensor[2] == pytest.approx(2 * (inputs + outputs))
    assert row[0] - usual[0] == pytest.approx((E + 1) * (inputs + weights))
    assert row[1] - usual[1] == pytest.approx((E + 1) * outputs + (2 * E + 1) * weights)
    assert row[2] == pytest.approx((2 * E + 1) * (inputs + outputs))
    places = place_of(4, dtype="float8"), place_of(dtype="float8")
    agreed = [num_amax(operators(LAYER, place).values(), place) for place in places]
    assert agreed == [(4, 7), (0, 0)]


def test_the_command_line_takes_an_eager_run_and_refuses_to_hide_messages_in_it() -> None:
    words = {"model": "llama3-8b", "gpus": 8, "stack": "torchtitan", "pp": 1, "recompute": "full"}
    eager, compiled = (ppsim.project(**words, compile=mode).iteration_time_s for mode in (False, True))
    assert ppsim.project(**words).iteration_time_s == eager > compiled
    assert ppsim.job(**words, dtype="float8").execution.compile
    assert ppsim.job(**words, tp=2, overlap_tp=0.5).execution.compile
    assert ppsim.job(**words | {"stack": "plain"}).execution.compile is None
    with pytest.raises(ConfigError, match=r"--overlap-tp 0\.5 is of products that torch\.compile makes"):
        ppsim.job(**words, tp=2, overlap_tp=0.5, compile=False)


def test_what_fsdp_gathers_is_copied_into_each_parameter_before_each_pass() -> None:
    """Read and written, 2 bytes per weight in 16 bits; in 8, one; nothing where no other rank has a part."""
    words: dict[str, Any] = {"model": "llama3-8b", "gpus": 8, "pp": 1, "zero": 3, "microbatches": 1}
    device = load_cluster("dgx-h100").device
    rate = device.memory_bytes_per_s * device.efficiency.memory
    for dtype, gathers_narrow, size in (("bfloat16", True, 2), ("float8", False, 2), ("float8", True, 1)):
        words["fp8_param_gather"] = gathers_narrow
        seconds = [
            ppsim.project(**words, dtype=dtype, fully_shard=mode).summary.time_breakdown_s["memory-bound kernels"]
            for mode in (True, False)
        ]
        weights = find_model("llama3-8b").parameters
        assert seconds[0] - seconds[1] == pytest.approx(2 * 2 * size * weights / rate, rel=0.01)


class Launches(Bytes):
    """A device that takes a second for a launch of a kernel that moves bytes, and nothing for the rest."""

    def moved_s(self, kernel, num_bytes, *, launches=1):
        return launches


def test_kernels_are_launched_as_often_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotations: 4 and a repetition of keys and values 2; one per message and sum; norms 5 and 9; a cast 2."""
    monkeypatch.setitem(globals(), "Bytes", Launches)
    assert bytes_of(place_of()) == (4 + 2, 4 + 2 + 2, 0)
    assert bytes_of(place_of(4)) == (4 + 2 + 4, 4 + 2 + 2 + 4, 0)
    eager, fused = bytes_of(place_of(compile=False)), bytes_of(place_of())
    assert [one - other for one, other in zip(eager, fused, strict=True)] == [2 * 5 + 1, 2 * 9 + 2, 0]
    for dtype in ("float8", "float8-row"):
        narrow = bytes_of(place_of(dtype=dtype))
        changed = [one - other for one, other in zip(narrow, fused, strict=True)]
        assert changed == [2 * 4, 2 * (3 + 1 + 2 + 1), 2 * (3 + 1 + 2 + 1)]


@pytest.mark.parametrize("dtype", ["float8", "float8-row"])
def test_an_eager_cast_passes_over_an_element_several_times(dtype: str) -> None:
    """With e = 2: absolute values and their maximum, a copy in float32, scaled, clamped and cast, 33 bytes."""
    narrow, usual = bytes_of(place_of(dtype=dtype, compile=False)), bytes_of(place_of(compile=False))
    inputs, outputs = 2 * H + Q + F, 2 * H + Q + 2 * K + 2 * F
    weights = H * (Q + 2 * K) + Q * H + 3 * H * F
    is_row = dtype == "float8-row"
    assert narrow[0] - usual[0] == pytest.approx(33 * (inputs + weights * is_row))
    assert narrow[1] - usual[1] == pytest.approx(33 * outputs + (33 if is_row else 2) * weights)
    assert narrow[2] - usual[2] == pytest.approx((33 if is_row else 2) * (inputs + outputs))


@pytest.mark.parametrize(("compiled", "scattered_s"), [(True, 7.0), (None, 0.0)])
def test_scatters_of_torch_are_not_repeated_by_operators(
    monkeypatch: pytest.MonkeyPatch, *, compiled: bool | None, scattered_s: float
) -> None:
    """Their outputs are saved; Megatron-LM's kernels copy nothing for a scatter."""
    where = place_of(4, recompute="selective-op", compile=compiled)
    again = []
    for seconds in (0.0, 7.0):
        monkeypatch.setattr(TorchKernels, "scattered_s", lambda _, s=seconds: KernelTime(memory_s=s))
        again.append(forward_again(timed(LAYER, where, tokens=8), {})[0].memory_s)
    assert again[0] - again[1] == pytest.approx(scattered_s)
