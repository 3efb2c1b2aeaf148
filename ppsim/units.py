"""How numbers read: people see ms, GiB (1024³) and GB/s (10⁹), with as many digits as mean something."""


def seconds(value: float) -> str:
    """Return a time in the unit that suits it.

    >>> seconds(0.0297), seconds(83.2), seconds(2.5e-5), seconds(0.0)
    ('29.7 ms', '83.2 s', '25.0 µs', '0 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= size:
            return f"{_fixed(value / size)} {unit}"
    return "0 s" if value == 0 else f"{_fixed(value / 1e-9)} ns"


def size(num_bytes: float) -> str:
    """Return a number of bytes in binary units.

    >>> size(80 * 2**30), size(1536), size(12)
    ('80.0 GiB', '1.50 KiB', '12 B')
    """
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(num_bytes) >= factor:
            return f"{_fixed(num_bytes / factor)} {unit}"
    return f"{num_bytes:.0f} B"


def rate(bytes_per_second: float) -> str:
    """Return a bandwidth in decimal gigabytes a second.

    >>> rate(25e9)
    '25.0 GB/s'
    """
    return f"{_fixed(bytes_per_second / 1e9)} GB/s"


def percent(ratio: float) -> str:
    """Return a ratio in percent.

    >>> percent(0.1045)
    '10.45 %'
    """
    return f"{100 * ratio:.2f} %"


def signed_percent(ratio: float) -> str:
    """Return an error in percent, always with its sign.

    >>> signed_percent(0.0031), signed_percent(-0.012)
    ('+0.31 %', '-1.20 %')
    """
    return f"{100 * ratio:+.2f} %"


def count(value: float) -> str:
    """Return a large number in short.

    >>> count(1_234_567), count(812), count(6.2e9)
    ('1.23 M', '812', '6.20 G')
    """
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{_fixed(value / factor)} {unit}"
    return f"{value:.3g}"


def _fixed(value: float) -> str:
    """Three significant digits, trailing zeros kept so that columns line up."""
    magnitude = abs(value)
    return f"{value:.0f}" if magnitude >= 100 else f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}"
