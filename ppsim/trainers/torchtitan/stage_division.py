"""How TorchTitan divides a model's layers among pipeline stages, if the run does not name them."""

from typing import Any

from ppsim.model.architecture import Model
from ppsim.trainers.arguments import Arguments

_ONE_STAGE = ("gpipe", "1f1b")
_NAMED = "parallelism.module_fqns_per_model_part"


def stages_of(arguments: Arguments, pp: int, schedule: str | None, model: Model | None) -> dict[str, Any]:
    """Return vpp if the file says the layers per stage, and note the layers that TorchTitan gives each stage."""
    less = [
        arguments.number(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1, least=0)
        for end in ("first", "last")
    ]
    each = arguments.count("parallelism.pipeline_parallel_layers_per_stage", word="vpp")
    if pp == 1 or model is None or schedule is None:
        return {}
    num_layers = len(model.layers)
    num_stages = -(-(num_layers + sum(less)) // each) if each else pp * (1 if schedule in _ONE_STAGE else 2)
    if num_stages % pp:
        arguments.assumed.append(
            f"pipeline_parallel_layers_per_stage {each}: not followed, its {num_stages} stages are no multiple of "
            f"pp {pp}"
        )
        return {}
    if not arguments.has(_NAMED) and (layers := layers_of_stages(num_layers, num_stages, *less)):
        split = ",".join(map(str, layers))
        arguments.assumed.append(f"layers per stage: as --split chooses; TorchTitan's own rule is --split {split}")
    return {"vpp": num_stages // pp} if each else {}


def layers_of_stages(num_layers: int, num_stages: int, first_less: int, last_less: int) -> list[int] | None:
    """Return the layers of each stage (`_generate_llm_fqn_per_model_part`), or None if TorchTitan refuses them.

    Embedding and head count as `first_less` and `last_less` layers; the first stages take what is left over.

    >>> layers_of_stages(32, 4, 1, 1)
    [8, 9, 8, 7]
    """
    each, more = divmod(num_layers + first_less + last_less, num_stages)
    if each < max(first_less, last_less, 1):
        return None
    layers = [each + (stage < more) for stage in range(num_stages)]
    layers[0] -= first_less
    layers[-1] -= last_less
    return layers
