"""A web shop of pages and buttons."""
