"""Tables of the available schedules, models and clusters."""

import json
from typing import TYPE_CHECKING, Any

from ppsim.api.model_traces import trace, trace_if_unknown
from ppsim.base.files import write_atomically
from ppsim.base.option_declarations import require_tokens
from ppsim.catalog.build import every_schedule
from ppsim.machine.cluster_files import load_cluster, packaged_clusters
from ppsim.model.architecture import Model
from ppsim.model.config import model_from
from ppsim.model.registry import NAMES
from ppsim.trainers.read_config import model_named
from ppsim.trainers.write_schedule import refusals

if TYPE_CHECKING:
    import pandas


def schedules() -> "pandas.DataFrame":
    """Return a pandas DataFrame of the schedules, one row per name.

    most_vpp is NA if any vpp is possible, microbatches has the constraint on the number of microbatches, and
    runs_on the runtimes that `ppsim.export` supports. `ppsim schedules NAME` explains the letters of the formulas.

    >>> import ppsim
    >>> ppsim.schedules().loc["zbv", ["placement", "messages", "runs_on"]].tolist()
    ['v', '2 * (p - 1)', ['torch', 'primus']]
    """
    import pandas

    rows = []
    for entry in every_schedule().values():
        least, most = entry.stages_per_rank
        rows.append(
            {
                "name": entry.name,
                "title": entry.title,
                "placement": entry.placement,
                "least_vpp": least,
                "most_vpp": most,
                "splits_backward": entry.splits_backward,
                "microbatches": entry.constraint,
                "bubble": str(entry.bubble or ""),
                "span_bubble": str(entry.span_bubble or ""),
                "peak_activations": str(entry.peak_activations),
                "messages": str(entry.messages),
                "replicas": entry.num_replicas,
                "slices": entry.num_slices,
                "runs_on": [name for name, reason in refusals(entry).items() if reason is None],
                "source": entry.source,
            }
        )
    return pandas.DataFrame(rows).astype({"most_vpp": "Int64"}).set_index("name")


def models() -> "pandas.DataFrame":
    """Return a pandas DataFrame of the models, one row per name.

    The columns are the counts of `ppsim models NAME --json`. training_flops_per_token counts GEMMs at the model's
    own sequence_length.

    >>> import ppsim
    >>> int(ppsim.models().loc["llama3-8b", "parameters"])
    8030261248
    """
    import pandas

    return pandas.DataFrame([model_counts(name) for name in NAMES]).set_index("name")


def model_counts(name: str, seq_len: int | None = None) -> dict[str, Any]:
    trace_if_unknown(name)
    return count_parameters(model_named(name), name, seq_len)


def traced_counts(config: str, output: str | None, seq_len: int | None = None) -> dict[str, Any]:
    data = trace(config)
    if output is not None:
        write_atomically(output, json.dumps(data, indent=1) + "\n")
    return count_parameters(model_from(data, config), config, seq_len)


def count_parameters(model: Model, name: str, seq_len: int | None) -> dict[str, Any]:
    require_tokens("seq_len", seq_len)
    length = model.sequence_length if seq_len is None else seq_len
    return {
        "name": name,
        "source": model.source,
        "layers": len(model.layers),
        "moe_layers": sum(layer.is_moe for layer in model.layers),
        "recurrent_layers": sum(layer.is_recurrent for layer in model.layers),
        "windowed_layers": sum(bool(getattr(layer.attention, "window", None)) for layer in model.layers),
        "mtp_layers": len(model.mtp),
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "tied_embeddings": model.tied_embeddings,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "embedding_parameters": model.embedding_parameters,
        "conditioning_parameters": model.outside_parameters("conditions"),
        "mtp_parameters": model.mtp_parameters,
        "sequence_length": length,
        "training_flops_per_token": model.training_flops(length),
        "training_flops_per_token_causal": model.training_flops(length, causal=True),
        "training_flops_per_token_6n": model.rule_of_thumb_flops(),
        **(_encoder_counts(model) if model.encoders else {}),
        **({"assumptions": list(model.notes)} if model.notes else {}),
    }


def _encoder_counts(model: Model) -> dict[str, Any]:
    return {
        "encoder_layers": sum(len(encoder.layers) for encoder in model.encoders),
        "encoder_parameters": sum(encoder.parameters for encoder in model.encoders),
        "encoder_tokens": sum(encoder.tokens for encoder in model.encoders),
    }


def clusters() -> "pandas.DataFrame":
    """Return a pandas DataFrame of the packaged clusters, one row per name.

    bfloat16_flops_per_s is the dense peak. domain_sizes are devices per domain, innermost first (None: all), and
    link_bytes_per_s the send bandwidth per device in the same order.

    >>> import ppsim
    >>> ppsim.clusters().loc["dgx-h100", "domain_sizes"]
    (8, None)
    """
    import pandas

    rows = [
        {
            "name": cluster.name,
            "title": cluster.title,
            "device": cluster.device.name,
            "bfloat16_flops_per_s": cluster.device.peak_flops_per_s.get("bfloat16"),
            "memory_bytes": cluster.device.memory_bytes,
            "memory_bytes_per_s": cluster.device.memory_bytes_per_s,
            "domain_sizes": tuple(tier.num_devices for tier in cluster.tiers),
            "link_bytes_per_s": tuple(tier.link.bytes_per_s for tier in cluster.tiers),
            "source": cluster.source,
        }
        for cluster in map(load_cluster, packaged_clusters())
    ]
    return pandas.DataFrame(rows).set_index("name")
