"""Costs of chunks of a model, derived from measured chunks. Imports no pydantic.

A chunk is written as E for the embedding, one letter per layer for its kind, and L for head and loss: "Ett", "ttL".
Its cost is a + Σ n_k·b_k + E + L, with a fixed part a and n_k layers of kind k. Each measured chunk is one linear
equation.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError

FIRST, LAST = "E", "L"
LAYER = "t"
KINDS = "tuvwxyzabcdfghijklnopqrs"
"""Letters for kinds of layers, in order of first appearance.

Without m, which layouts use for multi-token prediction.
"""

_CONTENTS = re.compile(r"E?[a-ln-z]*L?")
_EXACT = 1e-9


def require_contents(contents: str) -> str:
    if not contents or not _CONTENTS.fullmatch(contents):
        raise ConfigError(f"a chunk is E, a letter for each layer, and L, as Ett or ttL: got '{contents}'")
    return contents


def layers_of(contents: str) -> str:
    return contents.strip(FIRST + LAST)


def cost_key(contents: str) -> str:
    """Return a key shared by chunks with equal costs.

    >>> cost_key("EuttL")
    'EttuL'
    """
    ends = FIRST * contents.startswith(FIRST), LAST * contents.endswith(LAST)
    return ends[0] + "".join(sorted(layers_of(contents))) + ends[1]


def short_contents(contents: str) -> str:
    """Return the contents of a chunk with runs written as in Megatron-LM's layouts.

    >>> short_contents("EttttL"), short_contents("tu")
    ('Et*4L', 'tu')
    """
    return re.sub(r"(.)\1{2,}", lambda run: f"{run[1]}*{len(run[0])}", contents)


def stages_of(kinds: str, counts: Sequence[int]) -> list[str]:
    """Return the contents of each stage.

    >>> stages_of("tttt", [1, 2, 1])
    ['Et', 'tt', 'tL']
    """
    ends = np.cumsum([0, *counts])
    stages = [kinds[start:stop] for start, stop in pairwise(ends)]
    stages[0] = FIRST + stages[0]
    stages[-1] += LAST
    return stages


class ChunkCombinations:
    """Linear combinations of the chunks with contents `measured`."""

    def __init__(self, measured: Sequence[str]) -> None:
        self.kinds = sorted({letter for contents in measured for letter in layers_of(contents)})
        self._rows = np.array([self._row(contents) for contents in measured], dtype=np.float64)

    def _row(self, contents: str) -> list[float]:
        """Counts of the fixed part, each kind of layer, E and L."""
        layers = layers_of(contents)
        counts = [layers.count(kind) for kind in self.kinds]
        return [float(bool(layers)), *counts, contents.startswith(FIRST), contents.endswith(LAST)]

    def weights(self, contents: str) -> Floats | None:
        """Return the weight of each measured chunk in `contents`, or None if measured chunks do not determine it.

        >>> ChunkCombinations(["t", "ttt", "Ett"]).weights("tttt").round(3).tolist()[:2]
        [-0.5, 1.5]
        """
        if set(layers_of(contents)) - set(self.kinds):
            return None
        wanted = np.array(self._row(contents))
        solution: Floats = np.linalg.lstsq(self._rows.T, wanted, rcond=None)[0]
        is_told = np.abs(self._rows.T @ solution - wanted).max() <= _EXACT * max(1.0, np.abs(wanted).max())
        return solution if is_told else None


def undetermined_parts(measured: Sequence[str]) -> list[str]:
    """Return the parts that the measured chunks do not determine: E, L, or the letter of a kind of layer.

    >>> undetermined_parts(["Ett", "tt", "tttL"]), undetermined_parts(["Ett", "t", "tt", "ttL"])
    (['t', 'L'], [])
    """
    split = [contents for contents in measured if not contents.startswith(FIRST)]
    ways, split_ways = ChunkCombinations(measured), ChunkCombinations(split) if split else None
    lone = [*(part for kind in ways.kinds for part in (kind, 2 * kind)), LAST]
    missing = [part[0] for part in lone if split_ways is None or split_ways.weights(part) is None]
    return list(dict.fromkeys([*missing, *([FIRST] if ways.weights(FIRST) is None else [])]))


class ChunkNumbers:
    """Costs of any chunk at one shape: measured, or combined from measured chunks.

    The chunk with the embedding has only a whole backward, because no input needs a gradient. Its I is its layers'
    I; its W is its layers' W plus all that the embedding adds to the backward.
    """

    def __init__(self, chunks: Sequence[Mapping[str, Any]]) -> None:
        self._by_contents = {cost_key(chunk["contents"]): chunk for chunk in chunks}
        self._split = [contents for contents in self._by_contents if not contents.startswith(FIRST)]
        self._ways = {False: ChunkCombinations(list(self._by_contents)), True: ChunkCombinations(self._split)}
        self.splits_backward = all(
            self._by_contents[contents]["backward_input_s"] is not None for contents in self._split
        )

    def is_measured(self, contents: str) -> bool:
        return cost_key(contents) in self._by_contents

    def number(self, name: str, contents: str) -> float:
        """Return a cost by its name in the file; a backward that cannot be split counts as I.

        Raises `ConfigError` if the measured chunks do not determine it.
        """
        measured = self._found(name, contents) if contents else 0.0
        if name == "activation_bytes_kept_for_weight":
            return min(measured, self.number("activation_bytes", contents))
        return measured

    def _found(self, name: str, contents: str) -> float:
        if not self.splits_backward and name in ("backward_input_s", "backward_weight_s"):
            return self.number("backward_s", contents) if name == "backward_input_s" else 0.0
        is_split = name in _OF_FIRST and self.splits_backward
        if is_split and contents.startswith(FIRST):
            layers, whole = contents.removeprefix(FIRST), _OF_FIRST[name]
            more = self.number(whole, contents) - self.number(whole, layers) if whole else 0.0
            return max(0.0, self.number(name, layers) + more)
        if (chunk := self._by_contents.get(cost_key(contents))) is not None:
            return _plain(chunk[name])
        measured = self._split if is_split else list(self._by_contents)
        weights = self._ways[is_split].weights(contents)
        if weights is None:
            raise ConfigError(
                f"what a stage {contents} takes cannot be told from the chunks {', '.join(measured)}: measure it, "
                f"or each kind of layer in chunks of two sizes"
            )
        return max(0.0, float(weights @ [_plain(self._by_contents[one][name]) for one in measured]))


_OF_FIRST = {
    "backward_input_s": "",
    "backward_weight_s": "backward_s",
    "activation_bytes_kept_for_weight": "activation_bytes",
}
"""Costs of a split backward, each with the unsplit cost that contains the embedding's part ("": no such part)."""


