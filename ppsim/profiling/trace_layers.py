"""Convert the events of a traced layer to the parts that `ppsim.model.mixers.traced` reads."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

from torch import Tensor, nn

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Layer, Norm, norm_parameters
from ppsim.model.attention_and_mlp import FeedForward, MixtureOfExperts, NoFeedForward
from ppsim.model.mixer import Mixer
from ppsim.model.mixers.traced import (
    TracedCore,
    TracedGemm,
    TracedMixer,
    TracedSaved,
    TracedScan,
)
from ppsim.model.recurrent import ChunkProduct, GatedDeltaNet, Mamba
from ppsim.profiling.trace_recorder import ForwardRecorder, TracedOperation, storage

Ffn = FeedForward | MixtureOfExperts

_BY_ROWS = (
    "o_proj",
    "out_proj",
    "down_proj",
    "c_proj",
    "dense_4h_to_h",
    "fc2",
    "fc_out",
    "wo",
    "w2",
    "out_lin",
    "o",
)
_NO_MATRICES = ("conv1d.weight", "A_log", "embedding.weight", "bias")
_SCANS = ("mamba", "delta rule", "selective scan")
_OF_ENCODERS = ("encoder_attn", "cross_attn", "crossattention", "encoder_attention")
_WHOLE = ("q_a_proj", "kv_a_proj_with_mqa", "kv_a_proj", "gate", "router", "compressor", "x_proj")


def router_biases(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the router biases. They are buffers, but ppsim counts them as parameters, as released weights do."""
    return [(name, buffer) for name, buffer in module.named_buffers() if name.endswith("correction_bias")]


def _component(module: str) -> str:
    return module.split(".", 1)[0]


