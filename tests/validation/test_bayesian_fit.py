"""Fits of a machine: what rows tell and with what certainty, what they do not, and what a projection makes of it."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

import ppsim
from ppsim.api.project import plan_of_keywords
from ppsim.base.errors import ConfigError
from ppsim.costs.similar_jobs import features_of
from ppsim.machine.cluster import Constant
from ppsim.machine.cluster_files import load_cluster
from ppsim.machine.job_similarity import MEASURED_SPREAD, SHARES, USUAL, JobFeatures, MeasuredJob, correction_of
from ppsim.projection.project import outcome_of
from ppsim.projection.summary import fitted_spread, spread_of, with_launches_of
from ppsim.validation import bayesian_fit as fit_module
from ppsim.validation import bayesian_fit as posterior
from ppsim.validation import published_runs as cases
from ppsim.validation.bayesian_fit import fit_rows, rows_of
from ppsim.validation.fit_result import calibration_rows

NEAR = JobFeatures(
    model="llama3-8b", dtype="bfloat16", tp=1, cp=1, ep=1, micro_batch=1, seq_len=4096, pp=1, gpus=8
)  # fmt: skip
OTHER = MeasuredJob(**{**vars(NEAR), "model": "gpt2"}, times=1.0, spread=0.1)
BASE = load_cluster("dgx-a100")  # whose class has no table of kernels
COLUMNS = ("model", "gpus", "tp", "pp", "global_batch", "seq_len", "cluster")
JOBS = [
    ("llama3-8b", 8, 1, 2, 32),
    ("llama3-8b", 8, 8, 1, 32),
    ("llama3-8b", 8, 4, 2, 64),
    ("llama2-7b", 8, 2, 1, 16),
]


def machine(**constants: float):
    """The cluster with constants of its own, "link_efficiency__node" for "link_efficiency.node"."""
    named = {name.replace("__", "."): Constant(value=value) for name, value in constants.items()}
    return BASE.with_constants(BASE.constants.having(named))


def written(path: Path, jobs, *, cluster=BASE, rest: float = 0.0, times: float = 1.0) -> Path:
    """A file of rows whose steps take what a cluster projects of them."""
    lines = [",".join((*COLUMNS, "metric", "value"))]
    for job in jobs:
        words = dict(zip(COLUMNS, (*job, 4096, cluster), strict=True))
        seconds = times * outcome_of(plan_of_keywords({**words, "rest": rest}))[0]
        lines.append(",".join(map(str, (*job, 4096, BASE.name, "iteration_s", seconds))))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A fit of slower products and links, by steps with and without tensor parallelism."""
    slow = machine(compute_share__bfloat16=0.9, link_efficiency__node=0.5)
    return ppsim.fit(written(tmp_path_factory.mktemp("slow") / "runs.csv", JOBS, cluster=slow))


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    """The file of a run that takes 8 % longer than projected, and its fit."""
    path = written(tmp_path_factory.mktemp("longer") / "runs.csv", JOBS[:1], times=1.08)
    return path, ppsim.fit(path)


def test_constants_of_a_machine_move_to_where_its_steps_are(found) -> None:
    """As far as jobs do not differ by as much."""
    told = {one.prior.name: one for one in found.posterior.found}["compute_share.bfloat16"]
    assert 0.9 < told.value < 0.97
    assert 0.6 < told.spread / told.prior.spread < 0.9
    assert max(map(abs, found.posterior.after)) < 0.025
    assert max(map(abs, found.posterior.before)) > 0.15


@pytest.mark.slow
def test_what_runs_have_in_common_is_the_machines_and_more_runs_say_so_more(tmp_path) -> None:
    """The share of products that one run, and that six in other cuts, make of a machine that is 15 % slower."""
    cuts = [(tp, pp, 32) for tp in (1, 2, 4) for pp in (1, 2)]
    slow = machine(compute_share__bfloat16=0.85)
    shares = []
    for name, jobs in (("one", cuts[:1]), ("six", cuts)):
        path = written(tmp_path / f"{name}.csv", [("llama3-8b", 8, *cut) for cut in jobs], cluster=slow)
        shares.append(ppsim.fit(path).constants.compute_share["bfloat16"].value)
    assert 1 > shares[0] > shares[1] + 0.01 > 0.87


def test_a_scale_of_a_job_is_of_all_it_takes_but_its_rest_and_of_no_other_job() -> None:
    words = {**dict(zip(COLUMNS, (*JOBS[1], 4096), strict=False)), "rest": 0.5}
    job = plan_of_keywords({**words, "cluster": BASE}).job
    for name, times in ((features_of(job).model, 1.25), ("llama2-7b", 1.0)):
        run = MeasuredJob(**{**vars(features_of(job)), "model": name}, times=1.25, sigma=1e-9, spread=0.2)
        scaled = BASE.with_constants(replace(BASE.constants, runs=(run,)))
        before, after = (outcome_of(plan_of_keywords({**words, "cluster": one}))[0] for one in (BASE, scaled))
        assert after - 0.5 == pytest.approx(times * (before - 0.5), rel=1e-9)


def test_a_job_moves_the_less_the_further_off_it_is_from_the_one_that_ran(longer) -> None:
    """Of 8 % that one run takes more than projected."""
    _, found = longer

    def gained(job) -> float:
        words = dict(zip(COLUMNS, (*job, 4096), strict=False))
        before, after = (
            outcome_of(plan_of_keywords({**words, "cluster": one}))[0] for one in (BASE, found.cluster)
        )
        return after / before - 1

    near_cut = ("llama3-8b", 8, 2, 2, 32)
    same, more, near, far, other = map(gained, (JOBS[0], ("llama3-8b", 32, 1, 4, 64), near_cut, JOBS[1], JOBS[3]))
    assert 0.07 < same < 0.08
    assert 0.065 < more < 0.08
    assert 0.02 < near < 0.06
    assert 0.003 < far < 0.03
    assert 0.003 < other < 0.03


def test_what_runs_leave_unknown_grows_with_the_distance_from_them() -> None:
    """Next to a run hardly anything, far away all that is no machine's, and no more with a run of another model."""
    run = MeasuredJob(**vars(NEAR), times=1.1, spread=0.14)
    jobs = [NEAR, replace(NEAR, gpus=64), replace(NEAR, tp=2), replace(NEAR, tp=8), replace(NEAR, model="gpt2")]
    said = [correction_of([run, OTHER], job) for job in jobs[:4]]
    assert [one.unknown for one in said] == sorted(one.unknown for one in said)
    assert [one.times for one in said] == sorted((one.times for one in said), reverse=True)
    assert said[0].unknown < MEASURED_SPREAD / 0.14 * 1.01
    assert said[3].unknown == pytest.approx(np.sqrt(1 - SHARES.machine**2), abs=0.01)
    assert correction_of([run], jobs[4]).times == 1
    assert correction_of([run], replace(NEAR, dtype="float8")).times == pytest.approx(
        1.1 ** (SHARES.dtype * said[0].weight)
    )


