"""The command `warm-up`."""

import click


@click.command("warm-up")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def warm_up(names: tuple[str, ...]) -> None:
    """Compile all numba kernels now, or those of the given schedules, so that later commands need not wait.

    \b
      ppsim warm-up
      ppsim warm-up 1f1b
      ppsim warm-up interleaved-1f1b zb-h1

    Run it while building a container image, and before a search on a cluster's workers. Compiled kernels are cached
    for this installation and this type of CPU, in NUMBA_CACHE_DIR if it is set. Installing ppsim from source
    compiles them too. Otherwise, the first command that needs a kernel for much work compiles it and says so.
    """
    from ppsim.api.warm_up import warm_up as compile_all

    compile_all(names, say=click.echo)
