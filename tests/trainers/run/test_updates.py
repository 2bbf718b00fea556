"""What the policy said to episodes at their last update, as ``trajectories/updates`` says it.

Weights are kept before each optimizer step, and a plain forward pass over a whole episode is computed with them, without rows,
micro-batches or padding.

Mutations seen red: the run's end not seen; turns counted from the first of the rank; ratios to the policy itself; files of updates that a
resumed run leaves; the sampler's old log-probabilities said to be computed anew.
"""

import json
from collections import defaultdict

import pytest
import torch
from peft import LoraConfig
from transformers import TrainerCallback

from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.run.trajectories import remove_traces
from tests.tiny import Countdown, Stingy, make_trainer
from tests.tolerances import EXACT
from tests.trainers.update.ppo_tools import make_ppo

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("doubles")]

LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
KNOBS = {
    "steps_per_generation": 2,
    "num_iterations": 2,
    "max_steps": 6,  # 4 a generation, the second of which is cut
    "per_device_train_batch_size": 4,
    "learning_rate": 5e-3,
    "temperature": 0.7,
    "logging_steps": 1,
}
LAST = {0: [2, 3], 4: [4, 5]}
"""Optimizer steps in which the rows of each generation are passed over for the last time."""


class Policies(TrainerCallback):
    """The policy's weights before each optimizer step."""

    def __init__(self):
        self.at = {}

    def on_step_begin(self, args, state, control, model=None, **more):
        self.at[state.global_step] = {n: p.detach().clone() for n, p in model.state_dict().items()}


def train(trainer):
    policies = Policies()
    trainer.add_callback(policies)
    trainer.train()
    return policies.at


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def updates_of(folder, rank=0):
    """Lines of each optimizer step."""
    found = sorted((folder / "trajectories" / "updates").iterdir())
    assert all(path.name.endswith(f"_rank_{rank}.jsonl") for path in found)
    return {int(path.name.split("_")[1]): lines_of(path) for path in found}


def episodes_of(folder, generation):
    return lines_of(folder / "trajectories" / f"step_{generation:06d}_rank_0.jsonl")


def plain_scores(model, weights, episode, temperature):
    """Log-probability and entropy of each sampled token of an episode, a list a turn."""
    now = {name: p.detach().clone() for name, p in model.state_dict().items()}
    model.load_state_dict(weights)
    model.eval()
    ids, found = [], []
    for turn in episode["turns"]:
        ids = [*(ids if turn["extends"] else []), *turn["observation_ids"]]
        first = len(ids)
        ids += turn["response_ids"]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, first - 1 : -1] / temperature
        scores = logits.log_softmax(-1)
        chosen = scores.gather(1, torch.tensor(turn["response_ids"])[:, None])[:, 0]
        entropies = torch.distributions.Categorical(logits=logits).entropy()
        found.append((chosen.tolist(), entropies.tolist()))
    model.load_state_dict(now)
    return found


def near(numbers):
    return pytest.approx(numbers, abs=EXACT)


@pytest.mark.parametrize(
    ("make", "more"),
    [
        (make_trainer, {}),
        (make_trainer, {"max_tokens_per_microbatch": 60}),
        (make_trainer, {"history": "window", "share_prefixes": True}),
        (make_trainer, {"peft_config": LORA, "beta": 0.1}),
        (make_trainer, {"method": "so-grpo", "sampler_correction": "token_truncate"}),
        (make_ppo, {}),
        (make_ppo, {"peft": True}),
    ],
    ids=["plain", "cut", "prefixes", "lora", "corrected", "ppo", "ppo_adapter"],
)
def test_ratios_are_those_of_the_weights_at_that_step(tmp_path, make, more):
    trainer = make(tmp_path, **KNOBS, **more)
    weights = train(trainer)
    model, ratios = trainer.accelerator.unwrap_model(trainer.model), []
    updates = updates_of(tmp_path)
    assert sorted(updates) == [2, 3, 4, 5]
    for generation, steps in LAST.items():
        episodes = episodes_of(tmp_path, generation)
        seen = defaultdict(int)
        for step in steps:
            for line in updates[step]:
                assert line["generation"] == generation
                assert line["old"] == ("recomputed" if "sampler_correction" in more else "sampler")
                episode = episodes[line["trajectory"]]
                now = plain_scores(model, weights[step], episode, 0.7)
                # Every row is scored, or was sampled, by the weights that played its generation.
                then = plain_scores(model, weights[generation], episode, 0.7)
                for index, said in line["turns"].items():
                    seen[line["trajectory"], int(index)] += 1
                    (logprobs, entropies), (old, _) = now[int(index)], then[int(index)]
                    assert said == {
                        "logprobs": near(logprobs),
                        "old_logprobs": near(old),
                        "entropies": near(entropies),
                    }
                    ratios += (torch.tensor(logprobs) - torch.tensor(old)).exp().tolist()
        every = [(i, t) for i, one in enumerate(episodes) for t in range(len(one["turns"]))]
        assert seen == dict.fromkeys(every, 1)
    assert max(abs(one - 1) for one in ratios) > 0.01


