"""Buffers of a compiled and fully recomputed Llama block, as inductor plans them.

The programs follow the output of torch 2.6 for TorchTitan's block (9dec370, `parallelize_llama` with full
activation checkpointing). After its last read, a buffer is not freed but waits for a later buffer of the same size
and dtype (torch, _inductor/codegen/wrapper.py: `AllocateLine.plan`).

Syntax of a program: `name=size` makes a buffer of inductor, which may reuse another. `name<size` makes the result
of an external kernel, which may not. `-name` is the last use of a buffer. Prefixes restrict a step: `8:` to 8-bit
GEMMs, `16:` to 16-bit GEMMs, `cp:` to context parallelism, `1:` to runs without it. "As operand" means in the dtype
of GEMM operands; a 5 marks gradients. Sizes:

- W, O: hidden states of all tokens of the tensor-parallel group, and of the rank's own tokens.
- P, P5, p, p5: W and O as operands; Pu: P as bytes.
- Q, K: queries and keys; QQ, KK: in float32; h: attention output as operand; X: softmax statistics.
- R, A: keys and values in one tensor, of one rank and of all context-parallel ranks; D: gradients of R in float32.
- C: columns of the MLP; c, c5: as operands.
- wq … w2: gradients of weights; wq8 … w28: weights as operands.
"""

from collections import defaultdict
from functools import cached_property

from ppsim.model.allocator import AllocatorBlock
from ppsim.model.layer_trace import Kept, LayerTrace

_ROTATED = """
qq=QQ kk=KK rq<QQ -qq rk<KK -kk -q -k q2=Q k2=K -rq -rk ek=Q ev=Q
"""

_CORE = """
1:core<Q cp:own_kv=R cp:all_kv<A cp:-own_kv cp:first<Q cp:merged=QQ cp:-first cp:next<Q cp:wide=QQ cp:merged2=QQ
cp:-next cp:-wide cp:-merged cp:core=Q cp:-merged2 cp:-all_kv stats<X
"""
"""Attention. With context parallelism, keys and values of all ranks are gathered; results of the pieces are merged
in float32 (torch/distributed/tensor/experimental/_attention.py: `_templated_ring_attention`, `_SDPAMerger`)."""

_CORE_BACKWARD = """
1:wide_q<QQ 1:dq<Q 1:dk<Q 1:dv<Q 1:-wide_q
cp:own_kv2=R cp:all_kv2<A cp:-own_kv2 cp:sum_q=QQ cp:sum_k=QQ cp:sum_v=QQ
cp:wide1<QQ cp:q_1<Q cp:k_1<Q cp:v_1<Q cp:-wide1 cp:-q_1 cp:-k_1 cp:-v_1 cp:sent=D cp:-sum_k cp:-sum_v cp:got<D
cp:wide2<QQ cp:q_2<Q cp:k_2<Q cp:v_2<Q cp:-wide2 cp:-q_2 cp:-k_2 cp:-v_2 cp:sent2=D cp:-got cp:-sent cp:got2<D
cp:-all_kv2 cp:dq=Q cp:-sum_q cp:dk=Q cp:dv=Q cp:-got2 cp:-sent2
"""
"""Backward of attention. FlashAttention sums the gradient of queries in float32. Context-parallel ranks also sum
the gradients of keys and values in float32 and send them around the ring (`_templated_ring_attention_backward`)."""

_GATHERED = {
    False: "16:n=O 8:n=p raw<P -n 8:cat<Pu 16:cat=P",
    True: "16:n=O 8:n=p cat<P -n",
}
"""All-gather of a norm's output along the sequence: pieces, then reordered; with `is_async` inside the GEMMs."""

_REDUCED = {False: "{part}=W {pieces}=W -{part} {red}<O -{pieces}", True: "{part}<W {red}<O -{part}"}
"""Reduce-scatter of a GEMM's partial sums: cut into pieces first; with `is_async` inside the GEMM."""


def _again(gathered: str) -> str:
    """Append 2 to the names of tensors, for the second norm."""
    return gathered.replace("raw", "raw2").replace("cat", "cat2").replace("n=", "n2=").replace("-n", "-n2")


def _forward(*, is_async: bool) -> str:
    gathered, reduced = _GATHERED[is_async], _REDUCED[is_async]
    second = _again(gathered)
    raw, raw2 = ("", "") if is_async else ("-raw", "-raw2")
    return f"""
    {gathered} q=Q k=K v=K -cat {_ROTATED} {_CORE} -k2 -v -q2 -ek -ev -stats 8:{raw} 8:heads=h 8:-core
    {reduced.format(part="part", pieces="pieces", red="red")} 8:-heads 16:-core 16:{raw}
    {second} gate=C up=C -cat2 -up 8:{raw2} 8:act=c 8:-gate
    {reduced.format(part="part2", pieces="pieces2", red="red2")} 8:-act 16:-gate 16:{raw2} out=O -red -red2
    """


