"""Trace every causal language model of transformers with its default configuration, and print how many trace.

    python scripts/trace_all.py [MODEL_TYPE …] [--seconds 120]

Each runs in a process of its own, so that one that takes long or fails does not stop the others. For a model_type
that is not traced the sentence is printed; a traceback is an error of ppsim, and ends the script with exit code 1.
"""

import argparse
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

SIZES = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"num_experts_per_tok": 6, "n_routed_experts": 128, "n_shared_experts": 2},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "marian": {"decoder_vocab_size": 58101},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
}
"""Sizes that the defaults of a configuration class leave open, so that transformers itself builds no model."""


def causal_types() -> list[str]:
    """The model_types of which transformers has a causal language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def trace_one(kind: str) -> str:
    """Trace one model_type; return a line that begins with "ok", "refused" or "error"."""
    from ppsim.base.errors import ConfigError
    from ppsim.model.config import model_from
    from ppsim.profiling.trace_model import trace

    start = time.perf_counter()
    try:
        model = model_from(trace({"model_type": kind} | SIZES.get(kind, {}), "config.json"), kind)
    except ConfigError as error:
        return f"refused {kind}: {error}"
    except Exception:
        return f"error   {kind}: {traceback.format_exc().strip().splitlines()[-1]}"
    mixers = sorted({type(layer.attention).__name__ for layer in model.kinds})
    parts = sorted({type(layer.ffn).__name__ for layer in model.kinds})
    took = time.perf_counter() - start
    return f"ok      {kind}: {model.parameters:,} parameters, {', '.join(mixers)}; {', '.join(parts)}; {took:.1f} s"


def _in_process(kind: str, seconds: float) -> str:
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--one", kind], capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"refused {kind}: took more than {seconds:g} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "refused ", "error "))]
    return lines[-1] if lines else f"error   {kind}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"


def main() -> int:
    """Trace all, print a line each and the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="MODEL_TYPE")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit per model_type")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(trace_one(given.one))
        return 0
    kinds, counts = given.kinds or causal_types(), {"ok": 0, "refused": 0, "error": 0}
    with ThreadPoolExecutor(given.jobs) as pool:
        for line in pool.map(lambda kind: _in_process(kind, given.seconds), kinds):
            print(line, flush=True)
            counts[line.split()[0]] += 1
    print(f"{counts['ok']} of {len(kinds)} traced, {counts['refused']} refused, {counts['error']} errors")
    return 1 if counts["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
