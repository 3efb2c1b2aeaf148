"""Devices, links, domains and fitted constants of a cluster, by their definitions."""

from dataclasses import replace

import pytest

from ppsim.base.errors import ConfigError
from ppsim.machine import cluster as cluster_module
from ppsim.machine.cluster import (
    Cluster,
    Constant,
    Constants,
    Device,
    Efficiency,
    GemmWorkspaces,
    InSituRatio,
    Link,
    Tier,
)
from tests.defaults import field_defaults

MIB = 2**20
LINK = Link(name="wire", bytes_per_s=100.0, efficiency=0.5, reduction_gain=1.0, launch_s=0.0, step_s=0.0, source="")
CLASS = Efficiency(
    matmul={"bfloat16": 0.8, "float8": 0.6}, wave_tail=1, depth_tail=1, attention_forward=0.4, attention_backward=0.3,
    memory=0.9, optimizer=0.7, kernel_s=1e-6, host_s=2e-6, scan_flops_per_s=1e9, source="",
)  # fmt: skip
DEVICE = Device(
    name="chip", efficiency_class="class", num_cores=10, memory_bytes=1000, memory_bytes_per_s=10.0,
    peak_flops_per_s={"bfloat16": 100.0, "float8": 200.0, "float4": 400.0}, efficiency=CLASS, source="",
)  # fmt: skip
CLUSTER = Cluster(
    name="own", title="own", device=DEVICE, source="",
    tiers=(Tier("node", 8, LINK), Tier("network", None, replace(LINK, name="cable"))),
)  # fmt: skip


@pytest.mark.parametrize(
    ("has_engine", "has_experts", "is_deterministic", "mib"),
    [
        (False, False, False, 2 * 32),
        (False, True, True, 2 * 32),
        (True, False, False, 3 * 32),
        (True, True, False, 7 * 32),
    ],
)
def test_hopper_has_a_workspace_per_thread_and_engine_stream(
    has_engine: bool, has_experts: bool, is_deterministic: bool, mib: int
) -> None:
    bytes_ = GemmWorkspaces().allocated(
        has_engine=has_engine, has_experts=has_experts, is_deterministic=is_deterministic
    )
    assert bytes_ == mib * MIB


def test_deterministic_mode_fixes_torchs_workspaces_only() -> None:
    small = GemmWorkspaces(torch=8 * MIB, transformer_engine=4 * MIB)
    assert small.allocated(has_engine=True, has_experts=True, is_deterministic=False) == (2 * 8 + 5 * 4) * MIB
    assert small.allocated(has_engine=True, has_experts=True, is_deterministic=True) == (2 * 32 + 5 * 4) * MIB


def test_a_dtype_without_a_peak_has_that_of_the_same_width() -> None:
    assert [DEVICE.peak(dtype) for dtype in ("float8", "float8-row", "float8-block")] == [200.0] * 3
    assert [DEVICE.peak(dtype) for dtype in ("float4", "nvfp4", "mxfp4")] == [400.0] * 3
    with pytest.raises(ConfigError, match="float16"):
        DEVICE.peak("float16")


def test_a_dtype_without_a_share_has_that_of_the_next_wider() -> None:
    assert [DEVICE.matmul_share(dtype) for dtype in ("float8", "float4", "nvfp4", "mxfp8", "float8-row")] == [
        0.6
    ] * 5
    assert [DEVICE.matmul_share(dtype) for dtype in ("bfloat16", "float16", "tf32", "float32")] == [0.8] * 4
    only_wide = replace(DEVICE, efficiency=replace(CLASS, matmul={"float32": 0.9, "bfloat16": 0.8}))
    dtypes = ("float4", "nvfp4", "mxfp4", "float8", "float8-row", "float8-block", "mxfp8", "float16", "tf32")
    assert [only_wide.matmul_share(dtype) for dtype in dtypes] == [0.8] * len(dtypes)
    assert (
        replace(DEVICE, efficiency=replace(CLASS, matmul={"tf32": 0.9, "float32": 0.7})).matmul_share("float8")
        == 0.7
    )


