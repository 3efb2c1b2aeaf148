"""Option values of simulation and export, in a module that imports nothing heavy."""

from typing import Literal

Communication = Literal["overlap", "blocking", "megatron", "megatron-no-overlap"]
Channel = Literal["ideal", "edge", "pair", "direction", "rank"]
Dtype = Literal["float32", "float64", "bfloat16", "float16"]
Pairs = Literal["parts", "whole"]
Receives = Literal["torch", "deferred", "ordered"]
Update = Literal["synchronised", "post-validated"]
