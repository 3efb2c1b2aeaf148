"""Many jobs in one table: results are saved as they come, and nothing is computed twice."""

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from ppsim.api.project import plan_of_keywords
from ppsim.api.sweep_jobs import TOKENS, TUNE, Job, keyword_of, typed_options
from ppsim.api.tune import COMMAND, row_of_search, tune
from ppsim.base.errors import ConfigError, MissingExtra, PpsimError, unexpected_error
from ppsim.base.files import csv_text, markdown_table, read_text, write_atomically
from ppsim.base.limits import DATA_BYTES
from ppsim.base.option_declarations import declared_options
from ppsim.base.parallel import Task
from ppsim.base.user_defaults import CLUSTER
from ppsim.base.version import __version__
from ppsim.base.write_outputs import suffix_of
from ppsim.machine.cluster_files import load_cluster
from ppsim.projection.options import PlanOptions
from ppsim.projection.scaling import ERROR, row_of_plan
from ppsim.tuning.options import TuneOptions

Row = dict[str, Any]
Run = Callable[[Callable[..., Any], Iterable[Task]], Iterator[Any]]
"""Function that yields what calls of a function return, as they end: `in_processes`, `in_dask` or `in_ray`."""

KEY = "key"
_BLOCK_S, _LARGEST_BLOCK = 0.5, 500
"""Seconds of work per task of a worker, and the maximum number of jobs in it."""


def row_of_job(job: Job) -> Row:
    """Return the row of a projection, or of the best configuration of a search and its command."""
    tokens = job.get(TOKENS)
    try:
        if not job.get(TUNE):
            return row_of_plan(plan_of_keywords(typed_options(job, declared_options(PlanOptions))), _tokens(tokens))
        return row_of_search(tune(**typed_options(job, declared_options(TuneOptions))), _tokens(tokens))
    except PpsimError as error:
        return {ERROR: " ".join(str(error).split())}
    except Exception as error:  # one job of thousands must not end the others
        return {ERROR: f"{unexpected_error(error)}: please report it with this job"}


def _tokens(given: Any) -> float | None:
    try:
        return None if given is None else float(given)
    except (TypeError, ValueError):
        raise ConfigError(f"tokens must be a number, as 15e12: got {given!r}") from None


