"""`python -m ppsim`, which is how torchrun starts `ppsim train`, and what the command `ppsim` begins with."""

import os


def main() -> None:
    """Run the command line; an interruption while it is imported ends it as quietly as a later one."""
    try:
        from ppsim.cli import main as run

        if "_PPSIM_COMPLETE" in os.environ:  # a shell asks what goes on from what was typed
            from ppsim.cli.completion import use_files_otherwise

            use_files_otherwise()
        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
