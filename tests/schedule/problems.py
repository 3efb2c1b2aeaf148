"""Random search problems: placements, costs and caps, small enough to be solved."""

import numpy as np
from hypothesis import strategies as st

from ppsim.schedule.placement import loop, v_shape
from ppsim.simulation.bounds.problem import Problem

whole = st.integers(1, 9).map(float)
fractional = st.floats(0.0, 3.0, allow_nan=False)


@st.composite
def problems(draw, *, placements=None, max_microbatches=5, may_be_full=False, seconds=None):
    """A problem whose stages are alike or not, split or unit release, with or without a cap."""
    if placements is None:
        placements = [loop(p, p) for p in (1, 2, 3)] + [loop(2, 4), v_shape(1, 2), v_shape(2, 4), v_shape(3, 6)]
    placement = draw(st.sampled_from(placements))
    num_stages, num_ranks = len(placement), max(placement) + 1
    seconds = draw(st.sampled_from([whole, fractional])) if seconds is None else seconds
    alike = draw(st.booleans())

    def per_stage(values):
        return [draw(values)] * num_stages if alike else [draw(values) for _ in range(num_stages)]

    activation = per_stage(st.integers(1, 4).map(float))
    kept = [draw(st.integers(0, int(size))) for size in activation] if draw(st.booleans()) else None
    needed = np.bincount(placement, weights=activation)
    cap = (
        np.inf
        if draw(st.booleans())
        else needed * draw(st.sampled_from([1.0, 1.5, 2.0, num_ranks, 2.0 * num_ranks]))
    )
    return Problem.of(
        stage_to_rank=placement,
        num_microbatches=draw(st.integers(1, max_microbatches)),
        forward_s=per_stage(seconds),
        backward_input_s=per_stage(seconds),
        backward_weight_s=per_stage(seconds),
        backward_s=per_stage(seconds.map(lambda x: 1.5 * x)) if may_be_full else None,
        transfer_s=draw(st.sampled_from([0.0, 0.5, 3.0])),
        activation=activation,
        activation_kept_for_weight=kept,
        cap=np.maximum(cap, needed),
        action_overhead_s=draw(st.sampled_from([0.0, 0.25])),
    )
