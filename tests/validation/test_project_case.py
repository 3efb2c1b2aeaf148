"""The projected and the measured value of a row, and the published run of a recipe."""

from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.validation import project_case
from ppsim.validation.project_case import PublishedResult, measured_of, project_run, published_of
from ppsim.validation.published_runs import PublishedRun, RowProperties, flops_a_token


def plan_with(*, fully_shard: bool | None = None) -> Any:
    job = None if fully_shard is None else SimpleNamespace(settings=SimpleNamespace(fully_shard=fully_shard))
    return SimpleNamespace(job=job)


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_case, "peaks_of", lambda plan: [30.0, 70.0, 50.0])
    monkeypatch.setattr(project_case, "outcome_of", lambda plan: (2.5, None))
    monkeypatch.setattr(project_case, "RESERVED_PER_ALLOCATED", 1.25)


@pytest.mark.usefixtures("peaks")
@pytest.mark.parametrize(
    ("properties", "projected"),
    [
        ({"metric": "iteration_s"}, 2.5),
        ({"metric": "tflops_per_gpu"}, 2.5),
        ({"metric": "peak_gib"}, 70.0),
        ({"metric": "peak_gb", "rank": "last"}, 50.0),
        ({"metric": "peak_gib", "bytes_are": "reserved"}, 88),
        ({"metric": "peak_gib", "bytes_are": "reserved", "rank": "last"}, 62),
    ],
)
def test_a_time_or_the_peak_of_a_rank_is_projected(properties: dict[str, Any], projected: float) -> None:
    case = PublishedRun(RowProperties(**{"value": 1.0, **properties}), {})
    assert project_run(case, plan_with(fully_shard=True)) == projected


@pytest.mark.usefixtures("peaks")
@pytest.mark.parametrize("fully_shard", [None, False])
def test_reserved_memory_is_unknown_without_fully_sharded_parameters(fully_shard: bool | None) -> None:
    case = PublishedRun(RowProperties(metric="peak_gib", value=1.0, bytes_are="reserved"), {})
    with pytest.raises(ConfigError, match="known with --fully-shard only"):
        project_run(case, plan_with(fully_shard=fully_shard))


@pytest.mark.parametrize(
    ("metric", "seconds"),
    [
        ("iteration_s", 0.5),
        ("samples_per_s_per_gpu", 3 * 5 / (2 * 7 * 0.5)),
        ("tokens_per_s_per_gpu", 3 * 5 * 11 / (2 * 7 * 0.5)),
        ("tflops_per_gpu", 13 * 3 * 5 * 11 / (2 * 7 * 0.5 * 1e12)),
        ("mfu_percent", 13 * 3 * 5 * 11 / (2 * 7 * 0.005 * 17)),
        ("peak_gib", 0.5 * 2**30),
        ("peak_gb", 0.5e9),
    ],
)
def test_a_published_value_becomes_seconds_or_bytes(metric: Any, seconds: float) -> None:
    """2 · 7 GPUs; 3 microbatches of 5 sequences of 11 tokens; 13 FLOPs per token, 17 FLOP/s per GPU."""
    source = SimpleNamespace(tokens_per_microbatch=5 * 11, gpus_per_rank=7, sequence_length=11)
    job = SimpleNamespace(
        model=SimpleNamespace(training_flops=lambda length, causal: 13.0 * (length == 11) * causal), length=11,
        cluster=SimpleNamespace(device=SimpleNamespace(peak={"float8": 17.0}.__getitem__)),
        execution=SimpleNamespace(dtype="float8"),
    )  # fmt: skip
    plan: Any = SimpleNamespace(modelled_source=source, job=job, num_microbatches=3, pp=2)
    case = PublishedRun(RowProperties(metric=metric, value=0.5), {})
    assert measured_of(case, plan) == pytest.approx(seconds, rel=1e-12)
    plan.job = None
    if metric in ("tflops_per_gpu", "mfu_percent"):
        assert measured_of(case, plan) == 0.0
    else:
        assert measured_of(case, plan) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("counted", "flops"),
    [("causal", 700.0), ("all scores", 1000.0), ("all scores and recomputation", 1270.0), ("parameters", 42.0)],
)
def test_flops_are_counted_as_a_publication_counts_them(counted: Any, flops: float) -> None:
    """Three passes of the head are 190 of 1,000 FLOPs; the forward of the layers is a third of the others."""

    def training_flops(length: int, causal: bool) -> float:
        assert length == 5
        return 700.0 if causal else 1000.0

    model: Any = SimpleNamespace(
        active_parameters=7, training_flops=training_flops, head_forward_flops=lambda: 190.0 / 3
    )
    assert flops_a_token(model, 5, counted) == pytest.approx(flops)


def test_a_recipe_has_the_published_run_of_its_release_without_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(table: str, options: dict[str, Any], seconds: float) -> PublishedRun:
        return PublishedRun(RowProperties(metric="iteration_s", value=seconds, table=table), options)

    sets = {name: SimpleNamespace(source=source) for name, source in (("a", "Meta"), ("b", "Primus docs"))}
    rows = {
        "a": [row("Primus 25.9", {"recipe": "r"}, 1.0)],
        "b": [
            row("Primus 25.8", {"recipe": "r"}, 2.0),
            row("Primus 25.9", {"recipe": "r", "pp": 2}, 3.0),
            row("Primus 25.9", {"recipe": "r"}, 4.0),
        ],
    }
    monkeypatch.setattr(project_case, "case_sets", lambda: sets)
    monkeypatch.setattr(project_case, "cases_of", rows.__getitem__)
    monkeypatch.setattr(project_case, "measured_of", lambda case, plan: 2 * case.properties.value)
    recipe: Any = SimpleNamespace(recipe=SimpleNamespace(trainer="primus", release="25.9", name="r"))
    plan: Any = None
    published = published_of(recipe, plan)
    assert published == PublishedResult(8.0, 4.0, "iteration_s", "Primus 25.9", "Primus docs")
    assert published.to_json(6.0)["error"] == -0.25
    recipe.recipe.name = "another"
    assert published_of(recipe, plan) is None
    recipe.recipe = None
    assert published_of(recipe, plan) is None
