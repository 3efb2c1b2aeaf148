"""Write ppsim/trainers/data/recipes.json: the performance recipes that trainers publish.

`python scripts/extract_recipes.py --megatron-bridge DIR --primus DIR` reads Git repositories (a clone, or its .git
folder) at the tag of each release. Megatron-Bridge's recipe functions are executed with mocks for torch,
Megatron-Core and everything else that is not a recipe, and the resulting settings are recorded.
"""

import argparse
import importlib
import importlib.abc
import importlib.util
import io
import json
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, ClassVar

import yaml

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_toml, write_atomically
from ppsim.model.attention_and_mlp import MixtureOfExperts
from ppsim.model.registry import NAMES, known_name, read_model
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.option_relevance import effect_of
from ppsim.trainers.primus import read_config as read_primus
from ppsim.trainers.read_config import read_run_config
from ppsim.trainers.torchtitan import read_config as read_torchtitan
from ppsim.trainers.torchtitan.config_registry import registry
from ppsim.trainers.torchtitan.read_config import from_torchtitan

TABLE = Path(__file__).parents[1] / "ppsim" / "trainers" / "data" / "recipes.json"

BRIDGE_TAGS = {
    "25.09": "v0.1.0rc4",
    "25.11": "v0.2.0", "26.02": "v0.3.0", "26.02.01": "v0.3.1", "26.04": "v0.4.0", "26.04.01": "v0.4.2",
    "26.06": "v0.5.0", "26.06.01": "v0.5.1", "26.08": "v0.6.0",
}  # fmt: skip
"""NeMo containers, and the tag of Megatron-Bridge in each. The container 25.09 has v0.1.0rc3
(docs/releases/software-versions.md), but most layouts that were published for it are only in v0.1.0rc4.
"""

PRECISIONS = {"bf16": "bf16", "fp8_cs": "fp8", "fp8_mx": "mxfp8", "fp8_sc": "fp8-block", "nvfp4": "nvfp4"}
DIFFUSION = {"wan", "flux"}

BUILT = {
    "KimiK2Provider": "kimi-k2", "Nemotron3NanoProvider": "nemotron-3-nano-30b-a3b",
    **{f"Qwen3.5-{size}": f"qwen3.5-vl-{size.lower()}" for size in ("35B-A3B", "122B-A10B", "397B-A17B")},
}  # fmt: skip
"""Models of ppsim that Megatron-Bridge builds by a class or name that is not the model's name in ppsim."""


def built_model(name: str) -> str | None:
    """Return the model of a Hugging Face id or class of Megatron-Bridge."""
    last = name.rpartition("/")[2]
    return BUILT.get(last) or known_name(last)


class Section:
    """A section of a configuration; unset fields are None."""

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        vars(self).update(fields)

    def __getattr__(self, field: str) -> Any:
        if field.startswith("__"):
            raise AttributeError(field)
        return None


class Container(Section):
    """A complete configuration: its sections are created on access."""

    def __getattr__(self, field: str) -> Any:
        if field.startswith("__"):
            raise AttributeError(field)
        vars(self)[field] = made = Section()
        return made


@dataclass(init=False)
class OptimizerConfig(Section):
    """The section of the optimizer; recipes list the names of its fields."""


