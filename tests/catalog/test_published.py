"""Numbers that others published or that other simulators print, reproduced."""

import zlib

import pytest

from ppsim import StageCosts, build, simulate
from tests.paper_wraparound import simulate_as_in_the_paper
from tests.published import read

PAPER = read("zb_paper.csv")
PRIMUS = read("primus_grid.csv")
PATTERNS = read("v_patterns.csv")


def paper_timeline(row, name, vpp=1, how=simulate):
    per_stage = {
        key: float(row[key.replace("_s", "_ms")]) / 1e3 / vpp
        for key in ("forward_s", "backward_input_s", "backward_weight_s")
    }
    costs = StageCosts(**per_stage, transfer_s=float(row["transfer_ms"]) / 1e3)
    return how(build(name, pp=int(row["pp"]), vpp=vpp, microbatches=int(row["microbatches"])), costs)


@pytest.mark.parametrize("row", PAPER, ids=lambda row: f"{row['model']}-{row['microbatches']}")
def test_zero_bubble_paper_table_5(row):
    assert len(PAPER) == 12
    assert round(paper_timeline(row, "1f1b").bubble_ratio, 4) == float(row["bubble_1f1b"])
    assert round(paper_timeline(row, "zb-h1").bubble_ratio, 4) == float(row["bubble_zb_h1"])
    assert round(paper_timeline(row, "zb-h2").span_bubble_ratio, 4) == float(row["bubble_zb_h2"])


@pytest.mark.parametrize("row", PAPER, ids=lambda row: f"{row['model']}-{row['microbatches']}")
def test_interleaved_of_table_5_is_the_printed_value_relaxed_and_a_larger_one_strict(row):
    v = int(row["interleaved_vpp"])
    strict, relaxed = (
        round(paper_timeline(row, "interleaved-1f1b", v, how).bubble_ratio, 4)
        for how in (simulate, simulate_as_in_the_paper)
    )
    assert relaxed == float(row["bubble_interleaved_printed"])
    assert strict == float(row["bubble_interleaved_strict"])
    assert relaxed < strict


OURS = {
    "1f1b": "1f1b",
    "1f1b-interleaved": "interleaved-1f1b",
    "zero-bubble": "zb-h1",
    "zbv-formatted": "zbv-fixed",
}


@pytest.mark.parametrize("algorithm", OURS)
def test_primus_simulator_step_time_and_peak(algorithm):
    rows = [row for row in PRIMUS if row["algorithm"] == algorithm]
    assert len(rows) == {"1f1b": 24, "1f1b-interleaved": 40, "zero-bubble": 24, "zbv-formatted": 18}[algorithm]
    for row in rows:
        v = int(row["vpp"])
        # Primus gives f, b (our I), w per rank and splits them over the chunks; a chunk holds 1/v of a rank's activations.
        costs = StageCosts(
            forward_s=float(row["f"]) / v,
            backward_input_s=float(row["b"]) / v,
            backward_weight_s=float(row["w"]) / v,
            activation_bytes=1 / v,
        )
        timeline = simulate(
            build(OURS[algorithm], pp=int(row["pp"]), vpp=v, microbatches=int(row["microbatches"])), costs
        )
        assert timeline.step_time_s == pytest.approx(float(row["step_time"]), rel=1e-9), row
        assert timeline.bubble_ratio == pytest.approx(float(row["bubble_rate"]), abs=1e-6), row
        assert timeline.memory.peak_activation_bytes.max() == pytest.approx(float(row["max_memory_fraction"])), row


def pattern_timeline(row):
    # Costs are per rank; a rank of two chunks holds half of each.
    keys = {"forward_s": "forward", "backward_input_s": "backward_input", "backward_weight_s": "backward_weight"}
    costs = StageCosts(
        **{ours: float(row[theirs]) / 2 for ours, theirs in keys.items()},
        transfer_s=float(row["transfer"]),
        activation_bytes=1 / 2,
    )
    return simulate(build(row["algorithm"], pp=int(row["pp"]), microbatches=int(row["microbatches"])), costs)


