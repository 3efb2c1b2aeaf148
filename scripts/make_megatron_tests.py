"""Write Megatron-LM's functional tests with a measured peak memory as a validation set.

    python scripts/make_megatron_tests.py RUNS.csv CHECKOUT

CHECKOUT is a working tree of github.com/NVIDIA/Megatron-LM at the commit below. RUNS.csv has measured peaks of some
of its functional tests (the others are held out): suite, case, device, environment, golden_file, gpus and
mem_max_allocated_bytes, which the last rank writes. The script uses the environment `dev` and the file
`golden_values_dev_dgx_DEVICE.json` only. Other files are from older containers or from resumed runs, and differ by
up to 76 %. A missing GPU count is taken from the recipes in tests/test_utils/recipes, else it is 8.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import yaml

from ppsim.base.files import csv_text, write_atomically

COMMIT = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
DATA = Path(__file__).parents[1] / "ppsim" / "validation" / "data"
SET = "megatron-tests-memory"
CLUSTERS = {"a100": "dgx-a100", "h100": "dgx-h100", "gb200": "gb200-nvl72"}
LATER = {
    "multimodal-llava": "a vision encoder",
    "mimo": "several modalities",
    "flextron": "elastic layers",
}
"""Features planned for later versions, by an argument or a suite, with the reason in words."""


def main() -> None:
    """Write the rows and the configurations."""
    runs, checkout = Path(sys.argv[1]), Path(sys.argv[2])
    gpus = gpus_of(checkout / "tests" / "test_utils" / "recipes")
    rows = []
    for run in csv.DictReader(runs.read_text().splitlines()):
        suite, case, device = run["suite"], run["case"], run["device"].lower()
        if run["environment"] != "dev" or run["golden_file"] != f"golden_values_dev_dgx_{device}.json":
            continue
        config = checkout / "tests" / "functional_tests" / "test_cases" / suite / case / "model_config.yaml"
        arguments = yaml.safe_load(config.read_text())["MODEL_ARGS"]
        name = f"{SET}/{suite}/{case}.yaml"
        rows.append(
            {
                "use": "test", "table": suite, "title": case, "run_config": name, "cluster": CLUSTERS[device],
                "gpus": run["gpus"] or gpus.get((suite, case, device), 8), "metric": "peak_gib", "rank": "last",
                "value": f"{float(run['mem_max_allocated_bytes']) / 2**30:.6f}",
                "unexpressed": why_not(suite, case, arguments),
            }
        )  # fmt: skip
        (DATA / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(DATA / name, yaml.safe_dump({"MODEL_ARGS": arguments}, sort_keys=False))
    write_atomically(DATA / f"{SET}.csv", text_of(rows))
    print(f"{len(rows)} rows, {len({row['table'] for row in rows})} cases")


def gpus_of(recipes: Path) -> dict[tuple[str, str, str], int]:
    """Return the number of GPUs by suite, case and device."""
    found = {}
    for path in sorted(recipes.glob("*/*.yaml")):
        recipe = yaml.safe_load(path.read_text())
        spec = recipe.get("spec", {})
        for product in recipe.get("products", []):
            for inner in product.get("products", []):
                platforms = inner.get("platforms", spec.get("platforms"))
                for platform in platforms if isinstance(platforms, list) else [platforms]:
                    for case in product["test_case"]:
                        nodes, gpus = (inner.get(key, spec.get(key, 1)) for key in ("nodes", "gpus"))
                        key = (spec.get("model", ""), case, str(platform).removeprefix("dgx_"))
                        found[key] = int(nodes) * int(gpus)
    return found


def why_not(suite: str, case: str, arguments: dict[str, Any]) -> str:
    """Return the reason why ppsim cannot express the case, or ""."""
    if case.endswith("_check_grads") or ("_release" in case and suite in ("mixtral", "nemotron")):
        return "not stated: the number of GPUs; 8 do not suit its parallel sizes and batch"
    asked = {name.lstrip("-") for name, value in arguments.items() if value}
    return next((f"not supported yet: {reason}" for name, reason in LATER.items() if name in asked | {suite}), "")


def text_of(rows: list[dict[str, Any]]) -> str:
    """Return the rows as CSV, with their source."""
    source = (
        f"# Megatron-LM, tests/functional_tests at commit {COMMIT[:8]} (Apache-2.0): peak allocated memory of the "
        "last rank, written by scripts/make_megatron_tests.py\n"
    )
    return source + csv_text(rows)


if __name__ == "__main__":
    main()
