"""Write docs/schedules.md, and a page and a picture of each schedule into docs/schedules/, from the catalogue.

A page has the output of `ppsim schedules NAME`.
"""

from pathlib import Path
from xml.sax.saxutils import quoteattr

import ppsim
from ppsim.base.files import write_whole
from ppsim.catalog.build import CATALOG, Entry
from ppsim.plot.palette import COLOURS, LIGHTER, mixed
from ppsim.schedule.table import Op
from ppsim.simulation.timeline import Timeline
from ppsim.trainers.write_schedule import runtime_facts

DOCS = Path(__file__).parents[1] / "docs"

OVERVIEW = """# Schedules

Written by `python scripts/make_schedule_docs.py` from the catalogue, as what `ppsim schedules NAME` prints is.
[Which schedule?](howto/which_schedule.md) says which to take.

| schedule | what it is | stages a rank | peak activations |
|---|---|---|---|
{rows}

## How to read the pages

p ranks, v stages a rank, m microbatches, k slices each; F, I, W seconds a rank and microbatch (all its stages of a
replica), FB of a fused pair, c a transfer. B = I + W. Activations are in microbatches of a whole rank.

The bubble is the idle time of the rank that idles longest, in a step of m·(F + B) + bubble where FB = F + B. By
span it is that of the longest rank from its own first start to its own last end, which counts where no rank's
optimizer waits for another ([glossary](glossary.md#bubble)).

The pictures: a row a rank, time to the right, the microbatch in each cell; F blue, B green, I light blue, W orange,
grey idle; every other stage of a rank lighter. p = 4, m = 6 (8 where a schedule needs as many), F = I = W = 1 for
a whole rank, transfers for nothing. Of replicas, each rank holds a whole stage of both. Slices are numbered on, two
to each of four microbatches.

"Runs on" is what `ppsim export` can write, tried on a table of 4 ranks and 8 microbatches; for JaxPP and others see
[export.md](export.md).
"""

_UNIT, _HEIGHT, _GAP = 26, 20, 3
"""Sizes of a picture in pixels: width of a rank's whole forward pass, height of a row, and gap between rows."""


def main() -> None:
    """Write all pages and pictures, and remove pages of schedules that no longer exist."""
    for old in (DOCS / "schedules").glob("*"):
        old.unlink()
    for name, text in pages().items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        write_whole(DOCS / name, text)
    print(f"wrote {len(CATALOG)} schedules")


def pages() -> dict[str, str]:
    """Return the text of every page and picture by its name in docs/."""
    found = {"schedules.md": OVERVIEW.format(rows="\n".join(map(_row, CATALOG.values())))}
    for entry in CATALOG.values():
        found[f"schedules/{entry.name}.md"] = page(entry)
        found[f"schedules/{entry.name}.svg"] = picture(entry)
    return found


def _row(entry: Entry) -> str:
    facts = dict(entry.facts)
    stages, peak = facts["stages a rank"], facts["peak activations"].partition("   ")[0]
    return f"| [{entry.name}](schedules/{entry.name}.md) | {entry.title} | {stages} | {_plain(peak)} |"


def _plain(text: str) -> str:
    """Escape stars, which Markdown uses for emphasis."""
    return text.replace("*", "\\*")


def page(entry: Entry) -> str:
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


def picture(entry: Entry) -> str:
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
    fill = mixed(COLOURS[op], "#FFFFFF", LIGHTER[op]) if is_lighter else COLOURS[op]
    ink = "#FFFFFF" if op is Op.F and not is_lighter else "#000000"
    return (
        f'<rect x="{left:g}" y="{top}" width="{right - left:g}" height="{_HEIGHT}" fill="{fill}" stroke="#FFFFFF"/>'
        f'<text x="{(left + right) / 2:g}" y="{top + 14}" fill="{ink}">{microbatch}</text>'
    )


def _top(rank: int) -> int:
    return rank * (_HEIGHT + _GAP)


if __name__ == "__main__":
    main()