def sweep(
    jobs: Sequence[Job],
    output: str | Path,
    run: Run,
    *,
    restart: bool = False,
    progress: Callable[[int, int], None] = lambda num_done, num_reused: None,
) -> tuple[Counter[str], Counter[str]]:
    """Compute the rows of the jobs that neither the output nor its partial file has, and write the output.

    A row is reused if the job's options, the contents of its files and the version of ppsim are the same. Rows are
    appended to `OUTPUT.partial.jsonl` as they come. Returns the number of rows by verdict, and by error.
    Raises `ConfigError` for an output of other jobs.
    """
    require_suffix(output)
    suffix = Path(output).suffix
    _require_prices(jobs)
    partial_file = Path(f"{output}.partial.jsonl")
    keys = [_key_of(job) for job in jobs]
    rows: dict[str, str] = {}
    if restart:
        partial_file.unlink(missing_ok=True)
    else:
        options = {key.partition("-")[0] for key in keys}
        for path, read in ((Path(output), _READERS.get(suffix)), (partial_file, _read_lines)):
            if read is not None and path.exists():
                rows |= _reusable(path, read, options)
    open_jobs = {key: job for key, job in zip(keys, jobs, strict=True) if key not in rows}
    num_reused = sum(key in rows for key in keys)
    progress(num_reused, num_reused)
    blocks, num_done, number_of = _Blocks(open_jobs.items()), num_reused, Counter(keys)
    try:
        with open(partial_file, "a", encoding="utf-8") as file:
            for seconds, block in run(partial(_rows_of_block, __version__), blocks):
                blocks.note(seconds, len(block))
                rows |= block
                file.writelines(f'{{"{KEY}": "{key}", "row": {row}}}\n' for key, row in block.items())
                file.flush()
                num_done += sum(map(number_of.__getitem__, block))
                progress(num_done, num_reused)
    except OSError as error:
        raise ConfigError(f"cannot write {partial_file}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            if not partial_file.stat().st_size:
                partial_file.unlink()
    inputs = dict.fromkeys(keyword_of(name) for job in jobs for name in job)
    outputs: dict[str, None] = {}
    verdicts, errors = Counter[str](), Counter[str]()
    for key in keys:
        row = json.loads(rows[key])
        outputs |= dict.fromkeys(row)
        (errors if row.get(ERROR) else verdicts)[row.get(ERROR) or row["verdict"]] += 1
    last = [name for name in (COMMAND, ERROR) if name in outputs or name == ERROR]

    def table() -> Iterator[Row]:
        for job, key in zip(jobs, keys, strict=True):
            yield {keyword_of(name): option for name, option in job.items()} | {KEY: key} | json.loads(rows[key])

    columns = [*inputs, KEY, *(name for name in outputs if name not in last), *last]
    write_atomically(output, _WRITERS[suffix](columns, table()))
    partial_file.unlink(missing_ok=True)
    return verdicts, errors


def _require_prices(jobs: Sequence[Job]) -> None:
    """Raises `ConfigError` if only some jobs have a price, because their costs would not be comparable."""
    unpriced = [
        job for job in jobs if job.get("price") is None and not _has_price(str(job.get("cluster", CLUSTER)))
    ]
    if 0 < len(unpriced) < len(jobs):
        clusters = list(dict.fromkeys(str(job.get("cluster", CLUSTER)) for job in unpriced))
        raise ConfigError(
            f"{len(jobs) - len(unpriced)} of {len(jobs)} jobs have a price, and jobs on {', '.join(clusters[:3])} "
            f"have none: give `price`, or price_per_gpu_hour in the cluster's file"
        )


@cache
def _has_price(cluster: str) -> bool:
    with suppress(PpsimError):  # the job's row will have the error
        return load_cluster(cluster).price_per_gpu_hour is not None
    return False


class _Blocks:
    """Tasks of several jobs each, in numbers that take about half a second."""

    def __init__(self, jobs: Iterable[tuple[str, Job]]) -> None:
        self._jobs, self._seconds, self._number = iter(jobs), 0.0, 0

    def __iter__(self) -> Iterator[Task]:
        while block := dict(islice(self._jobs, self._size())):
            yield (block,)

    def note(self, seconds: float, number: int) -> None:
        self._seconds, self._number = self._seconds + seconds, self._number + number

    def _size(self) -> int:
        per_job = self._seconds / self._number if self._number else _BLOCK_S
        return max(1, min(_LARGEST_BLOCK, round(_BLOCK_S / max(per_job, 1e-6))))


def _rows_of_block(version: str, block: Mapping[str, Job]) -> tuple[float, dict[str, str]]:
    """Return the seconds that the block took, and its rows as JSON by key."""
    if version != __version__:
        raise ConfigError(f"a worker has ppsim {__version__}, and this is {version}: install the same on both")
    began_s = time.perf_counter()
    rows = {key: json.dumps(row_of_job(job)) for key, job in block.items()}
    return time.perf_counter() - began_s, rows


def _key_of(job: Job) -> str:
    """Return a digest of the options, and one of the job's files and the version."""
    files = sorted(
        (name, _digest_of_path(given))
        for name, given in job.items()
        if isinstance(given, str) and os.path.exists(given)
    )
    return f"{_digest(json.dumps(job, sort_keys=True, default=str))}-{_digest(f'{__version__} {files}')}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _digest_of_path(path: str) -> str:
    """Folders, which may hold recordings, are compared by the sizes and dates of their files."""
    if os.path.isfile(path):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    files = sorted(one for one in Path(path).rglob("*") if one.is_file())
    return _digest(str([(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]))


def _reusable(path: Path, read: Callable[[Path], Iterator[tuple[str, Row]]], options: set[str]) -> dict[str, str]:
    """Raises `ConfigError` if most rows are of other jobs, because they would be lost."""
    try:
        found = dict(read(path))
        if wrong := [key for key, row in found.items() if not (row.get(ERROR) or row["verdict"])]:
            raise ValueError(f"no result of {wrong[0]}")
        rows = {key: json.dumps(row) for key, row in found.items()}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is no output of ppsim sweep ({error}): give another name, or --restart to replace it"
        ) from None
    num_other = sum(key.partition("-")[0] not in options for key in rows)
    if 2 * num_other > len(rows):
        raise ConfigError(
            f"{path} has the results of other jobs ({num_other} of {len(rows)}): give another name, or "
            "--restart to replace it"
        )
    return rows


def _read_lines(path: Path) -> Iterator[tuple[str, Row]]:
    """The last line of a partial file may have been cut, and is removed."""
    text = read_text(path, most=DATA_BYTES)
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        os.truncate(path, len(text.encode()) - len(lines.pop().encode()))
    for line in lines:
        entry = json.loads(line)
        yield entry[KEY], entry["row"]


def _outputs_of(row: Mapping[str, Any]) -> tuple[str, Row]:
    names = list(row)
    return row[KEY], {name: row[name] for name in names[names.index(KEY) + 1 :]}


def _read_csv(path: Path) -> Iterator[tuple[str, Row]]:
    import csv

    with open(path, encoding="utf-8", newline="") as file:
        yield from map(_outputs_of, csv.DictReader(file, strict=True))


def _read_json_lines(path: Path) -> Iterator[tuple[str, Row]]:
    yield from (_outputs_of(json.loads(line)) for line in read_text(path, most=DATA_BYTES).splitlines())


def _read_parquet(path: Path) -> Iterator[tuple[str, Row]]:
    from pyarrow import parquet

    yield from map(_outputs_of, parquet.read_table(path).to_pylist())


_READERS = {".csv": _read_csv, ".jsonl": _read_json_lines, ".parquet": _read_parquet}


def _json_lines(columns: Sequence[str], table: Iterator[Row]) -> str:
    return "".join(f"{json.dumps({name: row.get(name) for name in columns})}\n" for row in table)


def _parquet(columns: Sequence[str], table: Iterator[Row]) -> bytes:
    """Columns of several types, as texts and numbers, become texts."""
    import pyarrow
    from pyarrow import parquet

    cells: dict[str, list[Any]] = {name: [] for name in columns}
    for row in table:
        for name, column in cells.items():
            column.append(row.get(name))
    for column in cells.values():
        kinds = {float if type(cell) is int else type(cell) for cell in column} - {type(None)}
        if len(kinds) > 1 or list in kinds or dict in kinds:
            column[:] = [None if cell is None else str(cell) for cell in column]
    content = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(cells), content)
    return bytes(content.getvalue())


def _markdown(columns: Sequence[str], table: Iterator[Row]) -> str:
    shown = [name for name in columns if name != KEY]
    return markdown_table([{name: row.get(name) for name in shown} for row in table])


_WRITERS: dict[str, Callable[[Sequence[str], Iterator[Row]], str | bytes]] = {
    ".csv": lambda columns, table: csv_text(table, columns), ".jsonl": _json_lines,
    ".parquet": _parquet, ".md": _markdown,
}  # fmt: skip


def require_suffix(output: str | Path) -> None:
    """Raises `ConfigError` for another suffix, and `MissingExtra` for Parquet without pyarrow."""
    suffix = suffix_of(str(output), _WRITERS)
    if suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise MissingExtra.of("sweep", f"{output} needs pyarrow", otherwise="write .csv or .jsonl") from None
