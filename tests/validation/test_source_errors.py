"""Sources of published runs that are left out."""

import pytest

from ppsim.api.project import plan_of_keywords
from ppsim.machine.cluster_files import load_cluster
from ppsim.projection.error_classes import error_classes
from ppsim.validation.source_errors import IN_SITU_PRIOR, leave_source_out, spreads_of, unfitted


def test_spreads_are_those_within_sources_and_of_their_means() -> None:
    within, between = spreads_of([[0.11, 0.09], [-0.11, -0.09], [0.01, -0.01]])
    assert within == pytest.approx((6 * 0.01**2 / 3) ** 0.5)
    assert between == pytest.approx((0.02 / 3 - within**2 / 2) ** 0.5)


def test_fitted_constants_return_to_their_priors() -> None:
    cluster = load_cluster("dgx-h100")
    before, after = cluster.device.efficiency, unfitted(cluster).device.efficiency
    assert before.in_situ is not None
    assert after.in_situ is not None
    assert before.in_situ.factors["bfloat16"] != after.in_situ.factors["bfloat16"] == IN_SITU_PRIOR
    assert load_cluster("vtrain-a100").base == unfitted(load_cluster("vtrain-a100")).name


@pytest.mark.slow
def test_nine_of_ten_times_of_a_new_source_are_inside(validations) -> None:
    """Sources count equally; the packaged spreads are those of the runs."""
    *classes, every = leave_source_out(list(validations.values()), plan_of_keywords)
    assert 0.87 <= every.coverage <= 0.93
    assert all(one.coverage >= 0.82 for one in classes if one.num_sources >= 5)
    found = {one.name: (one.within, one.between) for one in classes if one.num_sources >= 3}
    packaged = {one.name: (one.within, one.between) for one in error_classes() if one.name in found}
    assert len(packaged) == 5
    for name, spreads in packaged.items():
        assert spreads == pytest.approx(found[name], abs=0.005)
