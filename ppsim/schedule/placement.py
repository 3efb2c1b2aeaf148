"""Placement: which rank holds which stage."""

from collections.abc import Sequence


def loop(num_ranks: int, num_stages: int) -> list[int]:
    """Stage s is on rank s mod p.

    >>> loop(3, 6)
    [0, 1, 2, 0, 1, 2]
    """
    return [stage % num_ranks for stage in range(num_stages)]


def v_shape(num_ranks: int, num_stages: int) -> list[int]:
    """Rank r holds stages r and 2p−1−r (zero-bubble paper, arXiv 2401.10241, §6); beyond 2p stages this repeats.

    >>> v_shape(3, 6)
    [0, 1, 2, 2, 1, 0]
    """
    return [
        stage % num_ranks if (stage // num_ranks) % 2 == 0 else num_ranks - 1 - stage % num_ranks
        for stage in range(num_stages)
    ]


STYLES = {"loop": loop, "v": v_shape}


def style_of(stage_to_rank: Sequence[int], num_ranks: int) -> str:
    """Return "loop" (also for one stage per rank), "v" or "custom".

    >>> style_of([0, 1, 1, 0], 2)
    'v'
    """
    for name, style in STYLES.items():
        if list(stage_to_rank) == style(num_ranks, len(stage_to_rank)):
            return name
    return "custom"
