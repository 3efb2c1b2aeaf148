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
    "kernel launches": (
        "the host limits these passes, and the profiler slows the host: compare with a step without it; then "
        "capture CUDA graphs (--cuda-graphs of ppsim project), compile the layers, or take larger microbatches"
    ),
    STAGES_OR_RANKS: (
        "a stage takes longer, or its rank is slow (with one stage per rank, a run cannot show which): compare "
        "layers and devices, or try another split (--split auto of ppsim project)"
    ),
}


def remedy(loss: TimeLoss, explanation: Explanation) -> str:
    if loss.cause != BUBBLE:
        return ADVICE[loss.cause]
    if explanation.faster_schedule is None:
        return "more microbatches per step make it smaller (a larger global batch, or fewer data-parallel ranks)"
    option, saved_s = explanation.faster_schedule
    return f"another schedule: ppsim project --run RUN {option} saves {seconds(saved_s)} (memory not checked)"


def loss_sentence(loss: TimeLoss, explanation: Explanation) -> str:
    detail = f"{loss.detail}. " if loss.detail else ""
    advice = remedy(loss, explanation)
    size = f"{seconds(loss.gain_s)} per step ({percent(loss.gain_s / explanation.period_s)})"
    return f"{loss.cause}, {size}. {detail[:1].upper()}{detail[1:]}{advice[:1].upper()}{advice[1:]}."


def title(explanation: Explanation) -> str:
    between = explanation.period_s - explanation.step_s
    rest = f", plus {seconds(between)} until the next step" if explanation.has_gaps else ""
    steps = f"{explanation.num_steps} step{'s' * (explanation.num_steps > 1)}"
    if seconds(explanation.median_s) != seconds(explanation.step_s):
        steps += f", median {seconds(explanation.median_s)}"
    return f"mean step time {seconds(explanation.step_s)} ({steps}){rest}"


def notable_losses(explanation: Explanation) -> list[TimeLoss]:
    """Return the largest causes and the pipeline bubble, which another schedule can reduce."""
    bubble = [loss for loss in explanation.losses if loss.cause == BUBBLE]
    losses = sorted([*explanation.reasons, *bubble], key=lambda loss: -loss.gain_s)[:MOST_REASONS]
    return [loss for loss in losses if loss.gain_s >= _LEAST * explanation.period_s]


def reasons(explanation: Explanation) -> list[str]:
    return [loss_sentence(loss, explanation) for loss in notable_losses(explanation)] or [
        f"no cause takes {percent(_LEAST)} of the step or more: the rest is the schedule's idle time, and the "
        "passes themselves"
    ]


def faults(explanation: Explanation) -> list[str]:
    sentences = []
    for late in explanation.late_ranks[:MOST_REASONS]:
        if late.gain_s < _LEAST * explanation.step_s:
            continue
        most = f"; largest delay on the critical path: {late.action}, {seconds(late.action_s)}" * bool(late.action)
        sentences.append(
            f"rank {late.rank}: if it were as fast as the median stage, the step would take {seconds(late.gain_s)} "
            f"({percent(late.gain_s / explanation.step_s)}) less, and the others wait "
            f"{seconds(late.others_wait_s)} less in total{most}"
        )
    return sentences


def lacks(difference: ExplainedDifference, measured_s: float) -> list[str]:
    return [
        _lack(reason, measured_s)
        for reason in difference.reasons[:MOST_REASONS]
        if abs(reason.seconds) >= _LEAST * measured_s
    ]


def whole_difference(difference: ExplainedDifference, measured_s: float) -> str:
    return (
        f"projected {seconds(difference.step_s)}, measured {seconds(measured_s)}: "
        f"{signed_percent(difference.step_s / measured_s - 1)}"
    )


def _lack(difference: Difference, measured_s: float) -> str:
    sign = "too short" if difference.seconds > 0 else "too long"
    detail = f" ({difference.detail})" if difference.detail else ""
    share = percent(abs(difference.seconds) / measured_s)
    return f"projected {sign} by {share} of the step: {difference.cause}{detail}."


def table_of(explanation: Explanation) -> list[dict[str, str]]:
    rows = []
    for loss in explanation.losses:
        row = {
            "cause": loss.cause,
            "time": seconds(loss.seconds),
            "share": percent(loss.seconds / explanation.period_s),
        }
        if explanation.num_steps > 1:
            low, high = loss.quartiles_s
            row["quartiles"] = f"{seconds(low)} … {seconds(high)}" if high - low > ROUNDING_S else ""
        row["gain if removed"] = "" if loss.cause in ("compute", "rest") else seconds(loss.gain_s)
        rows.append(row | {"detail": loss.detail})
    return rows


def differences_of(explained: ExplainedDifference) -> list[dict[str, str]]:
    measured_s = sum(difference.measured_s for difference in explained.differences)
    return [
        {
            "difference by cause": difference.cause,
            "measured": seconds(difference.measured_s),
            "projected": seconds(difference.projected_s),
            "difference": seconds(difference.seconds),
            "of the step": signed_percent(
                difference.seconds / measured_s if abs(difference.seconds) >= ROUNDING_S else 0.0
            ),
            "detail": difference.detail,
        }
        for difference in explained.differences
    ]


def markdown(explanation: Explanation) -> str:
    lines = [f"# {title(explanation).capitalize()}", ""]
    lines += [f"{GAINS.capitalize()}:", ""]
    lines += [f"{number}. {sentence}" for number, sentence in enumerate(reasons(explanation), start=1)]
    lines += ["", *_rows(table_of(explanation))]
    if explanation.late_ranks:
        lines += ["", "## Ranks that others wait for", "", *(f"- {sentence}" for sentence in faults(explanation))]
    if explanation.comparison:
        lines += [
            "",
            "## Against the projection",
            "",
            whole_difference(explanation.comparison, explanation.step_s) + ".",
        ]
        lines += [
            f"- {sentence}"
            for sentence in [*lacks(explanation.comparison, explanation.step_s), explanation.comparison.note]
            if sentence
        ]
        lines += ["", *_rows(differences_of(explanation.comparison))]
    return "\n".join(lines) + "\n"


def _rows(rows: list[dict[str, str]]) -> list[str]:
    header = list(rows[0])
    cells = [header, ["---"] * len(header), *(list(row.values()) for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]