def test_a_share_of_compute_slows_gemms_attention_and_scans() -> None:
    ratio = InSituRatio(factors={"bfloat16": 1.5}, sigma=0.1, source="")
    class_ = replace(
        CLASS, unmasked_attention={"forward": 0.2}, deterministic_attention={"forward": 0.6}, in_situ=ratio
    )  # fmt: skip
    slow = replace(DEVICE, efficiency=class_).computing_at(0.5).efficiency
    assert slow.matmul == {"bfloat16": 0.4, "float8": 0.3}
    assert (slow.attention_forward, slow.attention_backward) == (0.2, 0.15)
    assert (slow.unmasked_attention, slow.deterministic_attention) == ({"forward": 0.1}, {"forward": 0.3})
    assert slow.scan_flops_per_s == 0.5e9
    assert slow.in_situ == replace(ratio, factors={"bfloat16": 3.0})
    assert (slow.memory, slow.optimizer, slow.kernel_s) == (CLASS.memory, CLASS.optimizer, CLASS.kernel_s)
    plain = DEVICE.computing_at(0.5).efficiency
    assert (plain.unmasked_attention, plain.deterministic_attention, plain.in_situ) == (None, None, None)


def test_a_device_without_further_constants_has_neutral_ones() -> None:
    assert (CLASS.routing_host_s, CLASS.jitter, CLASS.experts, dict(CLASS.operator_time)) == (0, 0, 1, {})


def test_part_of_a_mesh_has_its_links_to_the_group() -> None:
    mesh = replace(LINK, is_mesh=True)
    assert mesh.among(4, 8).efficiency == pytest.approx(0.5 * 3 / 7)
    assert mesh.among(8, 8) == mesh.among(9, 8) == mesh.among(4, None) == mesh
    assert Tier("node", 8, mesh).p2p_link.efficiency == pytest.approx(0.5 / 7)
    assert Tier("node", 8, LINK).p2p_link == LINK


def test_half_a_domain_loses_bandwidth_once_per_halving() -> None:
    assert LINK.among(2, 8) == LINK
    lossy = replace(LINK, small_group_loss=0.1)
    assert [lossy.among(n, 8).efficiency for n in (8, 4, 2)] == pytest.approx([0.5, 0.5 * 0.9, 0.5 * 0.9**2])


def test_a_token_copy_by_deepep_needs_enough_sms() -> None:
    link = replace(LINK, dispatch_share=0.25, token_s=1.0, dispatch_sms=20)
    copy_s = 1.0 + 100.0 / (100 * 0.5 * 0.25)
    assert link.token_copy_s(100.0, hybrid=False, num_sms=40) == pytest.approx(copy_s)
    assert link.token_copy_s(100.0, hybrid=False, num_sms=10) == pytest.approx(2 * copy_s)
    assert link.token_copy_s(100.0, hybrid=True, num_sms=10) == pytest.approx(copy_s)
    assert LINK.token_copy_s(100.0, hybrid=False, num_sms=1) == pytest.approx(100.0 / (100 * 0.5))


def test_a_token_copy_by_hybridep_gains_per_doubling_of_sms_up_to_32() -> None:
    link = replace(LINK, hybrid_share=0.5, hybrid_token_s=2.0, hybrid_sms_gain=0.5)
    copy_s = 2.0 + 100.0 / (100 * 0.5 * 0.5)
    seconds = [link.token_copy_s(100.0, hybrid=True, num_sms=sms) for sms in (64, 32, 16, 8)]
    assert seconds == pytest.approx([copy_s, copy_s, 1.5 * copy_s, 1.5**2 * copy_s])
    plain = replace(LINK, hybrid_share=0.5)
    assert plain.token_copy_s(100.0, hybrid=True, num_sms=8) == pytest.approx(100.0 / (100 * 0.5 * 0.5))