class TracedLayer:
    """A layer with its recorded operations (events), saved tensors and parameters."""

    def __init__(
        self,
        recorder: ForwardRecorder,
        layer: nn.Module,
        path: str,
        plan: Mapping[str, str],
        tokens: int,
        where: str,
    ) -> None:
        self.recorder, self.path, self.plan, self.tokens, self.where = recorder, path, plan, tokens, where
        biases = dict(router_biases(layer))
        self.parameters = {name: tuple(one.shape) for name, one in (*layer.named_parameters(), *biases.items())}
        self.classes = {name: type(one).__name__ for name, one in layer.named_modules()}
        self.total = sum(one.numel() for one in (*layer.parameters(), *biases.values()))
        self.element_bytes = max((parameter.element_size() for parameter in layer.parameters()), default=2)
        given, runs = recorder.inputs.get(path), recorder.order.get(path, 0)
        if given is None or runs != 1:
            raise self.refusal("", f"runs {runs} times in a forward")
        self.hidden, self.source = int(given.shape[-1]), recorder.source(storage(given))
        self.events = [
            replace(one, module=self.inner(one.module)) for one in recorder.events if self.has(one.module)
        ]
        for event in self.events:
            event.weight = self.inner(event.weight) if event.weight else None
        self.kept = {
            number: (self.inner(module), tensor)
            for number, (module, tensor) in recorder.fused().items()
            if self.has(module) and (self.has(recorder.makers.get(number, "")) or number == self.source)
        }
        self.notes: list[str] = []
        self.by_rule: list[str] = []
        self.names: dict[int, str] = {}
        self._join_eager_attention()
        self._require_used()
        scans_and_calls = self.of_kind("attention", "product", "convolution", *_SCANS)
        self.mixers = {_component(operation.module) for operation in scans_and_calls}
        self.ffn, taken = self._feed_forward()
        self.taken = {id(one) for one in taken}
        self.fed = {_component(one.module) for one in taken}

    def has(self, module: str) -> bool:
        return module == self.path or module.startswith(f"{self.path}.")

    def inner(self, module: str) -> str:
        return module[len(self.path) + 1 :]

    def refusal(self, module: str, why: str) -> ConfigError:
        path = f"{self.path}.{module}" if module else self.path
        return ConfigError(f"{self.where}: module {path} {why}, which ppsim cannot express")

    def of_kind(self, *kinds: str) -> list[TracedOperation]:
        return [event for event in self.events if event.kind in kinds]

    @property
    def gemms(self) -> list[TracedOperation]:
        return self.of_kind("gemm")

    def _join_eager_attention(self) -> None:
        """Replace two GEMMs without weights around an s × s softmax by one attention call."""
        s, events, waiting = self.tokens, [], None
        for event in self.events:
            if event.kind != "product":
                events.append(event)
                continue
            if waiting is not None and event.module == waiting.module and event.m == s and event.k == s:
                sizes = {
                    "heads": waiting.count, "kv_heads": waiting.count, "qk": waiting.k, "v": event.n, "keys": s,
                    "window": None, "is_chunked": False, "sinks": False, "is_causal": True,
                }  # fmt: skip
                reads = (*waiting.reads, event.reads[-1])
                events.remove(waiting)
                events.append(
                    TracedOperation("attention", event.module, reads=reads, writes=event.writes, sizes=sizes)
                )
                self.notes.append(
                    "attention that transformers writes as single operators is taken as one fused kernel"
                )
                waiting = None
                continue
            events.append(event)
            if event.shape[-2:] == (s, s):
                waiting = event
        self.events = events

    def _require_used(self) -> None:
        used = {event.weight for event in self.events if event.weight}
        for name, shape in self.parameters.items():
            is_matrix = len(shape) > 1 and min(shape[-2:]) > 1 and math.prod(shape) >= 64 * self.hidden
            if not is_matrix or name in used or name.endswith(_NO_MATRICES):
                continue
            module = name.rpartition(".")[0]
            if any(word in module for word in _OF_ENCODERS) and f"{self.path}.{module}" not in self.recorder.order:
                self.notes.append(f"{module.rpartition('.')[0]} reads an encoder, and does not run without one")
                continue
            raise self.refusal(module, f"has weights {list(shape)} that no traced GEMM multiplies by")

    # The feed-forward part.

    def _feed_forward(self) -> tuple[Ffn, list[TracedOperation]]:
        grouped = self.of_kind("experts")
        if grouped:
            return self._experts(grouped)
        for group in reversed(self._groups()):
            if (found := _dense(group, self.hidden)) is not None:
                return found, group
        return NoFeedForward(), []

    def _groups(self) -> list[list[TracedOperation]]:
        """Group GEMMs outside the mixer by part of the layer.

        The first group has the GEMMs that are alone in their part, if there are several.
        """
        found: list[tuple[str, list[TracedOperation]]] = []
        for gemm in self.gemms:
            part = _component(gemm.module)
            if part in self.mixers or not part:
                continue
            if found and found[-1][0] == part:
                found[-1][1].append(gemm)
            else:
                found.append((part, [gemm]))
        groups = [events for _, events in found]
        singles = [events[0] for events in groups if len(events) == 1]
        return [*([singles] if len(singles) > 1 else []), *groups]

    def _experts(self, grouped: list[TracedOperation]) -> tuple[Ffn, list[TracedOperation]]:
        up, down = grouped[0], grouped[1]
        part = _component(up.module)
        if len(grouped) != 2 or up.count != down.count or up.m != down.m:
            raise self.refusal(up.module, f"has {len(grouped)} grouped GEMMs in one layer")
        size, h, width = down.k, self.hidden, up.k
        if up.n not in (size, 2 * size) or down.n != width:
            raise self.refusal(up.module, f"has experts of {up.k} → {up.n} and {down.k} → {down.n} columns")
        expert = FeedForward(size, gated=up.n == 2 * size, bias=up.biased and down.biased)
        inside = [gemm for gemm in self.gemms if _component(gemm.module) == part]
        outside = [one for one in self.gemms if "shared" in _component(one.module) and one not in inside]
        router = [one for one in (*inside, *self.gemms) if one.k == h and one.n == up.count]
        router = sorted(router, key=lambda one: "shared" in one.module or one.module.endswith("_proj"))[:1]
        if not router:
            raise self.refusal(part, f"has no router of {h} → {up.count} columns")
        gate = [one for one in (*inside, *outside) if one.k == h and one.n == 1 and one not in router]
        latents = [one for one in inside if {one.k, one.n} == {h, width}] if width != h else []
        shared = [
            one for one in (*inside, *outside) if id(one) not in {id(other) for other in (*router, *gate, *latents)}
        ]
        dense = _dense(shared, h) if shared else None
        if shared and (dense is None or dense.gated != expert.gated):
            dense, gate, shared = None, [], []
        pairs = up.m / self.tokens
        if pairs != int(pairs) or not 1 <= pairs <= up.count:
            raise self.refusal(up.module, f"takes {pairs:g} experts per token")
        if latents and len(latents) != 2:
            raise self.refusal(
                up.module, f"has experts of width {up.k} without a projection from {self.hidden} and back"
            )
        places = {_component(up.module), _component(router[0].module)}
        shapes = {shape for name, shape in self.parameters.items() if _component(name) in places}
        experts = MixtureOfExperts(
            expert, up.count, int(pairs), dense.size if dense else 0, router_bias=(up.count,) in shapes,
            shared_gate=bool(gate), latent_size=up.k if latents else None,
        )  # fmt: skip
        return experts, [*router, *gate, *latents, *grouped, *shared]

    # The mixer.

    @property
    def own(self) -> list[TracedOperation]:
        """The events of the token mixer."""
        return [event for event in self.events if id(event) not in self.taken]

    def norms(self) -> list[str]:
        """Return the norms of `hidden` columns that are direct submodules of the layer."""
        found: dict[str, bool] = {}
        for name, kind in self.classes.items():
            own = [shape for key, shape in self.parameters.items() if key.rpartition(".")[0] == name]
            is_norm = name and "." not in name and "norm" in kind.lower()
            if is_norm and all(shape == (self.hidden,) for shape in own):
                found[name] = bool(own)
        return [name for name, has_weights in found.items() if has_weights or not any(found.values())]

    def norm(self) -> Norm:
        names = {key.rpartition(".")[2] for key in self.parameters if key.rpartition(".")[0] in self.norms()}
        return "layernorm" if "bias" in names else "rmsnorm" if names or not self.norms() else "plain"

    def describe(self) -> dict[str, Any]:
        norm = self.norm()
        mixer, num_norms = self._mixer(norm, len(self.norms()))
        self._require_flops(self._layer(mixer, norm, num_norms))
        return {
            "hidden_size": self.hidden, "norm": norm, "num_norms": num_norms,
            "mixer": plain(mixer), "ffn": plain(self.ffn),
        }  # fmt: skip

    def _require_flops(self, layer: Layer) -> None:
        events = self.of_kind("gemm", "experts")
        traced = (
            sum(event.k * event.n * event.m * (event.count if event.kind == "gemm" else 1) for event in events)
            / self.tokens
        )
        if abs(layer.weights_per_token - traced) > 1e-9 * traced:
            raise self.refusal("", f"has {traced:,.0f} multiply-adds per token, not {layer.weights_per_token:,.0f}")

    def _layer(self, mixer: Mixer, norm: Norm, num_norms: int) -> Layer:
        return Layer(self.hidden, mixer, self.ffn, norm, num_norms)

    def split(self, one: TracedOperation, *, ends: bool) -> str | None:
        """Return the side of a weight matrix that tensor parallelism splits: "outputs", "inputs" or None.

        The tensor-parallel plan of transformers decides; without an entry, names and sizes decide. `ends` is True
        if the GEMM reads the output of an attention call.
        """
        for name, how in self.plan.items():
            if _matches(name, one.module):
                return "outputs" if "colwise" in how else "inputs" if "rowwise" in how else None
        self.by_rule.append(one.module)
        last = one.module.rsplit(".", 1)[-1]
        if last in _WHOLE:
            return None
        is_last = last in _BY_ROWS or ends or (one.n == self.hidden and one.k != self.hidden)
        return "inputs" if is_last else "outputs"

    def _mixer(self, norm: Norm, num_norms: int) -> tuple[TracedMixer, int]:
        calls = [event for event in self.own if event.kind == "attention"]
        used: set[int] = {self.source}
        cores = tuple(self._core(one, used) for one in calls)
        outputs = {call.writes: f"call {number} o" for number, call in enumerate(calls)}
        gemms = tuple(self._gemm(one, used, outputs) for one in self.own if one.kind == "gemm")
        scans = tuple(self._scan(one) for one in self.own if one.kind in _SCANS)
        has_indexer = any(core.index_columns for core in cores)  # the indexer's scores are counted with the core
        products = [
            one for one in self.own if one.kind == "product" and not (has_indexer and "indexer" in one.module)
        ]
        if products:
            scans += (self._of_products(products),)
        mixer = TracedMixer(gemms, cores, scans, self._saved(used))
        for number in range(num_norms, -1, -1):  # norms of other widths cannot be recognised by name
            rest = self.total - self._layer(mixer, norm, number).parameters
            if rest >= 0:
                return replace(mixer, norm_weights=rest), number
        raise self.refusal("", f"has {-rest} parameters less than its GEMMs, since a weight is used twice")

    def _columns(self, number: int, used: set[int]) -> float:
        """Return the columns per token of a storage; 0 if it is not saved or was counted before."""
        number = self.recorder.source(number)
        if number in used or number not in self.kept:
            return 0.0
        used.add(number)
        return _columns_of(self.kept[number][1], self.tokens)

    def _core(self, one: TracedOperation, used: set[int]) -> TracedCore:
        used.add(one.writes)
        sizes, (q, k, v) = one.sizes, (self._columns(number, used) for number in one.reads[:3])
        return TracedCore(
            sizes["heads"],
            sizes["kv_heads"],
            sizes["qk"],
            sizes["v"],
            sizes["window"],
            sizes["is_causal"],
            q,
            k,
            v,
            is_chunked=sizes["is_chunked"],
            block=sizes.get("block"),
            num_blocks=sizes.get("num_blocks"),
            index_columns=sizes.get("index_columns", 0),
        )

    def _gemm(self, one: TracedOperation, used: set[int], outputs: Mapping[int, str]) -> TracedGemm:
        number = self.recorder.source(one.reads[0]) if one.reads else 0
        maker, rows = self.recorder.makers.get(number, ""), one.m / self.tokens
        is_first = number == self.source or (
            _component(self.inner(maker)) in self.norms() if self.has(maker) else False
        )
        own = self.names.setdefault(number, f"tensor {len(self.names)}")
        name, saves = outputs.get(number, "n1" if is_first else own), 0.0
        if name.startswith("tensor"):
            saves = self._columns(number, used)
        elif is_first:
            used.add(number)
        return TracedGemm(
            one.module, name, one.k, (one.n,), biased=one.biased, split=self.split(one, ends=number in outputs),
            rows=rows * one.count, saves=saves, count=one.count,
        )  # fmt: skip

    def _scan(self, one: TracedOperation) -> TracedScan:
        sizes = one.sizes
        if one.kind == "mamba":
            mixer = Mamba(sizes["heads"], sizes["head"], sizes["state"], sizes["groups"], chunk_size=sizes["chunk"])
            return TracedScan(sizes["heads"], sizes["chunk"], mixer.chunk_products())
        if one.kind == "delta rule":
            net = GatedDeltaNet(sizes["heads"], sizes["heads"], sizes["key"], sizes["value"])
            return TracedScan(sizes["heads"], net.chunk_size, net.chunk_products())
        products = (ChunkProduct(1, sizes["channels"], 1, sizes["state"]),) if sizes["state"] else ()
        return TracedScan(sizes["channels"], 1, products)

    def _of_products(self, found: Sequence[TracedOperation]) -> TracedScan:
        modules = dict.fromkeys(one.module for one in found)
        self.notes.append(
            f"GEMMs without weights in {', '.join(list(modules)[:2])} are those of {self.tokens} tokens"
        )
        sizes: dict[tuple[int, int, int], int] = {}
        for one in found:
            sizes[one.m, one.n, one.k] = sizes.get((one.m, one.n, one.k), 0) + one.count
        products = tuple(ChunkProduct(count, m, n, k) for (m, n, k), count in sizes.items())
        return TracedScan(max(one.count for one in found), self.tokens, products)

    def _saved(self, used: set[int]) -> tuple[TracedSaved, ...]:
        apart = not isinstance(self.ffn, NoFeedForward)
        joined: dict[tuple[str, str, bool, bool], float] = {}
        for number, (module, tensor) in self.kept.items():
            part = _component(module)
            if number in used or (apart and (part in self.fed or part in self.norms())):
                continue
            if apart and not part:  # the residual, which the norm before the channel mixer saves
                continue
            columns = _columns_of(tensor, self.tokens)
            if not columns or tuple(tensor.shape[-2:]) == (self.tokens, self.tokens):
                continue
            is_norm = "norm" in module.lower()
            does = "norm" if is_norm else "activation" if "act" in module else "gate"
            key = module, does, tensor.element_size() == 4 != self.element_bytes, part in self.mixers
            joined[key] = joined.get(key, 0.0) + columns
        return tuple(
            TracedSaved(module, columns, does, is_wide, divided)
            for (module, does, is_wide, divided), columns in joined.items()
        )