def test_accumulated_batches_stand_in_the_file_of_their_optimizer_step(tmp_path):
    knobs = {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2}
    make_trainer(
        tmp_path, per_device_train_batch_size=2, num_generations=4, max_steps=4, **knobs
    ).train()
    updates = updates_of(tmp_path)
    assert sorted(updates) == [2, 3]
    assert sorted({line["trajectory"] for lines in updates.values() for line in lines}) == list(
        range(8)
    )
    assert all(len({line["trajectory"] for line in lines}) == 4 for lines in updates.values())


def test_with_one_update_the_ratio_is_one(tmp_path):
    make_trainer(tmp_path, max_steps=2).train()
    updates = updates_of(tmp_path)
    assert sorted(updates) == [0, 1]
    for said in (
        one for lines in updates.values() for line in lines for one in line["turns"].values()
    ):
        assert said["logprobs"] == said["old_logprobs"]
        assert len(said["logprobs"]) == len(said["entropies"]) > 0


class Watched(AgenticGRPOTrainer):
    """Looks at what is kept of each pass."""

    kept = ()

    def policy_loss(self, model, micro):
        output = super().policy_loss(model, micro)
        assert bool(self.step_sums.said) == (micro.written_at is not None)
        self.kept = [*self.kept, (self.state.global_step, micro.written_at)]
        return output


def test_nothing_is_kept_of_generations_that_are_not_logged(tmp_path):
    off = make_trainer(tmp_path / "off", cls=Watched, log_trajectories=False)
    off.train()
    assert set(off.kept) == {(0, None)}
    assert not (tmp_path / "off" / "trajectories").exists()
    some = make_trainer(tmp_path / "some", cls=Watched, max_steps=4, logging_steps=2)
    some.train()
    assert set(some.kept) == {(0, 0), (1, None), (2, 2), (3, None)}
    assert sorted(updates_of(tmp_path / "some")) == [0, 2]
    twice = make_trainer(tmp_path / "twice", cls=Watched, max_steps=3, num_iterations=2)
    twice.train()  # the second generation has one pass, which is its last
    assert set(twice.kept) == {(0, None), (1, 0), (2, 2)}


@pytest.mark.parametrize("choice", ["keep", "drop"])
def test_rows_that_are_not_computed_have_no_line(tmp_path, choice):
    make_trainer(tmp_path, environment=Stingy, flat_groups=choice, max_steps=2).train()
    flat = 0
    for step, lines in updates_of(tmp_path).items():
        episodes = episodes_of(tmp_path, step)
        moved = {i for i, one in enumerate(episodes) if any(one["turns"][0]["advantages"])}
        flat += len(episodes) - len(moved)
        computed = moved if choice == "drop" else set(range(len(episodes)))
        assert {line["trajectory"] for line in lines} == computed
    assert flat > 0


def test_while_the_critic_warms_up_the_policy_says_nothing(tmp_path):
    make_ppo(tmp_path, max_steps=3, critic_warmup_steps=2).train()
    assert sorted(updates_of(tmp_path)) == [2]


class TwoTalks(Countdown):
    """Fails at one task, whose episodes have no row."""

    def step(self, action):
        if self.random.random() < 0.2:
            raise RuntimeError("no answer")
        return super().step(action)


def test_episodes_that_are_left_out_have_no_line(tmp_path):
    make_trainer(
        tmp_path, environment=TwoTalks, env_retries=0, max_failed_fraction=1.0, max_steps=2
    ).train()
    out = 0
    for step, lines in updates_of(tmp_path).items():
        counted = {i for i, one in enumerate(episodes_of(tmp_path, step)) if not one["left_out"]}
        assert {line["trajectory"] for line in lines} == counted
        out += 8 - len(counted)
    assert out > 0


def test_a_resumed_run_removes_what_lies_after_its_checkpoint(tmp_path):
    folder = tmp_path / "trajectories" / "updates"
    folder.mkdir(parents=True)
    names = [
        *("update_000002_rank_0.jsonl", "update_000003_rank_0.jsonl", "update_000003_rank_1.jsonl"),
        *("update_000001_rank_0.partial", "update_notes.txt"),
    ]
    for name in names:
        (folder / name).write_text("{}\n")
    remove_traces(str(tmp_path), first_step=3)
    assert sorted(path.name for path in folder.iterdir()) == [
        "update_000002_rank_0.jsonl",
        "update_notes.txt",
    ]


@pytest.mark.parametrize("checkpoint", [1, 3, 5])
def test_a_run_that_resumes_inside_a_generation_says_the_same(tmp_path, checkpoint):
    knobs = KNOBS | {"save_strategy": "steps", "save_steps": 1}
    make_trainer(tmp_path, **knobs).train()
    folder = tmp_path / "trajectories" / "updates"
    whole = {path.name: path.read_text() for path in folder.iterdir()}
    (folder / "update_000005_rank_0.jsonl").write_text("of the run that was killed\n")
    resumed = make_trainer(tmp_path, **knobs)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{checkpoint}"))
    assert {path.name: path.read_text() for path in folder.iterdir()} == whole
    assert len(whole) == 4
