"""Trace every causal language model of transformers with its default configuration, and print how many succeed.

    python scripts/trace_all.py [MODEL_TYPE …] [--seconds 60]

Prints the reason for each refused model_type. Unexpected errors are counted, and make the exit code 1.
"""

import argparse
import signal
import sys
import time
import traceback

SIZES = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"num_experts_per_tok": 6, "n_routed_experts": 128, "n_shared_experts": 2},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
}
"""Sizes that the defaults of a configuration class leave open, so that transformers itself cannot build a model."""


def causal_types() -> list[str]:
    """Return the model_types with a causal language model in transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def trace_one(kind: str, seconds: int) -> str:
    """Trace one model_type; return a line that begins with "ok", "refused" or "error"."""
    from ppsim.base.errors import ConfigError
    from ppsim.model.config import model_from
    from ppsim.profiling.trace_model import trace

    start = time.perf_counter()
    signal.alarm(seconds)
    try:
        model = model_from(trace({"model_type": kind} | SIZES.get(kind, {}), "config.json"), kind)
    except TooLong:
        return f"refused {kind}: took more than {seconds} s"
    except ConfigError as error:
        return f"refused {kind}: {error}"
    except Exception:
        return f"error   {kind}: {traceback.format_exc().strip().splitlines()[-1]}"
    finally:
        signal.alarm(0)
    mixers = sorted({type(layer.attention).__name__ for layer in model.kinds})
    parts = sorted({type(layer.ffn).__name__ for layer in model.kinds})
    took = time.perf_counter() - start
    return f"ok      {kind}: {model.parameters:,} parameters, {', '.join(mixers)}; {', '.join(parts)}; {took:.1f} s"


class TooLong(BaseException):
    """A trace exceeded its time limit; no handler of errors catches a BaseException."""


def _end(*_: object) -> None:
    raise TooLong


def main() -> int:
    """Trace all models; print one line each and the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="MODEL_TYPE")
    parser.add_argument("--seconds", type=int, default=60, help="limit per model_type")
    given = parser.parse_args()
    signal.signal(signal.SIGALRM, _end)
    kinds, counts = given.kinds or causal_types(), {"ok": 0, "refused": 0, "error": 0}
    for kind in kinds:
        line = trace_one(kind, given.seconds)
        print(line, flush=True)
        counts[line.split()[0]] += 1
    of_sizes = sum(kind in SIZES for kind in kinds)
    print(f"{counts['ok']} of {len(kinds)} traced, {counts['refused']} refused, {counts['error']} errors")
    print(f"{of_sizes} with a size that the default configuration leaves open")
    return 1 if counts["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
