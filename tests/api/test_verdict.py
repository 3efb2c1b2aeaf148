"""One memory verdict: the same sentence comes first in a terminal, JSON, a page, a notebook's card and `serve`."""

import json
from dataclasses import replace

import pytest

import ppsim
from ppsim.app import pictures
from ppsim.app.projector import Projector
from ppsim.app.state import PageState
from ppsim.cli.serve import _read_project
from ppsim.plot.plotly_figures import TradeoffPoint
from ppsim.simulation.verdict import MemoryLimit, MemoryVerdict
from tests.cli.running import ppsim as command

GIB = 2**30
H100 = MemoryLimit.of_device(79.2 * GIB)
WORDS = ["--pp", "4", "--num-microbatches", "8"]
LIMITS = {
    "20GiB": "DOES NOT FIT: rank 0 needs 45.3 GiB, 20.0 GiB usable",
    "60GiB": "fits: rank 0 needs 45.3 GiB, 60.0 GiB usable",
}


@pytest.mark.parametrize(("limit", "sentence"), LIMITS.items())
def test_five_views_begin_with_the_same_verdict(limit, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fits = sentence.startswith("fits")
    typed = ["project", *WORDS, "--memory-limit", limit]
    lines = command(*typed, "-o", "a.html", code=not fits).stdout.splitlines()
    assert lines[0] == sentence if not fits else lines[3] == "fits           45.3 of 60.0 GiB (rank 0)"
    assert command(*typed, "--full", code=not fits).stdout.splitlines()[0] == sentence
    found = json.loads(command(*typed, "--json", code=not fits).stdout)
    assert list(found.items())[:2] == [("fits", fits), ("verdict", "fits" if fits else "does not fit")]
    body = (tmp_path / "a.html").read_text().partition("<body")[2]
    assert body.index(f">{sentence}</p>") < body.index("<h1>")
    made = ppsim.project(pp=4, microbatches=8, memory_limit=limit)
    card = made._repr_html_()
    assert card.index(sentence) < card.index("iteration")
    assert ("background:#b00020" in card) is not fits
    bench = Projector(_read_project)
    state = PageState({"pp": "4", "microbatches": "8", "memory_limit": limit}, ("1f1b",))
    shown = pictures.cards_html(bench.answer(state))
    assert shown.index(f">{sentence}</p>") < shown.index("<dl>")
    for page in (body, shown):
        assert ("class='verdict misfit' role=alert" in page) is not fits


def test_a_page_of_several_plans_has_a_verdict_for_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = ppsim.project_all(pp=4, microbatches=8, memory_limit="52GiB", schedules=["gpipe", "1f1b"])
    ppsim.save(found, "two.html")
    text = (tmp_path / "two.html").read_text()
    assert "<p class='verdict '>1f1b: fits: rank 0" in text
    assert "<p class='verdict misfit' role=alert>gpipe: DOES NOT FIT: rank 1" in text


def test_the_list_in_the_browser_has_what_fits_first():
    points = [
        TradeoffPoint("large", 9.0, 1.0, told="rank 0 peaks", fits=False),
        TradeoffPoint("not run", 1.0, 2.0, told="no runtime"),
        TradeoffPoint("slow", 1.0, 3.0),
    ]
    table = pictures.table_html(points, [])
    assert table.index("slow") < table.index("not run") < table.index("large")


def test_the_verdict_is_red_unless_colours_are_off(monkeypatch):
    from ppsim.results.text_layout import verdict_line

    made = MemoryVerdict(0, 2.0, MemoryLimit.given(1.0))
    assert "\x1b[31m" in verdict_line(made)[0]
    assert "\x1b[33m" in verdict_line(MemoryVerdict(0, 73.0 * GIB, H100))[0]
    assert "\x1b[3" not in verdict_line(MemoryVerdict(0, 1.0, MemoryLimit.given(2.0)))[0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in verdict_line(made)[0]


def test_a_profile_names_the_memory_of_a_gpu_its_partitions_share_it_and_of_a_cpu_nothing_is_known():
    plan = ppsim.Plan(pp=2)
    profile = ppsim.load_profile("zb-a100-6.2b")
    assert plan.memory_bound_bytes == profile.provenance.device.memory_bytes - 5 * GIB
    assert replace(plan, memory_limit_bytes=1.0).memory_bound_bytes == 1.0

    def on(**device):
        changed = replace(profile.provenance.device, **device)
        provenance = replace(profile.provenance, device=changed)
        return replace(plan, profile=replace(profile, provenance=provenance)).memory_bound_bytes

    assert on(kind="cpu") is None
    assert on(memory_bytes=None) is None


@pytest.mark.slow
def test_every_change_that_is_advised_for_a_job_can_be_typed_and_makes_it_fit():
    words = [
        "project",
        "--model",
        "llama3-8b",
        "--pp",
        "2",
        "--dp",
        "2",
        "--global-batch-size",
        "8",
        "--seq-len",
        "8192",
        "--split",
        "even",
        "--stack",
        "plain",
    ]
    made = ppsim.project(model="llama3-8b", pp=2, dp=2, global_batch=8, seq_len=8192, split="even", stack="plain")
    assert made.fits is False
    assert made.summary.advice
    for one in made.summary.advice:
        found = json.loads(command(*words, *one.change.split(), "--json").stdout)
        assert found["fits"]
        assert found["memory_fit"]["headroom_bytes"] == pytest.approx(one.projection.verdict.headroom_bytes)
        assert found["tokens_per_s"] == pytest.approx(made.tokens_per_s * (1 + one.throughput_gain))


def test_a_plan_that_fits_tightly_says_why_in_all_views_and_exits_with_0(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "--model mixtral-8x7b --gpus 64 --pp 4 --ep 8 --micro-batch-size 2 --stack plain"
    done = command("project", *words.split(), "-o", "a.html", code=0)
    lines = done.stdout.splitlines()
    assert "fits tightly: rank " in lines[0]
    notes = [line.removeprefix("note").strip() for line in lines if line.startswith("note")]
    assert notes == [
        "experts can fragment memory, and more than 59.4 of 79.2 GiB is in use",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps",
    ]
    made = ppsim.project(
        model="mixtral-8x7b", gpus=64, pp=4, ep=8, micro_batch=2, stack="plain"
    )  # fmt: skip
    assert (made.fits, made.to_json()["verdict"]) == (True, "fits tightly")
    sentence = "; ".join([str(made.verdict), *notes])
    assert f"<p class='verdict tight'>{sentence}</p>" in (tmp_path / "a.html").read_text()
    assert sentence in made._repr_html_()
