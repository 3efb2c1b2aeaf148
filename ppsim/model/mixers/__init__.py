"""Token mixers, one file each with `READERS` of config.json by `model_type`, found by `ppsim.model.config`."""
