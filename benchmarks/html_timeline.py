"""Cost of the interactive timeline: file size, and times to write, load and zoom, in headless Chromium.

    python benchmarks/html_timeline.py
    python benchmarks/html_timeline.py --repeats 5 --chromium /usr/bin/chromium

Each shape is written in its own process. `write s` are CPU seconds, `/ pass` their ratio to `python -c pass`, `GB`
the peak memory of the process, `before` its peak before the page is written. `load s` is the time from opening the
file to the second frame after the figure is drawn, `ready` until cells show their details. Zoom times are from the
call to the second frame after it, from the whole step to the middle 1/2, 1/50 and 1/2000. Load and zoom times are
medians of wall time, as is the time of `about:blank` until its second frame.
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHAPES = [
    {"name": "zbv-fixed", "pp": 8, "vpp": 2, "microbatches": 104},
    {"name": "interleaved-1f1b", "pp": 64, "vpp": 2, "microbatches": 384},
    {"name": "interleaved-1f1b", "pp": 64, "vpp": 8, "microbatches": 1024},
    {"name": "interleaved-1f1b", "pp": 64, "vpp": 8, "microbatches": 1024, "jitter": 0.05},
]
PARTS = (0.5, 0.02, 0.0005)
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
ZOOM = """part => {
  const { cells, show } = document.getElementById("timeline").ppsim, end = cells[0].edges.at(-1);
  show((0.5 - part / 2) * end, (0.5 + part / 2) * end);
}"""
HEAD = f"{'schedule':17} {'actions':>9} {'MB':>6} {'write s':>8} {'/ pass':>6} {'GB':>5} {'before':>6} {'load s':>7} {'ready':>6}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="Pages loaded for each shape (default: 3).")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="The browser (default: on the PATH).")
    parser.add_argument("--write", nargs=2, metavar=("SHAPE", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        print(json.dumps(written(json.loads(arguments.write[0]), Path(arguments.write[1]))))
        return
    if arguments.chromium is None:
        parser.error("no chromium on the PATH; name one with --chromium")

    from playwright.sync_api import sync_playwright

    print(HEAD + "".join(f" {f'to 1/{1 / part:.0f}':>9}" for part in PARTS))
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"])
        print(f"about:blank {statistics.median(blank_s(browser) for _ in range(5)):.3f} s")
        for shape in SHAPES:
            path = Path(folder) / "timeline.html"
            made, pass_s = in_a_process(shape, path), pass_cpu_s()
            runs = [measure(browser, path) for _ in range(arguments.repeats)]
            times = [statistics.median(each) for each in zip(*runs, strict=True)]
            name = shape["name"] + (" ±" if "jitter" in shape else "")
            print(
                f"{name:17} {made['actions']:9} {path.stat().st_size / 1e6:6.2f} {made['write_s']:8.2f} "
                f"{made['write_s'] / pass_s:6.0f} {made['peak_gb']:5.2f} {made['before_gb']:6.2f} "
                f"{times[0]:7.2f} {times[1]:6.2f}" + "".join(f" {one:9.3f}" for one in times[2:])
            )
        browser.close()


def written(shape: dict, path: Path) -> dict:
    """Write a page, with random durations (relative spread `jitter`); return time and memory."""
    import numpy as np

    from ppsim import StageCosts, build, simulate
    from ppsim.plot.html import timeline_html
    from ppsim.plot.plot_model import TimelineView

    jitter = shape.pop("jitter", 0.0)
    costs = StageCosts(
        forward_s=0.030, backward_input_s=0.030, backward_weight_s=0.020, activation_bytes=2.0**30, transfer_s=0.002
    )
    schedule = build(**shape)
    if jitter:
        shapes = (schedule.num_stages, schedule.num_units)
        forward, backward = 0.030 * (1 + jitter * np.random.default_rng(0).standard_normal((2, *shapes)))
        costs = costs.replace(forward_s=forward, backward_input_s=backward)
    timeline = simulate(schedule, costs)
    before = peak_gb()
    begin = time.process_time()
    path.write_text(timeline_html([TimelineView(timeline)]), encoding="utf-8")
    write_s = time.process_time() - begin
    return {"actions": timeline.num_actions, "write_s": write_s, "peak_gb": peak_gb(), "before_gb": before}


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def in_a_process(shape: dict, path: Path) -> dict:
    command = [sys.executable, __file__, "--write", json.dumps(shape), str(path)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def pass_cpu_s() -> float:
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(10):
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime) / 10


def blank_s(browser) -> float:
    page = browser.new_page()
    begin = time.perf_counter()
    page.goto("about:blank")
    page.evaluate(TWO_FRAMES)
    taken = time.perf_counter() - begin
    page.close()
    return taken


def measure(browser, path: Path) -> list[float]:
    """Return the seconds until a page is drawn and until it is ready, and of each zoom."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    begin = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector("body.drawn")
    page.evaluate(TWO_FRAMES)
    times = [time.perf_counter() - begin]
    page.wait_for_selector("body.ready")
    times.append(time.perf_counter() - begin)
    for part in PARTS:
        begin = time.perf_counter()
        page.evaluate(ZOOM, part)
        page.evaluate(TWO_FRAMES)
        times.append(time.perf_counter() - begin)
    page.close()
    return times


if __name__ == "__main__":
    main()
