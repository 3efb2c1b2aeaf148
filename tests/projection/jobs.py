"""Jobs for tests: small models on small clusters, and one whose layers all cost the same on an ideal network."""

from dataclasses import replace
from typing import Any

from ppsim.costs.job import Job
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.execution import Execution
from ppsim.model.registry import find_model
from ppsim.parallel.layout import Layout


def job(name: str = "llama3-8b", *, layers: int | None = None, cluster: str = "dgx-h100", **fields: Any) -> Job:
    """Return a job; fields of the layout and of the execution are told by their names."""
    model = find_model(name)
    model = model if layers is None else model.with_layers(layers)
    layout = Layout(**{key: fields.pop(key) for key in ("tp", "cp", "ep", "etp", "dp", "pp") if key in fields})
    of_execution = {
        key: fields.pop(key) for key in ("recompute", "attention", "dtype", "context", "dropout") if key in fields
    }
    execution = Execution(sequence_parallel=layout.tp > 1, cross_entropy="fused", **of_execution)
    fields = {"global_batch": 4 * layout.pp * layout.dp, "sequence_length": 4096} | fields
    found = load_cluster(cluster)
    return Job(model=model, model_name=name, cluster=found, layout=layout, execution=execution, **fields)


def on_ideal_links(of: Job) -> Job:
    """Return the job with links that take no time."""
    tiers = tuple(
        replace(tier, link=replace(tier.link, bytes_per_s=1e30, launch_s=0.0, step_s=0.0))
        for tier in of.cluster.tiers
    )
    return replace(of, cluster=replace(of.cluster, tiers=tiers))