def test_what_is_unusual_of_a_run_is_said_of_jobs_cut_as_it_is_only() -> None:
    runs = [MeasuredJob(**vars(NEAR), times=times, spread=0.1) for times in (np.exp(0.1 * USUAL), 2.0)]
    near = replace(NEAR, tp=2)
    usual, unusual = (correction_of([run], near).times for run in runs)
    assert usual == pytest.approx(unusual)
    assert correction_of(runs[1:], replace(NEAR, gpus=16)).times > 1.85


@pytest.mark.slow
def test_a_second_fit_keeps_the_runs_of_the_first(longer, tmp_path) -> None:
    ppsim.save(longer[1], tmp_path / "mine.json")
    again = written(tmp_path / "more.csv", JOBS[3:], times=1.08)
    again.write_text(again.read_text().replace("dgx-a100", str(tmp_path / "mine.json")))
    found = ppsim.fit(again)
    assert [run.model for run in found.constants.runs] == ["llama3-8b", "llama2-7b"]
    words = dict(zip(COLUMNS, (*JOBS[0], 4096), strict=False))
    before, after = (outcome_of(plan_of_keywords({**words, "cluster": one}))[0] for one in (BASE, found.cluster))
    assert after / before == pytest.approx(1.08, rel=0.01)


def test_one_step_tells_the_rate_and_the_job_and_leaves_the_rest_of_the_constants(longer) -> None:
    _, found = longer
    assert [one.prior.name for one in found.posterior.found] == ["compute_share.bfloat16"]
    assert [run.title for run in found.constants.runs] == ["llama3-8b/bfloat16 on 8, tp1-cp1-ep1-pp2-b1-s4096"]
    assert {"link_efficiency.node", "kernel_s", "jitter"} <= {one.prior.name for one in found.posterior.left}
    assert abs(found.posterior.after[0]) < 0.02 < abs(found.posterior.before[0])
    assert all(one.value == one.prior.median for one in found.posterior.left)
    assert "1 measured step for 6 constants: the priors decide what the rows do not determine" in " ".join(
        str(found).split()
    )


def test_the_spread_of_the_step_that_was_fitted_is_that_of_two_normals(tmp_path) -> None:
    """1 / σ² = 1 / (Σ (d ln t / d ln x · prior of x)² + what jobs are off by²) + 1 / (spread of steps)²."""
    found = ppsim.fit(written(tmp_path / "runs.csv", JOBS[:1])).posterior
    (row,) = found.rows
    priors = [one.prior for one in (*found.found, *found.left)]
    question = posterior.FitProblem(BASE, [row], [row.plan.job.model], plan_of_keywords)
    at = np.zeros(len(priors))
    slopes = question.slopes(priors, at, question.logs(priors, at))
    prior = np.sum(slopes**2) + (1 - SHARES.machine**2) * spread_of(row.plan) ** 2
    plan = plan_of_keywords({**row.case.options, "cluster": BASE.with_constants(found.constants("runs.csv"))})
    spread = fitted_spread(plan, outcome_of(plan)[0], lambda other: outcome_of(other)[0], spread_of(row.plan))
    of_constants = np.sqrt(spread**2 - MEASURED_SPREAD**2)
    assert of_constants == pytest.approx((1 / prior + MEASURED_SPREAD**-2) ** -0.5, rel=0.1)


def test_the_interval_after_a_fit_is_narrower_and_has_the_measured_step(longer, tmp_path) -> None:
    _, found = longer
    ppsim.save(found, tmp_path / "mine.json")
    words = {**found.posterior.rows[0].case.options}
    before, after = (ppsim.project(**{**words, "cluster": cluster}) for cluster in (BASE, tmp_path / "mine.json"))
    widths = [
        (high - low) / made.iteration_time_s
        for made in (before, after)
        for low, high in [made.summary.iteration_time_interval_s]
    ]
    assert widths[1] < 0.85 * widths[0]
    low, high = after.summary.iteration_time_interval_s
    assert low < found.posterior.rows[0].measured_s < high


def test_constants_that_hang_together_leave_a_step_surer_than_by_themselves(tmp_path) -> None:
    """Two constants of which a step tells the sum: their errors cancel in it by their correlation."""
    rate = Constant(value=1.0, sigma=0.3)
    link = Constant(value=0.7, sigma=0.6)
    told = {"compute_share.bfloat16": rate, "link_efficiency.node": link}
    words = dict(zip(COLUMNS, (*JOBS[1], 4096), strict=False))

    def width(correlation: float) -> float:
        constants = replace(
            BASE.constants.having(told), runs=(OTHER,),
            correlation={"compute_share.bfloat16 link_efficiency.node": correlation},
        )  # fmt: skip
        made = ppsim.project(**{**words, "cluster": BASE.with_constants(constants)})
        return (
            made.summary.iteration_time_interval_s[1] - made.summary.iteration_time_interval_s[0]
        ) / made.iteration_time_s

    assert width(-0.9) < 0.8 * width(0.0) < 0.8 * width(0.9)


@pytest.mark.long
def test_a_rest_is_the_jobs_and_in_no_cluster_file(tmp_path) -> None:
    """Two lengths of one job tell seconds per step from a rate."""
    jobs = [("llama3-8b", 8, 1, 2, batch) for batch in (8, 16, 64)]
    path = written(tmp_path / "runs.csv", jobs, rest=0.15)
    found = ppsim.fit(path)
    told = found.rests["llama3-8b"]
    assert abs(np.log(told.value / 0.15)) < 2 * told.spread < told.prior.spread
    assert "rest" not in found.to_calibration(tmp_path / "mine.json")["constants"]
    assert "add --extra-step-time 0." in str(found)
    one = ppsim.validate(path, fit_on="1,3").sets[0]
    assert all(abs(after.error) < 0.02 < abs(before.error) for before, after in one.test_rows[:1])


def test_a_rest_that_no_row_tells_takes_nothing_of_the_rates(tmp_path) -> None:
    """Two dtypes of a job, a step each: neither tells seconds from a rate, and steps that are met move nothing."""
    words = {**dict(zip(COLUMNS, (*JOBS[0], 4096), strict=False)), "cluster": BASE}
    lines = [",".join((*COLUMNS, "dtype", "metric", "value"))]
    for dtype in ("bfloat16", "float16"):
        seconds = outcome_of(plan_of_keywords({**words, "dtype": dtype}))[0]
        lines.append(",".join(map(str, (*JOBS[0], 4096, BASE.name, dtype, "iteration_s", seconds))))
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n")
    found = ppsim.fit(path)
    assert found.posterior.after == pytest.approx([0, 0], abs=1e-6)
    assert all(one.value == pytest.approx(one.prior.median) for one in found.posterior.found)
    assert not found.rests


