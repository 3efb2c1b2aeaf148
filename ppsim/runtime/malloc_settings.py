"""Memory allocation of CPU processes."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's values of the two names in malloc.h."""


def keep_freed_memory() -> None:
    """Make glibc serve all but the largest blocks from its heap, and never return the heap to the system.

    Otherwise memory that a backward frees is returned and obtained again, with thousands of page faults per action.
    Does nothing with another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, 1 << 25)  # glibc's maximum
    mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
