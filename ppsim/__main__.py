"""`python -m ppsim`, which is how torchrun starts `ppsim train`."""

from ppsim.cli import main

main()