def _backward(*, is_async: bool) -> str:
    """Gather the output's gradient, recompute the forward to the gate and up projections, then run the backward."""
    gathered, reduced = _GATHERED[is_async], _REDUCED[is_async]
    tangents = "8:tangents=p5 rawg<P5 8:catg<Pu 16:catg=P" if not is_async else "8:tangents=p5 catg<P5"
    of_scatter = "8:slim=p5 rawh<P5 8:cath<Pu 16:cath=P" if not is_async else "8:slim=p5 cath<P5"
    second = _again(gathered)
    raws = [""] * 4 if is_async else ["-raw", "-raw2", "-rawg", "-rawh"]
    return f"""
    {tangents} 8:w28=w28 of_act=C 8:-w28
    {gathered} {raws[2]} q=Q k=K v=K {_ROTATED} {_CORE} 8:heads=h {raws[0]}
    {reduced.format(part="part", pieces="pieces", red="red")} 8:-heads
    {second} gate=C up=C {raws[1]} 16:act=C 16:of_gate=C 16:of_up=C
    8:catg_t=P5 8:-catg 8:act_t=c 8:up_t=c5 8:gate_t=c5 w2=w2 8:-act_t 16:-act 16:-catg
    8:up8=c5 8:gate8=c5 -of_act -gate -up
    8:w38=w38 s3=W 8:-up8 8:-w38 8:x3=P 8:x1=P 8:-cat2 w3=w3 8:-up_t 8:-x3 16:-of_up
    8:w18=w18 s1=W 8:-gate8 8:-w18 w1=w1 8:-gate_t 8:-x1 16:-of_gate 16:-cat2
    pieces3=W -s3 -s1 red3<O -pieces3 residual=O -red3 8:-tangents
    {of_scatter} 8:wo8=wo8 of_heads=Q 8:-wo8 8:-catg_t 8:cath_t=P5 8:heads_t=h 8:-cath wo=wo 8:-cath_t 8:-heads_t
    16:-cath {_CORE_BACKWARD} -of_heads -ek -ev -q2 -stats -core -red sk=K sv=K -dk -dv
    kk2=KK rk2<KK -kk2 qq2=QQ rq2<QQ -dq -qq2 {raws[3]}
    8:wv8=wv8 sv_=W 8:-wv8 8:xv=P 8:xk=P 8:xq=P 8:-cat wv=wv 8:-xv -sv -v
    k3=K -rk2 8:wk8=wk8 sk_=W 8:-wk8 wk=wk 8:-xk -k3 -sk -k2
    8:q8=p5 16:q3=Q 8:wq8=wq8 sq_=W 8:-wq8 8:-q8 8:q_t=p5 -rq2 wq=wq 8:-xq 8:-q_t 16:-q3 16:-cat
    piecesa=W -sq_ -sk_ -sv_ reda<O -piecesa of_input=O -residual -reda 8:-slim
    """


_WHOLE_FORWARD = f"""
8:n=P 8:nk=P 8:nv=P 16:n=W q=Q 8:-n k=K 8:-nk v=K 8:-nv 16:-n {_ROTATED} {_CORE} -k2 -v -q2 -ek -ev -stats
8:heads=h 8:-core part=W 8:-heads 16:-core 8:n2=P 16:n2=W gate=C up=C -n2 -up 8:act=c 8:-gate
part2=W 8:-act 16:-gate out=W -part -part2
"""

_WHOLE_BACKWARD = f"""
8:n=P 8:nk=P 8:nv=P 16:n=W q=Q 8:-n k=K 8:-nk v=K 8:-nv {_ROTATED} {_CORE} 8:heads=h 8:heads_t=h part=W 8:-heads
8:n2=P 16:n2=W 8:x1=P 8:x3=P gate=C up=C 8:g8=P5 of_act=C 8:up8=c5 8:gate8=c5 16:act=C 16:of_gate=C 16:of_up=C
s3=W s1=W residual=W 8:-g8 8:slim=P5 of_heads=Q {_CORE_BACKWARD} -ek -ev -q2 -core -stats sk=K sv=K -dk -dv
kk2=KK rk2<KK -kk2 qq2=QQ rq2<QQ -dq -qq2 8:k8=K 8:v8=K -rk2 sk_=W sv_=W 8:-slim 8:q8=P5 16:q3=Q -rq2 sq_=W
8:-n2 8:xk=P 8:xv=P 8:xq=P -of_heads of_input=W wk=wk 8:-xk wv=wv 8:-xv 8:-k8 8:-v8 -sk -sv -k2 -v
8:-q8 8:g_t=P5 8:slim_t=P5 wo=wo 8:-heads_t 8:-slim_t 8:q_t=P5 wq=wq 8:-q_t 8:-xq 16:-n 16:-q3
8:act_t=c 8:-gate8 8:gate_t=c5 8:-up8 8:up_t=c5 -gate -up -of_act w2=w2 8:-g_t 8:-act_t 16:-act
w1=w1 8:-gate_t 8:-x1 16:-of_gate w3=w3 8:-up_t 8:-x3 16:-of_up 16:-n2 -s1 -s3 -sk_ -sv_ -sq_ -part -residual
"""
"""Without tensor parallelism there are no collectives in between, and the weights' gradients come last."""

