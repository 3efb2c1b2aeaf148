"""`ppsim export`: options of each target, and what is written and printed."""

import json

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.cli import export as module
from ppsim.schedule.grammar import format_table
from tests.cli.running import ppsim as run

TABLE = ppsim.build("interleaved-1f1b", pp=2, vpp=2, microbatches=4)
NOTHING = dict.fromkeys(("split", "layers_by", "trainer_version", "micro_batch", "replace"))


@pytest.mark.parametrize(
    ("target", "options", "sentence"),
    [
        ("torchtitan", {"layers_by": "virtual"}, "--layers-by is for --to megatron"),
        ("megatron", {"trainer_version": "0.3"}, "--trainer-version is for --to torchtitan: got --to megatron"),
        ("megatron", {"replace": "zb"}, "--replace is for --to primus: got --to megatron"),
        ("megatron", {"layers_by": "virtual"}, "--layers-by says the layers of --split: give it too"),
        ("torchtitan", {"micro_batch": 0}, "micro-batch-size must be at least 1"),
    ],
)
def test_options_of_other_targets_are_refused(target, options, sentence, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=sentence):
        module._check_options(target, NOTHING | options)
    module._check_options(target, NOTHING)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "T.csv").write_text(format_table(TABLE))
    typed = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    if "layers_by" not in options:
        assert run("export", "T.csv", "--to", target, *typed, "-o", "out", code=2).stderr.startswith("ppsim: ")
    assert not (tmp_path / "out").exists()


def test_arguments_of_megatron_are_a_line_json_or_yaml():
    content = json.dumps({"arguments": {"pipeline_model_parallel_size": 2, "overlap_p2p_communication": True}})
    line = module._megatron(TABLE, content, "out.json", NOTHING)[1]
    assert line.startswith("--pipeline-model-parallel-size 2")
    assert line.endswith("\n")
    assert module._megatron(TABLE, content, "out.json", NOTHING) == (content, line)
    assert module._megatron(TABLE, content, "out.txt", NOTHING) == (line, line)
    for name in ("out.yaml", "out.yml"):
        text, same = module._megatron(TABLE, content, name, NOTHING)
        assert text.splitlines()[0].startswith("pipeline_model_parallel_size: 2")
        assert same == line


def test_layers_of_megatron_are_told_as_asked(monkeypatch):
    calls = []

    def arguments(table, **how):
        calls.append((table, how))
        return {"arguments": {"num_layers": 8}}

    monkeypatch.setattr("ppsim.trainers.megatron.write_schedule.megatron_arguments", arguments)
    options = NOTHING | {"layers_by": "x", "split": "1,2,2,3"}
    content, line = module._megatron(TABLE, '{"arguments": {}}', "out.json", options)
    [(table, how)] = calls
    assert table is TABLE
    assert (list(how["layers_per_stage"]), how["layers_by"]) == ([1, 2, 2, 3], "x")
    assert json.loads(content) == {"arguments": {"num_layers": 8}}
    assert line == "--num-layers 8\n"


def test_settings_of_torchtitan_have_its_version_and_layers(monkeypatch, capsys):
    given = []
    monkeypatch.setattr(
        "ppsim.trainers.torchtitan.write_schedule.torchtitan_settings",
        lambda *all, **how: given.append((all, how)) or "s",
    )
    monkeypatch.setattr("ppsim.trainers.torchtitan.write_schedule.settings_text", lambda *all: all)
    monkeypatch.setattr("ppsim.trainers.torchtitan.write_schedule.warnings_of", lambda *all: [f"{all[1]} is old"])
    usual = {"csv": "o.csv", "version": "0.3", "micro_batch": 1, "layers_per_stage": None}
    assert module._torchtitan(TABLE, "content", "o.csv", NOTHING) == ("content", ("s", "0.3"))
    assert capsys.readouterr().err == "warning: 0.3 is old\n"
    options = NOTHING | {"trainer_version": "0.2", "micro_batch": 3, "split": "1,2,2,3"}
    assert module._torchtitan(TABLE, "content", "o.csv", options) == ("content", ("s", "0.2"))
    given[1][1]["layers_per_stage"] = list(given[1][1]["layers_per_stage"])
    assert [how for _, how in given] == [
        usual,
        usual | {"version": "0.2", "micro_batch": 3, "layers_per_stage": [1, 2, 2, 3]},
    ]
    assert given[0][0] == (TABLE,)
    with pytest.raises(ConfigError, match="TorchTitan needs layers per stage, as 7,8,8,7"):
        module._torchtitan(TABLE, "content", "o.csv", NOTHING | {"split": "even"})


def test_a_table_of_primus_comes_with_its_start_script(monkeypatch):
    monkeypatch.setattr("ppsim.integrations.primus.algorithm_for", lambda *all: f"algorithm of {all}")
    content, script = module._primus(TABLE, '{"a": 1}', "out.json", NOTHING | {"replace": "zb"})
    assert content == '{"a": 1}'
    assert script.startswith(
        "# start.py, for: primus-cli direct --script start.py -- train pretrain --config YOURS.yaml\n"
    )
    assert "out.json" in script
    assert module._for_trainer("torch", TABLE, "content", "out", NOTHING) == ("content", "")
