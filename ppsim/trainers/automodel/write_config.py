"""Writer of NeMo AutoModel's YAML recipes: the inverse of `read_config`."""

from collections.abc import Mapping
from typing import Any

from ppsim.base.errors import CannotRun
from ppsim.trainers.automodel.read_config import DISPATCHERS, FP8, GPUS_PER_NODE, RECOMPUTED, divided
from ppsim.trainers.torchtitan.settings import local_batch, module_names, replicas, written_schedule

_TARGETS = {
    "model": "nemo_automodel.NeMoAutoModelForCausalLM.from_config",
    "dataset": "nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset",
    "loss_fn": "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy",
    "peft": "nemo_automodel.components._peft.lora.PeftConfig",
}
_ADAM = {True: "torch.optim.Adam", False: "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam"}
"""Adam with moments in the number format of the weights, as torch has it, and with moments in float32."""


def write_automodel(options: Mapping[str, Any]) -> str:
    """Raises `CannotRun` for a plan that AutoModel refuses (components/distributed/mesh_utils.py, train_ft.py)."""
    import yaml

    sizes = {name: options.get(name, 1) for name in ("tp", "cp", "pp", "ep")}
    tree = _tree(options)
    if tree["distributed"]["strategy"] == "ddp" and set(sizes.values()) != {1}:
        raise CannotRun("NeMo AutoModel cannot run this: DDP has no other parallelism: give --zero 1")
    if tree["step_scheduler"]["local_batch_size"] // options["micro_batch"] < sizes["pp"]:
        raise CannotRun("NeMo AutoModel cannot run this: a pipeline needs as many microbatches as ranks")
    said = (
        "# NeMo AutoModel. Add your own data, learning rate and checkpoints, and the model's Hugging Face id.",
        f"# automodel recipe.yaml --nproc-per-node {min(GPUS_PER_NODE, options['gpus'])}",
    )
    return "\n".join([*said, yaml.safe_dump(tree, sort_keys=False).strip()])


def _tree(options: Mapping[str, Any]) -> dict[str, Any]:
    in_bf16 = bool(options.get("bf16_master_weights_and_grads"))
    tree: dict[str, Any] = {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "step_scheduler": {
            "global_batch_size": options["global_batch"], "local_batch_size": local_batch(options),
        },
        "distributed": _distributed(options, replicas(options)),
        "model": {
            "_target_": _TARGETS["model"], "pretrained_model_name_or_path": options["model"],
            "torch_dtype": "bf16" if in_bf16 else "float32",
        } | _backend(options),
        "loss_fn": {"_target_": _TARGETS["loss_fn"]},
        "dataset": {"_target_": _TARGETS["dataset"], "seq_len": options["seq_len"]},
        "optimizer": {"_target_": _ADAM[options.get("exp_avg_dtype", "float32") == "bfloat16" or not in_bf16]},
    }  # fmt: skip
    if options.get("compile"):
        tree["compile"] = {"enabled": True}
    if str(rank := options.get("lora", "")).isdecimal():
        tree["peft"] = {"_target_": _TARGETS["peft"], "target_modules": "*_proj", "dim": int(rank)}
    return tree


def _backend(options: Mapping[str, Any]) -> dict[str, Any]:
    """8-bit GEMMs run in TransformerEngine."""
    backend: dict[str, Any] = {"linear": "te", "rms_norm": "te"} if options.get("stack") == "automodel" else {}
    recipe = next((name for name, dtype in FP8.items() if dtype == options["dtype"]), None)
    if recipe is not None:
        backend |= {"linear": "te", "te_fp8": {"recipe": recipe}}
    if options.get("ep", 1) > 1 and options.get("moe_dispatcher") in DISPATCHERS.values():
        ours = options["moe_dispatcher"]
        backend["dispatcher"] = next(name for name, dispatcher in DISPATCHERS.items() if dispatcher == ours)
    return {"backend": backend} if backend else {}


def _distributed(options: Mapping[str, Any], dp: int) -> dict[str, Any]:
    pp, ep, recompute = options.get("pp", 1), options.get("ep", 1), options.get("recompute", "none")
    mode = next((mode for mode, ours in RECOMPUTED.items() if ours == recompute), "false")
    section: dict[str, Any] = {
        "strategy": "fsdp2" if options.get("zero", 1) else "ddp",
        "dp_size": dp, **{f"{name}_size": options.get(name, 1) for name in ("tp", "cp", "pp", "ep")},
        "activation_checkpointing": {"false": False, "true": True}.get(mode, mode),
    }  # fmt: skip
    if options.get("zero", 1):
        section["sequence_parallel"] = bool(options.get("sequence_parallel"))
        copies = options.get("num_distributed_optimizer_instances", 1)
        section["dp_replicate_size"] = copies if copies < dp and dp % copies == 0 else 1
        reshards = {"reshard_after_forward": options["zero"] == 3}
        section |= {"moe": reshards} if ep > 1 else reshards
    if pp > 1:
        section["pipeline"] = _pipeline(options, pp)
    return section


def _pipeline(options: Mapping[str, Any], pp: int) -> dict[str, Any]:
    section = {"pp_schedule": written_schedule(options), "pp_microbatch_size": options["micro_batch"]}
    split: Any = options.get("split")
    if not (parts := module_names(split, pp, "lm_head", "embed_tokens", "model.")):
        return section
    each = -(-sum(split) // len(split))
    if split == divided(sum(split), len(split)) and -(-sum(split) // each) == len(split):
        return section | {"layers_per_stage": each}
    return section | {"module_fqns_per_model_part": [[*part, "model.rotary_emb"] for part in parts]}
