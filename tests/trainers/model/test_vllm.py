"""A trainer before a stand-in of vLLM that has weights of its own: what is synced, sampled, corrected, refused.

TRL's own code builds the stand-in and pushes the weights; ``tests/vllm`` does the same with the real vLLM.

Mutations seen red: never synced; always synced; versions or steps ignored; adapter not merged; base not restored;
value head pushed; another precision; the kind of log-probabilities fixed; vLLM's class not put back; vLLM's
context limit ignored; a server's kind unchecked; correction not in the loss; the sampler called exact; drift
against the moving policy; correction although off; masked share not counted.
"""

import copy
import functools
import math

import pytest
import torch
from peft import LoraConfig
from trl.generation import vllm_generation

from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.trainers.config.ppo import AgenticPPOConfig
from agentic_trl.trainers.grpo import AgenticGRPOTrainer
from agentic_trl.trainers.model import vllm as vllm_engine
from agentic_trl.trainers.ppo import AgenticPPOTrainer
from tests.tiny import Countdown, make_model, make_tokenizer, make_trainer
from tests.tolerances import EXACT
from tests.trainers.vllm_models import ModelLLM, ModelServer, stand_in

pytestmark = pytest.mark.trainer


THEIRS = {
    "mode": "vllm_importance_sampling_mode",
    "bound": "vllm_importance_sampling_clip_max",
    "off": {"vllm_importance_sampling_correction": False},
}
OURS = {
    "mode": "sampler_correction",
    "bound": "sampler_correction_max",
    "off": {"sampler_correction": "none"},
}
"""The names of a correction: TRL's, and those that act with every engine."""


@pytest.fixture
def vllm(monkeypatch):
    stand_in(monkeypatch)
    return monkeypatch


def named_model(**more):
    model = make_model(**more)
    model.name_or_path = "somewhere"
    return model


