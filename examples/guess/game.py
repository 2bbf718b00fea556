"""A game of guessing, with an oracle for the warm start; docs/first_hour.md takes a language model through it."""

from agentic_trl import ActionFormat, TextEnv, register_env


class Guess(TextEnv):
    """Find a hidden number; each guess is answered with "higher" or "lower"."""

    instructions = "Find the hidden number from 1 to 15. Say one guess a turn."
    action_format = ActionFormat(syntax="a number")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random
        self.hidden = int(self.np_random.integers(1, 16))
        self.low, self.high = 1, 15
        return "What is your first guess?", {}

    def step(self, action):
        if not action.isdecimal():
            return f"no number: {action}", 0.0, False, False, {"invalid_action": True}
        guess = int(action)
        if guess == self.hidden:
            return "right", 1.0, True, False, {"success": True}
        if guess < self.hidden:
            self.low = max(self.low, guess + 1)
            return f"higher than {guess}", 0.0, False, False, {"success": False}
        self.high = min(self.high, guess - 1)
        return f"lower than {guess}", 0.0, False, False, {"success": False}

    def oracle(self):
        """Halve what is left; for the warm start alone."""
        return str((self.low + self.high) // 2)


register_env("Guess-v1", Guess, max_turns=5, oracle="agentic_trl.environments.base:OwnOracle")
