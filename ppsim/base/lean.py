"""How a process that does one thing, and ends, starts."""

import gc
import os


def start_lean() -> None:
    """Spend nothing from here on on what a process that soon ends has no use for; called before numpy is imported.

    Threads of numpy's linear algebra turn for 25 ms each while they wait for work; pydantic looks for plug-ins in
    all that is installed; Python collects garbage for each 700 objects more, an eighth of the time of a search.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.set_threshold(100_000)
