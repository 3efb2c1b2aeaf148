"""A launch script is read as bash runs it; what only the launch knows is asked for or said, and nothing is executed."""

import time
from pathlib import Path

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.trainers import launch_script as script_module
from ppsim.trainers.launch_script import LARGEST_SCRIPT, LaunchScript

MODEL = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 1024 --bf16"


def script(text: str, name: str = "x.sh", **given: str) -> LaunchScript:
    return LaunchScript(
        text, name, lambda options: bool(options), {name.lstrip("_"): each for name, each in given.items()}
    )


def words(text: str, **given: str) -> list[tuple[str, ...]]:
    return [command.words for command in script(text, **given).commands]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("S=a\nif [ $S = a ]; then L=2; else L=4; fi\ntorchrun t.py --l $L", {"--l": "2"}),
        ('S=b\ncase "$S" in a) L=2;; b) L=4;; esac\ntorchrun t.py --l $L', {"--l": "4"}),
        ('R=none\nA=(--l 2)\n[ "$R" = full ] && A+=(--full)\ntorchrun t.py "${A[@]}"', {"--l": "2"}),
        ("f() { torchrun t.py --l $1; }\ng() { torchrun t.py --l 9; }\nf 3", {"--l": "3"}),
        (': "${L:=2}"\ntorchrun t.py --l $((L * 2))', {"--l": "4"}),
        ("A=(\n # --b\n)\ntorchrun t.py --l 2 ${A[@]} 2>&1 | tee log", {"--l": "2"}),
        ('A=(1 2)\nB=("${A[@]/#/p}")\ntorchrun t.py --modules "${B[@]}"', {"--modules": "p1 p2"}),
        ("bash -c 'torchrun t.py --l 2'", {"--l": "2"}),
        ("srun -N 2 --ntasks-per-node 8 bash -c 'python t.py --l 2'", {"--nnodes": "2", "--nproc_per_node": "8", "--l": "2"}),
        ("CMD='torchrun t.py --l 2'\neval $CMD > log 2>&1 &\nwait", {"--l": "2"}),
        ("cat > run.sh <<EOF\ntorchrun t.py --l 2\nEOF\nbash run.sh", {"--l": "2"}),
        ("/opt/bin/torchrun t.py --l 2 > log 2>&1", {"--l": "2"}),
        ('P=t.py\n[ -f "$P" ] || exit 1\nsleep 9\ntorchrun $P --l 2', {"--l": "2"}),
        ("set -e\nmodule load cuda\nnvidia-smi\ntorchrun t.py --l 2", {"--l": "2"}),
        ("set -e\ncd /opt/Megatron-LM\ntorchrun t.py --l 2", {"--l": "2"}),
        ("L=2\npushd /opt/$L/m || exit 1\npopd\ncd ../n || exit 1\ntorchrun t.py --l $L", {"--l": "2"}),
        ("set -euo pipefail\nsource /opt/env.sh\nmkdir /a/b\ntorchrun t.py --l 2", {"--l": "2"}),
        ("set -o errexit -o nounset\n. env/bin/activate\ntorchrun t.py --l 2", {"--l": "2"}),
        ('set -u -- --size 2 --some 3\ntorchrun t.py "$@"', {"--size": "2", "--some": "3"}),
        ("cat > run.sh <<EOF\ntorchrun t.py --l \\$1\nEOF\nnohup ./run.sh 2 > log &", {"--l": "2"}),
        ("echo 'torchrun t.py --l 2' > run.sh\nD=$PWD\nsrun $D/run.sh", {"--l": "2"}),
        ("echo 'torchrun t.py --l 2' > run.sh\ncopy run.sh\n/opt/bin/bash run.sh", {"--l": "2"}),
        ("srun bash <<EOF\ntorchrun t.py --l 2\nEOF", {"--l": "2"}),
        ("torchrun t.py --l 2 --log run.sh \\", {"--l": "2", "--log": "run.sh"}),
        ("F=${F:-\"([0]*3+[1]*58)\"}\ntorchrun t.py --moe-layer-freq $F", {"--moe-layer-freq": "([0]*3+[1]*58)"}),
        ('A="--split 9,1 --name "{x}" --l 2"\ntorchrun t.py $A', {"--split": "9,1", "--name": "{x}", "--l": "2"}),
        ("torchrun t.py --l $(expr 010 \\* \\( 9 - 1 \\) / 40) | tee none/log", {"--l": "2"}),
        ("tee run.sh <<< 'torchrun t.py --l 2'\necho | tee -a run.sh\nbash run.sh", {"--l": "2"}),
    ],
)  # fmt: skip
def test_options_are_those_with_which_bash_starts_the_program(text: str, options: dict[str, str]) -> None:
    assert [command.options for command in script(text).commands] == [options]


