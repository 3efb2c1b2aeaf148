"""Microbenchmarks of a device: GEMMs, attention, memory, copies, and GEMMs overlapped with copies."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ppsim.base.files import read_json, to_json, write_atomically
from ppsim.base.units import size
from ppsim.profiling.grids import AttentionSizes, BenchmarkGrid, grid_of
from ppsim.profiling.layers import grouped_mm
from ppsim.profiling.measure import is_asynchronous
from ppsim.profiling.settings import MeasuringSettings, Say, summarise_samples
from ppsim.profiling.timing import first_sentence, is_out_of_memory
from ppsim.runtime.clock import clock_of

Work = Callable[[], object]

_FEWEST, _MOST = 5, 30  # samples of a point
_MOST_RUNS = 250
"""Maximum number of runs per sample: a GPU's queue holds a thousand kernels, and then the host waits."""

_MOST_OPERANDS = 200


def add_facts(
    path: str,
    settings: MeasuringSettings,
    dtype: str,
    *,
    grid: BenchmarkGrid | None = None,
    say: Say = lambda message: None,
) -> dict[str, Any]:
    """Add the missing benchmarks in one number format to the profile at `path`, and return all of them."""
    content = read_json(path)
    facts: dict[str, Any] = content.get("device_facts") or {}
    if has_facts(facts, dtype):
        say(f"facts of the device in {dtype} are in {path} already")
        return facts
    found = measure_facts(settings, dtype, grid=grid, say=say)
    for name, points in found.items():
        there = facts.get(name, [])
        of_no_type = [point for point in there if "dtype" not in point]
        facts[name] = there + [point for point in points if point not in there and not of_no_type]
    write_atomically(path, to_json(content | {"device_facts": facts}))
    return facts


def has_facts(facts: dict[str, Any], dtype: str) -> bool:
    return any(product["dtype"] == dtype for product in facts.get("products", []))


def measure_facts(
    settings: MeasuringSettings, dtype: str, *, grid: BenchmarkGrid | None = None, say: Say = lambda message: None
) -> dict[str, Any]:
    torch.set_num_threads(settings.num_threads)
    torch.manual_seed(0)
    where = torch.device(settings.device)
    bench = _Bench(where, getattr(torch, dtype), grid or grid_of(settings.device))
    facts: dict[str, Any] = {}
    for name, what, measured in (
        ("products", "products of matrices", _products),
        ("attention", "attention", _attention),
        ("memory", "memory", _memory),
        ("host_transfers", "copies between host and device", _host_transfers),
        ("device_transfers", "transfers between devices", _device_transfers),
        ("beside_copies", "a product beside a copy", _beside_copies),
    ):
        say(f"measuring {what}")
        facts[name] = []
        with bench.fits(what):
            for point in measured(bench):
                facts[name].append(point)
        bench.release()
    return facts | {"not_measured": bench.not_measured}