def components_of(chunks: Sequence[Mapping[str, Any]], kinds: str) -> list[dict[str, Any]]:
    """Return embedding, layer and head as in a profile file; with several kinds, the layer is the mean of all.

    Raises `ConfigError` if the chunks do not determine a component.
    """
    by_shape: dict[str, list[Mapping[str, Any]]] = {}
    for chunk in chunks:
        by_shape.setdefault(repr(sorted(chunk["shape"].items())), []).append(chunk)
    return [part for alike_chunks in by_shape.values() for part in _components(alike_chunks, kinds)]


def _components(chunks: Sequence[Mapping[str, Any]], kinds: str) -> list[dict[str, Any]]:
    contents = [chunk["contents"] for chunk in chunks]
    if missing := undetermined_parts(contents):
        raise ConfigError(
            f"the chunks {', '.join(contents)} cannot tell what {' and '.join(missing)} takes: it needs chunks "
            f"without E of two sizes, of each kind of layer, and one each with E and L"
        )
    numbers = ChunkNumbers(chunks)
    largest = max(chunks, key=lambda chunk: len(layers_of(chunk["contents"])))
    size = max(2, len(layers_of(largest["contents"])))
    shares = {kind: kinds.count(kind) / len(kinds) for kind in dict.fromkeys(kinds)}

    def layers(name: str, count: int) -> float:
        return sum(share * numbers.number(name, kind * count) for kind, share in shares.items())

    def component(name: str, value: Callable[[str], float]) -> dict[str, Any]:
        times: dict[str, Any] = {key: _spread(value(key), largest) for key in _TIMES}
        if not numbers.splits_backward:
            times |= {"backward_input_s": None, "backward_weight_s": None}
        return {"component": name, "shape": largest["shape"], **times, **{key: round(value(key)) for key in _BYTES}}

    layer = component("layer", lambda name: layers(name, size) / size)
    layer["output_bytes"] = largest["output_bytes"]
    alone = component("layer", lambda name: layers(name, 1))
    layer["alone"] = {"num_in_row": size, **{key: alone[key] for key in _TIMES}}
    ends = [component(name, partial(_number_of, numbers, end)) for name, end in _ENDS.items()]
    for part in ends:
        part["output_bytes"] = layer["output_bytes"]
    return [ends[0], layer, ends[1]]


def _number_of(numbers: ChunkNumbers, contents: str, name: str) -> float:
    return numbers.number(name, contents)


_ENDS = {"embedding": FIRST, "head": LAST}
_TIMES = ("forward_s", "backward_s", "backward_input_s", "backward_weight_s")
_BYTES = (
    "activation_bytes", "activation_bytes_kept_for_weight", "output_bytes", "parameters", "forward_flops",
)  # fmt: skip


def _plain(value: Any) -> float:
    return 0.0 if value is None else float(value["median"] if isinstance(value, Mapping) else value)


def _spread(median: float, like: Mapping[str, Any]) -> dict[str, float]:
    forward = like["forward_s"]
    scale = median / forward["median"] if forward["median"] else 0.0
    return {
        "median": median,
        "low": min(median, scale * forward["low"]),
        "high": max(median, scale * forward["high"]),
    }
