"""Cluster files: the packaged ones are sound, a user's is read whole or refused with every wrong key."""

import tomllib
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Annotated

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import AboveZero, Bounds, FileSchema, NonNegative, validated
from ppsim.machine import cluster_files
from ppsim.machine.cluster import Cluster, Constant, Constants, Device, Efficiency, GemmWorkspaces, Link, Tier
from ppsim.machine.cluster_files import Share, cluster_from, efficiency_of, load_cluster, packaged_clusters
from tests.defaults import field_defaults

HARDWARE = Path(ppsim.__file__).parent / "machine" / "data"

OWN = """
format = "ppsim-cluster/1"
name = "own"
device = "h100-sxm"
num_devices = 64

[[tiers]]
name = "node"
num_devices = 8
link = "nvlink4"

[[tiers]]
name = "network"
link = { bytes_per_s = 25e9, efficiency = 0.7, launch_s = 2e-5, step_s = 5e-6 }
"""

IN_CLUSTERS = {
    "a100-80gb-sxm", "h100-sxm", "h100-96gb", "h100-pcie", "h200", "b200", "gb200", "b300", "gb300", "l40s",
    "rtx-pro-6000", "mi300x", "mi325x", "mi350x", "mi355x", "gh200", "h20", "vr200", "r100",
}  # fmt: skip


def test_every_packaged_cluster_is_named_as_its_file_and_every_number_has_a_source():
    clusters = {name: load_cluster(name) for name in packaged_clusters()}
    assert all(cluster.name == name for name, cluster in clusters.items())
    devices = tomllib.loads((HARDWARE / "devices.toml").read_text())
    links = tomllib.loads((HARDWARE / "links.toml").read_text())
    classes = tomllib.loads((HARDWARE / "efficiency.toml").read_text())
    assert set(devices) == IN_CLUSTERS | {"h100-nvl", "h200-nvl"}
    assert {cluster.device.name for cluster in clusters.values()} == {devices[name]["name"] for name in IN_CLUSTERS}
    for entries in (devices, links, classes):
        assert all(len(entry["source"]) > 10 for entry in entries.values())
    assert {device["efficiency"] for device in devices.values()} == set(classes)


def test_peaks_are_dense_and_grow_as_types_shrink():
    for name in packaged_clusters():
        peaks = load_cluster(name).device.peak_flops_per_s
        known = [
            peaks[dtype]
            for dtype in ("float32", "tf32", "bfloat16", "float8", "mxfp8", "mxfp4", "nvfp4")
            if dtype in peaks
        ]
        assert known == sorted(known)
        assert peaks["bfloat16"] == peaks["float16"]


def test_a_domain_of_nvl72_has_72_devices():
    assert load_cluster("gb200-nvl72").domain_sizes(72) == (72, None)


def test_a_users_file_may_name_packaged_parts_or_spell_them_out(tmp_path):
    (tmp_path / "own.toml").write_text(OWN)
    cluster = load_cluster(tmp_path / "own.toml")
    assert cluster.num_devices == 64
    assert cluster.device == load_cluster("dgx-h100").device
    assert cluster.tiers[0] == load_cluster("dgx-h100").tiers[0]
    assert cluster.tiers[1].link.achieved_bytes_per_s == pytest.approx(17.5e9)


def test_yaml_says_the_same_as_toml(tmp_path):
    text = """
    format: ppsim-cluster/1
    name: own
    device: h100-sxm
    num_devices: 64
    tiers:
      - {name: node, num_devices: 8, link: nvlink4}
      - name: network
        link: {bytes_per_s: 25.0e+9, efficiency: 0.7, launch_s: 2.0e-5, step_s: 5.0e-6}
    """
    (tmp_path / "own.yaml").write_text(text)
    (tmp_path / "own.toml").write_text(OWN)
    assert load_cluster(tmp_path / "own.yaml") == load_cluster(tmp_path / "own.toml")


