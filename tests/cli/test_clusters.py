"""`ppsim clusters` lists what there is, with units and sources."""

import json

from ppsim.machine.cluster_files import packaged_clusters
from tests.cli.running import ppsim, words_of


def test_the_list_has_every_cluster():
    listed = json.loads(ppsim("clusters", "--json").stdout)["clusters"]
    text = ppsim("clusters").stdout
    assert [cluster["name"] for cluster in listed] == list(packaged_clusters())
    assert all(cluster["name"] in text for cluster in listed)
    assert max(map(len, text.splitlines())) <= 100


def test_one_cluster_comes_with_units_and_sources():
    text = words_of(ppsim("clusters", "dgx-h100").stdout)
    for part in ("bfloat16 989 TFLOP/s", "79.2 GiB at 3350 GB/s", "NVIDIA H100 Tensor Core GPU Architecture white paper",
                 "450 GB/s per device, one direction", "76.70 % of the line rate; all-reduce 1.35 × this rate", "copies 1150 GB/s", "least squares"):  # fmt: skip
        assert part in text


def test_one_as_json_is_in_si_units():
    cluster = json.loads(ppsim("clusters", "gb200-nvl72", "--json").stdout)
    assert cluster["device"]["peak_flops_per_s"]["float8"] == 5e15
    assert cluster["tiers"][0]["num_devices"] == 72
    assert cluster["tiers"][1]["link"]["bytes_per_s"] == 50e9


def test_a_file_stands_for_a_name(folder):
    (folder / "own.toml").write_text(
        'format = "ppsim-cluster/1"\nname = "mine"\ndevice = "h200"\n[[tiers]]\nname = "node"\nlink = "nvlink4"\n'
    )
    assert "mine" in ppsim("clusters", "own.toml").stdout


def test_mistakes_get_a_sentence():
    assert "dgx-h100" in ppsim("clusters", "dgx-h10", code=2).stderr
