"""All schedules of the catalogue, one `ScheduleEntry` each, in the order of `ppsim schedules`."""

from functools import partial

from ppsim.catalog.cost_optimised import v_flex, v_half, v_min, zb_1p, zb_2p, zb_auto, zbv
from ppsim.catalog.entry import Formula, ScheduleEntry
from ppsim.catalog.published.controllable_memory import one_f_one_b_v, v_half_fixed, v_min_fixed, zbv_fixed
from ppsim.catalog.published.dual_pipe import dual_pipe, dual_pipe_v
from ppsim.catalog.published.greedy import chimera, hanayo
from ppsim.catalog.published.interleaved import (
    combined_one_f_one_b,
    gis,
    gis_h,
    interleaved_one_f_one_b,
    interleaved_zero_bubble,
    looped_bfs,
)
from ppsim.catalog.published.one_f_one_b import (
    eager_one_f_one_b,
    gpipe,
    one_f_one_b,
    seq_one_f_one_b,
    zb_h1,
    zb_h2,
)

_one_stage = partial(ScheduleEntry, placement="loop", stages_per_rank=(1, 1), messages=Formula("p - 1"))
_looped = partial(ScheduleEntry, placement="loop", stages_per_rank=(2, None), messages=Formula("p * v - 1"))
_in_a_v = partial(
    ScheduleEntry, placement="v", stages_per_rank=(2, 2), splits_backward=True, messages=Formula("2 * (p - 1)")
)
_fitted_zero_bubble = partial(
    _one_stage,
    splits_backward=True,
    source="Qi et al. 2024 (arXiv 2401.10241), §3.1; extended by ppsim: per-stage costs, more candidates",
)
_two_chains = partial(
    ScheduleEntry,
    placement="v",
    stages_per_rank=(2, 2),
    messages=Formula("p - 1"),
    microbatches_by=2,
    ranks_by=2,
    num_replicas=2,
    not_in_torch="two replicas of the model in opposite directions; torch holds one chain of stages",
)

