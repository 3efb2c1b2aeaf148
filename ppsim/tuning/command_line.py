"""The `ppsim project` command of a configuration in a search result."""

import pickle
from typing import Any

from ppsim.base.option_declarations import command_arguments, declared_options, option_values, options_by_section
from ppsim.machine.cluster_files import packaged_clusters
from ppsim.parallel.layer_partition import Split, even_split
from ppsim.projection.options import PlanOptions
from ppsim.projection.plan import AUTO, Plan
from ppsim.projection.plan_description import sizes_of
from ppsim.trainers.stacks import PLAIN, stack_of
from ppsim.tuning.lower_bounds import bounds_calculator
from ppsim.tuning.options import TuneOptions
from ppsim.tuning.space import PLANNED, Configuration, SearchProblem


def command_of(
    question: SearchProblem,
    candidate: Configuration,
    *,
    projected: type = PlanOptions,
    searched: type = TuneOptions,
) -> str:
    """Return the command that projects a configuration."""
    job, limit, is_planned = question.job_of(candidate), question.memory_limit_bytes, candidate.recompute == PLANNED
    has_cluster = question.calibration_file is None or job.cluster.name in packaged_clusters()
    settings = {
        "model": job.model_name, "cluster": job.cluster.name if has_cluster else None, "gpus": question.num_gpus,
        "tp": candidate.tp, "cp": candidate.cp, "ep": candidate.ep, "pp": candidate.pp, "vpp": candidate.vpp,
        "schedule": candidate.schedule, "micro_batch": candidate.micro_batch, "global_batch": job.global_batch,
        "seq_len": job.length,
        "split": _split(question, candidate), "recompute": None if is_planned else candidate.recompute,
        "stage_plan": "auto" if is_planned else None,
        "memory_limit": None if limit is None else _exact_size(limit),
        "zero": None if candidate.zero == 1 and job.stack == PLAIN else candidate.zero,
    }  # fmt: skip
    depending = {
        **sizes_of(job),
        "sequence_parallel": candidate.switches.get("sequence_parallel", question.sequence_parallel),
        "etp": candidate.switches.get("etp", question.etp),
        "overlap_tp": job.execution.overlap_tp,
        "launch_ms": None if job.launch_s is None or question.overheads else 1e3 * job.launch_s,
        "calibration": question.calibration_file,
    }
    declarations, also = declared_options(projected), declared_options(searched)
    asked = option_values(declarations, Plan(pp=candidate.pp, job=job, runtime=question.runtime)) | depending
    by_dtype = {"grad_reduce_in_bf16": job.optimizer.precision == "fp16"}
    printed = [
        name
        for names in options_by_section(declarations.values()).values()
        for name in names
        if name in candidate.switches
        or (name in also and also[name].option.field == declarations[name].option.field)
    ]
    changed: dict[str, Any] = {}
    for _ in range(_MOST_ROUNDS):  # an option that is typed may cancel others of the stack
        said = stack_of(
            job.stack, dict.fromkeys(declarations) | settings | changed, device=job.cluster.device.name,
            has_experts=job.model.has_experts,
        ).options  # fmt: skip
        before, changed = changed, dict(changed)  # a typed option stays, because the stack then has no value for it
        for name in printed:
            by_stack = said.get(name, by_dtype.get(name, declarations[name].option.default))
            if name not in settings and asked[name] not in (None, by_stack):
                changed[name] = asked[name]
        if changed == before:
            break
    values = {name: value for name, value in changed.items() if not isinstance(value, bool)}
    flags = {name: value for name, value in changed.items() if isinstance(value, bool)}
    texts = [
        text
        for name, value in (settings | values | flags).items()
        for text in command_arguments(declarations[name], value)
    ]
    return "ppsim project " + " ".join(texts)


_MOST_ROUNDS = 4


def _exact_size(num_bytes: float) -> str:
    gib = f"{num_bytes / 2**30:g}"
    return f"{gib}GiB" if float(gib) * 2**30 == num_bytes else f"{num_bytes!r}B"


def _split(question: SearchProblem, candidate: Configuration) -> Split | None:
    """The layers per stage of the search, because `--split auto` of `ppsim project` searches for faster ones."""
    if candidate.recompute == PLANNED or candidate.pp * candidate.vpp == 1:
        return None
    if candidate.schedule == AUTO or candidate.split != "auto":
        return "even" if candidate.split == "even" else "auto"
    counts = bounds_calculator(pickle.dumps(question)).counts(candidate)
    return "even" if list(counts) == even_split(sum(counts), len(counts)) else counts
