"""Configuration: TRL's, plus what agents over many turns need; what each method sets, and what is refused."""

from agentic_trl.old_names import moved_names

__getattr__ = moved_names(__name__, {"AgenticGRPOConfig": f"{__name__}.grpo"})
