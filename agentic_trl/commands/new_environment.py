"""``agentic_trl new-environment``: a package with an environment, its test, a recipe and an entry point, to be changed."""

import argparse
import importlib.util
import keyword
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template

TEMPLATES = Path(__file__).parent / "new_environment_files"
"""Folder of what is written, with ``$`` before what the name decides."""

FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "recipe.yaml": "recipe.yaml.txt",
    "src/{name}/__init__.py": "init.py.txt",
    "src/{name}/environment.py": "environment.py.txt",
    "tests/test_{name}.py": "test.py.txt",
}
"""Files by their templates."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's flags."""
    parser = argparse.ArgumentParser(prog="agentic_trl new-environment", description=__doc__)
    parser.add_argument("name", help="name of the package, such as guess_number")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(),
        help="folder that gets the package's; unset is this one",
    )
    return parser


def run(words: Sequence[str]) -> int:
    """Write the package.

    Args:
        words: The flags.

    Returns:
        Exit status 0.

    Raises:
        OSError: If the folder cannot be written.
        ValueError: If the name is none for a package, or the folder is there already.
    """
    options = parser().parse_args(words)
    folder = options.output / options.name
    _refuse_name(options.name)
    if folder.exists():
        raise ValueError(
            f"{folder} is there already, expected a folder that is not, since nothing is overwritten. "
            "Give another name, or another --output."
        )
    for path in write(options.name, folder):
        print(path)
    print(
        f"\nnext: cd {folder}; pip install -e '.[test]'; python -m pytest; the README has the commands"
    )
    return 0


def write(name: str, folder: Path) -> list[Path]:
    """Write the package into a new folder.

    Args:
        name: Name of the package.
        folder: The folder, which is made.

    Returns:
        The files.

    Raises:
        OSError: If it is there, or cannot be made.
    """
    folder.mkdir(parents=True)
    class_name = "".join(part.capitalize() for part in name.split("_"))
    words = {"name": name, "class_name": class_name, "id": f"{class_name}-v1"}
    words["project"] = name.replace("_", "-")
    made = []
    for file, template in FILES.items():
        path = folder / file.format(name=name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(words), encoding="utf-8", newline="\n")
        made.append(path)
    return made


def _refuse_name(name: str) -> None:
    """Refuse a name that no package can have, or that one has.

    Raises:
        ValueError: If it is such a name.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*[a-z0-9]", name) or keyword.iskeyword(name):
        near = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).lower().strip("_")
        hint = f" Did you mean {near!r}?" if near != name and near.isidentifier() else ""
        raise ValueError(
            f"name: got {name!r}, expected that of a Python package: two small letters or more, digits and underscores "
            f"behind the first, and no word of Python.{hint}"
        )
    found = importlib.util.find_spec(name)
    if found is not None and found.origin is not None:
        raise ValueError(
            f"name: got {name!r}, expected a new one: a module of that name is installed, {found.origin}. Give another."
        )