def _columns_of(tensor: Tensor, tokens: int) -> float:
    """Return the elements per token; 0 for a constant, which has no dimension of tokens."""
    numel = tensor.untyped_storage().nbytes() // tensor.element_size()
    return numel / tokens if numel % tokens == 0 else 0.0


def _dense(group: Sequence[TracedOperation], h: int) -> FeedForward | None:
    """Return the feed-forward part that the GEMMs form, None if they form none.

    A feed-forward part has an up projection, or gate and up in two GEMMs or in one, and a down projection.
    """
    sizes, down = [(one.k, one.n) for one in group], group[-1]
    f = down.k
    if len({one.biased for one in group}) > 1 or len({one.count for one in group}) > 1:
        return None
    if down.count > 1:  # several equal shared experts are one expert with all their columns
        return FeedForward(f * down.count) if sizes == [(h, f), (h, f), (f, h)] else None
    if sizes in ([(h, f), (h, f), (f, h)], [(h, 2 * f), (f, h)]):
        return FeedForward(f, bias=down.biased)
    return FeedForward(f, gated=False, bias=down.biased) if sizes == [(h, f), (f, h)] else None


def _matches(pattern: str, module: str) -> bool:
    """Return whether a name of a plan, such as layers.*.self_attn.q_proj, matches a module."""
    parts = pattern.split(".")
    inside = parts[parts.index("*") + 1 :] if "*" in parts else parts
    given = module.split(".")
    return len(inside) == len(given) and all(a in ("*", b) for a, b in zip(inside, given, strict=True))


