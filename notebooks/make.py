"""Write the notebooks as .ipynb, from their text: `python notebooks/make.py [FOLDER]`. Needs nbformat."""

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def notebook_of(text: str) -> Any:
    """A notebook of a file in the percent format: cells begin at `# %%`, those of prose at `# %% [markdown]`."""
    import nbformat.v4 as nb

    made = nb.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    for number, cell in enumerate(text.split("# %%")[1:]):
        mark, _, body = cell.partition("\n")
        prose = mark.strip() == "[markdown]"
        lines = [line.removeprefix("#").removeprefix(" ") if prose else line for line in body.strip("\n").split("\n")]
        new = nb.new_markdown_cell if prose else nb.new_code_cell
        made.cells.append(new("\n".join(lines), id=f"cell-{number}"))
    return made


def names() -> list[str]:
    """The notebooks, by file name without its end."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.name != "make.py")


def main() -> None:
    """Write them all."""
    import nbformat

    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    out.mkdir(parents=True, exist_ok=True)
    for name in names():
        nbformat.write(notebook_of((HERE / f"{name}.py").read_text(encoding="utf-8")), out / f"{name}.ipynb")
        print(f"wrote {out / name}.ipynb")


if __name__ == "__main__":
    main()