class StandIn:
    """A mock of any imported object: attributes and items are mocks, a call returns a section."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return StandIn(f"{self._name}.{attribute}")

    def __getitem__(self, item: Any) -> "StandIn":
        return StandIn(f"{self._name}.{item}")

    def __call__(self, *arguments: Any, **fields: Any) -> Any:
        """Return a section with these fields; as a decorator, return the decorated object."""
        if arguments and callable(arguments[0]) and not fields:  # a decorator
            return arguments[0]
        return Section(**(facts_of(self.name) if built_model(self.name) else {}), **fields)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (Section,)

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    @property
    def name(self) -> str:
        """The last part of the name."""
        return self._name.rpartition(".")[2]

    def __str__(self) -> str:
        return self.name


class StandInModule(ModuleType):
    """A module whose names are mocks."""

    __path__: ClassVar[list[str]] = []
    __all__: ClassVar[list[str]] = []

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return StandIn(f"{self.__name__}.{attribute}")


class Bridge:
    """Mock of AutoBridge."""

    def __init__(self, hf_name: str) -> None:
        self.hf_name = hf_name

    @classmethod
    def from_hf_pretrained(cls, hf_name: Any, **_: Any) -> "Bridge":
        """Return the bridge of a model name."""
        return cls(str(hf_name))

    def to_megatron_provider(self, **_: Any) -> Section:
        """Return the section of the model."""
        return Section(hf_name=self.hf_name, **facts_of(self.hf_name))


def facts_of(hf_name: str) -> dict[str, Any]:
    """Return the sizes of a model that recipes read."""
    name = built_model(hf_name)
    if name is None:
        return {"vocab_size": 1}
    model = read_model(name)
    experts = [kind.ffn.num_experts for kind in model.kinds if isinstance(kind.ffn, MixtureOfExperts)]
    return {
        "num_layers": len(model.layers), "mtp_num_layers": len(model.mtp) or None, "vocab_size": model.vocab_size,
        "num_moe_experts": max(experts, default=None),
    }  # fmt: skip


class Tree:
    """The files of a Git repository at a tag."""

    def __init__(self, repository: Path, tag: str) -> None:
        self.repository, self.tag = repository, tag
        self.commit = self._git("rev-parse", f"{tag}^{{commit}}").strip()
        self.files = frozenset(self._git("ls-tree", "-r", "--name-only", self.commit).splitlines())

    def _git(self, *words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(self.repository), *words], check=True, capture_output=True, text=True
        ).stdout

    def unpack(self, folder: Path, *paths: str) -> None:
        """Write some folders of the tree into another folder."""
        packed = subprocess.run(
            ["git", "-C", str(self.repository), "archive", self.commit, "--", *paths],
            check=True,
            capture_output=True,
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")

    def read(self, path: str) -> str:
        """Return the text of a file."""
        return self._git("show", f"{self.commit}:{path}")


EXECUTED = ("megatron.bridge.perf_recipes", "megatron.bridge.recipes", "configs", "utils.")
EXECUTED_WHOLE = (
    "megatron.bridge.training.mixed_precision", "megatron.bridge.training.comm_overlap",
    "megatron.bridge.training.flex_dispatcher_backend", "megatron.bridge.utils.cuda_graph",
    "megatron.bridge.training.utils.moe_token_drop", "run_script", "utils",
)  # fmt: skip
NOT_EXECUTED = ("utils.datasets", "utils.dataset_paths", "utils.evaluate", "utils.executors", "utils.csp_plugins")
STANDARD = frozenset({*sys.stdlib_module_names, "typing_extensions"})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Importer that executes a repository's recipe files and returns mocks for all other modules."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.device = tree, "h100"
        self.paths: dict[str, str] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the specification of a module, or None for Python's own."""
        if name.partition(".")[0] in STANDARD:
            return None
        source = self._file_of(name)
        spec = importlib.util.spec_from_loader(
            name, self, is_package=source is None or source.endswith("__init__.py")
        )
        if source:
            self.paths[name] = source
        return spec

    def _file_of(self, name: str) -> str | None:
        if name in NOT_EXECUTED or not (name in EXECUTED_WHOLE or name.startswith(EXECUTED)):
            return None
        folder = "src" if name.startswith("megatron.") else "scripts/performance"
        path = f"{folder}/{name.replace('.', '/')}"
        return next((one for one in (f"{path}.py", f"{path}/__init__.py") if one in self.tree.files), None)

    def _properties(self, _: int) -> Section:
        return Section(major=9 if self.device == "h100" else 10, name=f"NVIDIA {self.device.upper()}")

    def create_module(self, spec: Any) -> Any:
        """Return a mock, or None for a file of the repository."""
        return None if spec.name in self.paths else StandInModule(spec.name)

    def exec_module(self, module: Any) -> None:
        """Execute a file of the repository, or complete a mock."""
        name = module.__name__
        if name in self.paths:
            path = self.paths[name]
            module.__file__ = f"/{path}"
            exec(compile(self.tree.read(path), path, "exec"), vars(module))
        elif name == "torch":
            module.cuda = Section(get_device_properties=self._properties)
        elif name == "megatron.bridge":
            vars(module).update(AutoBridge=Bridge)
        elif name == "megatron.bridge.training.config":
            vars(module).update(ConfigContainer=Container, OptimizerConfig=OptimizerConfig)


