"""Published tables beside our own numbers: bubble rates of the zero-bubble paper, runs of Primus' simulator.

python benchmarks/published_tables.py
"""

import csv
from pathlib import Path

import ppsim
from ppsim.schedule.zero_bubble_auto import zb_auto, zb_heuristic

FOLDER = Path(__file__).parent / "published"
PRIMUS_NAMES = {"1f1b": "1f1b", "1f1b-interleaved": "interleaved-1f1b", "zero-bubble": "zb-h1"}


def read(name: str) -> list[dict[str, str]]:
    lines = (FOLDER / name).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def paper() -> None:
    print("Bubble rate, published (Qi et al. 2024, Table 5) / ours, from the costs of its Table 9:\n")
    print("| model | p | m | 1F1B | ZB-H1 | ZB-H2 (span) | interleaved, printed / strict / ours |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for row in read("zb_paper.csv"):
        p, m = int(row["pp"]), int(row["microbatches"])

        def bubble(name: str, vpp: int = 1, row: dict[str, str] = row, p: int = p, m: int = m) -> ppsim.Timeline:
            forward, backward_input, backward_weight, transfer = (
                float(row[f"{key}_ms"]) / 1e3
                for key in ("forward", "backward_input", "backward_weight", "transfer")
            )
            costs = ppsim.StageCosts(
                forward_s=forward / vpp, backward_input_s=backward_input / vpp,
                backward_weight_s=backward_weight / vpp, transfer_s=transfer,
            )  # fmt: skip
            return ppsim.simulate(ppsim.build(name, pp=p, vpp=vpp, microbatches=m), costs)

        interleaved = bubble("interleaved-1f1b", int(row["interleaved_vpp"])).bubble_ratio
        print(
            f"| {row['model']} | {p} | {m} "
            f"| {row['bubble_1f1b']} / {bubble('1f1b').bubble_ratio:.4f} "
            f"| {row['bubble_zb_h1']} / {bubble('zb-h1').bubble_ratio:.4f} "
            f"| {row['bubble_zb_h2']} / {bubble('zb-h2').span_bubble_ratio:.4f} "
            f"| {row['bubble_interleaved_printed']} / {row['bubble_interleaved_strict']} / {interleaved:.4f} |"
        )


def capped() -> None:
    print("\nZB-1p and ZB-2p, by span: published / the published heuristic as written here / ppsim's zb_auto:\n")
    print("| model | p | m | ZB-1p | ZB-2p |")
    print("|---|--:|--:|--:|--:|")
    costs_of = {(row["model"], row["microbatches"]): row for row in read("zb_paper.csv")}
    for row in read("zb_paper_auto.csv"):
        profile = costs_of[row["model"], row["microbatches"]]
        p, hidden, heads = int(profile["pp"]), int(row["hidden"]), int(row["heads"])
        seconds = {
            f"{name}_s": float(profile[f"{name}_ms"]) / 1e3
            for name in ("forward", "backward_input", "backward_weight", "transfer")
        }
        shape = {"num_ranks": p, "num_microbatches": int(row["microbatches"])}
        activation, kept = 34 * hidden + 5 * heads * 1024, 32 * hidden
        memory = {"activation": activation, "activation_kept_for_weight": kept}
        cells = []
        for caps in (1, 2):
            cap = caps * p * activation
            tables = (
                zb_heuristic(**shape, **seconds, **memory, cap=cap),
                zb_auto(**shape, **seconds, **memory, cap=cap, criterion="span"),
            )
            ours = [ppsim.simulate(table, ppsim.StageCosts(**seconds)).span_bubble_ratio for table in tables]
            cells.append(f"{row[f'bubble_zb_{caps}p']} / {ours[0]:.4f} / {ours[1]:.4f}")
        print(f"| {row['model']} | {p} | {row['microbatches']} | {' | '.join(cells)} |")


def primus() -> None:
    print("\nPrimus' own simulator, p ≤ 8, its letters and memory convention translated (ignores communication):\n")
    print("| its algorithm | ours | rows | largest relative difference of step time | of peak activations |")
    print("|---|---|--:|--:|--:|")
    for theirs, ours in PRIMUS_NAMES.items():
        step, peak = [], []
        for row in (row for row in read("primus_grid.csv") if row["algorithm"] == theirs):
            v = int(row["vpp"])
            costs = ppsim.StageCosts(
                forward_s=float(row["f"]) / v, backward_input_s=float(row["b"]) / v,
                backward_weight_s=float(row["w"]) / v, activation_bytes=1 / v,
            )  # fmt: skip
            table = ppsim.build(ours, pp=int(row["pp"]), vpp=v, microbatches=int(row["microbatches"]))
            timeline = ppsim.simulate(table, costs)
            step.append(abs(timeline.step_time_s / float(row["step_time"]) - 1))
            peak.append(abs(timeline.memory.peak_activation_bytes.max() / float(row["max_memory_fraction"]) - 1))
        print(f"| {theirs} | {ours} | {len(step)} | {max(step):.1e} | {max(peak):.1e} |")


if __name__ == "__main__":
    paper()
    capped()
    primus()
