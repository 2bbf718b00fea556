"""No tolerance is a bare number: it is ``EXACT`` in float64, follows from the numbers, or says why it holds.

What is looked for: a number in ``abs=`` or ``atol=`` of a call, a small number on the small side of a comparison,
a name with a small number that such a place uses, and ``assert_close`` or ``allclose`` on torch's own tolerances.
A comment on the line, or directly above the statement, is the reason; below a name a docstring is.

Mutations seen red: each line of ``SOURCES`` without its reason; ``abs=1e-5`` put into ``test_ranks``.
"""

import ast

import pytest

from tests.paths import ROOT

FILES = sorted(path for folder in ("tests", "recipes") for path in (ROOT / folder).rglob("*.py"))
SMALL = 1e-2
"""Numbers below this, on the small side of a comparison, are taken for tolerances; larger ones for bounds."""
HIDDEN = {"assert_close": {"rtol", "atol"}, "allclose": {"rtol", "atol"}}
"""Functions with absolute or relative tolerances of their own, and the arguments that replace them."""


def number(node):
    """The float that an expression of numbers alone is, or ``None``."""
    if any(isinstance(one, (ast.Name, ast.Call, ast.Attribute)) for one in ast.walk(node)):
        return None
    try:
        value = eval(compile(ast.Expression(node), "", "eval"))
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return value if isinstance(value, float) else None


def is_small(node):
    value = number(node)
    return value is not None and 0 < value < SMALL


def tolerances(tree):
    """Each expression in the place of a tolerance, and each call with a hidden one; whether it is a bare number."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            given = {one.arg for one in node.keywords}
            for one in node.keywords:
                if one.arg in ("abs", "atol"):
                    yield one.value, number(one.value) is not None
            if name in HIDDEN and not HIDDEN[name] & given:
                yield node, True
        elif isinstance(node, ast.Compare):
            yield from compared(node)


def compared(node):
    sides = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
    for left, operator, right in sides:
        if isinstance(operator, (ast.Lt, ast.LtE)):
            yield right, is_small(right)
        elif isinstance(operator, (ast.Gt, ast.GtE)):
            yield left, is_small(left)


def without_reason(text):
    """Lines of a source text at which a tolerance is a number without a reason."""
    tree, lines = ast.parse(text), text.splitlines()
    starts, names = statements(tree), small_names(tree)

    def said(line):
        above = lines[starts[line] - 2] if starts[line] > 1 else ""
        return "# " in lines[line - 1] or above.strip().startswith("# ")

    def described(line):
        return said(line) or lines[line].strip().startswith('"""')

    found = set()
    for node, bare in tolerances(tree):
        if isinstance(node, ast.Name) and node.id in names:
            if not described(names[node.id]):
                found.add(names[node.id])
        elif bare and not said(node.lineno):
            found.add(node.lineno)
    return sorted(found)


def statements(tree):
    """By line, where the innermost statement on it begins."""
    starts = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            for line in range(node.lineno, node.end_lineno + 1):
                starts[line] = max(starts.get(line, 0), node.lineno)
    return starts


def small_names(tree):
    """The lines at which names are given small numbers, by name."""
    return {
        target.id: node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and is_small(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


SOURCES = {
    "assert x == approx(y, abs=1e-5)": 1,
    "assert x == approx(y, abs=1 / 4000)": 1,
    "assert x == approx(y, abs=0.15)": 1,
    "assert_close(\n    x,\n    y,\n    atol=1e-5,\n)": 4,
    "assert drift < 1e-6": 1,
    "assert 0 <= drift <= 1e-6": 1,
    "assert 1e-6 > drift": 1,
    "torch.testing.assert_close(x, y)": 1,
    "assert torch.allclose(x, y)": 1,
    "NEAR = 1e-5\nassert x < NEAR": 1,
}


@pytest.mark.parametrize("text", SOURCES)
def test_a_number_without_a_reason_is_found_and_with_one_is_not(text):
    line = SOURCES[text]
    assert without_reason(text) == [line]
    assert without_reason(f"x = 1\n{text}") == [line + 1]
    assert without_reason(f"# rounding of a sum of 3\n{text}") == []
    lines = text.splitlines()
    lines[line - 1] += "  # rounding of a sum of 3"
    assert without_reason("\n".join(lines)) == []


@pytest.mark.parametrize(
    "text",
    [
        "assert x < EXACT",
        "assert x == approx(y, abs=EXACT)",
        "assert x == approx(y, rel=1e-6)",
        "assert moved > 1e-6",
        "assert share < 0.5",
        "assert x == approx(y, abs=tolerance(3.0))",
        'NEAR = 1e-5\n"""Of sums of 3."""\nassert x < NEAR',
    ],
)
def test_what_is_no_bare_number_passes(text):
    assert without_reason(text) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_tolerance_has_a_reason(path):
    assert without_reason(path.read_text()) == [], (
        "say in a comment why it holds on every processor"
    )
