"""An environment of your own: python examples/custom_environment.py [steps]."""

import sys

from agentic_trl import ActionFormat, AgenticGRPOConfig, AgenticGRPOTrainer, TextEnv, tiny_policy


class GuessTheNumber(TextEnv):
    """A number from 1 to 4 is to be found; the answer says whether it is higher or lower."""

    instructions = "Guess a number from 1 to 4."
    action_format = ActionFormat(words=("1", "2", "3", "4"))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random
        self.number = int(self.np_random.integers(1, 5))
        return "Your guess?", {}

    def step(self, action):
        if action not in self.action_format.words:
            return "Guess 1, 2, 3 or 4.", 0.0, False, False, {"invalid_action": True}
        if int(action) == self.number:
            return "Right.", 1.0, True, False, {"success": True}
        word = "Higher." if int(action) < self.number else "Lower."
        return word, 0.0, False, False, {}


if __name__ == "__main__":
    args = AgenticGRPOConfig(
        output_dir="outputs/guess",
        max_steps=int(sys.argv[1]) if len(sys.argv) > 1 else 20,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        max_completion_length=40,
        max_turns=4,
        logging_steps=5,
    )
    trainer = AgenticGRPOTrainer(tiny_policy(), args, environment=GuessTheNumber)
    trainer.train()
    print(trainer.evaluate()["eval_return"])
