"""An HTTP server that programs call as they call OpenAI or Anthropic; it knows sessions and no engine."""
