"""Ask Megatron-LM's own parser and validator about random and default plans that `--to-config megatron` writes.

python scripts/check_megatron_configs.py --megatron CHECKOUT                     # 200 random and 40 default plans
python scripts/check_megatron_configs.py --megatron MAIN --megatron V0.16 -n 20 --seed 7

CHECKOUT is a folder with NVIDIA/Megatron-LM. A child process runs its `parse_args`, `validate_args` and
`core_transformer_config_from_args` on the CPU: CUDA (8 GPUs of compute capability 10.0), Triton and the version of
TransformerEngine are stood in for. Prints accepted and refused plans per sentence; the exit code is 1 if a file is
refused. A checkout before 0.19 gets `--to-config megatron@0.16`.
"""

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import random
import re
import shlex
import subprocess
import sys
import types
import typing
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

OPTIONS = (
    "etp", "mtp_num_layers", "mtp_use_repeated_layer", "dtype", "recompute", "zero", "fully_shard", "optimizer",
    "layer_wise", "use_layer_wise_param_layout", "order", "exp_avg_dtype", "use_precision_aware_optimizer",
    "sequence_parallel", "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d", "group_size",
    "num_distributed_optimizer_instances", "outer_dp_sharding_strategy", "wgrad_deferral_limit", "overlap_p2p",
    "gradient_accumulation_fusion", "grad_reduce_in_bf16", "fp8_param_gather", "weight_cache",
    "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16", "overlap_dp", "overlap_grad_reduce",
    "overlap_param_gather", "attention", "dropout", "deterministic_mode", "cross_entropy", "offload_modules",
    "min_offloaded_tensor_size", "activation_offload_fraction", "max_inflight_offloads", "context", "overlap_tp",
    "overlap_ep", "moe_dispatcher", "moe_flex_dispatcher_num_sms", "moe_permute_fusion", "fused_experts",
    "moe_expert_capacity_factor", "moe_expert_rank_capacity_factor", "moe_paged_stash", "cuda_graphs",
    "moe_use_legacy_grouped_gemm", "split", "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers", "account_for_embedding_in_pipeline_split", "layers",
    "account_for_loss_in_pipeline_split",
)  # fmt: skip
"""Options with a Megatron-LM argument, without the sizes that each plan draws."""
SIZES: dict[str, tuple[int, ...]] = {
    "tp": (1, 2, 4, 8), "pp": (1, 2, 4), "cp": (1, 1, 2), "ep": (1, 2, 8), "dp": (1, 2, 8), "vpp": (1, 1, 2),
    "micro_batch": (1, 2), "microbatches": (8, 16), "seq_len": (1024, 4096, 16384),
}  # fmt: skip
OWN_PART = "--lr 1e-4 --train-iters 1 --tokenizer-type NullTokenizer --no-rope-fusion"
"""Arguments that a user adds, and one for the missing TransformerEngine."""
_FUSED = (
    "fused_permute", "fused_permute_with_probs", "fused_unpermute", "fused_sort_chunks_by_index",
    "fused_sort_chunks_by_index_with_probs",
)  # fmt: skip
"""Kernels of TransformerEngine."""


def random_options(draw: random.Random) -> dict[str, Any]:
    """Draw one plan: model, cluster and sizes, and up to eight other options, each uniformly."""
    from ppsim.machine.cluster_files import packaged_clusters
    from ppsim.model.registry import __getattr__ as registry
    from tests.api.test_to_config import NEEDED, values_of

    values = {"overlap_ep": (0.5, "megatron", "megatron-delay-wgrad")}
    options: dict[str, Any] = {name: draw.choice(sizes) for name, sizes in SIZES.items()}
    options |= {"model": draw.choice(registry("NAMES")), "cluster": draw.choice(sorted(packaged_clusters()))}
    for name in draw.sample(OPTIONS, draw.randint(0, 8)):
        options |= NEEDED.get(name, {}) | {name: draw.choice(values.get(name) or values_of(name))}
    if options.get("split") in ("numbers", "layout"):
        counts = [draw.randint(1, 3) for _ in range(options["pp"] * options["vpp"])]
        stages = "|".join("t" * count for count in counts)
        options |= {"layers": sum(counts), "split": counts if options["split"] == "numbers" else f"E{stages}L"}
    return {name: value for name, value in options.items() if value is not None}


def default_options(draw: random.Random) -> dict[str, Any]:
    options = random_options(draw)
    return {name: options[name] for name in ("model", "cluster", "tp", "pp", "dp") if name in options}