def make(tmp_path, *, model=None, **changes):
    small = {"per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 4}
    knobs = {"rollout_engine": "vllm", "max_steps": 2, "max_turns": 3, **small, **changes}
    # Advantages of -1, 0 and 1 in turn, so that there is a gradient whatever the episodes earn.
    cls = functools.partial(
        AgenticGRPOTrainer, advantage_function=lambda table: table.turn_index % 3 - 1.0
    )
    return make_trainer(tmp_path, cls=cls, model=model or named_model(), **knobs)


def play_and_keep(trainer):
    kept, play = [], trainer.play

    def keeping(starts, **more):
        trajectories = play(starts, **more)
        kept.extend(trajectories)
        return trajectories

    trainer.play = keeping
    return kept


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.usefixtures("doubles")
def test_a_run_trains_on_exactly_what_vllm_sampled_with_its_current_weights(tmp_path, vllm):
    trainer = make(tmp_path)
    llm = trainer.vllm_generation.llm
    kept = play_and_keep(trainer)
    trainer.train()
    assert llm.syncs == 2  # once a generation, not once a turn
    assert max(len(one.turns) for one in kept) > 1
    returned = list(llm.given.values())
    assert sorted(turn.response_ids for one in kept for turn in one.turns) == sorted(returned)
    contexts = {context for context, _ in llm.given}
    for one in kept:
        context = ()
        for turn in one.turns:
            context = (context if turn.extends else ()) + turn.observation_ids
            assert context in contexts
            context += turn.response_ids
    # The second generation was sampled after an update: without a sync the difference would be large.
    differences = logged(trainer, "sampling/logprob_difference")
    assert len(differences) == 2
    assert max(differences) < EXACT
    assert logged(trainer, "sampling/correction") == pytest.approx([1.0, 1.0], abs=EXACT)
    assert logged(trainer, "sampling/masked_share") == [0.0, 0.0]
    assert logged(trainer, "ratio/mean") == pytest.approx([1.0, 1.0])
    assert max(g.abs().max() for g in trainer.gradients.steps[0].values()) > 1e-3


def test_evaluation_syncs_only_changed_weights(tmp_path, vllm):
    trainer = make(tmp_path, max_steps=1, per_device_eval_batch_size=1)
    llm = trainer.vllm_generation.llm
    trainer.train()
    assert llm.syncs == 1
    trainer.evaluate()  # four tasks, one after the other
    assert llm.syncs == 2
    trainer.evaluate()
    assert llm.syncs == 2
    with torch.no_grad():
        next(trainer.model.parameters()).add_(1.0)  # as loading the best checkpoint would
    trainer.evaluate()
    assert llm.syncs == 3
    trainer.state.global_step += 1  # an optimizer that writes past the version counter
    trainer.evaluate()
    assert llm.syncs == 4


def test_a_run_repeats(tmp_path, vllm):
    first, second = (make(tmp_path / name) for name in ("one", "two"))
    runs = [play_and_keep(one) for one in (first, second)]
    first.train()
    second.train()
    one, two = ([[turn.response_ids for turn in t.turns] for t in run] for run in runs)
    assert one == two
    members = {tuple(turn.response_ids for turn in t.turns) for t in runs[0]}
    assert len(members) > len(runs[0]) // 2  # the members of a group differ


def test_adapters_are_pushed_merged_and_the_base_stays_as_it_is(tmp_path, vllm):
    model = named_model(dtype=torch.bfloat16)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "embed_tokens"])
    trainer = AgenticPPOTrainer(
        model,
        AgenticPPOConfig(
            str(tmp_path), rollout_engine="vllm", use_cpu=True, bf16=False, max_steps=1
        ),
        environment=Countdown,
        processing_class=make_tokenizer(),
        peft_config=lora,
    )
    llm, policy = trainer.vllm_generation.llm, trainer.model
    assert llm.options["dtype"] == "bfloat16"
    for name, parameter in policy.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    before = {name: p.clone() for name, p in policy.named_parameters()}
    trainer.vllm_generation.sync_weights()
    assert llm.loaded == {name for name, _ in make_model().named_parameters()}
    merged = copy.deepcopy(policy).merge_and_unload(adapter_names=["default"])
    pushed = dict(llm.weights.named_parameters())
    moved = 0
    for name, expected in merged.named_parameters():
        if "value_head" not in name:
            assert torch.equal(pushed[name], expected), name
            moved += not torch.equal(
                expected, dict(make_model(dtype=torch.bfloat16).named_parameters())[name]
            )
    assert moved == 5  # two layers with two matrices each, and the embedding
    for name, parameter in policy.named_parameters():
        assert torch.equal(parameter, before[name]), name


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("names", [THEIRS, OURS], ids=["theirs", "ours"])
@pytest.mark.parametrize(
    ("mode", "factor", "masked"),
    [("token_truncate", 1.5, 0.0), ("token_mask", 0.0, 1.0), (None, 1.0, None)],
)
def test_the_loss_is_corrected_for_what_the_sampler_says(
    tmp_path, vllm, caplog, names, mode, factor, masked
):
    # The stand-in reports half the probability: the ratio is 2, the bound 1.5.
    vllm.setattr(vllm_generation, "LLM", lambda **given: ModelLLM(shift=-math.log(2), **given))
    knobs, off = {names["mode"]: mode, names["bound"]: 1.5}, names["off"]
    plain = make(tmp_path / "plain", max_steps=1, **off)
    plain.train()
    trainer = make(tmp_path / "corrected", max_steps=1, **(knobs if mode else off))
    trainer.train()
    assert max(g.abs().max() for g in plain.gradients.steps[0].values()) > 1e-3
    for name, gradient in plain.gradients.steps[0].items():
        assert (trainer.gradients.steps[0][name] - factor * gradient).abs().max() < EXACT
    assert logged(trainer, "sampling/logprob_difference") == pytest.approx([math.log(2)], abs=EXACT)
    assert logged(trainer, "sampling/correction") == (
        [] if mode is None else [pytest.approx(factor)]
    )
    shares = [] if mode is None else [pytest.approx(masked)]
    assert logged(trainer, "sampling/masked_share") == shares
    assert ("set sampler_correction='token_truncate'" in caplog.text) == (masked == 1.0)


@pytest.mark.usefixtures("doubles")
def test_vllms_log_probabilities_are_the_old_ones_where_they_are_asked_for(tmp_path, vllm):
    vllm.setattr(vllm_generation, "LLM", lambda **given: ModelLLM(shift=-math.log(2), **given))
    trainer = make(tmp_path, max_steps=1, old_logprobs="sampler")
    trainer.train()
    assert logged(trainer, "ratio/mean") == pytest.approx([2.0], abs=EXACT)
    assert logged(trainer, "sampling/correction") == []
    assert logged(trainer, "sampling/logprob_difference") == pytest.approx([math.log(2)], abs=EXACT)


