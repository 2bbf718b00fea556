"""Tables of the fields of a configuration: type, range, default and help text, read off the class.

``.. config-fields:: agentic_trl.PPOConfig`` lists what the package declares; ``:beyond: agentic_trl.AgenticGRPOConfig`` leaves
out what that class has with the same default. ``.. inherited-fields::`` lists the names of the others.
"""

import dataclasses
import pkgutil
import types
from typing import Annotated, Union, get_args, get_origin, get_type_hints

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from agentic_trl.methods import DEFAULTS
from agentic_trl.trainers.config.ranges import numbers_of

COLUMNS = (("field", 24), ("type", 14), ("default", 12), ("meaning", 50))


def declared(cls):
    """Return the names of the fields that classes of the package declare, those of the class itself first."""
    own = [one for one in cls.__mro__ if one.__module__.startswith("agentic_trl.")]
    names = dict.fromkeys(name for one in own for name in vars(one).get("__annotations__", {}))
    fields = {one.name for one in dataclasses.fields(cls)}
    return [name for name in names if name in fields]


def type_of(hint):
    """Return a type in the words of a reader, without its range."""
    if get_origin(hint) is Annotated:
        return type_of(get_args(hint)[0])
    if get_origin(hint) in {Union, types.UnionType}:
        return " | ".join(type_of(one) for one in get_args(hint))
    if get_origin(hint):
        inner = ", ".join(type_of(one) for one in get_args(hint))
        return f"{get_origin(hint).__name__}[{inner}]"
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))


def rows(cls, beyond=None):
    """Yield name, type with range, default and help text of each field."""
    hints = get_type_hints(cls, include_extras=True)
    numbers = dict(numbers_of(cls))
    known = {one.name: one for one in dataclasses.fields(beyond)} if beyond else {}
    fields = {one.name: one for one in dataclasses.fields(cls)}
    for name in declared(cls):
        field = fields[name]
        if name in known and known[name].default == field.default:
            continue
        number = numbers.get(name)
        limits = number.range.meant.removesuffix(", or None") if number and number.range else ""
        by_method = name in DEFAULTS and field.default is None
        default = "by method" if by_method else repr(field.default).replace("'", '"')
        yield name, type_of(hints[name]), limits, default, field.metadata["help"]


def cell(*parts):
    """Return a cell of a table."""
    return nodes.entry("", nodes.paragraph("", "", *parts))


class ConfigFields(SphinxDirective):
    """The fields of a configuration that the package declares."""

    required_arguments = 1
    option_spec = {"beyond": directives.unchanged}  # noqa: RUF012

    def run(self):
        """Return the table; each field has an anchor and an entry in the index of names."""
        cls = pkgutil.resolve_name(self.arguments[0])
        beyond = self.options.get("beyond")
        body = nodes.tbody()
        for name, kind, limits, default, text in rows(
            cls, pkgutil.resolve_name(beyond) if beyond else None
        ):
            anchor = f"{self.arguments[0]}.{name}"
            target = nodes.target("", "", ids=[anchor])
            self.state.document.note_explicit_target(target)
            self.env.domains.python_domain.note_object(anchor, "attribute", anchor, location=target)
            ranged = [nodes.Text(f", {limits}")] if limits else []
            body += nodes.row(
                "",
                cell(target, nodes.literal(text=name)),
                cell(nodes.literal(text=kind), *ranged),
                cell(
                    nodes.Text(default) if default == "by method" else nodes.literal(text=default)
                ),
                cell(nodes.Text(text)),
            )
        specs = [nodes.colspec(colwidth=width) for _, width in COLUMNS]
        head = nodes.thead("", nodes.row("", *(cell(nodes.Text(name)) for name, _ in COLUMNS)))
        group = nodes.tgroup("", *specs, head, body, cols=len(COLUMNS))
        return [nodes.table("", group)]


class InheritedFields(SphinxDirective):
    """The names of the fields of a configuration that the package inherits as they are."""

    required_arguments = 1

    def run(self):
        """Return the names in a paragraph."""
        cls = pkgutil.resolve_name(self.arguments[0])
        ours = declared(cls)
        found = nodes.paragraph()
        for name in sorted(one.name for one in dataclasses.fields(cls) if one.name not in ours):
            found += [nodes.Text(", ")] if len(found) else []
            found += nodes.literal(text=name)
        return [found]


def setup(app):
    """Register the directives."""
    app.add_directive("config-fields", ConfigFields)
    app.add_directive("inherited-fields", InheritedFields)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
