"""Small questions that a search and an exhaustive one can both answer."""

from ppsim.costs.job import Job
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.execution import Execution
from ppsim.model.optimizer import Optimizer
from ppsim.model.registry import read_model
from ppsim.parallel.layout import Layout
from ppsim.tuning.space import SearchProblem

GIB = 2**30


def question(
    model="llama3-8b", *, gpus=16, batch=32, length=8192, layers=None, limit_gib=75.0, zero=1, runtime="torch",
    **fields,
):  # fmt: skip
    made = read_model(model)
    job = Job(
        model=made if layers is None else made.with_layers(layers), model_name=model, cluster=load_cluster("dgx-h100"),
        layout=Layout(), global_batch=batch, sequence_length=length, optimizer=Optimizer(zero_stage=zero),
        execution=Execution(cross_entropy="fused"), **fields,
    )  # fmt: skip
    return SearchProblem(job=job, num_gpus=gpus, memory_limit_bytes=limit_gib * GIB, runtime=runtime)
