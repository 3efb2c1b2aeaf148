"""Rules for the bytes of a rank that are no sums over rows: sharding, rounding, and copies during the update."""

from collections.abc import Iterable

from ppsim.model.memory_settings import MemorySettings
from ppsim.model.parameters import RankParameters, exact_multiple
from ppsim.model.ping_pong import largest_state, trained_tensors
from ppsim.model.stage_rows import Row
from ppsim.parallel.sizes import share


def static_bytes(held: RankParameters, settings: MemorySettings) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer state, by component.

    FSDP2 holds shards of the main weights, and also whole tensors: gathered weights up to ZeRO 2, and accumulated
    gradients up to ZeRO 1, the level of TorchTitan with a pipeline.
    """
    sizes, optimizer = settings.cut, settings.optimizer
    stage, of_gradient = optimizer.zero_stage, optimizer.bytes_of_gradient
    state = held.matrices * optimizer.state_bytes(is_matrix=True)
    state += (held.trained - held.matrices) * optimizer.state_bytes()
    expert_state = held.trained_expert * optimizer.state_bytes(is_matrix=True)
    components: dict[str, int] = {}
    for prefix, number, gemms, trained, state_bytes, replicas in (
        ("", held.dense, held.gemms, held.trained, state, sizes.replicas),
        ("expert ", held.expert, held.expert_gemms, held.trained_expert, expert_state, sizes.expert_replicas),
    ):
        sharding = replicas // optimizer.instances_among(replicas)
        if settings.fully_shard:
            shard = share(optimizer.main_weight_bytes * number, sharding)
            weights = shard + (0 if stage == 3 else exact_multiple(number, settings.gathered_bytes))
            gradients = shard + number * of_gradient * (stage <= 1)
            states = share(optimizer.moment_bytes() * number, sharding)
        else:
            is_whole = stage < 3
            weights = share(settings.weight_bytes(number, gemms, is_whole=is_whole), 1 if is_whole else sharding)
            gradients = share(trained * of_gradient, sharding if stage >= 2 else 1)
            on_device = exact_multiple(state_bytes, 1 - optimizer.offload_fraction)
            states = share(on_device, optimizer.ranks_of_state(replicas) if stage >= 1 else 1)
        components |= {
            f"{prefix}parameters": weights,
            f"{prefix}gradients": gradients,
            f"{prefix}optimizer state": states,
        }
    return components


def state_of_whole_tensors(
    rows: Iterable[tuple[Row, int]], held: RankParameters, settings: MemorySettings, *, tables: int, table_size: int
) -> dict[str, int]:
    """Return the optimizer state if ranks own whole tensors; arguments as of `trained_tensors`."""
    optimizer, sizes = settings.optimizer, settings.cut
    if not optimizer.layer_wise or optimizer.use_layer_wise_param_layout:
        return {}
    dense, expert = trained_tensors(rows, held, sizes, tables=tables, table_size=table_size)
    return {
        "optimizer state": largest_state(dense, optimizer, optimizer.ranks_of_state(sizes.replicas)),
        "expert optimizer state": largest_state(expert, optimizer, optimizer.ranks_of_state(sizes.expert_replicas)),
    }


def gradient_copy_bytes(held: RankParameters, settings: MemorySettings) -> int:
    """Bytes of the float32 copies of 16-bit gradients."""
    sizes, optimizer = settings.cut, settings.optimizer
    if settings.fully_shard or not optimizer.gradient_copy_bytes:
        return 0
    replicas = (held.trained, sizes.replicas), (held.trained_expert, sizes.expert_replicas)
    each = optimizer.gradient_copy_bytes * (1 - optimizer.offload_fraction)
    return sum(
        share(exact_multiple(number, each), optimizer.ranks_of_state(ranks) if optimizer.zero_stage else 1)
        for number, ranks in replicas
    )


def gradient_copies_beside_graphs(copies: int, transient_bytes: int, settings: MemorySettings) -> int:
    """Bytes of gradient copies that do not fit into the memory of tensors outside CUDA graphs.

    Eager tensors cannot use the private pool of graphs, which holds the tensors of the captured passes
    (TransformerEngine at d0067d0d, graph.py: `_make_graphed_callables`; Megatron-LM at d98e8a64,
    core/full_cuda_graph.py: `get_graph_pool`). Beside graphs of whole layers, copies use the memory of transient
    bytes. Beside graphs of some modules, they are assumed to use the memory of the other activations.
    """
    if settings.execution.cuda_graphs == "full":
        return copies
    return max(0, copies - transient_bytes) if settings.execution.cuda_graphs == "layer" else 0


def with_slack(components: dict[str, int], settings: MemorySettings) -> dict[str, int]:
    """Add the allocator's slack, and leave out components without bytes."""
    used = sum(components.values())
    components["allocator slack"] = exact_multiple(used, settings.allocator_slack) - used
    return {name: size for name, size in components.items() if size}
