"""Compute next to a kernel that occupies SMs, as communication does: measured on one GPU, and as projected.

    python benchmarks/held_sms.py --record held.json     measure: needs a CUDA device, torch and numpy; about a minute
    python benchmarks/held_sms.py --report held.json     compare

Three measurements:

- Kernels alone, and next to a kernel that occupies 8, 20 or 32 SMs and copies bytes at a given rate. ppsim assumes that
  compute runs on the remaining SMs: with 20 of 132 occupied, it takes 18 % longer.
- Pairs of forward and backward passes of layers with experts on two streams, in the order of operations of
  `ppsim.costs.pair_overlap`. Each message is emulated by such a kernel, for a fixed time. The projection uses the
  operations as measured alone.
- The backward pass of attention with deterministic kernels, and without.

Errors are projected / measured - 1: a negative error means that the projection is too fast.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ppsim.base.files import write_atomically
from ppsim.base.units import seconds, signed_percent
from ppsim.costs.pair_overlap import LayerTimes, pair_s

HELD = (8, 20, 32)
RATES = (0, 100, 900)
"""GB/s that the kernel reads plus writes: nothing, one NIC of 400 Gbit/s in both directions, NVLink of an H100 in
both directions.
"""
EXCHANGES_S = (0.3e-3, 1e-3, 2e-3)
"""Durations of a message of a pair: shorter than the compute next to it, about equal, and longer."""
PAIRED_LAYERS = 4
REPEATS = 5
COMPUTE = ("before F", "experts I", "experts W", "experts F", "before I", "before W")
MESSAGES = ("combine B", "dispatch F", "dispatch B", "combine F")
INPUTS = {
    "dispatch F": ("before F", 0), "experts F": ("dispatch F", 0), "combine F": ("experts F", 0),
    "experts I": ("combine B", 0), "dispatch B": ("experts I", 0), "before I": ("dispatch B", 0),
    "experts W": ("experts I", 0), "before W": ("before I", 0),
    "before F": ("combine F", 1), "combine B": ("before I", 1),
}  # fmt: skip
"""Dependencies of each operation on the same pair of layers (0) or the previous one (1). Repeated here instead of
imported, because the projection is compared with the behaviour of the streams.
"""
INPUTS_OF = {
    "megatron": INPUTS | {"dispatch B": ("experts W", 0), "combine B": ("before W", 1)},
    "dualpipe": INPUTS,
}

HOLD = r"""
extern "C" __global__ void __launch_bounds__(1024) hold(
    const uint4* from, uint4* to, unsigned long long* moved, int per_block, int microseconds, int bytes_per_us)
{
    // One block per SM: its dynamic shared memory leaves no room for another kernel's.
    extern __shared__ int held[];
    if (threadIdx.x == 0) held[0] = 0;
    unsigned long long begin, now, bytes = 0;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    const unsigned long long lasts = 1000ull * microseconds;
    const uint4* source = from + (size_t)blockIdx.x * per_block;
    uint4* target = to + (size_t)blockIdx.x * per_block;
    int at = threadIdx.x;
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (bytes_per_us > 0 && bytes * 1000ull <= (now - begin) * (unsigned long long)bytes_per_us) {
            uint4 a = source[at], b = source[at + 1024], c = source[at + 2048], d = source[at + 3072];
            target[at] = a; target[at + 1024] = b; target[at + 2048] = c; target[at + 3072] = d;
            at += 4096;
            if (at + 3072 >= per_block) at = threadIdx.x;
            bytes += 2ull * 4096 * 16;
        }
    } while (now - begin < lasts);
    if (threadIdx.x == 0) moved[blockIdx.x] = bytes;
}
"""


class Holder:
    """Launches the kernel that occupies SMs."""

    SHARED_BYTES = 200 * 1024

    def __init__(self, most: int) -> None:
        import torch

        self.torch, self.most = torch, most
        self.kernel = torch.cuda._compile_kernel(HOLD, "hold")
        self.kernel.set_shared_memory_config(self.SHARED_BYTES)
        self.per_block = 512 * 2**20 // 16 // most // 4096 * 4096
        self.buffers = [torch.zeros(self.per_block * most * 4, dtype=torch.int32, device="cuda") for _ in range(2)]
        self.moved = torch.zeros(most, dtype=torch.int64, device="cuda")

    def __call__(self, sms: int, for_s: float, rate: int, stream: Any) -> None:
        """Occupy `sms` SMs for a time and copy `rate` GB/s, read plus written, from one buffer to the other."""
        per_block = max(1, rate * 1000 // sms) if rate else 0
        arguments = [*self.buffers, self.moved, self.per_block, round(for_s * 1e6), per_block]
        self.kernel((sms, 1, 1), (1024, 1, 1), arguments, self.SHARED_BYTES, stream)


def kernels() -> dict[str, Callable[[], Any]]:
    import torch
    from torch.nn.functional import rms_norm, scaled_dot_product_attention

    def random(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    square, other = random(8192, 8192), random(8192, 8192)
    rows, weights = random(8, 2048, 4096), random(8, 4096, 3072)
    q, k, v = (random(4, 32, 4096, 128).requires_grad_() for _ in range(3))
    out, gradient = scaled_dot_product_attention(q, k, v, is_causal=True), random(4, 32, 4096, 128)
    large, second, scale = random(16384, 8192), random(16384, 8192), random(8192)
    return {
        "GEMM 8192 x 8192 x 8192": lambda: square @ other,
        "8 experts, 2048 x 4096 x 3072": lambda: torch.bmm(rows, weights),
        "attention, forward": lambda: scaled_dot_product_attention(
            q.detach(), k.detach(), v.detach(), is_causal=True
        ),
        "attention, backward": lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True),
        "addition, 256 MiB each": lambda: torch.add(large, second),
        "RMSNorm, 256 MiB": lambda: rms_norm(large, (8192,), scale),
    }


class Stopwatch:
    """Seconds on the device."""

    def __init__(self) -> None:
        import torch

        self.torch, self.side = torch, torch.cuda.Stream()

    def event(self) -> Any:
        return self.torch.cuda.Event(enable_timing=True)

    def alone(self, work: Callable[[], Any], count: int = 1) -> float:
        begin, end = self.event(), self.event()
        self.torch.cuda.synchronize()
        self.torch.cuda._sleep(1_000_000)
        begin.record()
        for _ in range(count):
            work()
        end.record()
        self.torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / count

    def beside(
        self, work: Callable[[], Any], count: int, hold: Holder, sms: int, rate: int, for_s: float
    ) -> tuple[float, float]:
        """Return seconds per call next to the holder, and the holder's GB/s; raises if the holder ends first."""
        begin, end, over = self.event(), self.event(), self.event()
        self.torch.cuda.synchronize()
        hold.moved.zero_()
        self.torch.cuda.synchronize()
        hold(sms, for_s, rate, self.side)
        over.record(self.side)
        self.torch.cuda._sleep(1_000_000)
        begin.record()
        for _ in range(count):
            work()
        end.record()
        self.torch.cuda.synchronize()
        if end.elapsed_time(over) < 0:
            raise RuntimeError(f"the kernel that holds {sms} SMs ended first")
        return begin.elapsed_time(end) / 1e3 / count, hold.moved.sum().item() / for_s / 1e9


