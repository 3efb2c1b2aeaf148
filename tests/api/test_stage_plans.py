"""Files of `--plan`: each stage with its own layers, recomputation and offloading."""

import json

import pytest

import ppsim
from ppsim.errors import ConfigError
from tests.cli.running import ppsim as command

JOB = {"model": "llama3-70b", "gpus": 64, "tp": 4, "pp": 4, "global_batch": 64, "stack": "plain"}
LINE = "project --model llama3-70b --gpus 64 --tp 4 --pp 4 --global-batch-size 64 --stack plain"


def plan_file(tmp_path, stages: list[dict], name: str = "plan.json") -> str:
    """A file of --plan with these stages."""
    path = tmp_path / name
    path.write_text(json.dumps({"stages": stages}))
    return str(path)


def test_equal_stages_are_the_options_of_all(tmp_path) -> None:
    for recompute in ("block/7", "full", "mlp", "uniform/4"):
        file = plan_file(tmp_path, [{"layers": 20, "recompute": recompute}] * 4)
        by_file = ppsim.project(**JOB, stage_plan=file)
        by_options = ppsim.project(**JOB, split=[20] * 4, recompute=recompute)
        assert by_file.iteration_time_s == by_options.iteration_time_s
        assert by_file.timeline.memory.peak_bytes.tolist() == by_options.timeline.memory.peak_bytes.tolist()


def test_a_stage_has_the_costs_of_its_own_recomputation(tmp_path) -> None:
    """Stage 1 alone recomputes: its passes and bytes are those of a plan that recomputes all, the others' of none."""
    file = plan_file(tmp_path, [{"layers": 20, "recompute": word} for word in ("none", "full", "none", "none")])
    mixed, none, full = (
        ppsim.project(**JOB, split=[20] * 4, **words)
        for words in ({"stage_plan": file}, {"recompute": "none"}, {"recompute": "full"})
    )
    for stage in range(4):
        other = full if stage == 1 else none
        for key in ("forward_s", "backward_s", "activation_bytes"):
            assert mixed.stages[stage][key] == other.stages[stage][key]


def test_words_of_single_layers_are_the_same_layers_by_number_and_by_count(tmp_path) -> None:
    """Layers 20 to 22 of the model are the first three of stage 1."""
    by_number = ppsim.project(**JOB, split=[20] * 4, recompute="mlp@20-22")
    stages = [{"layers": 20, "recompute": word} for word in ("none", "mlp*3", "none", "none")]
    by_count = ppsim.project(**JOB, stage_plan=plan_file(tmp_path, stages))
    assert by_number.iteration_time_s == by_count.iteration_time_s
    assert by_number.timeline.memory.peak_bytes.tolist() == by_count.timeline.memory.peak_bytes.tolist()


def test_every_nth_layer_goes_on_from_the_earlier_stages_of_a_rank() -> None:
    """With 4 ranks and vpp 4 a stage has 5 layers: the second of two counts 6 to 10, so that layers 6, 8, 10 are even."""
    made = ppsim.project(**JOB, vpp=4, split=[5] * 16, recompute="full/2")
    recomputed = [part.backward.recompute_s for part in made.stage_cost_set.parts]
    assert recomputed[4] == pytest.approx(recomputed[0] * 3 / 2)
    assert sum(recomputed) == pytest.approx(40 * recomputed[0] / 2)


def test_layers_left_to_the_split_are_searched_for_with_the_plans(tmp_path) -> None:
    file = plan_file(tmp_path, [{"recompute": "full"}, {}, {}, {}])
    made = ppsim.project(**JOB, stage_plan=file)
    assert made.split[0] < made.split[1]
    assert [row["recompute"] for row in made.stages] == ["full", "none", "none", "none"]


def test_a_stage_offloads_its_own_modules(tmp_path) -> None:
    file = plan_file(tmp_path, [{"layers": 20, "offload_modules": "core_attn+attn_proj"}] + [{"layers": 20}] * 3)
    made, plain = (ppsim.project(**JOB, split=[20] * 4, stage_plan=one) for one in (file, None))
    assert made.stages[0]["activation_bytes"] < plain.stages[0]["activation_bytes"]
    assert made.stages[1]["activation_bytes"] == plain.stages[1]["activation_bytes"]


def test_the_written_file_gives_the_same_projection(tmp_path) -> None:
    first = plan_file(tmp_path, [{"recompute": "full*2,mlp*3"}, {}, {"recompute": "block/4"}, {}])
    out = tmp_path / "out.toml"
    command(*LINE.split(), "--plan", first, "-o", str(out))
    one, two = (ppsim.project(**JOB, stage_plan=path) for path in (first, out))
    assert one.split == two.split
    assert one.iteration_time_s == two.iteration_time_s


def test_the_report_has_a_table_of_stages(tmp_path) -> None:
    file = plan_file(tmp_path, [{"layers": 20, "recompute": word} for word in ("full*9", "full*3", "none", "none")])
    text = command(*LINE.split(), "--plan", file, "--full").stdout
    [header] = [line.split() for line in text.splitlines() if line.startswith("stage ") and "recompute" in line]
    assert header == ["stage", "recompute", "rank", "layers", "F", "B", "activations", "limited", "by"]
    assert "full*9" in text


