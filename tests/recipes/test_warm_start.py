"""The warm start: it demonstrates with the recipe's environment, teaches the answers, and saves one plain model.

Mutations seen red: the adapter saved unmerged; a loss over the prompts too; unsolved demonstrations kept; the tokenizer not saved.

"""

import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentic_trl import tiny_policy
from agentic_trl.__main__ import main
from agentic_trl.environments.registry import env_spec
from agentic_trl.rollout.demonstrate import demonstrate, supervised_examples
from agentic_trl.rollout.manager import RolloutSettings
from agentic_trl.rollout.task import Limits
from agentic_trl.rollout.text.chat import WindowHistory
from tests.recipes.running import RECIPES, launch

LAKE = RECIPES / "frozen_lake" / "planpo.yaml"


@pytest.fixture(scope="module")
def held_out():
    """Answers of the oracle to maps that no training task has."""
    spec = env_spec("FrozenLake-v1")
    settings = RolloutSettings(limits=Limits(max_tokens_per_turn=40), history=WindowHistory(0))
    played = demonstrate(
        spec,
        spec.make_tasks(16, "eval"),
        tokenizer=AutoTokenizer.from_pretrained(tiny_policy()),
        settings=settings,
    )
    return supervised_examples(played)


@torch.no_grad()
def nats(folder, examples, *, imitated=1):
    """Mean negative log-likelihood of the tokens to imitate, or of the others."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    total, count = 0.0, 0
    for one in examples:
        ids, mask = torch.tensor(one["input_ids"]), torch.tensor(one["completion_mask"])
        scores = model(ids[None]).logits[0, :-1].log_softmax(-1)
        taken = scores.gather(1, ids[1:, None])[:, 0][mask[1:] == imitated]
        total, count = total - taken.sum().item(), count + len(taken)
    return total / count


@pytest.mark.trainer
@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_model_learns_to_answer_held_out_prompts(tmp_path, held_out, lora):
    adapter = ("--use_peft", "true", "--lora_r", 16, "--lora_target_modules", "all-linear")
    done = launch(
        "warm_start.py",
        *("--config", LAKE, "--model", "tiny", "--output_dir", tmp_path),
        *("--episodes", 48, "--epochs", 2, "--learning_rate", 5e-3 if lora else 5e-4),
        *(adapter if lora else ()),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "48 of 48 demonstrations succeeded" in done.stdout
    *_, losses, imitated, place = done.stdout.splitlines()
    assert re.fullmatch(r"step \d+/(\d+)  loss \d\.\d{3}", losses)
    assert re.match(r"imitated \d+ sequences in \d+ steps, loss \d\.\d{3} at the end", imitated)
    assert place == f"model: {tmp_path}"
    assert "{'loss'" not in done.stdout + done.stderr
    assert not (tmp_path / "adapter_model.safetensors").exists()
    assert nats(tmp_path, held_out) < 0.7 * nats(tiny_policy(), held_out)
    # The prompts, whose tokens are as easy to learn, were not: 9.7 nats of 10.2, and .9 if they had been.
    assert nats(tmp_path, held_out, imitated=0) > 0.8 * nats(tiny_policy(), held_out, imitated=0)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--environment", "Tools-v1"], "'Tools-v1' has no oracle, expected one that"),
        (
            ["--max_completion_length", "2"],
            "The first ended by turn_limit with score 0 after",
        ),
        (["--max_completion_length", "2"], "No demonstration succeeded, so there is nothing"),
        (["--learning_rte", "1"], "command line sets 'learning_rte'"),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path, capsys, flags, sentence):
    words = ["--model", tiny_policy(), "--output_dir", str(tmp_path / "out"), "--episodes", "2"]
    with pytest.raises(SystemExit) as ended:
        main(["warm-start", str(LAKE), *words, *flags])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