Plan = tuple[list[tuple[str, float]], dict[str, str]]
"""Buffers allocated (with bytes) and freed (with 0) in order, and the buffer that each name has at the end."""


class CompiledTrace(LayerTrace):
    """A `LayerTrace` whose forward saves only its input, and whose backward recomputes the forward."""

    @cached_property
    def _size(self) -> dict[str, float]:
        e = self.batch.element_bytes
        operand, wide = self.operand_bytes / e, 4 / e
        names = ("wq", "wk", "wv", "wo", "w1", "w3", "w2")
        weights = {name: size * e for name, size in zip(names, self.weights, strict=True)}
        statistics = 4 * self.tokens * self.layer.attention.num_heads // self.cut.tp
        sizes = {"W": self.whole, "O": self.own, "P": self.whole * operand, "p": self.own * operand}
        sizes |= {"Q": self._queries, "K": self._keys, "QQ": self._queries * wide, "KK": self._keys * wide}
        sizes |= {"R": 2 * self._queries, "A": 2 * self.cut.cp * self._queries, "D": 2 * self._queries * wide}
        sizes |= {"X": statistics, "C": self._columns, "c": self._columns * operand, "h": self._queries * operand}
        sizes |= weights | {f"{name}8": size * operand for name, size in weights.items()}
        return sizes | {"P5": sizes["P"], "p5": sizes["p"], "Pu": sizes["P"], "c5": sizes["c"]}

    def _plan(self, program: str) -> Plan:
        narrow = self.operand_bytes < self.batch.element_bytes
        others = "16:" if narrow else "8:", "1:" if self.cut.cp > 1 else "cp:"
        words = [word for word in program.split() if not word.startswith(others)]
        waiting: dict[tuple[float, str], list[tuple[int, str]]] = defaultdict(list)
        held: dict[str, tuple[str, tuple[float, str]]] = {}
        steps: list[tuple[str, float] | None] = []
        for word in filter(None, (word.rpartition(":")[2] for word in words)):
            if word.startswith("-"):
                name, key = held.pop(word[1:])
                waiting[key].append((len(steps), name))
                steps.append((name, 0.0))
                continue
            name, sign, size = word.partition("=" if "=" in word else "<")
            key = self._size[size], self._type(size, narrow=narrow)
            if sign == "=" and waiting[key]:
                at, before = waiting[key].pop()
                steps[at] = None
                held[name] = before, key
            else:
                held[name] = name, key
                steps.append((name, self._size[size]))
        return [step for step in steps if step], {name: block for name, (block, _) in held.items()}

    @staticmethod
    def _type(size: str, *, narrow: bool) -> str:
        if size in ("QQ", "KK", "X", "D"):
            return "float32"
        if not narrow:
            return ""
        return f"8{size[1:]}" if size[0] in "Ppc" else "8" if size == "h" or size[-1] == "8" else ""

    @cached_property
    def _plans(self) -> tuple[Plan, Plan]:
        if self.cut.tp == 1:
            return self._plan(_WHOLE_FORWARD), self._plan(_WHOLE_BACKWARD)
        return self._plan(_forward(is_async=self.is_async)), self._plan(_backward(is_async=self.is_async))

    def _run(self, plan: Plan) -> dict[str, AllocatorBlock | None]:
        made: dict[str, AllocatorBlock | None] = {}
        steps, left = plan
        for name, size in steps:
            if size:
                made[name] = self.memory.make(size)
            else:
                self.memory.drop(made[name])
        return {name: made[block] for name, block in left.items()}

    def forward(self, *, keeps: bool) -> tuple[AllocatorBlock | None, Kept]:
        return super().forward(keeps=True) if keeps else (self._run(self._plans[0])["out"], {})

    def backward_again(
        self, gradient: AllocatorBlock | None
    ) -> tuple[AllocatorBlock | None, list[AllocatorBlock | None]]:
        left = self._run(self._plans[1])
        self.memory.drop(gradient)
        return left["of_input"], [left[name] for name in ("w2", "w3", "w1", "wo", "wv", "wk", "wq")]
