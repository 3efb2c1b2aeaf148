"""Compilation of all kernels in advance, for container images and cluster workers."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.base.numba_jit import cache_folder, compilations, every_kernel_compiled
from ppsim.catalog.auto import optimise
from ppsim.catalog.build import CATALOG, build, find
from ppsim.catalog.entry import ScheduleEntry
from ppsim.schedule.check import check
from ppsim.schedule.graph import build_graph
from ppsim.simulation.engine import blockers_of
from ppsim.simulation.simulate import simulate
from ppsim.simulation.stage_costs import StageCosts

_SHAPES = ((2, 4), (4, 8))  # (ranks, microbatches); every schedule supports one of these
_LONG = (4, 33)
_ROUNDS = 4  # rounds of a search, enough to use each of its moves


def warm_up(
    names: Sequence[str] = (),
    *,
    placements: Sequence[str] = ("v", "loop"),
    say: Callable[[str], None] = lambda line: None,
) -> int:
    """Compile the kernels that numba's cache lacks, all or for `names` (schedules); return their number.

    Small schedules are built, checked, simulated and searched, because numba compiles for the types of actual
    calls. Two processes can share the work by `placements`.
    """
    wanted = {find(name).name for name in names}
    begun = number = compilations().number
    for name, placement, work in _work():
        if placement not in placements or (wanted and name not in wanted):
            continue
        began = time.monotonic()
        with every_kernel_compiled():
            work()
        if now := compilations().number - number:
            say(f"{name}: {now} kernels compiled in {time.monotonic() - began:.1f} s")
            number += now
    compiled = number - begun
    result = f"{compiled} kernels compiled" if compiled else "all kernels were compiled before"
    say(f"{result}; cached in {cache_folder()}")
    return compiled


def _work() -> Iterator[tuple[str, str, Callable[[], object]]]:
    """The longest piece comes first: it has the fewest kernels in common with the others."""
    costs = StageCosts(
        forward_s=1.0, backward_input_s=1.25, backward_weight_s=0.75, transfer_s=0.5, activation_bytes=1
    )
    pp, microbatches = _LONG  # a schedule far from its bound, whose steady state is searched
    yield "v-min", "v", partial(build, "v-min", pp=pp, microbatches=microbatches, costs=costs)
    for name, entry in CATALOG.items():
        given = costs if entry.takes("costs") else costs.replace(channel="edge")
        yield name, entry.placement, partial(_tried, entry, given)
    for placement, vpp in (("loop", 1), ("loop", 2), ("v", 2)):
        uneven = costs.replace(forward_s=[1.0, 2.0] * vpp)
        yield f"search, {placement}, {vpp} per rank", placement, partial(
            optimise, pp=2, vpp=vpp, microbatches=4, costs=uneven, placement=placement,
            memory_limit_bytes=3.0 * vpp, max_rounds=_ROUNDS, time_limit_s=float("inf"),
        )  # fmt: skip


def _tried(entry: ScheduleEntry, costs: StageCosts) -> None:
    vpp = entry.stages_per_rank[0]
    for pp, microbatches in _SHAPES:
        if entry.why_not(pp=pp, vpp=vpp, microbatches=microbatches) is None:
            table = build(
                entry, pp=pp, vpp=vpp, microbatches=microbatches, costs=costs if entry.takes("costs") else None
            )
            check(table)
            simulate(table, costs)
            graph = build_graph(table, channel=costs.channel)
            blockers_of(graph, np.zeros(graph.num_nodes))
            return
    raise ConfigError(f"{entry.name} takes none of the shapes that are warmed up")
