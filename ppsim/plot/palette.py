"""Colours: hue for the kind of action, lightness for the chunk.

Any two adjacent colours differ by at least 12 in CIELAB, for normal sight and the three colour blindnesses; kinds
also differ in grey.
"""

from ppsim.schedule.table import Op

COLOURS = {
    Op.F: "#004488",
    Op.B: "#009282",
    Op.I: "#88CCEE",
    Op.W: "#EE7733",
    Op.SEND_F: "#F0E442",
    Op.SEND_B: "#F0E442",
    Op.IDLE: "#D2D2D2",
}
LIGHTER = {Op.F: 0.52, Op.B: 0.29, Op.I: 0.46, Op.W: 0.36}  # share of white for odd chunks
TITLES = {
    Op.F: "F  forward",
    Op.B: "B  backward",
    Op.I: "I  backward, inputs",
    Op.W: "W  backward, weights",
    Op.SEND_F: "transfer",
    Op.IDLE: "idle",
}

CAUSE_COLOURS = {  # pale for the pipeline bubble, darker for other losses
    "warm_up": "#E9E0A6",
    "cool_down": "#BCCBA4",
    "waiting_compute": "#FEC6CE",
    "exposed_communication": "#A8663C",
    "overhead": "#624F59",
}
CAUSE_TITLES = {
    "warm_up": "warm-up",
    "cool_down": "cool-down",
    "waiting_compute": "waiting for compute",
    "exposed_communication": "exposed communication",
    "overhead": "overhead",
}
BESIDE_COLOURS = {  # work outside the pipeline's actions
    "gather": "#DDAADD",
    "deferred": "#F28E2B",
    "reduce": "#AA4499",
    "share": "#882255",
    "norm": "#A6A65C",
    "optimizer": "#332288",
    "hidden": "#B9D9D0",
    "exposed": "#1B6B5A",
}
BESIDE_TITLES = {
    "gather": "parameters gathered",
    "deferred": "deferred weight gradients",
    "reduce": "gradients reduced",
    "share": "gradients shared by ranks",
    "norm": "gradient norm",
    "optimizer": "optimizer",
    "hidden": "expert messages, hidden",
    "exposed": "expert messages, exposed",
}
MESSAGES = ("hidden", "exposed")

# The white casing keeps the red line visible on every fill for colour-blind readers and in grey.
CRITICAL_PATH = "#C00040"
CASING = "#FFFFFF"

BLANK = "#FFFFFF"
TRANSFER_START = "#C4B63C"  # the yellow fill alone is too faint on white
TEXT = "#222222"
QUIET_TEXT = "#666666"

# Page colours other than fills, by the name of their CSS variable. `strength` is the share of a line's own colour;
# the rest is white.
THEMES = {
    "light": {
        "paper": BLANK, "text": TEXT, "quiet": QUIET_TEXT, "line": "#DDDDDD", "soft": "#F5F5F5",
        "accent": "#004488", "idle": COLOURS[Op.IDLE], "casing": CASING, "path": CRITICAL_PATH,
        "limit": CRITICAL_PATH, "start": TRANSFER_START, "strength": "100%",
    },
    "dark": {
        "paper": "#15181C", "text": "#E8E8E8", "quiet": "#A9B0B8", "line": "#3A4048", "soft": "#20252B",
        "accent": "#88BBEE", "idle": "#454B52", "casing": CASING, "path": "#FF7A9C", "limit": "#FF7A9C",
        "start": TRANSFER_START, "strength": "60%",
    },
}  # fmt: skip

_RANK_RAMP = ("#332288", "#AA4499", "#EE99AA")  # lightness grows, so that the ramp also works in grey


def mix_colours(colour: str, other: str, share: float) -> str:
    """Return `colour` with `share` (0 to 1) replaced by `other`.

    >>> mix_colours("#000000", "#FFFFFF", 0.5)
    '#808080'
    """
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


def fill_of(op: Op, *, chunk: int = 0) -> str:
    return mix_colours(COLOURS[op], "#FFFFFF", LIGHTER[op] * (chunk % 2))


def text_on(fill: str) -> str:
    return "#FFFFFF" if contrast(fill, "#FFFFFF") > contrast(fill, "#000000") else "#000000"


def contrast(colour: str, other: str) -> float:
    """Contrast ratio, 1 to 21 (WCAG 2.1)."""
    lighter, darker = sorted((luminance(colour), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance, 0 to 1 (WCAG 2.1), which is the lightness in grey."""
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in _channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def theme_style() -> str:
    """Dark if the system or the page's switch asks for it, light in print."""

    def rule(selector: str, theme: str) -> str:
        variables = "".join(f"--{name}:{colour};" for name, colour in THEMES[theme].items())
        return f"{selector}{{color-scheme:{theme};{variables}}}"

    return "\n".join(
        [
            rule(":root", "light"),
            f"@media (prefers-color-scheme: dark) {{ {rule(':root:not([data-theme=light])', 'dark')} }}",
            rule(":root[data-theme=dark]", "dark"),
            f"@media print {{ {rule(':root:root:root', 'light')} }}\n",
        ]
    )


def rank_colour(rank: int, num_ranks: int) -> str:
    return _along(_RANK_RAMP, rank / (num_ranks - 1) if num_ranks > 1 else 0.0)


def _along(ramp: tuple[str, ...], place: float) -> str:
    position = place * (len(ramp) - 1)
    index = min(int(position), len(ramp) - 2)
    return mix_colours(ramp[index], ramp[index + 1], position - index)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _ramp(colours: tuple[str, ...], length: int) -> list[str]:
    return [_along(colours, step / (length - 1)) for step in range(length)]


MICROBATCHES = _ramp(("#0A1F44", "#1F4A86", "#3F7DB8", "#74AEDB", "#B4DDF2"), 32)
"""From the first (dark) to the last (light). Blue, because no idle cause is blue."""

ERRORS = _ramp(("#004488", "#A8A0AA", "#EE7733"), 21)
"""From projected too fast (first) to projected too slow (last)."""
