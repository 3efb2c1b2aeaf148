"""A model of one's own, named by --module: the same loop as with the built-in GPT, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import torch
from torch import nn

import ppsim
from ppsim.base.errors import ConfigError, RunFailed
from ppsim.cli import main
from ppsim.runtime.user_model import build_user_model, copy_weights, function_of

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "own_model.md"

MODEL = """
import torch
from torch import nn

WIDTH, WORDS = 16, 40

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))

class Stage(nn.Module):
    def __init__(self, count, is_first, is_last):
        super().__init__()
        self.head = nn.Linear(WIDTH, WORDS) if is_last else None
        self.embed = nn.Embedding(WORDS, WIDTH) if is_first else None
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x):
        x = x if self.embed is None else self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x)

def loss(output, targets):
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())

def stages(layers=(8,)):
    last = len(layers) - 1
    data = torch.randint(0, WORDS, (32, 13))
    return (Stage(n, i == 0, i == last) for i, n in enumerate(layers)), data[:, :-1], data[:, 1:], loss
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return "my_model.py:stages"


def command(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.torch
def test_profile_project_train_and_compare_work_on_it_as_on_the_gpt(module: str) -> None:
    """Step times of so small a model are the machine's; bytes, messages, gradients and losses are not."""
    command("profile", "--module", module, "--repeats", "2", "-o", "mine.json")
    profile = ppsim.load_profile("mine.json")
    assert [(one.component, one.parameters) for one in profile.measurements] == [
        ("embedding", 40 * 16), ("layer", 2 * 16 * 32 + 48), ("head", 17 * 40),
    ]  # fmt: skip
    assert (profile.model.num_layers, profile.model.hidden_size) == (8, 16)
    plan = ("--pp", "2", "--schedule", "zb-h1", "--num-microbatches", "4")
    command("project", *plan, "--profile", "mine.json", "--split", "3,5", "-o", "projected.json")
    command("train", *plan, "--module", module, "--split", "3,5", "--verify", "-o", "measured.json")
    run = json.loads(Path("measured.json").read_text())
    differences = run["run"]["differences"]
    assert differences["num_parameters"] == 2 + 1 + 8 * 4
    assert max(differences["loss"], differences["gradient"]) <= 1e-6
    assert run["steps"]["message_bytes"] == 2 * 12 * 16 * 4
    compared = ppsim.compare("measured.json", "projected.json")
    assert [(one.op, one.stage) for one in compared.ops] == [(op, stage) for op in "FIW" for stage in (0, 1)]
    assert [abs(one.error) < 0.02 for one in compared.peaks] == [True, True]
    in_partitions = ppsim.train(
        ppsim.build("zb-h1", pp=2, microbatches=4), module=module, split=[3, 5], partitions=2, verify=True
    )
    assert in_partitions.losses == pytest.approx(run["run"]["losses"], rel=1e-5)


@pytest.mark.parametrize(("schedule", "split"), [("1f1b", [1, 6, 1]), ("zbv", [0, 3, 1, 2, 2, 0])])
def test_uneven_stages_have_the_gradients_of_the_model_in_one_piece(
    module: str, schedule: str, split: list[int]
) -> None:
    table = ppsim.build(schedule, pp=3, microbatches=3)
    run = ppsim.train(table, module=module, split=split, partitions=3, steps=2, verify=True, learning_rate=0.01)
    assert run.facts["differences"]["gradient"] <= 1e-6
    assert run.config.layers_per_stage == split
    assert run.losses[-1] < run.losses[0]


def test_stages_that_are_not_the_model_cut_are_found(module: str) -> None:
    """A layer that counts itself within its stage is another layer in the unsplit model."""
    Path("my_model.py").write_text(
        MODEL.replace("for layer in self.layers:\n            x = layer(x)",
                      "for index, layer in enumerate(self.layers):\n            x = layer(x) / (1 + index)")
    )  # fmt: skip
    with pytest.raises(RunFailed, match="the pipelined step differs from one process by"):
        ppsim.train(ppsim.build("1f1b", pp=2, microbatches=2), module=module, partitions=2, verify=True, steps=1)


def test_the_whole_takes_the_weights_of_the_stages_whatever_their_order_and_numbers() -> None:
    def part(*names: str) -> nn.Module:
        return nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in names})

    whole = part("end", "layer0", "layer1", "layer2")
    stages = [part("layer0", "layer1"), part("layer2", "end")]
    found = copy_weights(whole, stages, "here")
    names = {id(parameter): name for name, parameter in whole.named_parameters()}
    assert [[names[id(one)] for one in mine] for mine in found] == [
        ["layer0.weight", "layer1.weight"], ["layer2.weight", "end.weight"],
    ]  # fmt: skip
    for mine, stage in zip(found, stages, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(mine, stage.parameters(), strict=True))
    with pytest.raises(ConfigError, match=r"has no parameter for other.weight of stage 1 \(shape \[2, 2\]\)"):
        copy_weights(whole, [part("layer0", "layer1"), part("layer2", "other")], "here")
    with pytest.raises(ConfigError, match=r"the model in one stage has layer#\.weight once more"):
        copy_weights(whole, [part("layer0", "layer1"), part("end")], "here")


