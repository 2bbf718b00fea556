"""Rooms of the package, the folders and files at the top of a subpackage, and who imports whom at run time.

python -m tests.rooms        prints the pictures of docs/design.md
"""

import argparse
import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from tests.paths import ROOT

PACKAGE = ROOT / "agentic_trl"
SUBPACKAGES = ("trainers", "rollout", "environments")


def modules():
    """Every module of the package: its dotted name below the package, and its file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Modules of the package that a module imports, at its top or in a function, but for types alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agentic_trl"):
            for alias in node.names:
                yield node.module
                yield f"{node.module}.{alias.name}"
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith("agentic_trl"))
        yield from imports_of(node)


def arrows(subpackage):
    """Pairs of rooms of a subpackage of which the first imports the second, and all its rooms."""
    known = {name for name, _ in modules()}
    found, rooms = set(), set()
    for name, path in modules():
        if not name.startswith(f"{subpackage}."):
            continue
        room = name.split(".")[1]
        rooms.add(room)
        for imported in imports_of(ast.parse(path.read_text())):
            target = imported.removeprefix("agentic_trl").lstrip(".")
            if target in known and target.startswith(f"{subpackage}."):
                found.add((room, target.split(".")[1]))
    return {(a, b) for a, b in found if a != b}, rooms


def levels(pairs, rooms):
    """Length of the longest chain of rooms; ``CycleError`` if they import in a circle."""
    below = {room: {b for a, b in pairs if a == room} for room in rooms}
    depth = {}
    for room in TopologicalSorter(below).static_order():
        depth[room] = 1 + max((depth[one] for one in below[room]), default=0)
    return max(depth.values())


def mermaid(subpackage):
    """The picture of a subpackage."""
    pairs, rooms = arrows(subpackage)
    alone = sorted(rooms - {room for pair in pairs for room in pair})
    lines = [f"    {a} --> {b}" for a, b in sorted(pairs)] + [f"    {one}" for one in alone]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for one in SUBPACKAGES:
        pairs, rooms = arrows(one)
        try:
            size = f"{len(rooms)} rooms, {levels(pairs, rooms)} levels, {len(pairs)} arrows"
        except CycleError as error:
            size = f"a circle: {error.args[1]}"
        print(f"`{one}/`: {size}\n\n{mermaid(one)}\n")  # noqa: T201
