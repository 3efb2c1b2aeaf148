"""What the host launches: kernels, or graphs of them, and its wait for the counts of a dropless router."""

from dataclasses import replace

import pytest

import ppsim
from ppsim.costs.analytic import layer_estimate, parts_of
from ppsim.costs.job import Job
from ppsim.errors import ConfigError
from ppsim.machine.kernels.times import KernelTime
from ppsim.model.activations import layer_activations

TINY = {"model": "llama3-8b", "stack": "plain", "seq_len": 256, "gpus": 8, "cluster": "dgx-h100", "pp": 4}
SPARSE = {
    "model": "qwen3-30b-a3b",
    "stack": "plain",
    "gpus": 8,
    "ep": 8,
    "cluster": "gb200-nvl72",
    "pp": 1,
    "global_batch": 64,
}
CAPTURED = "attn+moe_router+moe_preprocess"


def host_s(job: Job, pass_name: str = "forward") -> float:
    """Seconds for which the device waits in a layer whose kernels take it no time."""
    place, layer = job.place, job.model.layers[-1]
    never = replace(place.cluster.device.efficiency, host_s=1.0)
    slow = replace(place.cluster, device=replace(place.cluster.device, efficiency=never))
    estimate = layer_estimate(layer, replace(place, cluster=slow), micro_batch=1, sequence_length=job.length)
    return round(getattr(estimate, pass_name).host_s)


def test_a_graph_is_launched_instead_of_the_kernels_that_it_holds() -> None:
    launches = {
        graphs: host_s(ppsim.job(**TINY, cuda_graphs=graphs)) for graphs in ("none", "attn", "mlp", "layer", "full")
    }
    assert launches["layer"] == 1
    assert launches["full"] == 0
    halves = [launches["none"] + 1 - launches[name] for name in ("attn", "mlp")]  # what each half has
    assert sum(halves) == launches["none"]
    assert min(halves) >= 3
    both = ppsim.job(**TINY, cuda_graphs="attn+mlp")
    assert host_s(both) == host_s(both, "backward_input") == host_s(both, "backward_weight") == 1


def test_the_host_launches_recomputed_kernels_in_front_of_the_input_gradient() -> None:
    """Recomputation in a graph has no launches of its own."""

    def added(**options: str) -> float:
        of_recompute, none = (
            host_s(ppsim.job(**TINY, **options, recompute=recompute), "backward_input")
            for recompute in ("mlp", "none")
        )
        return of_recompute - none

    whole = host_s(ppsim.job(**TINY))
    assert 3 <= added() < whole
    assert added(cuda_graphs="attn") == added()
    assert added(cuda_graphs="mlp") == added(cuda_graphs="layer") == added(cuda_graphs="full") == 0
    full = host_s(ppsim.job(**TINY, recompute="full"), "backward_input")
    assert full == host_s(ppsim.job(**TINY), "backward_input") + whole


def test_recomputation_hides_launches_of_the_input_gradient_while_it_runs() -> None:
    """A pass that waits for the host waits less by the time of recomputed kernels, less their own launches."""
    place = ppsim.job(**TINY).place
    waits = parts_of(place, KernelTime(count=1000)).host_s
    again = parts_of(place, KernelTime(count=1000), recompute_s=3e-3, launching_again_s=1e-3)
    assert again.host_s == pytest.approx(waits - 2e-3)
    assert again.total_s == pytest.approx(waits + 1e-3)


def test_a_router_is_captured_up_to_the_exchange() -> None:
    launches = [
        host_s(ppsim.job(**SPARSE, cuda_graphs=graphs)) for graphs in ("none", "attn", "attn+moe_router", CAPTURED)
    ]
    assert launches[0] > launches[1] > launches[2] == launches[3] > 8


