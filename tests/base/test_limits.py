"""Files that are too large, too deep, or that expand without end are refused in a sentence, in time and memory to match."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import ppsim
from ppsim.base import limits
from ppsim.base import limits as limits_module
from ppsim.base import plain_yaml as plain_yaml_module
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.files import read_head, read_json, read_text, read_toml, read_yaml
from ppsim.base.limits import CONFIG_BYTES, count_from, integer_if_equal, number_from, short_text
from tests.defaults import number_defaults

SHELL = "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 "


def nested(levels: int, end: str = "1") -> str:
    return "[" * levels + end + "]" * levels


HOSTILE = {  # name: (content, words of the refusal); those of launch scripts are in tests/trainers/test_launch_script.py
    "cyclic.yaml": ("MODEL_ARGS: &a\n  --num-layers: 2\n  --x: *a\n", "refers to itself: the anchor &a contains *a"),
    "doubling.yaml": (
        "MODEL_ARGS:\n  a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"  a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)),
        "has more than 200,000 values, with its aliases expanded",
    ),
    "merging.yaml": (
        "MODEL_ARGS:\n  a0: &a0 {x: 1}\n"
        + "".join(f"  a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 10)),
        "has more than 200,000 values, with its aliases expanded",
    ),
    "deep.yaml": ("MODEL_ARGS: " + "[" * 100_000, "more than 64 levels deep"),
    "indented.yaml": ("MODEL_ARGS:\n" + "".join(" " * i + "a:\n" for i in range(1, 1000)), "more than 64 levels deep"),
    "object.yaml": ("MODEL_ARGS: !!python/object:os.system x\n", "has the tag tag:yaml.org,2002:python/object:os.system"),
    "set.yaml": ("MODEL_ARGS: !!set {a, b}\n", "has the tag tag:yaml.org,2002:set in line 1"),
    "long.yaml": ("MODEL_ARGS:\n  --num-layers: 1" + "0" * 400 + "\n", "has a number of 401 characters in line 2"),
    "sixty.yaml": ("MODEL_ARGS:\n  --num-layers: " + "1:" * 100_000 + "1\n", "has a number of 200001 characters in line 2"),
    "large.yaml": ("MODEL_ARGS:\n  --num-layers: 1" + "0" * 100 + "\n", "MODEL_ARGS.--num-layers is a number of 101 digits"),
    "dotted.toml": ("[parallelism]\na = 1\n" + "a." * 100_000 + "b = 1\n", "has a key of more than 200 parts"),
    "deep.toml": ("[parallelism]\na = " + nested(100) + "\n", "more than 64 levels deep"),
    "large.toml": ("[parallelism]\na = 1" + "0" * 100 + "\n", "parallelism.a is a number of 101 digits"),
    "deep.json": ('{"model_type": "llama", "a": ' + nested(100) + "}", "more than 64 levels deep"),
    "deeper.json": ('{"model_type": ' + "[" * 1_000_000, "lists too deep"),
    "large.json": (json.dumps({"model_type": "llama", "a": [1, {"b": 10**400}]}), "a[1].b is a number of 401 digits"),
    "half.json": ('{"model_type": "\\ud800"}', "half of a UTF-16 character"),
    "size.json": ('{"model_type": "' + "x" * CONFIG_BYTES + '"}', "is larger than 1 MiB"),
    "size.sh": (SHELL + "x " * CONFIG_BYTES, "is larger than 1 MiB"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_configuration_is_refused_within_two_seconds(tmp_path: Path, name: str) -> None:
    content, words = HOSTILE[name]
    (tmp_path / name).write_text(content)
    begun = time.process_time()
    with pytest.raises(PpsimError) as refused:
        ppsim.read_run_config(tmp_path / name)
    assert time.process_time() - begun < 2
    assert words in str(refused.value)
    assert name in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("a: 1", 3),
        ("[1, [2, 3], {}]", 6),
        ("[&x 1, *x, *x]", 4),
        ("a: &x [1, 2]\nb: *x\nc: [*x, *x]", 1 + 3 + 3 + 3 + (1 + 3 + 3)),
        ("a: &x {b: 1}\nc: *x", 1 + 2 + 3 + 3),
    ],
)
def test_keys_values_lists_and_tables_of_yaml_are_counted_with_aliases_expanded(
    monkeypatch: pytest.MonkeyPatch, text: str, number: int
) -> None:
    monkeypatch.setattr(limits, "MOST_VALUES", number)
    limits.check_events(yaml.parse(text), "F")
    monkeypatch.setattr(limits, "MOST_VALUES", number - 1)
    with pytest.raises(ConfigError, match=f"F has more than {number - 1} values"):
        limits.check_events(yaml.parse(text), "F")


def test_aliases_within_the_limit_are_read_as_what_they_stand_for(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: &a {x: 1, y: [2]}\nb: {<<: *a, x: 3}\nc: [*a, *a]\n")
    one = {"x": 1, "y": [2]}
    assert read_yaml(tmp_path / "a.yaml") == {"a": one, "b": one | {"x": 3}, "c": [one, one]}


def test_keys_and_dates_of_yaml_are_texts(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("on: 2024-01-31\n1: 2024-13-99\nnull: yes\n")
    assert read_yaml(tmp_path / "a.yaml") == {"on": "2024-01-31", "1": "2024-13-99", "null": True}


def test_a_device_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match="/dev/zero is not a text file"):
        read_text("/dev/zero", most=2**40)


def test_a_file_beyond_the_limit_is_refused_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppsim.base.files._bytes_of", lambda *_: pytest.fail("read"))
    with open(tmp_path / "large.json", "wb") as file:
        file.truncate(3 * 2**30)
    with pytest.raises(ConfigError, match=r"large\.json is larger than 2,048 MiB"):
        read_json(tmp_path / "large.json")


def test_a_log_larger_than_a_configuration_is_read_from_its_head(tmp_path: Path) -> None:
    names = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "pipeline_model_parallel_size": 2}
    head = "".join(f"  {name} {'.' * 20} {value}\n" for name, value in names.items())
    (tmp_path / "train.log").write_text(head + " iteration 1 | elapsed time per iteration (ms): 5.0 |\n" * 50_000)
    assert read_head(tmp_path / "train.log")[1]
    assert ppsim.read_run_config(tmp_path / "train.log").options["pp"] == 2


def test_a_table_with_as_many_parts_as_a_configuration_has_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("a.b.c.d = 1\nx = [" + "0.5, " * 1000 + "1.5]\n# " + "." * 100 + "\n")
    assert read_toml(tmp_path / "a.toml")["a"] == {"b": {"c": {"d": 1}}}


def test_a_long_timeline_is_no_configuration_and_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"start_s": [0.5] * 500_000}))
    assert len(read_json(tmp_path / "a.json")["start_s"]) == 500_000
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        read_json(tmp_path / "a.json", most=CONFIG_BYTES)


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 2**27, 9))
    with pytest.raises(ConfigError, match="unpacks to more than 100 times its size"):
        ppsim.read(tmp_path / "a.json.gz")


@pytest.mark.parametrize("value", [True, None, "1", 0.5, -1, float("nan"), float("inf"), 10**16, 1e300, [1]])
def test_a_count_is_a_whole_number_within_its_bounds(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^F: key must be"):
        count_from(value, "F: key")


@pytest.mark.parametrize("value", [True, None, "x", "1.2.3", "nan", "1e999", float("inf"), 10**400, [1]])
def test_a_number_is_finite(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^F: key must be a number"):
        number_from(value, "F: key")


def test_numbers_of_files_are_taken_as_they_are_meant() -> None:
    assert (integer_if_equal(8.5e10), integer_if_equal(0.5), integer_if_equal(True), integer_if_equal("8")) == (
        85_000_000_000,
        0.5,
        True,
        "8",
    )
    assert count_from(4.0, "F: key") == 4
    assert number_from("4.5", "F: key") == 4.5
    assert short_text("x" * 1000) == "'" + "x" * 56 + "…"
    assert short_text(10**5000) == "a number of 5001 digits"


def test_a_cluster_may_write_bytes_as_a_float(tmp_path: Path) -> None:
    device = {"name": "Own", "efficiency": "h100", "num_cores": 132, "memory_bytes": 8.5e10,
              "memory_bytes_per_s": 3e12, "peak_flops_per_s": {"bfloat16": 989e12}}  # fmt: skip
    tiers = [{"name": "node", "num_devices": 8.0, "link": {"bytes_per_s": 4.5e11}}]
    cluster = {"format": "ppsim-cluster/1", "name": "own", "device": device, "tiers": tiers}
    (tmp_path / "own.json").write_text(json.dumps(cluster))
    made = ppsim.project(model="gpt2", gpus=2, pp=2, microbatches=4, cluster=tmp_path / "own.json")
    assert made.plan.job is not None
    assert made.plan.job.cluster.device.memory_bytes == 85_000_000_000
    (tmp_path / "own.json").write_text(json.dumps(cluster).replace("85000000000.0", "85000000000.5"))
    with pytest.raises(
        ConfigError, match=r"device.memory_bytes: input should be a valid integer, got 85000000000.5"
    ):
        ppsim.project(model="gpt2", gpus=2, pp=2, microbatches=4, cluster=tmp_path / "own.json")


def test_an_error_shortens_a_line_that_quotes_a_file(tmp_path: Path) -> None:
    error = str(ConfigError("a\n" + "x" * 100_000 + " (did you mean y?)\n\ud800"))
    assert len(error) < 2000
    assert error.startswith("a\nxxx")
    assert error.endswith("xxx (did you mean y?)\n\\ud800")


def test_experts_without_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(
        SHELL + "--seq-length 8 --num-experts 999999999 --micro-batch-size 1 --vocab-size 9"
    )
    found = ppsim.read_run_config(tmp_path / "a.sh")
    assert found.model is None
    assert "the number of experts must be at most 10,000: got 999999999" in found.why_no_model


def test_what_is_left_out_in_base_limits_has_these_values() -> None:
    assert number_defaults(limits_module) == {
        "count_from": {"least": 0, "most": 1000000000000000},
        "number_from": {"least": -1e+30, "most": 1e+30},
        "require_memory": {"bytes_each": 160},
    }  # fmt: skip


def test_what_is_left_out_in_base_plain_yaml_has_these_values() -> None:
    assert number_defaults(plain_yaml_module) == {
        "PlainLoader.construct_mapping": {"deep": False},
    }  # fmt: skip


LIMITS = {
    "CONFIG_BYTES": 2**20, "DATA_BYTES": 2**31, "MOST_UNPACKED": 100, "MOST_VALUES": 200_000, "DEEPEST": 64,
    "LONGEST_NAME": 200, "MOST_LAYERS": 10_000, "LARGEST": 10**30, "LARGEST_COUNT": 10**15, "BYTES_BUILT": 160,
    "BYTES_PROJECTED": 4_800,
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_limits_have_these_values(name: str) -> None:
    assert getattr(limits, name) == LIMITS[name]


def test_lists_may_be_64_levels_deep() -> None:
    limits.check_tree(json.loads(nested(64)), "F")
    with pytest.raises(ConfigError, match="F has lists or tables more than 64 levels deep"):
        limits.check_tree(json.loads(nested(65)), "F")
    limits.check_events(yaml.parse(nested(63)), "F")
    with pytest.raises(ConfigError, match="F has lists or tables more than 64 levels deep"):
        limits.check_events(yaml.parse(nested(64)), "F")


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        (10**30, "the whole"), (-(10**30), "the whole"), ([1, 10**30], "[1]"), ({"a": [{"b": -(10**30)}]}, "a[0].b"),
    ],
)  # fmt: skip
def test_an_integer_of_31_digits_is_refused_with_its_path(tree: Any, path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        limits.check_tree(tree, "F")
    assert str(refused.value).startswith(f"F: {path} is 10000" if "-" not in str(tree) else f"F: {path} is -10000")
    limits.check_tree([10**30 - 1, 1 - 10**30, True, 1e300, {"a": 10**29}], "F")


def test_counts_and_numbers_may_be_their_bounds() -> None:
    assert count_from(3, "key", least=3, most=5) == 3
    assert count_from(5, "key", least=3, most=5) == 5
    with pytest.raises(ConfigError, match="key must be a whole number of 3 or more: got 2"):
        count_from(2, "key", least=3)
    with pytest.raises(ConfigError, match="key must be at most 1,000: got 1001"):
        count_from(1001, "key", most=1000)
    assert (number_from(0.5, "key", least=0.5), number_from(2, "key", most=2.0)) == (0.5, 2.0)
    with pytest.raises(ConfigError, match=r"^key must be a number from 0\.5 to 2: got 3$"):
        number_from(3, "key", least=0.5, most=2.0)
    with pytest.raises(ConfigError, match=r"^key must be a number from 0 to 2: got inf$"):
        number_from(float("inf"), "key", least=0.0, most=2.0)
    with pytest.raises(ConfigError, match=r"^key must be a number: got 'two'$"):
        number_from("two", "key", least=0.0)


def test_a_text_of_60_characters_is_printed_whole() -> None:
    assert short_text("a" * 58) == f"'{'a' * 58}'"
    assert short_text("a" * 59) == f"'{'a' * 56}…"
    assert short_text(10**30) == f"1{'0' * 30}"
    assert short_text(10**30 + 1) == short_text(-(10**30) - 1) == "a number of 31 digits"
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert short_text(deep) == "a list"


@pytest.mark.parametrize(("characters", "is_read"), [(400, True), (401, False)])
def test_a_number_of_yaml_has_at_most_400_characters(characters: int, is_read: bool) -> None:
    events = yaml.parse("a:\n- 1\n- " + "7" * characters)
    if is_read:
        limits.check_events(events, "F")
    else:
        with pytest.raises(ConfigError, match="F has a number of 401 characters in line 3"):
            limits.check_events(events, "F")
    limits.check_events(yaml.parse("n" * 500), "F")


def test_a_tag_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match="F has the tag !new in line 2: only plain"):
        limits.check_events(yaml.parse("a: !!str 1\nb: !new 2"), "F")


def test_a_request_for_more_than_the_free_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """40 actions of 2**20 B are 40 MiB; requests up to 16 MiB are always allowed."""
    monkeypatch.setattr(limits, "_MEMORY", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal: 99999 kB\nMemAvailable:   40960 kB\nBuffers: 7 kB\n")
    assert limits.free_bytes() == 40 * 2**20
    limits.require_memory(40, bytes_each=2**20)
    with pytest.raises(ConfigError, match=r"41 actions .* about 41\.0 MiB, and 40\.0 MiB .* enough for 40$"):
        limits.require_memory(41, bytes_each=2**20)
    (tmp_path / "meminfo").write_text("MemAvailable: 0 kB")
    limits.require_memory(16, bytes_each=2**20)
    with pytest.raises(ConfigError):
        limits.require_memory(17, bytes_each=2**20)


def test_without_a_report_all_physical_memory_counts_as_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pages = {"SC_PHYS_PAGES": 3, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    monkeypatch.setattr(limits, "_MEMORY", tmp_path / "absent")
    assert limits.free_bytes() == 3 * 4096
    (tmp_path / "absent").write_text("MemTotal: 5 kB")
    assert limits.free_bytes() == 3 * 4096
