"""Execute the notebooks; --write stores what they show beside their code: python scripts/run_notebooks.py --write

Stored outputs hold no times of execution, no paths and no warnings, and pictures in 64 colours, so that they change
only where an answer does. Cells tagged "measured" show what this machine measured.
"""

import argparse
import base64
import io
import tempfile
import time
from pathlib import Path
from typing import Any

from ppsim.base.files import write_whole

FOLDER = Path(__file__).parents[1] / "notebooks"
MEASURED = "measured"
"""The tag of a cell whose output is another on every run."""

_MOST_BYTES = 60_000
_COLOURS = 64


def main() -> None:
    """Execute all notebooks or those named, and store their outputs where that was asked for."""
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

            write_whole(path, nbformat.writes(storable(notebook)) + "\n")


def executed(path: Path, folder: str | Path) -> Any:
    """Return the notebook with new outputs, its cells run in `folder`; raises `CellExecutionError` as they do."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(folder)}}, extra_arguments=["--log-level=ERROR"]
    )
    client.execute()
    return notebook


def shown(notebook: Any) -> list[list[str]]:
    """Return the text that each cell shows, a line an entry; nothing of a cell that measures."""
    return [
        [] if MEASURED in cell.metadata.get("tags", []) else _text_of(cell.get("outputs", [])).splitlines()
        for cell in notebook.cells
    ]


def _text_of(outputs: list[Any]) -> str:
    printed = "".join(one["text"] for one in outputs if one.output_type == "stream" and one.name == "stdout")
    return printed + "".join(one["data"].get("text/plain", "") for one in outputs if "data" in one)


def storable(notebook: Any) -> Any:
    """Return the notebook as it is kept: outputs without what tells one run from another, pictures small."""
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
    """The picture in few colours; raises `ValueError` where that leaves too many bytes for a repository."""
    from PIL import Image

    packed = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
        fewer = picture.convert("RGB").quantize(
            _COLOURS,
            method=Image.Quantize.MAXCOVERAGE,  # a small patch keeps a colour of its own
            kmeans=2,
            dither=Image.Dither.NONE,
        )
    fewer.save(packed, "png", optimize=True)
    if packed.tell() > _MOST_BYTES:
        raise ValueError(f"a picture takes {packed.tell()} bytes, more than {_MOST_BYTES}: draw less")
    return base64.b64encode(packed.getvalue()).decode()


if __name__ == "__main__":
    main()