def measure_kernels(hold: Holder) -> list[dict[str, Any]]:
    watch, rows = Stopwatch(), []
    for name, work in kernels().items():
        for _ in range(3):
            work()
        once = watch.alone(work, 4)
        count = max(3, round(4e-3 / once))
        for rate in RATES:
            for sms in HELD:
                alone, beside, moved = [], [], []
                for _ in range(REPEATS):
                    alone.append(watch.alone(work, count))
                    took, gb_per_s = watch.beside(work, count, hold, sms, rate, 2.5 * count * once + 2e-3)
                    beside.append(took)
                    moved.append(gb_per_s)
                rows.append({
                    "kernel": name, "sms": sms, "rate": rate, "moved_gb_per_s": statistics.median(moved),
                    "alone_s": statistics.median(alone), "beside_s": statistics.median(beside),
                })  # fmt: skip
    return rows


def operations(device: str = "cuda", tokens: int = 16384, hidden: int = 4096) -> dict[str, Callable[[], Any]]:
    """Return the compute of a layer with 8 local experts, by operation: GEMMs, attention, norms, activations."""
    import torch
    from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

    def random(*shape: int) -> Any:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    heads, sequence, middle = hidden // 128, min(4096, tokens), 3 * hidden // 8
    x, projected, scale = random(tokens, hidden), random(tokens, 3 * hidden), random(hidden)
    of_qkv, of_out = random(hidden, 3 * hidden), random(hidden, hidden)
    q, k, v = (random(tokens // sequence, heads, sequence, 128).requires_grad_() for _ in range(3))
    attended, gradient = scaled_dot_product_attention(q, k, v, is_causal=True), random(*q.shape)
    rows = random(8, tokens // 8, hidden)
    up, down = random(8, hidden, 2 * middle), random(8, middle, hidden)
    gates, inner = random(8, tokens // 8, 2 * middle), random(8, tokens // 8, middle)

    def before_f() -> None:
        rms_norm(x, (hidden,), scale) @ of_qkv
        scaled_dot_product_attention(q.detach(), k.detach(), v.detach(), is_causal=True)
        torch.add(x @ of_out, x)

    def before_i() -> None:
        x @ of_out.T
        torch.autograd.grad(attended, (q, k, v), gradient, retain_graph=True)
        torch.add(projected @ of_qkv.T, x)

    def before_w() -> None:
        x.T @ projected
        x.T @ x

    def experts_f() -> None:
        first, second = torch.bmm(rows, up).chunk(2, dim=-1)
        torch.bmm(silu(first) * second, down)

    def experts_i() -> None:
        torch.bmm(rows, down.transpose(1, 2)) * inner
        torch.bmm(gates, up.transpose(1, 2))

    def experts_w() -> None:
        torch.bmm(rows.transpose(1, 2), gates)
        torch.bmm(inner.transpose(1, 2), rows)

    return {
        "before F": before_f, "before I": before_i, "before W": before_w,
        "experts F": experts_f, "experts I": experts_i, "experts W": experts_w,
    }  # fmt: skip


def launching(order: str) -> list[tuple[int, str]]:
    """Return all operations of the pairs of layers, in an order in which the host can launch them."""
    queues = [
        [(number, one) for number in range(PAIRED_LAYERS) for one in stream] for stream in (COMPUTE, MESSAGES)
    ]
    launched: list[tuple[int, str]] = []
    while any(queues):
        for queue in queues:
            while queue and all(other in launched for other in needs(*queue[0], order)):
                launched.append(queue.pop(0))
    return launched


def needs(number: int, one: str, order: str) -> list[tuple[int, str]]:
    """Return the dependencies of an operation, in addition to the previous one on its stream."""
    before, distance = INPUTS_OF[order][one]
    return [(number - distance, before)] if number >= distance else []


def measure_pairs(hold: Holder) -> list[dict[str, Any]]:
    import torch

    watch, rows, run = Stopwatch(), [], operations()
    for _ in range(3):
        for work in run.values():
            work()
    main, side = torch.cuda.current_stream(), watch.side

    def together(sms: int, exchange_s: float, order: str) -> None:
        side.wait_stream(main)
        done: dict[tuple[int, str], Any] = {}
        for number, one in launching(order):
            stream = main if one in COMPUTE else side
            for other in needs(number, one, order):
                stream.wait_event(done[other])
            if stream is main:
                run[one]()
            else:
                hold(sms, exchange_s, 100, side)
            done[number, one] = torch.cuda.Event()
            done[number, one].record(stream)
        main.wait_stream(side)

    for exchange_s in EXCHANGES_S:
        for sms in (1, 20):
            for order in INPUTS_OF:
                alone: dict[str, list[float]] = {one: [] for one in run}
                took, messages = [], []
                for _ in range(REPEATS):
                    for one, work in run.items():
                        alone[one].append(watch.alone(work, 3))
                    took.append(watch.alone(lambda: together(sms, exchange_s, order)))  # noqa: B023
                    messages.append(watch.alone(lambda: hold(sms, exchange_s, 100, main)))  # noqa: B023
                rows.append({
                    "sms": sms, "order": order, "layers": PAIRED_LAYERS,
                    "exchange_s": statistics.median(messages), "together_s": statistics.median(took),
                    "alone_s": {one: statistics.median(times) for one, times in alone.items()},
                })  # fmt: skip
    return rows


def measure_attention() -> list[dict[str, Any]]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # kernels of torch's, not of attention
    watch, rows = Stopwatch(), []
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    for sequence in (4096, 8192, 16384):
        for heads in (32, 8):
            shape = (16384 // sequence, heads, sequence, 128)
            q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
            gradient = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            for name, backend in backends.items():
                row: dict[str, Any] = {"sequence": sequence, "heads": heads, "batch": shape[0], "kernel": name}
                try:
                    with sdpa_kernel(backend):
                        out = scaled_dot_product_attention(q, k, v, is_causal=True)

                    def backward(out: Any = out, inputs: Any = (q, k, v), gradient: Any = gradient) -> None:
                        torch.autograd.grad(out, inputs, gradient, retain_graph=True)

                    times: dict[bool, list[float]] = {False: [], True: []}
                    for repeat in range(REPEATS + 1):
                        for is_deterministic, found in times.items():
                            torch.use_deterministic_algorithms(is_deterministic)
                            took = watch.alone(backward, 3)
                            if repeat:
                                found.append(took)
                    row |= {
                        "backward_s": statistics.median(times[False]),
                        "deterministic_s": statistics.median(times[True]),
                    }
                except RuntimeError as error:
                    row["error"] = str(error).splitlines()[0]
                finally:
                    torch.use_deterministic_algorithms(False)
                rows.append(row)
    return rows


def record(path: Path) -> None:
    import torch

    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "num_sms": torch.cuda.get_device_properties(0).multi_processor_count,
    }  # fmt: skip
    hold = Holder(max(HELD))
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "kernels": lambda: measure_kernels(hold),
        "pairs": lambda: measure_pairs(hold),
        "attention": measure_attention,
    }
    for name, measure in parts.items():
        try:
            found[name] = measure()
        except Exception as error:
            found[f"{name} failed"] = f"{type(error).__name__}: {error}"
            print(f"{name}: {found[f'{name} failed']}")
        write_atomically(path, json.dumps(found, indent=1, allow_nan=False) + "\n")


def report(found: dict[str, Any]) -> None:
    num_sms = found["num_sms"]
    print(f"{found['device']}, {num_sms} SMs, torch {found['torch']}\n")
    print("| kernel | alone | GB/s | " + " | ".join(f"{sms} SMs" for sms in HELD) + " |")
    print("|---|--:|--:|" + "--:|" * len(HELD))
    expected = " | ".join(f"+{sms / (num_sms - sms):.1%}".replace("%", " %") for sms in HELD)
    print(f"| assumed | | | {expected} |")
    for name in dict.fromkeys(row["kernel"] for row in found["kernels"]):
        for rate in RATES:
            rows = [row for row in found["kernels"] if row["kernel"] == name and row["rate"] == rate]
            alone = statistics.median(row["alone_s"] for row in rows)
            moved = max(row["moved_gb_per_s"] for row in rows)
            longer = " | ".join(signed_percent(row["beside_s"] / row["alone_s"] - 1) for row in rows)
            print(f"| {name} | {seconds(alone)} | {moved:.0f} | {longer} |")

    print("\n| order | SMs | message | one after the other | projected | measured | error |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    errors = []
    for row in found["pairs"]:
        took, exchange_s = row["alone_s"], row["exchange_s"]
        before, experts = (tuple(took[f"{part} {op}"] for op in "FIW") for part in ("before", "experts"))
        layers = [LayerTimes(before=before, experts=experts, exchange_s=exchange_s)] * row["layers"]
        projected = pair_s(layers, layers, row["order"], slowdown=row["sms"] / num_sms)
        alone = sum(layer.forward_s + layer.backward_s for layer in layers)
        errors.append(projected / row["together_s"] - 1)
        print(
            f"| {row['order']} | {row['sms']} | {seconds(exchange_s)} | {seconds(alone)} | {seconds(projected)} "
            f"| {seconds(row['together_s'])} | {signed_percent(errors[-1])} |"
        )
    mean, absolute = statistics.mean(errors), statistics.mean(map(abs, errors))
    print(
        f"\npairs: mean {signed_percent(mean)}, mean absolute {signed_percent(absolute).lstrip('+')}, "
        f"worst {signed_percent(max(errors, key=abs))}"
    )

    print("\n| sequence | heads | kernel | backward | deterministic | longer |")
    print("|--:|--:|---|--:|--:|--:|")
    for row in found["attention"]:
        shape = f"| {row['batch']} × {row['sequence']} | {row['heads']} | {row['kernel']} "
        if "error" in row:
            print(f"{shape}| – | {row['error']} | – |")
            continue
        longer = signed_percent(row["deterministic_s"] / row["backward_s"] - 1)
        print(f"{shape}| {seconds(row['backward_s'])} | {seconds(row['deterministic_s'])} | {longer} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--record", type=Path, metavar="FILE", help="measure, and write what was measured there")
    group.add_argument("--report", type=Path, metavar="FILE", help="compare what --record wrote")
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.record)
    else:
        report(json.loads(arguments.report.read_text()))


if __name__ == "__main__":
    main()
