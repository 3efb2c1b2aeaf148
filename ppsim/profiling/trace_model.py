"""Trace a model of any architecture in transformers, from its config.json alone, on meta tensors."""

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.limits import MOST_LAYERS
from ppsim.model.config import model_from
from ppsim.model.mixers.traced import TRACED
from ppsim.profiling.trace_layers import (
    ENCODERS,
    TracedLayer,
    encoder_parameters,
    kinds_of,
    outside_of,
    router_biases,
)
from ppsim.profiling.trace_recorder import ATTENTION, STAND_INS, ForwardRecorder, attend, experts, recording

TOKENS = 256
"""Tokens of the traced sequence: a multiple of the usual chunks. Only stored GEMMs without weights depend on it."""

_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
_INDICES = frozenset(("layer_idx", "layer_id", "layer_number", "layer_index", "index", "idx", "block_idx"))
_MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers", "num_mtp_modules")


class NotTraced(ConfigError):
    """A model with an operator that ppsim cannot express; the message names the module."""


def trace(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the model of a config.json in the form that `ppsim.model.mixers.traced` reads.

    Mixers are lists of GEMMs, attention calls and tensors. Raises `ConfigError` for a configuration that
    transformers refuses, or an operator that ppsim cannot express.
    """
    import transformers

    kind = str(data.get("model_type"))
    config, full_config, notes = _config(data, where)
    try:
        with _quiet():
            model, found = _built_and_recorded(config, full_config, where)
            described = _described(model, config, found, where)
    except ConfigError:
        raise
    except Exception as error:  # anything may go wrong inside a model's own code
        sentence = _one_line(error)
        sentence = sentence if "module " in sentence else f"module of type {full_config.model_type}: {sentence}"
        raise NotTraced(f"{where}: model_type {kind} was not traced: {sentence}") from error
    plan, ignored = (
        described.pop("plan"),
        sum(parameter.numel() for parameter in encoder_parameters(model, found.recorder)),
    )
    if ignored:
        notes = [f"text model only, encoder of {ignored / 1e9:.1f} B parameters ignored"]
    described["assumptions"] = [
        f"model_type {kind}: traced with transformers {transformers.__version__}",
        *notes,
        f"tensor parallelism of the traced layers: {plan}",
        *described.pop("notes"),
        *_unseen(config, found.recorder),
    ]
    described["traced"] = {"model_type": kind, "transformers": transformers.__version__}
    source = f"a trace of {kind} in transformers {transformers.__version__}"
    made = {"model_type": TRACED, "source": source} | described
    counted = model_from(made, where).parameters
    built = sum(one.numel() for one in (*model.parameters(), *dict(router_biases(model)).values()))
    built -= ignored
    if counted != built:
        raise NotTraced(
            f"{where}: module {found.path} and the others of the trace have {counted:,} parameters, and "
            f"transformers builds {built:,}"
        )
    return made


def _one_line(error: Exception) -> str:
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}{': ' if text else ''}{text[:200]}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    import warnings

    import transformers

    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(before)


def is_known(kind: str) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return kind in CONFIG_MAPPING_NAMES


def _config(data: Mapping[str, Any], where: str) -> tuple[Any, Any, list[str]]:
    """Return the configuration of the text model, the whole configuration, and assumptions about omitted parts."""
    from transformers import AutoConfig

    fields = {
        name: value for name, value in data.items() if name not in ("model_type", "quantization_config", "auto_map")
    }
    for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers"):
        if isinstance(number := fields.get(name), int) and number > MOST_LAYERS:
            raise ConfigError(f"{where}: {name} must be at most {MOST_LAYERS:,}: got {number}")
    try:
        with _quiet():
            full_config = AutoConfig.for_model(str(data["model_type"]), **fields)
            text = full_config.get_text_config(decoder=True)
    except Exception as error:  # a configuration class checks its fields with errors of its own
        raise ConfigError(f"{where}: transformers refuses the configuration: {_one_line(error)}") from error
    has_encoder = getattr(full_config, "is_encoder_decoder", False) is True
    others = ("ForConditionalGeneration",) if has_encoder else ("ForMaskedLM", "ForPreTraining")
    architectures = fields.get("architectures")
    for one in architectures if isinstance(architectures, list) else ():
        if str(one).endswith(others):
            raise ConfigError(
                f"{where}: model_type {full_config.model_type} is not a decoder: architectures has {one}"
            )
    if getattr(text, "is_encoder_decoder", False) is True:
        text.is_encoder_decoder = False
    notes = []
    encoders = [name for name in ("vision_config", "audio_config") if getattr(full_config, name, None) is not None]
    if text is not full_config:
        parts = " and ".join(name.removesuffix("_config") for name in encoders)
        notes.append(f"text model only{f', {parts} encoder ignored' if parts else ''}")
    for name in list(vars(text)):
        if name.endswith(("dropout", "pdrop", "dropout_prob", "layerdrop")) and isinstance(
            getattr(text, name), float
        ):
            setattr(text, name, 0.0)
    with contextlib.suppress(Exception):
        text.use_cache = False
    if hasattr(text, "is_decoder"):
        if not text.is_decoder and not getattr(full_config, "is_encoder_decoder", False):
            notes.append("traced as a decoder (is_decoder true), unlike the configuration")
        text.is_decoder = True
    return text, full_config, notes


def _model(config: Any, full_config: Any, where: str, dtype: Any) -> Any:
    import torch
    from transformers import PreTrainedConfig
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    )

    causal = [one for one in (config, full_config) if type(one) in MODEL_FOR_CAUSAL_LM_MAPPING]
    mapping = MODEL_FOR_CAUSAL_LM_MAPPING
    if not causal and config is not full_config and type(full_config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        causal, config, mapping = [full_config], full_config, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if not causal:
        raise ConfigError(
            f"{where}: model_type {full_config.model_type} is not a decoder: "
            "transformers has no causal language model of this type"
        )
    assert isinstance(config, PreTrainedConfig)
    architecture = mapping[type(causal[0])]
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)
    with torch.device("meta"):
        try:
            model = architecture._from_config(config, attn_implementation=ATTENTION, dtype=dtype)
        except (ValueError, KeyError, TypeError, ImportError):
            config._attn_implementation = "eager"
            model = architecture._from_config(config, attn_implementation="eager", dtype=dtype)
    model.train()
    for module in model.modules():
        if not hasattr(module, "config"):
            module.ppsim_config = config
        name, down = type(module).__name__, getattr(module, "down_proj", None)
        is_one_gemm = hasattr(module, "gate_up_proj") or not hasattr(module, "gate_proj")
        if name.endswith("Experts") and is_one_gemm and getattr(down, "ndim", 0) == 3:
            module.forward = experts.__get__(module)
    return model


@contextlib.contextmanager
def _stand_ins(model: Any) -> Iterator[None]:
    """Replace the functions that loop over tokens in the modeling files of a model."""
    files = {type(module).__module__ for module in model.modules()}
    before = []
    for file in sorted(files):
        for name, made in STAND_INS.items():
            if file.startswith("transformers.") and hasattr(sys.modules[file], name):
                before.append((sys.modules[file], name, getattr(sys.modules[file], name)))
                setattr(sys.modules[file], name, made)
    try:
        yield
    finally:
        for file_module, name, function in before:
            setattr(file_module, name, function)


def layers_in(model: Any, where: str) -> tuple[str, list[Any]]:
    import torch

    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) > 0
    }
    of_text = {name: one for name, one in lists.items() if not any(word in name for word in ENCODERS)}
    lists = of_text or lists
    if not lists:
        raise NotTraced(f"{where}: module {type(model).__name__} has no list of layers")
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists if other != name)]
    found = max(outer, key=lambda name: sum(parameter.numel() for parameter in lists[name].parameters()))
    return found, list(lists[found])


def _signature(layer: Any) -> str:
    parts = []
    for name, module in layer.named_modules():
        shapes = {
            key: tuple(parameter.shape) for key, parameter in module._parameters.items() if parameter is not None
        }
        plain = {
            key: value
            for key, value in vars(module).items()
            if isinstance(value, int | float | str | None) and key not in _INDICES and not key.startswith("_")
        }
        parts.append(f"{name} {type(module).__name__} {shapes} {plain}")
    return "\n".join(parts)


def _first_of_kind(layers: list[Any]) -> list[int]:
    first: dict[str, int] = {}
    return [first.setdefault(_signature(layer), number) for number, layer in enumerate(layers)]


class RecordedModel:
    """A recorded model, and any error of the backward."""

    def __init__(self, recorder: ForwardRecorder, path: str, kinds: list[int], why_no_backward: str) -> None:
        self.recorder, self.path, self.kinds, self.why_no_backward = recorder, path, kinds, why_no_backward


def _built_and_recorded(config: Any, full_config: Any, where: str) -> tuple[Any, RecordedModel]:
    """Run the model in 16 bits, or in float32 if its code needs it."""
    import torch

    model = _model(config, full_config, where, torch.bfloat16)
    try:
        return model, _recorded(model, where)
    except RuntimeError as error:
        if "scalar type" not in str(error) and "dtype" not in str(error):
            raise
    model = _model(config, full_config, where, torch.float32)
    return model, _recorded(model, where)


def _recorded(model: Any, where: str) -> RecordedModel:
    """Run one layer of each kind; if that fails, all layers; if that fails too, all layers with a mask."""
    path, layers = layers_in(model, where)
    kinds, failure = _first_of_kind(layers), None
    for skips, masked in ((True, False), (False, False), (False, True)):
        with contextlib.ExitStack() as stack:
            if skips:
                stack.enter_context(_skipped(layers, kinds))
            if masked:
                stack.enter_context(_masks())
            try:
                recorder, why = _run(model)
            except Exception as error:  # the next attempt may work
                failure = failure or error
                continue
        return RecordedModel(recorder, path, kinds, why)
    assert failure is not None
    raise failure


def _run(model: Any) -> tuple[ForwardRecorder, str]:
    import torch

    recorder = ForwardRecorder(model)
    ids = torch.empty(1, TOKENS, dtype=torch.long, device="meta")
    with _stand_ins(model), recording(recorder, model):
        try:
            with torch.autograd.graph.saved_tensors_hooks(recorder.pack, lambda tensor: tensor):
                logits = model(input_ids=ids, use_cache=False).logits
        except Exception as error:
            error.args = (f"module {recorder.failed_in or 'of the model'}: {_one_line(error)}",)
            raise
        recorder.backward, why = True, ""
        try:
            logits.backward(torch.empty_like(logits))
        except Exception as error:  # the forward already gave parameters and saved tensors
            why = _one_line(error)
    return recorder, why


@contextlib.contextmanager
def _skipped(layers: list[Any], kinds: list[int]) -> Iterator[None]:
    """Run only the first layer of each kind; the others pass their input through."""
    given: dict[int, Any] = {}
    handles = []
    for number, (layer, first) in enumerate(zip(layers, kinds, strict=True)):
        if number == first:
            handles.append(
                layer.register_forward_hook(lambda _, a, out, number=number: given.__setitem__(number, out))
            )
            continue

        def passed(*arguments: Any, first: int = first, **keywords: Any) -> Any:
            hidden = arguments[0] if arguments else keywords["hidden_states"]
            out = given[first]
            return (hidden, *out[1:]) if isinstance(out, tuple) else hidden

        layer.forward = passed
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for number, layer in enumerate(layers):
            if kinds[number] != number:
                del layer.forward


@contextlib.contextmanager
def _masks() -> Iterator[None]:
    """Give attention a mask, for models that index it."""
    import torch
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    def mask(*arguments: Any, **keywords: Any) -> Any:
        return torch.empty(1, 1, TOKENS, TOKENS, dtype=torch.bfloat16, device="meta")

    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, mask)
    try:
        yield
    finally:
        mapping = ALL_MASK_ATTENTION_FUNCTIONS
        for store in (getattr(mapping, "_local_mapping", {}), getattr(mapping, "_global_mapping", {})):
            store.pop(ATTENTION, None)


def _described(model: Any, config: Any, found: RecordedModel, where: str) -> dict[str, Any]:
    plan = {
        name: how
        for name, how in (getattr(type(config), "base_model_tp_plan", None) or {}).items()
        if isinstance(how, str) and found.path.rsplit(".", 1)[-1] in name.split(".")
    }
    _, layers = layers_in(model, where)
    numbers = sorted(set(found.kinds))
    traced = {
        number: TracedLayer(found.recorder, layers[number], f"{found.path}.{number}", plan, TOKENS, where)
        for number in numbers
    }
    described = kinds_of(traced, found.kinds)
    around = outside_of(model, found.recorder, found.path, layers, described, where)
    length = next(
        (value for name in _LENGTHS if isinstance(value := getattr(config, name, None), int) and value > 0), 4096
    )
    notes = list(dict.fromkeys(note for layer in traced.values() for note in layer.notes))
    if found.why_no_backward:
        notes.append(
            f"the backward was not traced ({found.why_no_backward}): saved tensors are those of the forward"
        )
    if found.recorder.decisions:
        notes.append(
            f"decisions by data in {', '.join(list(found.recorder.decisions)[:2])} were traced for zeros and False"
        )
    return described | around | {
        "max_position_embeddings": length,
        "plan": _plan_in_words(bool(plan), [name for one in traced.values() for name in one.by_rule]),
        "notes": notes,
    }  # fmt: skip


def _plan_in_words(has_plan: bool, by_rule: list[str]) -> str:
    rule = "the usual rule (q, k, v, gate, up by columns; o, down by rows)"
    if not has_plan:
        return f"{rule}, since transformers has no plan"
    names = ", ".join(sorted({name.rsplit(".", 1)[-1] for name in by_rule})[:4])
    return "base_model_tp_plan of transformers" + (f", and {rule} for others: {names}" if names else "")


def _unseen(config: Any, recorder: ForwardRecorder) -> list[str]:
    unseen = []
    for name in _MTP:
        if isinstance(number := getattr(config, name, None), int) and number:
            unseen.append(f"{number} multi-token prediction layer{'s' * (number > 1)} ({name})")
            break
    unseen += ["the type of router", "fused kernels of the trainer", "words of --recompute for single modules"]
    has_choice = any("num_blocks" in event.sizes for event in recorder.events)
    if isinstance(chosen := getattr(config, "index_topk", None), int) and not has_choice:
        unseen.append(f"the choice of {chosen} keys per query (index_topk): attention has all keys")
    return [f"not seen in a trace: {', '.join(unseen)}"]
