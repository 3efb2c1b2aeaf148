"""What each builder lays out, against the papers' words and against stored tables."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim import Action, Op, build, check, read_schedule
from ppsim.base.errors import ConfigError
from ppsim.base.numba_jit import run_kernel
from ppsim.catalog.build import CATALOG, TABLES, find
from ppsim.catalog.published import cell_grid, interleaved
from ppsim.catalog.published import cell_grid as cell_grid_module
from ppsim.catalog.published import greedy as greedy_module
from ppsim.catalog.published import interleaved as interleaved_module
from ppsim.catalog.published.greedy import greedy
from ppsim.catalog.published.interleaved import legal_group_sizes
from ppsim.schedule.placement import loop, v_shape
from tests.defaults import number_defaults
from tests.strategies import tables

STORED = sorted(Path(__file__).parents[2].joinpath("schedules").glob("*.csv"))


@given(tables(max_ranks=8, max_microbatches=20))
def test_every_table_of_every_builder_passes_the_checker(table):
    report = check(table)
    assert report.errors == []
    assert {v.outcome for v in report.verdicts if v.receives == "torch" and v.communication == "overlap"} == {
        "runs"
    }


@given(st.integers(1, 6), st.integers(2, 4), st.integers(1, 20), st.data())
def test_interleaved_runs_with_every_legal_group_size(p, v, m, data):
    size = data.draw(st.sampled_from(legal_group_sizes(p, m)))
    assert check(build("interleaved-1f1b", pp=p, vpp=v, microbatches=m, group_size=size)).errors == []


def test_a_group_smaller_than_pp_is_refused_because_it_deadlocks(monkeypatch):
    with pytest.raises(ConfigError, match=r"smaller than pp=4 \(nearest: 4 or 6\)"):
        build("interleaved-1f1b", pp=4, vpp=2, microbatches=16, group_size=2)
    with pytest.raises(ConfigError, match="leaves a last group of 3, smaller than pp=4"):
        build("interleaved-1f1b", pp=4, vpp=2, microbatches=11, group_size=4)
    with pytest.raises(ConfigError, match=r"smaller than pp=4 \(nearest: 4 or 6\)"):
        build("combined-1f1b", pp=4, vpp=2, microbatches=16, group_size=2)
    monkeypatch.setattr(interleaved, "why_group_size_fails", lambda *_: None)
    for m, group_size in ((12, 2), (13, 4)):
        table = build("interleaved-1f1b", pp=4, vpp=4, microbatches=m, group_size=group_size)
        assert check(table).errors[0].rule == "deadlock"


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 32), (4, 2)])
def test_1f1b_warms_up_with_the_ranks_below_and_then_alternates(p, m):
    for rank, row in enumerate(build("1f1b", pp=p, microbatches=m).rows()):
        warm_up = min(p - 1 - rank, m)
        assert [action.op for action in row[:warm_up]] == [Op.F] * warm_up
        steady = row[warm_up : 2 * m - warm_up]
        assert [action.op for action in steady] == [Op.F, Op.B] * (len(steady) // 2)


def test_zb_h2_warm_up_counts_are_those_of_figure_3():
    rows = build("zb-h2", pp=4, microbatches=12).rows()
    assert [next(i for i, a in enumerate(row) if a.op is Op.I) for row in rows] == [7, 5, 3, 1]


def test_zbv_warms_up_with_2p_minus_1_forwards_split_as_the_paper_says():
    p = 4
    for rank, row in enumerate(build("zbv-fixed", pp=p, microbatches=2 * p).rows()):
        warm_up = row[: 2 * p - 1]
        assert all(action.op is Op.F for action in warm_up)
        assert sum(action.stage < p for action in warm_up) == 2 * p - (rank + 1)


def test_group_size_m_is_breadth_first():
    row = build("interleaved-1f1b", pp=2, vpp=2, microbatches=4, group_size=4).rows()[0]
    assert [str(a) for a in row if a.op is Op.F] == ["0F0", "0F1", "0F2", "0F3", "2F0", "2F1", "2F2", "2F3"]


@pytest.mark.parametrize("name", ["v-half-fixed", "v-min-fixed", "1f1b-v"])
def test_plain_and_compiled_kernels_fill_the_same_cells(name, monkeypatch):
    tables = {}
    for engine in ("plain", "compiled"):
        monkeypatch.setattr(cell_grid, "run_kernel", partial(run_kernel, engine=engine))
        tables[engine] = [build(name, pp=p, microbatches=m) for p in range(1, 10) for m in (1, 4, 20)]
    assert tables["plain"] == tables["compiled"]


def test_dualpipe_rows_mirror_each_other_with_the_chains_swapped():
    p, m = 8, 20
    rows = build("dualpipe", pp=p, microbatches=m).rows()

    def mirrored(action):
        return action._replace(stage=(action.stage + p) % (2 * p), microbatch=(action.microbatch + m // 2) % m)

    for rank in range(p):
        cells = [
            [mirrored(a) for a in ([cell] if isinstance(cell, Action) else cell)] for cell in rows[p - 1 - rank]
        ]
        assert [cell if len(cell) > 1 else cell[0] for cell in cells] == [
            cell if isinstance(cell, Action) else list(cell) for cell in rows[rank]
        ]


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 24)])
def test_dualpipe_step_counts_are_those_of_the_authors_code(p, m):
    for rank, row in enumerate(build("dualpipe", pp=p, microbatches=m).rows()):
        h = min(rank, p - 1 - rank)
        num_pairs = sum(not isinstance(cell, Action) for cell in row)
        unfused = 1 if h == p // 2 - 1 else 0  # the first pair of the middle ranks
        num_warm_up = next(i for i, cell in enumerate(row) if not isinstance(cell, Action) or cell.op is not Op.F)
        assert num_warm_up == 2 * (p // 2 - h - 1) + 2 * (h + 1) + unfused
        assert num_pairs == 2 * (m // 2 - p + h + 1) - unfused + (p // 2 - h - 1)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_seq1f1b_warms_up_with_p_minus_2_minus_r_plus_k_slices_and_goes_back_last_slice_first(k):
    p, m = 4, 3
    for rank, row in enumerate(build("seq1f1b", pp=p, microbatches=m, num_slices=k).rows()):
        warm_up = min(p - 2 - rank + k, m * k)
        # The steady state begins with one more forward.
        assert next(i for i, action in enumerate(row) if action.op is Op.B) == min(warm_up + 1, m * k)
        assert [a.microbatch for a in row if a.op is Op.F] == list(range(m * k))
        assert [divmod(a.microbatch, k) for a in row if a.op is Op.B] == [
            (b, j) for b in range(m) for j in reversed(range(k))
        ]


def test_hanayo_and_chimera_hold_no_more_than_a_full_pipeline_at_any_number_of_microbatches():
    for name, vpp in (("hanayo", 2), ("hanayo", 4), ("chimera", 2)):
        for p in (2, 4, 6):
            for m in range(2, 5 * p, 2):
                table = build(name, pp=p, vpp=vpp, microbatches=m)
                chunks = vpp // table.num_replicas
                for rank in range(p):
                    ops = table.op[table.rank_offsets[rank] : table.rank_offsets[rank + 1]]
                    assert np.cumsum(np.where(ops == Op.F, 1, -1)).max() <= chunks * min(p, m)


def test_greedy_is_eager_1f1b_on_one_chain_and_the_same_plain_and_compiled():
    for p, m in ((1, 3), (4, 2), (4, 9)):
        assert greedy(stage_to_rank=loop(p, p), num_microbatches=m) == build("eager-1f1b", pp=p, microbatches=m)
    for R in (1, 2, 4):
        zigzag = {"stage_to_rank": v_shape(4, 8), "num_microbatches": 7, "num_replicas": R}
        tables = [greedy(**zigzag, engine=engine) for engine in ("plain", "compiled")]
        assert tables[0] == tables[1]
        assert check(tables[0]).errors == []


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_tables_are_what_the_builders_build(path):
    name, pp, vpp, m = path.stem.rsplit("_", 3)
    counts = {"num_replicas": CATALOG[name].num_replicas, "num_slices": CATALOG[name].num_slices}
    assert read_schedule(path, **counts) == build(name, pp=int(pp[2:]), vpp=int(vpp[1:]), microbatches=int(m[1:]))


def test_every_schedule_has_a_stored_table():
    assert {path.stem.rsplit("_", 3)[0] for path in STORED} == set(CATALOG)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": "1f1b", "pp": 0, "microbatches": 4}, "pp must be at least 1: got 0"),
        ({"name": "1f1b", "pp": 2, "microbatches": 0}, "microbatches must be at least 1: got 0"),
        ({"name": "1f1b", "pp": 2, "vpp": 2, "microbatches": 4}, r"needs exactly 1 stage per rank: got vpp=2 \(nearest: 1\)"),
        ({"name": "zbv-fixed", "pp": 2, "vpp": 3, "microbatches": 4}, r"needs exactly 2 stages per rank: got vpp=3 \(nearest: 2\)"),
        ({"name": "interleaved-1f1b", "pp": 2, "vpp": 1, "microbatches": 4}, r"at least 2 stages per rank: got vpp=1"),
        ({"name": "dualpipev", "pp": 4, "microbatches": 7}, r"needs at least 2 \* p microbatches: got 7 with pp=4 \(nearest: 8\)"),
        ({"name": "dualpipe", "pp": 3, "microbatches": 8}, r"dualpipe needs an even number of ranks: got pp=3 \(nearest: 2 or 4\)"),
        ({"name": "dualpipe", "pp": 1, "microbatches": 8}, r"dualpipe needs an even number of ranks: got pp=1 \(nearest: 2\)"),
        ({"name": "dualpipe", "pp": 4, "microbatches": 6}, r"needs at least 2 \* p microbatches: got 6 with pp=4 \(nearest: 8\)"),
        ({"name": "dualpipe", "pp": 4, "microbatches": 9}, r"an even number of microbatches: got 9 with pp=4 \(nearest: 8 or 10\)"),
        ({"name": "chimera", "pp": 4, "microbatches": 1}, r"an even number of microbatches: got 1 with pp=4 \(nearest: 2\)"),
        ({"name": "hanayo", "pp": 4, "vpp": 3, "microbatches": 4}, r"an even number of stages per rank: got vpp=3 \(nearest: 2 or 4\)"),
        ({"name": "seq1f1b", "pp": 4, "microbatches": 4, "num_slices": 0}, "slices must be at least 1: got 0"),
        ({"name": "interleaved-1f1b", "pp": 4, "microbatches": 4, "num_slices": 2}, "interleaved-1f1b runs whole microbatches"),
        ({"name": "1f1b", "pp": 4, "microbatches": 4, "num_slices": 2}, "1f1b runs whole microbatches; slices are for seq1f1b"),
        ({"name": "zb-h3", "pp": 2, "microbatches": 4}, "unknown schedule 'zb-h3': did you mean zb-h2 or zb-h1"),
        ({"name": "zbv-fixed", "pp": 2, "microbatches": 4, "group_size": 2}, "group size is for interleaved-1f1b or combined-1f1b; zbv-fixed has none"),
        ({"name": "1f1b", "pp": 2, "microbatches": 4, "memory_limit_bytes": 2.0**30}, "same at any memory limit; a limit is for zb-auto"),
    ],
)  # fmt: skip
def test_what_a_schedule_forbids_is_said_with_the_nearest_fix(arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build(**arguments)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b", "looped-bfs", "interleaved-1f1b", "zb-h1", "gis"])
def test_a_table_that_follows_a_rule_is_made_of_arrays_without_an_object_an_action(name, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("an action was made")

    monkeypatch.setattr(Action, "__new__", refuse)
    entry = find(name)
    TABLES.clear()
    assert len(build(entry, pp=4, vpp=entry.stages_per_rank[0], microbatches=9)) > 0


def test_what_is_left_out_in_catalog_cell_grid_has_these_values() -> None:
    assert number_defaults(cell_grid_module) == {
        "repeat_pattern": {"backward_cells": 1},
        "advance_actions": {"backward_cells": 1, "are_weights_in_order": True},
    }  # fmt: skip


def test_what_is_left_out_in_catalog_greedy_has_these_values() -> None:
    assert number_defaults(greedy_module) == {
        "greedy": {"num_replicas": 1},
    }  # fmt: skip


def test_what_is_left_out_in_catalog_interleaved_has_these_values() -> None:
    assert number_defaults(interleaved_module) == {
        "_with_split_backwards": {"puts_off": False},
    }  # fmt: skip
