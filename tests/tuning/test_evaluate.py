"""What is found of a configuration's table."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ppsim.tuning.evaluate import _different


@given(st.integers(1, 24), st.integers(1, 9), st.integers(1, 2**31), st.integers(0, 9))
def test_different_moments_are_all_that_there_are_in_their_order_however_large_their_numbers(
    num_counts, num_moments, most, seed
):
    drawn = np.random.default_rng(seed).integers(0, most, (num_counts, num_moments))
    moments = np.hstack([drawn, drawn[:, ::2]])
    np.testing.assert_array_equal(_different(moments), np.unique(moments, axis=1))
