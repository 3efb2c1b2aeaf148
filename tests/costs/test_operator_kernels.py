"""One sum over a layer's matrices, for whoever knows how long a kernel takes."""

from dataclasses import dataclass, field, replace

import pytest

from ppsim.costs import operator_kernels
from ppsim.costs.analytic import layer_estimate
from ppsim.costs.cores import core_of
from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.pass_kernels import PassKernels, products
from ppsim.machine.cluster_files import load_cluster
from ppsim.machine.collectives import Routing, dispatch_s, point_to_point_s
from ppsim.machine.kernels.times import memory_kernel_time
from ppsim.model.execution import Execution
from ppsim.model.registry import find_model
from ppsim.parallel.layout import Layout
from ppsim.parallel.sizes import ParallelSizes
from tests.costs.timed import kernels, operators, passing, products_of, timed
from tests.defaults import field_defaults, parameter_defaults


@dataclass
class OneSecondEach:
    """A device that takes a second for a product, two for attention, three for what moves, and remembers products."""

    seen: list[tuple] = field(default_factory=list)

    def product_s(self, form, m, n, k, *, groups=1):
        self.seen.append((form, m, n, k, groups))
        return 1.0

    def attention_s(self, part, core):
        return 2.0

    def moved_s(self, kernel, num_bytes, *, launches=1):
        return 3.0

    def peak(self, of):
        return 1e12

    def is_measured(self, of):
        return of == "products"


def test_each_matrix_is_three_products_whoever_times_them():
    """Tokens are the rows of F and I and the depth of W; experts share those that were sent to them."""
    times, layer = OneSecondEach(), find_model("mixtral-8x7b").layers[0]
    linears = layer.linears(ParallelSizes(tp=2, dp=4, ep=4))
    kernels = products(linears, times, tokens=100, pairs=200)
    num = len(linears)
    assert (kernels.forward.matmul_s, kernels.backward_input.matmul_s, kernels.backward_weight.matmul_s) == (
        num,
    ) * 3
    assert times.seen[:3] == [
        ("forward", 100, 3072, 4096, 1),
        ("input", 100, 4096, 3072, 1),
        ("weight", 3072, 4096, 100, 1),
    ]
    up = [one for one in times.seen if one[4] > 1][:3]
    assert up == [("forward", 200, 14336, 4096, 2), ("input", 200, 4096, 14336, 2), ("weight", 14336, 4096, 200, 2)]
    ideal = 2 * (100 * sum(one.size for one in linears if one.kind != "routed"))
    ideal += 2 * 200 * sum(one.size for one in linears if one.kind == "routed")
    assert kernels.forward.matmul_ideal_s == pytest.approx(ideal / 1e12)


@pytest.fixture
def place() -> ExecutionContext:
    return ExecutionContext(cluster=load_cluster("dgx-h100"), layout=Layout(tp=4, dp=4), execution=Execution())


def test_experts_cost_a_rank_the_same_flops_however_tensor_parallel_they_are(place):
    """Etp ranks have as many times the tokens of an expert, and that part of its columns."""
    layer = find_model("mixtral-8x7b").layers[0]
    places = [replace(place, layout=Layout(tp=4, dp=4, ep=4, etp=etp)) for etp in (1, 2, 4)]
    flops = [products_of(layer, where).forward.matmul_ideal_s for where in places]
    assert flops == pytest.approx([flops[0]] * 3)
    assert [timed(layer, where).rows["capacity"] / 4096 for where in places] == [0.5, 1.0, 2.0]


def test_attention_is_of_a_ranks_heads_and_queries(place):
    layer = find_model("llama3-8b").layers[0]
    core = core_of(layer.attention, place, micro_batch=2, sequence_length=4096).forward
    flops = 2 * (32 / 4) * 4096 * 4096 * 256
    assert core.attention_ideal_s == pytest.approx(flops / place.cluster.device.peak("bfloat16"))


_COUNTED = (
    "add", "cat", "clamp", "ge", "le", "logical_and", "logical_and_", "mul", "neg", "slice_backward", "sum",
    "_to_copy", "where",
)  # fmt: skip