def test_empty_stages_and_a_loss_alone_are_allowed() -> None:
    """A stage without layers takes no time; the loss alone is the head's time."""
    made = ppsim.project(**JOB, split="Et*40||t*40|L")
    assert made.split == [40, 0, 40, 0]
    assert made.stages[1]["forward_s"] == 0
    assert made.timeline.busy_s[1] == 0
    assert 0 < made.stages[3]["forward_s"] < made.stages[2]["forward_s"] / 10


def test_all_that_is_wrong_with_a_file_is_named_at_once(tmp_path) -> None:
    stages = [
        {"layers": 19, "recompute": "full*29"},
        {"layers": 23, "recompute": "moe"},
        {"layers": 21, "recompute": "full@80", "offload_modules": "core_attn"},
        {"layers": 4, "recompute": "block/9"},
        {},
    ]
    result = command(*LINE.split(), "--schedule", "zb-h1", "--plan", plan_file(tmp_path, stages), code=2)
    for sentence in (
        "it has 5 stages, but pp 4 and vpp 1 make 4",
        "all stages have layers, or none: stage 4 has none",
        "stage 0: recompute full*29 is of 29 layers, but a stage has 19",
        "stage 1: recompute moe is for layers with experts, and the model has none: leave it out",
        "stage 2: recompute full@80 has layer 80, but the last of the model is 79",
        "stage 2: zb-h1 splits the backward: leave out offload_modules",
        "stage 3: recompute block/9 is of 9 layers, but it has 4",
    ):
        assert sentence in " ".join(result.stderr.split())


def test_a_number_of_layers_that_no_model_has_is_refused(tmp_path) -> None:
    file = plan_file(tmp_path, [{"layers": 10**14}, {"layers": 16}])
    with pytest.raises(ConfigError, match=r"stages\[0\].layers: must be at most 10000, got 100000000000000"):
        ppsim.project(**JOB, stage_plan=file)


def test_unknown_words_are_named_with_their_stage(tmp_path) -> None:
    file = plan_file(tmp_path, [{"recomputes": "x"}, {"recompute": "half", "offload_modules": "y"}])
    with pytest.raises(ConfigError) as wrong:
        ppsim.project(**JOB, stage_plan=file)
    for part in ("stages[0].recomputes: unknown key", "stages[1].recompute: ", "stages[1].offload_modules: "):
        assert part in str(wrong.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"pp": 4}, "is of the stages of a model: give --model"),
        ({**JOB, "split": [19, 21, 20, 20]}, "says the layers of each stage: leave out --split"),
        ({**JOB, "pp": 8}, "it has 4 stages, but pp 8 and vpp 1 make 8"),
    ],
)
def test_what_does_not_go_with_a_file_is_refused(words, sentence, tmp_path) -> None:
    file = plan_file(tmp_path, [{"layers": 20}] * 4)
    with pytest.raises(ConfigError, match=sentence):
        ppsim.project(**words, stage_plan=file)


def test_a_trainer_that_cannot_say_it_gets_a_comment(tmp_path) -> None:
    file = plan_file(tmp_path, [{"layers": 20, "recompute": word} for word in ("mlp*9", "full*3", "none", "none")])
    text = command(*LINE.split(), "--runtime", "megatron", "--plan", file, "--to-config", "megatron").stdout
    assert f"# not expressible: --plan {file}" in text
    file = plan_file(tmp_path, [{"layers": 20, "recompute": "block/5"}] * 4)
    text = command(*LINE.split(), "--runtime", "megatron", "--plan", file, "--to-config", "megatron").stdout
    assert "--recompute-method block" in text
    assert "--plan" not in text.split("pretrain_gpt")[0].split("# megatron")[1]


def test_a_plan_that_was_searched_for_is_named_in_a_comment() -> None:
    line = "project --model llama3-70b --gpus 64 --tp 4 --pp 4 --global-batch-size 128 --micro-batch-size 2 --runtime megatron"
    text = command(*line.split(), "--plan", "auto", "--to-config", "megatron").stdout
    assert "# not expressible by any option: the plan of each stage (write it with -o plan.toml" in text


def test_whole_layers_are_the_layer_numbers_of_primus(tmp_path) -> None:
    """Read back, the experiment gives an equal plan."""
    file = plan_file(tmp_path, [{"layers": 20, "recompute": word} for word in ("full*2", "full*1", "none", "none")])
    made = ppsim.project(**JOB | {"stack": "primus"}, stage_plan=file, runtime="megatron")
    assert made.plan.job.execution.recompute == "full@0-1,20"
    assert [row["recompute"] for row in made.stages] == ["full*2", "full*1", "none", "none"]
    text = ppsim.trainer_options(made, "primus")
    assert 'recompute_layer_ids: "0,1,20"' in text
    assert "recompute" not in "".join(line for line in text.splitlines() if line.startswith("#"))
    (tmp_path / "experiment.yaml").write_text(text)
    again = ppsim.project(run_config=tmp_path / "experiment.yaml", gpus=64)
    assert again.iteration_time_s == made.iteration_time_s


def test_layers_for_further_tokens_among_the_numbers_are_an_assumption(tmp_path) -> None:
    made = ppsim.project(
        model="deepseek-v3", gpus=64, pp=8, ep=8, recompute="full@0,3", stack="primus", runtime="megatron"
    )
    text = ppsim.trainer_options(made, "primus").replace('"0,3"', '"0,3,61"')
    (tmp_path / "experiment.yaml").write_text(text)
    read = ppsim.read_run_config(tmp_path / "experiment.yaml")
    assert read.options["recompute"] == "full@0,3"
    assert "layers for further tokens (61) are taken not to be recomputed" in read.assumed