def plain(part: Any) -> Any:
    """Return a part in the stored form: its class as `kind`, and the fields that differ from the default."""
    if isinstance(part, tuple):
        return [plain(one) for one in part]
    if not is_dataclass(part):
        return part
    described = {
        field.name: plain(getattr(part, field.name)) for field in fields(part)
        if field.default is MISSING or getattr(part, field.name) != field.default
    }  # fmt: skip
    is_part = isinstance(part, Mixer | FeedForward | MixtureOfExperts) and not isinstance(
        part, TracedCore | TracedScan
    )
    return {"kind": type(part).__name__} | described if is_part else described


def kinds_of(traced: Mapping[int, TracedLayer], order: Sequence[int]) -> dict[str, Any]:
    """Return the kinds of layers of a model, and for each layer the number of its kind."""
    texts: dict[str, int] = {}
    of_layer = {number: texts.setdefault(json.dumps(one.describe()), len(texts)) for number, one in traced.items()}
    return {"kinds": [json.loads(text) for text in texts], "layers": [of_layer[number] for number in order]}


def outside_of(
    model: Any,
    recorder: ForwardRecorder,
    path: str,
    layers: Sequence[Any],
    described: Mapping[str, Any],
    where: str,
) -> dict[str, Any]:
    counts = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    if sum(counts) != sum(
        one.numel() for one in {id(p): p for layer in layers for p in layer.parameters()}.values()
    ):
        raise ConfigError(f"{where}: module {path} uses one weight in several layers, which ppsim cannot express")
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if embedding is None or head is None or getattr(head, "weight", None) is None:
        raise ConfigError(
            f"{where}: the model has no embedding or no head of one matrix, which ppsim cannot express"
        )
    h, (rows, width), (vocab, read) = (
        described["kinds"][0]["hidden_size"],
        embedding.weight.shape,
        head.weight.shape,
    )
    if read != width:
        raise ConfigError(
            f"{where}: the head reads {read} columns and the embedding has {width}, which ppsim cannot express"
        )
    tables = (embedding.weight, head.weight)
    before, behind, positions = _parameters_around(model, recorder, path, layers, tables)
    projected, of_norm = int(width) * h if width != h else 0, norm_parameters(described["kinds"][0]["norm"], h)
    has_norm = _has_norm_behind(model, recorder, path) and behind - projected >= of_norm
    before += (int(rows) - int(vocab)) * int(width) if tables[0] is not tables[1] else 0
    multiplied = _multiplied_around(model, recorder, path, head.weight, where)
    extra = [before - projected, behind - projected - has_norm * of_norm, max(0, multiplied - 2 * projected)]
    if min(extra) < 0:
        raise ConfigError(
            f"{where}: the embedding is {rows} × {width}, the head {vocab} × {read}, and layers have {h} columns, "
            "which ppsim cannot express"
        )
    return {
        "extra": extra,
        "vocab_size": int(vocab),
        "tie_word_embeddings": tables[0] is tables[1],
        "learned_positions": positions,
        "final_norm": has_norm,
    } | ({"projected_size": int(width)} if projected else {})


