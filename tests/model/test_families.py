"""Readers of decoders of attention and SwiGLU give these layers."""

import pytest

from ppsim.model import families as families_module
from ppsim.model.families import READERS
from tests.defaults import number_defaults
from tests.model.reader_cases import OF_FAMILIES, require_layers_of


@pytest.mark.parametrize("kind", OF_FAMILIES)
def test_a_file_gives_these_layers(kind: str) -> None:
    require_layers_of(kind, OF_FAMILIES)


def test_models_of_one_class_have_one_reader() -> None:
    readers = {kind: READERS[kind] for kind in READERS.keys() - OF_FAMILIES.keys()}
    assert readers == {
        "glm4_moe_lite": READERS["deepseek_v3"],
        "glm_moe_dsa": readers["glm_moe_dsa"],
        "hunyuan_v1_moe": READERS["hunyuan"],
        "kimi_k2": READERS["deepseek_v3"],
        "sarvam_mla": READERS["deepseek_v3"],
    }
    assert READERS["glm_moe_dsa"].keywords == READERS["deepseek_v32"].keywords


def test_what_is_left_out_in_model_families_has_these_values() -> None:
    assert number_defaults(families_module) == {
        "_dense": {"windows": False},
        "_granite": {"has_experts": False, "has_shared": False},
        "_latent": {"router_bias": True, "is_sparse": False},
        "_sparse": {"router_bias": True, "first": 0, "windows": False},
    }  # fmt: skip
