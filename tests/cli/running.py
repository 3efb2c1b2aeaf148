"""Run the command line in this process, as a user would from a shell."""

import json
import traceback
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from ppsim.cli import main


def ppsim(*args: object, code: int = 0) -> Result:
    """Return what `ppsim ARGS` printed; fails on another exit code and on a traceback."""
    result = CliRunner().invoke(main, [str(arg) for arg in args], prog_name="ppsim")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError("".join(traceback.format_exception(result.exception)))
    assert result.exit_code == code, f"exit {result.exit_code}, not {code}:\n{result.output}"
    assert "Traceback" not in result.output
    return result


def words_of(text: str) -> str:
    """Return a text with its line breaks and runs of blanks as one blank, so that wrapping does not matter."""
    return " ".join(text.split())


def measured_from(simulated: Path) -> dict[str, Any]:
    """Return a simulated timeline as the file of a measured run of two equal steps."""
    content: dict[str, Any] = json.loads(simulated.read_text())
    steps = {name: [times] * 2 for name, times in content["timeline"].items() if name != "blocker"}
    steps |= {"between_steps_s": [0.1], "message_bytes": 1000.0, "knows_transfers": True}
    return content | {"origin": "measured", "steps": steps}
