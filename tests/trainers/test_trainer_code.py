"""Exports in the code that they are written for: Primus' runner, Megatron-LM's validator, Megatron-core's parser and orders."""

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ppsim.base.errors import PpsimError
from ppsim.base.files import to_json
from ppsim.catalog.build import build, every_schedule
from ppsim.catalog.published.interleaved import legal_group_sizes
from ppsim.schedule.grammar import format_table
from ppsim.schedule.table import Schedule
from ppsim.trainers.megatron.write_schedule import megatron_arguments, parse_layout
from ppsim.trainers.primus.write_schedule import primus_table
from tests.trainers.trainer_code import check_file, checkout, require_megatron

pytestmark = pytest.mark.oracle
DRIVER = Path(__file__).parent / "scripts" / "primus_tables.py"
MOST_SECONDS = 240  # a guard: the ranks of a run that hangs are ended by the driver long before


def write_what_primus_takes(folder: Path, pp: int) -> set[str]:
    """Write a table of every entry that Primus can express, of 2 pp microbatches; return their names."""
    written = set()
    for name, entry in every_schedule().items():
        table = build(entry, pp=pp, microbatches=max(2 * pp, round(entry.least_microbatches(p=pp))))
        try:
            (folder / f"{name}.json").write_text(to_json(primus_table(table)))
        except PpsimError:
            continue
        written.add(name)
    return written


@pytest.mark.parametrize("pp", [pytest.param(2, marks=pytest.mark.long), 4])
def test_primus_runs_every_entry_it_can_express_in_both_modes_and_its_gradients_are_right(pp, tmp_path):
    require_megatron()
    checks, primus = check_file("run_primus_table.py").parent, checkout("PPSIM_PRIMUS")
    names = write_what_primus_takes(tmp_path, pp)
    assert len(names) >= 22
    done = subprocess.run(
        [sys.executable, DRIVER, checks, primus, tmp_path], capture_output=True, text=True, timeout=MOST_SECONDS
    )
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [run for run in runs if run["max_gradient_error"] is None or run["max_gradient_error"] > 1e-9]
    assert not wrong, (wrong, done.stderr[-2000:])
    assert {(run["table"], run["mode"]) for run in runs} == {
        (name, mode) for name in names for mode in ("async_p2p", "batch_p2p")
    }, done.stderr[-2000:]


def megatron_tables() -> list[Schedule]:
    """Every shape of 2 to 8 ranks and up to 4 chunks, with every legal group size."""
    tables = []
    for pp, vpp in itertools.product((2, 3, 4, 6, 8), (1, 2, 3, 4)):
        for m in (pp, 2 * pp - 1, 2 * pp, 3 * pp + 1, 4 * pp):
            if vpp == 1:
                tables.append(build("1f1b", pp=pp, microbatches=m))
            for size in legal_group_sizes(pp, m) if vpp > 1 else ():
                tables.append(build("interleaved-1f1b", pp=pp, vpp=vpp, microbatches=m, group_size=size))
    return tables


def test_megatron_takes_all_arguments_reads_our_layouts_and_runs_our_orders(tmp_path):
    """More than 400 sets of them, with and without a split: stages of 0 to 7 layers, empty ones too."""
    require_megatron()
    script, names, layers_of = check_file("check_megatron.py"), [], random.Random(0)
    for number, (table, is_split) in enumerate(itertools.product(megatron_tables(), (True, False))):
        split = [layers_of.randrange(8) for _ in range(table.num_stages)] if is_split else None
        paths = tmp_path / f"{number}.csv", tmp_path / f"{number}.json"
        paths[0].write_text(format_table(table))
        paths[1].write_text(to_json(megatron_arguments(table, layers_per_stage=split)))
        names += paths
    assert len(names) >= 2 * 400
    done = subprocess.run([sys.executable, script, *names], capture_output=True, text=True, timeout=MOST_SECONDS)
    checks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["check"], one["failed"]) for one in checks] == [("exclusive", 0), ("layout", 0), ("order", 0)], (
        checks
    )
    assert checks[0]["tried"] == len(names) // 2


def test_megatron_builds_the_layers_that_counts_say_and_reads_layouts_as_we_do():
    require_megatron()
    chosen, counts, texts = random.Random(0), [], []
    for pp, vpp in itertools.product((2, 3, 4), (1, 2)):
        table = build("interleaved-1f1b" if vpp > 1 else "1f1b", pp=pp, vpp=vpp or None, microbatches=pp)
        for k, ends in itertools.product((1, 2, 3), itertools.product((-1, 0, 1), repeat=2)):
            for of_ranks in (True, False):  # the ends of every chunk of the end ranks, or the two end stages
                layers = [k] * (pp * vpp)
                for chunk in range(vpp) if of_ranks else [0]:
                    layers[chunk * pp] += ends[0]
                    layers[chunk * pp - pp * (not of_ranks) + pp - 1] += ends[1]
                try:
                    made = megatron_arguments(table, layers_per_stage=layers, layers_by="counts")
                except PpsimError:
                    continue
                counts.append((made["arguments"], layers))
    for _ in range(3000):
        inner = "".join(chosen.choices("tttm||**23((),  ", k=chosen.randrange(1, 12)))
        for text in (f"E{inner}L", f"Et|({inner}|)*2L"):
            try:
                texts.append((text, parse_layout(text)))
            except PpsimError as error:
                if "where only" in str(error):  # what stands in it; the rules of what stands where come later there
                    texts.append((text, None))
    given = json.dumps({"counts": counts, "texts": texts})
    script = Path(__file__).parent / "scripts" / "megatron_layers.py"
    done = subprocess.run(
        [sys.executable, script], input=given, capture_output=True, text=True, timeout=MOST_SECONDS
    )
    *differ, tried = done.stdout.splitlines() or [done.stderr[-2000:]]
    assert not differ
    assert tried == f"{len(counts)} {len(texts)}"
    assert len(counts) > 100 < sum(stages is not None for _, stages in texts)


def test_megatron_lm_accepts_the_commands_of_random_plans():
    require_megatron()
    script = Path(__file__).parents[2] / "scripts" / "check_megatron_configs.py"
    command = [sys.executable, script, "--megatron", checkout("PPSIM_MEGATRON"), "-n", "20", "--defaults", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