class _Bench:
    def __init__(self, where: torch.device, kind: torch.dtype, grid: BenchmarkGrid) -> None:
        self.where, self.kind, self.grid = where, kind, grid
        self.not_measured: list[str] = []

    @property
    def dtype(self) -> str:
        return str(self.kind).removeprefix("torch.")

    def randn(self, *sizes: int) -> Tensor:
        return torch.randn(*sizes, device=self.where, dtype=self.kind)

    def random_bytes(self, count: int) -> Tensor:
        return torch.randint(256, (count,), dtype=torch.uint8, device=self.where)

    def copies(self, num_bytes: int) -> int:
        """Return the number of sets of operands to rotate, so that no operand is found in a cache."""
        return max(1, min(_MOST_OPERANDS, -(-self.grid.rotated_bytes // num_bytes)))

    def timed(self, works: Sequence[Work]) -> dict[str, float]:
        """Return median and quartiles of the seconds per run; a sample is several runs, rotated over the works."""
        clock, turn = clock_of(self.where), itertools.cycle(works)

        def run(times: int) -> None:
            for _ in range(times):
                next(turn)()

        run(len(works) + 1)
        once = max(clock.time(run, len(works))[1]() / len(works), 1e-7)
        times = max(1, min(_MOST_RUNS, round(self.grid.sample_s / once)))
        num_samples = max(_FEWEST, min(_MOST, int(self.grid.point_s / (once * times))))
        launch_s = clock.time_launch(run, times)[1]() if is_asynchronous(self.where) else 0.0
        samples = [clock.time(run, times, launch_s=launch_s)[1] for _ in range(num_samples)]
        return summarise_samples([seconds() / times for seconds in samples])

    @contextmanager
    def fits(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            too_large = is_out_of_memory(error)
            why = "does not fit the memory of the device" if too_large else f"fails ({first_sentence(error)})"
            self.not_measured.append(f"{what}: {why}")
            self.release()

    def release(self) -> None:
        if self.where.type == "cuda":
            torch.cuda.empty_cache()


def _products(bench: _Bench) -> Iterator[dict[str, Any]]:
    for tokens, (inputs, outputs) in itertools.product(bench.grid.tokens, bench.grid.weights):
        with bench.fits(f"product of {tokens} tokens with [{outputs}, {inputs}]"):
            yield from _linear(bench, tokens, inputs, outputs)
    if bench.where.type == "cuda" and bench.kind != torch.bfloat16:
        bench.not_measured.append(f"grouped products in {bench.dtype}: torch has them in bfloat16")
        return
    for tokens, (groups, inputs, outputs) in itertools.product(bench.grid.tokens, bench.grid.groups):
        with bench.fits(f"product of {groups} groups with [{outputs}, {inputs}]"):
            num_bytes = (tokens * (inputs + outputs) + groups * inputs * outputs) * bench.kind.itemsize
            parts = [
                (bench.randn(tokens, inputs), bench.randn(groups, inputs, outputs))
                for _ in range(bench.copies(num_bytes))
            ]
            counts = torch.full((groups,), tokens // groups, device=bench.where)
            seconds = bench.timed([partial(grouped_mm, rows, weights, counts) for rows, weights in parts])
            yield _product(bench, "forward", tokens, outputs, inputs, seconds, groups=groups)


def _linear(bench: _Bench, tokens: int, inputs: int, outputs: int) -> Iterator[dict[str, Any]]:
    num_bytes = (tokens * (inputs + outputs) + inputs * outputs) * bench.kind.itemsize
    parts = [
        (bench.randn(tokens, inputs), bench.randn(outputs, inputs), bench.randn(tokens, outputs))
        for _ in range(bench.copies(num_bytes))
    ]
    forms: tuple[tuple[str, int, int, int, list[Work]], ...] = (
        ("forward", tokens, outputs, inputs, [partial(torch.matmul, x, w.t()) for x, w, _ in parts]),
        ("input", tokens, inputs, outputs, [partial(torch.matmul, dy, w) for _, w, dy in parts]),
        ("weight", outputs, inputs, tokens, [partial(torch.matmul, dy.t(), x) for x, _, dy in parts]),
    )
    for form, m, n, k, works in forms:
        yield _product(bench, form, m, n, k, bench.timed(works))


def _product(
    bench: _Bench, form: str, m: int, n: int, k: int, seconds: dict[str, float], *, groups: int = 1
) -> dict[str, Any]:
    return {"form": form, "m": m, "n": n, "k": k, "groups": groups, "dtype": bench.dtype, "seconds": seconds}


def _attention(bench: _Bench) -> Iterator[dict[str, Any]]:
    for shape in bench.grid.attention:
        with bench.fits(f"attention of {shape.num_heads} heads, sequence length {shape.sequence_length}"):
            yield asdict(shape) | {"dtype": bench.dtype} | _attended(bench, shape)


def _attended(bench: _Bench, shape: AttentionSizes) -> dict[str, Any]:
    batch, sequence, head = shape.micro_batch, shape.sequence_length, shape.head_size
    is_grouped = shape.num_kv_heads != shape.num_heads

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=is_grouped)

    num_bytes = 2 * batch * sequence * (shape.num_heads + shape.num_kv_heads) * head * bench.kind.itemsize
    forwards: list[Work] = []
    backwards: list[Work] = []
    for _ in range(bench.copies(num_bytes)):
        operands = [
            bench.randn(batch, sequence, heads, head).transpose(1, 2).requires_grad_()
            for heads in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        ]
        output = forward(*operands)
        forwards.append(partial(forward, *operands))
        grad = torch.randn_like(output)
        backwards.append(partial(torch.autograd.grad, output, operands, grad, retain_graph=True))
    return {"forward_s": bench.timed(forwards), "backward_s": bench.timed(backwards)}


def _memory(bench: _Bench) -> Iterator[dict[str, Any]]:
    row = 1024
    for num_bytes in bench.grid.memory_bytes:
        with bench.fits(f"operands of {size(num_bytes)}"):
            rows = max(1, num_bytes // bench.kind.itemsize // row)
            sets = [[bench.randn(rows, row) for _ in range(3)] for _ in range(bench.copies(3 * num_bytes))]
            kernels: dict[str, tuple[int, list[Work]]] = {
                "copy": (2, [partial(result.copy_, one) for one, _, result in sets]),
                "elementwise": (3, [partial(torch.mul, one, other, out=result) for one, other, result in sets]),
                "norm": (2, [partial(functional.rms_norm, one, (row,)) for one, _, _ in sets]),
            }
            for kernel, (operands, works) in kernels.items():
                moved, seconds = operands * sets[0][0].nbytes, bench.timed(works)
                yield {"kernel": kernel, "bytes": moved, "dtype": bench.dtype, "seconds": seconds}


def _host_transfers(bench: _Bench) -> Iterator[dict[str, Any]]:
    if bench.where.type != "cuda":
        bench.not_measured.append("copies between host and device: the device is the host")
        return
    for num_bytes in bench.grid.memory_bytes:
        there = bench.random_bytes(num_bytes)
        here = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).copy_(there)
        for direction, to, source in (("to_device", there, here), ("to_host", here, there)):
            seconds = bench.timed([partial(to.copy_, source, non_blocking=True)])
            yield {"direction": direction, "bytes": num_bytes, "seconds": seconds}


def _device_transfers(bench: _Bench) -> Iterator[dict[str, Any]]:
    """NCCL's collectives over all devices run from this one process."""
    count = torch.cuda.device_count() if bench.where.type == "cuda" else 1
    if count < 2:
        bench.not_measured.append("transfers and collectives between devices: there is one device")
        return
    from torch.cuda import nccl

    for num_bytes in bench.grid.memory_bytes:
        parts = [torch.empty(num_bytes, dtype=torch.uint8, device=f"cuda:{index}") for index in range(count)]
        gathered = [torch.empty(count * num_bytes, dtype=torch.uint8, device=part.device) for part in parts]
        kinds: dict[str, tuple[int, Work]] = {
            "p2p": (2, partial(parts[1].copy_, parts[0], non_blocking=True)),
            "all_reduce": (count, partial(nccl.all_reduce, parts)),
            "all_gather": (count, partial(nccl.all_gather, parts, gathered)),
            "reduce_scatter": (count, partial(nccl.reduce_scatter, gathered, parts)),
        }
        for kind, (devices, work) in kinds.items():
            yield {"kind": kind, "num_devices": devices, "bytes": num_bytes, "seconds": bench.timed([work])}


def _beside_copies(bench: _Bench) -> Iterator[dict[str, Any]]:
    length, num_bytes = bench.grid.beside, max(bench.grid.memory_bytes)
    x, weight = bench.randn(length, length), bench.randn(length, length)
    target = torch.empty(num_bytes, dtype=torch.uint8, device=bench.where)
    sources = {"device": bench.random_bytes(num_bytes)}
    if bench.where.type == "cuda":
        sources["host"] = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).copy_(sources["device"])
    alone = bench.timed([partial(torch.matmul, x, weight)])
    for name, source in sources.items():
        copying = _copying_stream if bench.where.type == "cuda" else _copying_thread
        with copying(target, source) as went_on:
            beside = bench.timed([partial(torch.matmul, x, weight)])
            is_beside = went_on()
        if is_beside:
            yield {"copy_of": name, "dtype": bench.dtype, "alone_s": alone, "beside_s": beside}
        else:
            bench.not_measured.append(f"a product beside a copy of the {name}: the copies ended before it")


@contextmanager
def _copying_thread(target: Tensor, source: Tensor) -> Iterator[Callable[[], bool]]:
    is_over = threading.Event()

    def copy() -> None:
        while not is_over.is_set():
            target.copy_(source)

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        yield lambda: True
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _copying_stream(target: Tensor, source: Tensor) -> Iterator[Callable[[], bool]]:
    """Queue half a second of copies on a side stream; yields a function that says if they are still running."""
    side, copy = torch.cuda.Stream(), partial(target.copy_, source, non_blocking=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        copy()
        _, once = clock_of(target.device).time(copy)
        for _ in range(max(1, int(0.5 / once()))):
            copy()
    try:
        yield lambda: not side.query()
    finally:
        side.synchronize()
