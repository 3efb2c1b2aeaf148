"""Write the section "Against published runs" of docs/accuracy.md: python scripts/make_accuracy.py"""

from pathlib import Path

from ppsim.api.validation import validate
from ppsim.printing.validation import markdown

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
BEGIN, END = "<!-- ppsim validate --markdown -->\n", "<!-- end of ppsim validate --markdown -->\n"


def page() -> str:
    """Return the page with the section as it is now."""
    text = PAGE.read_text()
    section = markdown(validate().sets)
    return text[: text.index(BEGIN) + len(BEGIN)] + section + text[text.index(END) :]


if __name__ == "__main__":
    PAGE.write_text(page())
