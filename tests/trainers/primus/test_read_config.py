"""Primus' configurations: files that extend others."""

from pathlib import Path

from ppsim.trainers.read_config import read_run_config

RUN = """
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: model.yaml
    overrides: {tensor_model_parallel_size: 2}
"""
MODEL = {"num_layers": 4, "hidden_size": 256, "ffn_hidden_size": 512, "num_attention_heads": 4, "vocab_size": 1000}


def write(path: Path, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}: {value}\n" for name, value in options.items()))


def test_a_later_base_file_overrides_an_earlier_one_and_the_file_itself_both(tmp_path: Path) -> None:
    configs = tmp_path / "primus" / "configs"
    modules = configs / "modules" / "megatron"
    write(configs / "models" / "megatron" / "model.yaml", **MODEL)
    write(modules / "a.yaml", seq_length=512, micro_batch_size=1, global_batch_size=8)
    write(modules / "b.yaml", seq_length=1024, micro_batch_size=2)
    write(modules / "pre_trainer.yaml", extends="[a.yaml, b.yaml]", seq_length=2048)
    (tmp_path / "run.yaml").write_text(RUN)
    read = read_run_config(tmp_path / "run.yaml")
    assert [read.options[name] for name in ("global_batch", "micro_batch", "seq_len", "tp")] == [8, 2, 2048, 2]
    assert (len(read.model.layers), read.model.hidden_size) == (4, 256)
