"""The command `warm-up`: compile kernels in advance."""

import click


@click.command("warm-up")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def warm_up(names: tuple[str, ...]) -> None:
    """Compile every kernel that numba does not keep yet, once for this installation; or those of some schedules.

    \b
      ppsim warm-up
      ppsim warm-up 1f1b
      ppsim warm-up interleaved-1f1b zb-h1

    For a container's image, and before a search on a cluster's workers. Installing ppsim from source does the same.
    Otherwise the first command that needs a kernel for long compiles it, and says so. NUMBA_CACHE_DIR says where
    numba keeps it. What is compiled is for this CPU; another one compiles its own.
    """
    from ppsim.api.warm_up import warm_up as compile_all

    compile_all(names, say=click.echo)
