"""How many bytes of cuBLAS workspaces a process has, by device, framework and experts."""

from dataclasses import replace

from ppsim import job
from ppsim.machine.cluster import GemmWorkspaces
from ppsim.model.registry import find_model

MIB = 2**20


def workspaces(cluster: str, **options: object) -> float:
    made = job(cluster=cluster, gpus=8, **({"model": "llama3-8b"} | options))  # type: ignore[arg-type]
    return made.settings.workspace_bytes / MIB


def test_torch_has_two_and_transformer_engine_one_and_four_for_experts() -> None:
    sizes = GemmWorkspaces(torch=1000, transformer_engine=10)
    assert sizes.allocated(has_engine=True, has_experts=False, is_deterministic=False) == 2010
    assert sizes.allocated(has_engine=True, has_experts=True, is_deterministic=False) == 2050
    assert sizes.allocated(has_engine=False, has_experts=True, is_deterministic=False) == 2000
    assert sizes.allocated(has_engine=True, has_experts=False, is_deterministic=True) == 64 * MIB + 10


def test_a_job_has_the_workspaces_of_its_device_framework_and_model() -> None:
    assert workspaces("dgx-h100") == 96
    assert workspaces("dgx-h100", model="mixtral-8x7b") == 96 + 4 * 32
    assert workspaces("dgx-h100", stack="torchtitan") == 64
    mixtral = find_model("mixtral-8x7b")
    apart = [replace(one, ffn=replace(one.ffn, grouped=False)) for one in mixtral.layers]
    alone = replace(job(model="mixtral-8x7b", gpus=8), model=replace(mixtral, layers=tuple(apart)))
    assert alone.settings.workspace_bytes == 96 * MIB
    assert workspaces("dgx-a100") == 2 * 8.125 + 4
    assert workspaces("dgx-a100", deterministic_mode=True, cross_entropy="unfused") == 2 * 32 + 4
