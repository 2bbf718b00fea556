"""Each fact about the installed TRL that the trainers rely on."""

import inspect
import os

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint, sort_checkpoints
from trl import GRPOTrainer
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.utils import RepeatSampler, add_fused_lm_head

from agentic_trl.trainers.config.trl_contract import require_supported_trl
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.model.leftovers import strip
from agentic_trl.trainers.run.checkpoints import PARTIAL
from tests.tiny import make_model, make_trainer, scripted, scripted_trajectories
from tests.tolerances import EXACT
from tests.trainers.config.trl_contract_tables import ATTRIBUTES, FACTS, HOOKS


@pytest.mark.parametrize("name", HOOKS)
def test_an_overridden_hook_has_its_parameters(name):
    parameters = list(inspect.signature(getattr(GRPOTrainer, name)).parameters)
    assert parameters[0] == "self"
    assert parameters[1:] == HOOKS[name]


@pytest.mark.trainer
def test_the_attributes_exist_on_a_built_trainer(tmp_path):
    trainer = make_trainer(tmp_path)
    missing = [name for name in ATTRIBUTES if name not in dir(trainer)]
    assert missing == []


@pytest.mark.parametrize(
    ("installed", "fine"),
    [("1.15.9", False), ("1.16.0", True), ("1.16.3", True), ("1.17.0", False), ("2.0", False)],
)
def test_the_supported_range(installed, fine):
    if fine:
        require_supported_trl(installed)
    else:
        with pytest.raises(
            ImportError, match=f"trl {installed} is installed, agentic_trl supports"
        ):
            require_supported_trl(installed)


def test_fact_sampler_repeats_tasks_side_by_side():
    assert "num_generations times side by side" in FACTS[0]
    sampler = RepeatSampler([0, 1, 2, 3], mini_repeat_count=3, batch_size=2, repeat_count=2, seed=0)
    order = list(sampler)
    blocks = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert all(len(set(block)) == 1 for block in blocks)
    assert blocks[0:2] == blocks[2:4]


@pytest.mark.usefixtures("doubles")
def test_fact_fused_head_scores_shifted_labels_where_they_stand_at_the_temperature():
    assert "scores shift_labels where they stand" in FACTS[1]
    model = make_model()
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    expected = (model(input_ids=ids).logits[:, [1, 3]] / 0.7).log_softmax(-1)
    add_fused_lm_head(model, temperature=0.7, outputs=("log_probs", "entropy"))

    def keep_two(body, arguments, output):
        output.last_hidden_state = output.last_hidden_state[:, [1, 3]]
        return output

    model.base_model.register_forward_hook(keep_two)
    output = model(input_ids=ids, shift_labels=ids[:, [2, 4]], fused_lm_head=True)
    token = expected.gather(-1, ids[:, [2, 4], None])[..., 0]
    assert (output.log_probs - token).abs().max() < EXACT
    assert (output.entropy + (expected.exp() * expected).sum(-1)).abs().max() < EXACT


@pytest.mark.trainer
def test_fact_a_dataset_without_prompts_is_accepted(tmp_path):
    assert "without a prompt column" in FACTS[2]
    assert "prompt" not in make_trainer(tmp_path).train_dataset.column_names


@pytest.mark.usefixtures("doubles")
@pytest.mark.trainer
def test_fact_the_logged_loss_is_the_sum_over_an_optimizer_step(tmp_path):
    assert "logged loss" in FACTS[3]
    losses = []

    class Kept(scripted(scripted_trajectories())):
        def training_step(self, model, inputs, num_items_in_batch=None):
            losses.append(super().training_step(model, inputs, num_items_in_batch))
            return losses[-1]

    trainer = make_trainer(
        tmp_path, cls=Kept, per_device_train_batch_size=2, gradient_accumulation_steps=4
    )
    trainer.train()
    assert len(losses) == 4
    logged = next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    assert logged == pytest.approx(float(sum(losses)), abs=EXACT)
    assert logged != 0


@pytest.mark.trainer
def test_fact_a_checkpoint_lies_in_its_folder_alone(tmp_path):
    assert "_get_output_dir/checkpoint-N" in FACTS[4]
    trainer = make_trainer(tmp_path, log_trajectories=False)
    trainer.train()
    trainer._get_output_dir = lambda trial: str(tmp_path / PARTIAL)
    GRPOTrainer._save_checkpoint(trainer, trainer.model, None)
    of_run = ["README.md", PARTIAL, "metrics.jsonl", "run.json"]  # the model card is, too
    assert sorted(os.listdir(tmp_path)) == of_run
    assert os.listdir(tmp_path / PARTIAL) == ["checkpoint-1"]


