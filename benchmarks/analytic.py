"""Compare times estimated from specifications with published runs without a pipeline: signed errors by set.

python benchmarks/analytic.py
python benchmarks/analytic.py --cluster dgx-h100 profiles/*-h100.json    # compared with measurements of ppsim profile

The constants of ppsim/machine/data/efficiency.toml were fitted to the rows marked fit in
published/analytic_runs.csv and to the kernel measurements that the table names. All other rows are test rows.
"""

import argparse
import csv
import sys
from pathlib import Path
from statistics import mean

from ppsim.base.units import seconds, signed_percent
from ppsim.costs.analytic import end_estimate, layer_estimate
from ppsim.costs.dp_and_optimizer import NORM_BYTES, optimizer_s
from ppsim.costs.estimate import model_of
from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.profile import Profile, load_profile
from ppsim.costs.time_breakdown import CostEstimate
from ppsim.costs.utilization import PASSES
from ppsim.machine import collectives
from ppsim.machine.cluster import Cluster
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.architecture import Model
from ppsim.model.execution import Execution
from ppsim.model.optimizer import Optimizer
from ppsim.model.recompute import recompute_of
from ppsim.model.shapes import LayerShape, layer_of
from ppsim.parallel.groups import GroupName, group
from ppsim.parallel.layout import layout_on

RUNS = Path(__file__).parent / "published" / "analytic_runs.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="*", metavar="PROFILE.json")
    parser.add_argument(
        "--cluster", default="dgx-h100", help="what the profiles were measured on, default dgx-h100"
    )
    options = parser.parse_args()
    if options.profiles:
        beside_profiles(options.profiles, load_cluster(options.cluster))
        return
    rows = read()
    errors: dict[tuple[str, str, str, str], list[float]] = {}
    print(
        "| use | source | model | cluster | tp | dp | cp | ep | micro-batch | dtype | what | published | estimated | error |"
    )
    print("|---|---|---|---|--:|--:|--:|--:|--:|---|---|--:|--:|--:|")
    for row in rows:
        published, estimated = float(row["value"]), estimate_of(row)
        error = estimated / published - 1
        kind = "experts" if row["kind"] == "moe" else "dense"
        source = row["source"].split(",")[0].removesuffix(" (MICRO 2024)")
        errors.setdefault((row["use"], kind, row["cluster"], source), []).append(error)
        what = f"{row['metric'].replace('_', ' ')}, recompute {row['recompute']}"
        print(
            f"| {row['use']} | {row['source']} | {row['model']} | {row['cluster']} | {row['tp']} | {row['dp']} | {row['cp']} | {row['ep']} "
            f"| {row['micro_batch']} | {row['dtype']} | {what} | {seconds(published)} | {seconds(estimated)} "
            f"| {signed_percent(error)} |"
        )
    print("\n| use | layers | cluster | source | rows | mean error | mean absolute | worst |")
    print("|---|---|---|---|--:|--:|--:|--:|")
    for key in sorted(errors):
        found = errors[key]
        print(
            f"| {' | '.join(key)} | {len(found)} | {signed_percent(mean(found))} "
            f"| {100 * mean(map(abs, found)):.2f} % | {signed_percent(max(found, key=abs))} |"
        )


def beside_profiles(paths: list[str], cluster: Cluster) -> None:
    """Print the errors of a layer's actions, without communication, for profiles that were not used for fitting.

    Only for 16-bit formats. The estimate is for trainers' kernels, the profile for torch's own, one after the
    other.
    """
    print("| profile | layers | F mean / absolute / worst | B | I | W |")
    print("|---|--:|--:|--:|--:|--:|")
    every: dict[str, list[float]] = {}
    for path in paths:
        profile = load_profile(path)
        found, model = layer_errors(profile, cluster), Path(path).stem
        for name, values in found.items():
            every.setdefault(name, []).extend(values)
        print(f"| {model} | {len(found['F'])} | {' | '.join(in_words(found.get(name, [])) for name in PASSES)} |")
    print(f"| all | {len(every['F'])} | {' | '.join(in_words(every[name]) for name in PASSES)} |")


def in_words(errors: list[float]) -> str:
    if not errors:
        return "–"
    worst = max(errors, key=abs)
    return f"{signed_percent(mean(errors))} / {100 * mean(map(abs, errors)):.2f} % / {signed_percent(worst)}"


