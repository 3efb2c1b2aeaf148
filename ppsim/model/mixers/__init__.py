"""Kinds of token mixers, one file each: sizes, matrices, operators, and `READERS` of config.json by `model_type`.

`ppsim.model.config` finds every file of this package.
"""