@contextmanager
def importing(tree: Tree) -> Iterator[Finder]:
    """Let imports find the recipes of a repository within the block."""
    finder, known = Finder(tree), set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        yield finder
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - known:
            del sys.modules[name]


def flat_recipes(tree: Tree, finder: Finder) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield (name parts, configuration) for the functions of `perf_recipes` (from 26.08 on)."""
    pattern = re.compile(
        r"(?P<model>\w+?)_pretrain_(?P<gpus>\d+)gpu_(?P<device>[a-z]+\d+)_(?P<precision>bf16|fp8cs|fp8mx|fp8sc|nvfp4)"
        r"(?:_(?P<variant>\w+))?_config"
    )
    for path in sorted(one for one in tree.files if re.search(r"bridge/perf_recipes/\w+/\w+/\w+\.py$", one)):
        if path.endswith("__init__.py") or path.split("/")[-3] in DIFFUSION:
            continue
        module = importlib.import_module(path.removeprefix("src/").removesuffix(".py").replace("/", "."))
        for name, function in vars(module).items():
            found = pattern.fullmatch(name)
            if found is None or getattr(function, "__module__", "") != module.__name__:
                continue
            finder.device = found["device"]
            config = function()
            if found["precision"] == "bf16" and config.optimizer.optimizer == "adam":  # run_script.py
                vars(config.optimizer)["use_precision_aware_optimizer"] = True
            parts = found.groupdict() | {"gpus": int(found["gpus"]), "path": path, "function": name}
            yield parts, config


def variant_recipes(tree: Tree, finder: Finder) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield (name parts, configuration) for each variant in `scripts/performance/configs` (26.02 to 26.06)."""
    utils, overrides = importlib.import_module("utils.utils"), importlib.import_module("utils.overrides")
    pattern = re.compile(
        r"(?P<model>\w+?)_PRETRAIN_CONFIG_(?P<device>[A-Z]+\d+)_(?P<precision>BF16|FP8_CS|FP8_MX|FP8_SC|NVFP4)"
        r"(?:_(?P<variant>\w+))?"
    )
    families = {
        one.split("/")[3] for one in tree.files if one.startswith("scripts/performance/configs/")
    } - DIFFUSION
    for family in sorted(families):
        module = importlib.import_module(f"configs.{family}")
        for name, sizes in vars(module).items():
            found = pattern.fullmatch(name)
            if found is None or not isinstance(sizes, utils.WorkloadBaseConfig):
                continue
            parts = {key: value and value.lower() for key, value in found.groupdict().items()}
            model, device, precision = (parts[key] for key in ("model", "device", "precision"))
            function = getattr(module, f"{model}_pretrain_config_{device}", None)
            if function is None:
                continue
            finder.device = device
            variant = parts["variant"] or "v1"
            config = function(precision=precision, mock=True, config_variant=variant)
            config = overrides.set_post_overrides(
                config, family, model, device, sizes.num_gpus, precision, "pretrain", config_variant=variant
            )
            yield (
                parts | {"gpus": sizes.num_gpus, "path": finder.paths[function.__module__], "function": name},
                config,
            )


