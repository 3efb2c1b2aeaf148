"""The best schedule there is, with proof: a constraint model for CP-SAT (OR-tools, the extra `optimise`).

Microbatches are alike, so that taking each kind of action on each stage in microbatch order loses nothing
(docs/bounds.md); what is left to choose is how the kinds alternate on each rank. Times are whole multiples of a
resolution in the model, rounded down: what it proves holds for the costs as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor, gcd, isfinite, lcm
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ppsim.errors import ConfigError, MissingExtra
from ppsim.schedule.bounds import lower_bounds
from ppsim.schedule.dependencies import dependencies
from ppsim.schedule.problem import Criterion, Floats, Problem
from ppsim.schedule.table import NONE, Op, Schedule

Progress: TypeAlias = Callable[[float, float], None]

KINDS = (Op.F, Op.I, Op.W)
_MOST_TICKS = 10**9  # of a whole step: beyond, costs are rounded down to a coarser resolution
_FEWEST_TICKS = 10**7  # of a whole step, where costs are rounded
_TIGHT = 1e-9


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best table found, its time, and what no table undercuts, in seconds.

    `value_s` is the table's own time at the costs as they are; `bound_s` the larger of the solver's bound and
    the closed one. `is_optimal`: they are equal, within 1e-9 or, where costs had to be rounded to `resolution_s`
    (0: they had not), within what that rounding can hide.
    """

    schedule: Schedule
    value_s: float
    bound_s: float
    is_optimal: bool
    resolution_s: float

    @property
    def gap(self) -> float:
        """How much longer the table takes than the bound, as a part of the bound."""
        return self.value_s / self.bound_s - 1 if self.bound_s else 0.0
