"""Terminal output for recipes, configurations of trainers, models, clusters and profiles."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ppsim.base.units import count, percent, rate, seconds, size
from ppsim.costs.affine_layer_cost import stage_lines
from ppsim.costs.utilization import PASSES, peak_of, split_ratio, utilization
from ppsim.machine.cluster import Cluster, Constant, Link, Tier
from ppsim.model.architecture import Model
from ppsim.model.measurement_key import describe_key
from ppsim.results.text_layout import SCREEN_LINES, Page, TableLines, bold, facts
from ppsim.trainers.recipe_table import TITLES, Recipe, recipes
from ppsim.trainers.run_config import RunConfig, shorten

if TYPE_CHECKING:
    from ppsim.validation.project_case import PublishedResult


def print_recipes(listed: Sequence[Recipe], *, is_filtered: bool, full: bool) -> None:
    """Without a filter, there is one line per model."""
    out = Page()
    if not is_filtered:
        out.add(TableLines.of(_by_model(listed), left=4, spare=["trainer"]))
        out.add("", "ppsim recipes MODEL DEVICE lists the recipes; ppsim project --recipe NAME projects one.")
        return
    named: dict[tuple[str, str], list[Recipe]] = {}
    for one in listed:
        named.setdefault((one.trainer, one.base), []).append(one)
    rows = [
        {
            "recipe": base,
            "trainer": TITLES[trainer],
            "releases": ", ".join(one.release for one in same),
            "GPUs": ", ".join(dict.fromkeys(str(one.gpus or "any") for one in same)),
        }
        for (trainer, base), same in named.items()
    ]
    shown = rows if full else rows[:SCREEN_LINES]
    out.add(TableLines.of(shown, left=3, spare=["trainer"]))
    if len(shown) < len(rows):
        out.add(f"{len(rows) - len(shown)} more: --full")


def _by_model(listed: Sequence[Recipe]) -> list[dict[str, str]]:
    models: dict[tuple[str, str], list[Recipe]] = {}
    for one in listed:
        models.setdefault((one.trainer, one.model), []).append(one)
    return [
        {
            "model": model,
            "trainer": TITLES[trainer],
            "devices": _listed(one.device for one in same),
            "precisions": _listed(one.precision for one in same),
            "recipes": str(len({one.base for one in same})),
            "releases": str(len({one.release for one in same})),
        }
        for (trainer, model), same in models.items()
    ]


def _listed(names: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(names))


def print_recipe(recipe: Recipe) -> None:
    from ppsim.trainers.read_recipe import read_recipe

    same = [one.release for one in recipes() if (one.trainer, one.base) == (recipe.trainer, recipe.base)]
    gpus = [] if recipe.gpus is None else [("GPUs", str(recipe.gpus))]
    settings = ", ".join(f"{name} {value}" for name, value in recipe.settings.items())
    out = Page()
    out.add(bold(recipe.name))
    out.add(
        facts(
            [
                ("trainer", f"{TITLES[recipe.trainer]} {recipe.release}, {recipe.repository}"),
                ("file", recipe.source),
                ("releases", ", ".join(same)),
                *gpus,
                ("settings", settings),
            ]
        )
    )
    out.add("", *settings_lines(read_recipe(recipe.name)), "", f"ppsim project --recipe {recipe.name}")


def print_published(published: "PublishedResult", projected_s: float) -> None:
    error = projected_s / published.seconds - 1
    unit = published.metric.replace("_per_", "/").replace("/gpu", "/GPU")
    Page().add(
        f"published      {seconds(published.seconds)} ({published.value:g} {unit}, {published.table}): the "
        f"projection is {percent(abs(error))} {'longer' if error > 0 else 'shorter'}"
    )


def print_improvement(recipe: Recipe, recipe_s: float, best_s: float, why_longer: Sequence[str]) -> None:
    change = best_s / recipe_s - 1
    text = f"recipe  {recipe.name} takes {seconds(recipe_s)}: the best is {percent(abs(change))} "
    Page().add(text + ("; ".join(["longer", *why_longer]) if change > 0 else "shorter"))


def run_config_lines(config: RunConfig) -> list[str]:
    return [*_wrapped(f"{config.source}: {config.trainer}"), *settings_lines(config)]


def settings_lines(config: RunConfig) -> list[str]:
    words = ", ".join(f"{word.replace('_', '-')} {shorten(value)}" for word, value in config.options.items())
    if config.model is not None:
        words = f"a model of {config.model.parameters / 1e9:,.3g} G parameters, {words}".rstrip(", ")
    lines = [f"  read: {words}"]
    for what in dict.fromkeys(("time and memory", "time", "memory", *(one.effect for one in config.ignored))):
        names = [one.in_words for one in config.ignored if one.effect == what]
        if names:
            reason = f"effect {what}" if what.startswith("unknown") else f"affects {what}"
            lines.append(f"  ignored ({reason}): {', '.join(names)}")
    lines += [f"  assumed: {sentence}" for sentence in config.assumed]
    return [part for line in lines for part in _wrapped(line)]


_WIDTH = 100


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, subsequent_indent="    ")


def print_run_config(config: RunConfig) -> None:
    print(*run_config_lines(config), sep="\n")


def print_models(models: Mapping[str, Model], *, with_sources: bool = False) -> None:
    out = Page()
    rows = [
        [
            name,
            f"{model.parameters:,}",
            count(model.active_parameters),
            str(len(model.layers)),
            str(model.hidden_size),
        ]
        for name, model in models.items()
    ]
    out.add(TableLines(["model", "parameters", "active", "layers", "hidden"], rows))
    if with_sources:
        out.add("\nsources of the sizes\n")
        out.add(facts((name, model.source) for name, model in models.items()))
    out.add("\nInstead of a name, you can give a Hugging Face config.json: ppsim models path/to/config.json")


def print_counts(counts: Mapping[str, Any]) -> None:
    layers = f"{counts['layers']} of width {counts['hidden_size']}"
    if counts["moe_layers"]:
        layers += f", {counts['moe_layers']} with experts"
    if counts["recurrent_layers"]:
        layers += f", {counts['recurrent_layers']} recurrent (Mamba-2 or gated delta rule)"
    if counts["windowed_layers"]:
        layers += f", {counts['windowed_layers']} with sliding-window attention"
    if counts["mtp_layers"]:
        layers += f"; {counts['mtp_layers']} for multi-token prediction"
    tied = ", shared with the output head" if counts["tied_embeddings"] else ""
    rows = [
        ("layers", layers),
        ("output columns" if counts["conditioning_parameters"] else "vocabulary", f"{counts['vocab_size']:,}"),
        ("parameters", f"{counts['parameters']:,}"),
        ("active per token", f"{counts['active_parameters']:,}"),
        ("embedding", f"{counts['embedding_parameters']:,}{tied}"),
    ]
    if counts["conditioning_parameters"]:
        rows.append(("conditioning", f"{counts['conditioning_parameters']:,}, on every pipeline stage"))
    if counts["mtp_layers"]:
        rows.append(
            ("multi-token prediction", f"{counts['mtp_parameters']:,}, not included in the parameters above")
        )
    if counts.get("encoder_layers"):
        held = f"{counts['encoder_parameters']:,}, in {counts['encoder_layers']} layers"
        rows.append(("encoder", f"{held}, for {counts['encoder_tokens']:,} tokens per sequence"))
    length = f"{counts['sequence_length']:,} tokens"
    rows += [
        (
            "training FLOPs per token",
            f"{count(counts['training_flops_per_token'])}: GEMMs, all s × s attention scores, s = {length}",
        ),
        ("", f"{count(counts['training_flops_per_token_causal'])}: GEMMs, causal half of the scores"),
        ("", f"{count(counts['training_flops_per_token_6n'])}: 6 × active parameters"),
        ("sizes from", counts["source"]),
    ]
    notes = counts.get("assumptions", [])
    rows += [("assumed" if number == 0 else "", note) for number, note in enumerate(notes)]
    out = Page()
    out.add(bold(counts["name"]))
    out.add(facts(rows))


def print_clusters(clusters: Sequence[Cluster]) -> None:
    """Link bandwidths go from the innermost to the outermost tier."""
    rows = [
        {
            "cluster": cluster.name,
            "device": cluster.device.name.split(" (")[0],
            "bfloat16": _peak(cluster, "bfloat16"),
            "memory": size(cluster.device.memory_bytes),
            "bandwidth": rate(cluster.device.memory_bytes_per_s),
            "links, GB/s": ", ".join(
                f"{_devices_of(tier)}: {tier.link.bytes_per_s / 1e9:g}" for tier in cluster.tiers
            ),
        }
        for cluster in clusters
    ]
    out = Page()
    out.add(TableLines.of(rows, left=2, spare=["bandwidth", "memory"]))
    out.add("", "bfloat16: dense peak. links: devices per domain: rate per device. ppsim clusters NAME: sources.")


def _devices_of(tier: Tier) -> str:
    usable = f"{tier.usable_devices} of " if tier.usable_devices else ""
    return f"{usable}{tier.num_devices or 'all'}"


def print_cluster(cluster: Cluster) -> None:
    device, gets = cluster.device, cluster.device.efficiency
    devices = "unlimited" if cluster.num_devices is None else str(cluster.num_devices)
    base = [("base", cluster.base)] if cluster.base else []
    out = Page()
    _add_section(out, cluster.name, cluster.title, [*base, ("source", cluster.source), ("devices", devices)])
    of_device = [
        ("dense peak", ", ".join(f"{name} {_peak(cluster, name)}" for name in device.peak_flops_per_s)),
        ("memory", f"{size(device.memory_bytes)} at {rate(device.memory_bytes_per_s)}"),
        ("cores", str(device.num_cores)),
        ("source", device.source),
    ]
    of_runs = [
        ("GEMMs", ", ".join(f"{name} {percent(share)}" for name, share in gets.matmul.items())),
        ("attention", f"{percent(gets.attention_forward)} forward, {percent(gets.attention_backward)} backward"),
        ("memory", f"{percent(gets.memory)}, optimizer {percent(gets.optimizer)}"),
        ("kernels", f"{seconds(gets.kernel_s)} GPU gap per kernel, {seconds(gets.host_s)} host time per launch"),
        ("source", gets.source),
    ]
    out.add("")
    _add_section(out, "device", device.name, of_device)
    out.add("")
    _add_section(out, "calibration", f"GPU type {device.efficiency_class}", of_runs)
    if constants := cluster.constants.named:
        out.add("")
        fitted_on = ", ".join(cluster.constants.fitted_on)
        _add_section(
            out, "constants", f"fitted on {fitted_on}" if fitted_on else "given in the file",
            [(name, _constant(name, constant)) for name, constant in constants.items()],
        )  # fmt: skip
    for tier in cluster.tiers:
        out.add("")
        _add_section(out, tier.name, f"{_devices_of(tier)} devices by {tier.link.name}", _link_facts(tier.link))


def _constant(name: str, constant: Constant) -> str:
    shown = seconds if name.endswith("_s") else "{:g}".format
    spread = "" if constant.sigma is None else f" ± {shown(constant.sigma)}"
    return f"{shown(constant.value)}{spread}" + (f"; {constant.source}" if constant.source else "")


def _add_section(out: Page, name: str, title: str, rows: Sequence[tuple[str, str]]) -> None:
    out.add(f"{bold(name)}   {title}")
    out.add(facts(rows))


def _link_facts(link: Link) -> list[tuple[str, str]]:
    gain = (
        f"; all-reduce {link.reduction_gain:g} × this rate (reduction in the switch)"
        if link.reduction_gain > 1
        else ""
    )
    return [
        ("line rate", f"{rate(link.bytes_per_s)} per device, one direction"),
        ("efficiency", f"{percent(link.efficiency)} of the line rate{gain}"),
        *([("copies", rate(link.copy_bytes_per_s))] if link.copy_bytes_per_s else []),
        ("latency", f"{seconds(link.launch_s)} per message, plus {seconds(link.step_s)} per step of a collective"),
        ("source", link.source),
    ]


def _peak(cluster: Cluster, dtype: str) -> str:
    peak = cluster.device.peak_flops_per_s.get(dtype)
    return "–" if peak is None else f"{count(peak)}FLOP/s"


def print_stage_times(profile: dict[str, Any]) -> None:
    """Print stage times as a + n·b (n layers), launch times of the host, and optimizer steps, if measured."""
    out = Page()
    parts = profile["measurements"]
    if lines := [row for part in parts if part.get("alone") for row in _stage_lines(part)]:
        out.add("\na stage of n layers takes a + n·b")
        out.add(TableLines(["", "pass", "a", "b"], lines, left=2))
    launches = [
        {"component": part["component"], "": describe_key(part["shape"]), **_medians(part["launch"])}
        for part in parts
        if part.get("launch")
    ]
    if launches:
        out.add("\nthe host takes to launch a pass")
        out.add(TableLines.of(launches))
    if steps := profile.get("optimizer"):
        out.add("\noptimizer step of one layer, of the embedding and of the head")
        out.add(TableLines.of([_optimizer_step(step) for step in steps]))


def _stage_lines(part: dict[str, Any]) -> Iterable[list[str]]:
    shape = describe_key(part["shape"])
    for letter, line in stage_lines(part).items():
        yield [shape, letter, *map(seconds, line)]
        shape = ""


def _medians(times: dict[str, Any]) -> dict[str, str]:
    return {letter: _median(times[name]) for letter, name in PASSES.items()}


def _median(time: dict[str, Any] | None) -> str:
    return "–" if time is None else seconds(time["median"])


def _optimizer_step(step: dict[str, Any]) -> dict[str, str]:
    cuts = "".join(f", {name} {step[name]}" for name in ("tp", "ep") if step[name] > 1)
    return {
        "optimizer": step["optimizer"],
        "component": step["component"],
        "": step["dtype"] + cuts,
        "step": _median(step["step_s"]),
        "gradient norm": _median(step["gradient_norm_s"]),
        "state": size(step["state_bytes"]),
    }


def print_measurements(profile: dict[str, Any]) -> None:
    """I and W are dashes if the backward pass cannot be split."""
    out = Page()
    by_shape: dict[str, list[dict[str, Any]]] = {}
    peaks: dict[str, tuple[float, str]] = {}
    for part in profile["measurements"]:
        by_shape.setdefault(describe_key(part["shape"]), []).append(part)
    for index, (shape, parts) in enumerate(by_shape.items()):
        if len(by_shape) > 1:
            out.add(f"\n{shape}" if index else shape)
        if peak := peak_of(profile, parts[0]["shape"]["dtype"]):
            peaks[parts[0]["shape"]["dtype"]] = peak
        rows = [
            _measurement(part) | ({"MFU F B I W, %": _in_percent(utilization(profile, part))} if peak else {})
            for part in parts
        ]
        out.add(TableLines.of(rows, spare=["kept for W", "(I+W)/B"]))
    for shape in profile["does_not_fit"]:
        out.add(f"\n{describe_key(shape)}: does not fit")
    for failure in profile["failed"]:
        out.add(f"\n{describe_key(failure['shape'])}: {failure['error']}")
    for dtype, (best, what) in peaks.items():
        out.add(f"\nMFU, {dtype}: model FLOPs (causal half of attention) relative to {count(best)}FLOP/s, {what}")


def _in_percent(mfu: dict[str, float | None]) -> str:
    return " ".join("–" if part is None else f"{100 * part:.0f}" for part in mfu.values())


def _measurement(part: dict[str, Any]) -> dict[str, str]:
    ratio = split_ratio(part)
    return {
        "component": part["component"],
        **_medians(part),
        "(I+W)/B": "–" if ratio is None else f"{ratio:.2f}",
        "activation": size(part["activation_bytes"]),
        "kept for W": size(part["activation_bytes_kept_for_weight"]),
    }