def test_a_file_of_a_fit_is_the_cluster_that_was_fitted(found, tmp_path) -> None:
    ppsim.save(found, tmp_path / "mine.json")
    again = load_cluster(tmp_path / "mine.json")
    assert again.constants == found.constants
    assert again.device == found.cluster.device
    assert again.tiers == found.cluster.tiers
    assert again.constants.fitted_on == ("runs.csv",)
    assert all(one.sigma and one.source.startswith("fit, from ") for one in again.constants.named.values())
    with pytest.raises(ConfigError, match=r"give it one of .json"):
        ppsim.save(found, tmp_path / "mine.toml")


@pytest.mark.slow
def test_one_row_far_off_does_not_move_what_others_agree_on(tmp_path) -> None:
    path = written(tmp_path / "runs.csv", [("llama3-8b", 8, 1, 1, 8 * n) for n in range(1, 6)])
    lines = path.read_text().splitlines()
    odd = lines[4].rpartition(",")
    lines[4] = f"{odd[0]},{2 * float(odd[2])}"
    path.write_text("\n".join(lines) + "\n")
    assert np.median(np.abs(ppsim.fit(path).posterior.after)) < 0.02  # a mean of all would be 11 % off


@pytest.mark.slow
def test_a_run_far_off_is_its_jobs_and_a_sentence_says_so(tmp_path) -> None:
    """A job that takes 2.25 times as long moves the machine no more than one that takes half as long again."""
    found, twice = (ppsim.fit(written(tmp_path / "r.csv", JOBS[:1], times=times)) for times in (1.5, 2.25))
    (doubt,) = found.posterior.outliers
    assert (doubt.row, round(doubt.error, 3), round(doubt.times, 1)) == ("r.csv, row 1", -0.333, 4.5)
    assert "r.csv, row 1 by -33.33 %, 4.5 × the usual error of its GPU type" in " ".join(str(found).split())
    assert abs(found.posterior.after[0]) < 0.03
    shares = [one.constants.compute_share["bfloat16"].value for one in (found, twice)]
    assert 0.9 < min(shares) <= max(shares) < min(shares) + 0.002 < 0.99
    assert not ppsim.fit(written(tmp_path / "r.csv", JOBS[:1], times=1.15)).posterior.outliers


def test_every_wrong_row_is_named_at_once(tmp_path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("model,gpus,pp,metric,value\ngpt2,8,1,iteration_s,\ngpt2,8,1,iteration_s,1\ngpt2,x,1,hours,1\n")
    with pytest.raises(ConfigError) as error:
        ppsim.fit(path)
    said = str(error.value)
    assert "row 1 is wrong: value: missing" in said
    assert "row 3 is wrong: metric: " in said
    assert "gpus: " in said
    assert "row 2" not in said


def test_a_row_that_contradicts_itself_is_listed_and_rows_of_no_use_are_refused(tmp_path) -> None:
    path = tmp_path / "runs.csv"
    header = "model,gpus,tp,pp,global_batch,cluster,metric,value\n"
    bad, memory = "gpt2,8,3,2,32,dgx-h100,iteration_s,1\n", "gpt2,8,2,2,32,dgx-h100,peak_gib,9\n"
    path.write_text(header + bad + "gpt2,8,2,2,32,dgx-h100,iteration_s,0.1\n" + memory)
    found = ppsim.fit(path)
    assert [case.number for case, _ in found.skipped] == [1, 3]
    assert "memory tells nothing of times" in str(found)
    path.write_text(header + bad + memory)
    with pytest.raises(ConfigError, match=r"(?s)no row to fit on\n  1: .*\n  3?2?: memory tells"):
        ppsim.fit(path)


def test_rows_of_two_clusters_need_a_word(tmp_path) -> None:
    path = tmp_path / "runs.csv"
    rows = [f"gpt2,8,2,2,32,{name},iteration_s,0.3\n" for name in ("dgx-h100", "dgx-a100")]
    path.write_text("model,gpus,tp,pp,global_batch,cluster,metric,value\n" + "".join(rows))
    with pytest.raises(ConfigError, match="rows are of 2 clusters, dgx-h100, dgx-a100: name one by --cluster"):
        ppsim.fit(path)
    found = ppsim.fit(path, cluster="dgx-a100")
    assert (found.cluster.name, found.base, [reason for _, reason in found.skipped]) == (
        "dgx-a100", "dgx-a100", ["ran on dgx-h100"],
    )  # fmt: skip


def test_rows_are_chosen_by_mark_by_number_and_the_smallest_of_a_dtype() -> None:
    rows = cases.cases_of("dgxc-405b")
    smallest = calibration_rows(rows, "one", plan_of_keywords)
    assert [(case.options["dtype"], case.options["layers"]) for case in smallest] == [
        ("bfloat16", 7),
        ("float8", 7),
    ]
    assert [case.number for case in calibration_rows(rows, "1,3-4", plan_of_keywords)] == [1, 3, 4]
    both = cases.cases_of("dgxc-moe-gb200")
    titles = {
        which: [one.properties.title for one in calibration_rows(both, which, plan_of_keywords)]
        for which in ("one", "one-a-model")
    }
    assert titles == {
        "one": ["DeepSeek-V3", "Grok-1"],
        "one-a-model": ["DeepSeek-V3", "Grok-1", "Grok-1"],
    }  # bfloat16 and float8, and of bfloat16 both models
    assert calibration_rows(rows, "fit", plan_of_keywords) == [
        case for case in rows if case.properties.use == "fit"
    ]
    with pytest.raises(ConfigError, match="there is no row 7: rows are 1 to 6"):
        calibration_rows(rows, "7", plan_of_keywords)
    with pytest.raises(ConfigError, match=r"fit, one, one-a-model or numbers as 1,3-5: got '1-x'"):
        calibration_rows(rows, "1-x", plan_of_keywords)


@pytest.mark.slow
def test_after_one_run_of_each_dtype_a_set_is_judged_on_the_others() -> None:
    one = ppsim.validate("dgxc-405b", fit_on="one").sets[0]
    used = {row.case.number for row in one.fits[0].rows}
    assert used.isdisjoint(after.case.number for _, after in one.test_rows)
    assert all(after.case.properties.use == "test" for _, after in one.test_rows)
    assert np.mean([abs(after.error) for _, after in one.test_rows]) < 0.025


@pytest.mark.slow
def test_constants_only_of_rows_on_which_they_bear(tmp_path) -> None:
    """What is saved of slopes is 0: each of them found out in full is the same."""
    path = written(tmp_path / "runs.csv", JOBS[:2])
    rows, _ = rows_of(cases.cases_of(str(path)), plan_of_keywords, "runs.csv")
    question = posterior.FitProblem(BASE, rows, [row.plan.job.model for row in rows[:1]], plan_of_keywords)
    priors = posterior.priors_of(BASE, [row.plan for row in rows])
    at = np.zeros(len(priors))
    now = question.logs(priors, at)
    quick = question.slopes(priors, at, now)
    for column, prior in enumerate(priors):
        moved = at + np.eye(len(priors))[column] * 0.05
        whole = (question.logs(priors, moved) - now) / 0.05
        assert quick[:, column] == pytest.approx(whole, abs=1e-9), prior.name
    assert fit_rows(rows, plan_of_keywords).found


def test_a_file_that_its_cluster_was_fitted_on_is_said_to_be_no_test(longer, tmp_path) -> None:
    path, found = longer
    ppsim.save(found, tmp_path / "mine.json")
    for name, cluster, clusters in (
        ("runs.csv", tmp_path / "mine.json", ["mine"]), ("other.csv", tmp_path / "mine.json", []),
        ("runs.csv", BASE.name, []),
    ):  # fmt: skip
        rows = tmp_path / str(len(clusters)) / name
        rows.parent.mkdir(exist_ok=True)
        rows.write_text(path.read_text().replace(BASE.name, str(cluster)))
        found = ppsim.validate(rows)
        assert found.to_json()["sets"][0]["clusters_fitted_on_file"] == clusters
        assert ("not a test of the projection" in " ".join(str(found).split())) == bool(clusters)


LORA = {"model": "llama3-8b", "gpus": 8, "tp": 4, "pp": 1, "seq_len": 1024, "global_batch": 2, "cluster": "dgx-h100",
        "stack": "megatron-bridge", "lora": "16"}  # fmt: skip


@pytest.mark.parametrize(("launch_us", "expected_us"), [(100, 100), (160, None), (26, None)])
def test_one_eager_step_that_the_host_limits_determines_the_time_of_a_launch(
    tmp_path, launch_us: float, expected_us: float | None
) -> None:
    """Not beyond the slowest that was measured, and not within the usual error."""
    plan = plan_of_keywords(LORA)
    seconds = outcome_of(with_launches_of(plan, launch_us * 1e-6))[0]
    columns = LORA | {"metric": "iteration_s", "value": seconds}
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(",".join(map(str, line)) for line in (columns.keys(), columns.values())) + "\n")
    fit = ppsim.fit(path)
    found = fit.constants.host_s
    assert (found and 1e6 * found.value) == (expected_us and pytest.approx(expected_us, rel=0.01))
    if expected_us:
        assert fit.posterior.after == pytest.approx([0.0], abs=0.01)
        assert fit.to_calibration(tmp_path / "mine.json")["constants"]["host_s"]["value"] == found.value
        graphs = ppsim.fit(_with_column(path, "cuda_graphs", "full"))
        assert graphs.constants.host_s is None


