"""A user's mistake gets one sentence with the values and the nearest fix, its exit code, and leaves nothing behind."""

import json

import pytest

from tests.cli.conftest import COSTS
from tests.cli.running import ppsim, words_of

# name: (arguments, exit code, words that the message must hold)
WRONG_ARGUMENTS = {
    "no pp, of a file that is not there": ("project --model ./missing.json", 2, ["cannot read ./missing.json"]),
    "no pp, of no model": ("project --model 70b", 2, ["unknown model '70b': did you mean llama3-70b"]),
    "a sequence of tokens of all steps": ("project --pp 4 --model gpt2 --seq-len 100000000000", 2, ["--seq-len must be at most 1000000000: got 100000000000"]),
    "the same, of a profile": ("project --pp 4 --seq-len 100000000000", 2, ["--seq-len must be at most 1000000000"]),
    "the same, of a search": ("tune --model gpt2 --gpus 2 --global-batch-size 8 --seq-len 100000000000", 2, ["--seq-len must be at most 1000000000"]),
    "the same, of a model": ("models gpt2 --seq-len 100000000000", 2, ["--seq-len must be at most 1000000000"]),
    "no pp": ("project", 2, ["--pp must be given: the number of pipeline ranks (1: no pipeline)"]),
    "no pp for a model": (
        "project --model llama3-70b --gpus 64", 2,
        ["To find the fastest layout: ppsim tune --model llama3-70b --gpus 64 --global-batch-size N"],
    ),
    "pp that is no number": ("project --pp four", 2, ["--pp", "'four' is not a valid integer"]),
    "pp 0": ("project --pp 0", 2, ["pp must be at least 1: got 0"]),
    "pp 0, all schedules": ("project --pp 0 --schedule all", 2, ["pp must be at least 1: got 0"]),
    "negative pp": ("project --pp -3", 2, ["pp must be at least 1: got -3"]),
    "pp 0 to build": ("build zbv --pp 0 --num-microbatches 4", 2, ["pp must be at least 1: got 0"]),
    "vpp 0": ("project --pp 4 --vpp 0", 2, ["--vpp must be at least 1: got 0"]),
    "vpp 0, all schedules": ("project --pp 4 --vpp 0 --schedule all", 2, ["--vpp must be at least 1: got 0"]),
    "vpp that 1f1b forbids": ("project --pp 4 --vpp 2 --schedule 1f1b", 2, ["1f1b needs exactly 1 stage per rank: got vpp=2 (nearest: 1)"]),
    "vpp that interleaving forbids": ("build interleaved-1f1b --pp 4 --vpp 1 --num-microbatches 4", 2, ["needs at least 2 stages per rank: got vpp=1 (nearest: 2)"]),
    "vpp that zbv forbids": ("build zbv --pp 4 --vpp 3 --num-microbatches 4", 2, ["zbv needs exactly 2 stages per rank: got vpp=3 (nearest: 2)"]),
    "no microbatches": ("project --pp 4 --num-microbatches 0", 2, ["microbatches must be at least 1: got 0"]),
    "negative microbatches": ("build gpipe --pp 4 --num-microbatches -1", 2, ["microbatches must be at least 1: got -1"]),
    "a group too small": ("project --pp 4 --vpp 2 --num-microbatches 8 --group-size 3", 2, ["group size 3 is smaller than pp=4 (nearest: 4 or 8)"]),
    "a last group too small": ("build interleaved-1f1b --pp 4 --num-microbatches 9 --group-size 4", 2, ["group size 4 leaves a last group of 1, smaller than pp=4 (nearest: 5"]),
    "a group larger than all": ("project --pp 4 --vpp 2 --num-microbatches 8 --group-size 9", 2, ["group size 9 is more than the 8 microbatches", "nearest:"]),
    "a group of a schedule without": ("project --pp 4 --schedule zbv --group-size 4", 2, ["group size is for interleaved-1f1b or combined-1f1b; zbv has none"]),
    "an unknown schedule": ("project --pp 4 --schedule zb-h3", 2, ["unknown schedule 'zb-h3': did you mean zb-h2 or zb-h1"]),
    "an unknown schedule to build": ("build interleavd --pp 4 --num-microbatches 4", 2, ["unknown schedule 'interleavd': did you mean interleaved-1f1b"]),
    "an unlike schedule": ("schedules qqq", 2, ["unknown schedule 'qqq': there are gpipe, 1f1b, "]),
    "an unknown command": ("projct --pp 4", 2, ["unknown command 'projct': did you mean project"]),
    "an unlike command": ("qqq", 2, ["unknown command 'qqq': there are project, tune, sweep, fit, validate, read"]),
    "a removed option": ("profile --model nano --partitions 2 -o p.json", 2, ["--partitions was removed: leave it out"]),
    "an unknown option": ("project --pp 4 --microbatch 8", 2, ["--microbatch", "--num-microbatches"]),
    "an unknown profile": ("project --pp 4 --profile zb-a100-6.2", 2, ["unknown profile 'zb-a100-6.2': did you mean zb-a100-6.2b"]),
    "an unlike profile": ("project --pp 4 --profile QQQ", 2, ["unknown profile 'QQQ': there are", "zb-a100-1.5b", "or give the path of a .json file"]),
    "a profile that is not there": ("project --pp 4 --profile nope.json", 2, ["cannot read nope.json: No such file"]),
    "a profile that is none": ("project --pp 4 --profile C.json", 2, ["C.json is wrong", "format: missing", "provenance: missing", "forward_s: unknown key"]),
    "a micro-batch not measured": ("project --pp 4 --micro-batch-size 5", 2, ["was not measured at micro-batch 5 (there is: micro-batch 3, sequence length 1024, fp16)"]),
    "a length not measured": ("project --pp 4 --seq-len 99", 2, ["was not measured at sequence length 99"]),
    "a split that is none": ("project --pp 4 --split balanced", 2, ["--split is 'balanced': give auto, even or layers per stage as 2,3,3,2"]),
    "a split of the wrong length": ("project --pp 4 --split 10,10,10", 2, ["the split has 3 entries, but there are 4 stages"]),
    "a split that does not sum": ("project --pp 4 --split 7,8,8,8", 2, ["the split has 31 layers in all, but the model has 30"]),
    "a negative split": ("project --pp 4 --split 20,20,-10,0", 2, ["the split holds -10; a stage has 0 layers or more"]),
    "more stages than layers": ("project --pp 33", 2, ["30 layers are too few for 33 stages"]),
    "more stages than layers, of no model": ("project --pp 64 --num-microbatches 512", 2, ["no --model was given, so profile zb-a100-6.2b (the default)"]),
    "more stages than layers, to search for": ("project --pp 64 --schedule auto", 2, ["30 layers are too few for 64 stages", "zb-a100-6.2b (the default)"]),
    "more stages than layers, of a profile": ("project --pp 64 --profile zb-a100-1.5b", 2, ["no --model was given, so profile zb-a100-1.5b is projected"]),
    "a cluster without a model": ("project --pp 4 --cluster h100s", 2, ["--cluster h100s without --model", "`ppsim models`"]),
    "an unlike model": ("project --pp 2 --model nosuch", 2, ["unknown model 'nosuch': the nearest of", "nemotron-h-8b", "`ppsim models` lists all"]),
    "an option named as elsewhere": ("project --tensor-parallel 2", 2, ["'--tensor-parallel'", "'--tensor-model-parallel-size'"]),
    "a folder that is no run": ("explain .", 2, ["are no ranks of one run", "dump_pp_data", "one timeline, CSV or log"]),
    "a text for a timeline": ("figure timeline T.csv -o t.svg", 2, ["T.csv is not valid JSON", "ppsim project, train and simulate write a timeline with -o NAME.json"]),
    "a text for an answer": ("figure pareto T.csv -o p.svg", 2, ["T.csv is not valid JSON", "ppsim tune writes an answer"]),
    "a text for overheads": ("project --pp 2 --calibration T.csv", 2, ["T.csv is not valid JSON", "ppsim fit write a calibration"]),
    "a text for costs": ("simulate zbv.csv --costs T.csv", 2, ["T.csv is not valid JSON", "a costs file has forward_s"]),
    "a text for a configuration": ("project --run-config T.csv", 2, ["T.csv is not a training configuration", "TorchTitan TOML"]),
    "a billion microbatches": ("build 1f1b --pp 4 --num-microbatches 1000000000", 2, ["8,000,000,000 actions (two or three for each stage and microbatch) need about 1.16 TiB, and ", " of memory are free on this machine, enough for "]),
    "a billion microbatches to search for": ("build auto --pp 4 --num-microbatches 1000000000 --costs C.json", 2, ["12,000,000,000 actions"]),
    "a million ranks": ("project --pp 1000000", 2, ["8,000,000,000,000 actions", "free on this machine"]),
    "a million ranks, all schedules": ("project --pp 1000000 --schedule all", 2, ["8,000,000,000,000 actions"]),
    "a billion slices": ("project --pp 4 --schedule seq1f1b --slices 1000000000", 2, ["actions (two or three", "free on this machine"]),
    "a billion slices of a file": ("check T.csv --slices 1000000000", 2, ["microbatches in 1000000000 slices need as many actions, the table has 128; --slices must be at most 8"]),
    "a layout of many stages": ("project --pp 4 --split (t|)*99999999", 2, ["the layout '(t|)*99999999' is too long: it has more than 100,000 letters"]),
    "a billion layers": ("project --pp 4 --layers 1000000000", 2, ["--layers must be at most 10,000: got 1000000000"]),
    "a billion layers of a model": ("project --pp 4 --model gpt2 --layers 1000000000", 2, ["layers must be at most 10,000: got 1000000000"]),
    "a billion devices": ("project --pp 4 --model gpt2 --gpus 1000000000", 2, ["there must be at most 1,000,000 devices: got 1000000000"]),
    "a billion tensor-parallel ranks": ("project --pp 4 --model gpt2 --tp 1000000000", 2, ["at most 1,000,000 devices: got 4000000000"]),
    "a billion devices to tune for": ("tune --model gpt2 --gpus 1000000000 --global-batch-size 8", 2, ["at most 1,000,000 devices"]),
    "no layers": ("project --pp 4 --layers 0", 2, ["--layers must be at least 1: got 0"]),
    "a negative transfer": ("project --pp 4 --transfer-ms -1", 2, ["--transfer-ms must not be negative: got -1"]),
    "a transfer that is no number": ("project --pp 4 --transfer-ms nan", 2, ["transfer_s holds nan; costs are finite and not negative"]),
    "a size that is none": ("project --pp 4 --memory-limit plenty", 2, ["cannot read the size 'plenty': write it as 80GiB or 80GB"]),
    "a size without a unit": ("project --pp 4 --memory-limit 40", 2, ["the size '40' has no unit: is 40GiB meant? (or 40B, bytes)"]),
    "a size of nothing": ("project --pp 4 --memory-limit 0GiB", 2, ["cannot read the size '0GiB'"]),
    "a negative size": ("project --pp 4 --memory-limit -80GiB", 2, ["cannot read the size '-80GiB'"]),
    "a number in another notation": ("project --pp 2 --num-microbatches 1e2", 2, ["'1e2' is not a valid integer. Write 100."]),
    "another notation, of a command without sections": ("models gpt2 --seq-len 1e11", 2, ["'1e11' is not a valid integer. Write 100000000000."]),
    "thousands apart": ("models gpt2 --seq-len 8,192", 2, ["'8,192' is not a valid integer. One number is expected, as 8192 or 8."]),
    "a list for a number": ("build zbv --pp 4,8,16", 2, ["'4,8,16' is not a valid integer. One number is expected, as 4."]),
    "a number with a unit": ("project --model gpt2 --gpus 16gpus", 2, ["'16gpus' is not a valid integer. Write it without a unit, as 16."]),
    "a place that is not the table's": ("export T.csv --to primus --replace zbv-formatted -o x.json", 2, ["ppsim: the table has a loop of several chunks per rank, which 'zbv-formatted' has not"]),
    "thousands by a letter": ("models gpt2 --seq-len 8k", 2, ["'8k' is not a valid integer. Write 8192 or 8000."]),
    "a word for a number": ("project --pp two", 2, ["'two' is not a valid integer. Write it in digits, as 8."]),
    "no table at all": ("simulate", 2, ["Missing argument 'T.csv...'"]),
    "no number for a count": ("models gpt2 --seq-len nan", 2, ["'nan' is not a valid integer."]),
    "a part of a whole": ("project --pp 2 --vpp 2.5", 2, ["'2.5' is not a valid integer. Write 2 or 3."]),
    "tokens with a unit": ("project --pp 2 --tokens 15T", 2, ["Write it without a unit, as 0.5 or 15e12."]),
    "an unknown channel": ("simulate T.csv --costs C.json --channel wire", 2, ["'wire' is not one of 'ideal', 'edge', 'pair'"]),
    "no costs": ("simulate T.csv", 2, ["--costs must be given, a file with the duration of each action: {"]),
    "a file for a schedule's name": ("project --pp 4 --schedule T.csv", 2, ["'T.csv' is a file, no schedule's name", "ppsim simulate T.csv --costs C.json"]),
    "a table that is not there": ("simulate nope.csv --costs C.json", 2, ["cannot read nope.csv: No such file"]),
    "a folder for a table": ("check .", 2, ["cannot read .: it is a folder, not a file"]),
    "costs that are not there": ("simulate T.csv --costs nope.json", 2, ["cannot read nope.json: No such file"]),
    "overheads that are none": ("project --pp 4 --calibration C.json", 2, ["action_overhead_s: missing", "hop_overhead_s: missing"]),
    "receives of a compute-only export": ("export T.csv --to torch --receives deferred -o x.csv", 2, ["--receives is for --to torch-comms"]),
    "auto without costs": ("build auto --pp 4 --num-microbatches 8", 2, ["auto needs --costs"]),
    "auto in groups": ("build auto --pp 4 --num-microbatches 8 --costs C.json --group-size 4", 2, ["--group-size and --slices are for schedules by name; auto has neither"]),
    "a search by name": ("build zb-1p --pp 4 --num-microbatches 8 --time-limit 2", 2, ["--time-limit is for auto; zb-1p is built, not searched for"]),
    "rounds by name": ("build zb-1p --pp 4 --num-microbatches 8 --max-rounds 2", 2, ["--max-rounds is for auto; zb-1p"]),
    "a search by an unknown name": ("build zb-3p --pp 4 --num-microbatches 8 --seed 1", 2, ["unknown schedule 'zb-3p': did you mean"]),
    "auto into no folder": ("build auto --pp 4 --num-microbatches 8 --costs C.json -o nowhere/T.csv", 2, ["nowhere"]),
    "auto at costs that are not there": ("build auto --pp 4 --num-microbatches 8 --costs nope.json", 2, ["cannot read nope.json"]),
    "auto in too little memory": ("build auto --pp 4 --num-microbatches 8 --costs C.json --memory-limit 1000MiB -o new.csv", 1, ["rank 0 needs 1.00 GiB for one microbatch > 1000 MiB: no order of actions fits"]),
    "a negative time": ("build auto --pp 4 --num-microbatches 8 --costs C.json --time-limit -1", 2, ["the time limit must be 0 s or more: got -1"]),
    "a time that is none": ("build auto --pp 4 --num-microbatches 8 --costs C.json --time-limit soon", 2, ["'soon' is not a valid float"]),
    "a negative seed": ("build auto --pp 4 --num-microbatches 8 --costs C.json --seed -1", 2, ["seed must be 0 or more: got -1"]),
    "an unknown placement": ("build auto --pp 4 --num-microbatches 8 --costs C.json --placement w", 2, ["'w' is not one of 'loop', 'v'"]),
    "auto of no ranks": ("build auto --pp 0 --num-microbatches 8 --costs C.json", 2, ["pp must be at least 1: got 0"]),
    "memory that no schedule keeps to": ("project --pp 4 --memory-limit 1GiB", 1, ["DOES NOT FIT: rank 0 needs 45.3 GiB, 1.00 GiB usable", "no change that was tried makes it fit"]),
    "memory that others keep to": ("project --pp 4 --schedule gpipe --memory-limit 80GiB", 1, ["DOES NOT FIT: rank 1 needs", ", 80.0 GiB usable", "try next --schedule", "fits, "]),
    "memory, several schedules": ("project --pp 4 --schedule 1f1b,zb-h1 --memory-limit 1GiB --full", 1, ["DOES NOT FIT: rank", "1f1b!"]),
    "a channel that hangs the table": ("simulate zbv.csv --costs C.json --channel pair --receives ordered", 1, ["deadlock:", "the transfer of 4F0 (rank 3 → 2) is queued after the transfer of 2F2 (rank 2 → 3)", "rank 3: 3F0 [4F0]"]),
    "a runtime that hangs the plan": ("project --pp 4 --schedule zbv --receives ordered", 1, ["deadlock:", "is queued after"]),
}  # fmt: skip


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
def test_wrong_arguments_get_a_sentence_and_an_exit_code(folder, advice, case):
    arguments, code, words = WRONG_ARGUMENTS[case]
    before = contents(folder)
    result = ppsim(*arguments.split(), code=code)
    told = words_of(result.output)
    for word in words:
        assert word in told
    assert contents(folder) == before