def base_recipes(tree: Tree, finder: Finder) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield (name parts, configuration) for each size in `scripts/performance/configs` (25.11)."""
    utils, helpers = importlib.import_module("utils.utils"), importlib.import_module("utils.helpers")
    pattern = re.compile(
        r"(?P<size>\w+?)_(?P<device>[A-Z]+\d+)_(?P<precision>BF16|FP8_CS|FP8_MX|FP8_SC|NVFP4)_BASE_CONFIG"
    )
    families = {
        one.split("/")[3] for one in tree.files if one.startswith("scripts/performance/configs/")
    } - DIFFUSION
    for family in sorted(families):
        module = importlib.import_module(f"configs.{family}.workload_base_configs")
        for name, sizes in vars(module).items():
            found = pattern.fullmatch(name)
            if found is None or not isinstance(sizes, utils.WorkloadBaseConfig):
                continue
            parts = {key: value.lower() for key, value in found.groupdict().items()}
            size = parts["size"].removeprefix(f"{family}_")
            finder.device = parts["device"]
            names = {
                "model_name": family, "model_size": size, "gpu": parts["device"], "num_gpus": sizes.num_gpus,
                "compute_dtype": parts["precision"], "domain": "llm", "task": "pretrain",
            }  # fmt: skip
            try:
                config = helpers.get_model_recipe_with_user_overrides(**names)
            except ValueError:  # sizes without a recipe function
                continue
            path = f"scripts/performance/configs/{family}/{family}_llm_pretrain.py"
            parts |= {"model": parts.pop("size"), "variant": None, "gpus": sizes.num_gpus}
            yield parts | {"path": path, "function": name}, config


def matrix_recipes(tree: Tree, finder: Finder) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield (name parts, configuration) for each entry of `perf_matrix` in `scripts/performance/configs` (25.09).

    The launcher itself, `run_script.py`, is executed for each entry.
    """
    launcher, helpers = importlib.import_module("run_script"), importlib.import_module("utils.helpers")
    drop_tokens, started = launcher.apply_moe_token_drop, list[Any]()
    omega_conf = Section(
        is_dict=lambda value: isinstance(value, dict), create=lambda value: value, load=_read_yaml,
        merge=lambda values, others: {**values, **others}, to_container=lambda value, **_: value,
    )  # fmt: skip
    vars(helpers).update(OmegaConf=omega_conf)
    vars(launcher).update(
        OmegaConf=omega_conf, pretrain=lambda config, **_: started.append(config),
        create_omegaconf_dict_config=lambda _: ({}, {}),
        apply_overrides=lambda config, values, _: _override(config, values),
        apply_moe_token_drop=lambda model: drop_tokens(_with_provider_defaults(model)),
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        tree.unpack(Path(folder), "scripts/performance/configs")
        for path in sorted(one for one in tree.files if re.search("performance/configs/.*_llm_pretrain.yaml", one)):
            model = Path(path).name.removesuffix("_llm_pretrain.yaml")
            for device, sizes in _read_yaml(Path(folder) / path)["perf_matrix"].items():
                for size, entries in sizes.items():
                    for precision in sorted(entries.keys() - {"common", "fp8_ds"}):  # delayed scaling has no name
                        finder.device, gpus = device, int(size.removeprefix("num_gpus_"))
                        dtype, _, scaling = precision.partition("_")
                        name, _, model_size = model.partition("_")
                        arguments = Section(
                            model_name=name, model_size=model_size, gpu=device, num_gpus=gpus, compute_dtype=dtype,
                            fp8_recipe=scaling, config_file=Path(folder) / path,
                        )  # fmt: skip
                        vars(launcher).update(parse_cli_args=lambda arguments=arguments: (arguments, []))
                        launcher.main()
                        config = started.pop()
                        vars(config.model).setdefault("seq_length", config.dataset.sequence_length)
                        parts = {"model": model, "device": device, "precision": precision.replace("ss", "sc")}
                        yield parts | {"variant": None, "gpus": gpus, "path": path}, config


def _with_provider_defaults(model: Section) -> Section:
    """Set the fields that `apply_moe_token_drop` checks to their values in models/*_provider.py."""
    vars(model).update(moe_token_dispatcher_type="alltoall", moe_router_load_balancing_type="aux_loss")
    return model


def _read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def _override(section: Section, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            _override(getattr(section, name) or Section(), value)
        else:
            vars(section)[name] = value


SECTIONS = ("model", "train", "optimizer", "ddp")
DEFAULTS: dict[str, Any] = {
    "apply_rope_fusion": True, "bias_activation_fusion": True, "bias_dropout_fusion": True, "cp_comm_type": "p2p",
    "cross_entropy_loss_fusion": True, "gradient_accumulation_fusion": True, "grad_reduce_in_fp32": True,
    "masked_softmax_fusion": True, "moe_grouped_gemm": True, "moe_permute_fusion": True, "optimizer": "adam",
    "overlap_p2p_comm": True, "persist_layer_norm": True, "transformer_impl": "transformer_engine",
    "tp_comm_overlap": None, "exp_avg_dtype": "float32", "exp_avg_sq_dtype": "float32",
    "main_grads_dtype": "float32", "main_params_dtype": "float32", "attention_backend": "auto",
    **dict.fromkeys(
        ("context_parallel_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
         "expert_model_parallel_size", "num_distributed_optimizer_instances"), 1,
    ),
}  # fmt: skip
"""Default values that are left out of the table. For names not listed here, the default is False."""

LEFT_OUT = {
    "apply_wd_to_qk_layernorm", "average_in_collective", "cuda_graph_warmup_steps", "fp16", "fp4_param",
    "fp4_recipe", "fp8_param", "fp8_wgrad", "init_model_with_meta_device", "lion_beta1", "lion_beta2",
    "fsdp_manual_registration", "moe_a2a_overlap", "pipeline_dtype", "tp_comm_bootstrap_backend",
    "use_te_rng_tracker",
}  # fmt: skip
"""Settings that change neither the time nor the memory of a step, or that repeat another setting."""

OF_MODELS = re.compile(
    r"activation_func|csa_.*|dsa_.*|ffn_hidden_size|fused_single_qkv_rope|hf_.*|hidden_size|hybrid_layer_pattern|"
    r"is_hybrid_model|keep_mtp_spec_in_bf16|kv_channels|mamba_.*|moe_ffn_hidden_size|moe_router_enable_expert_bias|moe_router_topk|"
    r"moe_shared_expert_intermediate_size|mtp_hybrid_override_pattern|num_attention_heads|num_layers|"
    r"num_moe_experts|num_query_groups|position_embedding_type|use_fused_weighted_squared_relu|vocab_size"
)
"""Settings of the model's sizes, which the model's name implies."""

OF_EXPERTS = re.compile(r"moe_.*|expert_.*|.*_moe_.*")


def settings_of(config: Any, model: str) -> dict[str, Any]:
    """Return the settings, by Megatron-Core's names, that change time or memory and are not defaults."""
    flat: dict[str, Any] = {}
    for section in SECTIONS:
        for name, value in vars(getattr(config, section)).items():
            flat.setdefault(name, value)
    flat["grad_reduce_in_fp32"] = config.ddp.grad_reduce_in_fp32
    flat |= _of_precision(config.mixed_precision) | _of_overlap(config.comm_overlap, flat)
    is_captured = flat.get("external_cuda_graph") or flat.get("enable_cuda_graph")
    if flat.get("cuda_graph_impl") in (None, "none") and not is_captured:
        flat = {name: value for name, value in flat.items() if not name.startswith("cuda_graph")}
    if not flat.get("use_megatron_fsdp"):
        flat.pop("data_parallel_sharding_strategy", None)
    if not flat.get("cpu_offloading"):
        flat.pop("cpu_offloading_num_layers", None)
    if flat.get("recompute_modules") == []:  # nothing; Megatron-Core's default for None is core_attn
        flat.pop("recompute_granularity", None)
    if not flat.get("first_last_layers_bf16"):
        flat = {name: value for name, value in flat.items() if not name.endswith("_in_bf16")}
    if flat.get("moe_token_dispatcher_type") != "flex":
        flat = {name: value for name, value in flat.items() if not re.match("moe_(flex|hybridep|deepep)_", name)}
    if (flat.get("context_parallel_size") or 1) == 1:
        flat.pop("cp_comm_type", None)
    further = flat.pop("mtp_num_layers", None) or 0
    if further != (len(read_model(model).mtp) if model in NAMES else 0):
        flat["mtp_num_layers"] = further
    is_dense = model in NAMES and not read_model(model).has_experts
    found = {}
    for name, value in flat.items():
        value = plain(name, value)
        is_default = value in (None, [], "", "none") or value == DEFAULTS.get(name, False)
        if is_default and not (name == "mtp_num_layers" and value == 0):
            continue
        if name in LEFT_OUT or OF_MODELS.fullmatch(name) or name.startswith("_"):
            continue
        if (name not in READ and not effect_of(name)) or (is_dense and OF_EXPERTS.fullmatch(name)):
            continue
        found[name] = value
    return found


READ = {"bf16", "data_parallel_sharding_strategy", "mtp_num_layers", "seq_length"}
"""Settings that ppsim reads, although `effect_of` returns no effect for them."""


def _of_precision(precision: Any) -> dict[str, Any]:
    """Return the settings of the number format, which override settings of model, optimizer and gradients."""
    if isinstance(precision, str):  # as training/config.py does
        module = sys.modules["megatron.bridge.training.mixed_precision"]
        precision = getattr(module, precision.replace("-", "_"))()
    found = {name: value for name, value in vars(precision).items() if value is not None}
    for format_ in ("fp8", "fp4"):
        if not found.get(format_):
            found = {name: value for name, value in found.items() if not name.startswith(f"{format_}_")}
    return found


def _of_overlap(overlap: Any, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for overlap as `CommOverlapConfig.setup` (training/comm_overlap.py) computes them."""
    if overlap is None:
        return {}
    found = {name: value for name, value in vars(overlap).items() if value is not None}
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        found.setdefault(name, True)
    if (flat.get("tensor_model_parallel_size") or 1) < 2:
        found["tp_comm_overlap"] = None
    elif not flat.get("sequence_parallel"):
        found["tp_comm_overlap"] = False
    return {name: value for name, value in found.items() if name != "tp_comm_overlap_cfg"}


def plain(name: str, value: Any) -> Any:
    """Convert a value to JSON; None for values that JSON cannot represent."""
    if name == "pipeline_model_parallel_layout" and isinstance(value, list):
        short = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
        return "|".join("".join(short[part] for part in stage) for stage in value)
    if isinstance(value, list | tuple):
        return [plain(name, one) for one in value]
    if isinstance(value, StandIn):
        return value.name
    return value if isinstance(value, bool | int | float | str) else None


@dataclass
class Extracted:
    """A recipe of a release: its name without the release, the settings, and its file."""

    name: str
    gpus: int | None
    settings: dict[str, Any]
    path: str


def model_of(parts: Mapping[str, Any]) -> str:
    """Return the model's name in ppsim, or else in Megatron-Bridge."""
    told = str(parts["model"]).replace("_", "-")
    return known_name(told) or told


def bridge_recipes(tree: Tree) -> list[Extracted]:
    """Return the recipes of Megatron-Bridge at a tag."""
    read = flat_recipes if any("/perf_recipes/" in one for one in tree.files) else variant_recipes
    if not any(one.endswith("performance/utils/overrides.py") for one in tree.files):
        read = base_recipes
    if "scripts/performance/utils/utils.py" not in tree.files:
        read = matrix_recipes
    with importing(tree) as finder:
        found = [(parts, settings_of(config, model_of(parts))) for parts, config in read(tree, finder)]
    variants: dict[tuple[str, str, str], set[str]] = {}
    sizes: dict[tuple[str, str, str, str | None], set[int]] = {}
    for parts, _ in found:
        key = parts["model"], parts["device"], parts["precision"]
        variants.setdefault(key, set()).add(parts["variant"])
        sizes.setdefault((*key, parts["variant"]), set()).add(parts["gpus"])
    extracted = []
    for parts, settings in found:
        key = parts["model"], parts["device"], parts["precision"]
        variant = parts["variant"]
        default = "v2" if "v2" in variants[key] else "v1"  # the launcher's default
        names = [model_of(parts), parts["device"], PRECISIONS[re.sub("^fp8_?", "fp8_", parts["precision"])]]
        if variant not in (None, default):
            names.append(variant.replace("_", "-"))
        if len(sizes[*key, variant]) > 1:
            names.append(f"{parts['gpus']}gpu")
        extracted.append(Extracted("/".join(names), parts["gpus"], settings, parts["path"]))
    return extracted


def table_of(repositories: Mapping[str, Path | None]) -> dict[str, Any]:
    """Return the table of all recipes; settings, plans (sets of settings) and files are stored once, by index.

    Consecutive releases with the same recipe share an entry: [first, last, GPUs, plan, file]. The most frequent
    settings have the smallest indices.
    """
    plans: dict[tuple[str, ...], int] = {}
    files: dict[str, int] = {}
    trainers: dict[str, Any] = {}
    for trainer, repository in repositories.items():
        url, tags, recipes_of = TRAINERS[trainer]
        releases, recipes = {}, dict[str, list[list[int | None]]]()
        for number, (release, tag) in enumerate(tags.items()):
            tree = None if repository is None else Tree(repository, tag)
            releases[release] = [tag, tree.commit if tree else ""]
            for one in recipes_of(tree) if tree else recipes_of():
                plan = tuple(json.dumps([name, value]) for name, value in sorted(one.settings.items()))
                entry = [one.gpus, plans.setdefault(plan, len(plans)), files.setdefault(one.path, len(files))]
                entries = recipes.setdefault(one.name, [])
                if entries and entries[-1][1:] == [number - 1, *entry]:
                    entries[-1][1] = number
                else:
                    entries.append([number, number, *entry])
        trainers[trainer] = {"repository": url, "releases": releases, "recipes": dict(sorted(recipes.items()))}
    settings = [setting for setting, _ in Counter(one for plan in plans for one in plan).most_common()]
    numbers = {setting: number for number, setting in enumerate(settings)}
    return {
        "settings": [json.loads(setting) for setting in settings],
        "plans": [sorted(numbers[setting] for setting in plan) for plan in plans],
        "files": list(files),
        "trainers": trainers,
    }


PRIMUS_TAGS = {"26.2": "v26.2", "26.3": "v26.3", "26.4": "v26.4.0", "26.5": "v26.5.1"}
"""Releases of Primus, and the tag of each."""

FORMATS = {
    "bfloat16": "bf16", "float8": "fp8", "float8-row": "fp8-row", "float8-block": "fp8-block", "mxfp8": "mxfp8",
    "mxfp4": "mxfp4", "nvfp4": "nvfp4", "float16": "fp16", "float32": "fp32",
}  # fmt: skip
"""Number formats of ppsim, with their names in recipes."""


class Recorded(Arguments):
    """Arguments that stay accessible after a reader has used them."""

    last: ClassVar[Any] = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        Recorded.last = self

    def settings(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that were read or matter, without defaults."""
        values, read = self._values, self._read
        ignored = {one.name for one in self.ignored}
        names = {name for name in values if name in read or name in ignored}
        missing = {name: None for name in defaults if name not in values}
        return missing | {
            name: plain(name, value)
            for name, value in values.items()
            if name in names and value != defaults.get(name)
        }


def primus_recipes(tree: Tree) -> list[Extracted]:
    """Return the experiments of Primus at a tag that train a language model."""
    for module in (read_primus, read_torchtitan):
        vars(module)["Arguments"] = Recorded
    defaults = read_toml(TABLE.parent / "primus.toml")["defaults"]
    found = []
    with TemporaryDirectory() as folder:
        tree.unpack(Path(folder), "examples", "primus/configs")
        for path in sorted(one for one in tree.files if re.fullmatch(PRIMUS, one)):
            parts = re.fullmatch(PRIMUS, path)
            assert parts is not None
            try:
                config = read_run_config(Path(folder) / path)
            except ConfigError as error:
                print(f"{tree.tag}: {str(error).removeprefix(folder)}", file=sys.stderr)
                continue
            is_torchtitan = parts["framework"] == "torchtitan"
            settings = Recorded.last.settings({} if is_torchtitan else defaults)
            names = [known_model(parts["model"]), parts["device"].lower(), FORMATS[config.options["dtype"]]]
            variant = [
                one
                for one in re.split("[-_]", parts["rest"].lower())
                if one not in ("pretrain", "", *FORMATS.values())
            ]
            names += ["torchtitan"] * is_torchtitan + ["-".join(variant)] * bool(variant)
            one = Extracted("/".join(names), config.options.get("gpus"), settings, path)
            found.append((one, parts["model"].lower().replace("_", "-")))
    return _told_apart(found)


def _told_apart(found: list[tuple[Extracted, str]]) -> list[Extracted]:
    """Add the trainer's model name as a variant to recipes with equal names."""
    count = Counter(one.name for one, _ in found)
    return [
        replace(one, name=f"{one.name}/{told}")
        if count[one.name] > 1 and not one.name.startswith(f"{told}/")
        else one
        for one, told in found
    ]


PRIMUS = (
    r"examples/(?P<framework>megatron|torchtitan)/configs/(?P<device>MI\d+X)/"
    r"(?P<model>(?:(?!-(?:BF16|FP8|MXFP|pretrain)).)+)(?P<rest>-.*pretrain.*)\.yaml"
)
"""Paths of experiments that train a complete model."""


def known_model(name: str) -> str:
    """Return the model's name in ppsim, or else the trainer's in lower case."""
    told = name.lower().replace("_", "-")
    return known_name(told) or told


TORCHTITAN_TAGS = {"0.3.0": "0.3.0"}
"""The release of TorchTitan whose registry ppsim contains (scripts/make_torchtitan_registry.py)."""


def torchtitan_recipes() -> list[Extracted]:
    """Return the entries of TorchTitan's registry that are not tests."""
    found = []
    for name, module in registry().modules.items():
        for entry, options in module.entries.items():
            is_test = "debug" in entry or "debug" in options["model.flavor"]
            if is_test or "sft" in entry or module.trains_on_images:
                continue
            settings = {"module": name, "config": entry}
            config = from_torchtitan(settings, entry)
            model = known_model(f"{name}-{options['model.flavor']}")
            rest = re.sub("[._-]", "", entry.lower()).removeprefix(
                re.sub("[._-]", "", f"{name}{options['model.flavor']}".lower())
            )
            variant = [rest] if rest and rest not in FORMATS else []
            names = [model, "any", FORMATS[config.options["dtype"]], *variant]
            found.append(Extracted("/".join(names), None, settings, module.source))
    return found


TRAINERS = {
    "megatron-bridge": ("https://github.com/NVIDIA-NeMo/Megatron-Bridge", BRIDGE_TAGS, bridge_recipes),
    "primus": ("https://github.com/AMD-AGI/Primus", PRIMUS_TAGS, primus_recipes),
    "torchtitan": ("https://github.com/pytorch/torchtitan", TORCHTITAN_TAGS, torchtitan_recipes),
}


def as_text(table: Mapping[str, Any]) -> str:
    """Return the table as JSON with one line per entry."""
    dense = partial(json.dumps, separators=(",", ":"))
    parts = [f'"{key}": [\n' + ",\n".join(map(dense, table[key])) + "\n]" for key in ("settings", "plans", "files")]
    trainers = []
    for name, one in table["trainers"].items():
        recipes = ",\n".join(f"{dense(key)}:{dense(value)}" for key, value in one["recipes"].items())
        head = {key: value for key, value in one.items() if key != "recipes"}
        trainers.append(f'"{name}": {{{dense(head)[1:-1]},"recipes":{{\n{recipes}\n}}}}')
    parts.append('"trainers": {\n' + ",\n".join(trainers) + "\n}")
    return "{" + ",\n".join(parts) + "}\n"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron-bridge", type=Path, required=True, metavar="DIR")
    parser.add_argument("--primus", type=Path, required=True, metavar="DIR")
    found = parser.parse_args()
    folders = {"megatron-bridge": found.megatron_bridge, "primus": found.primus, "torchtitan": None}
    write_atomically(TABLE, as_text(table_of(folders)))


if __name__ == "__main__":
    main()
