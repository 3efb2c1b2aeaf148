"""Sentences about the options of a training job."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppsim.costs.job import Job


def given_assumptions(job: "Job") -> list[str]:
    """Return what was assumed about a model and the number of GPUs."""
    from ppsim.parallel.layout import assumed_devices  # heavy import: a projection without a model has no layout

    sizes = {name: getattr(job.layout, name) for name in ("tp", "cp", "ep", "dp", "pp")}
    gpus = [assumed_devices(**sizes, multiple=job.gpus_assumed)] if job.gpus_assumed else []
    left_out = [job.model.left_out] if job.model.left_out else []
    encoders = [encoder.sentence for encoder in job.model.encoders]
    return [*job.model.notes, *gpus, *encoders, *left_out, *job.assumed]


def stack_description(job: "Job") -> str:
    execution = job.execution
    texts = [f"{execution.attention} attention", "dropout" if execution.dropout else "no dropout"]
    if job.layout.tp > 1:
        texts.append(execution.tp_overlap_text)
    if execution.compile is not None:
        texts.append("torch.compile" if execution.compile else "eager blocks")
    texts += [f"ZeRO {job.optimizer.zero_stage}", f"DP {dp_overlap_text(job)}"]
    return f"{job.stack_name}: {', '.join(texts)}"


def dp_overlap_text(job: "Job") -> str:
    overlaps = job.overlap_grad_reduce
    if not job.optimizer.zero_stage or overlaps == job.overlap_param_gather:
        return "overlapped" if overlaps else "exposed"
    hidden, exposed = ("reduction", "all-gather") if overlaps else ("all-gather", "reduction")
    return f"{hidden} overlapped, {exposed} exposed"