def test_a_folder_for_a_configuration_is_told_the_formats_and_its_files(folder):
    held = folder / "configs"
    held.mkdir()
    said = words_of(ppsim("project", "--run-config", "configs", code=2).output)
    assert "configs is a folder: give one file; there are Megatron-LM arguments" in said
    for name in ("a.toml", "b.sh", "c.yaml", "d.json", "notes.md"):
        (held / name).write_text("")
    said = words_of(ppsim("project", "--run-config", "configs", code=2).output)
    assert "configs is a folder; it holds a.toml, b.sh, c.yaml, …: give one file; there are Megatron-LM" in said


# name: (table, exit code, words); the same message from every command that reads a table
BROKEN_TABLES = {
    "a malformed cell": ("0F0,0F1,0B0,0B1\n1F0,x1,1F1,1B1\n", 2, ["bad.csv is malformed", "row 2 (rank 1), column 2: 'x1' is no action", "3F0"]),
    "trailing garbage": ("0F0xyz,0B0\n", 2, ["row 1 (rank 0), column 1: '0F0xyz' is no action"]),
    "several malformed cells": ("0F0,7,0B0\n1F0,F1,1B0\n", 2, ["row 1 (rank 0), column 2: '7'", "row 2 (rank 1), column 2: 'F1'"]),
    "no microbatch": ("0F,0B0\n", 2, ["row 1 (rank 0), column 1: '0F' has no microbatch"]),
    "an empty file": ("", 2, ["bad.csv is empty"]),
    "a blank row": ("0F0,0B0\n\n1F0,1B0\n", 2, ["row 2 is blank"]),
    "a missing W": ("0F0,0F1,0I0,0W0,0I1\n1F0,1B0,1F1,1B1\n", 2, ["0W1 is missing; 0I1 needs it", "rank 0: … 0F1 0I0 0W0 [0I1]"]),
    "a doubled F": ("0F0,0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", 2, ["0F0 runs 2 times", "rank 0: [0F0] [0F0] 0F1"]),
    "a missing microbatch": ("0F1,0B1\n1F1,1B1\n", 2, ["microbatch 0 occurs nowhere"]),
    "a backward before its forward": ("0B0,0F0\n1F0,1B0\n", 2, ["rank 0 runs 0B0 before 0F0"]),
    "a cyclic wait": ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", 1, [
        "deadlock: rank 0 waits at 0B0 for 1B0 (rank 1); rank 1 waits at 1F1 for 0F1 (rank 0)",
        "rank 0: 0F0 [0B0] 0F1 0B1 rank 1: 1F0 [1F1] 1B0 1B1",
    ]),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN_TABLES)
