"""An environment of your own: python examples/custom_environment.py [steps].

The embedded tiny policy knows only the words of FrozenLake, and there the goal always lies down or to the right; a
real model takes any words.
"""

import sys

from agentic_trl import ActionFormat, AgenticGRPOConfig, AgenticGRPOTrainer, TextEnv, tiny_policy


class FollowTheSign(TextEnv):
    """Signs name a side; three right moves in a row win."""

    instructions = "Go where the sign points."
    action_format = ActionFormat(words=("left", "down", "right", "up"))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random
        self.right = 0
        return self.sign(), {}

    def step(self, action):
        if action not in self.action_format.words:
            return f"no side: {action}", 0.0, False, False, {"invalid_action": True}
        if action != self.side:
            return "wrong way", 0.0, True, False, {}
        self.right += 1
        return self.sign(), 1.0, self.right == 3, False, {"success": self.right == 3}

    def sign(self):
        self.side = ("down", "right")[self.np_random.integers(2)]
        return f"goal: 1 {self.side}"


if __name__ == "__main__":
    args = AgenticGRPOConfig(
        output_dir="outputs/signs",
        max_steps=int(sys.argv[1]) if len(sys.argv) > 1 else 20,
        per_device_train_batch_size=64,
        learning_rate=1e-3,
        max_completion_length=40,
        history="window",
        logging_steps=5,
    )
    trainer = AgenticGRPOTrainer(tiny_policy(), args, environment=FollowTheSign)
    trainer.train()
    print(trainer.evaluate()["eval_success_rate"])