ENCODERS = ("image", "vision", "visual", "audio", "speech", "multi_modal", "multimodal", "aligner", "connector")
"""Words in paths of modules that read images or sound."""


def encoder_parameters(model: nn.Module, recorder: ForwardRecorder) -> list[Tensor]:
    return [
        parameter
        for name, parameter in model.named_parameters()
        if name.rpartition(".")[0] not in recorder.order and any(word in name for word in ENCODERS)
    ]


def _last_entry(recorder: ForwardRecorder, path: str) -> int:
    return max(number for number, name in enumerate(recorder.order) if name.startswith(f"{path}."))


def _parameters_around(
    model: Any, recorder: ForwardRecorder, path: str, layers: Sequence[Any], tables: tuple[Tensor, Tensor]
) -> tuple[int, int, int]:
    """Return the numbers of parameters before and after the layers, and the number of learned positions.

    Embedding and head are not counted.
    """
    entered, last = {name: number for number, name in enumerate(recorder.order)}, _last_entry(recorder, path)
    inside = {id(one) for layer in layers for one in layer.parameters()} | {id(table) for table in tables}
    inside |= {id(one) for one in encoder_parameters(model, recorder)}
    before = behind = positions = 0
    for name, parameter in model.named_parameters():
        if id(parameter) in inside:
            continue
        if (
            "pos" in name
            and parameter.ndim == 2
            and parameter.shape[1] == recorder.inputs[f"{path}.0"].shape[-1]
            and not positions
        ):
            positions = int(parameter.shape[0])
        elif entered.get(name.rpartition(".")[0], 0) > last:
            behind += parameter.numel()
        else:
            before += parameter.numel()
    return before, behind, positions


def _has_norm_behind(model: Any, recorder: ForwardRecorder, path: str) -> bool:
    names = list(recorder.order)[_last_entry(recorder, path) + 1 :]
    return any("norm" in (name + type(model.get_submodule(name)).__name__).lower() for name in names)


def _multiplied_around(model: Any, recorder: ForwardRecorder, path: str, head: Tensor, where: str) -> int:
    """Return the GEMM weights per token outside the layers, without the head.

    Raises `ConfigError` for attention and scans outside the layers.
    """
    multiplied, tokens = 0.0, int(recorder.inputs[""].shape[-1])
    for event in recorder.events:
        if event.module.startswith(f"{path}."):
            continue
        if event.kind not in ("gemm", "convolution"):
            raise ConfigError(
                f"{where}: module {event.module} is outside the layers {path} and has a call of kind {event.kind}, "
                "which ppsim cannot express"
            )
        if event.kind == "gemm" and event.weight and model.get_parameter(event.weight) is not head:
            multiplied += event.k * event.n * event.count * event.m / tokens
    return round(multiplied)
