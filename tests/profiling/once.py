"""Settings for what is no matter of time."""

from ppsim.profiling.settings import Settings

ONCE = Settings(num_repeats=1, num_warm_up=0)
