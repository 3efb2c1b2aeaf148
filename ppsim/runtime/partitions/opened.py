"""A shared device by its kind."""

from ppsim.runtime.partitions.cuda import Streams
from ppsim.runtime.partitions.device import SharedDevice
from ppsim.runtime.partitions.threads import Threads


def open_device(kind: str, num_ranks: int, *, spinning: bool, num_threads: int = 1) -> SharedDevice:
    """Return the device "cpu" or "cuda" for that many ranks; with `spinning` they only wait, on the whole of it.

    Raises `ConfigError` where it cannot be cut into as many partitions.
    """
    if kind == "cpu":
        return Threads(num_threads)
    return Streams(num_ranks, spinning=spinning)
