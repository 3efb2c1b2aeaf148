"""Time of `ppsim serve` until its address, its page and its figures appear, and of moves of a slider.

    python benchmarks/app.py
    python benchmarks/app.py --repeats 5 --moves 40 -- --pp 8 --num-microbatches 32 --schedule 1f1b,zb-h1

Each start is a new process, opened in headless Chromium as soon as it has printed its address. `server` and
`browser` are CPU seconds of the server and of the browser's main thread, `script` is the part of the latter in
scripts (Chromium's own count). `clock` is wall time, which is less reliable on a busy machine: from the command to
the event, and for a slider from its move to the second frame after the new figure. All numbers are medians.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time

FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
MOVE = """async value => {
  const slider = document.getElementById("forward_ms-slider"), before = document.body.dataset.answer;
  slider.value = value;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  while (document.body.dataset.answer === before) await new Promise(done => setTimeout(done, 4));
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="Starts (default: 3).")
    parser.add_argument("--moves", type=int, default=30, help="Moves of a slider at each (default: 30).")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="The browser (default: on the PATH).")
    parser.add_argument("options", nargs="*", help="Options of ppsim project (default: none, p 8 and m 32).")
    arguments = parser.parse_args()
    if arguments.chromium is None:
        parser.error("no chromium on the PATH; name one with --chromium")

    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"])
        runs = [measured(browser, arguments.options, arguments.moves) for _ in range(arguments.repeats)]
        browser.close()
    print(f"{'':34} {'clock':>9} {'server':>9} {'browser':>9} {'script':>9}")
    for name in runs[0]:
        row = [statistics.median(each) for each in zip(*(run[name] for run in runs), strict=True)]
        unit, factor = ("ms", 1e3) if name.startswith("a move") else ("s", 1.0)
        print(f"{name:34}" + "".join(f" {factor * one:6.{0 if unit == 'ms' else 2}f} {unit:2}" for one in row))


class Meters:
    """Seconds since the start: wall time, CPU time of the server, of the browser's tasks, and of its scripts."""

    def __init__(self, pid, session):
        self._begin, self._pid, self._session = time.perf_counter(), pid, session

    def read(self) -> list[float]:
        browser = {one["name"]: one["value"] for one in self._session.send("Performance.getMetrics")["metrics"]}
        clock = time.perf_counter() - self._begin
        return [clock, cpu_s(self._pid), browser["TaskDuration"], browser["ScriptDuration"]]


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def measured(browser, options, moves) -> dict[str, list[float]]:
    """Return the readings of `Meters` by event; for a move of the slider, the mean per move."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    line = [sys.executable, "-m", "ppsim", "serve", "--port", "0", *(["--", *options] if options else [])]
    server = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        meters = Meters(server.pid, session)
        address = server.stdout.readline().strip()
        found = {"the address is printed": meters.read()}
        page.goto(address, wait_until="commit")
        page.wait_for_selector("#form", state="visible")
        page.evaluate(FRAMES)
        found["the page stands there"] = meters.read()
        page.wait_for_selector("body[data-answer]")
        page.evaluate(FRAMES)
        found["the first pictures"] = meters.read()
        page.wait_for_selector("body[data-quick=false]")
        page.evaluate(FRAMES)
        found["all there is to see"] = meters.read()
        page.evaluate(MOVE, 300)
        before = meters.read()
        for step in range(moves):
            page.evaluate(MOVE, 301 + step)
        found["a move of a slider"] = [(b - a) / moves for a, b in zip(before, meters.read(), strict=True)]
    finally:
        server.terminate()
        server.wait()
        page.close()
    return found


if __name__ == "__main__":
    main()
