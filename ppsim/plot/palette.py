"""Colours: kinds of action by hue, chunks by lightness.

The hues were chosen by measured distance under the common colour blindnesses and in grey; the chunks of a kind
are its hue mixed toward white, so that kinds stay apart however many chunks there are.
"""

from ppsim.schedule.table import Op

COLOURS = {
    Op.F: "#004488",
    Op.B: "#009988",
    Op.I: "#88CCEE",
    Op.W: "#EE7733",
    Op.SEND_F: "#F0E442",
    Op.SEND_B: "#F0E442",
    Op.IDLE: "#E6E6E6",
}
TITLES = {
    Op.F: "F  forward",
    Op.B: "B  backward",
    Op.I: "I  backward, inputs",
    Op.W: "W  backward, weights",
    Op.SEND_F: "transfer",
    Op.IDLE: "idle",
}

CAUSES = {  # of idling: pale, so that work stands out, and one darker than the other, so that they read in grey
    "warm_up": "#FBF3D9",
    "cool_down": "#CFE6F5",
    "waiting_compute": "#E6BCCB",
    "exposed_communication": "#C2B45A",
    "overhead": "#8C8C8C",
}
CAUSE_TITLES = {
    "warm_up": "warm-up",
    "cool_down": "cool-down",
    "waiting_compute": "waiting for compute",
    "exposed_communication": "exposed communication",
    "overhead": "overhead",
}
BESIDE = {  # what a rank does beside the pipeline
    "gather": "#DDAADD",
    "reduce": "#AA4499",
    "share": "#882255",
    "norm": "#A6A65C",
    "optimizer": "#332288",
}
BESIDE_TITLES = {
    "gather": "parameters gathered",
    "reduce": "gradients reduced",
    "share": "gradients shared by ranks",
    "norm": "gradient norm",
    "optimizer": "optimizer",
}

# Red for those who see it; its white casing sets it off from every fill for all others, and in grey.
CRITICAL_PATH = "#C00040"
CASING = "#FFFFFF"

BLANK = "#FFFFFF"
TRANSFER_START = "#C4B63C"  # yellow alone is faint on white
TEXT = "#222222"
QUIET_TEXT = "#666666"
LIGHTEST = 0.45  # how far the last chunk is mixed toward white

# Cividis, which was made to look the same to the colour-blind; lightness grows along it.
_MICROBATCH_RAMP = ("#00204C", "#31446B", "#666970", "#958F78", "#CBBA69", "#FFE945")
_ERROR_RAMP = ("#004488", "#F2F2F2", "#EE7733")  # projected too fast, right, too slow
_RANK_RAMP = ("#332288", "#AA4499", "#EE99AA")  # lightness grows along it, so that it also reads in grey


def mixed(colour: str, other: str, share: float) -> str:
    """Return `colour` with `share` (0 to 1) of it replaced by `other`; colours are written `#RRGGBB`.

    >>> mixed("#000000", "#FFFFFF", 0.5)
    '#808080'
    """
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


def fill_of(op: Op, *, chunk: int = 0, num_chunks: int = 1) -> str:
    """Return the fill of an action: chunk 0 in its kind's hue, the last one `LIGHTEST` of the way to white."""
    share = LIGHTEST * chunk / (num_chunks - 1) if num_chunks > 1 else 0.0
    return mixed(COLOURS[op], "#FFFFFF", share)


def text_on(fill: str) -> str:
    """Return black or white, whichever stands out more on `fill` (WCAG contrast): white on F, black elsewhere."""
    return "#FFFFFF" if contrast(fill, "#FFFFFF") > contrast(fill, "#000000") else "#000000"


def contrast(colour: str, other: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21 (WCAG 2.1)."""
    lighter, darker = sorted((luminance(colour), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, 0 to 1 (WCAG 2.1): what is left of it in grey."""
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in _channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def rank_colour(rank: int, num_ranks: int) -> str:
    """Return the colour of a rank's line: dark for rank 0, lighter for every later one."""
    return _along(_RANK_RAMP, rank / (num_ranks - 1) if num_ranks > 1 else 0.0)


def microbatch_ramp(length: int) -> list[str]:
    """Return colours from the first microbatch, dark, to the last, light."""
    return [_along(_MICROBATCH_RAMP, step / (length - 1)) for step in range(length)]


def error_ramp(length: int) -> list[str]:
    """Return colours from projected too fast, over right in the middle, to projected too slow."""
    return [_along(_ERROR_RAMP, step / (length - 1)) for step in range(length)]


def _along(ramp: tuple[str, ...], place: float) -> str:
    """The colour at `place`, 0 to 1, of colours that are evenly spread."""
    position = place * (len(ramp) - 1)
    index = min(int(position), len(ramp) - 2)
    return mixed(ramp[index], ramp[index + 1], position - index)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
