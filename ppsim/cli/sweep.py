"""The command `sweep`."""

from functools import partial
from typing import Any, Literal, get_args

import click

from ppsim.base.errors import ConfigError
from ppsim.cli.common import check_outputs, print_message
from ppsim.results.progress import progress

_Backend = Literal["processes", "dask", "ray"]


@click.command()
@click.argument("file", metavar="JOBS")
@click.option(
    "-o", "--output", required=True, metavar="PATH",
    help="Table of results: .csv, .jsonl, .parquet or .md. Rows of the same jobs in this table are reused.",
)  # fmt: skip
@click.option("--restart", is_flag=True, help="Compute all jobs, and replace the table.")
@click.option(
    "--jobs", type=int, default=1, metavar="N", help="Number of processes, -1 for one per core. [default: 1]"
)
@click.option(
    "--backend", type=click.Choice(get_args(_Backend)), default="processes", show_default=True,
    help="Processes of this machine, or the workers of a Dask or a Ray cluster.",
)  # fmt: skip
@click.option("--scheduler", metavar="ADDRESS", help="Dask scheduler: tcp://HOST:PORT, or its file scheduler.json.")
@click.option("--address", metavar="ADDRESS", help="Ray cluster: HOST:PORT, auto (of this machine) or local (new).")
def sweep(
    file: str,
    output: str,
    restart: bool,
    jobs: int,
    backend: _Backend,
    scheduler: str | None,
    address: str | None,
) -> None:
    """Project, or search, many jobs: a file of options in, a table of results out.

    \b
      ppsim sweep jobs.yaml -o results.csv
      ppsim sweep jobs.yaml -o results.csv --jobs -1
      ppsim sweep jobs.csv -o results.csv --backend ray --address auto

    JOBS is a .csv, .jsonl, .toml, .yaml or .json file with a row per job: options by their names, such as model,
    recipe or run_config. Lists multiply, as gpus: [64, 128, 256]. A TOML or YAML file has its rows under `jobs`,
    and options of all jobs in the same file. With tune: true, a job is a search, and lists of tp, pp and so on are
    its ranges.

    Each job has one row of results, in the order of the jobs, with an error if it failed. Finished rows are saved
    in PATH.partial.jsonl, and the table is written at the end: a sweep that was stopped continues with the same
    command.
    """
    from ppsim.api import sweep as sweeps
    from ppsim.api.sweep_jobs import read_jobs
    from ppsim.base.parallel import in_processes
    from ppsim.results.sweep import print_sweep

    check_outputs([output], inputs=[file])
    sweeps.require_suffix(output)
    needed = {"dask": ("scheduler", scheduler), "ray": ("address", address)}
    for name, (option, given) in needed.items():
        if (name == backend) != (given is not None):
            raise ConfigError(f"--backend {name} and --{option} ADDRESS belong together: give both or neither")
    if backend != "processes" and jobs != 1:
        raise ConfigError(f"--jobs {jobs} is for processes of this machine: leave it out with --backend {backend}")
    run: Any = partial(in_processes, number=jobs, is_ordered=False)
    if backend != "processes":
        from ppsim.api.sweep_workers import in_dask, in_ray

        run = partial(in_dask if backend == "dask" else in_ray, address=scheduler or address or "")
    wanted = read_jobs(file)
    with progress("projecting", total=len(wanted), unit="jobs") as bar:

        def show(num_done: int, num_reused: int) -> None:
            if num_done == num_reused > 0:
                bar.say(f"  {num_reused} of {len(wanted)} jobs were computed before")
            bar.update(done=num_done)

        try:
            verdicts, errors = sweeps.sweep(wanted, output, run, restart=restart, progress=show)
        except KeyboardInterrupt:
            print_message(f"stopped: rows so far are in {output}.partial.jsonl; the same command continues")
            raise
    print_message(f"wrote {output}")
    print_sweep(verdicts, errors)
    if not verdicts:
        raise click.exceptions.Exit(1)