ENTRIES: tuple[ScheduleEntry, ...] = (
    _one_stage(
        name="gpipe",
        title="GPipe: all forwards, then all backwards",
        build=gpipe,
        splits_backward=False,
        bubble=Formula("(p - 1) * (F + I + W) + 2 * (p - 1) * c"),
        peak_activations=Formula("m"),
        source="Huang et al. 2019 (arXiv 1811.06965), §2.3",
    ),
    _one_stage(
        name="1f1b",
        title="1F1B: one forward, one backward (PipeDream-Flush, DAPPLE)",
        build=one_f_one_b,
        splits_backward=False,
        bubble=Formula(
            "(p - 1) * (F + I + W) + (2 * (p - 1) * m / p + 2 * (p - 2)) * c",
            where="c == 0 or (p >= 2 and m % p == 0)",
        ),
        peak_activations=Formula("min(p, m)"),
        source="Narayanan et al. 2021 (arXiv 2006.09503), §3.2; Fan et al. 2021 (arXiv 2007.01045)",
        also=("pipedream-flush", "dapple"),
    ),
    _one_stage(
        name="eager-1f1b",
        title="Eager 1F1B: forwards run ahead by a round trip, so that transfers are hidden",
        build=eager_one_f_one_b,
        splits_backward=False,
        bubble=Formula("(p - 1) * (F + I + W) + 2 * (p - 1) * c", where="2 * c <= F + I + W"),
        peak_activations=Formula("min(2 * p - 1, m)"),
        source="Zhuang et al. 2023",
    ),
    _looped(
        name="looped-bfs",
        title="Looped BFS: v stages per rank; all microbatches pass one chunk before the next chunk starts",
        build=looped_bfs,
        splits_backward=False,
        bubble=Formula("(p - 1) * (F + I + W) / v + 2 * (p - 1) * c", where="(m - p) * min(F, I + W) / v >= p * c"),
        peak_activations=Formula("m"),
        source="Lamy-Poirier, MLSys 2023; order of the backwards as in torch",
        also=("breadth-first",),
    ),
    _looped(
        name="interleaved-1f1b",
        title="Interleaved 1F1B: v stages per rank, microbatches in groups",
        build=interleaved_one_f_one_b,
        splits_backward=False,
        bubble=Formula(
            "(p - 1) * (F + I + W) / v + 2 * (p * v - 1) * c",
            where="m % p == 0 and (c == 0 or c <= min(F, I + W) / v)",
        ),
        peak_activations=Formula("p + (p - 1) / v if m > p else m", where="m % p == 0"),
        source="Narayanan et al. 2021 (arXiv 2104.04473), §2.2; group size as in Megatron-LM",
        constraint=(
            "any number of microbatches; --group-size N: p ≤ N ≤ m, the last group whole or at least p "
            "(default: the smallest such N, which is p where p divides m)"
        ),
        also=("interleaved",),
    ),
    _looped(
        name="combined-1f1b",
        title="Combined 1F1B: interleaved 1F1B with pairs of a forward and a backward, for expert parallelism",
        stages_per_rank=(1, None),
        build=combined_one_f_one_b,
        splits_backward=False,
        bubble=Formula(
            "(p - 1) * (F + I + W) / v + (2 * (p * v - 1) + (v - 1) * (m - p)) * c",
            where="m % p == 0 and (c == 0 or c <= min(F, I + W) / v)",
        ),
        peak_activations=Formula("p + p / v if m > p else m", where="m % p == 0"),
        source="Megatron-Core, core/pipeline_parallel/combined_1f1b.py (--overlap-moe-expert-parallel-comm)",
        constraint="any number of microbatches; --group-size N as for interleaved-1f1b",
    ),
    _one_stage(
        name="zb-h1",
        title="ZB-H1: split backward, a third of the bubble of 1F1B, with its memory",
        build=zb_h1,
        splits_backward=True,
        bubble=Formula(
            "(p - 1) * (F + I - W) + 4 * (p - 1) * c",
            where="m >= p and (m > p or c == 0) and 2 * c <= W <= min(F, I)",
        ),
        peak_activations=Formula("min(p, m)"),
        source="Qi et al. 2024 (arXiv 2401.10241), §2.1",
    ),
    _one_stage(
        name="zb-h2",
        title="ZB-H2: split backward, no idle time within a rank's span, twice the memory of 1F1B",
        build=zb_h2,
        splits_backward=True,
        span_bubble=Formula(
            "(p - 1) * (F + I - 2 * W + 2 * c)", where="m >= 2 * p - 1 and 2 * c <= W <= min(F, I)"
        ),
        peak_activations=Formula("min(2 * p - 1, m)"),
        source="Qi et al. 2024 (arXiv 2401.10241), §2.2",
    ),
    _fitted_zero_bubble(
        name="zb-1p",
        title="ZB-1p: zero bubble, built for each stage's costs, with the memory of 1F1B",
        build=zb_1p,
        peak_activations=Formula("min(p, m)"),
        published=("zb-h1",),
    ),
    _fitted_zero_bubble(
        name="zb-2p",
        title="ZB-2p: zero bubble, built for each stage's costs, with twice the memory of 1F1B",
        build=zb_2p,
        peak_activations=Formula("min(2 * p, m)", at_most=True),
        published=("zb-h1", "zb-h2"),
    ),
    _fitted_zero_bubble(
        name="zb-auto",
        title="ZB-auto: zero bubble, built for each stage's costs and the memory limit",
        build=zb_auto,
        peak_activations=Formula("m", at_most=True),
        published=("zb-h1", "zb-h2"),
    ),
    _looped(
        name="interleaved-zb",
        title="Interleaved ZB-H1: v stages per rank, split backward",
        build=interleaved_zero_bubble,
        splits_backward=True,
        bubble=Formula(
            "(p - 1) * (F + I - W) / v + ((v + 3) * p - 4) * c",
            where="m % p == 0 and W <= min(F, I) and (c == 0 or (p >= 2 and m > p and 2 * c <= W / v))",
        ),
        peak_activations=Formula("p", where="m % p == 0"),
        source="ScheduleInterleavedZeroBubble of torch 2.13, after Qi et al. 2024 (arXiv 2401.10241), §2.1",
        also=("interleaved-zero-bubble", "interleaved-zb-h1"),
    ),
    _looped(
        name="gis",
        title="GIS: v stages per rank, split backward, the memory of 1F1B",
        build=gis,
        splits_backward=True,
        bubble=Formula("(p - 1) * (F + I) / v", where="m % p == 0 and c == 0 and W <= min(F, I)"),
        peak_activations=Formula("p", where="m % p == 0"),
        source="PipeOffload (arXiv 2503.01328), Table 1",
    ),
    _looped(
        name="gis-h",
        title="GIS-H: GIS in groups of p/2 microbatches, (v + 1)/(2v) of the memory of 1F1B",
        build=gis_h,
        splits_backward=True,
        bubble=Formula(
            "((p - 1) * (F + I) + (v - 1) * p / 2 * (F + I - W)) / v",
            where="p % 2 == 0 and m % p == 0 and c == 0 and W <= min(F, I)",
        ),
        peak_activations=Formula("p * (v + 1) / (2 * v)", where="p % 2 == 0 and m % p == 0"),
        source="PipeOffload (arXiv 2503.01328), Table 1",
    ),
    _in_a_v(
        name="zbv",
        title="ZB-V: V placement, split backward, built for each stage's costs, the memory of 1F1B",
        build=zbv,
        peak_activations=Formula("min(p, m)", at_most=True),
        source="Qi et al. 2024 (arXiv 2401.10241), §6; extended by ppsim: per-stage costs, more candidates",
        published=("zbv-fixed",),
    ),
    _in_a_v(
        name="zbv-fixed",
        title="ZB-V, fixed pattern: two stages per rank in a V, split backward, no idle time within a rank's span",
        build=zbv_fixed,
        span_bubble=Formula("0", where="F == I == W and c == 0 and m >= 2 * p - 1"),
        peak_activations=Formula("min(p, m)"),
        source="Qi et al. 2024 (arXiv 2401.10241), §6",
        also=("zbv-zero-bubble",),
    ),
    _in_a_v(
        name="v-half",
        title="V-Half: V placement, split backward, built for each stage's costs, half of 1F1B's memory",
        build=v_half,
        peak_activations=Formula("min((p + 2) // 2, m)", at_most=True),
        source="Qi et al. 2024 (arXiv 2405.15362), §3; extended by ppsim: per-stage costs, more candidates",
        published=("v-half-fixed",),
    ),
    _in_a_v(
        name="v-half-fixed",
        title="V-Half, fixed pattern: two stages per rank in a V, split backward, half the memory of 1F1B",
        build=v_half_fixed,
        bubble=Formula(
            "(3 * p - (4 if p % 2 else 7)) * F / 2", where="F == I == W and c == 0 and p >= 3 and m >= 2 * p"
        ),
        peak_activations=Formula("min((p + 2) // 2, m)"),
        source="Qi et al. 2024 (arXiv 2405.15362), §3; order of warm-up and cool-down as in the authors' code",
    ),
    _in_a_v(
        name="v-min",
        title="V-Min: V placement, split backward, built for each stage's costs, a third of 1F1B's memory",
        build=v_min,
        peak_activations=Formula("min((p + 4) // 3, m)", at_most=True),
        source="Qi et al. 2024 (arXiv 2405.15362), §3; extended by ppsim: per-stage costs, more candidates",
        published=("v-min-fixed",),
    ),
    _in_a_v(
        name="v-min-fixed",
        title="V-Min, fixed pattern: two stages per rank in a V, split backward, a third of the memory of 1F1B",
        build=v_min_fixed,
        bubble=Formula(
            "(4 * p - (5 if p % 3 else 7)) * F / 2", where="F == I == W and c == 0 and p >= 2 and m > p"
        ),
        peak_activations=Formula("min((p + 4) // 3, m)"),
        source="Qi et al. 2024 (arXiv 2405.15362), §3; order of warm-up and cool-down as in the authors' code",
    ),
    _in_a_v(
        name="v-flex",
        title="V-Flex: V placement, split backward, built for each stage's costs and the memory limit",
        build=v_flex,
        peak_activations=Formula("m", at_most=True),
        source="Qi et al. 2024 (arXiv 2405.15362), App. A; extended by ppsim: per-stage costs, more candidates",
        published=("v-min-fixed", "v-half-fixed", "zbv-fixed"),
    ),
    _in_a_v(
        name="1f1b-v",
        title="1F1B-V, fixed pattern: two stages per rank in a V, two thirds of the memory of 1F1B",
        build=one_f_one_b_v,
        splits_backward=False,
        bubble=Formula(
            "(5 * p - (5 if p % 3 == 1 else 7)) * F / 2",
            where="F == I == W and c == 0 and p % 3 and p >= 4 and m >= p",
        ),
        peak_activations=Formula("min((2 * p + 3) // 3, m)"),
        source="Qi et al. 2024 (arXiv 2405.15362); start cells and warm-up as in the authors' code",
    ),
    _in_a_v(
        name="dualpipev",
        title="DualPipeV: two stages per rank in a V, a forward fused with a backward of the other stage",
        build=dual_pipe_v,
        bubble=Formula(
            "(p - 1) * (2 * F + I - W) / 2 + (2 * (p - 1) * m / p + 2 * (p - 2)) * c",
            where="W <= I <= F and (c == 0 or (p >= 2 and m % p == 0 and 4 * (p - 1) * c <= I))",
        ),
        peak_activations=Formula("p + 1 / 2"),
        source="github.com/deepseek-ai/DualPipe (arXiv 2412.19437, §3.2.1), cut in half; a pair is F, then B",
        constraint="at least 2 * p microbatches, one for each stage",
        least_microbatches=Formula("2 * p"),
    ),
    _two_chains(
        name="dualpipe",
        title="DualPipe: two replicas in opposite directions, a forward of one fused with a backward of the other",
        build=dual_pipe,
        splits_backward=True,
        bubble=Formula("(p / 2 - 1) * (FB + I - 2 * W)", where="F == I and W <= I and c == 0"),
        peak_activations=Formula("p + 1"),
        source="github.com/deepseek-ai/DualPipe (arXiv 2412.19437, §3.2.1)",
        constraint="an even number, at least 2 * p; half of them each way",
        least_microbatches=Formula("2 * p"),
    ),
    _two_chains(
        name="chimera",
        title="Chimera: two replicas in opposite directions, each 1F1B, merged",
        build=chimera,
        splits_backward=False,
        bubble=Formula(
            "(p - 2) * (I + W)", where="c == 0 and m % p == 0 and (F == I + W or (m == p and F <= I + W))"
        ),
        peak_activations=Formula("min(p, m)"),
        source="Li and Hoefler 2021 (arXiv 2107.06925); merged by greedy list scheduling at F = B: ppsim",
        constraint="an even number; half of them each way",
    ),
    ScheduleEntry(
        name="hanayo",
        title="Hanayo: v stages per rank; each microbatch passes v/2 times down and up the ranks",
        build=hanayo,
        placement="v",
        stages_per_rank=(2, None),
        stages_by=2,
        splits_backward=False,
        bubble=Formula("(p - 1) * (F + I + W) / v", where="c == 0 and m % p == 0 and F == I + W"),
        peak_activations=Formula("min(p, m)"),
        messages=Formula("v * (p - 1)"),
        source="Liu et al. 2023 (arXiv 2308.15762), abstract; order by greedy list scheduling at F = B: ppsim. "
        "The paper's own table of bubbles has not been checked",
    ),
    ScheduleEntry(
        name="seq1f1b",
        title="Seq1F1B: 1F1B over k slices of each microbatch's sequence",
        build=seq_one_f_one_b,
        placement="loop",
        stages_per_rank=(1, 1),
        splits_backward=False,
        bubble=Formula("(p - 1) * (F + I + W) / k", where="c == 0"),
        peak_activations=Formula("min(p + k - 1, m * k) / k"),
        messages=Formula("k * (p - 1)"),
        source="Sun et al. 2024 (arXiv 2406.03488); warm-up as in its code",
        num_slices=4,
        not_in_torch="slices of a sequence share keys and values; torch runs whole microbatches",
    ),
)
