"""The pages of the web shop: their links, and their text.

They read as in the plain-text mode of the original: its parts in its order with ``[SEP]`` between. Left
out are reviews and ratings; added are the chosen options and the admissible actions, a line each.
"""

from dataclasses import dataclass, replace

from agentic_trl.environments.webshop.catalog import Catalog, Goal, Product

PAGE = 10
"""Results a page."""

BUY = "buy now"
"""The click that ends an episode."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the shop as it is shown."""

    kind: str = "search"
    """"search", "results", "item", "description" or "features"."""
    keywords: str = ""
    """Keywords of the search."""
    hits: tuple[str, ...] = ()
    """Numbers of the products that were found."""
    number: int = 1
    """Page of the results, from 1."""
    asin: str = ""
    """Product that is shown."""
    options: tuple[tuple[str, str], ...] = ()
    """Chosen options, name and value, sorted."""

    @property
    def window(self) -> tuple[str, ...]:
        """Numbers of the products on this page of the results."""
        return self.hits[PAGE * (self.number - 1) : PAGE * self.number]

    def state_key(self) -> str:
        """Return what tells this page from others, without what follows from it."""
        return repr((self.kind, self.keywords, self.number, self.asin, self.options))


def links_of(page: Page, catalog: Catalog) -> dict[str, Page]:
    """Return what can be clicked, in lower case, and the page behind it; ``BUY`` leads nowhere."""
    if page.kind == "search":
        return {}
    links = {"back to search": Page()}
    if page.kind == "results":
        return links | _result_links(page)
    if page.kind != "item":
        return links | {"< prev": replace(page, kind="item")}
    links["< prev"] = replace(page, kind="results", asin="", options=())
    links |= {kind: replace(page, kind=kind) for kind in ("description", "features")}
    links[BUY] = page
    for name, values in catalog.products[page.asin].options.items():
        for value in values:
            chosen = tuple(sorted({**dict(page.options), name: value}.items()))
            links[value] = replace(page, options=chosen)
    return links


def _result_links(page: Page) -> dict[str, Page]:
    """Return the links of a page of results but the one back to the search."""
    links = {}
    if page.number > 1:
        links["< prev"] = replace(page, number=page.number - 1)
    if PAGE * page.number < len(page.hits):
        links["next >"] = replace(page, number=page.number + 1)
    return links | {asin.lower(): replace(page, kind="item", asin=asin) for asin in page.window}


def describe(page: Page, goal: Goal, catalog: Catalog, *, show_actions: bool) -> str:
    """Return how a page reads.

    Args:
        page: Where one is.
        goal: What is asked for; every page repeats it.
        catalog: What is sold.
        show_actions: Whether to list the admissible actions.
    """
    links = links_of(page, catalog)
    parts = ["Instruction:", goal.instruction]
    parts = [*parts, "Back to Search"] if links else ["WebShop", *parts, "Search"]
    if page.kind == "results":
        parts.append(f"Page {page.number} (Total results: {len(page.hits)})")
        parts += [word for word in ("< Prev", "Next >") if word.lower() in links]
        for asin in page.window:
            product = catalog.products[asin]
            parts += [asin, product.title, product.price_tag]
    elif page.asin:
        parts += ["< Prev", *_product_parts(catalog.products[page.asin], page.kind)]
    lines = [" [SEP] ".join(parts)]
    if page.options:
        lines.append("chosen: " + ", ".join(f"{name}: {value}" for name, value in page.options))
    if show_actions:
        actions = [f"click[{value}]" for value in links] or ["search[<keywords>]"]
        lines.append("admissible actions: " + ", ".join(actions))
    return "\n".join(lines)


def _product_parts(product: Product, kind: str) -> list[str]:
    """Return what the page of an item, or one of its sub-pages, says."""
    if kind == "description":
        return [product.description or "No Description"]
    if kind == "features":
        return list(product.features) or ["No Features"]
    choices = [part for name, values in product.options.items() for part in (name, *values)]
    price = f"Price: {product.price_tag}"
    return [*choices, product.title, price, "Description", "Features", "Buy Now"]
