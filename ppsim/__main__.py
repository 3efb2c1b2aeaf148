"""`python -m ppsim`, which is how torchrun starts `ppsim train`, and what the command `ppsim` begins with."""

import os
import sys


def _front_page_written() -> bool:
    """Whether the page of all commands could be written, for which nothing is imported."""
    from ppsim.base.help_front_page import front_page, page_width

    try:
        os.write(1, front_page(page_width()).encode())
    except OSError:
        return False  # the command line says what is wrong with standard output
    return True


def main() -> None:
    """Run the command line; Ctrl-C during the imports exits with status 130 and no traceback."""
    try:
        if sys.argv[1:] in (["--help"], ["-h"]) and _front_page_written():
            return
        from ppsim.cli import main as run

        if "_PPSIM_COMPLETE" in os.environ:  # a shell asks what goes on from what was typed
            from ppsim.cli.completion import use_files_otherwise

            use_files_otherwise()
        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def command() -> None:
    """Run the command line in a process of its own, and end that."""
    try:
        main()
    except SystemExit as ended:
        from ppsim.base.process_startup import exit_fast

        exit_fast(ended.code)
        raise


if __name__ == "__main__":
    command()
