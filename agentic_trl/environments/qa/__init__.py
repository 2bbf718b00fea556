"""Questions, with or without a search tool."""
