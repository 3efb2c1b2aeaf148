"""Random shapes and costs, within what each schedule allows."""

from hypothesis import strategies as st

from ppsim import StageCosts, build
from ppsim.catalog.build import CATALOG

NAMES = sorted(CATALOG)


@st.composite
def shapes(draw, entry, max_ranks=6, max_microbatches=14, most_stages=4):
    """pp, vpp and microbatches that a schedule takes."""
    least, most = entry.stages_per_rank
    pp = draw(st.integers(1, max_ranks // entry.ranks_by)) * entry.ranks_by
    vpp = draw(st.integers(least, most or most_stages).filter(lambda v: v % entry.stages_by == 0))
    fewest = round(entry.least_microbatches(p=pp))
    by = entry.microbatches_by
    num_groups = draw(st.integers(-(-fewest // by), max(max_microbatches, fewest + 2) // by))
    return {"pp": pp, "vpp": vpp, "microbatches": num_groups * by}


@st.composite
def tables(draw, names=NAMES, max_ranks=6, max_microbatches=14):
    entry = CATALOG[draw(st.sampled_from(names))]
    shape = draw(shapes(entry, max_ranks, max_microbatches))
    return build(entry.name, **shape, num_slices=draw(st.integers(1, 5)) if entry.num_slices > 1 else None)


seconds = st.floats(0.0, 10.0, allow_nan=False).map(lambda x: round(x, 3))


@st.composite
def costs_of(draw, table, **fixed):
    def per_stage(values=seconds):
        num_entries = draw(st.sampled_from([table.num_stages, table.num_model_stages]))
        return draw(st.lists(values, min_size=num_entries, max_size=num_entries))

    def shares():
        if not draw(st.booleans()):
            return None
        parts = draw(st.lists(st.integers(1, 9), min_size=table.num_slices, max_size=table.num_slices))
        return [part / sum(parts) for part in parts]

    def by_microbatch(entries):
        """One entry a stage, or a row of one per microbatch."""
        if is_alike or not draw(st.booleans()):
            return entries
        factors = draw(st.lists(st.integers(1, 5), min_size=m, max_size=m))
        return [[entry * factor for factor in factors] for entry in entries]

    m, is_alike = table.num_microbatches, fixed.pop("alike", False) or draw(st.booleans())
    activation = per_stage(st.integers(1, 1000).map(float))
    factors = None if is_alike else draw(st.lists(st.floats(0.25, 4.0), min_size=m, max_size=m))
    drawn = {
        "forward_s": by_microbatch(per_stage(seconds.map(lambda x: x + 0.01))),
        "backward_input_s": by_microbatch(per_stage()),
        "backward_weight_s": per_stage(),
        "backward_s": per_stage() if draw(st.booleans()) else None,
        "fused_s": per_stage() if draw(st.booleans()) else None,
        "activation_bytes": activation,
        "activation_bytes_kept_for_weight": [kept // 2 for kept in activation] if draw(st.booleans()) else None,
        "transfer_s": by_microbatch(per_stage(st.sampled_from([0.0, 0.1, 0.5, 2.0]))),
        "action_overhead_s": draw(st.sampled_from([0.0, 0.05])),
        "hop_overhead_s": draw(st.sampled_from([0.0, 0.03])),
        "microbatch_factors": factors,
        "slice_time_shares": shares(),
        "slice_token_shares": shares(),
    }
    return StageCosts(**(drawn | fixed))


@st.composite
def tables_and_costs(draw, **fixed):
    table = draw(tables())
    return table, draw(costs_of(table, **fixed))