def test_every_training_command_is_listed_once() -> None:
    loop = "for host in a b; do ssh $host torchrun t.py --l 2 --node-rank $host; done\n"
    assert len(words(loop + "torchrun t.py --l 2 --node-rank 7")) == 1
    assert [one[-1] for one in words("torchrun t.py --l 2\ntorchrun t.py --l 4")] == ["2", "4"]


def test_a_job_that_submits_itself_for_later_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppsim.trainers.launch_script._MOST_SHELLS", 2)
    path = tmp_path / "job.sh"
    path.write_text("sbatch --dependency=singleton $0 --resume\ntorchrun pretrain_gpt.py --num-layers 4\n")
    found = LaunchScript(path.read_text(), str(path), lambda options: "--num-layers" in options)
    assert [command.words for command in found.commands] == [("torchrun", "pretrain_gpt.py", "--num-layers", "4")]


def test_a_name_that_nobody_sets_is_unset_in_tests_and_defaults_and_needed_as_a_value() -> None:
    text = (
        "TP=${TP:-2}\n"
        'if [ "$FP8" = 1 ]; then EXTRA=--fp8; fi\n'
        "torchrun t.py --tensor-model-parallel-size $TP --num-layers $L --world-size $((N * 8)) $EXTRA\n"
    )
    dependence = script(text).dependence(0)
    assert dependence.options == {"--tensor-model-parallel-size": "2", "--num-layers": "$L", "--world-size": "$N"}
    assert dependence.notes == [
        "taken as not set: TP (line 1), which would set --tensor-model-parallel-size",
        "taken as not set: FP8 (line 2); with FP8=1 it would set --fp8",
    ]
    given = script(text, TP="4", FP8="1", L="8", N="2").dependence(0)
    assert given.options == {
        "--tensor-model-parallel-size": "4", "--num-layers": "8", "--world-size": "16", "--fp8": True,
    }  # fmt: skip
    assert given.notes == []


@pytest.mark.parametrize(
    "command", ["nvidia-smi -L | wc -l", "hostname", "nproc", "cat layers.txt", "cat $HOSTS | wc -l"]
)
def test_the_output_of_a_program_decides_nothing_silently(command: str) -> None:
    text = f"N=$({command})\nif [ ${{N:-0}} != 0 ]; then L=2; else L=4; fi\ntorchrun t.py --num-layers $L"
    (value,) = script(text).dependence(0).options.values()
    assert value.startswith(f"$({command.split()[0]}")


def test_a_setting_that_a_branch_gives_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_text(
        f"SIZE=$1\nif [ $SIZE = 7B ]; then PP=2; elif [ $SIZE = 70B ]; then PP=8; fi\n"
        f"torchrun t.py {MODEL} --micro-batch-size 1 --pipeline-model-parallel-size $PP --name $SIZE\n"
    )
    with pytest.raises(ConfigError, match=r"pipeline_model_parallel_size is \$1, .*: give --set 1=VALUE or --pp"):
        ppsim.project(run_config=path)
    assert ppsim.read_run_config(path).notes[-1] == (
        "taken as not set: its argument 1 (line 1); with 1=7B it would set --pipeline-model-parallel-size 2"
    )
    assert ppsim.read_run_config(path, variables={"1": "70B"}).options["pp"] == 8


def test_an_option_without_its_value_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_text(f"PP=\ntorchrun t.py {MODEL} --micro-batch-size 1 --pipeline-model-parallel-size $PP")
    with pytest.raises(ConfigError, match="pipeline_model_parallel_size has no value: give a whole number"):
        ppsim.project(run_config=path)
    path.write_text("torchrun t.py --micro-batch-size 1 --num-layers")
    with pytest.raises(ConfigError, match="num_layers has no value"):
        ppsim.project(run_config=path)


