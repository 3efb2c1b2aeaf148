"""One sum over a layer's matrices, for whoever knows how long a kernel takes."""

from dataclasses import dataclass, field

import pytest

from ppsim.costs.layer_kernels import attention, products, products_of, rank_part
from ppsim.costs.place import Execution, Place
from ppsim.layout.cut import Cut
from ppsim.layout.layout import Layout
from ppsim.machine.files import load_cluster
from ppsim.model.names import find_model


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
    linears = layer.linears(Cut(tp=2, dp=4, ep=4))
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
def place() -> Place:
    return Place(cluster=load_cluster("dgx-h100"), layout=Layout(tp=4, dp=4), execution=Execution())


def test_experts_cost_a_rank_the_same_flops_however_tensor_parallel_they_are(place):
    """Etp ranks have as many times the tokens of an expert, and that part of its columns."""
    layer = find_model("mixtral-8x7b").layers[0]
    parts = [rank_part(layer, Cut(tp=4, dp=4, ep=4, etp=etp)) for etp in (1, 2, 4)]
    flops = [products_of(part, place, tokens=4096).forward.matmul_ideal_s for part in parts]
    assert flops == pytest.approx([flops[0]] * 3)
    assert [part.pairs for part in parts] == [0.5, 1.0, 2.0]


def test_attention_is_of_a_ranks_heads_and_queries(place):
    layer = find_model("llama3-8b").layers[0]
    core = attention(layer, place, micro_batch=2, sequence_length=4096).forward
    flops = 2 * (32 / 4) * 4096 * 4096 * 256
    assert core.attention_ideal_s == pytest.approx(flops / place.cluster.device.peak("bfloat16"))
