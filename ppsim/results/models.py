"""Terminal output for models."""

from collections.abc import Mapping
from typing import Any

from ppsim.base.units import count
from ppsim.model.architecture import Model
from ppsim.results.text_layout import Page, TableLines, bold, facts


def print_models(found: Mapping[str, Model], *, with_sources: bool = False) -> None:
    out = Page()
    rows = [
        [
            name,
            f"{model.parameters:,}",
            count(model.active_parameters),
            str(len(model.layers)),
            str(model.hidden_size),
        ]
        for name, model in found.items()
    ]
    out.add(TableLines(["model", "parameters", "active", "layers", "hidden"], rows))
    if with_sources:
        out.add("\nsources of the sizes\n")
        out.add(facts((name, model.source) for name, model in found.items()))
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