def test_an_argument_of_two_digits_is_asked_for() -> None:
    text = (
        'TP=${12}\n[ "$1" = dsw ] && A=--dsw\ntorchrun t.py --tensor-model-parallel-size $TP --num-layers ${4} $A'
    )
    assert script(text).dependence(0).options == {"--tensor-model-parallel-size": "$12", "--num-layers": "$4"}
    given = script(text, _12="2", _4="8", _1="dsw").dependence(0).options
    assert given == {"--tensor-model-parallel-size": "2", "--num-layers": "8", "--dsw": True}


def test_a_launch_sleeps_not_and_has_one_date() -> None:
    begun = time.perf_counter()
    dependence = script("sleep 60\ntorchrun t.py --l 2 --schedules-dir $(date +%s%N)${P:-p}").dependence(0)
    assert time.perf_counter() - begun < 2
    assert [note.partition(" (")[0] for note in dependence.notes] == ["taken as not set: P"]


def test_a_name_that_matters_is_found_among_many_with_few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "".join(f'[ "$N{index}" = on ] && A+=(--l{index})\n' for index in range(12)) + 'torchrun t.py "${A[@]:1}"'
    )
    read = script(f'A=(x)\n{text} --layers "${{L:-2}}"')
    runs = []
    run = read._run
    monkeypatch.setattr(read, "_run", lambda changed: runs.append(changed) or run(changed))
    notes = read.dependence(0).notes
    assert len(notes) == 13
    assert notes[-1] == "taken as not set: L (line 14), which would set --layers"
    assert len(runs) < 40


@pytest.mark.parametrize("has_git", [True, False])
def test_files_above_the_script_are_sourced_in_its_git_checkout_only(tmp_path: Path, has_git: bool) -> None:
    folder = tmp_path / "examples" / "small"
    for name in (folder, tmp_path / "scripts", *([tmp_path / ".git"] if has_git else [])):
        name.mkdir(parents=True)
    (tmp_path / "scripts" / "model.sh").write_text(
        'SIZES="--num-layers 4 --hidden-size 64 --num-attention-heads 4"'
    )
    path = folder / "train.sh"
    path.write_text(
        'source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/model.sh"\n'
        "torchrun pretrain_gpt.py --micro-batch-size 1 --vocab-size 100 $SIZES"
    )
    model = ppsim.read_run_config(path).model
    assert (model is not None) is has_git


