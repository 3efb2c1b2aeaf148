"""The device's own facts: every kind on a CPU, into a file that has them once a type."""

import contextlib
import dataclasses
import json
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.base.file_schema import validated

pytest.importorskip("torch")

import torch

from ppsim.base.files import to_json
from ppsim.costs.profile import load_profile
from ppsim.machine.kernels.microbenchmarks import DeviceMicrobenchmarks
from ppsim.profiling import device_microbenchmarks as bench_module
from ppsim.profiling import device_microbenchmarks as facts_module
from ppsim.profiling.device_microbenchmarks import add_facts, measure_facts
from ppsim.profiling.grids import CPU, CUDA, QUICK, BenchmarkGrid
from ppsim.profiling.settings import MeasuringSettings
from ppsim.profiling.sweep import sweep
from tests.profiling.test_sweep import nano_at, profiled


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return measure_facts(MeasuringSettings(), "float32", grid=QUICK)


def test_what_was_measured_is_of_the_schema(found: dict[str, Any]) -> None:
    facts = validated(DeviceMicrobenchmarks, json.loads(to_json(found)), "test")
    assert len(facts.products) == len(QUICK.tokens) * (3 * len(QUICK.weights) + len(QUICK.groups))
    assert len(facts.attention) == len(QUICK.attention)
    assert {fact.kernel for fact in facts.memory} == {"copy", "elementwise", "norm"}
    assert [fact.copy_of for fact in facts.beside_copies] == ["device"]
    assert facts.not_measured == [
        "copies between host and device: the device is the host",
        "transfers and collectives between devices: there is one device",
    ]


def test_the_three_products_of_a_linear_layer_are_measured_as_autograd_does_them(found: dict[str, Any]) -> None:
    """16 tokens, 32 in, 128 out; the weight's gradient sums over tokens."""
    sizes = {(one["form"], one["m"], one["n"], one["k"]) for one in found["products"] if one["groups"] == 1}
    assert {("forward", 16, 128, 32), ("input", 16, 32, 128), ("weight", 128, 32, 16)} <= sizes


