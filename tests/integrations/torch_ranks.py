"""Steps of tables in real torch on gloo, two processes: python torch_ranks.py T.csv …; prints the largest errors.

Every stage is a linear layer and tanh, built as a user would, without example tensors; gradients and losses of two
steps are compared with those of one process without a pipeline. Ends in what `load` and `preflight` say of checkpointed
stages.
"""

import json
import multiprocessing
import os
import socket
import sys
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")  # this file is looked through for examples too

import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: E402

from ppsim.base.errors import ConfigError  # noqa: E402
from ppsim.integrations.torch import load, stages_of  # noqa: E402
from ppsim.integrations.torchtitan import preflight  # noqa: E402
from ppsim.schedule.grammar import read_schedule  # noqa: E402

WIDTH, BATCH, RANKS = 8, 3, 2


def build(stage):
    torch.manual_seed(stage)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())


def loss(output, target):
    return ((output - target) ** 2).mean()


def contexts():
    policy = torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE
    return torch.utils.checkpoint.create_selective_checkpoint_contexts(lambda *_, **__: policy)


def error_of(path):
    """The largest difference of gradients and losses of two steps, relative."""
    table = read_schedule(path)
    runtime = load(path, stages := stages_of(path, build, "cpu"), loss, table.num_microbatches)
    whole = [build(stage) for stage in range(table.num_stages)]
    worst = 0.0
    for step in range(2):
        x, y = torch.randn(2, table.num_microbatches * BATCH, WIDTH, generator=torch.manual_seed(100 + step))
        held, losses = {stage.stage_index for stage in stages}, []
        for module in (*whole, *(stage.submod for stage in stages)):  # torch scales what it finds in .grad
            module.zero_grad()
        last = {"target": y, "losses": losses} if table.num_stages - 1 in held else {}
        runtime.step(*((x,) if 0 in held else ()), return_outputs=False, **last)
        out = x
        for module in whole:
            out = module(out)
        (expected := loss(out, y)).backward()
        if losses:
            worst = max(worst, float(abs(torch.stack(losses).mean() - expected)))
        for stage in stages:
            pairs = zip(stage.submod.parameters(), whole[stage.stage_index].parameters(), strict=True)
            worst = max([worst, *(float((a.grad - b.grad).norm() / b.grad.norm()) for a, b in pairs)])
    return worst


def selective(stage):
    return checkpoint_wrapper(build(stage), context_fn=contexts)


def refusals(paths):
    """What is said of stages and tables that do not fit."""
    first, last = paths[0], paths[-1]
    said = {}
    for name, given in (("microbatches", (first, 99)), ("placement", (last, read_schedule(last).num_microbatches))):
        try:
            load(given[0], stages_of(first, build, "cpu"), loss, given[1])
        except ConfigError as error:
            said[name] = str(error)
    split = next(path for path in paths if read_schedule(path).splits_backward)
    stages = stages_of(split, selective, "cpu")
    said["preflight"] = preflight(split, stages, loss)
    said["whole"] = preflight(split, stages_of(split, lambda s: checkpoint_wrapper(build(s)), "cpu"), loss)
    return said


def run_checkpointed(paths):
    """What a split backward through selectively checkpointed stages ends in, on the rank that comes to it first."""
    split = next(path for path in paths if read_schedule(path).splits_backward)
    m, stages = read_schedule(split).num_microbatches, stages_of(split, selective, "cpu")
    x, held = torch.randn(m * BATCH, WIDTH), {stage.stage_index for stage in stages}
    try:
        load(split, stages, loss, m).step(*((x,) if 0 in held else ()), **({"target": x} if max(held) else {}))
    except RuntimeError as error:
        return str(error)
    return "ran"


def rank_process(rank, store, paths, messages):
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    messages.put((rank, [error_of(path) for path in paths], None))
    messages.put((rank, None, refusals(paths)))
    messages.put((rank, None, run_checkpointed(paths)))
    dist.barrier()


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    with tempfile.TemporaryDirectory() as folder:
        given = (str(Path(folder) / "store"), sys.argv[1:], queue)
        ranks = [fork.Process(target=rank_process, args=(rank, *given)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        try:
            told = [queue.get(timeout=120) for _ in range(2 * RANKS + 1)]  # the last: one fails, the other waits
            said = sorted(
                ((rank, text) for rank, _, text in told if isinstance(text, dict)), key=lambda one: one[0]
            )
            errors = [worst for _, worst, _ in told if worst]
            print(json.dumps({"errors": errors, "said": [text for _, text in said], "run": told[-1][2]}))
        finally:
            for process in ranks:
                process.kill()
                process.join()
