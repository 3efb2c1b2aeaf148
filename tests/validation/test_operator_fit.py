"""Operators by kind from a recorded run: multipliers are found again, and project other jobs of the cluster."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import ppsim
from ppsim.api.project import plan_of_keywords
from ppsim.base.errors import ConfigError
from ppsim.machine.cluster import Cluster, Constant
from ppsim.machine.cluster_files import load_cluster
from ppsim.projection.project import outcome_of
from ppsim.runs.readers.recording import kernels_per_step
from ppsim.trainers.torch.read_trace import recording_of
from ppsim.validation.bayesian_fit import _busy_s, _projected_s, operator_constants
from ppsim.validation.published_runs import RecordedTimes

BASE = load_cluster("dgx-h100")
CONFIG = "model: {model}\n"
JOB = {
    "model": "llama3-8b", "gpus": 8, "tp": 2, "global_batch": 32, "seq_len": 4096, "stack": "plain",
    "cross_entropy": "compiled",  # Megatron-LM refuses the fused one
}  # fmt: skip
OTHERS = (
    {**JOB, "seq_len": 16384}, {**JOB, "tp": 4, "pp": 2}, {**JOB, "model": "llama3-70b", "tp": 8},
)  # fmt: skip
TIMES = {"gemm-bfloat16": 1.2, "attention": 0.8, "memory": 1.5}
NAMES = {
    "gemm-bfloat16": "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NTT", "attention": "flash_fwd_kernel", "memory": "norm_fwd",
    "experts-bfloat16": "cutlass::gemm::GroupProblemShape",
}  # fmt: skip
DUMP = Path(__file__).parents[1] / "runs" / "data" / "primus_pp8_1f1b"


def slowed(times: Mapping[str, float]) -> Cluster:
    made = {f"operator_time.{kind}": Constant(value=value) for kind, value in times.items()}
    return BASE.with_constants(BASE.constants.having(made))


def step_s(words: Mapping[str, object], cluster: object) -> float:
    return outcome_of(plan_of_keywords({**words, "cluster": cluster}))[0]


def trace_of(words: Mapping[str, object], times: Mapping[str, float], *, names: Mapping[str, str] = NAMES) -> str:
    """A trace of two steps whose kernels take `times` the projected time, each kind as one kernel."""
    plan = plan_of_keywords({**words, "cluster": BASE})
    assert plan.job is not None
    whole_us = 1e6 * step_s(words, slowed(times))
    gap_s = BASE.device.efficiency.kernel_s
    events = []
    for step in range(2):
        begin = step * whole_us
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": begin, "dur": whole_us}
        )
        for number, (kind, times_as_long) in enumerate(times.items()):
            seconds = times_as_long * _projected_s(plan, plan.job, kind, _busy_s(plan)) - gap_s
            events.append(
                {"ph": "X", "cat": "kernel", "name": names[kind], "ts": begin, "dur": 1e6 * seconds,
                 "args": {"correlation": 10 * step + number}}
            )  # fmt: skip
    return json.dumps({"traceEvents": events})


def fitted(tmp_path: Path, words: Mapping[str, object], text: str) -> Path:
    (tmp_path / "trace.json").write_text(text)
    plan = plan_of_keywords({**words, "cluster": "dgx-h100"})
    made = ppsim.project(plan)
    (tmp_path / "config.sh").write_text(ppsim.trainer_options(made, "megatron"))
    found = ppsim.fit(tmp_path / "trace.json", cluster="dgx-h100", run_config=tmp_path / "config.sh")
    ppsim.save(found, tmp_path / "mine.json")
    return tmp_path / "mine.json"


def test_multipliers_of_kernels_are_found_and_project_other_jobs(tmp_path: Path) -> None:
    file = fitted(tmp_path, JOB, trace_of(JOB, TIMES))
    constants = load_cluster(file).constants
    found = {kind: one.value for kind, one in constants.operator_time.items()}
    assert found == pytest.approx(TIMES, rel=2e-3)
    assert not any(name.startswith("compute_share.bfloat16") for name in json.loads(file.read_text())["constants"])
    for words in (JOB, *OTHERS):
        real = step_s(words, slowed(TIMES))
        assert step_s(words, file) / real == pytest.approx(1, abs=0.005)
        assert abs(step_s(words, BASE) / real - 1) > 0.05


@pytest.mark.slow
def test_expert_gemms_whose_names_say_nothing_get_the_multiplier_of_all_gemms(tmp_path: Path) -> None:
    sizes = {"gpus": 8, "ep": 4, "global_batch": 16, "seq_len": 4096}
    words = {"model": "mixtral-8x7b", "cross_entropy": "compiled", **sizes}
    times = {"gemm-bfloat16": 1.1, "experts-bfloat16": 1.4, "attention": 1.0, "memory": 1.0}
    named = load_cluster(fitted(tmp_path, words, trace_of(words, times))).constants.operator_time
    assert {kind: one.value for kind, one in named.items()} == pytest.approx(times, rel=2e-3)
    same = {**NAMES, "experts-bfloat16": NAMES["gemm-bfloat16"]}
    pooled = load_cluster(fitted(tmp_path, words, trace_of(words, times, names=same))).constants.operator_time
    assert 1.1 < pooled["gemm-bfloat16"].value == pooled["experts-bfloat16"].value < 1.4


def test_a_recording_of_another_job_or_without_all_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes 30 times the projected time"):
        fitted(tmp_path, JOB, trace_of(JOB, {**TIMES, "gemm-bfloat16": 30}))
    words = {**JOB, "pp": 2}
    with pytest.raises(ConfigError, match="kernels of 1 ranks, and the pipeline has 2"):
        fitted(tmp_path, words, trace_of(words, TIMES))


def test_passes_correct_all_kernels_by_one_ratio() -> None:
    plan = plan_of_keywords({**JOB, "tp": 1, "pp": 2, "cluster": BASE})
    busy = _busy_s(plan)
    recorded = RecordedTimes("run", passes_s=[1.1 * one for one in busy])
    found = {name: one.value for name, one in operator_constants(plan, recorded).items()}
    assert found == pytest.approx({f"operator_time.{kind}": 1.1 for kind in TIMES}, rel=0.02)
    with pytest.raises(ConfigError, match="passes of 3 ranks, and the pipeline has 2"):
        operator_constants(plan, RecordedTimes("run", passes_s=[1, 1, 1]))


@pytest.mark.slow
def test_kernels_of_a_real_trace_are_sorted_by_kind() -> None:
    file = DUMP.parent / "kineto" / "h100_f_i_w.json.gz"
    totals, step_s = kernels_per_step(recording_of(file))
    assert step_s is None
    assert totals.counts == {"gemm": 21, "memory": 54, "attention": 6}  # 4 × (F, I, W) of a layer, of torch 2.11
    messages = kernels_per_step(recording_of(file.parent / "a100_ddp.json.gz"))[0].messages
    assert {(operation, ranks) for operation, _, ranks, _ in messages} == {("all-reduce", 2)}
