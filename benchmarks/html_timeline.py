"""What the interactive timeline costs: file size, writing, loading and zooming, in headless Chromium.

    python benchmarks/html_timeline.py
    python benchmarks/html_timeline.py --repeats 5 --chromium /usr/bin/chromium

The times are medians. Loading is from opening the file to the second frame behind the drawn plot; zooming from
the call to the second frame behind it, from the whole step to a fiftieth of it in its middle.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from ppsim import StageCosts, build, simulate
from ppsim.plot.html import timeline_html
from ppsim.plot.view import View

SHAPES = [
    {"name": "zbv-fixed", "pp": 8, "vpp": 2, "microbatches": 104},
    {"name": "interleaved-1f1b", "pp": 64, "vpp": 2, "microbatches": 384},
]
COSTS = StageCosts(
    forward_s=0.030, backward_input_s=0.030, backward_weight_s=0.020, activation_bytes=2.0**30, transfer_s=0.002
)
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
ZOOM = """() => {
  const plot = document.getElementById("timeline"), end = plot.layout.xaxis.maxallowed;
  return Plotly.relayout(plot, {"xaxis.range": [0.49 * end, 0.51 * end]});
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="Pages loaded for each shape (default: 3).")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="The browser (default: on the PATH).")
    arguments = parser.parse_args()
    if arguments.chromium is None:
        parser.error("no chromium on the PATH; name one with --chromium")

    from playwright.sync_api import sync_playwright

    print(f"{'schedule':18} {'actions':>8} {'transfers':>9} {'MB':>6} {'write s':>8} {'load s':>7} {'zoom s':>7}")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"])
        warm_up = simulate(build("1f1b", pp=2, microbatches=2), COSTS)
        measure(browser, Path(folder) / "warm_up.html", timeline_html([View(warm_up)]))
        for shape in SHAPES:
            timeline = simulate(build(**shape), COSTS)
            begin = time.perf_counter()
            page = timeline_html([View(timeline)])
            write_s = time.perf_counter() - begin
            path = Path(folder) / "timeline.html"
            runs = [measure(browser, path, page) for _ in range(arguments.repeats)]
            load_s, zoom_s = (statistics.median(times) for times in zip(*runs, strict=True))
            print(
                f"{shape['name']:18} {timeline.num_actions:8} {timeline.graph.num_transfers:9} {len(page) / 1e6:6.1f} "
                f"{write_s:8.2f} {load_s:7.2f} {zoom_s:7.2f}"
            )
        browser.close()


def measure(browser, path: Path, content: str) -> tuple[float, float]:
    """Return seconds to load a page and to zoom in on it."""
    path.write_text(content, encoding="utf-8")
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    begin = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector("#timeline .main-svg")
    page.evaluate(TWO_FRAMES)
    loaded = time.perf_counter()
    page.wait_for_selector("body.ready")
    begin_zoom = time.perf_counter()
    page.evaluate(ZOOM)
    page.evaluate(TWO_FRAMES)
    zoomed = time.perf_counter()
    page.close()
    return loaded - begin, zoomed - begin_zoom


if __name__ == "__main__":
    main()