def layer_errors(profile: Profile, cluster: Cluster) -> dict[str, list[float]]:
    model = model_of(profile)
    errors: dict[str, list[float]] = {}
    assert model is not None
    for part in profile.measurements:
        shape = part.shape
        if part.component != "layer" or shape.dtype not in ("bfloat16", "float16"):
            continue
        layout = layout_on(shape.tp * shape.ep, tp=shape.tp, cp=1, ep=shape.ep, dp=shape.ep)
        place = ExecutionContext(cluster=cluster, layout=layout, execution=Execution(dtype=shape.dtype))
        one = layer_estimate(
            layer_of(model.layer), place, micro_batch=shape.micro_batch, sequence_length=shape.sequence_length
        )
        passes = (one.forward, one.backward, one.backward_input, one.backward_weight)
        for name, parts, key in zip(PASSES, passes, PASSES.values(), strict=True):
            if (measured := getattr(part, key)) is not None:
                error = (parts.total_s - parts.communication_s) / measured.median - 1
                errors.setdefault(name, []).append(error)
    return errors


def read() -> list[dict[str, str]]:
    lines = RUNS.read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def estimate_of(row: dict[str, str]) -> float:
    """Return the seconds that the row measured: one action of a layer, or all microbatches and the step's end."""
    heads, hidden = int(row["heads"]), int(row["hidden"])
    is_gpt, length = row["kind"] == "gpt", int(row["seq_len"])
    layer = layer_of(
        LayerShape(
            row["kind"], hidden_size=hidden, num_heads=heads, num_kv_heads=int(row["kv_heads"]),
            head_size=int(row["head_size"]), ffn_size=int(row["ffn"]), num_experts=int(row["num_experts"]),
            experts_per_token=int(row["experts_per_token"]),
        )
    )  # fmt: skip
    model = Model(
        (layer,) * int(row["layers"]), int(row["vocab"]), length,
        tied_embeddings=is_gpt, learned_positions=length if is_gpt else 0,
    )  # fmt: skip
    cluster = load_cluster(row["cluster"])
    layout = layout_on(int(row["gpus"]), **{name: int(row[name]) for name in ("tp", "cp", "ep", "dp")})
    execution = Execution(
        dtype=row["dtype"],
        attention=row["attention"],
        recompute=recompute_of(row["recompute"]),
        sequence_parallel=row["sequence_parallel"] == "yes",
        dropout=row["dropout"] == "yes",
        cross_entropy="fused" if row["fused_cross_entropy"] == "yes" else "unfused",
        context=row["context"],
        hidden_tp_backward=float(row["hidden_tp_backward"]),
        expert_capacity=1.0 if "tokendrop" in row["model"] else None,
    )
    place = ExecutionContext(cluster=cluster, layout=layout, execution=execution)
    shape = {"micro_batch": int(row["micro_batch"]), "sequence_length": int(row["seq_len"])}
    one = layer_estimate(layer, place, **shape)
    if row["metric"] == "layer_forward":
        return one.forward.total_s
    if row["metric"] == "layer_backward":
        return one.backward.total_s
    ends = end_estimate(model, "embedding", place, **shape), end_estimate(model, "head", place, **shape)
    microbatch_s = len(model.layers) * both(one) + sum(map(both, ends))
    experts = len(model.layers) * layer.expert_parameters
    end_s = step_end_s(place, (model.parameters - experts) / layout.tp, "dp-cp", sharded=row["sharded"] == "yes")
    if experts:
        held = experts / (layout.tp * layout.ep)
        end_s += step_end_s(place, held, "expert-dp", sharded=row["sharded"] == "yes")
    return int(row["global_batch"]) / (layout.dp * int(row["micro_batch"])) * microbatch_s + end_s


def step_end_s(place: ExecutionContext, parameters: float, name: GroupName, *, sharded: bool) -> float:
    """Return the seconds after the last backward pass, all exposed: gradients, norm, Adam, parameter all-gather."""
    cluster, device = place.cluster, place.cluster.device
    ranks = group(place.layout, name, place.domain_sizes)
    reduced = collectives.seconds("reduce-scatter" if sharded else "all-reduce", 4 * parameters, ranks, cluster)
    gathered = collectives.seconds("all-gather", 2 * parameters, ranks, cluster) if sharded else 0.0
    updated = parameters / (ranks.num_ranks if sharded else 1)
    norm = updated * NORM_BYTES / (device.memory_bytes_per_s * device.efficiency.memory)
    return reduced + gathered + norm + optimizer_s(device, updated, bytes_per_parameter=Optimizer().traffic_bytes)


def both(estimate: CostEstimate) -> float:
    return estimate.forward.total_s + estimate.backward.total_s


if __name__ == "__main__":
    sys.exit(main())