def test_a_function_makes_the_same_again(module: str) -> None:
    function = function_of(module)
    one, other = (build_user_model(function, [3, 5], seed=7) for _ in range(2))
    kept, again = (list(build_user_model(function, [3, 5], seed=7).stages()) for _ in range(2))
    for stage, same in zip(kept, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(stage.parameters(), same.parameters(), strict=True))
    assert torch.equal(one.rows(4, 1)[0], other.rows(4, 1)[0])
    assert not torch.equal(one.rows(4, 1)[0], one.rows(4, 2)[0])


def test_a_module_that_is_imported_and_one_beside_the_file_are_found(module: str, tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "parts.py").write_text(MODEL)
    (tmp_path / "beside" / "model.py").write_text("from parts import stages\n")
    assert function_of("my_model:stages").num_layers(None) == 8
    assert function_of("beside/model.py:stages").num_layers(None) == 8


RETURN = "return (Stage(n, i == 0, i == last) for i, n in enumerate(layers)), data[:, :-1], data[:, 1:], loss"
FORWARD = "return x if self.head is None else self.head(x)"
SPLITS = {"schedule": "zb-h1"}
WRONG: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "no colon": ("", "", {"module": "my_model.py"}, "write it as FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION"),
    "no file": ("", "", {"module": "mine.py:stages"}, "--module mine.py:stages: there is no file mine.py"),
    "no function": ("", "", {"module": "my_model.py:stage"}, r"has no function stage \(did you mean stages\?\)"),
    "a broken file": ("import torch", "import torhc", {}, "fails: ModuleNotFoundError: No module named 'torhc'"),
    "no layers": ("layers=(8,)", "layers", {}, r"give its parameter a default, as stages\(layers=\(8,\)\), or --layers"),
    "0 layers": ("", "", {"layers": 0}, "--layers must be at least 1: got 0"),
    "no parameter": ("def stages(layers=(8,)):", "def stages():\n    layers = (8,)", {"layers": 8}, "takes no layers of"),
    "it raises": ("last = len", "last = [][1]\n    last = len", {}, r"the layers \[4, 4\]: IndexError: list index out of"),
    "three things": (", loss\n", "\n", {}, "returns 3 things: it must return stages, inputs, targets and loss"),
    "no loss": (RETURN, RETURN.removesuffix("loss") + "None", {}, r"gives no loss: the fourth .* got nothing \(None\)"),
    "one module": ("return (Stage(n, i == 0, i == last) for i, n in enumerate(layers))", "return Stage(8, 1, 1)", {},
                   r"returns one module \(Stage\) where the stages should be: a list of them"),
    "not a module": ("return (Stage(n, i == 0, i == last)", "return (Stage", {}, "stage 0 is no torch module: got type"),
    "too few stages": ("enumerate(layers))", "enumerate(layers[:1]))", {}, r"gives 1 stages for the 2 of the layers \[4, 4\]"),
    "an exit": ("    last =", "    import os; os._exit(3)\n    last =", {}, r"fails for the layers \[4, 4\]: SystemExit: os._exit\(3\)"),
    "an exit on import": ("WIDTH, WORDS =", "from os import _exit; _exit(3)\nWIDTH, WORDS =", {}, "my_model.py:stages fails: SystemExit"),
    "an exit of a stage": (FORWARD, "import os; os._exit(0)", {}, r"stage 0 fails on the inputs, .*: SystemExit: os._exit\(0\)"),
    "too slow": ("    last =", "    import time; time.sleep(9)\n    last =", {"timeout": 0.1},
                 "my_model.py:stages takes more than 0.1 s to build and try its stages: give a longer --timeout"),
    "too slow an import": ("WIDTH, WORDS =", "try:\n    import time; time.sleep(9)\nexcept Exception:\n    pass\nWIDTH, WORDS =",
                           {"timeout": 0.1}, "takes more than 0.1 s to build and try its stages"),
    "a time limit that is none": ("", "", {"timeout": float("nan")}, "--timeout must be more than 0 and at most .* seconds: got nan"),
    "too many stages": ("enumerate(layers))", "enumerate([*layers, 0]))", {}, "gives 3 stages for the 2"),
    "too few counts": ("", "", {"split": [8]}, "the split has 1 entries, but there are 2 stages"),
    "other layers": ("", "", {"split": [3, 4]}, "the split has 7 layers in all, but the model has 8"),
    "no rows": ("data[:, :-1], data", "data[:3, :-1], data", {}, "there are 3 inputs, but 32 targets"),
    "no tensor": ("data[:, :-1], data", "3, data", {}, "inputs must be a tensor with a row for each sample: got int"),
    "shapes apart": (FORWARD, "return x[..., 1:].clone() if self.head is None else self.head(x)", {},
                     r"stage 1 fails on what stage 0 returns, float32 \[2, 12, 15\]: RuntimeError: mat1 and mat2 shapes"),
    "a tuple": (FORWARD, "return x, x", {}, "stage 0 must return one tensor: got tuple"),
    "whole numbers": (FORWARD, "return x.long()", {}, r"stage 0 returns int64 \[2, 12, 16\], which has no gradient"),
    "no gradient": (FORWARD, "return x.detach() if self.head is None else self.head(x)", {},
                    "what stage 0 returns has no gradient: it depends on no parameter that learns"),
    "cut off": ("x = x if self.embed is None else self.embed(x)",
                "x = torch.zeros(2, 12, 16) if self.embed is None else self.embed(x)", {},
                "the loss of stage 1 does not depend on what stage 0 returns: no gradient goes back"),
    "a loss a token": ("targets.flatten())", "targets.flatten(), reduction='none')", {},
                       r"the loss must be one number, a tensor without dimensions: got float32 \[24\]"),
    "targets": ("data[:, 1:], loss", "data[:, 2:], loss", {}, r"the loss fails on float32 \[2, 12, 40\] and targets int64"),
    "a view": (FORWARD, "return x[:] if self.head is None else self.head(x)", {"split": [3, 3, 2], **SPLITS},
               "what stage 1 returns is a view of another tensor, which torch's split backward cannot detach"),
    "no parameter, no layers": ("def stages(", "def stages():\n    return 3\n\ndef other(", {},
                     r"stages takes no layers of each stage, so that there is nothing to split: write stages\(layers\)"),
    "a model too": ("", "", {"model": "nano"}, "--module says what is trained: leave out --model"),
    "a type too": ("", "", {"dtype": "float64"}, "--module says what is trained: leave out --dtype"),
    "emulated": ("", "", {"emulate_costs": ppsim.StageCosts(forward_s=1, backward_s=1)}, "so that no --module is run"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_no_pipeline_could_run_is_said_before_anything_is_started(
    case: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppsim.runtime.launch.launch_all", lambda configs: pytest.fail("started"))
    old, new, options, sentence = WRONG[case]
    assert old in MODEL
    Path("my_model.py").write_text(MODEL.replace(old, new))
    given = {"module": module, **options}
    pp = len(given["split"]) if case == "a view" else 2
    table = ppsim.build(given.pop("schedule", "1f1b"), pp=pp, microbatches=4)
    with pytest.raises(ConfigError, match=sentence) as raised:
        ppsim.train(table, **given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--schedule T.csv must be given, or --pp N with a schedule's name"),
        (["--schedule", "T.csv", "--pp", "2"], "T.csv says how many ranks it has: leave out --pp, or name a schedule"),
        (["--schedule", "T.csv", "--vpp", "2"], "--vpp and --num-microbatches are for --pp"),
        (["--schedule", "1f1c", "--pp", "2"], "unknown schedule '1f1c': did you mean"),
    ],
)  # fmt: skip
def test_a_table_is_a_file_or_a_schedule_for_so_many_ranks(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, ["train", *arguments])
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_what_profile_cannot_measure_is_said(module: str) -> None:
    Path("my_model.py").write_text(
        MODEL + "def none():\n    return 3\ndef bare(layers):\n    return stages(layers)\n"
    )
    for arguments, sentence in (
        (["--module", "my_model.py:none"], "a function without parameters returns a torch module and its example"),
        (["--module", "my_model.py:bare"], "my_model.py:bare does not say how many layers the model has"),
        (["--module", module, "--seq-len", "8"], "--module says what is measured: leave out --seq-len"),
    ):
        result = CliRunner().invoke(main, ["profile", *arguments, "-o", "mine.json"])
        assert result.exit_code == 2
        assert sentence in result.stderr


def test_what_the_file_prints_is_no_result(module: str) -> None:
    Path("my_model.py").write_text("print('hello')\n" + MODEL)
    arguments = ["--pp", "2", "--num-microbatches", "2", "--partitions", "2", "--module", module, "--steps", "1"]
    result = CliRunner().invoke(main, ["train", *arguments, "--json"])
    assert json.loads(result.stdout)["schedule"] == "1f1b"
    assert "hello" in result.stderr


def test_python_profiles_it_too_at_several_micro_batches(module: str) -> None:
    profile = ppsim.profile(module=module, micro_batch=[1, 4], layers=6, repeats=1, warm_up=0)
    assert [shape.micro_batch for shape in profile.shapes] == [1, 4]
    assert profile.model.num_layers == 6
    one, four = (profile.find("layer", shape) for shape in profile.shapes)
    assert (four.output_bytes, four.activation_bytes) == (4 * one.output_bytes, 4 * one.activation_bytes)
    assert four.forward_flops == 4 * one.forward_flops == 4 * 12 * 2 * (2 * 16 * 32)


@pytest.mark.torch
def test_the_llama_of_the_page_is_hugging_faces_and_its_stages_have_its_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="the Llama of docs/howto/own_model.md needs transformers")
    found = re.search(r"`my_llama.py`:\n\n```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert found is not None
    text = found[1].replace('"hidden_size": 256', '"hidden_size": 32')  # it shall be quick
    assert text != found[1]
    (tmp_path / "my_llama.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    made = build_user_model(function_of("my_llama.py:stages"), [3], seed=0)
    (whole,) = made.stages()
    tokens = made.rows(2, 0)[0]
    assert torch.equal(whole(tokens), whole.llama(input_ids=tokens).logits)  # type: ignore[operator]
    table = ppsim.build("zb-h1", pp=3, microbatches=3)
    run = ppsim.train(
        table, module="my_llama.py:stages", layers=3, split=[1, 2, 0], partitions=3, steps=1, verify=True
    )
    assert run.facts["differences"]["gradient"] <= 1e-5
