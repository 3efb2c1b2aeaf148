"""DeepSpeed's instructions: every pair of ranks meets in one order, and what its engine cannot do is refused."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim
from ppsim import build
from ppsim.errors import ConfigError, ScheduleError
from ppsim.integrations.deepspeed import install
from ppsim.trainers.deepspeed import write_schedule as module
from ppsim.trainers.deepspeed.write_schedule import deepspeed_instructions


def met(ranks: list[list[tuple[str, int]]]) -> bool:
    """Whether all instructions are executed where a send waits for its receive, and a receive for its send."""
    at = [0] * len(ranks)
    pairs = {"SendActivation": ("RecvActivation", 1), "SendGrad": ("RecvGrad", -1)}
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(ranks):
            while at[rank] < len(row):
                name = row[at[rank]][0]
                if name in pairs:
                    expected, step = pairs[name]
                    peer = rank + step
                    if at[peer] >= len(ranks[peer]) or ranks[peer][at[peer]][0] != expected:
                        break
                    at[peer] += 1
                elif name.startswith("Recv"):
                    break
                at[rank] += 1
                moved = True
    return all(place == len(row) for place, row in zip(at, ranks, strict=True))


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(["1f1b", "eager-1f1b"]), pp=st.integers(2, 9), microbatches=st.integers(1, 20))
def test_blocking_sends_and_receives_never_wait_in_a_circle(name: str, pp: int, microbatches: int) -> None:
    require_executable(deepspeed_instructions(ppsim.build(name, pp=pp, microbatches=microbatches)), microbatches)


def test_gradients_that_arrive_long_before_they_are_used_wait_with_their_sender(tmp_path: Path) -> None:
    first = ",".join([*(f"0F{m}" for m in range(8)), *(f"0B{m}" for m in range(8))])
    last = ",".join(f"1F{m},1B{m}" for m in range(8))
    (tmp_path / "t.csv").write_text(f"{first}\n{last}\n")
    require_executable(deepspeed_instructions(ppsim.read_schedule(tmp_path / "t.csv")), 8)


def require_executable(found: dict[str, Any], microbatches: int) -> None:
    """What the engine takes for granted of a list of instructions."""
    assert met(found["ranks"])
    last = len(found["ranks"]) - 1
    for rank, row in enumerate(found["ranks"]):
        names = [name for name, _ in row]
        assert names.count("ForwardPass") == names.count("BackwardPass") == microbatches
        assert names.count("LoadMicroBatch") == (microbatches if rank in (0, last) else 0)
        for place, (one, buffer) in enumerate(row):
            assert one != "LoadMicroBatch" or row[place + 1] == ("ForwardPass", buffer)
        for place, one in enumerate(names):  # the engine has one place for what it receives of gradients
            if one == "RecvGrad":
                rest = names[place + 1 :]
                assert "RecvGrad" not in rest[: rest.index("BackwardPass")]


def test_a_buffer_holds_one_microbatch_from_its_forward_to_its_gradient() -> None:
    found = deepspeed_instructions(ppsim.build("1f1b", pp=4, microbatches=8))
    assert found["buffers"][0] >= 4
    for row in found["ranks"]:
        held: set[int] = set()
        for name, buffer in row:
            if name == "ForwardPass":
                assert buffer not in held
                held.add(buffer)
            elif name == "BackwardPass":
                held.remove(buffer)


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("zb-h1", {}, "no split backward"),
        ("interleaved-1f1b", {"vpp": 2}, "one stage per rank"),
        ("gpipe", {}, "keeps one loss"),
    ],
)
def test_what_the_engine_cannot_do_is_refused(name: str, words: dict[str, int], sentence: str) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        ppsim.export(ppsim.build(name, pp=4, microbatches=8, **words), to="deepspeed")


def test_a_file_of_another_shape_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(ppsim.export(ppsim.build("1f1b", pp=4, microbatches=8), to="deepspeed"))
    engine = SimpleNamespace(num_stages=2, gradient_accumulation_steps=lambda: 8)
    with pytest.raises(ConfigError, match="has 4 stages, the engine 2"):
        install(engine, path)
    path.write_text(json.dumps({"format": "other"}))
    with pytest.raises(ConfigError, match="was not written by ppsim export --to deepspeed"):
        install(engine, path)


def test_instructions_of_two_ranks_and_two_microbatches_by_hand() -> None:
    """F and B take 1 s: rank 1 runs F0, B0, F1 and B1 from 1 s on, and rank 0 its backwards at 3 and at 5 s."""
    load, forward, backward = module._LOAD, module._FORWARD, module._BACKWARD
    (sends, sends_back), (receives, receives_back) = module._SENDS, module._RECEIVES
    assert module._events(build("1f1b", pp=2, microbatches=2)) == [
        [
            (load, 0), (forward, 0), (sends, 0), (load, 1), (forward, 1), (sends, 1), (receives_back, 0), (backward, 0),
            (receives_back, 1), (backward, 1),
        ],
        [
            (receives, 0), (load, 0), (forward, 0), (receives, 1), (backward, 0), (sends_back, 0), (load, 1), (forward, 1),
            (backward, 1), (sends_back, 1),
        ],
    ]  # fmt: skip