def test_every_wrong_key_is_named_at_once(tmp_path):
    wrong = OWN.replace("25e9", "-25e9").replace("nvlink4", "nvlink9").replace("num_devices = 64", "devices = 64")
    (tmp_path / "own.toml").write_text(wrong.replace("0.7", "1.7"))
    with pytest.raises(ConfigError) as caught:
        load_cluster(tmp_path / "own.toml")
    message = str(caught.value)
    for part in (
        "tiers[0].link: unknown link 'nvlink9': did you mean nvlink",
        "tiers[1].link.bytes_per_s: must be more than 0, got -25000000000.0",
        "tiers[1].link.efficiency: must be at most 1, got 1.7",
        "devices: unknown key (did you mean device",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("name = \"node\"\nnum_devices = 8", "name = \"node\""), "tier node says no num_devices; only the outermost can do without"),
        (("name = \"network\"", "name = \"network\"\nnum_devices = 60"), "no multiple of the 8 of node inside it"),
        (("name = \"network\"", "name = \"network\"\nnum_devices = 32"), "num_devices is 64, more than the 32 of its outermost tier network"),
        (("num_devices = 8", "num_devices = 8\nusable_devices = 9"), "usable_devices is 9, but a domain has 8"),
        (("h100-sxm", "h100-sxn"), "unknown device 'h100-sxn': did you mean h100-sxm"),
        (("[[tiers]]", "[[tiers"), "is not valid TOML"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_is_refused_in_a_sentence(tmp_path, change, words):
    (tmp_path / "own.toml").write_text(OWN.replace(*change, 1))
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        load_cluster(tmp_path / "own.toml")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dgx-h10", "unknown cluster 'dgx-h10': did you mean dgx-h100"),
        ("qqqq", "there are a100-800g, dgx-a100"),
        ("nope.toml", "cannot read nope.toml"),
    ],
)
def test_an_unknown_name_gets_the_close_ones(name, words):
    with pytest.raises(ConfigError, match=words):
        load_cluster(name)


class InSituTable(FileSchema):
    sigma: NonNegative
    source: str
    factors: Annotated[dict[str, AboveZero], Bounds(min_length=1)]


class EfficiencyTable(FileSchema):
    """What hardware/efficiency.toml may have of a class."""

    matmul: Annotated[dict[str, Share], Bounds(min_length=1)]
    wave_tail: NonNegative
    depth_tail: NonNegative
    attention_forward: Share
    attention_backward: Share
    memory: Share
    optimizer: Share
    kernel_s: NonNegative
    host_s: NonNegative
    scan_flops_per_s: AboveZero
    source: str
    routing_host_s: NonNegative = 0.0
    jitter: NonNegative = 0.0
    experts: AboveZero = 1.0
    expert_call_s: AboveZero | None = None
    scatter: AboveZero | None = None
    spread: AboveZero | None = None
    experts_spread: AboveZero | None = None
    attention_fp8_gain: dict[str, dict[str, AboveZero]] | None = None
    unmasked_attention: Annotated[dict[str, Share], Bounds(min_length=2)] | None = None
    deterministic_attention: Annotated[dict[str, Share], Bounds(min_length=2)] | None = None
    in_situ: InSituTable | None = None
    fitted: list[str] | None = None


@pytest.mark.parametrize("name", tomllib.loads((HARDWARE / "efficiency.toml").read_text()))
def test_a_class_of_devices_has_what_it_must_have_and_shares_up_to_1(name: str):
    content = tomllib.loads((HARDWARE / "efficiency.toml").read_text())[name]
    checked = asdict(validated(EfficiencyTable, content, name))
    assert asdict(efficiency_of(name)) == checked | {"operator_time": {}, "fitted": checked["fitted"] or ()}


def test_a_device_of_ones_own_borrows_a_class_of_efficiency():
    device = {
        "name": "X", "efficiency": "h100", "num_cores": 100, "memory_bytes": 2**36, "memory_bytes_per_s": 1e12,
        "peak_flops_per_s": {"bfloat16": 5e14},
    }  # fmt: skip
    data = {"format": "ppsim-cluster/1", "name": "x", "device": device, "tiers": [{"name": "n", "link": "nvlink4"}]}
    assert cluster_from(data).device.efficiency == efficiency_of("h100")
    data["device"] = device | {"efficiency": "h99"}
    with pytest.raises(ConfigError, match=r"device\.efficiency: unknown class of devices 'h99'"):
        cluster_from(data)


MEASURED = """
format = "ppsim-cluster/1"
name = "mine"
base = "{base}"
[constants]
launch_s = 3e-4
[constants.compute_share.bfloat16]
value = 0.9
sigma = 0.02
source = "two steps of last week"
"""


def test_a_cluster_that_extends_another_has_what_it_does_not_say(tmp_path):
    (tmp_path / "mine.toml").write_text(MEASURED.format(base="eos-h100"))
    (tmp_path / "again.toml").write_text(
        'format = "ppsim-cluster/1"\nname = "again"\nbase = "mine.toml"\n[constants.compute_share]\nbfloat16 = 0.8\n'
    )
    mine, eos = load_cluster(tmp_path / "mine.toml"), load_cluster("eos-h100")
    assert (mine.base, mine.device, mine.tiers) == ("eos-h100", eos.device, load_cluster("dgx-h100").tiers)
    bfloat16 = mine.constants.compute_share["bfloat16"]
    assert (bfloat16.value, bfloat16.sigma, bfloat16.source) == (0.9, 0.02, "two steps of last week")
    assert mine.constants.compute_share["float8"] == eos.constants.compute_share["float8"]
    assert mine.constants.launch_s.value == 3e-4
    again = load_cluster(tmp_path / "again.toml").constants.compute_share
    assert again["bfloat16"].value == 0.8
    assert again["bfloat16"].sigma is None