@pytest.mark.parametrize(
    ("changed", "waits"),
    [
        ({}, True),
        ({"cuda_graphs": "attn"}, True),
        ({"cuda_graphs": CAPTURED}, False),
        ({"cuda_graphs": CAPTURED, "moe_dispatcher": "alltoall"}, True),
        ({"moe_expert_capacity_factor": 1.0}, False),
        ({"moe_dispatcher": "hybridep", "fused_experts": True, "moe_expert_rank_capacity_factor": 1.5}, False),
    ],
)
def test_the_host_waits_for_counts_where_a_router_drops_nothing_and_nothing_is_ready_behind(
    changed: dict, waits: bool
) -> None:
    [layer] = ppsim.job(**SPARSE, seq_len=512, **changed).costs.layers().values()
    routing_s = ppsim.job(**SPARSE).cluster.device.efficiency.routing_host_s
    assert (layer.forward.total_s == pytest.approx(routing_s)) == waits
    assert (layer.forward.host_s > 1e-3) == waits


def test_a_step_in_one_graph_launches_no_action_and_no_message() -> None:
    eager, full = (ppsim.project(**TINY, launch_ms=1.0, cuda_graphs=graphs) for graphs in ("none", "full"))
    assert ppsim.project(**TINY, launch_ms=0.0).iteration_time_s < eager.iteration_time_s
    assert full.iteration_time_s <= ppsim.project(**TINY, launch_ms=0.0).iteration_time_s
    assert any(line == "CUDA graphs: full" for line in full.assumptions)


def test_a_projection_and_a_search_hold_the_buffers_of_graphs() -> None:
    words = TINY | {"global_batch": 16, "seq_len": 8192, "split": "even"}
    peaks = [
        ppsim.project(**words, cuda_graphs=graphs, cuda_graph_reuse=reuse).timeline.memory.peak_bytes.max()
        for graphs, reuse in (("full", True), ("layer", True), ("layer", False))
    ]
    assert peaks[0] < peaks[1] < peaks[2]
    given = {name: words[name] for name in ("model", "stack", "cluster", "gpus", "global_batch")}
    tuned = ppsim.tune(**given, pp=[4], tp=[1], cp=[1], micro_batch=[1], vpp=[1], schedule=["1f1b"],
                       recompute=["none"], split=["even"], zero=[1], cuda_graphs="layer")  # fmt: skip
    project = ppsim.project(**given, pp=4, split="even", cuda_graphs="layer")
    [own] = [one for one in tuned.simulated if not one.candidate.switched]
    assert own.peak_bytes == pytest.approx(project.timeline.memory.peak_bytes.max())


ROOM = {"moe_dispatcher": "hybridep", "fused_experts": True, "moe_expert_rank_capacity_factor": 1.5}


def test_room_for_a_ranks_tokens_lets_one_graph_hold_a_dropless_step_and_pages_keep_less() -> None:
    with pytest.raises(ConfigError, match="dropless router leaves open"):
        ppsim.job(**SPARSE, cuda_graphs="full")
    whole, paged = (ppsim.job(**SPARSE, cuda_graphs="full", **ROOM, **of) for of in ({}, {"moe_paged_stash": 1.2}))
    [kept, kept_paged] = (layer_activations(job.model.layers[0], job.settings)["experts"] for job in (whole, paged))
    assert kept_paged < kept
    [took, took_paged] = (next(iter(job.costs.layers().values())).forward.memory_s for job in (whole, paged))
    assert took_paged == took  # Megatron-LM copies on a stream of its own


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"moe_expert_rank_capacity_factor": 1.5}, "goes with --moe-dispatcher hybridep and --fused-experts"),
        ({"moe_paged_stash": 1.2}, "goes with --moe-expert-rank-capacity-factor"),
        (ROOM | {"moe_expert_rank_capacity_factor": 0.5}, "or more: got 0.5"),
        (ROOM | {"moe_paged_stash": 1.2, "offload": 0.5}, "leave out --offload"),
        ({"exp_avg_dtype": "bfloat16", "zero": 0}, "--zero 1 to 3, or float32"),
    ],
)
def test_what_megatron_refuses_of_rooms_and_moments_is_refused(words: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ppsim.job(**SPARSE, **words)
