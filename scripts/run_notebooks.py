"""Execute the notebooks; --write stores their outputs: python scripts/run_notebooks.py --write

Stored outputs have no execution times, paths or warnings, and pictures have 64 colours, so that they change only if
a result changes. Cells tagged "measured" show measurements of this machine.
"""

import argparse
import base64
import io
import tempfile
import time
from pathlib import Path
from typing import Any

from ppsim.base.files import write_atomically

FOLDER = Path(__file__).parents[1] / "notebooks"
MEASURED = "measured"
"""Tag of a cell whose output changes on every run."""

_MOST_BYTES = 60_000
_COLOURS = 64


def main() -> None:
    """Execute the notebooks, and store their outputs with --write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all")
    parser.add_argument("--write", action="store_true", help="store the outputs in the notebooks")
    arguments = parser.parse_args()
    for path in arguments.notebooks or sorted(FOLDER.glob("*.ipynb")):
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(path, folder)
        print(f"{path.name}: {time.perf_counter() - begin:.1f} s")
        if arguments.write:
            import nbformat

            write_atomically(path, nbformat.writes(storable(notebook)) + "\n")


def executed(path: Path, folder: str | Path) -> Any:
    """Return the notebook with new outputs; raises `CellExecutionError` if a cell fails."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(folder)}}, extra_arguments=["--log-level=ERROR"]
    )
    client.execute()
    return notebook


def shown(notebook: Any) -> list[list[str]]:
    """Return the text output of each cell as a list of lines; nothing for a cell with measurements."""
    return [
        [] if MEASURED in cell.metadata.get("tags", []) else _text_of(cell.get("outputs", [])).splitlines()
        for cell in notebook.cells
    ]


def _text_of(outputs: list[Any]) -> str:
    printed = "".join(one["text"] for one in outputs if one.output_type == "stream" and one.name == "stdout")
    return printed + "".join(one["data"].get("text/plain", "") for one in outputs if "data" in one)


def storable(notebook: Any) -> Any:
    """Return the notebook without data that changes from run to run, with small pictures."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {"tags": cell.metadata["tags"]} if "tags" in cell.metadata else {}
        if cell.cell_type != "code":
            continue
        cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = _small(output.data["image/png"])
    return notebook


def _small(png: str) -> str:
    """Return the picture with few colours; raises `ValueError` if it is still too large for a repository."""
    from PIL import Image

    packed = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
        fewer = picture.convert("RGB").quantize(
            _COLOURS,
            method=Image.Quantize.MAXCOVERAGE,  # preserves the colours of small areas
            kmeans=2,
            dither=Image.Dither.NONE,
        )
    fewer.save(packed, "png", optimize=True)
    if packed.tell() > _MOST_BYTES:
        raise ValueError(f"a picture takes {packed.tell()} bytes, more than {_MOST_BYTES}: draw less")
    return base64.b64encode(packed.getvalue()).decode()


if __name__ == "__main__":
    main()
