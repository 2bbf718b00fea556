"""DeepSpeed's ZeRO on two gloo ranks: gradients of one process, episodes, checkpoints, steps that are left out.

Mutations seen red, with stage 3: nothing gathered, in rollouts, for the reference or for its copy; the hook left in which ranks compare
their passes; loss divided by the accumulation; a step in each backward, or in none of the next step; the skipped step
not asked for; a reference without an engine; ranks that go two ways in the head; unequal numbers of micro-batches; an
output layer that is chosen before the policy is placed.
"""

from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.tiny import largest_difference
from tests.trainers.config.trl_contract_tables import FACTS
from tests.trainers.ranks.cases import AHEAD_MODELS, SHARDED_CASES, small_trainer
from tests.trainers.ranks.test_ranks import (
    alone_of,
    check_ahead,
    check_ahead_half,
    check_float32,
    check_gradients,
    check_played,
    check_vllm,
    on_two_ranks,
)

pytestmark = pytest.mark.deepspeed


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    return on_two_ranks("replicated", tmp_path_factory.mktemp("played"))["play"]


def with_zero(name, folder):
    return on_two_ranks(name, folder, script="zero_ranks.py", seconds=600)


@pytest.fixture(scope="module", params=[1, 2, 3])
def zero(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"zero{request.param}")
    return {**with_zero(f"zero{request.param}", folder), "stage": request.param}


@pytest.mark.parametrize("name", SHARDED_CASES)
def test_ranks_give_the_gradient_of_the_union(tmp_path, zero, name):
    check_gradients(alone_of(name, tmp_path), zero["scripted"][name])


def test_episodes_of_1_and_30_turns_train_as_with_replicated_parameters(zero, played):
    assert zero["play"]["equal"]
    check_played(zero["play"], played)


def test_the_weights_reach_a_vllm_server(zero):
    check_vllm(zero["vllm"])


@pytest.mark.parametrize("given", ["object", "path", "loaded"])
def test_a_run_resumes_inside_a_generation(zero, given):
    assert any("remove_hooks leaves one hook of ZeRO-3" in fact for fact in FACTS)
    result = zero["resume"][given]
    assert result["smallest_gradient"] > 0
    assert largest_difference(result["whole"], result["resumed"]) == 0.0
    saved = AutoModelForCausalLM.from_pretrained(result["saved"])
    assert largest_difference(result["whole"], dict(saved.named_parameters())) == 0.0
    count = len(result["whole"])
    apart = [0, count, 0, count, 0] if zero["stage"] == 3 else [count] * 5
    assert result["looks"] == [apart] * 2
    assert result["reference"] == [apart] * 2


def test_bfloat16_weights_give_log_probabilities_in_float32(zero):
    assert zero["half"]["stored"] == {torch.bfloat16}
    check_float32(zero["half"]["logprob"])


def test_a_gradient_that_is_not_finite_is_left_out(zero):
    assert zero["skip"] == {"error": None, "skipped": [0, 1, 0], "finite": True}


def test_a_gradient_that_is_not_finite_stops_the_run(zero):
    assert zero["stop"]["finite"]
    assert zero["stop"]["error"].startswith("The gradient of optimizer step 2 is NaN or infinite")


@pytest.fixture(scope="module", params=list(AHEAD_MODELS))
def ahead(request, tmp_path_factory):
    name = f"ahead{request.param}"
    result = with_zero(name, tmp_path_factory.mktemp(name))
    return {**result, "stage": request.param}


def test_runs_play_ahead_and_resume_as_one_process_does(tmp_path, ahead):
    for given in AHEAD_MODELS[ahead["stage"]]:
        check_ahead(tmp_path / given, ahead[given], partial(small_trainer, given=given))


def test_two_ranks_play_ahead_in_bfloat16_as_they_do_in_turn(ahead):
    check_ahead_half(ahead["half"], torch.bfloat16)