EXTENDING = 'format = "ppsim-cluster/1"\nname = "x"\nbase = "{base}"\n'


def extended(tmp_path, text, base="dgx-h100"):
    (tmp_path / "x.toml").write_text(EXTENDING.format(base=base) + text)
    return load_cluster(tmp_path / "x.toml")


def test_tiers_of_a_base_stay_unless_one_of_the_same_name_replaces_them(tmp_path):
    base, rack = load_cluster("dgx-h100"), load_cluster("gb200-nvl72")
    cluster = extended(tmp_path, '[[tiers]]\nname = "network"\nlink = "ndr-400-halved"\n')
    assert cluster.tiers[0] == base.tiers[0]
    assert [tier.name for tier in cluster.tiers] == ["node", "network"]
    assert cluster.tiers[1].link != base.tiers[1].link
    inner = extended(tmp_path, '[[tiers]]\nname = "rack"\nnum_devices = 32\nlink = "nvlink4"\n')
    assert [(tier.name, tier.num_devices) for tier in inner.tiers] == [("node", 8), ("rack", 32), ("network", None)]
    name = rack.tiers[0].name
    same = extended(tmp_path, f'[[tiers]]\nname = "{name}"\nlink = "nvlink4"\n', base="gb200-nvl72").tiers[0]
    assert (same.num_devices, same.usable_devices) == (rack.tiers[0].num_devices, rack.tiers[0].usable_devices)
    assert same.link != rack.tiers[0].link


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[tiers]]\nname = "fabric"\nlink = "ndr-400"\n', "give a tier of dgx-h100 another link by its name"),
        ('[[tiers]]\nname = "node"\nlink = "nvlink4"\n' * 2, "two tiers are called node"),
        ("[device]\nmemory = 1\n", r"device.memory: unknown key \(did you mean memory_bytes\?\)"),
    ],
)
def test_a_wrong_tier_or_device_on_a_base_is_a_sentence(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        extended(tmp_path, text)


def test_a_device_without_a_name_changes_the_one_of_the_base(tmp_path):
    base = load_cluster("dgx-h100").device
    assert extended(tmp_path, "[device]\nmemory_bytes = 100\n").device == replace(base, memory_bytes=100)


def test_the_link_efficiency_of_a_base_is_not_for_another_link(tmp_path):
    fitted = '[constants]\nfitted_on = ["r.csv"]\nlaunch_s = 1e-4\nlink_efficiency.network = 0.4\n'
    fitted += '[constants.correlation]\n"launch_s link_efficiency.network" = 0.5\n'
    (tmp_path / "base.toml").write_text(EXTENDING.format(base="dgx-h100") + fitted)
    link = '[[tiers]]\nname = "network"\n[tiers.link]\nbytes_per_s = 1e10\nefficiency = 0.6\n'
    found = extended(tmp_path, link, base="base.toml")
    assert (found.tiers[1].link.efficiency, found.constants.correlation) == (0.6, {})
    assert extended(tmp_path, "", base="base.toml").tiers[1].link.efficiency == 0.4


def test_constants_of_a_cluster_change_what_its_device_gets(tmp_path):
    (tmp_path / "mine.toml").write_text(MEASURED.format(base="vtrain-a100"))
    cluster = load_cluster(tmp_path / "mine.toml")
    whole, mine = cluster.device.efficiency, cluster.device_for("bfloat16").efficiency
    assert mine.matmul["bfloat16"] == 0.9 * whole.matmul["bfloat16"]
    assert mine.attention_forward == 0.9 * whole.attention_forward
    assert mine.scan_flops_per_s == 0.9 * whole.scan_flops_per_s
    assert (mine.memory, mine.kernel_s) == (whole.memory, load_cluster("vtrain-a100").constants.kernel_s.value)
    share = load_cluster("vtrain-a100").constants.compute_share["float16"].value
    assert cluster.device_for("float16").efficiency.matmul["float16"] == share * whole.matmul["float16"]
    assert cluster.device_for("float32").efficiency.matmul == whole.matmul
    assert cluster.device_for("bfloat16", 1.1).efficiency.matmul["bfloat16"] == 1.1 * whole.matmul["bfloat16"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"dgx-h100"', '"dgx-h1000"'), "base is an unknown cluster 'dgx-h1000': did you mean dgx-h100"),
        (('"dgx-h100"', '"mine.toml"'), "its base extends it"),
        (("value = 0.9", "value = 0"), "constants.compute_share.bfloat16.value: must be more than 0, got 0"),
        (("launch_s = 3e-4", "launch = 3e-4"), r"constants.launch: unknown key \(did you mean launch_s\?\)"),
    ],
)
def test_a_wrong_base_or_constant_is_a_sentence(tmp_path, change, words):
    (tmp_path / "mine.toml").write_text(MEASURED.format(base="dgx-h100").replace(*change))
    with pytest.raises(ConfigError, match=words):
        load_cluster(tmp_path / "mine.toml")


