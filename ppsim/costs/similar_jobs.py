"""Similarity of a job to jobs that were measured on its cluster."""

from pathlib import PurePath
from typing import TYPE_CHECKING

from ppsim.machine.job_similarity import JobFeatures, correction_of

if TYPE_CHECKING:
    from ppsim.costs.job import Job

_UNNAMED = "gpt"
"""Name of models that are given by their sizes, which are identified by their hidden size."""


def features_of(job: "Job") -> JobFeatures:
    """Return the key for the similarity to other jobs.

    >>> import ppsim
    >>> features_of(ppsim.job(model="llama3-8b", gpus=16, tp=2, pp=4, micro_batch=2)).title
    'llama3-8b/bfloat16 on 16, tp2-cp1-ep1-pp4-b2-s8192'
    """
    execution, layout = job.execution, job.layout
    name = "-".join(PurePath(job.model_name).name.split())
    return JobFeatures(
        model=f"{name}{job.model.hidden_size if name == _UNNAMED else ''}", dtype=execution.dtype,
        tp=layout.tp, cp=layout.cp, ep=layout.ep,
        micro_batch=job.micro_batch, seq_len=job.length, recompute=execution.recompute,
        cuda_graphs=execution.cuda_graphs, pp=layout.pp, gpus=layout.num_devices,
    )  # fmt: skip


def scale_of(job: "Job") -> float:
    """Return the ratio of measured to projected step time of similar jobs."""
    return correction_of(job.cluster.constants.runs, features_of(job)).times
