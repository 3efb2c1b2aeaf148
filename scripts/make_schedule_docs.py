"""Write docs/schedules.md from the catalogue: what `ppsim schedules NAME` prints, and a small picture of each."""

from pathlib import Path

import ppsim
from ppsim.catalog.build import CATALOG, Entry
from ppsim.exporting.targets import runtime_facts

HEAD = """# Schedules

Generated from the catalogue by `python scripts/make_schedule_docs.py`; `ppsim schedules NAME` prints the same.

p ranks, v stages a rank, m microbatches, k slices each; F, I, W seconds a rank and microbatch (all its stages of a
replica), FB of a fused pair, c a transfer. B = I + W. The bubble is the idle time of the rank that idles longest,
in a step of m·(F + B) + bubble where FB = F + B; by span, that of the longest rank from its own first start to its
own last end, which is what counts where no rank's optimizer waits for another.

The pictures: one row a rank, one column a unit of time, p = 4, m = 6 (8 where a schedule needs as many),
F = I = W = 1 for a whole rank (a chunk of two takes half, so that those pictures are twice as wide).
`0`–`7` forward of that microbatch, `a`–`h` its backward (or I), `▒` W, `·` idle; a backward that is not split is
two units long. Of replicas, each rank holds a whole stage of both. Slices are numbered on, two to each of four
microbatches.

"Runs on" is what `ppsim export` can write, tried on a table of 4 ranks and 8 microbatches; for JaxPP and others see
[export.md](export.md).
"""


def main() -> None:
    """Write the page."""
    path = Path(__file__).parents[1] / "docs" / "schedules.md"
    path.write_text(page(), encoding="utf-8")
    print(f"wrote {path.name}")


def page() -> str:
    """Return the page's text."""
    return HEAD + "".join(section(entry) for entry in CATALOG.values())


def section(entry: Entry) -> str:
    """Return what the catalogue knows of one schedule, and its picture."""
    return "\n".join(
        [
            f"\n## {entry.name}\n",
            f"{entry.title}.\n",
            *(f"- {name}: {text}".replace("*", "\\*") for name, text in [*entry.facts, *runtime_facts(entry)]),
            "\n<!-- not output -->\n```text",
            *picture(entry),
            "```\n",
        ]
    )


def picture(entry: Entry) -> list[str]:
    """Return the schedule as one line of characters a rank."""
    fewest = round(entry.least_microbatches(p=4))
    table = ppsim.build(
        entry.name, pp=4, vpp=entry.stages_per_rank[0],
        microbatches=max(6, fewest) if entry.num_slices == 1 else 4,
        num_slices=None if entry.num_slices == 1 else 2,
    )  # fmt: skip
    one = table.num_replicas / table.vpp
    timeline = ppsim.simulate(table, ppsim.StageCosts(forward_s=one, backward_input_s=one, backward_weight_s=one))
    one /= table.num_slices
    width = round(timeline.step_time_s / one)
    rows = [["·"] * width for _ in range(4)]
    for node in range(timeline.num_actions):
        op, _, microbatch = table[node]
        letter = {"F": str(microbatch), "W": "▒"}.get(op.name, "abcdefgh"[microbatch])
        begin, end = (round(moment / one) for moment in (timeline.start[node], timeline.end[node]))
        rows[int(table.rank[node])][begin:end] = [letter] * (end - begin)
    return ["".join(row) for row in rows]


if __name__ == "__main__":
    main()
