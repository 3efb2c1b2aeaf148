"""FLOPs as publications count them: what they say of the same run twice must agree."""

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.names import find_model, gpt
from ppsim.validation.cases import Case, case_sets, cases_of
from ppsim.validation.flops import flops_a_token


def runs_told_twice() -> list[Case]:
    """Cases with a time or throughput, and TFLOP/s of the same run, of models that are known."""
    cases = [case for name in case_sets() for case in cases_of(name)]
    return [case for case in cases if case.tflops and not case.unexpressed and known(case)]


def known(case: Case) -> bool:
    try:
        return bool(case.architecture)
    except ConfigError:
        return False


def test_time_and_flops_of_the_same_run_agree() -> None:
    """To the rounding of what is published, a unit, and 0.1 % (what of norms and routers is counted: experts 0.6)."""
    cases = runs_told_twice()
    assert len(cases) > 80
    for case in cases:
        said = case.flops / (case.measured * case.gpus * 1e12)
        rounding = 0.5 / case.tflops + 0.5 / case.value
        assert said == pytest.approx(case.tflops, rel=rounding + (0.006 if case.is_moe else 0.001)), case


def test_recomputed_flops_are_the_formula_of_narayanan_et_al() -> None:
    """96 B s l h² (1 + s/(6h) + V/(16 l h)), without the biases and norms that neither counts."""
    layers, hidden, vocab, length = 96, 12288, 51200, 2048
    model = gpt(layers, hidden, 96, vocab=vocab, sequence_length=length)
    formula = 96 * layers * hidden**2 * (1 + length / (6 * hidden) + vocab / (16 * layers * hidden))
    assert flops_a_token(model, length, "all scores and recomputation") == pytest.approx(formula, rel=1e-9)


def test_ways_of_counting_differ_by_scores_and_by_the_forward_of_the_layers() -> None:
    model, length = find_model("llama3-405b"), 8192
    causal, everything = (flops_a_token(model, length, way) for way in ("causal", "all scores"))
    scores = 6 * length * sum(layer.attention.score_width for layer in model.layers)
    assert everything - causal == pytest.approx(scores / 2)
    assert flops_a_token(model, length, "parameters") == 6 * model.parameters


@pytest.mark.parametrize(("metric", "value"), [("tflops_per_gpu", 430.0), ("mfu_percent", 43.0)])
def test_flops_and_mfu_become_seconds(metric: str, value: float) -> None:
    case = Case(
        use="judge", table="t", title="m", metric=metric, value=value, model="llama3-405b", seq_len=8192,
        cluster="dgx-h100", gpus=8192, global_batch=2048,
    )  # fmt: skip
    per_s = value * 1e12 if metric == "tflops_per_gpu" else value / 100 * 989.4e12
    assert case.measured == pytest.approx(case.flops / (8192 * per_s))
