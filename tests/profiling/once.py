"""Settings for what is no matter of time."""

from ppsim.profiling.settings import MeasuringSettings

ONCE = MeasuringSettings(num_repeats=1, num_warm_up=0)
