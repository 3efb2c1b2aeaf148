"""Placement: which rank holds which stage."""

from collections.abc import Sequence


def loop(num_ranks: int, num_stages: int) -> list[int]:
    """Return the looped placement: stage s on rank s mod p.

    >>> loop(3, 6)
    [0, 1, 2, 0, 1, 2]
    """
    return [stage % num_ranks for stage in range(num_stages)]


def v_shape(num_ranks: int, num_stages: int) -> list[int]:
    """Return the V placement: down the ranks, then back up, and down again beyond 2p stages.

    Rank r holds stages r and 2p−1−r. The last rank holds both stages at the turn, the first rank both ends of the
    model (zero-bubble paper, arXiv 2401.10241, §6).

    >>> v_shape(3, 6)
    [0, 1, 2, 2, 1, 0]
    """
    return [
        stage % num_ranks if (stage // num_ranks) % 2 == 0 else num_ranks - 1 - stage % num_ranks
        for stage in range(num_stages)
    ]


STYLES = {"loop": loop, "v": v_shape}


def style_of(stage_to_rank: Sequence[int], num_ranks: int) -> str:
    """Return "loop" or "v", the name of the placement rule, or "custom".

    With one stage per rank the two rules agree; the name is then "loop".

    >>> style_of([0, 1, 1, 0], 2)
    'v'
    """
    for name, style in STYLES.items():
        if list(stage_to_rank) == style(num_ranks, len(stage_to_rank)):
            return name
    return "custom"
