"""Write docs/schedules.md, and a page and a picture of each schedule into docs/schedules/, from the catalogue.

A page has the output of `ppsim schedules NAME`.
"""

from pathlib import Path
from xml.sax.saxutils import quoteattr

import ppsim
from ppsim.base.files import write_atomically
from ppsim.catalog.build import CATALOG, ScheduleEntry
from ppsim.plot.palette import COLOURS, LIGHTER, mix_colours
from ppsim.schedule.table import Op
from ppsim.simulation.timeline import Timeline
from ppsim.trainers.write_schedule import runtime_facts

DOCS = Path(__file__).parents[1] / "docs"

OVERVIEW = """# Schedules

This page lists every schedule that ppsim can build, with its stages per rank and its peak activation memory. Each
name links to a page with a picture, the bubble formula and the runtimes that can run the schedule. [Which
schedule?](howto/schedule_and_memory.md) helps you choose. `ppsim schedules NAME` prints the same facts.

| schedule | description | stages per rank | peak activations |
|---|---|---|---|
{rows}

## How to read the pages

Symbols:

- p ranks, v stages per rank, m microbatches, k slices per microbatch.
- F, I, W: seconds per rank and microbatch for forward, input gradient (dgrad) and weight gradient (wgrad), summed
  over the rank's stages of one model replica. B = I + W.
- FB: time of a fused forward and backward. c: time of a P2P transfer.
- Peak activations: in microbatches, each counted over all stages of a rank.

The bubble is the idle time of the rank that idles longest. The step time is m·(F + B) + bubble, if FB = F + B.
The bubble by span counts from a rank's own first start to its own last end, on the rank with the longest span. It
applies if the optimizer does not synchronise pipeline ranks ([glossary](glossary.md#bubble)).

Pictures: one row per rank, time from left to right, the microbatch number in each cell. F is blue, B green, I
light blue, W orange, idle time grey; every second stage of a rank is lighter. p = 4, m = 6 (8 if the schedule
needs it), F = I = W = 1 per rank (per stage with two model replicas), c = 0. Slices are numbered consecutively,
two for each of four microbatches.

"Runs on" lists the targets of `ppsim export` that accept a table of 4 ranks and 8 microbatches. For JaxPP and
other runtimes, see [export.md](export.md).
"""

_UNIT, _HEIGHT, _GAP = 26, 20, 3
"""Sizes of a picture in pixels: width of a rank's whole forward pass, height of a row, and gap between rows."""


def main() -> None:
    """Write all pages and pictures, and remove pages of schedules that no longer exist."""
    for old in (DOCS / "schedules").glob("*"):
        old.unlink()
    for name, text in pages().items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        write_atomically(DOCS / name, text)
    print(f"wrote {len(CATALOG)} schedules")


def pages() -> dict[str, str]:
    """Return the text of every page and picture by its name in docs/."""
    found = {"schedules.md": OVERVIEW.format(rows="\n".join(map(_row, CATALOG.values())))}
    for entry in CATALOG.values():
        found[f"schedules/{entry.name}.md"] = page(entry)
        found[f"schedules/{entry.name}.svg"] = picture(entry)
    return found


def _row(entry: ScheduleEntry) -> str:
    facts = dict(entry.facts)
    stages, peak = facts["stages per rank"], facts["peak activations"].partition("   ")[0]
    title = entry.title.replace("stages per rank", "stages per rank")
    return f"| [{entry.name}](schedules/{entry.name}.md) | {title} | {stages} | {_plain(peak)} |"


def _plain(text: str) -> str:
    """Escape stars, which Markdown uses for emphasis."""
    return text.replace("*", "\\*")


def page(entry: ScheduleEntry) -> str:
    """Return the page of one schedule, from the catalogue."""
    facts = [*entry.facts, *runtime_facts(entry)]
    return "\n".join(
        [
            f"# {entry.name}\n",
            f"{entry.title}.\n",
            f"![{entry.name} on 4 ranks]({entry.name}.svg)\n",
            *(f"- {name}: {_plain(text)}" for name, text in facts),
            "\nLetters and pictures: [how to read the pages](../schedules.md#how-to-read-the-pages).\n",
        ]
    )


def picture(entry: ScheduleEntry) -> str:
    """Return the schedule as an SVG: a row per rank, a cell per action."""
    fewest = round(entry.least_microbatches(p=4))
    table = ppsim.build(
        entry.name, pp=4, vpp=entry.stages_per_rank[0],
        microbatches=max(6, fewest) if entry.num_slices == 1 else 4,
        num_slices=None if entry.num_slices == 1 else 2,
    )  # fmt: skip
    one = table.num_replicas / table.vpp
    timeline = ppsim.simulate(table, ppsim.StageCosts(forward_s=one, backward_input_s=one, backward_weight_s=one))
    width, height = round(timeline.step_time_s * _UNIT), 4 * (_HEIGHT + _GAP) - _GAP
    idle = [
        f'<rect y="{_top(rank)}" width="{width}" height="{_HEIGHT}" fill="{COLOURS[Op.IDLE]}"/>'
        for rank in range(4)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img"',
            f' aria-label={quoteattr(entry.title)} font-family="sans-serif" font-size="11" text-anchor="middle">',
            *idle,
            *(_cell(timeline, node) for node in range(timeline.num_actions)),
            "</svg>\n",
        ]
    )


def _cell(timeline: Timeline, node: int) -> str:
    table = timeline.schedule
    op, stage, microbatch = table[node]
    left, right = (round(moment * _UNIT, 1) for moment in (timeline.start[node], timeline.end[node]))
    top = _top(int(table.rank[node]))
    is_lighter = stage // table.num_ranks % 2 == 1
    fill = mix_colours(COLOURS[op], "#FFFFFF", LIGHTER[op]) if is_lighter else COLOURS[op]
    ink = "#FFFFFF" if op is Op.F and not is_lighter else "#000000"
    return (
        f'<rect x="{left:g}" y="{top}" width="{right - left:g}" height="{_HEIGHT}" fill="{fill}" stroke="#FFFFFF"/>'
        f'<text x="{(left + right) / 2:g}" y="{top + 14}" fill="{ink}">{microbatch}</text>'
    )


def _top(rank: int) -> int:
    return rank * (_HEIGHT + _GAP)


if __name__ == "__main__":
    main()
