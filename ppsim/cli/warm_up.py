"""The command `warm-up`: nobody waits for a compiler later."""

import click


@click.command("warm-up")
def warm_up() -> None:
    """Compile every kernel that numba does not keep yet, once for this installation.

    \b
      ppsim warm-up
      NUMBA_CACHE_DIR=/opt/ppsim-kernels ppsim warm-up
      srun --ntasks-per-node 1 ppsim warm-up

    For a container's image, and before a search on a cluster's workers. Without it the first command that needs a
    kernel compiles it, and says so. What is compiled is for this CPU; another one compiles its own.
    """
    from ppsim.api.warm_up import warm_up as compile_all

    compile_all(click.echo)
