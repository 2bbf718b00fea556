"""What a run that plays ahead refuses before it starts a process, and what its tasks are compared by.

Mutations seen red: the epoch of the trainer's state; what is trained not looked at again; buffers not looked at; a GPU that
is not there taken; arrays not compared; NaN unlike itself; the first task not tried.
"""

import threading

import numpy as np
import pytest
import torch

from agentic_trl.trainers.run.ahead import Ahead, _content, _refuse_unsendable
from tests.tiny import make_model, make_trainer

pytestmark = pytest.mark.trainer


def test_the_epoch_is_that_of_the_optimizer_step(tmp_path):
    """2 generations an epoch of 4 calls each: at step 7 the first epoch goes on, whatever the state says."""
    knobs = {"steps_per_generation": 2, "num_iterations": 2}
    trainer = make_trainer(tmp_path, num_train_tasks=8, **knobs)
    sampler = trainer._get_train_sampler(trainer.train_dataset)
    trainer.state.epoch = 1.5
    for step, epoch in ((0, 0), (7, 0), (8, 1), (15, 1), (16, 2)):
        trainer.state.global_step = step
        assert list(sampler) == list(sampler.of_epoch(epoch))
    assert list(sampler.of_epoch(0)) != list(sampler.of_epoch(1))


def test_what_is_trained_must_stay(tmp_path):
    trainer = make_trainer(tmp_path, max_staleness=1)
    trainer.model.lm_head.requires_grad_(False)
    expected = (
        r"lm_head\.weight of the Qwen2ForCausalLM changed what they are since the trainer was built"
    )
    with pytest.raises(RuntimeError, match=expected):
        trainer.train()


def test_buffers_of_a_checkpoint_must_stay(tmp_path):
    model = make_model()
    model.register_buffer("moves", torch.full((3,), 0.1))
    trainer = make_trainer(tmp_path, model=model, max_staleness=1)
    trainer.model.moves = trainer.model.moves.bfloat16()  # another precision is none
    trainer.ahead._versions._refuse_changed(trainer.model)
    trainer.model.moves += 1
    with pytest.raises(RuntimeError, match="moves of the Qwen2ForCausalLM changed what they are"):
        trainer.ahead._versions._refuse_changed(trainer.model)


@pytest.mark.skipif(torch.cuda.device_count() > 7, reason="there are so many GPUs")
def test_a_gpu_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="rollout_device: got 'cuda:7', expected a device of this"):
        make_trainer(tmp_path, max_staleness=1, rollout_device="cuda:7")


def test_what_cannot_be_sent_is_named(tmp_path):
    trainer = make_trainer(tmp_path, max_staleness=1)
    manager = trainer.ahead._manager
    _refuse_unsendable(manager, {"seed": 1})
    expected = "but the first task of the data set cannot be sent there"
    with pytest.raises(TypeError, match=expected):
        _refuse_unsendable(manager, {"seed": threading.Lock()})
    lock = threading.Lock()
    with pytest.raises(TypeError, match="but the environment cannot be sent there"):
        _refuse_unsendable({**manager, "specs": {"": lambda: lock}}, {})


SAME = [
    {"a": [1, (2.5, None)], "b": {"c": "d"}},
    {"x": float("nan"), "y": torch.tensor([1.0, 2.0])},
    {"z": np.arange(3), "t": torch.tensor([1, 2], dtype=torch.bfloat16)},
]
OTHER = [
    ({"a": [1, 2]}, {"a": [1, 3]}),
    ({"y": torch.tensor([1.0, 2.0])}, {"y": torch.tensor([1.0, 3.0])}),
    ({"z": np.arange(3)}, {"z": np.arange(3.0)}),
    ({"z": np.zeros((2, 3))}, {"z": np.zeros((3, 2))}),
    ({"x": float("nan")}, {"x": 1.0}),
]


@pytest.mark.parametrize("place", range(len(SAME)))
def test_tasks_are_compared_by_content(place):
    again = eval(
        repr(SAME[place]),
        {"nan": float("nan"), "tensor": torch.tensor, "torch": torch, "array": np.array},
    )
    Ahead._require_same([SAME[place]], [again])


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_other_tasks_are_seen(one, other):
    assert _content(one) != _content(other)
    with pytest.raises(
        RuntimeError, match="The data loader gave other tasks than the sampler's order"
    ):
        Ahead._require_same([one], [other])
