"""Random shapes and costs, within what each schedule allows."""

from hypothesis import strategies as st

from ppsim import StageCosts, build
from ppsim.schedule.catalog import CATALOG

NAMES = sorted(CATALOG)


@st.composite
def tables(draw, names=NAMES, max_ranks=6, max_microbatches=14):
    entry = CATALOG[draw(st.sampled_from(names))]
    least, most = entry.stages_per_rank
    pp = draw(st.integers(1, max_ranks))
    fewest = round(entry.least_microbatches(p=pp))
    return build(
        entry.name,
        pp=pp,
        vpp=draw(st.integers(least, most or 4)),
        microbatches=draw(st.integers(fewest, max(max_microbatches, fewest + 2))),
    )


seconds = st.floats(0.0, 10.0, allow_nan=False).map(lambda x: round(x, 3))


@st.composite
def costs_of(draw, table, **fixed):
    def per_stage(values=seconds):
        return draw(st.lists(values, min_size=table.num_stages, max_size=table.num_stages))

    activation = per_stage(st.integers(1, 1000).map(float))
    drawn = {
        "forward_s": per_stage(seconds.map(lambda x: x + 0.01)),
        "backward_input_s": per_stage(),
        "backward_weight_s": per_stage(),
        "backward_s": per_stage() if draw(st.booleans()) else None,
        "activation_bytes": activation,
        "activation_bytes_kept_for_weight": [kept // 2 for kept in activation] if draw(st.booleans()) else None,
        "transfer_s": per_stage(st.sampled_from([0.0, 0.1, 0.5, 2.0])),
        "action_overhead_s": draw(st.sampled_from([0.0, 0.05])),
        "hop_overhead_s": draw(st.sampled_from([0.0, 0.03])),
    }
    return StageCosts(**(drawn | fixed))


@st.composite
def tables_and_costs(draw, **fixed):
    table = draw(tables())
    return table, draw(costs_of(table, **fixed))
