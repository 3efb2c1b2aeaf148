"""Linear layers in 8 bit: close to bfloat16, as many bytes kept, a backward that can be split."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounter

from ppsim.base.errors import ConfigError
from ppsim.model import shapes
from ppsim.profiling import float8
from ppsim.profiling import float8 as float8_module
from ppsim.profiling.float8 import Float8Linear, cast_plainly, fused_cast, require_float8, to_float8
from ppsim.profiling.harness import measure_shape, why_not_split
from ppsim.profiling.layers import build_layer
from ppsim.profiling.measure import MeasuredModule, measure
from ppsim.profiling.model_shapes import MODELS
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings
from ppsim.profiling.sweep import SuiteJob, sweep
from tests.profiling.once import ONCE
from tests.profiling.test_checkpointing import every_fifth

from .test_layers import BATCH, CPU, SEQUENCE, shard_of

try:
    require_float8(CPU, 16)
except ConfigError as error:
    pytest.skip(str(error), allow_module_level=True)


def test_output_and_gradients_are_those_of_bfloat16_to_the_precision_of_8_bit() -> None:
    """e4m3 has 3 bits behind the point, e5m2 has 2: about 4 % of noise a product, less than 10 %."""
    torch.manual_seed(0)
    plain = nn.Linear(64, 96).bfloat16()
    short = to_float8(nn.Sequential(nn.Linear(64, 96).bfloat16()), cast_plainly)[0]
    assert isinstance(short, Float8Linear)
    short.load_state_dict(plain.state_dict())
    found = []
    for linear in (plain, short):
        x = torch.randn(
            4, 32, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1)
        ).requires_grad_()
        output = linear(x)
        output.backward(torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(2)))
        found.append([one.double() for one in (output.detach(), x.grad, linear.weight.grad, linear.bias.grad)])
    errors = [float((other - one).norm() / one.norm()) for one, other in zip(*found, strict=True)]
    assert all(0 < error < 0.1 for error in errors[:3])
    assert errors[3] < 0.01  # of the bias no product


@pytest.fixture
def quick_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 32 bit: torch's own in 8 bit take a CPU a thousand times as long."""
    monkeypatch.setattr(
        float8,
        "_product",
        lambda left, by, right, times, is_fast: (by * left.float() @ (times * right.float()).t()).bfloat16(),
    )