def _with_column(path: Path, name: str, value: str) -> Path:
    head, row = path.read_text().splitlines()
    path.write_text(f"{head},{name}\n{row},{value}\n")
    return path


def test_limits_of_the_bayesian_fit() -> None:
    assert (2, (0.05, 20.0), 3.0 / SHARES.machine) == (
        fit_module._LEAST_REPEATS,
        fit_module._FACTORS,
        fit_module.MOST,
    )
    assert (fit_module._OVERLAP_SPREAD, fit_module._REST_SPREAD, fit_module._REST_MEDIAN) == (0.25, 1.2, 0.01)
    assert (fit_module.MOVED, fit_module.ADDED, fit_module.OUTLIER) == (0.99, 0.9, 2.0)
    names = ("_ROUNDS", "_HALVINGS", "_DONE", "_NEAR", "_STEP", "_ROUNDS_OF_WEIGHTS", "_SAME", "_BISECTIONS")
    assert [getattr(fit_module, name) for name in names] == [8, 6, 0.02, 0.3, 0.05, 5, 0.1, 10]


class Line(posterior.FitProblem):
    """Rows whose errors are a line in the constants: `STARTS` + `SLOPES` · deviations."""

    STARTS = np.array([0.03, -0.05])
    SLOPES = np.array([[0.4, 0.1], [0.2, -0.3]])
    evaluations: ClassVar[list[object]] = []

    def logs(self, priors, at, only=None, runs=()):
        self.evaluations.append(only)
        return self.STARTS + self.SLOPES[:, : len(at)] @ at


def row_of(job: object, **fields: object) -> posterior.MeasuredStep:
    given = {"case": SimpleNamespace(options={}), "measured_s": 1.0, "name": "a row", **fields}
    return posterior.MeasuredStep(plan=SimpleNamespace(job=job), **given)


PRIORS = [posterior.Prior(name, 3.0, 0.25, "") for name in ("kernel_s", "jitter")]
EARLIER = MeasuredJob(**vars(NEAR), times=1.1, sigma=0.03, spread=0.3)


def line(*, earlier: bool) -> Line:
    cluster = SimpleNamespace(constants=SimpleNamespace(runs=(EARLIER,) * earlier))
    Line.evaluations.clear()
    return Line(cluster, [row_of("first"), row_of("second")], [], dict)


def test_constants_of_errors_on_a_line_are_those_of_linear_regression() -> None:
    """(AᵀΛA + 1) x = -Aᵀ (Λ b + Λ' p); a short step needs no new slopes."""
    information = np.array([[50.0, 7.0, 11.0], [7.0, 80.0, -13.0], [11.0, -13.0, 90.0]])
    problem, past = line(earlier=True), np.array([-0.7])
    a, starts, of_rows = Line.SLOPES, Line.STARTS, information[:2, :2]
    expected = np.linalg.solve(
        a.T @ of_rows @ a + np.eye(2), -a.T @ (of_rows @ starts + information[:2, 2:] @ past)
    )
    made = problem._most_probable(PRIORS, posterior._State(np.zeros(2), starts), information, past)
    assert made.at == pytest.approx(expected)
    assert made.errors == pytest.approx(starts + a @ expected)
    assert made.slopes == pytest.approx(a)
    assert Line.evaluations == [[0, 1]] * 2 + [None] + ([[0, 1]] * 2 if max(abs(expected)) > 0.3 else []) + [None]
    none = problem._most_probable([], posterior._State(np.zeros(0), starts), information, past)
    assert (none.at.shape, none.slopes.shape, none.errors.tolist()) == ((0,), (2, 0), starts.tolist())