class Moved:
    """Bytes that torch's kernels read and write, each tensor once, and the number of kernels; views are none.

    strided, strided_bytes: elements and bytes of kernels with strided or broadcast operands, in which torch computes
    an offset per element.
    """

    def __init__(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        counted = self
        self.bytes = self.kernels = self.strided = self.strided_bytes = 0

        class Counting(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                from torch.utils._pytree import tree_leaves

                found = function(*args, **(kwargs or {}))
                name = function.overloadpacket.__name__
                if name not in _COUNTED:
                    return found
                read = [one for one in tree_leaves(args) if hasattr(one, "nbytes") and one.dim()]
                moved = sum(one.numel() * one.element_size() for one in (*read, found))
                counted.kernels += 1
                counted.bytes += moved
                is_broadcast = name != "cat" and any(one.shape != found.shape for one in read)
                is_plain = name in ("sum", "slice_backward")
                if not is_plain and (is_broadcast or not all(one.is_contiguous() for one in read)):
                    counted.strided += found.numel()
                    counted.strided_bytes += moved
                return found

        self.mode = Counting()

    def seconds(self, place, columns: float) -> float:
        """Time without launches on an H100, if torch's kernels moved one column."""
        rate = place.device.memory_bytes_per_s * place.device.efficiency.memory
        of_elements = 1024 * 10240 / (1024 * 10240 * 4 / 1.18e12 - 7.88e-6)  # of an H200, with as many cores
        slower = self.strided / of_elements - self.strided_bytes / rate
        return columns * (self.bytes / rate + max(0.0, slower))


def forward_and_backward(function, *tensors) -> list[Moved]:
    torch = pytest.importorskip("torch")
    forward, backward = Moved(), Moved()
    with forward.mode:
        found = function(*tensors)
    gradient = torch.ones_like(found)
    with backward.mode:
        found.backward(gradient)
    return [forward, backward]


def biased_by_torch(weights: str) -> list[Moved]:
    """Megatron-LM, `TEGroupedMLP._apply_bias`, of 16 experts with 1,024 pairs of 2,880 columns each."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    kind, rows = getattr(torch, weights), [64] * 16
    pairs = torch.ones(1024, 2880, dtype=torch.bfloat16, requires_grad=True)
    biases = [torch.ones(2880, dtype=torch.bfloat16, requires_grad=True) for _ in rows]
    probabilities = torch.ones(1024, 1, dtype=kind, requires_grad=True)

    def biased(pairs):
        split = zip(pairs.split(rows), biases, probabilities.split(rows), strict=True)
        return torch.cat([tokens + bias * weight for tokens, bias, weight in split]).to(pairs.dtype)

    return forward_and_backward(biased, pairs)


def clamped_by_torch() -> list[Moved]:
    """Megatron-LM, `weighted_bias_quick_geglu_impl`, of 1,024 pairs of 2,880 columns each of gate and up."""
    torch = pytest.importorskip("torch")

    def clamped(both):
        gate, up = both.chunk(2, -1)
        return torch.cat((gate.clamp(min=None, max=7.0), up.clamp(min=-7.0, max=7.0)), -1)

    return forward_and_backward(clamped, torch.ones(1024, 5760, dtype=torch.bfloat16, requires_grad=True))


def rotated_by_torch() -> list[Moved]:
    """Megatron-LM, `_apply_rotary_pos_emb_bshd`, of 1,024 tokens with 64 heads of 64 columns."""
    torch = pytest.importorskip("torch")
    cosine = sine = torch.ones(1024, 1, 1, 64, dtype=torch.bfloat16)

    def rotated(queries):
        turned, others = queries[..., :64], queries[..., 64:]
        first, second = torch.chunk(turned, 2, dim=-1)
        turned = turned * cosine + torch.cat((-second, first), dim=-1) * sine
        return torch.cat((turned, others), dim=-1)

    return forward_and_backward(rotated, torch.ones(1024, 1, 64, 64, dtype=torch.bfloat16, requires_grad=True))


def expert_place(dispatcher: str = "alltoall") -> ExecutionContext:
    execution = Execution(moe_dispatcher=dispatcher)
    return ExecutionContext(cluster=load_cluster("dgx-h100"), layout=Layout(dp=8, ep=8), execution=execution)


@pytest.mark.parametrize(("dispatcher", "weights"), [("alltoall", "bfloat16"), ("deepep", "float32")])
def test_biases_of_experts_take_as_long_as_torchs_kernels(dispatcher, weights):
    """Of gpt-oss, h of 2880 columns, four pairs per token, 16 of 128 experts on a rank."""
    layer, place = find_model("gpt-oss-120b").layers[0], expert_place(dispatcher)
    plain = replace(layer, ffn=replace(layer.ffn, expert=replace(layer.ffn.expert, bias=False)))
    whole, without = passing(layer, place), passing(plain, place)
    for one, other, torchs in zip(whole.passes[:2], without.passes[:2], biased_by_torch(weights), strict=True):
        launches = one.count - other.count
        assert launches == pytest.approx(torchs.kernels, abs=16)  # small kernels, of the biases, are left out
        took_s = one.memory_s - other.memory_s - launches * place.device.efficiency.kernel_s
        assert took_s == pytest.approx(torchs.seconds(place, 4096 * 4 / 1024), rel=0.02)


def test_clamps_and_scaled_rotations_take_as_long_as_torchs_kernels():
    """gpt-oss: gate and up of 2880 columns for four pairs per token; 64 heads of queries and 8 of keys."""
    layer, place = find_model("gpt-oss-120b").layers[0], expert_place()
    free = replace(layer, ffn=replace(layer.ffn, expert=replace(layer.ffn.expert, clamped=False)))
    plain = replace(layer, attention=replace(layer.attention, yarn=None))
    rotated = 72 / 64 * 4096 / 1024
    for changed, torchs, columns, fused, twice in (
        (free, clamped_by_torch(), 4096 * 4 / 1024, 0.0, 1),
        (plain, rotated_by_torch(), rotated, 2.0 * 2 * 4096 * 72 * 64, 2),
    ):
        for one, other, torch_s in zip(
            passing(layer, place).passes[:2], passing(changed, place).passes[:2], torchs, strict=True
        ):
            launches = one.count - other.count
            assert launches == twice * torch_s.kernels - (twice - 1)  # one fused kernel for queries and keys
            rate = place.device.memory_bytes_per_s * place.device.efficiency.memory
            took_s = one.memory_s - other.memory_s - launches * place.device.efficiency.kernel_s + fused / rate
            assert took_s == pytest.approx(torch_s.seconds(place, columns), rel=0.02)


def test_yarn_without_a_scale_is_a_fused_rotation():
    """A factor of 1 scales nothing (Megatron-LM, `_yarn_get_mscale`); TorchTitan scales the scores instead."""
    layer, place = find_model("gpt-oss-120b").layers[0], expert_place()
    plain = replace(layer, attention=replace(layer.attention, yarn=None))
    same = replace(layer, attention=replace(layer.attention, yarn=1.0))
    assert passing(same, place) == passing(plain, place) != passing(layer, place)
    for compiled in (False, True):
        where = replace(place, execution=replace(place.execution, compile=compiled))
        assert layer_estimate(layer, where, micro_batch=1, sequence_length=4096) == layer_estimate(
            plain, where, micro_batch=1, sequence_length=4096
        )


@pytest.mark.parametrize("is_divided", [False, True])
def test_norms_inside_attention_pass_over_what_they_norm(place, is_divided):
    """Heads of queries and keys at Qwen3, of each rank's; both latents at DeepSeek-V3: 2e and 5e a column."""
    where = replace(place, execution=Execution(sequence_parallel=is_divided))
    efficiency, own = place.device.efficiency, 4 if is_divided else 1
    rate = place.device.memory_bytes_per_s * efficiency.memory
    for name, columns in (
        ("qwen3-30b-a3b", {"norm of q": 32 / 4 * 128, "norm of k": 4 / 4 * 128}),
        ("deepseek-v3", {"norm of queries": 1536 / own, "norm of latent": 512 / own}),
    ):
        of = kernels(find_model(name).layers[-1], where)
        for norm, width in columns.items():
            for one, times, launches in zip(of[norm].passes[:2], (2, 5), (1, 2), strict=True):
                expected = times * 2 * width * 4096 / rate + launches * efficiency.kernel_s
                assert one.memory_s == pytest.approx(expected)


@pytest.mark.parametrize(
    ("cluster", "dtype", "num_bytes"),
    [("dgx-h100", "float8", 2 + 2), ("dgx-b200", "float8", 2 + 1), ("dgx-b200", "mxfp8", 2 + 2 + 2 / 32)],
)
def test_operands_of_experts_are_cast_by_rows_and_columns_unless_products_take_either(cluster, dtype, num_bytes):
    """Of 4096 · 8 pairs inputs of 2048 and 768 columns forward, gradients of 2 · 768 and 2048 backward; 16 experts."""
    layer, where = find_model("qwen3-30b-a3b").layers[0], load_cluster(cluster)
    layout = Layout(dp=8, ep=8)
    narrow = ExecutionContext(cluster=where, layout=layout, execution=Execution(dtype=dtype))
    took = products_of(layer, narrow)
    efficiency = narrow.device.efficiency
    rate = narrow.device.memory_bytes_per_s * efficiency.memory
    for one, columns in zip(took.passes, (2048 + 768, 2 * 768 + 2048, 0), strict=True):
        expected = num_bytes * columns * 4096 * 8 / rate + 2 * 16 * efficiency.kernel_s * (columns > 0)
        assert one.memory_s == pytest.approx(expected)
    wide = ExecutionContext(cluster=where, layout=layout, execution=Execution())
    assert products_of(layer, wide).forward.memory_s == 0


def test_experts_are_launched_one_by_one_on_four_streams(place):
    """Of 16 of Qwen3's on a rank 15 more than of one kernel a product, 3 of them one behind the other."""
    layer, layout = find_model("qwen3-30b-a3b").layers[0], Layout(dp=8, ep=8)
    where = ExecutionContext(cluster=place.cluster, layout=layout, execution=Execution())
    linears = layer.linears(where.cut)
    whole = products_of(layer, where)
    single = products(linears, where.times, tokens=4096, pairs=4096 * 8)
    routed = [one for one in linears if one.kind == "routed"]
    grouped = products(routed, where.times, tokens=4096, pairs=4096 * 8)
    efficiency = where.device.efficiency
    for one, bare, of_experts in zip(whole.passes, single.passes, grouped.passes, strict=True):
        assert one.count - bare.count == 2 * 15
        more_s = (efficiency.experts - 1) * of_experts.matmul_s + 2 * 3 * efficiency.kernel_s
        assert one.matmul_s - bare.matmul_s == pytest.approx(more_s)


def test_rows_of_experts_are_padded_for_narrow_products_unless_somebody_did(place):
    """4e of each pair's width, either way; capacities are multiples, and HybridEP permutes and pads as it sends."""
    layer, layout = find_model("qwen3-30b-a3b").layers[0], Layout(dp=8, ep=8)

    def passes(**how):
        where = ExecutionContext(cluster=place.cluster, layout=layout, execution=Execution(**how))
        of = kernels(layer, where)
        return [one.memory_s for one in (of["dispatch"] + of["combine"]).passes]

    rate = place.device.memory_bytes_per_s * place.device.efficiency.memory
    copied = 4 * 2 * 2048 * 4096 * 8 / rate
    wide = passes()
    assert passes(dtype="float8") == pytest.approx([wide[0] + copied, wide[1] + copied, 0])
    assert passes(dtype="float8", expert_capacity=1.0) == wide
    assert passes(dtype="float8", moe_dispatcher="hybridep") == [0, 0, 0]
    assert passes(dtype="float8", moe_dispatcher="alltoall") == pytest.approx(
        [one + 2 * copied for one in wide[:2]] + [0]
    )


def test_gathered_keys_and_values_are_those_of_every_query_head(place):
    """torch's context parallelism: 4 times Llama 3 8B's kv heads, gradients in float32, blocks joined by memory."""
    layer, length = find_model("llama3-8b").layers[0], 4 * 65536
    layout = Layout(cp=4, dp=2)
    of = {
        how: layer_estimate(
            layer,
            replace(place, layout=layout, execution=Execution(context=how)),
            micro_batch=1,
            sequence_length=length,
        )
        for how in ("ring", "all-gather", "all-to-all")
    }
    link = place.cluster.tiers[0].link
    hop_s = point_to_point_s(2 * 4096 * (length // 4) * 4, link)
    gathered_s = replace(place, layout=layout).seconds("all-gather", 2 * 4096.0 * length * 2, "cp")
    assert of["all-gather"].forward.cp_s == pytest.approx(gathered_s)  # nothing of it beside attention
    assert of["all-gather"].backward_input.cp_s == pytest.approx(gathered_s + 4 * hop_s)
    assert of["ring"].forward.cp_s == 0  # all of it is beside attention
    bytes_joined = 4096 * (length // 4) * (38 * 4 - 26)
    joined_s = bytes_joined / (place.device.memory_bytes_per_s * place.device.efficiency.memory)
    joined_s += 14 * place.device.efficiency.kernel_s
    alone_s = of["all-to-all"].forward.memory_s
    assert of["all-gather"].forward.memory_s - alone_s == pytest.approx(joined_s)
    # TransformerEngine's: 2 + 3 · 3 passes over outputs or gradients of queries, and over keys and values 2, or
    # 2 and of halves 2, 3 and 3, and 3 of all
    rate = place.device.memory_bytes_per_s * place.device.efficiency.memory
    for name, passes in (("forward", 2), ("backward_input", 2 + (2 + 3 + 3) / 2 + 3)):
        ring, other = (getattr(of[how], name).memory_s for how in ("ring", "all-to-all"))
        joined_s = 2 * (length // 4) * (11 * 4096 + passes * 2048) / rate + 9 * place.device.efficiency.kernel_s
        assert ring - other == pytest.approx(joined_s)


def test_the_only_expert_of_a_rank_is_a_product_like_any_other(place):
    """What makes experts slower is how many there are: with one, constants of theirs say nothing."""
    layer, efficiency = find_model("mixtral-8x22b").layers[0], place.device.efficiency
    for ep, slows in ((8, False), (4, True)):
        took = []
        for factor in (1.0, 2.0):
            device = replace(place.cluster.device, efficiency=replace(efficiency, experts=factor))
            where = replace(place, cluster=replace(place.cluster, device=device), layout=Layout(dp=8, ep=ep))
            took.append(products_of(layer, where).forward.matmul_s)
        assert (took[1] > took[0]) is slows


@pytest.mark.parametrize("dtype", ["bfloat16", "mxfp8"])
def test_fused_experts_are_a_launch_a_product_and_pass_their_activation_inside(dtype):
    """Bytes of 4096 · 8 pairs of Qwen3: 2048 wide, 768 activated columns; in 8 bits two copies with their scales."""
    layer, layout = find_model("qwen3-30b-a3b").layers[0], Layout(dp=8, ep=8)
    b300 = load_cluster("dgx-b300")
    each, fused = (
        ExecutionContext(cluster=b300, layout=layout, execution=Execution(dtype=dtype, fused_experts=is_fused))
        for is_fused in (False, True)
    )
    took, linears = products_of(layer, fused), layer.linears(fused.cut)
    bare = products([one for one in linears if one.kind != "routed"], fused.times, tokens=4096)
    routed = products([one for one in linears if one.kind == "routed"], fused.times, tokens=4096, pairs=4096 * 8)
    assert took.backward_weight.matmul_s == pytest.approx((bare + routed).backward_weight.matmul_s)
    cast = 0 if dtype == "bfloat16" else 1
    assert took.forward.count == (bare + routed).forward.count + cast
    efficiency = fused.device.efficiency
    rate = fused.device.memory_bytes_per_s * efficiency.memory
    written = 2 if dtype == "bfloat16" else 2 + 2 / 32
    inputs = cast * 2048 * (2 + written)
    for one, inside in ((took.forward, 768 * written), (took.backward_input, 2 * 768 * (2 + written))):
        assert one.memory_s == pytest.approx(4096 * 8 * (inputs + inside) / rate + cast * efficiency.kernel_s)
    assert kernels(layer, each)["routed act"].forward.memory_s > 0
    assert kernels(layer, fused)["routed act"] == PassKernels()


@pytest.mark.parametrize(
    ("dtype", "forward", "backward"),
    [("float8", 2, 4), ("mxfp8", 2, 4), ("nvfp4", 0, 0), ("bfloat16", 0, 0)],
)
def test_the_op_fuser_casts_in_the_activation_of_a_dense_mlp(dtype: str, forward: int, backward: int) -> None:
    """Per activated column a write and a read of 16 bits, in the backward of the gated activation two of each."""
    layer, gb200 = find_model("llama3-8b").layers[0], load_cluster("gb200-nvl72")
    apart, fused = (
        ExecutionContext(cluster=gb200, layout=Layout(dp=8), execution=Execution(dtype=dtype, fused_experts=how))
        for how in (False, True)
    )
    before, after = kernels(layer, apart), kernels(layer, fused)
    rate = gb200.device.memory_bytes_per_s * gb200.device.efficiency.memory
    for name, passes in (("forward", forward), ("backward_input", backward)):
        saved_s = getattr(before["fed act"], name).memory_s - getattr(after["fed act"], name).memory_s
        assert saved_s == pytest.approx(passes * 2 * 4096 * 14336 / rate)
    del before["fed act"], after["fed act"]
    assert before == after


def test_an_input_saved_in_8_bits_is_cast_in_f_and_back_in_i_except_by_fused_experts():
    """2 bytes read and 1 written per element, or the reverse; the columns of fc1 are 2 · 14336."""
    b200 = load_cluster("dgx-b200")

    def activation(model, name, **how):
        where = ExecutionContext(cluster=b200, layout=Layout(), execution=Execution(**how))
        return kernels(find_model(model).layers[0], where)[f"{name} act"]

    rate = b200.device.memory_bytes_per_s * b200.device.efficiency.memory
    store = {"activation_func_fp8_input_store": True}
    for model, name, pairs in (("llama3-8b", "fed", 1), ("mixtral-8x7b", "routed", 2)):
        before, after = activation(model, name), activation(model, name, **store)
        for part in ("forward", "backward_input"):
            more_s = getattr(after, part).memory_s - getattr(before, part).memory_s
            assert more_s == pytest.approx(3 * 4096 * pairs * 28672 / rate + b200.device.efficiency.kernel_s)
        assert after.backward_weight == before.backward_weight
    fused = {"fused_experts": True}
    assert activation("mixtral-8x7b", "routed", **fused) == activation("mixtral-8x7b", "routed", **fused, **store)


@pytest.mark.parametrize(("cluster", "share"), [("mi355x-8", 0.057), ("dgx-h100", None)])
def test_an_unfused_permutation_scatters_rows_in_the_combine_and_in_the_dispatchs_backward(cluster, share):
    """Rows of 4096 tokens and of their 8 pairs each, 2048 wide, instead of a copy; HybridEP has its own kernels."""
    layer, found = find_model("qwen3-30b-a3b").layers[0], load_cluster(cluster)
    fused, unfused, inside_fused, inside = (
        kernels(
            layer,
            ExecutionContext(
                cluster=found,
                layout=Layout(dp=8, ep=8),
                execution=Execution(moe_permute_fusion=is_fused, moe_dispatcher=dispatcher),
            ),
        )
        for dispatcher in ("deepep", "hybridep")
        for is_fused in (True, False)
    )
    assert found.device.efficiency.scatter == share
    rate, copied = found.device.memory_bytes_per_s, found.device.efficiency.memory
    scattered = 4096 * 9 / share if share else 4096 * 25 / copied  # unknown: zeros per token, 3 passes per pair
    slower_s = 2 * 2048 * (scattered - 4096 * 16 / copied) / rate
    for name, scatters in (("combine", "forward"), ("dispatch", "backward_input")):
        for part in ("forward", "backward_input"):
            more_s = getattr(unfused[name], part).memory_s - getattr(fused[name], part).memory_s
            assert more_s == pytest.approx(slower_s if part == scatters else 0.0, abs=1e-12)
        assert inside[name] == inside_fused[name]


def test_hybridep_permutes_in_its_exchanges_which_overlap_hides_and_a_backward_does_too():
    """A read and a write of each pair's 2048 columns of 2 bytes, in each of the two exchanges of F and of I."""
    layer = find_model("qwen3-30b-a3b").layers[0]

    def estimate(dispatcher, overlap=0.0):
        how = Execution(moe_dispatcher=dispatcher, overlap_ep=overlap)
        where = ExecutionContext(cluster=load_cluster("dgx-b200"), layout=Layout(dp=8, ep=8), execution=how)
        return layer_estimate(layer, where, micro_batch=1, sequence_length=4096), where

    (hybrid, where), (deep, _) = estimate("hybridep"), estimate("deepep")
    routing = Routing(tokens=4096, token_bytes=2 * 2048, num_experts=128, experts_per_token=8)
    device = where.device
    copied_s = 2 * 2 * 2048 * 4096 * 8 / (device.memory_bytes_per_s * device.efficiency.memory)
    permuted_s = 2 * (copied_s + device.efficiency.kernel_s)
    sent_s = 2 * dispatch_s("hybridep", routing, where.ranks("ep"), where.cluster)
    for name in ("forward", "backward_input"):
        mine, other = getattr(hybrid, name), getattr(deep, name)
        assert mine.ep_s == pytest.approx(sent_s + permuted_s)
        assert other.memory_s - mine.memory_s == pytest.approx(2 * (copied_s + 3 * device.efficiency.kernel_s))
        hidden = getattr(estimate("hybridep", 1.0)[0], name)
        assert hidden.ep_s < 0.3 * mine.ep_s
        assert hidden.memory_s == mine.memory_s
    assert hybrid.times.exchange_s == pytest.approx((sent_s + permuted_s) / 2)
    assert estimate("hybridep", "megatron")[0].times.experts[0] == pytest.approx(hybrid.times.experts[0])


def a_place(execution: Execution, **sizes: int) -> ExecutionContext:
    return ExecutionContext(cluster=load_cluster("dgx-h100"), layout=Layout(**sizes), execution=execution)


def test_whole_matrices_multiply_a_ranks_own_tokens_with_sequence_parallelism() -> None:
    """Latent attention's projections down and the router, whole on each of tp ranks: T/tp tokens, not T."""
    layer, tokens = find_model("deepseek-v3").layers[-1], 4096
    for sequence_parallel, own in ((False, tokens), (True, tokens // 4)):
        where = a_place(Execution(sequence_parallel=sequence_parallel), tp=4)
        found, of = operators(layer, where), timed(layer, where)
        whole = [one for one in found.values() if one.weight is not None and one.weight.split is None]
        assert [one.name for one in whole] == ["queries down", "keys and values down", "router"]
        for one in (*whole, found["attention output"]):
            rows = own if one in whole else tokens
            assert of.product(one) == products([one.weight], where.times, tokens=rows)


def test_gradients_of_a_tensor_are_added_for_each_reader_beyond_the_first() -> None:
    """Two residuals; latent attention: 2 readers; experts: the router, what is sent, the shared expert, its gate."""
    where = a_place(Execution())
    for name, num_sums in (
        ("llama3-8b", 2),
        ("mixtral-8x7b", 2 + 1),
        ("deepseek-v3", 2 + 1 + 2),
        ("qwen3-next-80b-a3b", 2 + 3),
    ):
        layer = find_model(name).layers[-1]
        found = kernels(layer, where)["sums"]
        added = memory_kernel_time(
            where.times, "elementwise", num_sums * 3 * 2 * layer.hidden_size * 4096, launches=num_sums
        )
        assert found.backward_input == pytest.approx(added)
        assert not found.forward.count


def test_biases_behind_a_sum_have_a_ranks_own_tokens() -> None:
    """GPT: attention's output and down, h columns each, of T/tp tokens with sequence parallelism."""
    layer = find_model("gpt3-175b").layers[0]
    took = []
    for sequence_parallel in (False, True):
        where = a_place(Execution(sequence_parallel=sequence_parallel), tp=8)
        took.append(passing(layer, where).backward_weight.memory_s)
    rate = where.device.memory_bytes_per_s * where.device.efficiency.memory
    assert (took[0] - took[1]) * rate == pytest.approx(2 * 2 * 12288 * 4096 * (1 - 1 / 8))


def test_each_kind_of_operator_moves_so_many_elements_in_so_many_kernels() -> None:
    """Read and written elements per column in F and in I, then kernels of F and of I."""
    assert dict(operator_kernels._PASSES) == {
        "norm": (2, 5, 1, 2), "rotation": (2, 2, 1, 1), "scaled rotation": (12, 14, 12, 14), "activation": (2, 3, 1, 1),
        "gated activation": (3, 5, 1, 1), "clamped activation": (11, 20, 4, 8), "convolution": (2, 5, 1, 2),
        "gate": (3, 6, 1, 2), "add": (3, 0, 1, 0), "modulation": (2, 4, 0, 0), "scale": (2, 2, 1, 1),
        "weighted sum": (1, 3, 1, 1), "look up": (2, 1, 2, 2), "dropout": (1, 0, 0, 0), "copies": (1, 1, 0, 0),
        "norms": (2, 5, 4, 4), "final norm": (2, 3, 1, 1),
    }  # fmt: skip
    assert dict(operator_kernels._BIASES) == {
        False: ((0, 6, 2, 1), (0, 8, 4, 1)), True: ((24, 2, 2, 2), (32, 4, 7, 3)),
    }  # fmt: skip
    assert (operator_kernels._STREAMS, operator_kernels._STRIDED_ELEMENTS_PER_S) == (4, 2.87e9)
    assert parameter_defaults(operator_kernels.computed_rows) == {"load": 1.0}
    assert field_defaults(operator_kernels.OperatorKernels) == {"micro_batch": 0, "sequence_length": 0}
