"""Times of expert-parallel messages in a projected step, for figures."""

from collections.abc import Iterator
from functools import cache

import numpy as np

from ppsim.costs.pair_overlap import LayerTimes, PairMessage, pair_messages
from ppsim.projection.projection import Projection
from ppsim.schedule.pairs import fused_pairs
from ppsim.schedule.table import NONE, Op
from ppsim.simulation.step import StepActivity

MOST_SHOWN = 30_000
"""Number of messages above which a figure shows none: they would be too short to see."""


def expert_messages(projection: Projection) -> list[StepActivity]:
    """Return the expert-parallel messages if actions run in pairs (`--overlap-ep ORDER`), else none.

    Positions follow the costs, stretched if the action takes longer.
    """
    assembled, timeline = projection.stage_cost_set, projection.timeline
    table, layers = timeline.schedule, assembled.layer_times
    if not layers:
        return []
    assert projection.plan.job is not None
    order, slowdown = projection.plan.job.execution.ep_order, projection.plan.job.place.dispatch_slowdown
    assert order is not None
    costs = projection.costs.with_equal_microbatches().resolved_for(table)

    @cache
    def messages(forward: int, backward: int, op: Op) -> tuple[list[PairMessage], float]:
        one, other = (layers[table.model_stage[stage]] if stage != NONE else [] for stage in (forward, backward))
        begin_s = 0.0
        if forward != NONE and table.model_stage[forward] == 0:
            begin_s += float(costs.forward_s[forward]) - sum(layer.forward_s for layer in one)
        if op == Op.I:
            other = [_without_weights(layer) for layer in other]
        if backward != NONE and table.model_stage[backward] == table.num_model_stages - 1:
            whole_s = costs.backward_input_s if op == Op.I else costs.backward_s
            begin_s += float(whole_s[backward]) - sum(layer.backward_s for layer in other)
        return pair_messages(one, other, order, slowdown=slowdown), max(begin_s, 0.0)

    def passes() -> Iterator[tuple[list[int], int, int, Op, float]]:
        forward, backward = fused_pairs(table)
        for one, other in zip(forward.tolist(), backward.tolist(), strict=True):
            stages = int(table.stage[one]), int(table.stage[other])
            assert costs.fused_s is not None
            yield [one, other], *stages, Op.B, float(costs.fused_s[stages])
        paired = np.zeros(len(table), dtype=bool)
        paired[forward] = paired[backward] = True
        seconds_of = {Op.F: costs.forward_s, Op.B: costs.backward_s, Op.I: costs.backward_input_s}
        for entry in np.flatnonzero(~paired & (table.op != Op.W)).tolist():
            stage, op = int(table.stage[entry]), Op(table.op[entry])
            stages = (stage, NONE) if op == Op.F else (NONE, stage)
            yield [entry], *stages, op, float(seconds_of[op][stage])

    pieces: list[StepActivity] = []
    for entries, forward, backward, op, cost_s in passes():
        found, begin_s = messages(forward, backward, op)
        if len(pieces) + len(found) > MOST_SHOWN:
            return []
        rank, start = int(table.rank[entries[0]]), float(timeline.start[entries].min())
        stretched = (float(timeline.end[entries].max()) - start) / cost_s if cost_s else 0.0
        for one in found:
            stage = forward if one.operation.endswith("F") else backward
            begin, end = (start + stretched * (begin_s + one_s) for one_s in (one.start_s, one.end_s))
            pieces.append(
                StepActivity(rank, "hidden" if one.next_to else "exposed", stage, begin, end, _told(one, stage))
            )
    return pieces


def _without_weights(layer: LayerTimes) -> LayerTimes:
    before, experts = (*layer.before[:2], 0.0), (*layer.experts[:2], 0.0)
    return LayerTimes(before, experts, layer.exchange_s, layer.launches, layer.waits)


def _told(one: PairMessage, stage: int) -> str:
    where = f"{one.operation}, layer {one.layer} of stage {stage}"
    return f"{where}, next to {', '.join(one.next_to)}" if one.next_to else where