def test_runs_of_an_earlier_fit_and_similar_jobs_weigh_in_the_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = np.array([[1.0, 0.5, 0.3], [0.5, 1.0, 0.2], [0.3, 0.2, 1.0]])
    monkeypatch.setattr(fit_module, "features_of", lambda job: job)
    monkeypatch.setattr(fit_module, "spread_of", lambda plan: {"first": 0.1, "second": 0.2}[plan.job])
    asked = []
    monkeypatch.setattr(fit_module, "job_covariance", lambda *jobs: asked.append(jobs) or shares)
    made = line(earlier=True).solved(PRIORS)
    assert asked == [(["first", "second", EARLIER],) * 2]
    spreads, sigmas = np.array([0.1, 0.2, 0.3]), np.array([MEASURED_SPREAD, MEASURED_SPREAD, 0.03])
    information = np.linalg.inv(shares * spreads * spreads[:, None] + np.diag(sigmas**2))
    a, of_rows, push = Line.SLOPES, information[:2, :2], information[:2, 2] * -np.log(1.1)
    covariance = np.linalg.inv(a.T @ of_rows @ a + np.eye(2))
    assert made.at == pytest.approx(-covariance @ a.T @ (of_rows @ Line.STARTS + push))
    assert made.spreads == pytest.approx(np.sqrt(np.diag(covariance)))
    assert made.correlation[0, 1] == pytest.approx(covariance[0, 1] / np.prod(made.spreads))
    assert np.diag(made.correlation) == pytest.approx([1, 1])
    assert made.sigmas == pytest.approx(sigmas)


def test_the_deviation_of_a_run_far_off_grows_until_it_explains_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variance and the jobs' are the product of its error and half the deviation of a measurement."""
    monkeypatch.setattr(fit_module, "features_of", lambda job: job)
    monkeypatch.setattr(fit_module, "spread_of", lambda _: 0.03)
    monkeypatch.setattr(fit_module, "job_covariance", lambda *_: np.eye(2))
    monkeypatch.setattr(Line, "STARTS", np.array([1.0, 0.01]))
    made = line(earlier=False).solved([])
    variance = MEASURED_SPREAD * 1.0 / fit_module.OUTLIER - 0.03**2
    assert made.sigmas == pytest.approx([np.sqrt(variance), MEASURED_SPREAD], rel=0.02)
    assert fit_module._usual(np.array([-4.0, -1.0, 0.0, 2.0, 2.5]), 2.0).tolist() == [0.5, 1, 1, 1, 0.8]


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("compute_share.bfloat16", {}, True), ("compute_share.float8", {}, False), ("rest.0", {}, False),
        ("rest.1", {}, True), ("overlap.tp", {}, True), ("overlap.tp", {"tp": 1}, False),
        ("overlap.tp", {"hidden_tp_forward": 0}, True), ("overlap.tp", {"hidden_tp_backward": 0}, True),
        ("overlap.tp", {"hidden_tp_forward": 0, "hidden_tp_backward": 0}, False), ("overlap.ep", {}, True),
        ("overlap.ep", {"ep": 1}, False), ("overlap.ep", {"hidden_ep": 0}, False), ("routing_host_s", {}, True),
        ("routing_host_s", {"has_experts": False}, False), ("kernel_s", {"has_experts": False}, True),
    ],
)  # fmt: skip
def test_a_constant_bears_on_the_rows_whose_job_uses_it(name: str, changes: dict, expected: bool) -> None:
    fields = {"dtype": "bfloat16", "tp": 2, "ep": 2, "hidden_tp_forward": 0.3, "hidden_tp_backward": 0.4,
              "hidden_ep": 0.5, "has_experts": True, **changes}  # fmt: skip
    part = SimpleNamespace(**fields)
    job = SimpleNamespace(execution=part, layout=part, model=part)
    assert posterior._may_depend(row_of(job), name, ["another", part]) is expected


class Group(NamedTuple):
    name: str
    num_ranks: int


def test_messages_correct_a_collective_if_their_number_of_ranks_tells_their_group(monkeypatch) -> None:
    """The shortest of each size counts, if it was sent twice."""
    ranks = {"tp": 2, "ep": 2, "dp": 4}
    place = SimpleNamespace(ranks=lambda name: Group(name, ranks.get(name, 8)))
    job = SimpleNamespace(place=place, cluster="cluster")
    monkeypatch.setattr(fit_module, "get_args", lambda _: ("tp", "ep", "dp", "other"))
    monkeypatch.setattr(
        fit_module.collectives, "seconds",
        lambda operation, size, group, cluster: size * group.num_ranks * (cluster == "cluster"),
    )  # fmt: skip
    kernels = [
        [("all-reduce", 10.0, 4, 50.0), ("all-reduce", 10.0, 4, 60.0), ("all-gather", 5.0, 2, 9.0)],
        [("all-reduce", 30.0, 4, 90.0), ("all-reduce", 30.0, 4, 80.0), ("all-gather", 5.0, 2, 9.0),
         ("all-reduce", 70.0, 4, 1.0), ("all-gather", 7.0, 3, 9.0), ("all-gather", 7.0, 3, 9.0)],
    ]  # fmt: skip
    recorded = SimpleNamespace(kernels=[SimpleNamespace(messages=messages) for messages in kernels])
    assert dict(fit_module._by_messages(job, recorded)) == {
        "all-reduce": pytest.approx((50 + 80) / (4 * 10 + 4 * 30))
    }