def plans(seed: int, count: int, defaults: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield options with their projection; options that `ppsim project` refuses are drawn again."""
    import ppsim
    from ppsim.errors import PpsimError

    for draws, left in ((random_options, count), (default_options, defaults)):
        draw = random.Random(f"{seed} {draws.__name__}")
        while left:
            options = draws(draw)
            with contextlib.suppress(PpsimError):
                yield options, ppsim.project(**options)
                left -= 1


def written(options: dict[str, Any], made: Any, trainer: Any) -> str:
    """Return the file of a plan, or ppsim's sentence if Megatron-LM cannot run it."""
    import ppsim
    from ppsim.errors import PpsimError

    try:
        return ppsim.trainer_options(made, trainer, given=options)
    except PpsimError as error:
        return str(error)


def target_of(checkout: Path) -> str:
    text = (checkout / "megatron/core/package_info.py").read_text()
    found = re.search(r"^MINOR = (\d+)", text, re.MULTILINE)
    return "megatron@0.16" if found and int(found[1]) < 19 else "megatron"


def refusals(checkout: Path, texts: list[str]) -> list[str]:
    """Return Megatron-LM's sentence for each file, "" if accepted; sentences of ppsim stay as they are."""
    command = [sys.executable, __file__, "--judge", str(checkout)]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return list(json.loads(done.stdout))


def judge(checkout: Path) -> None:
    texts, answers = json.load(sys.stdin), sys.stdout
    stand_in()
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(checkout))
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(sys.stderr):
        for name in ("megatron.training.arguments", "megatron.core.transformer.moe.moe_utils"):
            importlib.import_module(name)
        for module in [module for name, module in sys.modules.items() if name.startswith("megatron")]:
            if module.__name__.endswith("moe_utils") or hasattr(module, "is_te_min_version"):
                vars(module).update(dict.fromkeys(("is_te_min_version", *_FUSED), lambda *_, **__: True))
        found = [refusal_of(text) if "torchrun" in text else text for text in texts]
    json.dump(found, answers)


def refusal_of(text: str) -> str:
    megatron = sys.modules["megatron.training.arguments"]
    words = shlex.split(text[text.index("torchrun") :].replace("\\\n", " "))
    world_size = int(words[2]) * int(words[4])
    os.environ.update(WORLD_SIZE=str(world_size), RANK="0", LOCAL_RANK="0", NCCL_ALGO="Ring")
    os.environ.update(CUDA_DEVICE_MAX_CONNECTIONS="32", NVTE_ALLOW_NONDETERMINISTIC_ALGO="0")
    os.environ.update(CUBLAS_WORKSPACE_CONFIG=":4096:8", NVTE_CPU_OFFLOAD_V1="1")
    sys.argv = ["pretrain", *words[6:], *OWN_PART.split()]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            arguments = megatron.parse_args()
            megatron.validate_args(arguments)
            megatron.core_transformer_config_from_args(arguments)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error} {said.getvalue()[-200:]}".strip()
    return ""


def stand_in() -> None:
    """Let Megatron-LM be imported and validated without a GPU, Triton and six."""
    import torch
    import torch._dynamo
    import torch._inductor.runtime.triton_compat
    import torch._inductor.utils

    if not hasattr(typing, "override"):  # before Python 3.12
        typing.override = lambda function: function  # type: ignore[attr-defined]
    torch.compile = _decorator
    answers: dict[str, Any] = {
        "is_available": False, "device_count": 8, "get_device_capability": (10, 0),
        "get_device_properties": types.SimpleNamespace(major=10, minor=0, total_memory=1),
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    for name in ("triton.language", "triton", "six"):
        sys.modules.setdefault(name, _Anything(name))


class _Anything(types.ModuleType):
    """A module whose names are decorators, classes and functions without effect."""

    __version__ = "3.4.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("Config", "constexpr"):
            return type(name, (), {"__init__": lambda self, *_, **__: None})
        return sys.modules.get(f"{self.__name__}.{name}", _decorator)


def _decorator(function: Any = None, *_: Any, **__: Any) -> Any:
    return function if callable(function) else _decorator


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", type=Path, action="append", default=[], metavar="CHECKOUT")
    parser.add_argument("--seed", type=int, default=0, help="seed of the plans [default: 0]")
    parser.add_argument("-n", "--num", type=int, default=200, help="random plans [default: 200]")
    parser.add_argument("--defaults", type=int, default=40, help="default plans [default: 40]")
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        judge(options.judge)
        return 0
    projected, num_refused = list(plans(options.seed, options.num, options.defaults)), 0
    print(f"{options.num} random and {options.defaults} default plans, seed {options.seed}")
    for checkout in options.megatron:
        files = [written(given, projection, target_of(checkout)) for given, projection in projected]
        answers = refusals(checkout, files)
        not_run = sum("torchrun" not in text for text in files)
        classes = Counter(map(_class, filter(None, answers)))
        refused = classes.total() - not_run
        num_refused += refused
        print(f"{checkout.name}: {answers.count('')} accepted, {refused} refused, {not_run} cannot run")
        for sentence, count in classes.most_common():
            example = next(
                given for (given, _), answer in zip(projected, answers, strict=True) if _class(answer) == sentence
            )
            print(f"{count:4} {sentence}\n     {example}")
    return int(num_refused > 0)


def _class(sentence: str) -> str:
    return re.sub(r"\d+", "N", sentence)[:300]


if __name__ == "__main__":
    sys.exit(main())