def test_small_groups_have_fewer_links_of_a_mesh_or_a_loss_per_halving() -> None:
    link = replace(load_cluster("dgx-h100").tiers[0].link, efficiency=0.8, is_mesh=False, small_group_loss=0.0)
    assert link.among(2, 8).efficiency == 0.8
    mesh, lossy = replace(link, is_mesh=True), replace(link, small_group_loss=0.1)
    assert [mesh.among(ranks, 8).efficiency for ranks in (2, 4, 8, 16)] == pytest.approx(
        [0.8 * 1 / 7, 0.8 * 3 / 7, 0.8, 0.8]
    )
    assert [lossy.among(ranks, 8).efficiency for ranks in (2, 4, 8, 16)] == pytest.approx(
        [0.8 * 0.9**2, 0.8 * 0.9, 0.8, 0.8]
    )
    assert mesh.among(2, None).efficiency == lossy.among(2, None).efficiency == 0.8


MIB = 2**20
NEUTRAL: dict[type, dict[str, object]] = {
    Efficiency: {
        "routing_host_s": 0.0, "expert_call_s": None, "jitter": 0.0, "experts": 1.0, "scatter": None,
        "spread": None, "experts_spread": None, "attention_fp8_gain": None, "unmasked_attention": None,
        "deterministic_attention": None, "in_situ": None, "fitted": (),
    },
    GemmWorkspaces: {"torch": 32 * MIB, "transformer_engine": 32 * MIB},
    Device: {
        "host_bytes_per_s": None, "host_memory_bytes_per_s": None, "kernels": None,
        "gemm_workspaces": GemmWorkspaces(32 * MIB, 32 * MIB), "generation": "", "has_runs": True,
    },
    Link: {
        "small_group_loss": 0.0, "is_mesh": False, "copy_bytes_per_s": None, "exchange_share": 1.0,
        "dispatch_share": 1.0, "token_s": 0.0, "dispatch_sms": 0.0, "hybrid_share": None, "hybrid_token_s": 0.0,
        "hybrid_sms_gain": 0.0,
    },
    Tier: {"usable_devices": None},
    Constant: {"sigma": None, "source": ""},
    Constants: {
        "kernel_s": None, "launch_s": None, "host_s": None, "routing_host_s": None, "jitter": None, "overlap_slowdown": None,
        "runs": (), "fitted_on": (), "stack": "",
    },
    Cluster: {"num_devices": None, "base": None, "constants": Constants(), "price_per_gpu_hour": None},
}  # fmt: skip


def test_constants_without_a_value_add_no_time_and_leave_rates_as_they_are() -> None:
    for kind, neutral in NEUTRAL.items():
        assert {one.name: one.default for one in fields(kind) if one.default is not MISSING} == neutral


def test_a_link_of_a_file_is_usual_in_what_it_leaves_out() -> None:
    assert field_defaults(cluster_files._Link) == {
        "name": "own link", "efficiency": 0.7, "reduction_gain": 1.0, "launch_s": 10e-6, "step_s": 2e-6,
        "small_group_loss": 0.0, "is_mesh": False, "exchange_share": 1.0, "dispatch_share": 1.0, "token_s": 0.0,
        "dispatch_sms": 0.0, "hybrid_token_s": 0.0, "hybrid_sms_gain": 0.0, "source": "the cluster file",
    }  # fmt: skip
    assert field_defaults(cluster_files._Device)["has_runs"] is True
    assert cluster_files._DEEPEST == 8


def test_a_calibration_extends_a_cluster_or_has_overheads_alone(tmp_path: Path) -> None:
    """Its date and its overheads are no constants of a cluster."""
    text = 'format = "ppsim-calibration/1"\nname = "own"\ndate = "2025-01-01"\n'
    (tmp_path / "own.toml").write_text(text + 'base = "dgx-h100"\n[overheads]\nlaunch_s = 1e-3\n')
    assert load_cluster(tmp_path / "own.toml") == replace(load_cluster("dgx-h100"), name="own", base="dgx-h100")
    (tmp_path / "alone.toml").write_text(text)
    with pytest.raises(
        ConfigError, match="has overheads, and no constants of a cluster: give it with --calibration"
    ):
        load_cluster(tmp_path / "alone.toml")


def test_an_unknown_class_of_devices_gets_the_close_ones() -> None:
    with pytest.raises(ConfigError, match="unknown class of devices 'h10': did you mean h100"):
        efficiency_of("h10")
