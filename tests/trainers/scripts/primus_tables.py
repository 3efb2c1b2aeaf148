"""Run tables with Primus' own launcher, runner and handlers, many in one launch.

    python primus_tables.py CHECKS PRIMUS FOLDER

FOLDER holds what `ppsim export --to primus` wrote, all for one number of ranks, which stay and take table after
table in both communication modes, each installed in the place of an algorithm of Primus'. CHECKS has
run_primus_table.py, whose step of a rank and whose stand-ins for CUDA these are. PRIMUS is a checkout. Prints a
line of JSON a run, {"table", "mode", "hung", "error", "max_gradient_error"}. A run of which --timeout seconds
nothing is heard counts as hung, and ends its ranks; new ones go on, until --most-hung of them hung.
"""

import argparse
import json
import multiprocessing
import os
import queue
import socket
import sys
import tempfile
import warnings
from pathlib import Path

MODES = ("async_p2p", "batch_p2p")


def keep_the_groups():
    """Make the process groups of a rank at the first call, and keep them; a table changes only the virtual size."""
    import torch
    from megatron.core import parallel_state

    connect, make_groups = torch.distributed.init_process_group, parallel_state.initialize_model_parallel

    def connect_once(*args, **options):
        if not torch.distributed.is_initialized():
            connect(*args, **options)

    def make_groups_once(virtual_pipeline_model_parallel_size, **sizes):
        if not parallel_state.is_initialized():
            make_groups(**sizes)
        parallel_state.set_virtual_pipeline_model_parallel_world_size(virtual_pipeline_model_parallel_size)

    torch.distributed.init_process_group = connect_once
    parallel_state.initialize_model_parallel = make_groups_once


def rank_process(rank, runs, store, messages):
    """Take one run after the other, in step with the other ranks; say how each ended."""
    import run_primus_table as check
    import torch

    from ppsim.integrations import primus

    check.SLOT = "none"  # the name under which it puts a table itself
    keep_the_groups()
    for number, (path, mode) in runs:
        table = primus.read(path)
        check.ARGUMENTS.communication_method = mode
        check.ARGUMENTS.pp_algorithm = primus.PLACEMENTS[primus.placement_of(table)][-1]
        primus.install(path, replace=check.ARGUMENTS.pp_algorithm)
        try:
            stages = check.stages_by_chunk(table)
            messages.put((number, check.train_a_step(rank, table, stages, store, report=lambda _: None), None))
            torch.distributed.barrier()
        except BaseException as error:
            messages.put((number, None, f"rank {rank}: {type(error).__name__}: {error}"[:300]))
            return


def run(runs, pp, timeout):
    """Yield number, largest gradient error and what went wrong of each run, until one does not end or fails."""
    fork = multiprocessing.get_context("fork")
    messages = fork.Queue()
    with tempfile.TemporaryDirectory() as folder:
        given = (runs, f"{folder}/store", messages)
        ranks = [fork.Process(target=rank_process, args=(rank, *given)) for rank in range(pp)]
        for process in ranks:
            process.start()
        try:
            for number, _ in runs:
                worst = []
                while len(worst) < pp:
                    _, found, error = messages.get(timeout=timeout)
                    if error:
                        yield number, None, error
                        return
                    worst.append(found)
                yield number, max(worst), None
        except queue.Empty:
            yield number, None, None
        finally:
            for process in ranks:
                process.kill()
                process.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", type=Path)
    parser.add_argument("primus", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--most-hung", type=int, default=2)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    sys.path.insert(0, str(options.checks))
    os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    import run_primus_table as check

    check.use_checkout(options.primus)
    check.stand_in_for_cuda_and_arguments()
    import megatron.core.pipeline_parallel.combined_1f1b  # noqa: F401  once, before the fork

    paths = sorted(options.folder.glob("*.json"))
    (pp,) = {json.loads(path.read_text())["pp_size"] for path in paths}
    runs = [(path, mode) for path in paths for mode in MODES]
    left = list(enumerate(runs))
    num_hung = 0
    while left and num_hung < options.most_hung:
        for number, worst, error in run(left, pp, options.timeout):
            path, mode = runs[number]
            num_hung += (hung := worst is None and error is None)
            told = {"hung": hung, "error": error, "max_gradient_error": worst}
            print(json.dumps({"table": path.stem, "mode": mode} | told), flush=True)
        left = left[number - left[0][0] + 1 :]


if __name__ == "__main__":
    main()
