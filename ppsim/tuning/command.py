"""The command that projects a configuration of a search in full."""

import shlex
from typing import TYPE_CHECKING

from ppsim.layout.layout import DEFAULT_ORDER
from ppsim.model.config import read_model

if TYPE_CHECKING:
    from ppsim.tuning.search import Found, Tuned


def command_of(tuned: "Tuned", found: "Found") -> str:
    """Return the `ppsim project …` line of a configuration, with what the question changes from the defaults."""
    question, one = tuned.question, found.candidate
    job = question.job
    options = [
        f"--model {shlex.quote(job.model_name)} --cluster {shlex.quote(job.cluster.name)}",
        f"--gpus {question.num_gpus}",
        f"--tp {one.tp} --cp {one.cp} --ep {one.ep} --pp {one.pp} --vpp {one.vpp} --schedule {one.schedule}",
        f"--micro-batch {one.micro_batch} --global-batch {job.global_batch} --seq-len {job.length}",
        f"--split {one.split} --recompute {one.recompute}",
    ]
    changed = {
        "--layers": (len(job.model.layers), len(read_model(job.model_name).layers)),
        "--dtype": (job.execution.dtype, "bfloat16"),
        "--order": (job.layout.order, DEFAULT_ORDER),
        "--optimizer": (job.optimizer.name, "adam"),
        "--zero": (job.optimizer.zero_stage, 1),
        "--update": (job.update, "synchronised"),
        "--runtime": (question.runtime, "torch"),
    }
    options += [f"{option} {value}" for option, (value, default) in changed.items() if value != default]
    if question.sequence_parallel is not None:
        options.append("--sequence-parallel" if question.sequence_parallel else "--no-sequence-parallel")
    if job.optimizer.layer_wise:
        options.append("--layer-wise")
    if not job.overlap:
        options.append("--no-overlap-dp")
    return "ppsim project " + " ".join(options)
