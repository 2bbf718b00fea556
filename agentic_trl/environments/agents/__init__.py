"""Agents as environments: programs that call the policy as they call OpenAI or Anthropic."""
