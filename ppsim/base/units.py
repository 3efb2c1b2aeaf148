"""Numbers as text with suitable units (ms, GiB = 1024³ B, GB/s = 10⁹ B/s) and significant digits."""

ROUNDING_S = 1e-12


def seconds(value: float) -> str:
    """Return a time in a suitable unit; rounding errors of sums become 0.

    >>> seconds(0.0297), seconds(83.2), seconds(2.5e-5), seconds(-1e-17)
    ('29.7 ms', '83.2 s', '25.0 µs', '0 s')
    """
    return _in_unit(value, {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}) or (
        "0 s" if abs(value) < ROUNDING_S else f"{value:.1e} s"
    )


def size(num_bytes: float) -> str:
    """Return a size in binary units.

    >>> size(80 * 2**30), size(1536), size(12)
    ('80.0 GiB', '1.50 KiB', '12 B')
    """
    binary = {"TiB": 2.0**40, "GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10}
    return _in_unit(num_bytes, binary) or f"{num_bytes:.0f} B"


def rate(bytes_per_second: float) -> str:
    """Return a bandwidth in decimal units.

    >>> rate(25e9)
    '25.0 GB/s'
    """
    return f"{_fixed(bytes_per_second / 1e9)} GB/s"


LEAST_SHOWN = 5e-5
"""Smaller ratios are printed as 0.00 % by `percent`."""


def percent(ratio: float) -> str:
    """Return a ratio in percent.

    >>> percent(0.1045), percent(-1e-17)
    ('10.45 %', '0.00 %')
    """
    return f"{round(100 * ratio, 2) + 0.0:.2f} %"  # no -0.00 %


def signed_percent(ratio: float) -> str:
    """Return an error with its sign.

    >>> signed_percent(0.0031), signed_percent(-0.012)
    ('+0.31 %', '-1.20 %')
    """
    return f"{100 * ratio:+.2f} %"


def count(value: float) -> str:
    """Return a number with a decimal prefix.

    >>> count(1_234_567), count(812), count(6.2e9)
    ('1.23 M', '812', '6.20 G')
    """
    return _in_unit(value, {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}) or f"{value:.3g}"


def _in_unit(value: float, units: dict[str, float]) -> str | None:
    """0.9996 s is printed as 1.00 s, not as 1000 ms."""
    for unit, factor in units.items():
        if float(f"{abs(value) / factor:.3g}") >= 1:
            return f"{_fixed(value / factor)} {unit}"
    return None


def _fixed(value: float) -> str:
    """Trailing zeros align columns."""
    magnitude = float(f"{abs(value):.3g}")
    return f"{value:.0f}" if magnitude >= 100 else f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}"
