"""An explanation as sentences and as Markdown."""

from ppsim.base.units import ROUNDING_S, percent, seconds, signed_percent
from ppsim.runs.loss_attribution import Difference, ExplainedDifference, Explanation, TimeLoss
from ppsim.runs.loss_causes import STAGES_OR_RANKS

MOST_REASONS = 3

BUBBLE = "pipeline bubble"

GAINS = "time saved per step if only this cause is removed, largest first"

_LEAST = 1e-3
"""Causes below this fraction of a step get no sentence."""

ADVICE = {
    "time between steps": (
        "look at the data loader, the optimizer, the gradient norm, logging and checkpoints, which run between "
        "steps"
    ),
    "slow links": (
        "look at the network between these ranks: cables, switches, routing, network cards, other traffic; or "
        "place neighbouring pipeline ranks on closer GPUs"
    ),
    "waits for messages": (
        "sends and receives are not hidden: overlap them (Megatron-LM's --overlap-p2p-communication, which "
        "ppsim project takes too)"
    ),
    "pauses": (
        "a host or GPU stopped once: garbage collection, checkpoints, memory allocation, or other processes; call "
        "gc.collect at the same step on all ranks instead of automatically, so that the pauses overlap"
    ),
    "gaps between passes": (
        "ranks do something before every pass: kernel launches, blocking sends and receives; with fewer, longer "
        "passes there are fewer gaps (ppsim project --calibration FILE of ppsim calibrate, with a larger "
        "--micro-batch-size or --cuda-graphs)"
    ),
    "blocking sends and receives": (
        "ranks wait in Megatron-LM's calls: interleaved stages overlap them (ppsim project --vpp 2)"
    ),
    "slow first passes": (
        "caches, clocks, compilation, the loading of data (ppsim calibrate finds how much, for projections)"
    ),
    "straggling steps": "look at what else runs in these steps: checkpoints, evaluation, other jobs",
    "drift": "passes get slower or faster: look at clocks, temperature, power and growing memory",
    "uneven microbatches": (
        "balance them: sort or pack sequences so that all microbatches have the same work (ppsim project "
        "--sequence-lengths FILE shows the part of sequence lengths), and check the load of experts"
    ),
    "passes that vary": ("passes of a stage differ without a pattern: routing of experts, clocks, other processes"),
    "slow ranks": (
        "this rank is slower than the others with all its stages: look at its GPU and host (ppsim project "
        "--straggler RANK:FACTOR shows what other plans lose to it)"
    ),
    "uneven stages": "stages take different times: try another split (--split auto of ppsim project)",
    STAGES_OR_RANKS: (
        "a stage takes longer, or its rank is slow (with one stage per rank, a run cannot show which): compare "
        "layers and devices, or try another split (--split auto of ppsim project)"
    ),
}


def remedy(loss: TimeLoss, found: Explanation) -> str:
    if loss.cause != BUBBLE:
        return ADVICE[loss.cause]
    if found.faster_schedule is None:
        return "more microbatches per step make it smaller (a larger global batch, or fewer data-parallel ranks)"
    option, saved_s = found.faster_schedule
    return f"another schedule: ppsim project --run RUN {option} saves {seconds(saved_s)} (memory not checked)"


def loss_sentence(loss: TimeLoss, found: Explanation) -> str:
    detail = f"{loss.detail}. " if loss.detail else ""
    advice = remedy(loss, found)
    size = f"{seconds(loss.gain_s)} per step ({percent(loss.gain_s / found.period_s)})"
    return f"{loss.cause}, {size}. {detail[:1].upper()}{detail[1:]}{advice[:1].upper()}{advice[1:]}."


def title(found: Explanation) -> str:
    between = found.period_s - found.step_s
    rest = f", plus {seconds(between)} until the next step" if found.has_gaps else ""
    steps = f"{found.num_steps} step{'s' * (found.num_steps > 1)}"
    if seconds(found.median_s) != seconds(found.step_s):
        steps += f", median {seconds(found.median_s)}"
    return f"mean step time {seconds(found.step_s)} ({steps}){rest}"


