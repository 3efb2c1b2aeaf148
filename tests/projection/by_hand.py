"""Plans of times by hand: F, I and W of a rank take 1 s each, a P2P transfer 0.25 s."""

from typing import Any

from ppsim.costs.cost_sources import RankCosts
from ppsim.projection.plan import Plan
from ppsim.projection.project import project
from ppsim.projection.projection import Projection

MEASURED = RankCosts(1.0, 1.0, 1.0, transfer_s=0.25)


def by_hand(**fields: Any) -> Projection:
    """Return the projection of two ranks and four microbatches: 12 s of compute per rank."""
    given: dict[str, Any] = {"pp": 2, "microbatches": 4, "measured": MEASURED}
    return project(Plan(**(given | fields)))


def free(**fields: Any) -> Projection:
    """The same with transfers that take no time."""
    return by_hand(measured=RankCosts(1.0, 1.0, 1.0), **fields)