@pytest.mark.parametrize(
    "command",
    [
        "check bad.csv",
        "check bad.csv --json",
        "simulate bad.csv --costs C.json -o out.json",
        "export bad.csv --to torch -o out.csv",
        "export bad.csv --to torch-comms -o out.csv",
    ],
)
def test_a_broken_table_is_refused_by_every_command_that_reads_one(folder, case, command):
    text, code, words = BROKEN_TABLES[case]
    (folder / "bad.csv").write_text(text)
    before = contents(folder)
    result = ppsim(*command.split(), code=code)
    if "--json" in command and result.stdout:
        told = " ".join(finding["message"] for finding in json.loads(result.stdout)["findings"])
    else:
        told = result.output.replace("error (deadlock): ", "deadlock: ")
    for word in words:
        assert word in words_of(told)
    assert contents(folder) == before


def test_a_binary_file_is_no_table(folder):
    (folder / "bad.csv").write_bytes(b"\xff\xfe\x00\x01")
    assert "bad.csv is not a text file" in ppsim("check", "bad.csv", code=2).stderr


def costs(**changes):
    return json.dumps({key: value for key, value in (COSTS | changes).items() if value != "absent"})


# name: (the file, every one of these words)
WRONG_COSTS = {
    "a wrong length": (costs(forward_s=[1, 2, 3]), ["forward_s has 3 entries, but the schedule has 8 stages (give one number, or one per stage)"]),
    "two wrong lengths": (costs(forward_s=[1, 2, 3], static_bytes=[1, 2]), ["forward_s has 3 entries", "static_bytes has 2 entries, but the schedule has 4 ranks"]),
    "NaN": (costs(forward_s=float("nan")), ["forward_s: must be finite, got nan"]),
    "NaN in a list": (costs(forward_s=[1, 1, 1, 1, 1, 1, float("nan"), 1]), ["forward_s[6]: must be finite, got nan"]),
    "infinity": (costs(transfer_s=float("inf")), ["transfer_s: must be finite, got inf"]),
    "a negative": (costs(backward_weight_s=-0.5), ["backward_weight_s: must be at least 0, got -0.5"]),
    "an absurd number": (costs(forward_s=1e308), ["forward_s: must be at most 1e+30"]),
    "a string": (costs(forward_s="1"), ["forward_s: input should be a valid number, got '1'"]),
    "a truth value": (costs(forward_s=True), ["forward_s: input should be a valid number, got True"]),
    "null where a number is needed": (costs(forward_s=None), ["forward_s: input should be a valid number, got None"]),
    "an empty list": (costs(forward_s=[]), ["forward_s: must not be empty"]),
    "an unknown key": (costs(transfer=1), ["transfer: unknown key (did you mean transfer_s?)"]),
    "a missing key": (costs(forward_s="absent"), ["forward_s: missing"]),
    "no backward": (costs(backward_input_s="absent", backward_weight_s="absent"), ["wrong.json", "backward_input_s: missing", "backward_weight_s: missing"]),
    "half a backward": (costs(backward_input_s="absent", backward_s=2.0), ["backward_input_s: missing"]),
    "an unknown choice": (costs(channel="wire"), ["channel: input should be 'ideal', 'edge', 'pair', 'direction' or 'rank', got 'wire'"]),
    "more kept than there is": (costs(activation_bytes_kept_for_weight=2**31), ["activation_bytes_kept_for_weight is", "more than the", "activation_bytes it is part of"]),
    "a link without bandwidth": (costs(transfer_s={"bytes": 5}), ["transfer_s.bandwidth_bytes_per_s: missing"]),
    "a link of no bandwidth": (costs(transfer_s={"bytes": 5, "bandwidth_bytes_per_s": 0}), ["transfer_s.bandwidth_bytes_per_s: must be more than 0, got 0"]),
    "everything at once": (
        costs(forward_s=-1, backward_input_s=float("nan"), chanel="pair", transfer_s={"latency_s": -1, "bytes": 1, "bandwidth_bytes": 2}),
        [
            "forward_s: must be at least 0, got -1", "backward_input_s: must be finite, got nan",
            "chanel: unknown key (did you mean channel?)", "transfer_s.latency_s: must be at least 0, got -1",
            "transfer_s.bandwidth_bytes_per_s: missing", "transfer_s.bandwidth_bytes: unknown key (did you mean bandwidth_bytes_per_s?)",
        ],
    ),
    "a list": ("[1, 2]", ["the whole: must be a JSON object, got [1, 2]"]),
    "truncated JSON": (costs()[:-1], ["wrong.json is not valid JSON: line 1, column", "delimiter"]),
    "empty JSON": ("", ["wrong.json is not valid JSON: line 1, column 1"]),
    "lists too deep": ("[" * 100_000, ["wrong.json holds a number too long or lists too deep"]),
    "a number too long": ('{"forward_s": 1' + "0" * 5000 + "}", ["wrong.json holds a number too long or lists too deep"]),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_COSTS)
