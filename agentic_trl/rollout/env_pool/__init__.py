"""Environments in the caller, in threads or in processes, which may hang, crash or be killed."""
