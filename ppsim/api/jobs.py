"""A training job on a cluster, from the words of the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from ppsim.api.words import takes
from ppsim.base.errors import ConfigError
from ppsim.costs.analytic import Execution
from ppsim.costs.job import Job
from ppsim.costs.profile import Profile, load_profile
from ppsim.layout.layout import DEFAULT_ORDER, Layout, layout_on
from ppsim.machine.cluster import Cluster
from ppsim.machine.files import load_cluster
from ppsim.model.config import read_model
from ppsim.model.memory import Optimizer, Precision
from ppsim.model.recompute import Recompute, recompute_of
from ppsim.schedule.choices import Update


class StudyOptions(TypedDict, total=False):
    """A job whose layout is not decided; `ppsim tune --help` has each word's meaning and default."""

    model: str | Path | None
    cluster: str | Path | Cluster | None
    gpus: int | None
    order: str | None
    global_batch: int | None
    dtype: Literal["bfloat16", "float16", "float8", "float32"] | None
    sequence_parallel: bool | None
    zero: Literal[0, 1, 2, 3] | None
    optimizer: Literal["adam", "muon"] | None
    layer_wise: bool | None
    update: Update | None
    overlap_dp: bool | None
    seq_len: int | None
    layers: int | None


class JobOptions(StudyOptions, total=False):
    """A job with its layout; `ppsim project --help` has each word's meaning and default."""

    tp: int | None
    cp: int | None
    ep: int | None
    dp: int | None
    pp: int | None
    microbatches: int | None
    micro_batch: int | None
    recompute: Recompute | None
    offload: float | None
    profile: str | Path | Profile | None


_ONLY_FOR_JOBS = (
    "cluster", "gpus", "dp", "order", "global_batch", "dtype", "sequence_parallel", "zero", "optimizer",
    "layer_wise", "update", "offload", "overlap_dp",
)  # fmt: skip


@takes(JobOptions)
def job(**options: Unpack[JobOptions]) -> Job:
    """Return a training job: a `model` on a `cluster`, and how it is divided among `gpus`.

    The words are those of `ppsim project`, as are their defaults: model is a name of `ppsim.models()` or a Hugging
    Face config.json; cluster a name of `ppsim.clusters()`, a file or a `Cluster` (dgx-h100); tp, cp, ep, pp are 1;
    dp is what gpus leave; global_batch counts sequences a step, 4 · pp microbatches of micro_batch (1) on each of
    the dp replicas unless it is given. Raises `ConfigError` for whatever model, cluster and layout forbid.

    >>> import ppsim
    >>> made = ppsim.job(model="llama3-70b", gpus=256, tp=8, pp=4, global_batch=512)
    >>> made.layout.dp, made.num_microbatches
    (8, 64)
    """
    made = job_from(options)
    if made is None:
        raise ConfigError("--model must be given: a job trains one")
    return made


def job_from(options: Mapping[str, Any]) -> Job | None:
    """Return the job that the options describe, or None where there is no model.

    `options` has every word of `JobOptions`, None where it was not given. Raises `ConfigError` for options of a job
    without a model, and for whatever model, cluster and layout forbid.
    """
    if options["model"] is None:
        if given := [name for name in _ONLY_FOR_JOBS if options.get(name) is not None]:
            raise ConfigError(f"--{given[0].replace('_', '-')} is for a --model on a --cluster")
        return None
    name = str(options["model"])
    model = read_model(name)
    if options["layers"] is not None:
        model = model.with_layers(options["layers"])
    cluster = cluster_of(options["cluster"])
    layout = _layout(options, cluster.num_devices)
    dtype, micro_batch = options["dtype"] or "bfloat16", options["micro_batch"]
    micro_batch = 1 if micro_batch is None else micro_batch
    if micro_batch < 1:
        raise ConfigError(f"--micro-batch must be at least 1: got {micro_batch}")
    microbatches = 4 * layout.pp if options["microbatches"] is None else options["microbatches"]
    if options["global_batch"] is not None and options["microbatches"] is not None:
        raise ConfigError("--global-batch and --microbatches say the same twice: give one of them")
    precision: Precision = "fp16" if dtype == "float16" else "fp32" if dtype == "float32" else "bf16"
    sequence_parallel = layout.tp > 1 if options["sequence_parallel"] is None else options["sequence_parallel"]
    return Job(
        model=model,
        model_name=name,
        cluster=cluster,
        layout=layout,
        global_batch=microbatches * micro_batch * layout.dp
        if options["global_batch"] is None
        else options["global_batch"],
        micro_batch=micro_batch,
        sequence_length=options["seq_len"],
        execution=Execution(
            dtype=dtype, recompute=recompute_of(options["recompute"] or "none"),
            sequence_parallel=sequence_parallel, fused_cross_entropy=True,
        ),
        optimizer=Optimizer(
            precision=precision,
            name=options["optimizer"] or "adam",
            zero_stage=1 if options["zero"] is None else options["zero"],
            layer_wise=bool(options["layer_wise"]),
        ),
        profile=None if options["profile"] is None else profile_of(options["profile"]),
        overlap=options["overlap_dp"] is not False,
        offload=options["offload"] or 0.0,
        update=options["update"] or "synchronised",
    )  # fmt: skip


def cluster_of(given: str | Path | Cluster | None) -> Cluster:
    """Return the cluster itself, or the one of a name or file; dgx-h100 where there is none."""
    return given if isinstance(given, Cluster) else load_cluster(given or "dgx-h100")


def profile_of(given: str | Path | Profile) -> Profile:
    """Return the profile itself, or the one of a name or file."""
    return given if isinstance(given, Profile) else load_profile(given)


def _layout(options: Mapping[str, Any], num_devices: int | None) -> Layout:
    sizes = {name: options[name] for name in ("tp", "cp", "ep", "pp", "dp") if options[name] is not None}
    order = options["order"] or DEFAULT_ORDER
    if options["gpus"] is not None:
        layout = layout_on(options["gpus"], **sizes, order=order)
    else:
        layout = Layout(**sizes, order=order)
    if num_devices is not None and layout.num_devices > num_devices:
        raise ConfigError(f"the layout takes {layout.num_devices} devices, but the cluster has {num_devices}")
    return layout
