"""Print what NeMo AutoModel's own loader says of each recipe of a JSON list on stdin: "" or the sentence of its error."""

import dataclasses
import importlib
import json
import math
import sys
from typing import Any

import yaml


class Accepted(Exception):
    """Raised in place of the start of process groups, after the sizes are checked."""


def accept(*_: Any, **__: Any) -> None:
    raise Accepted


def component(name: str) -> Any:
    return importlib.import_module(f"nemo_automodel.{name}")


def said_of(text: str) -> str:
    try:
        check(yaml.safe_load(text))
    except Accepted:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def check(tree: dict[str, Any]) -> None:
    scheduler = component("components.config.loader").ConfigNode({"step_scheduler": tree["step_scheduler"]})
    assert component("recipes._typed_config").RecipeConfig(scheduler).step_scheduler
    fields = dataclasses.fields(component("components.models.common.utils").BackendConfig)
    assert tree["model"].get("backend", {}).keys() <= {field.name for field in fields}, "BackendConfig"
    sizes = component("recipes._dist_utils").parse_distributed_section(tree["distributed"])
    if sizes["pp_enabled"]:  # recipes/llm/train_ft.py
        local, micro = tree["step_scheduler"]["local_batch_size"], sizes["pipeline_config"].pp_microbatch_size
        assert local % micro == 0, "local_batch_size"
        assert local // micro >= sizes["pp_size"], "fewer microbatches than ranks"
    num_gpus = math.prod(sizes[f"{name}_size"] for name in ("dp", "tp", "cp", "pp"))
    meshes = component("components.distributed.mesh_utils")
    meshes._init_named_mesh = accept
    meshes._create_device_meshes(sizes["strategy_config"], sizes["parallelism_sizes"], world_size=num_gpus)


if __name__ == "__main__":
    json.dump([said_of(text) for text in json.load(sys.stdin)], sys.stdout)
