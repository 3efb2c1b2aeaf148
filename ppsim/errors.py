"""The errors that ppsim raises, for programs that catch them; `ppsim.base.errors` defines them."""

from ppsim.base.errors import *  # noqa: F403
