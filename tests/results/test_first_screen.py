"""The first screen: at most 18 lines (20 if no stack is named) of at most 100 columns, the verdict first if a plan does not fit."""

import re
from pathlib import Path
from typing import Any

import pytest

import ppsim
from ppsim.projection.quantities import QUANTITIES, texts_of
from ppsim.results.plans import first_screen
from tests.cli.running import ppsim as command

ROOT = Path(__file__).parents[2]

PLANS = (
    "--pp 8 --vpp 2",
    "--pp 4 --num-microbatches 8",
    "--model llama3-70b --gpus 256 --tp 8 --pp 4 --vpp 5 --global-batch-size 512",
    "--model llama3-8b --gpus 8 --pp 1 --stack torchtitan",
    "--model llama3-8b --gpus 16 --tp 2 --pp 4 --tokens 15e12",
    "--model mixtral-8x7b --gpus 64 --pp 4 --ep 8 --stack megatron-bridge",
    "--model llama3-70b --gpus 128 --tp 4 --pp 4 --recompute full --dtype float8",
    "--model deepseek-v3 --gpus 256 --tp 2 --pp 4 --ep 8 --schedule 1f1b",
    "--model llama3-405b --gpus 512 --tp 8 --pp 16 --cluster dgx-b200",
    "--model llama3-405b --gpus 1024 --tp 8 --pp 8 --cp 2 --seq-len 16384",
)


@pytest.mark.parametrize("options", PLANS)
def test_a_plan_is_told_on_one_screen(options: str) -> None:
    lines = command("project", *options.split(), "--allow-oom").stdout.splitlines()
    assert len(lines) <= 18 + sum(line.startswith(("stack ", "by stack")) for line in lines)
    assert max(map(len, lines)) <= 100
    labels = [line[:15].strip() for line in lines]
    assert {"iteration", "throughput", "where it goes", "try next", "assumed", "more"} <= set(labels)
    is_too_large = lines[0].startswith("DOES NOT FIT: rank ")
    assert is_too_large != any(line.startswith("fits  ") for line in lines)


@pytest.mark.parametrize(
    "plan", [{"model": "llama3-8b", "gpus": 16, "tp": 2, "pp": 4}, {"pp": 4, "vpp": 2, "microbatches": 6}]
)
def test_the_parts_sum_to_the_iteration(plan: dict[str, Any]) -> None:
    shown = str(ppsim.project(**plan)).partition("where it goes")[2].partition("try next")[0]
    percents = [float(one) for one in re.findall(r"(-?[\d.]+) %", shown)]
    assert sum(percents) == pytest.approx(100, abs=1.5)  # less than a hundredth is no line


def test_full_prints_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    text = command("project", "--pp", "4", "--full").stdout
    assert "where an iteration goes" in text
    assert "P2P serialization" in text
    assert len(text.splitlines()) > 30
    made = ppsim.project(pp=4)
    first_screen(made, made.summary)
    assert capsys.readouterr().out.strip() == str(made).strip()


def test_a_list_has_ten_rows_and_says_how_many_more() -> None:
    lines = command("project", "--pp", "4", "--schedule", "all").stdout.splitlines()
    assert sum(bool(re.match(r"[a-z][\w-]*[*!]* +(all|torch.*) +\d", line)) for line in lines) == 10
    found = ppsim.project_all(pp=4)
    assert f"{len(found.projections) - 10} more: --full" in lines


def test_quantities_are_declared_once_for_json_columns_card_and_reference() -> None:
    made = ppsim.project(pp=4)
    report, columns = made.to_json(), ppsim.project_all(pp=4).to_frame().columns
    for one in QUANTITIES:
        if "json" in one.views:
            assert report[one.key] == one.of(made)
        if "columns" in one.views:
            assert one.key in columns
    for text in texts_of(made, "card").values():
        assert text in made._repr_html_()
    reference = (ROOT / "docs" / "formats.md").read_text()
    assert all(f"| `{one.key}` | " in reference for one in QUANTITIES)


TIGHT: dict[str, Any] = {"model": "qwen3-30b-a3b", "cluster": "dgx-b300", "gpus": 8, "pp": 1, "ep": 8, "micro_batch_size": 8,
         "global_batch_size": 512, "dtype": "mxfp8", "cuda_graphs": "attn", "stack": "plain"}  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_reason_is_cut_on_a_narrow_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ppsim.project(**TIGHT)
    monkeypatch.setattr("ppsim.results.text_layout.WIDTH", width)
    first_screen(made, made.summary)
    shown = capsys.readouterr().out
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert max(map(len, plain.splitlines())) <= width
    words = " ".join(plain.split())
    verdict = made.verdict
    assert verdict is not None
    assert all(text in words for text in (str(verdict), verdict.notes[0]))
    assert shown.count("\x1b[0m") >= shown.count("\x1b[1m"), "no style reaches the next line"