@pytest.mark.usefixtures("doubles")
def test_with_several_updates_the_old_log_probabilities_are_the_policys(tmp_path, vllm):
    vllm.setattr(vllm_generation, "LLM", lambda **given: ModelLLM(shift=-math.log(2), **given))
    trainer = make(
        tmp_path,
        num_iterations=2,
        vllm_importance_sampling_clip_max=5.0,
        vllm_importance_sampling_mode="token_truncate",
    )
    trainer.train()
    ratios = logged(trainer, "ratio/mean")
    assert ratios[0] == pytest.approx(1.0, abs=EXACT)
    assert abs(ratios[1] - 1.0) > 1e-5
    assert logged(trainer, "sampling/correction") == pytest.approx([2.0, 2.0], abs=EXACT)
    assert logged(trainer, "sampling/logprob_difference") == pytest.approx(
        [math.log(2)] * 2, abs=EXACT
    )


def test_vllm_is_built_in_the_precision_and_with_the_log_probabilities_of_the_policy(
    tmp_path, vllm
):
    options = make(tmp_path, vllm_max_model_length=128).vllm_generation.llm.options
    assert options["dtype"] == "float32"
    assert options["enable_prefix_caching"] is True
    assert options["logprobs_mode"] == "processed_logprobs"
    assert options["max_model_len"] == 128
    assert make(tmp_path, top_p=0.5).vllm_generation.llm.options["logprobs_mode"] == "raw_logprobs"
    half = make(tmp_path, model=named_model(dtype=torch.bfloat16))
    assert half.vllm_generation.llm.options["dtype"] == "bfloat16"
    assert vllm_generation.LLM is ModelLLM  # put back


@pytest.mark.parametrize(
    ("mode", "sampling", "fits"),
    [
        ("processed_logprobs", {"temperature": 0.7}, True),
        ("processed_logprobs", {"top_p": 0.9}, False),
        ("raw_logprobs", {"top_p": 0.9}, True),
        ("raw_logprobs", {"temperature": 0.7}, False),
        ("raw_logits", {}, False),
    ],
)
def test_which_log_probabilities_are_the_policys(mode, sampling, fits):
    assert vllm_engine.logprobs_fit(mode, Sampling(**sampling)) == fits


def test_contexts_end_where_vllm_ends(tmp_path, vllm):
    trainer = make(tmp_path, vllm_max_model_length=128)
    assert trainer.rollouts.settings.limits.max_context_tokens == 128
    with pytest.raises(ValueError, match="max_context_tokens=129, but vLLM takes 128 tokens"):
        make(tmp_path, vllm_max_model_length=128, max_context_tokens=129)


def test_a_server_with_other_log_probabilities_is_refused(tmp_path, vllm):
    server = {"vllm_mode": "server", "vllm_server_base_url": "http://here"}
    trainer = make(tmp_path, model=make_model(), **server)  # a server loads its model itself
    assert trainer.rollouts.settings.limits.max_context_tokens == 300
    vllm.setattr(ModelServer, "mode", "raw_logprobs")
    assert make(tmp_path, top_p=0.9, **server)
    assert make(tmp_path, temperature=0.9, vllm_importance_sampling_correction=False, **server)
    assert make(tmp_path, temperature=0.9, sampler_correction="none", **server)
    chosen = {"sampler_correction": "token_truncate"}
    for settings, named in [
        ({}, "sampler_correction "),
        (chosen, "sampler_correction "),
        ({"old_logprobs": "sampler"}, "old_logprobs='sampler'"),
    ]:
        with pytest.raises(
            ValueError,
            match=f"--logprobs-mode raw_logprobs, which .*so {named}.* Start it with processed",
        ):
            make(tmp_path, temperature=0.9, **settings, **server)


def test_a_model_made_in_memory_is_refused(tmp_path, vllm):
    with pytest.raises(ValueError, match="made in memory, expected a name or folder"):
        make(tmp_path, model=make_model())


def test_a_missing_vllm_is_a_pip_line(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_engine, "is_vllm_available", lambda: False)
    with pytest.raises(ImportError, match=r"pip install 'agentic-trl\[vllm\]'"):
        make(tmp_path)
