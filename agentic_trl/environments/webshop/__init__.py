"""A web shop of pages and buttons."""

from agentic_trl.environments.webshop.environment import WebShop, WebShopOracle

__all__ = ["WebShop", "WebShopOracle"]
