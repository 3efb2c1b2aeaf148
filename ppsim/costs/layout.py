"""How many layers each stage holds: given, even, or balanced by measured cost."""

from collections.abc import Sequence

from ppsim.errors import ConfigError


def even_split(num_layers: int, num_stages: int) -> list[int]:
    """Return layers per stage that differ by one at most; the ends, which also hold embedding and head, get fewer.

    >>> even_split(30, 16)
    [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]
    """
    least, extra = divmod(num_layers, num_stages)
    split = [least] * num_stages
    inner_first = sorted(range(num_stages), key=lambda stage: (-min(stage, num_stages - 1 - stage), stage))
    for stage in inner_first[:extra]:
        split[stage] += 1
    return split


def balanced_split(
    num_layers: int, num_stages: int, *, layer_s: float, embedding_s: float, head_s: float
) -> list[int]:
    """Return the layers per stage whose slowest stage is fastest, for F + B seconds of each component.

    Exact: layers are alike, so that giving each next one to the stage that it leaves cheapest is optimal. Ties
    go to the stage farthest from the ends.

    >>> balanced_split(30, 8, layer_s=1.0, embedding_s=1.0, head_s=1.0)
    [3, 4, 4, 4, 4, 4, 4, 3]
    """
    cost = [0.0] * num_stages
    cost[0] += embedding_s
    cost[-1] += head_s
    split = [0] * num_stages
    for _ in range(num_layers):
        stage = min(
            range(num_stages),
            key=lambda s: (round(cost[s] + layer_s, 12), -min(s, num_stages - 1 - s), s),
        )
        split[stage] += 1
        cost[stage] += layer_s
    return split


def why_no_split(split: str | Sequence[int], num_layers: int, num_stages: int) -> str | None:
    """Return the sentence that says why so many stages cannot share the layers, or None where they can.

    Only the first and the last stage can do without a layer: they hold embedding and head.
    """
    if isinstance(split, str):
        if num_layers < num_stages - 2:
            return f"{num_layers} layers are too few for {num_stages} stages: some would hold nothing"
        return None
    if len(split) != num_stages:
        return f"the split has {len(split)} entries, but there are {num_stages} stages"
    for stage in range(1, num_stages - 1):
        if split[stage] == 0:
            return f"stage {stage} would hold no layer; only the first and the last can do without"
    return None


def given_split(split: Sequence[int], num_layers: int, num_stages: int) -> list[int]:
    """Return a user's split; raises `ConfigError` where it does not have one entry a stage or all layers."""
    if len(split) != num_stages:
        raise ConfigError(f"the split has {len(split)} entries, but there are {num_stages} stages")
    if any(layers < 0 for layers in split):
        raise ConfigError(f"the split holds {min(split)}; a stage has 0 layers or more")
    if sum(split) != num_layers:
        raise ConfigError(f"the split has {sum(split)} layers in all, but the model has {num_layers}")
    return list(split)
