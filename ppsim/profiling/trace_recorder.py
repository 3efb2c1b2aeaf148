"""Recorder of GEMMs, attention calls and saved tensors of a forward on meta tensors, by module.

Attention, routed experts and scans are replaced, because transformers computes them with loops that depend on data.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ATTENTION = "ppsim_traced"
"""The name under which transformers finds the replaced attention and its mask."""

_RECOMPUTED = frozenset(
    {
        "_to_copy", "mul", "add", "sub", "div", "silu", "gelu", "sigmoid", "relu", "tanh", "pow", "rsqrt",
        "neg", "cat", "clone", "mean", "softplus", "exp", "square", "clamp", "clamp_min", "rsub", "where",
        "masked_fill", "repeat_interleave", "index_select", "stack", "softmax", "_softmax", "full_like",
        "zeros_like", "ones_like", "copy", "roll", "constant_pad_nd", "hardtanh", "leaky_relu", "elu", "mish",
        "abs", "sqrt", "log", "reciprocal", "sin", "cos", "erf",
    }
)  # fmt: skip
"""Pointwise operators, whose results a fused kernel computes again instead of saving them."""

_GEMMS = frozenset(("mm", "addmm", "bmm", "baddbmm", "_grouped_mm"))


@dataclass
class TracedOperation:
    """A recorded operator: `kind` is "gemm", "product", "attention", "experts", "convolution", "mamba", ….

    gemm (with a weight) and product (without) are `count` GEMMs [m, k] · [k, n] with a result of `shape`. `reads`
    and `writes` are numbers of storages.
    """

    kind: str
    module: str
    m: int = 0
    k: int = 0
    n: int = 0
    count: int = 1
    weight: str | None = None
    biased: bool = False
    reads: tuple[int, ...] = ()
    writes: int = 0
    shape: tuple[int, ...] = ()
    sizes: dict[str, Any] = field(default_factory=dict)


def storage(tensor: Tensor) -> int:
    """Return the number of a storage, which is reused once no tensor holds the storage."""
    return int(tensor.untyped_storage()._cdata)


class ForwardRecorder(TorchDispatchMode):
    """Records one forward of a model; all meta tensors stay alive, so that numbers of storages are unique."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parameters = {storage(parameter): name for name, parameter in model.named_parameters()}
        self.shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
        self.copies: dict[int, str] = {}
        self.stack = [""]
        self.events: list[TracedOperation] = []
        self.saved: dict[int, tuple[str, Tensor]] = {}
        self.makers: dict[int, str] = {}
        self.sources: dict[int, tuple[str, list[Tensor]]] = {}
        self.operands: set[int] = set()
        self.scanned: set[str] = set()
        self.inputs: dict[str, Tensor] = {}
        self.order: dict[str, int] = {}
        self.failed_in = ""
        self.decisions: dict[str, None] = {}
        self.alive: list[Any] = []
        self.backward = False

    @contextmanager
    def hooked(self, model: nn.Module) -> Iterator[None]:
        def enter(name: str, arguments: Any, keywords: Any) -> None:
            self.stack.append(name)
            self.order[name] = self.order.get(name, 0) + 1
            self.failed_in = name
            if tensors := [leaf for leaf in tree_leaves((arguments, keywords)) if isinstance(leaf, Tensor)]:
                self.inputs.setdefault(name, tensors[0])

        def leave(*_: Any) -> None:
            self.stack.pop()

        handles = []
        for name, module in model.named_modules():
            handles += [
                module.register_forward_pre_hook(
                    lambda _, a, k, name=name: enter(name, a, k), with_kwargs=True, prepend=True
                ),
                module.register_forward_hook(leave, always_call=True),
            ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def parameter(self, tensor: Tensor) -> str | None:
        """Return the name of the parameter that a tensor is, or is a copy or view of."""
        number = storage(tensor)
        return self.parameters.get(number) or self.copies.get(number)

    def gemm(self, a: Tensor, b: Tensor, out: Tensor, *, biased: bool = False) -> None:
        weight = self.parameter(b) or self.parameter(a)
        m, k, n = int(a.shape[-2]), int(a.shape[-1]), int(b.shape[-1])
        if weight and self.parameter(b) is None:  # the weight is on the left: Wᵀx
            m, n = n, m
        count = int(a.shape[0]) if a.dim() == 3 else 1
        reads = tuple(storage(one) for one in (a, b) if self.parameter(one) is None)
        self.operands.update(reads)
        kind = "gemm" if weight else "product"
        self.events.append(
            TracedOperation(
                kind, self.stack[-1], m, k, n, count, weight, biased, reads, storage(out), tuple(out.shape)
            )
        )

    def record(self, kind: str, reads: list[Tensor], out: Tensor, **sizes: Any) -> None:
        numbers = tuple(storage(one) for one in reads)
        if kind != "attention":  # kernels of scans recompute the convolution before them
            self.scanned.add(self.stack[-1])
        if kind != "mamba":
            self.operands.update(numbers)
        self.events.append(TracedOperation(kind, self.stack[-1], reads=numbers, writes=storage(out), sizes=sizes))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._overloadpacket.__name__
        self.failed_in = self.stack[-1]
        if name == "_local_scalar_dense" and args[0].is_meta:
            self.decisions[self.stack[-1]] = None
            return False if args[0].dtype == torch.bool else 0.0 if args[0].is_floating_point() else 0
        out = func(*args, **(kwargs or {}))
        if self.backward:
            return out
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        self.alive.append(outputs)
        given = {storage(tensor) for tensor in inputs}
        for one in outputs:
            number = storage(one)
            if number in given:
                continue
            self.makers[number] = self.stack[-1]
            if name in _RECOMPUTED or (name == "convolution" and args[8] > 1):
                self.sources[number] = name, inputs
            if name in ("_to_copy", "clone", "cat", "stack") and inputs and all(map(self.parameter, inputs)):
                self.copies[number] = self.parameter(inputs[0]) or ""
        if name in _GEMMS:
            a, b = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
            bias = name == "addmm" and self.parameter(args[0]) is not None
            self.gemm(a, b, outputs[0], biased=bias)
        elif name == "convolution" and self.parameter(args[1]):
            self.convolution(args, outputs[0])
        return out

    def convolution(self, args: Any, out: Tensor) -> None:
        """Convolutions without groups and with several input channels count as GEMMs."""
        weight, groups = args[1], args[8]
        if groups == 1 and args[0].shape[1] > 1:
            k = int(weight.shape[1] * weight[0, 0].numel())
            reads = (storage(args[0]),)
            m = int(out.numel() // out.shape[1])
            biased = args[2] is not None
            self.events.append(
                TracedOperation(
                    "gemm", self.stack[-1], m, k, int(weight.shape[0]), 1, self.parameter(weight), biased,
                    reads, storage(out), tuple(out.shape),
                )
            )  # fmt: skip
        else:
            self.events.append(TracedOperation("convolution", self.stack[-1], weight=self.parameter(weight)))

    def pack(self, tensor: Tensor) -> Tensor:
        if storage(tensor) not in self.parameters:
            self.saved.setdefault(storage(tensor), (self.stack[-1], tensor))
        return tensor

    def source(self, number: int) -> int:
        """Return the original of storage `number`, which may be a cast or a contiguous copy."""
        while number in self.sources and self.sources[number][0] in ("_to_copy", "clone"):
            number = storage(self.sources[number][1][0])
        return number

    def fused(self) -> dict[int, tuple[str, Tensor]]:
        """Return what fused kernels save: no casts, and nothing that pointwise operators can recompute.

        Operands of GEMMs and of attention are always saved.
        """
        kept: dict[int, tuple[str, Tensor]] = {}
        for number, (where, tensor) in self.saved.items():
            found, held = number, tensor
            while found in self.sources and self.sources[found][0] == "_to_copy" and found not in self.operands:
                held = self.sources[found][1][0]
                found = storage(held)
            if found not in self.parameters and found not in self.copies:
                kept.setdefault(found, (where, held))
        for number in reversed(list(kept)):
            if number not in self.operands and self._is_made_again(number, kept, set()):
                del kept[number]
        return kept

    def _is_made_again(self, number: int, kept: dict[int, Any], seen: set[int]) -> bool:
        if number in seen or number not in self.sources:
            return False
        if self.sources[number][0] == "convolution" and self.makers[number] not in self.scanned:
            return False
        seen.add(number)
        return all(
            (storage(source) in kept and storage(source) != number)
            or storage(source) in self.parameters
            or self._is_made_again(storage(source), kept, seen)
            for source in self.sources[number][1]
        )


_RECORDERS: list[ForwardRecorder] = []
"""The recorder of the running trace is the last one."""


@contextmanager
def recording(recorder: ForwardRecorder, model: nn.Module) -> Iterator[None]:
    _RECORDERS.append(recorder)
    try:
        with warnings.catch_warnings(), recorder.hooked(model), recorder:
            warnings.simplefilter("ignore")
            yield
    finally:
        _RECORDERS.pop()


class _Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: str, sizes: dict[str, Any], shape: tuple[int, ...], *inputs: Any) -> Any:
        out = inputs[0].new_empty(shape)
        ctx.save_for_backward(*inputs, out)
        _RECORDERS[-1].record(kind, list(inputs), out, **sizes)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        *inputs, _ = ctx.saved_tensors
        return (None, None, None, *(torch.empty_like(tensor) for tensor in inputs))


def opaque(kind: str, sizes: dict[str, Any], shape: tuple[int, ...], *inputs: Tensor) -> Tensor:
    """Record an operator as a whole, and return a placeholder of its output's shape."""
    output: Tensor = _Opaque.apply(kind, sizes, shape, *inputs)  # type: ignore[no-untyped-call]
    return output


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **keywords: Any
) -> tuple[Tensor, None]:
    kind = getattr(module, "layer_type", None) or getattr(module, "attention_type", None)
    is_chunked = kind == "chunked_attention"
    window = keywords.get("sliding_window", getattr(module, "sliding_window", None))
    if not window and is_chunked:
        window = getattr(module, "attention_chunk_size", None)
    if isinstance(window, list | tuple):
        window = window[0]
    is_causal = getattr(module, "is_causal", True)
    b, n, s, d = query.shape
    sizes = {
        "heads": n, "kv_heads": key.shape[1], "qk": d, "v": value.shape[3], "keys": key.shape[2],
        "window": int(window) if isinstance(window, int | float) and window > 0 else None,
        "is_chunked": is_chunked, "sinks": keywords.get("s_aux") is not None,
        "is_causal": True if is_causal is None else bool(is_causal),
    }  # fmt: skip
    return opaque(
        "attention", sizes | _compressed(module, s, key.shape[2]), (b, s, n, value.shape[3]), query, key, value
    ), None


