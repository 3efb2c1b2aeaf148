"""The errors that ppsim raises, for programs that catch them; defined in `ppsim.base.errors`."""

from ppsim.base.errors import *  # noqa: F403