def test_files_beside_the_script_are_sourced_and_others_of_the_machine_do_not_exist(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.sh").write_text("ARGS=(--l ${L:-2})\n")
    path = tmp_path / "x.sh"
    path.write_text('cd "$(dirname "$0")"\nsource models/small.sh\nsource /etc/profile\ntorchrun t.py "${ARGS[@]}"')
    read = LaunchScript(path.read_text(), str(path), bool)
    assert [command.options for command in read.commands] == [{"--l": "2"}]
    assert read.dependence(0).notes == ["taken as not set: L (small.sh line 1), which would set --l"]


def test_nothing_is_written_or_executed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    text = f"rm -rf {victim} {tmp_path}\necho gone > {victim}\npython -c \"open('{victim}', 'w')\"\ntorchrun t.py --l 2"
    assert len(words(text)) == 1
    assert victim.read_text() == "kept"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("torchrun 't.py", r"x.sh is no script that bash can read: parse error at line 1"),
        ("echo\ntorchrun <CHECKPOINT> t.py --l 2", r"bash says: line 2: CHECKPOINT: No such file or directory, in 'torchrun <CHECKPOINT> t"),
        ("L=2\nP=<Specify path>\ntorchrun t.py --l 2", "parse error at line 2, column .*, in 'P=<Specify path>'"),
        ("while true; do :; done\ntorchrun t.py --l 2", "starts no training command; bash says: resource limit exceeded"),
        ("case $1 in\n 8B) L=2;;\n *) exit 1;;\nesac\ntorchrun t.py --l $L",
         r"only if its argument 1 is given \(line 1\): give --set 1=8B"),
        ("python tools/run_text_generation_server.py --l 2", "starts tools/run_text_generation_server.py, which does not train"),
        ("x" * (LARGEST_SCRIPT + 1), "x.sh is larger than 64 KiB: this is no launch script"),
        ("echo\nx " + "$A" * 1001, "x.sh has more than 1000 '.' in line 2"),
        ("ls", "x.sh is not a training configuration: it starts no training command"),
        ("python -m a.pretrain_llama3 -tp 4", "x.sh starts a.pretrain_llama3, whose options no trainer that ppsim reads has"),
        ("srun torchrun t.py model.x=4", "x.sh starts t.py, whose options no trainer that ppsim reads has: give its configuration"),
    ],
)  # fmt: skip
def test_a_script_without_a_training_command_is_refused_with_the_reason(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        script(text).commands  # noqa: B018


@pytest.mark.parametrize("line", ["# " + "$A" * 1000, "#" * (LARGEST_SCRIPT - len("torchrun t.py --l 2\n"))])
def test_a_script_may_be_as_large_as_the_limits(line: str) -> None:
    assert script(f"torchrun t.py --l 2\n{line}").commands[0].options == {"--l": "2"}


def test_variables_that_are_needed_together_are_asked_for_together() -> None:
    text = '[ -z "$BASE" ] && exit 1\n[ -z "$ADDR" ] && exit 1\ntorchrun t.py --l 2 --data $BASE --port ${PORT:-1}'
    with pytest.raises(ConfigError, match="only if BASE, ADDR are given: give --set BASE=VALUE --set ADDR=VALUE"):
        script(text).commands  # noqa: B018


def test_a_given_variable_must_be_one_that_the_script_reads() -> None:
    with pytest.raises(ConfigError, match="does not read TPP of --set: did you mean TP"):
        script("torchrun t.py --l $TP", TPP="2").commands  # noqa: B018


@pytest.mark.parametrize(
    "text",
    ["A=xxxxxxxxxx\n" + 'A="$A$A"\n' * 40, "x " + "$((" * 900, "while :; do :; done", "x $((" + "-" * 60_000 + "1))",
     "f() { f; f; }; f", "x " + "{1..9}" * 9, "yes | head -c 99999999999", pytest.param(":(){ :|:& };:", marks=pytest.mark.slow), "./x.sh & ./x.sh", "source /etc/passwd",
     "N=$(expr 9 '**' 9 '**' 9)"],
)  # fmt: skip
def test_a_hostile_script_takes_little_time(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(ConfigError):
        LaunchScript(text, "x.sh", lambda options: "--l" in options).commands  # noqa: B018
    assert time.process_time() - begun < 10


def test_set_and_launch_choose_what_a_projection_reads(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} --micro-batch-size 1 --pipeline-model-parallel-size $PP\n"
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} --micro-batch-size 2\n"
    )
    with pytest.raises(ConfigError, match=r"starts 2 training commands: give --launch N \(1: .*pipeline.*; 2: "):
        ppsim.read_run_config(path)
    assert ppsim.read_run_config(path, launch=2).options["micro_batch"] == 2
    assert ppsim.read_run_config(path, launch=1, variables={"PP": "2"}).options["pp"] == 2
    with pytest.raises(ConfigError, match="--launch must be from 1 to 2"):
        ppsim.read_run_config(path, launch=3)
    with pytest.raises(ConfigError, match=r"pipeline_model_parallel_size is \$PP, .*: give --set PP=VALUE or --pp"):
        ppsim.project(run_config=path, launch=1)
    assert ppsim.project(run_config=path, launch=1, pp=4).plan.job.layout.pp == 4


@pytest.mark.parametrize("options", [{"set": {"TP": "2"}}, {"launch": 1}, {"ignore": ["noop-layers"]}])
def test_set_and_launch_are_for_launch_scripts(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="is for a launch script: give --run-config"):
        ppsim.project(model="gpt2", **options)
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 1}')
    with pytest.raises(ConfigError, match=r"is no (launch script|command of Megatron-LM): leave out --"):
        ppsim.project(model="gpt2", run_config=path, **options)


def test_limits_of_a_script() -> None:
    names = (
        "_TIMEOUT_S",
        "_MOST_S",
        "_MOST_HINT_S",
        "_MOST_DOLLARS",
        "_MOST_FILES",
        "_MOST_SHELLS",
        "_MOST_NESTED",
        "_MOST_UNKNOWN_ROUNDS",
    )
    assert [getattr(script_module, name) for name in names] == [2.0, 8, 1, 1000, 500, 200, 64, 8]
    assert LARGEST_SCRIPT == 65536