def test_operators_of_two_model_replicas_are_halved_per_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computation excludes communication, the host and offloading."""
    passes = SimpleNamespace(total_s=9.0, communication_s=1.5, host_s=0.7, offload_s=0.3)

    class Half(SimpleNamespace):
        def __add__(self, _: object) -> SimpleNamespace:
            return passes

    part = SimpleNamespace(forward=Half(), backward=Half())
    table, assembled = SimpleNamespace(num_replicas=2), SimpleNamespace(parts=[part, part])
    monkeypatch.setattr(fit_module, "assembled_of", lambda _: (table, assembled))
    monkeypatch.setattr(fit_module, "values_of_ranks", lambda _, values: [values, [*values, values[0]]])
    plan = SimpleNamespace(num_microbatches=10, pp=2)
    assert fit_module._busy_s(plan) == pytest.approx([65.0, 97.5])
    monkeypatch.setattr(fit_module, "_kinds", lambda _: ["memory", "attention"])
    monkeypatch.setattr(
        fit_module, "_projected_s", lambda *given: given[2] == "memory" and given[3] == [65.0, 97.5]
    )
    whole = [5 * 18.0, 5 * 27.0]

    def multiplier(*passes_s: float) -> dict[str, float]:
        return dict(fit_module._by_passes(plan, None, SimpleNamespace(passes_s=passes_s, source="r")))

    assert multiplier(100.0, 140.0) == {"memory": pytest.approx((240 - (sum(whole) - 162.5)) / 162.5)}
    assert multiplier(150.0) == {"memory": pytest.approx((150 - (whole[1] - 97.5)) / 97.5)}
    assert multiplier(30.0) == {"memory": 0.0}
    with pytest.raises(ConfigError):
        multiplier(1.0, 2.0, 3.0)


def test_constants_of_a_fit_have_their_correlations_and_each_job_its_rest() -> None:
    priors = {"kernel_s": 4e-6, "rest.1": 0.5, "compute_share.bfloat16": 0.9, "jitter": 0.02}
    found = [
        posterior.ConstantEstimate(posterior.Prior(name, 2 * value, 0.25, "a guess"), value, 0.1)
        for name, value in priors.items()
    ]
    correlation = np.arange(16).reshape(4, 4) / 100
    rows = [row_of(SimpleNamespace(stack="plain"))] * 2
    fit = posterior.Posterior(BASE, rows, found, [], correlation, (OTHER,), [], [], ["first", "second"], [])
    made = fit.constants("runs.csv")
    assert made.correlation == {
        "compute_share.bfloat16 kernel_s": 0.08, "jitter kernel_s": 0.12, "jitter compute_share.bfloat16": 0.14,
    }  # fmt: skip
    assert (made.runs, made.fitted_on, made.stack) == ((OTHER,), ("runs.csv",), "plain")
    expected = Constant(value=4e-6, sigma=4e-7, source="fit, from 8e-06 within 25 % (a guess)")
    assert made.kernel_s == expected
    mixed = replace(fit, rows=[*rows, row_of(SimpleNamespace(stack="megatron-lm"))])
    assert mixed.constants("runs.csv").stack == ""
    assert [fit.rest_s(row_of(SimpleNamespace(model=name)).plan) for name in ("first", "second")] == [None, 0.5]
    named = SimpleNamespace(cluster=SimpleNamespace(name="mine"), model="second")
    plans = iter([row_of(named).plan, "changed", row_of(None).plan])
    given = []
    plan_of = fit_module.fitted_plan_of({"mine": fit}, lambda options: given.append(options) or next(plans))
    assert plan_of({"pp": 4}) == "changed"
    assert {name: value for name, value in given[1].items() if name != "cluster"} == {"pp": 4, "rest": 0.5}
    assert given[1]["cluster"].constants.kernel_s == expected
    assert plan_of({"pp": 8}).job is None


def test_priors_of_a_cluster_are_those_of_its_gpu_type_links_and_earlier_fit() -> None:
    def cluster_of(
        *, in_situ: object, compute_share: dict, overlap: dict, jitter: Constant | None
    ) -> SimpleNamespace:
        plain = dict.fromkeys(("kernel_s", "launch_s", "routing_host_s", "overlap_slowdown"))
        named = {"jitter": jitter} if jitter else {}
        constants = SimpleNamespace(
            compute_share=compute_share, overlap=overlap, jitter=jitter, named=named, **plain
        )
        gets = SimpleNamespace(in_situ=in_situ, host_s=7e-6, kernel_s=3e-6, overlap_slowdown=0.6)
        tiers = [SimpleNamespace(name="node", link=SimpleNamespace(efficiency=0.8))]
        return SimpleNamespace(constants=constants, device=SimpleNamespace(efficiency=gets), tiers=tiers)

    plans = [
        row_of(SimpleNamespace(execution=SimpleNamespace(dtype=dtype))).plan for dtype in ("float8", "bfloat16")
    ]
    cluster = cluster_of(
        in_situ=SimpleNamespace(factors={"float8": 1}, sigma=0.11),
        compute_share={"bfloat16": Constant(value=0.7)},
        overlap={"ep": Constant(value=0.4)},
        jitter=Constant(value=0.05, sigma=0.01),
    )
    found = {prior.name: (prior.median, prior.spread) for prior in posterior.priors_of(cluster, plans)}
    share = SHARES.machine
    assert found == {
        "compute_share.float8": (1.0, share * 0.11), "compute_share.bfloat16": (0.7, share * fit_module.ESTIMATE_SPREAD),
        "link_efficiency.node": (0.8, share * 0.15), "overlap.tp": (1.0, share * 0.25),
        "overlap.ep": (0.4, share * 0.25), "kernel_s": (3e-6, share * 0.35), "launch_s": (7e-6, share * 1.2),
        "jitter": (0.05, pytest.approx(0.2)), "overlap_slowdown": (0.6, share * 0.3),
    }  # fmt: skip
    bare = cluster_of(in_situ=None, compute_share={}, overlap={}, jitter=None)
    assert posterior.priors_of(bare, plans[:1])[0].spread == share * fit_module.ESTIMATE_SPREAD


def test_values_of_a_prior_are_within_its_most_deviations_and_links_below_their_bandwidth() -> None:
    link, plain = (posterior.Prior(name, 0.8, 0.3, "") for name in ("link_efficiency.node", "kernel_s"))
    most = fit_module.MOST
    assert [plain.value(at) for at in (-most - 5, 0.5, most + 5)] == pytest.approx(
        [0.8 * np.exp(-0.3 * most), 0.8 * np.exp(0.15), 0.8 * np.exp(0.3 * most)]
    )
    assert [link.value(at) for at in (0.5, 2.0)] == pytest.approx([0.8 * np.exp(0.15), 1.0])
    jobs = [row_of(SimpleNamespace(rest_s=rest)).plan for rest in (0.0, 0.3, 0.2)]
    assert posterior.rest_of(4, jobs, 5.0) == posterior.Prior(
        "rest.4", 0.3, 1.2, posterior.rest_of(4, [], 5.0).reason
    )
    assert (posterior.rest_of(4, jobs[:1], 5.0).median, posterior.rest_of(4, [], 7.0).median) == (0.05, 0.07)


def test_a_run_takes_the_time_without_its_rest_times_the_projected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_module, "features_of", lambda _: NEAR)
    monkeypatch.setattr(fit_module, "spread_of", lambda _: 0.123456)
    monkeypatch.setattr(Line, "STARTS", np.log([1.5, 1.5, 1.5]))
    monkeypatch.setattr(Line, "SLOPES", np.zeros((3, 1)))
    rows = [
        row_of(SimpleNamespace(model=model, rest_s=0.8), measured_s=measured)
        for model, measured in (("first", 4.0), ("second", 4.0), ("second", 0.9))
    ]
    cluster = SimpleNamespace(constants=SimpleNamespace(runs=(OTHER,)))
    priors = [posterior.Prior("rest.1", 0.6, 0.3, "")]
    made = Line(cluster, rows, ["first", "second"], dict).runs(
        priors, np.zeros(1), np.array([0.01, 0.02, 0.03, 9.0])
    )
    assert made[0] is OTHER
    assert [run.times for run in made[1:]] == pytest.approx(
        [(4 - 0.8) / (6 - 0.8), (4 - 0.6) / (6 - 0.6), 0.45 / 0.9], rel=1e-3
    )
    assert [(run.sigma, run.spread) for run in made[1:]] == [(0.01, 0.1235), (0.02, 0.1235), (0.03, 0.1235)]


def test_extra_times_that_rows_cannot_separate_from_a_rate_are_undetermined() -> None:
    names = ("rest.0", "rest.1", "launch_s", "kernel_s")
    priors = [posterior.Prior(name, 3.0, 0.5, "") for name in names]
    solved = SimpleNamespace(spreads=[0.95, 0.9, 0.95, 0.95])

    def undetermined(launch_s: Constant | None) -> list[tuple[str, float, float]]:
        cluster = SimpleNamespace(constants=SimpleNamespace(launch_s=launch_s))
        return [
            (one.prior.name, one.value, one.spread) for one in fit_module._undetermined(priors, solved, cluster)
        ]

    assert undetermined(None) == [("rest.0", 3.0, 0.475), ("launch_s", 3.0, 0.475)]
    assert undetermined(Constant(value=1e-5)) == [("rest.0", 3.0, 0.475)]
    measured = {
        "operator_time.gemm-bfloat16": 1,
        "operator_time.experts-float8": 1,
        "operator_time.memory-float16": 1,
    }
    names = [*(f"compute_share.{dtype}" for dtype in ("bfloat16", "float8", "float16")), "kernel_s.bfloat16"]
    assert [fit_module._is_measured(name, measured) for name in names] == [True, True, False, False]


KINDS_OF_KERNELS = ("gemm", "narrow gemm", "experts", "attention", "memory", "optimizer")


def multipliers(
    monkeypatch: pytest.MonkeyPatch,
    seconds: dict[str, float],
    *,
    dtype: str = "bfloat16",
    projected: dict[str, float] | None = None,
    counts: dict[str, float] | None = None,
) -> dict[str, float]:
    """Return measured / projected seconds by kind, for two ranks with the same kernels and 0.5 s between them."""
    projected_s = {
        "gemm-bfloat16": 2.0, "gemm-float8": 4.0, "experts-bfloat16": 8.0, "experts-float8": 8.0, "attention": 16.0,
        "memory": 32.0, **(projected or {}),
    }  # fmt: skip
    parts = SimpleNamespace(step_costs=SimpleNamespace(optimizer_s=5.0))
    monkeypatch.setattr(fit_module, "assembled_of", lambda plan: (None, parts))
    monkeypatch.setattr(fit_module, "_busy_s", lambda plan: ["busy"])
    monkeypatch.setattr(fit_module, "_projected_s", lambda plan, job, kind, busy: projected_s[kind])
    monkeypatch.setattr(fit_module, "_by_messages", lambda job, recorded: [("all-reduce", 7.0)])
    device = SimpleNamespace(efficiency=SimpleNamespace(kernel_s=0.5))
    job = SimpleNamespace(cluster=SimpleNamespace(device=device), execution=SimpleNamespace(dtype=dtype))
    kernels = [SimpleNamespace(seconds=seconds, counts=counts or {})] * 2
    recorded = SimpleNamespace(kernels=kernels, source="r")
    return dict(fit_module._by_kernels(SimpleNamespace(pp=2), job, recorded))


def test_named_kernels_of_all_ranks_are_divided_by_the_projected_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = dict(zip(KINDS_OF_KERNELS, (3.0, 5.0, 7.0, 11.0, 13.0, 17.0), strict=True))
    others = {"attention": 22 / 16, "memory": 26 / 32, "optimizer": 34 / 10, "all-reduce": 7.0}
    assert multipliers(monkeypatch, seconds) == {**others, "gemm-bfloat16": 6 / 2, "experts-bfloat16": 14 / 8}
    assert multipliers(monkeypatch, seconds, dtype="float8") == {
        **others, "gemm-bfloat16": 6 / 2, "gemm-float8": 10 / 4, "experts-float8": 14 / 8,
    }  # fmt: skip
    with_gaps = multipliers(monkeypatch, seconds, counts={"attention": 6.0})
    assert with_gaps["attention"] == 2 * (11 + 0.5 * 6) / 16


def test_gemms_whose_names_do_not_separate_them_have_one_multiplier(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"gemm": 3.0, "narrow gemm": 5.0}
    pooled = 2 * (3 + 5) / (2 + 8)
    assert multipliers(monkeypatch, seconds) == {
        "gemm-bfloat16": pooled, "experts-bfloat16": pooled, "all-reduce": 7.0
    }  # fmt: skip
    dense = multipliers(monkeypatch, seconds, projected={"experts-bfloat16": 0.0})
    assert dense == {"gemm-bfloat16": 6 / 2, "all-reduce": 7.0}
    assert multipliers(monkeypatch, {}) == {"all-reduce": 7.0}
    only_memory = multipliers(monkeypatch, {"memory": 13.0, "attention": 11.0}, projected={"attention": 0.0})
    assert only_memory == {"memory": 26 / 32, "all-reduce": 7.0}


@pytest.mark.parametrize(
    ("num_ranks", "pp", "is_refused"), [(1, 1, False), (1, 2, True), (2, 2, False), (2, 3, True)]
)
def test_kernels_are_of_each_pipeline_rank(
    monkeypatch: pytest.MonkeyPatch, num_ranks: int, pp: int, is_refused: bool
) -> None:
    monkeypatch.setattr(fit_module, "_busy_s", lambda plan: (_ for _ in ()).throw(LookupError))
    job = SimpleNamespace(cluster=SimpleNamespace(device=SimpleNamespace(efficiency=SimpleNamespace(kernel_s=0.5))))
    recorded = SimpleNamespace(kernels=[None] * num_ranks, source="r")
    with pytest.raises(ConfigError if is_refused else LookupError):
        list(fit_module._by_kernels(SimpleNamespace(pp=pp), job, recorded))


def test_errors_beyond_the_spread_of_the_gpu_type_weigh_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a row 5 spreads off, the information is a fifth."""
    monkeypatch.setattr(fit_module, "features_of", lambda job: job)
    monkeypatch.setattr(fit_module, "spread_of", lambda plan: 0.2)
    monkeypatch.setattr(fit_module, "job_covariance", lambda *_: np.eye(2))
    monkeypatch.setattr(fit_module, "_ROUNDS_OF_WEIGHTS", 1)
    monkeypatch.setattr(Line, "STARTS", np.array([1.0, 0.1]))
    asked: list[Any] = []

    def most_probable(*given: Any) -> posterior._State:
        asked.append(given[3])
        return posterior._State(np.zeros(0), Line.STARTS)

    problem = line(earlier=False)
    monkeypatch.setattr(Line, "_most_probable", most_probable)
    solution = problem.solved([])
    expected = np.diag([1 / 5, 1.0]) / (0.2**2 + solution.sigmas**2)
    assert asked[0] == pytest.approx(expected)