def test_a_sample_of_many_runs_is_divided_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock by which a run takes 2 ms, a sample of 8 ms is 4 runs, and 5 samples are the fewest."""

    class Clock:
        def __init__(self, device: torch.device) -> None:
            pass

        def time(self, work: Any, times: int, launch_s: float = 0.0) -> tuple[None, Any]:
            work(times)
            return None, lambda: 2e-3 * times

    monkeypatch.setattr(facts_module, "clock_of", Clock)
    grid = dataclasses.replace(QUICK, sample_s=8e-3, point_s=1e-3)
    runs: list[str] = []
    works = [partial(runs.append, "one"), partial(runs.append, "other")]
    seconds = facts_module._Bench(torch.device("cpu"), torch.float32, grid).timed(works)
    assert seconds == {"median": 2e-3, "low": 2e-3, "high": 2e-3}
    assert len(runs) == 3 + 2 + 5 * 4  # warm-up, once each, samples
    assert abs(runs.count("one") - runs.count("other")) <= 1


def test_a_gpu_sleeps_until_all_runs_of_a_sample_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of 0.5 µs that takes 5 µs to launch: on stand-ins for events, what a sample's two stand around."""
    now, order = [0.0], []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            pass

        def record(self) -> None:
            order.append("event")

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, last: Any) -> float:
            return 8 * 0.5e-3  # ms

    class Stream:
        def synchronize(self) -> None:
            pass

    def launch() -> None:
        now[0] += 5e-6
        order.append("launch")

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    for name, stand_in in {
        "Event": Event, "current_stream": Stream, "_sleep": lambda cycles: order.append(f"sleep {cycles / 3e9:.1e} s"),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    grid = dataclasses.replace(QUICK, sample_s=8 * 4e-6, point_s=1e-9)
    bench = facts_module._Bench(torch.device("cuda"), torch.float32, grid)
    seconds = bench.timed([launch])
    sample = ["sleep 4.0e-05 s", "event", *["launch"] * 8, "event"]
    assert order[-5 * len(sample) :] == 5 * sample
    assert seconds["median"] == pytest.approx(0.5e-6)


def test_every_operand_is_rotated_over_more_than_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers, all of them: a GPU computes on zeros above the clock that it holds on data."""
    rotated: list[int] = []
    operands: list[torch.Tensor] = []

    def timed(bench: Any, works: list[Any]) -> dict[str, float]:
        rotated.append(len(works))
        for work in works:
            operands.extend(one for one in work.args if isinstance(one, torch.Tensor) and one.numel() > 64)
        return {"median": 1.0, "low": 1.0, "high": 1.0}

    monkeypatch.setattr(facts_module._Bench, "timed", timed)
    monkeypatch.setattr(facts_module, "_beside_copies", lambda bench: [])
    measure_facts(MeasuringSettings(), "float32", grid=dataclasses.replace(QUICK, rotated_bytes=2**20))
    assert min(rotated) >= 5  # 2^20 bytes of at most three operands of 2^16
    assert all(float(one.detach().float().std()) > 0.05 for one in operands)  # of attention's means the least


def test_bytes_of_a_kernel_are_read_and_written_ones(found: dict[str, Any]) -> None:
    """Operands of 2¹⁶ bytes: one read and one written by a copy, two read and one written by a product."""
    moved = {one["kernel"]: one["bytes"] for one in found["memory"]}
    assert moved == {"copy": 2 * 2**16, "elementwise": 3 * 2**16, "norm": 2 * 2**16}


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "does not fit the memory of the device"),
        (RuntimeError("No available kernel. Aborting execution."), "fails (No available kernel)"),
    ],
)
def test_a_point_that_does_not_fit_or_fails_is_left_out_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError, why: str
) -> None:
    def fails(*arguments: Any, **keywords: Any) -> torch.Tensor:
        raise error

    monkeypatch.setattr(facts_module.functional, "scaled_dot_product_attention", fails)
    found = measure_facts(MeasuringSettings(), "float32", grid=QUICK)
    assert found["attention"] == []
    assert f"attention of 2 heads, sequence length 16: {why}" in found["not_measured"]
    assert found["products"]


def test_facts_are_measured_once_a_type_into_the_file(tmp_path: Path) -> None:
    path, said = tmp_path / "p.json", []
    settings = MeasuringSettings(num_repeats=1, num_warm_up=0)
    sweep(nano_at(path, 1), settings)
    first = add_facts(str(path), settings, "float32", grid=QUICK)
    before = path.read_bytes()
    assert add_facts(str(path), settings, "float32", grid=QUICK, say=said.append) == first
    assert said == [f"facts of the device in float32 are in {path} already"]
    assert path.read_bytes() == before
    both = add_facts(str(path), settings, "bfloat16", grid=QUICK)
    assert len(both["products"]) == 2 * len(first["products"])
    assert both["not_measured"] == first["not_measured"]
    assert load_profile(str(path)).device_facts == validated(DeviceMicrobenchmarks, both, "test")
    sweep(nano_at(path, 1, 2), settings)
    assert json.loads(path.read_text())["device_facts"] == both  # a sweep that goes on leaves them


def test_the_command_measures_them_and_project_estimates_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from ppsim.cli import main

    monkeypatch.setattr("ppsim.profiling.grids.CPU", QUICK)
    path = str(tmp_path / "p.json")
    arguments = ["--model", "llama-mini", "--seq-len", "16", "-o", path]
    assert profiled(*arguments).exit_code == 0
    command = ["project", "--pp", "2", "--profile", path, "--micro-batch-size", "3", "--json"]
    assert CliRunner().invoke(main, command).exit_code == 2
    made = profiled(*arguments, "--facts")
    assert made.exit_code == 0, made.output
    assert "MFU, float32: model FLOPs" in made.stdout
    report = json.loads(CliRunner().invoke(main, command).stdout)
    assert any("estimated from those measured at micro-batch 2" in line for line in report["assumptions"])


@pytest.mark.parametrize("grid", [CPU, CUDA])
def test_grids_hold_what_they_promise(grid: BenchmarkGrid) -> None:
    """Tokens are divided among groups without a rest, and heads among key/value heads."""
    assert all(tokens % groups == 0 for tokens in grid.tokens for groups, _, _ in grid.groups)
    assert all(one.num_heads % one.num_kv_heads == 0 for one in grid.attention)


def test_time_limit_and_facts_are_for_models(tmp_path: Path) -> None:
    made = profiled("--module", "a:b", "--facts", "-o", str(tmp_path / "p.json"))
    assert made.exit_code == 2
    assert "--facts and --time-limit are for models" in made.stderr


def test_a_point_has_5_to_30_samples_of_at_most_250_runs() -> None:
    names = ("_FEWEST", "_MOST", "_MOST_RUNS", "_MOST_OPERANDS")
    assert [getattr(bench_module, name) for name in names] == [5, 30, 250, 200]


class Timed(facts_module._Bench):
    """Runs the first work of each point, and reports its number as the time."""

    def __init__(self, grid: BenchmarkGrid, kind: torch.dtype = torch.float32, *, is_gpu: bool = False) -> None:
        super().__init__(torch.device("cpu"), kind, grid)
        if is_gpu:
            self.where = SimpleNamespace(type="cuda")  # type: ignore[assignment]
        self.results: list[Any] = []
        self.num_works: list[int] = []

    def randn(self, *sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, dtype=self.kind)

    def random_bytes(self, count: int) -> torch.Tensor:
        return torch.full((count,), 7, dtype=torch.uint8)

    def timed(self, works: Any) -> Any:
        self.results.append(works[0]())
        self.num_works.append(len(works))
        return len(self.results)


def test_products_have_their_sizes_and_as_many_operands_as_exceed_a_cache() -> None:
    """Of bytes read and written: a product of 6 tokens, 3 in, 5 out, and one of 2 groups."""
    grid = dataclasses.replace(
        QUICK, tokens=(6,), weights=((3, 5),), groups=((2, 3, 5),), rotated_bytes=8 * (6 * 8 + 15) * 3 + 1
    )
    bench = Timed(grid, torch.float64)
    found = [tuple(one.values()) for one in facts_module._products(bench)]
    assert found == [
        ("forward", 6, 5, 3, 1, "float64", 1), ("input", 6, 3, 5, 1, "float64", 2),
        ("weight", 5, 3, 6, 1, "float64", 3), ("forward", 6, 5, 3, 2, "float64", 4),
    ]  # fmt: skip
    assert [tuple(one.shape) for one in bench.results] == [(6, 5), (6, 3), (5, 3), (6, 5)]
    assert bench.num_works == [4, 4, 4, -(-(8 * (6 * 8 + 15) * 3 + 1) // (8 * (6 * 8 + 30)))]
    bench = Timed(grid, torch.float32, is_gpu=True)
    assert len(list(facts_module._products(bench))) == 3
    assert bench.not_measured == ["grouped products in float32: torch has them in bfloat16"]


def test_attention_has_its_sizes_and_as_many_operands_as_exceed_a_cache() -> None:
    shape = dataclasses.replace(
        QUICK.attention[0], micro_batch=3, sequence_length=5, num_heads=4, num_kv_heads=2, head_size=8
    )
    bench = Timed(dataclasses.replace(QUICK, attention=(shape,), rotated_bytes=4 * 2 * 3 * 5 * 6 * 8 * 3))
    [found] = facts_module._attention(bench)
    assert found == dataclasses.asdict(shape) | {"dtype": "float32", "forward_s": 1, "backward_s": 2}
    output, grads = bench.results
    assert output.shape == (3, 4, 5, 8)
    assert [tuple(grad.shape) for grad in grads] == [(3, 4, 5, 8), (3, 2, 5, 8), (3, 2, 5, 8)]
    assert bench.num_works == [3, 3]


def test_memory_is_measured_with_operands_of_its_bytes() -> None:
    bench = Timed(dataclasses.replace(QUICK, memory_bytes=(8192, 3), rotated_bytes=8192 * 3 * 5), torch.float64)
    found = [(one["kernel"], one["bytes"]) for one in facts_module._memory(bench)]
    times = {"copy": 2, "elementwise": 3, "norm": 2}
    assert found == [(kernel, number * 8192) for _ in range(2) for kernel, number in times.items()]
    assert bench.num_works == [5] * 3 + [facts_module._MOST_OPERANDS] * 3
    assert bench.results[2].square().mean().item() == pytest.approx(1.0, rel=1e-3)


def test_transfers_have_their_directions_kinds_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    empty, made, called = torch.empty, [], []

    def allocated(count: int, *, device: object = None, **keywords: Any) -> torch.Tensor:
        made.append((count, str(device), keywords.pop("pin_memory", False)))
        return empty(count, **keywords)

    monkeypatch.setattr(torch, "empty", allocated)
    bench = Timed(dataclasses.replace(QUICK, memory_bytes=(16, 48)), is_gpu=True)
    found = [tuple(one.values()) for one in facts_module._host_transfers(bench)]
    assert found == [("to_device", 16, 1), ("to_host", 16, 2), ("to_device", 48, 3), ("to_host", 48, 4)]
    assert made == [(16, "None", True), (48, "None", True)]
    assert bench.results[0] is not bench.results[1]
    made.clear()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        monkeypatch.setattr(
            f"torch.cuda.nccl.{name}",
            lambda *lists, name=name: called.append((name, *(one[0].numel() for one in lists))),
        )
    bench = Timed(dataclasses.replace(QUICK, memory_bytes=(16,)), is_gpu=True)
    found = [tuple(one.values()) for one in facts_module._device_transfers(bench)]
    assert found == [
        ("p2p", 2, 16, 1),
        ("all_reduce", 3, 16, 2),
        ("all_gather", 3, 16, 3),
        ("reduce_scatter", 3, 16, 4),
    ]
    assert called == [("all_reduce", 16), ("all_gather", 16, 48), ("reduce_scatter", 48, 16)]
    assert [(count, device) for count, device, _ in made[:3]] == [(16, f"cuda:{index}") for index in range(3)]
    assert [count for count, *_ in made[3:]] == [48] * 3
    for count, reasons in ((2, []), (1, ["transfers and collectives between devices: there is one device"])):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        bench = Timed(dataclasses.replace(QUICK, memory_bytes=(16,)), is_gpu=True)
        assert bool(list(facts_module._device_transfers(bench))) == (count > 1)
        assert bench.not_measured == reasons


def test_a_product_beside_copies_counts_while_the_copies_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    empty, copied = torch.empty, []
    monkeypatch.setattr(
        torch, "empty", lambda count, *, dtype, device=None, pin_memory=False: empty(count, dtype=dtype)
    )

    @contextlib.contextmanager
    def copying(target: torch.Tensor, source: torch.Tensor) -> Any:
        copied.append((target.numel(), source.tolist()))
        yield lambda: len(copied) == 1

    monkeypatch.setattr(facts_module, "_copying_stream", copying)
    bench = Timed(dataclasses.replace(QUICK, memory_bytes=(16, 48, 32), beside=5), is_gpu=True)
    found = list(facts_module._beside_copies(bench))
    assert found == [{"copy_of": "device", "dtype": "float32", "alone_s": 1, "beside_s": 2}]
    assert copied == [(48, [7] * 48)] * 2
    assert bench.not_measured == ["a product beside a copy of the host: the copies ended before it"]
    assert [tuple(one.shape) for one in bench.results] == [(5, 5)] * 3


def test_copies_are_queued_for_half_a_second_and_end_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    copies, calls = [], []
    side = SimpleNamespace(
        wait_stream=lambda other: calls.append(other), query=lambda: calls[-1] == "done",
        synchronize=lambda: calls.append("synchronized"),
    )  # fmt: skip
    clock = SimpleNamespace(time=lambda work: (work(), lambda: 0.06))
    target = SimpleNamespace(
        copy_=lambda source, non_blocking: copies.append((source, non_blocking)), device="cuda"
    )
    monkeypatch.setattr(torch.cuda, "Stream", lambda: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "current")
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(facts_module, "clock_of", lambda device: clock)
    with facts_module._copying_stream(target, "source") as goes_on:
        assert goes_on()
        calls.append("done")
        assert not goes_on()
    assert copies == [("source", True)] * (1 + 1 + 8)
    assert calls == ["current", "done", "synchronized"]
    copied: list[object] = []
    slow = SimpleNamespace(copy_=lambda source: (copied.append(source), time.sleep(1e-3)))
    with facts_module._copying_thread(slow, "source") as goes_on:
        while not copied:
            time.sleep(1e-3)
        assert goes_on()
    number = len(copied)
    time.sleep(5e-3)
    assert len(copied) == number


def test_operands_are_random_and_enough_to_exceed_a_cache() -> None:
    bench = facts_module._Bench(torch.device("cpu"), torch.float64, dataclasses.replace(QUICK, rotated_bytes=1000))
    assert [bench.copies(size) for size in (3000, 1000, 300, 1)] == [1, 1, 4, 200]
    drawn = bench.random_bytes(4000)
    assert (drawn.shape, drawn.dtype, drawn.min().item(), drawn.max().item()) == ((4000,), torch.uint8, 0, 255)
    assert (bench.randn(3, 5).dtype, bench.randn(3, 5).shape, bench.dtype) == (torch.float64, (3, 5), "float64")
    products = {"products": [{"dtype": "float32"}, {"dtype": "float64"}]}
    assert [facts_module.has_facts(facts, "float64") for facts in (products, {}, {"products": []})] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_attention_is_causal_and_grouped_if_heads_share_keys(
    num_kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = dataclasses.replace(
        QUICK.attention[0], micro_batch=1, sequence_length=3, num_heads=4, num_kv_heads=num_kv_heads, head_size=2
    )
    attend, asked = facts_module.functional.scaled_dot_product_attention, []
    monkeypatch.setattr(
        facts_module.functional, "scaled_dot_product_attention",
        lambda q, k, v, **how: asked.append((q, k, v, how)) or attend(q, k, v, **how),
    )  # fmt: skip
    output = Timed(dataclasses.replace(QUICK, attention=(shape,), rotated_bytes=1))
    list(facts_module._attention(output))
    q, _, v, how = asked[-1]
    assert how == {"is_causal": True, "enable_gqa": num_kv_heads == 2}
    torch.testing.assert_close(output.results[0][0, 0, 0], v[0, 0, 0])
    assert (q.shape[1], v.shape[1]) == (4, num_kv_heads)
