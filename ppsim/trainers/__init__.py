"""One folder per trainer: reads its configuration, writes it, writes its schedule, reads its recordings.

Files for the same job have the same name in every folder: `read_config`, `write_config`, `write_schedule`,
`read_log`, `read_trace`. `read_config.py` here detects the format of a configuration from its content. The
configurations of Primus, Megatron-Bridge and NeMo are first converted to Megatron-LM's arguments (`arguments.py`).
One file reads these as options of `ppsim project` (`megatron/read_config.py`), one as a model
(`megatron/read_model.py`).
"""
