"""Questions, with or without a search tool."""

from agentic_trl.old_names import moved_names

__getattr__ = moved_names(
    __name__, dict.fromkeys(("QuestionEnv", "QuestionOracle"), f"{__name__}.base")
)
