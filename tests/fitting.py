"""Problems of one stage per rank and of two in a V, from keyword arguments."""

from ppsim.schedule.placement import loop, v_shape
from ppsim.simulation.bounds.problem import Problem


def one_chunk(*, num_ranks, **arguments):
    return Problem.of(stage_to_rank=loop(num_ranks, num_ranks), **arguments)


def in_a_v(*, num_ranks, **arguments):
    return Problem.of(stage_to_rank=v_shape(num_ranks, 2 * num_ranks), **arguments)
