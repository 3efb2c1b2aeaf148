"""What can be chosen of how a table runs, by name: alone here, so that options know it and load nothing heavy."""

from typing import Literal

Communication = Literal["overlap", "blocking"]
Channel = Literal["ideal", "edge", "pair", "direction", "rank"]
Pairs = Literal["parts", "whole"]
Receives = Literal["torch", "deferred", "ordered"]
Update = Literal["synchronised", "post-validated"]
