"""`python -m ppsim`, which is how torchrun starts `ppsim train`, and what the command `ppsim` begins with."""


def main() -> None:
    """Run the command line; an interruption while it is imported ends it as quietly as a later one."""
    try:
        from ppsim.cli import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