@pytest.mark.parametrize(
    ("algorithm", "num_rows"), [("v-half-fixed", 96), ("v-min-fixed", 96), ("1f1b-v", 96), ("dualpipev", 72)]
)
def test_step_time_span_and_peak_are_those_of_the_authors_own_tables(algorithm, num_rows):
    rows = [row for row in PATTERNS if row["algorithm"] == algorithm]
    assert len(rows) == num_rows
    for row in rows:
        timeline = pattern_timeline(row)
        assert timeline.step_time_s == pytest.approx(float(row["step_time"]), rel=1e-9), row
        assert timeline.span_s == pytest.approx(float(row["span"]), rel=1e-9), row
        assert timeline.memory.peak_activation_bytes.max() == pytest.approx(float(row["peak"])), row


@pytest.mark.parametrize(
    ("num_ranks", "num_microbatches", "checksum"),
    [(6, 6, 3508213000), (10, 11, 88187767), (12, 11, 623360099), (16, 16, 2716211330), (16, 17, 1244779726)],
)
def test_v_half_is_the_authors_own_table_where_there_are_as_many_microbatches_as_ranks(
    num_ranks, num_microbatches, checksum
):
    """Pass by pass: checksums of what sail-sg/zero-bubble-pipeline-parallelism makes (39f2c186, zbv_greedy.py).

    There W's of the cool-down move past each other unless each stays behind the one before.
    """
    table = build("v-half-fixed", pp=num_ranks, microbatches=num_microbatches)
    assert zlib.crc32("\n".join(" ".join(map(str, row)) for row in table.rows()).encode()) == checksum


@pytest.mark.parametrize(
    ("algorithm", "costs", "percent", "peak"),
    [
        ("v-half-fixed", "1000/1000/1000/0", 8.1, 5),
        ("v-half-fixed", "29718/29444/19927/527", 11.3, 5),
        ("v-half-fixed", "28814/28760/19352/1610", 12.9, 5),
        ("v-min-fixed", "1000/1000/1000/0", 12.3, 4),
        ("v-min-fixed", "29718/29444/19927/527", 24.3, 4),
        ("v-min-fixed", "28814/28760/19352/1610", 28.7, 4),
        ("1f1b-v", "1000/1000/1000/0", 14.7, 6),
        ("1f1b-v", "29718/29444/19927/527", 22.4, 6),
        ("1f1b-v", "28814/28760/19352/1610", 25.5, 6),
    ],
)
def test_bubbles_of_the_fixed_patterns_on_the_papers_profiles(algorithm, costs, percent, peak):
    # p = 8, m = 32: equal costs and two profiles of the zero-bubble paper (Table 9; the V script's).
    keys = ("forward", "backward_input", "backward_weight", "transfer")
    row = {"algorithm": algorithm, "pp": 8, "microbatches": 32, **dict(zip(keys, costs.split("/"), strict=True))}
    timeline = pattern_timeline(row)
    assert round(100 * timeline.bubble_ratio, 1) == round(100 * timeline.span_bubble_ratio, 1) == percent
    assert timeline.memory.peak_activation_bytes.max() == peak


@pytest.mark.parametrize("row", read("zb_paper_v.csv"), ids=lambda row: row["microbatches"])
def test_zero_bubble_paper_table_8_without_zb_v(row):
    """ZB-V's column is of the authors' heuristic (test_published_v.py); the hand-made table comes within 0.0016 of it."""

    def timeline(name, vpp=1, how=simulate):
        chunk = {
            f"{key}_s": 2e-6 / vpp * float(row[f"{key}_us"])
            for key in ("forward", "backward_input", "backward_weight")
        }
        costs = StageCosts(**chunk, transfer_s=1e-6 * float(row["transfer_us"]))
        return how(build(name, pp=16, vpp=vpp, microbatches=int(row["microbatches"])), costs)

    assert round(timeline("1f1b").bubble_ratio, 4) == float(row["bubble_1f1b"])
    assert round(timeline("zb-h1").bubble_ratio, 4) == float(row["bubble_zb_h1"])
    assert round(timeline("zb-h2").span_bubble_ratio, 4) == float(row["bubble_zb_h2"])
    assert round(timeline("interleaved-1f1b", 2).bubble_ratio, 4) == float(row["bubble_interleaved_strict"])
    relaxed = timeline("interleaved-1f1b", 2, simulate_as_in_the_paper)
    assert round(relaxed.bubble_ratio, 4) == float(row["bubble_interleaved_printed"])
    assert 0 <= timeline("zbv-fixed", 2).span_bubble_ratio - float(row["bubble_zb_v"]) < 0.0016
