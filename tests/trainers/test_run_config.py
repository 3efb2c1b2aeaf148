"""What a file leaves open is assumed and noted, and what is typed replaces it."""

from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.trainers.run_config import IgnoredOption, RunConfig

MODEL: Any = SimpleNamespace(encoders=[SimpleNamespace(sentence="image encoder")], left_out="an audio encoder")


def config(*, model: Any = None, notes: tuple[str, ...] = (), launcher_gpus: int = 1, **options: Any) -> RunConfig:
    return RunConfig(
        "Megatron-LM", "x.sh", options, model, "no layers", ignored=(IgnoredOption("a", float("inf"), "time"),),
        notes=notes, launcher_gpus=launcher_gpus, read_options=(("tensor_model_parallel_size", "tp"),),
    )  # fmt: skip


@pytest.mark.parametrize("known", [{"gpus": 8}, {"dp": 2}])
def test_a_number_of_gpus_or_replicas_is_not_assumed(known: dict[str, int]) -> None:
    assert config(notes=("n",), tp=2, **known).assumed == ("n",)
    assert config(tp=2).beside(known).assumed == ()


def test_the_fewest_gpus_are_assumed_in_multiples_of_the_launchers() -> None:
    assert config(tp=2, pp=3).assumed[0].startswith("no number of GPUs is given: 6 assumed")
    assert config(tp=2, pp=3, launcher_gpus=8).assumed[0].startswith("no number of GPUs is given: 24 assumed")
    assert (
        config(tp=2, pp=3)
        .beside({"pp": 5, "cp": None})
        .assumed[0]
        .startswith("no number of GPUs is given: 10 assumed")
    )


def test_encoders_and_parts_that_are_left_out_are_noted_unless_their_options_are_given() -> None:
    read = config(model=MODEL, gpus=8, notes=("n",))
    assert read.assumed == ("image encoder", "an audio encoder", "n")
    for typed in ({"image_tokens": "64"}, {"text_only": True}):
        assert read.beside(typed).assumed == ("an audio encoder", "n")
    assert read.beside({"model": "gpt2"}).assumed == ("n",)
    without = SimpleNamespace(encoders=[], left_out="")
    assert config(model=without, gpus=8).assumed == ()


def test_a_given_option_replaces_itself_and_the_same_settings() -> None:
    assert config().replaced_by(["gpus"]) == {"gpus", "dp"}
    assert config().replaced_by(["tp"]) == {"tp"}
    of_bridge = RunConfig("x", "x", {}, None, "", recipe=SimpleNamespace(trainer="megatron-bridge"))  # type: ignore[arg-type]
    assert of_bridge.replaced_by(["tp"]) == {"tp", "sequence_parallel"}
    assert of_bridge.replaced_by(["pp"]) == {"pp"}


def test_json_has_the_options_with_values_that_it_knows() -> None:
    assert config(gpus=8, notes=("n",)).to_json() == {
        "trainer": "Megatron-LM", "source": "x.sh", "options": {"gpus": 8},
        "read_options": {"tensor_model_parallel_size": "tp"},
        "ignored": [{"name": "a", "value": "inf", "effect": "time"}], "assumed": ["n"],
    }  # fmt: skip