@pytest.mark.trainer
def test_fact_nobody_looks_into_the_partial_folder(tmp_path, monkeypatch):
    assert "pass over a folder _partial" in FACTS[5]
    (tmp_path / PARTIAL / "checkpoint-9").mkdir(parents=True)
    assert get_last_checkpoint(tmp_path) is None
    (tmp_path / "checkpoint-1").mkdir()
    assert get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1")
    assert sort_checkpoints(str(tmp_path), use_mtime=True) == [str(tmp_path / "checkpoint-1")]
    uploads = []

    class Hub:
        def upload_folder(self, **given):
            uploads.append(given)

    monkeypatch.setattr("transformers.trainer.hf_api", Hub)
    trainer = make_trainer(tmp_path)
    trainer.hub_model_id, trainer.push_in_progress = "someone/something", None
    trainer._push_from_checkpoint(str(tmp_path / "checkpoint-1"))
    names = ["model.safetensors", f"{PARTIAL}/checkpoint-9/model.safetensors"]
    (given,) = uploads
    assert given["folder_path"] == str(tmp_path)
    kept = filter_repo_objects(names, ignore_patterns=given["ignore_patterns"])
    assert list(kept) == ["model.safetensors"]


@pytest.mark.trainer
def test_fact_callbacks_hear_of_a_checkpoint_after_it_is_saved(tmp_path):
    assert "on_save comes after" in FACTS[6]
    heard = []

    class Saving(AgenticGRPOTrainer):
        def _save_checkpoint(self, model, trial):
            heard.append("saved")

    class Hears(TrainerCallback):
        def on_save(self, *arguments, **more):
            heard.append("told")

    trainer = make_trainer(tmp_path, cls=Saving, save_strategy="steps", save_steps=1)
    trainer.add_callback(Hears())
    trainer.train()
    assert heard == ["saved", "told"]


@pytest.mark.trainer
@pytest.mark.parametrize("resumed", [1, 2])
def test_fact_the_random_state_is_loaded_once_right_before_the_first_step(tmp_path, resumed):
    """Inside an epoch of two steps, and at its end."""
    assert "_load_rng_state is called once" in FACTS[7]
    calls = []

    class Watched(AgenticGRPOTrainer):
        def _load_rng_state(self, checkpoint):
            calls.append((checkpoint, self._globalstep_last_logged, self._tr_loss.item()))
            super()._load_rng_state(checkpoint)

        def training_step(self, *arguments):
            calls.append("step")
            return super().training_step(*arguments)

    knobs = {"num_train_tasks": 4, "save_strategy": "steps", "save_steps": 1}
    make_trainer(tmp_path, max_steps=resumed, **knobs).train()
    checkpoint = str(tmp_path / f"checkpoint-{resumed}")
    trainer = make_trainer(tmp_path, cls=Watched, max_steps=resumed + 2, **knobs)
    trainer.train(resume_from_checkpoint=checkpoint)
    assert calls == [(checkpoint, resumed, 0.0), "step", "step"]


def test_fact_vllm_is_built_and_fed_where_the_package_steps_in():
    assert any("VLLMGeneration builds its module's LLM" in fact for fact in FACTS)
    assert "self.llm = LLM(" in inspect.getsource(VLLMGeneration._init_vllm)
    pushed = inspect.getsource(VLLMGeneration.sync_weights)
    assert pushed.count("self._iter_named_params()") >= 2  # to a server, and in the process
    assert {"prompts", "max_tokens", "generation_kwargs"} <= set(
        inspect.signature(VLLMClient.generate).parameters
    )


@pytest.mark.trainer
def test_fact_what_stands_in_the_place_of_forward_has_known_names(tmp_path):
    assert any("functions of the names that given knows" in fact for fact in FACTS)
    trainer = make_trainer(tmp_path, cast_lm_head_to_fp32=True, bf16=True)
    model, head = trainer.model, trainer.model.lm_head
    assert not model.forward.__func__.__code__.co_filename.endswith("operations.py")
    trainer.accelerator.prepare_model(model)
    assert model.forward.__func__.__code__.co_filename.endswith("operations.py")
    assert "forward" in vars(head)
    strip(model)
    assert "forward" not in vars(model)
    assert "forward" not in vars(head)