def test_a_step_that_a_slow_host_explains_determines_the_time_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes 1 s and 100,000 times the time of a launch."""
    monkeypatch.setattr(fit_module, "project_run", lambda case, plan: 1 + 1e5 * plan.launch_s)
    monkeypatch.setattr(
        fit_module, "with_launches_of", lambda plan, launch_s: SimpleNamespace(job=plan.job, launch_s=launch_s)
    )
    monkeypatch.setattr(fit_module, "spread_of", lambda plan: 0.05)
    monkeypatch.setattr(fit_module, "EAGER_LAUNCH_S", 1e-4)
    slow_s: list[float | None] = [11.0]
    monkeypatch.setattr(fit_module, "slow_host_s", lambda plan, seconds, seconds_of: slow_s[0])

    def log_of(measured_s: float) -> float | None:
        device = SimpleNamespace(efficiency=SimpleNamespace(host_s=1e-6))
        row = row_of(SimpleNamespace(cluster=SimpleNamespace(device=device)), measured_s=measured_s)
        row.plan.launch_s = 1e-6
        return fit_module._log_of_launch(row)

    log_s = log_of(6.0)
    assert log_s is not None
    assert np.exp(log_s) == pytest.approx(5e-5, rel=0.003)
    assert log_of(11.0) is not None
    assert (log_of(11.1), log_of(1.1 * np.exp(0.1) - 1e-6)) == (None, None)
    slow_s[0] = None
    assert log_of(6.0) is None


def test_launches_of_several_steps_have_their_geometric_mean_and_the_largest_spread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fit_module, "_log_of_launch", lambda row: row.measured_s or None)
    monkeypatch.setattr(fit_module, "spread_of", lambda plan: plan.job)
    rows = [
        row_of(0.5, measured_s=np.log(2e-6)),
        row_of(0.25, measured_s=np.log(8e-6)),
        row_of(0.1, measured_s=0.0),
    ]
    (launch,) = fit_module._launching(rows).values()
    assert (launch.value, launch.sigma) == (4e-6, 2e-6)
    assert fit_module._launching(rows[2:]) == {}


def test_operators_of_several_runs_have_their_geometric_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = {
        "a": {"operator_time.memory": Constant(value=2.0), "operator_time.attention": Constant(value=3.0)},
        "b": {"operator_time.memory": Constant(value=8.0)},
    }
    monkeypatch.setattr(fit_module, "operator_constants", lambda plan, source: recorded[source])
    rows = [row_of(None, case=SimpleNamespace(recorded=source)) for source in ("a", "b", None)]
    operators = fit_module._operators(rows)
    assert {name: (constant.value, constant.sigma) for name, constant in operators.items()} == {
        "operator_time.memory": (4.0, 0.08), "operator_time.attention": (3.0, 0.06),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "is_measured"),
    [("compute_share.bfloat16", True), ("compute_share.float8", True), ("compute_share.float16", False),
     ("link_efficiency.bfloat16", False)],
)  # fmt: skip
def test_the_rate_of_measured_gemms_is_not_fitted(name: str, is_measured: bool) -> None:
    operators = dict.fromkeys(("operator_time.gemm-bfloat16", "operator_time.experts-float8"), Constant(value=1.0))
    assert fit_module._is_measured(name, operators) is is_measured


def test_rows_beyond_two_spreads_are_outliers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_module, "spread_of", lambda plan: 0.125)
    rows = [row_of(None, name=name) for name in "abc"]
    doubts = fit_module._doubts(rows, [0.25, -0.375, 0.1])
    assert [(doubt.row, doubt.times) for doubt in doubts] == [("b", 3.0)]
    assert doubts[0].error == pytest.approx(np.exp(-0.375) - 1)


@pytest.mark.parametrize("factor", [0.05, 20.0])
def test_multipliers_that_are_not_plausible_are_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match="memory takes"):
        fit_module._constant("memory", factor, "r")
    inner = fit_module._constant("memory", factor * (1.2 if factor < 1 else 0.8), "r")
    assert inner.sigma == pytest.approx(0.02 * inner.value)


def test_the_projected_seconds_of_a_kind_are_added_if_it_takes_twice_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks take 3 and 5 s and the multiplier, which is 1.5, then 3."""

    @dataclass(frozen=True)
    class Job:
        cluster: Any

    @dataclass(frozen=True)
    class OwnPlan:
        job: Job

    constants = SimpleNamespace(having=lambda given: given)
    cluster = SimpleNamespace(constants=constants, with_constants=lambda given: given)
    monkeypatch.setattr(fit_module, "_before", lambda job, kind: {"memory": 1.5}[kind])
    monkeypatch.setattr(
        fit_module, "_busy_s",
        lambda plan: [3 + plan.job.cluster["operator_time.memory"].value, 5 + plan.job.cluster["operator_time.memory"].value],
    )  # fmt: skip
    job = Job(cluster)
    seconds = fit_module._projected_s(OwnPlan(job), job, "memory", [4.5, 6.5])  # type: ignore[arg-type]
    assert seconds == 2 * 1.5


def test_a_multiplier_that_a_cluster_has_is_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    efficiency = SimpleNamespace(operator_time={"memory": 1.5, "attention": 0.0})
    job = SimpleNamespace(cluster=SimpleNamespace(device=SimpleNamespace(efficiency=efficiency)))
    times = {"memory": 3.0, "attention": 2.0, "all-reduce": 7.0}
    for name, other in (("_by_kernels", "_by_passes"), ("_by_passes", "_by_kernels")):
        monkeypatch.setattr(fit_module, name, lambda plan, job, recorded: times.items())
        monkeypatch.setattr(fit_module, other, lambda plan, job, recorded: {}.items())
        recorded = SimpleNamespace(kernels=["kernel"] * (name == "_by_kernels"), source="r")
        constants = fit_module.operator_constants(SimpleNamespace(job=job), recorded)  # type: ignore[arg-type]
        assert {kind: constant.value for kind, constant in constants.items()} == {
            "operator_time.memory": 4.5, "operator_time.all-reduce": 7.0
        }  # fmt: skip