def notable_losses(found: Explanation) -> list[TimeLoss]:
    """Return the largest causes and the pipeline bubble, which another schedule can reduce."""
    bubble = [loss for loss in found.losses if loss.cause == BUBBLE]
    losses = sorted([*found.reasons, *bubble], key=lambda loss: -loss.gain_s)[:MOST_REASONS]
    return [loss for loss in losses if loss.gain_s >= _LEAST * found.period_s]


def reasons(found: Explanation) -> list[str]:
    return [loss_sentence(loss, found) for loss in notable_losses(found)] or [
        f"no cause takes {percent(_LEAST)} of the step or more: the rest is the schedule's idle time, and the "
        "passes themselves"
    ]


def faults(found: Explanation) -> list[str]:
    sentences = []
    for late in found.late_ranks[:MOST_REASONS]:
        if late.gain_s < _LEAST * found.step_s:
            continue
        most = f"; largest delay on the critical path: {late.action}, {seconds(late.action_s)}" * bool(late.action)
        sentences.append(
            f"rank {late.rank}: if it were as fast as the median stage, the step would take {seconds(late.gain_s)} "
            f"({percent(late.gain_s / found.step_s)}) less, and the others wait {seconds(late.others_wait_s)} "
            f"less in total{most}"
        )
    return sentences


def lacks(found: ExplainedDifference, measured_s: float) -> list[str]:
    return [
        _lack(reason, measured_s)
        for reason in found.reasons[:MOST_REASONS]
        if abs(reason.seconds) >= _LEAST * measured_s
    ]


def whole_difference(found: ExplainedDifference, measured_s: float) -> str:
    return (
        f"projected {seconds(found.step_s)}, measured {seconds(measured_s)}: "
        f"{signed_percent(found.step_s / measured_s - 1)}"
    )


def _lack(difference: Difference, measured_s: float) -> str:
    sign = "too short" if difference.seconds > 0 else "too long"
    detail = f" ({difference.detail})" if difference.detail else ""
    share = percent(abs(difference.seconds) / measured_s)
    return f"projected {sign} by {share} of the step: {difference.cause}{detail}."


def table_of(found: Explanation) -> list[dict[str, str]]:
    rows = []
    for loss in found.losses:
        row = {"cause": loss.cause, "time": seconds(loss.seconds), "share": percent(loss.seconds / found.period_s)}
        if found.num_steps > 1:
            low, high = loss.quartiles_s
            row["quartiles"] = f"{seconds(low)} … {seconds(high)}" if high - low > ROUNDING_S else ""
        row["gain if removed"] = "" if loss.cause in ("compute", "rest") else seconds(loss.gain_s)
        rows.append(row | {"detail": loss.detail})
    return rows


def differences_of(found: ExplainedDifference) -> list[dict[str, str]]:
    whole = sum(difference.measured_s for difference in found.differences)
    return [
        {
            "difference by cause": difference.cause,
            "measured": seconds(difference.measured_s),
            "projected": seconds(difference.projected_s),
            "difference": seconds(difference.seconds),
            "of the step": signed_percent(
                difference.seconds / whole if abs(difference.seconds) >= ROUNDING_S else 0.0
            ),
            "detail": difference.detail,
        }
        for difference in found.differences
    ]


def markdown(found: Explanation) -> str:
    lines = [f"# {title(found).capitalize()}", ""]
    lines += [f"{GAINS.capitalize()}:", ""]
    lines += [f"{number}. {sentence}" for number, sentence in enumerate(reasons(found), start=1)]
    lines += ["", *_rows(table_of(found))]
    if found.late_ranks:
        lines += ["", "## Ranks that others wait for", "", *(f"- {sentence}" for sentence in faults(found))]
    if found.comparison:
        lines += ["", "## Against the projection", "", whole_difference(found.comparison, found.step_s) + "."]
        lines += [
            f"- {sentence}"
            for sentence in [*lacks(found.comparison, found.step_s), found.comparison.note]
            if sentence
        ]
        lines += ["", *_rows(differences_of(found.comparison))]
    return "\n".join(lines) + "\n"


def _rows(rows: list[dict[str, str]]) -> list[str]:
    header = list(rows[0])
    cells = [header, ["---"] * len(header), *(list(row.values()) for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]