def test_the_own_part_of_a_message_is_free_unless_its_copy_has_a_rate() -> None:
    assert LINK.copied_s(100.0) == 0
    assert replace(LINK, copy_bytes_per_s=50.0).copied_s(100.0) == 2
    assert (LINK.exchange_share, LINK.dispatch_share, LINK.is_mesh) == (1, 1, False)


def test_a_job_fills_domains_or_gets_their_usable_devices() -> None:
    tier = Tier("rack", 72, LINK, usable_devices=64)
    assert [tier.size_for(n) for n in (8, 72, 128, 144, 216, 576, 100)] == [72, 72, 64, 72, 72, 64, 64]
    assert Tier("rack", 72, LINK).size_for(128) == 72
    assert Tier("rack", 72, LINK, usable_devices=36).size_for(72) == 72
    assert Tier("network", None, LINK, 64).size_for(128) is None
    assert replace(CLUSTER, tiers=(tier, Tier("network", None, LINK))).domain_sizes(128) == (64, None)


def test_constants_are_named_by_kind_and_kept_beside_others() -> None:
    constants = Constants(
        compute_share={"float8": Constant(value=0.9)}, overlap={"tp": Constant(value=0.8, sigma=0.1)},
        jitter=Constant(value=0.02),
    )  # fmt: skip
    assert list(constants.named) == ["compute_share.float8", "overlap.tp", "jitter"]
    more = constants.having(
        {
            "overlap.ep": Constant(value=0.7),
            "compute_share.float8": Constant(value=1.0),
            "launch_s": Constant(value=3.0),
        }
    )
    assert {name: one.value for name, one in more.named.items()} == {
        "compute_share.float8": 1.0, "overlap.tp": 0.8, "overlap.ep": 0.7, "launch_s": 3.0, "jitter": 0.02,
    }  # fmt: skip
    other = constants.with_values({"overlap.tp": 0.5, "kernel_s": 1.0})
    assert other.overlap == {"tp": Constant(value=0.5, sigma=0.1)}
    assert other.kernel_s is None
    assert other.jitter == constants.jitter


def test_constants_replace_those_of_the_gpu_type_and_of_the_links() -> None:
    constants = Constants(
        kernel_s=Constant(value=5.0), jitter=Constant(value=0.1), operator_time={"memory": Constant(value=1.2)},
        link_efficiency={"node": Constant(value=0.25)}, compute_share={"float8": Constant(value=0.5)},
    )  # fmt: skip
    fitted = CLUSTER.with_constants(constants)
    class_ = fitted.device.efficiency
    assert (class_.kernel_s, class_.jitter, class_.routing_host_s, class_.operator_time) == (
        5.0,
        0.1,
        0.0,
        {"memory": 1.2},
    )
    assert [tier.link.efficiency for tier in fitted.tiers] == [0.25, 0.5]
    assert fitted.constants == constants
    assert fitted.device_for("float8").efficiency.matmul["bfloat16"] == 0.4
    assert fitted.device_for("bfloat16") is fitted.device_for("float8", 1.0) is fitted.device
    assert fitted.device_for("float8", 0.25).efficiency.matmul["float8"] == 0.15


def test_links_and_gpu_types_have_neutral_defaults() -> None:
    assert field_defaults(Link) == {
        "small_group_loss": 0.0, "is_mesh": False, "exchange_share": 1.0, "dispatch_share": 1.0, "token_s": 0.0,
        "dispatch_sms": 0.0, "hybrid_token_s": 0.0, "hybrid_sms_gain": 0.0,
    }  # fmt: skip
    assert field_defaults(Efficiency) == {"routing_host_s": 0.0, "jitter": 0.0, "experts": 1.0}
    assert field_defaults(Device) == {"gemm_workspaces": GemmWorkspaces(2**25, 2**25), "has_runs": True}
    assert cluster_module._HYBRID_SMS == 32
