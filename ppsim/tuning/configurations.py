"""Table of the configurations that a search simulated."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppsim.base.arrays import pareto_front
from ppsim.base.errors import ConfigError
from ppsim.base.files import read_json
from ppsim.tuning.resume_file import FORMAT, verdicts_in

if TYPE_CHECKING:
    import pandas


def read_configurations(answer: dict[str, Any], source: str = "the answer") -> "pandas.DataFrame":
    """Return the configurations that were simulated and fit, fastest first.

    Columns: configuration (its key), iteration_time_s, peak_bytes (rank with the highest peak), pareto (in the
    Pareto set). Raises `ConfigError` for invalid outcomes.
    """
    import pandas

    fitting = [
        (key, one.iteration_time_s, one.peak_bytes)
        for key, one in verdicts_in(answer, source).items()
        if one.status == "fits"
    ]
    rows = pandas.DataFrame(fitting, columns=["configuration", "iteration_time_s", "peak_bytes"])
    rows = rows.sort_values(["iteration_time_s", "peak_bytes", "configuration"], ignore_index=True)
    front = {key for key, *_ in pareto_front(rows.itertuples(index=False), lambda row: (row[1], row[2]))}
    return rows.assign(pareto=rows["configuration"].isin(front))


def read_answer(path: str | Path) -> tuple["pandas.DataFrame", float]:
    """Return the configurations in a file of `ppsim tune -o NAME.json`, and the memory limit in bytes.

    Raises `ConfigError` for other files, and if no configuration fits.
    """
    answer = read_json(path, made_by="ppsim tune writes an answer with -o NAME.json")
    if not isinstance(answer, dict) or answer.get("format") != FORMAT:
        raise ConfigError(f"{path} is not a result of ppsim tune (write one with ppsim tune -o NAME.json)")
    try:
        limit = float(answer["question"]["memory_limit_bytes"])
    except (LookupError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"{path} is wrong: its question has no memory_limit_bytes") from None
    rows = read_configurations(answer, str(path))
    if rows.empty:
        raise ConfigError(f"{path} has no configuration that fits")
    return rows, limit
