"""Which sizes and shapes `ppsim.profile` measures by its options."""

from typing import Any

import pytest

from ppsim.api.profile import keys_from, model_from
from ppsim.base.errors import ConfigError

pytest.importorskip("torch")

GIVEN: dict[str, Any] = dict.fromkeys(
    ("model", "hidden", "heads", "layers", "dtype", "recompute", "tp", "cp", "ep", "seq_len", "micro_batch")
)


def test_sizes_are_those_of_the_model_but_the_given() -> None:
    usual = model_from(GIVEN)
    other = model_from(GIVEN | {"hidden": 256, "heads": 8, "layers": 3})
    assert usual.num_layers not in (None, 3)
    assert (other.num_layers, other.layer.hidden_size, other.layer.num_heads) == (3, 256, 8)
    assert other.sequence_length == usual.sequence_length
    with pytest.raises(ConfigError, match="llama3-8b has other sizes beside them"):
        model_from(GIVEN | {"model": "llama3-8b", "heads": 8})


def test_shapes_are_all_combinations_of_the_given_numbers() -> None:
    model = model_from(GIVEN)
    [usual] = keys_from(GIVEN, model)
    assert (usual.micro_batch, usual.sequence_length, usual.tp, usual.cp, usual.ep) == (
        2, model.sequence_length, 1, 1, 1,
    )  # fmt: skip
    assert (usual.dtype, usual.recompute) == ("float32", "none")
    several = keys_from(GIVEN | {"tp": [1, 2], "micro_batch": (1, 4), "seq_len": 128, "dtype": "bfloat16"}, model)
    assert [(one.tp, one.micro_batch) for one in several] == [(1, 1), (1, 4), (2, 1), (2, 4)]
    assert {(one.sequence_length, one.dtype, one.cp, one.ep) for one in several} == {(128, "bfloat16", 1, 1)}
    with pytest.raises(ConfigError, match="tp must be at least 1"):
        keys_from(GIVEN | {"tp": [0, 1]}, model)