@pytest.mark.usefixtures("quick_products")
@pytest.mark.parametrize(
    ("case", "recompute"),
    every_fifth(["gpt", "llama", "moe, shared"], ["none", "layernorm+mlp_act+moe_act", "mlp+moe", "full"]),
)
def test_a_layer_in_8_bit_keeps_what_it_keeps_in_bfloat16_and_can_be_split(case: str, recompute: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = to_float8(build_layer(shard_of(case), SEQUENCE, recompute=recompute).bfloat16(), cast_plainly)  # type: ignore[arg-type]
    assert sum(isinstance(one, Float8Linear) for one in layer.modules()) >= 4
    subject = MeasuredModule(layer, [torch.randn(BATCH, SEQUENCE, 64, dtype=torch.bfloat16)])
    assert why_not_split(subject) is None
    formula = shapes.layer_activation_bytes(
        shard_of(case), micro_batch=BATCH, sequence_length=SEQUENCE, dtype="bfloat16",
        recompute=recompute, fused_norm=False,  # type: ignore[arg-type]
    )  # fmt: skip
    saved = measure([subject], ONCE)[0].activation_bytes
    assert saved == pytest.approx(formula, rel=0.02)


def test_on_a_gpu_the_compiler_makes_the_casts_and_the_file_says_who_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler is left out: what is handed to it, what then casts, and what is said where it fails."""
    torch.utils._device._device_constructors()  # torch keeps this list: it must not have the replaced torch.ones
    handed: list[tuple[object, object]] = []
    casts: list[tuple[int, ...]] = []

    def compiled(function: object, dynamic: object) -> object:
        handed.append((function, dynamic))

        def cast(tensor: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
            casts.append(tuple(tensor.shape))
            return cast_plainly(tensor, kind)

        return cast

    def fails(function: object, dynamic: object) -> object:
        raise RuntimeError("Failed to find C compiler. Please specify via CC")

    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *sizes, **fields: ones(*sizes, **fields | {"device": "cpu"}))
    monkeypatch.setattr(torch, "compile", compiled)
    cast, said = fused_cast.__wrapped__("cuda")
    assert (handed, said) == ([(cast_plainly, False)], "fp8: casts by torch.compile.")
    casts.clear()
    layer = to_float8(nn.Sequential(nn.Linear(64, 96, bias=False).bfloat16()), cast)
    x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    layer(x).sum().backward()
    assert sorted(casts) == sorted([(32, 64), (96, 64), (32, 96), (64, 96), (96, 32), (64, 32)])
    monkeypatch.setattr(torch, "compile", lambda *arguments, **fields: fails)
    assert fused_cast.__wrapped__("cuda") == (
        cast_plainly, "fp8: casts by torch's operators, since torch.compile fails (Failed to find C compiler)."
    )  # fmt: skip
    assert fused_cast.__wrapped__("cuda", compiled=True)[0] is cast_plainly
    content = sweep(SuiteJob("nano", MODELS["nano"], (MeasurementKey(1, 16, "fp8"),), tmp_path / "p.json"), ONCE)
    assert content["provenance"]["notes"][-1] == "fp8: casts by torch's operators, one after the other."


@pytest.mark.slow
@pytest.mark.usefixtures("quick_products")
def test_the_compiler_makes_every_kind_of_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    """By type, layout and size: more than 8, its limit, behind which it makes none and says nothing."""
    counter, compiler, ones = CompileCounter(), torch.compile, torch.ones
    monkeypatch.setattr(torch, "ones", lambda *sizes, **fields: ones(*sizes, **fields | {"device": "cpu"}))
    monkeypatch.setattr(
        torch, "compile", lambda function, dynamic: compiler(function, dynamic=dynamic, backend=counter)
    )
    torch._dynamo.reset()
    shape = MODELS["llama-mini"]
    with torch._dynamo.config.patch(recompile_limit=8, accumulated_recompile_limit=8):
        cast, _ = fused_cast.__wrapped__("cuda")
        for recompute, batch in (("none", 1), ("layernorm+mlp_act", 2)):  # 128 tokens of 128 numbers are a square
            layer = build_layer(shape.layer, 128, recompute=recompute).bfloat16()  # type: ignore[arg-type]
            x = torch.randn(batch, 128, shape.layer.hidden_size, dtype=torch.bfloat16)
            assert why_not_split(MeasuredModule(to_float8(layer, cast), [x])) is None
    assert counter.frame_count > 8


def test_forward_products_accumulate_fast_and_those_of_gradients_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    fast: list[bool] = []
    product = torch._scaled_mm

    def noting(*arguments: torch.Tensor, use_fast_accum: bool, **fields: object) -> torch.Tensor:
        fast.append(use_fast_accum)
        return product(*arguments, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(torch, "_scaled_mm", noting)
    layer = to_float8(nn.Sequential(nn.Linear(64, 96).bfloat16()), cast_plainly)
    x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    output = layer(x)
    assert fast == [True]
    output.sum().backward()
    assert fast == [True, False, False]


def test_the_harness_measures_it_and_refuses_odd_numbers_of_tokens() -> None:
    settings = MeasuringSettings(num_repeats=1, num_warm_up=0)
    key = MeasurementKey(micro_batch=1, sequence_length=16, dtype="fp8")
    layer = measure_shape(MODELS["nano"], key, settings)[1]
    assert layer["shape"]["dtype"] == "fp8"
    with pytest.raises(ConfigError, match="fp8 needs a multiple of 16 tokens per microbatch and rank: got 7"):
        measure_shape(MODELS["nano"], MeasurementKey(micro_batch=1, sequence_length=7, dtype="fp8"), settings)


def test_what_cannot_multiply_in_8_bit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*arguments: object, **fields: object) -> None:
        raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 8.9")

    monkeypatch.setattr(torch, "_scaled_mm", refuses)
    with pytest.raises(
        ConfigError, match=r"fp8 products do not run with torch .* on cpu: torch._scaled_mm is only"
    ):
        require_float8(CPU, 16)


def test_sizes_are_multiples_of_16_for_8_bits() -> None:
    assert (float8_module._ALIGNED, float8_module._MOST_CASTS) == (16, 1000)