def _compressed(module: nn.Module, num_queries: int, num_keys: int) -> dict[str, int]:
    """Return the tokens per compressed key and the sizes of an indexer of these keys.

    Compressed keys exist if there are more keys than queries.
    """
    if num_keys <= num_queries:
        return {}
    sizes, config = {"block": num_queries // (num_keys - num_queries)}, getattr(module, "config", None)
    has_indexer = any(name.rsplit(".", 1)[-1] == "indexer" for name, _ in module.named_modules())
    if has_indexer and config is not None and isinstance(getattr(config, "index_topk", None), int):
        columns = config.index_n_heads * config.index_head_dim
        sizes |= {"num_blocks": config.index_topk, "index_columns": columns}
    return sizes


class _Grouped(torch.autograd.Function):
    """One GEMM per expert, with tokens spread evenly."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, transposed: bool, biased: bool, num_rows: int) -> Any:
        k, n = (weight.shape[1], weight.shape[2]) if transposed else (weight.shape[2], weight.shape[1])
        if x.shape[1] != k:
            raise ValueError(f"experts of {k} inputs get {x.shape[1]} columns")
        ctx.save_for_backward(x, weight)
        out = x.new_empty(x.shape[0], n)
        recorder = _RECORDERS[-1]
        recorder.operands.add(storage(x))
        recorder.events.append(
            TracedOperation(
                "experts", recorder.stack[-1], num_rows, int(k), int(n), int(weight.shape[0]),
                recorder.parameter(weight), biased, (storage(x),), storage(out),
            )
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight), None, None, None


def experts(self: Any, hidden_states: Tensor, *routing: Any, **keywords: Any) -> Tensor:
    """Replaces the forward of an experts module with 3-D weights by two grouped GEMMs around its activation."""
    shape, x = hidden_states.shape, hidden_states.reshape(-1, hidden_states.shape[-1])
    given = [one for one in (*routing, *keywords.values()) if isinstance(one, Tensor)]
    index = next((one for one in given if not one.is_floating_point() and one.dim() > 1), None)
    up_name = "gate_up_proj" if hasattr(self, "gate_up_proj") else "up_proj"
    up, down = getattr(self, up_name), self.down_proj
    flipped = getattr(self, "is_transposed", None)
    if flipped is None:
        flipped = up.shape[1] == x.shape[1] and up.shape[2] != x.shape[1]
    if index is None:  # as in Llama 4, every expert gets all tokens: count only the routed tokens
        chosen, rows = _chosen(self), x.shape[0] // up.shape[0]
        num_rows = rows * chosen
    else:
        chosen = index.shape[-1]
        x = x.repeat_interleave(chosen, dim=0)
        num_rows = x.shape[0]
    biases = [getattr(self, f"{name}_bias", None) for name in (up_name, "down_proj")]
    y = _Grouped.apply(x, up, flipped, biases[0] is not None, num_rows)  # type: ignore[no-untyped-call]
    y = y if biases[0] is None else y + biases[0].new_empty(1, biases[0].shape[-1])
    if up_name == "gate_up_proj":
        gate, lift = y.chunk(2, -1)
        y = self._apply_gate(y) if hasattr(self, "_apply_gate") else _activated(self, gate) * lift
    else:
        y = _activated(self, y)
    y = _Grouped.apply(y, down, flipped, biases[1] is not None, num_rows)  # type: ignore[no-untyped-call]
    y = y if biases[1] is None else y + biases[1].new_empty(1, biases[1].shape[-1])
    if index is None:
        whole: Tensor = y.view(shape)
        return whole
    weights = next((one for one in given if one.is_floating_point() and one.dim() > 1), None)
    if weights is not None:
        weights = weights[..., :chosen]
        y = y * weights.reshape(-1, 1)
    output: Tensor = y.view(-1, chosen, y.shape[-1]).sum(1).to(hidden_states.dtype).view(shape)
    return output


def _activated(module: Any, x: Tensor) -> Tensor:
    function = getattr(module, "act_fn", None) or nn.functional.silu
    output: Tensor = function(x)
    return output


def _chosen(module: Any) -> int:
    config = getattr(module, "config", None) or getattr(module, "ppsim_config", None)
    for name in ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k", "moe_k"):
        if isinstance(found := getattr(config, name, None), int) and found > 0:
            return found
    return 1


def delta_rule(query: Tensor, key: Tensor, value: Tensor, *others: Any, **keywords: Any) -> tuple[Tensor, None]:
    """Replaces a gated delta rule, with one decay per head or, as Kimi's, per key column.

    Queries, keys and values are [b, s, heads, size].
    """
    sizes = {"heads": int(value.shape[2]), "key": int(key.shape[3]), "value": int(value.shape[3])}
    more = [tensor for tensor in (*others, *keywords.values()) if isinstance(tensor, Tensor)]
    return opaque("delta rule", sizes, tuple(value.shape), value, query, key, *more), None


def chunk_scan(
    hidden_states: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk_size: int = 256, **keywords: Any
) -> Any:
    """Replaces the scan of Mamba-2: [b, s, heads, size], with B and C of [b, s, groups, state]."""
    heads, size = hidden_states.shape[2:]
    sizes = {"heads": int(heads), "head": int(size), "groups": int(b.shape[2]), "state": int(b.shape[3])}
    sizes["chunk"] = int(chunk_size)
    out = opaque("mamba", sizes, tuple(hidden_states.shape), hidden_states, dt, b, c)
    return (out, None) if keywords.get("return_final_states") else out


def selective_scan(
    hidden_states: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Any = None,
    z: Any = None,
    **keywords: Any,
) -> Any:
    """Replaces the scan of Mamba-1: [b, channels, s], with `state` numbers per channel."""
    sizes = {"channels": int(hidden_states.shape[1]), "state": int(b.shape[1])}
    z = keywords.get("z") if z is None else z
    more = [z] if isinstance(z, Tensor) else []
    out = opaque("selective scan", sizes, tuple(hidden_states.shape), hidden_states, dt, b, c, *more)
    return (out, None) if keywords.get("return_last_state") else out


def linear_attention(*tensors: Tensor, **keywords: Any) -> Any:
    """Replaces the recurrence of RWKV; the arguments are decay, bonus, keys and values."""
    key, value = tensors[2:4]
    return opaque(
        "selective scan", {"channels": int(key.shape[-1]), "state": 0}, tuple(key.shape), key, value
    ), None


STAND_INS = {
    "torch_chunk_gated_delta_rule": delta_rule,
    "chunk_kimi_delta_attention": delta_rule,
    "mamba2_chunk_scan": chunk_scan,
    "mamba_selective_scan": selective_scan,
    "rwkv_linear_attention": linear_attention,
}
"""Functions of transformers' modeling files that loop over tokens or chunks, and their replacements."""