def test_wrong_costs_are_reported_all_at_once_each_with_its_key(folder, case):
    text, words = WRONG_COSTS[case]
    (folder / "wrong.json").write_text(text)
    before = contents(folder)
    result = ppsim("simulate", "T.csv", "--costs", "wrong.json", "--json", "-o", "out.json", code=2)
    assert result.stdout == ""
    for word in words:
        assert word in words_of(result.stderr)
    assert contents(folder) == before


TIMELINE = {"format": "ppsim-timeline/1", "origin": "measured", "costs": COSTS, "table": ["0F0,0B0"],
            "timeline": {"start_s": [0, 1], "end_s": [1, 2], "blocker": [-1, 0]}}  # fmt: skip
TABLE = {
    "format": "ppsim-table/1",
    "num_microbatches": 1,
    "stage_to_rank": [0],
    "ranks": [[[["F", 0, 0]], [["B", 0, 0]]]],
}

LLAMA = {"model_type": "llama", "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 256,
         "num_hidden_layers": 4, "vocab_size": 1000, "max_position_embeddings": 128}  # fmt: skip

# name: (command, the file, its content, words)
WRONG_CONTENT = {
    "a blocker above int32": ("compare m.json", "m.json", TIMELINE | {"timeline": TIMELINE["timeline"] | {"blocker": [-1, 2**40]}}, "timeline.blocker holds 1099511627776; there are 2 nodes"),
    "blockers in a circle": ("compare m.json", "m.json", TIMELINE | {"timeline": TIMELINE["timeline"] | {"blocker": [1, 0]}}, "timeline.blocker goes round in a circle at entry 0"),
    "lists for lines": ("compare m.json", "m.json", TIMELINE | {"table": [["0F0", "0B0"]]}, "table[0]: input should be a valid string"),
    "a run that is a list": ("calibrate m.json", "m.json", TIMELINE | {"run": [1]}, "run: must be a JSON object, got [1]"),
    "a stage above int32": ("check t.json", "t.json", TABLE | {"ranks": [[[["F", 2**40, 0]]]]}, "ranks[0][0][0][1]: must be at most 999999, got 1099511627776"),
    "a rank above all": ("check t.json", "t.json", TABLE | {"stage_to_rank": [2**31 - 1]}, "stage_to_rank[0]: must be at most 999999"),
    "a forward of no microbatch": ("check t.json", "t.json", TABLE | {"ranks": [[[["F", 0, -1]]]]}, "rank 0: F cannot have stage 0 and microbatch -1"),
    "a time without end": ("calibrate m.json", "m.json", {"traceEvents": [{"ph": "X", "name": "PP:0F0", "cat": "user_annotation", "ts": 10**400, "dur": 1}]}, "is no trace of torch.profiler: an entry is not as its format says (int too large"),
    "a million layers": ("models m.json", "m.json", LLAMA | {"num_hidden_layers": 10**6}, "num_hidden_layers must be at most 10,000: got 1000000"),
    "a hidden size that no number holds": ("models m.json", "m.json", LLAMA | {"hidden_size": 10**400}, "m.json: hidden_size is a number of 401 digits"),
    "slices without end": ("check t.json", "t.json", TABLE | {"num_slices": 999_999, "num_microbatches": 999_999}, "need as many actions, the table has 2"),
    "YAML too deep": ("clusters y.yaml", "y.yaml", "[" * 20_000, "y.yaml has lists or tables more than 64 levels deep"),
    "a stage on two ranks, exported": ("export b.csv --to json -o x.json", "b.csv", "0F0,0B0,1F0,1B0\n1F0,1B0\n", "stage 1 is on rank 0 and"),
    "a stage on two ranks, drawn": ("figure timeline m.json -o x.svg", "m.json", TIMELINE | {"table": ["0F0,0B0", "0F0,0B0"]}, "stage 0 is on rank 0 and"),
    "a stage on two ranks, checked": ("check b.csv", "b.csv", "0F0,0B0,1F0,1B0\n1F0,1B0\n", "stage 1 is on rank 0 and"),
    "costs of other stages": ("simulate T.csv --costs c.json", "c.json", COSTS | {"forward_s": [1, 2]}, "forward_s has 2 entries, but the schedule has 8 stages"),
    "another table": ("compare m.json", "m.json and other.json", None, "the two timelines run different tables"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_CONTENT)
def test_what_is_wrong_with_a_file_is_said_with_its_name(folder, case):
    command, name, content, words = WRONG_CONTENT[case]
    if content is None:
        (folder / "m.json").write_text(json.dumps(TIMELINE))
        ppsim("simulate", "T.csv", "--costs", "C.json", "-o", "other.json")
        command += " other.json"
    else:
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    told = words_of(ppsim(*command.split(), code=2).output)
    assert name in told
    assert words in told


FULL_BACKWARD = {"forward_s": 1.0, "backward_s": 2.0}


def test_full_backwards_need_no_costs_of_their_parts(folder):
    (folder / "full.json").write_text(json.dumps(FULL_BACKWARD))
    (folder / "parts.json").write_text(
        json.dumps({"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0})
    )
    full, parts = (
        json.loads(ppsim("simulate", "T.csv", "--costs", name, "--json", "-o", "step.json").stdout)
        for name in ("full.json", "parts.json")
    )
    assert full["step_time_s"] == parts["step_time_s"]
    assert full["lower_bound_s"] <= full["step_time_s"]


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("simulate zbv.csv --costs full.json", "7I0 and 7W0 need"),
        ("build zb-auto --pp 2 --num-microbatches 4 --costs full.json", "the I and W of zb-auto need"),
        ("build auto --pp 2 --num-microbatches 4 --costs full.json --time-limit 0", "tables with I and W need"),
        ("train --schedule zbv.csv --emulate-costs full.json", "7I0 and 7W0 need"),
    ],
)
def test_what_needs_the_parts_of_a_backward_says_which(folder, command, needs):
    (folder / "full.json").write_text(json.dumps(FULL_BACKWARD))
    told = words_of(ppsim(*command.split(), code=2).stderr)
    assert f"costs lack backward_input_s and backward_weight_s, which {needs}" in told


def test_too_many_stages_are_refused_before_a_table_is_built(folder, monkeypatch):
    def built(*_, **__):
        raise AssertionError("a table was built")

    monkeypatch.setattr("ppsim.projection.project.build", built)
    monkeypatch.setattr("ppsim.projection.project.optimise_entry", built)
    for schedule in ("interleaved-1f1b", "auto"):
        told = ppsim(
            *["project", "--pp", "64", "--vpp", "8", "--num-microbatches", "1024", "--schedule"], schedule, code=2
        ).stderr
        assert "30 layers are too few for 512 stages" in told


def test_json_that_begins_with_a_byte_order_mark_is_read(folder):
    (folder / "marked.json").write_text(costs(), encoding="utf-8-sig")
    plain, marked = (
        ppsim("simulate", "T.csv", "--costs", name, "--json").stdout for name in ("C.json", "marked.json")
    )
    assert plain == marked


def test_receives_of_a_table_that_spells_them_out_are_not_asked_for_again(folder):
    ppsim("export", "T.csv", "--to", "torch-comms", "-o", "comms.csv")
    result = ppsim("simulate", "comms.csv", "--costs", "C.json", "--receives", "deferred", code=2)
    assert "comms.csv spells out its receives" in result.stderr


def test_debug_shows_the_traceback(folder):
    from click.testing import CliRunner

    from ppsim.cli import main

    result = CliRunner().invoke(main, ["--debug", "project", "--pp", "0"])
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("ppsim: ")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["simulate", "C.json", "--costs", "T.csv"], "C.json holds costs, and a table is needed here: --costs takes it"),
        (["check", "C.json"], "C.json holds costs, and a table is needed here: --costs takes it"),
        (["build", "1f1b", "--pp", 2, "--num-microbatches", 2, "-o", ""], "cannot write '': give the file a name"),
        (["project", "--pp", 2, "-o", ""], "cannot tell what to write to '': give it one of .html,"),
    ],
)  # fmt: skip
def test_files_that_changed_places_and_names_that_are_empty_are_told(folder, args, sentence):
    told = ppsim(*args, code=2).stderr
    assert sentence in told
    assert len(told.splitlines()) == 1
