"""Weights of several versions in shared memory: where they lie, what is written when, and that nothing stays.

Mutations seen red: frozen weights in each slot; written each time; a stride too short; places not aligned; the precision
forgotten; the descriptor left open, after a failure, too.
"""

import gc
import os
import resource
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from agentic_trl.asynchronous.skeleton import named_weights
from agentic_trl.asynchronous.weights import ALIGNED, Layout, SharedWeights

WEIGHTS = {
    "a": torch.arange(3, dtype=torch.float32),
    "frozen": torch.arange(-5, 5, dtype=torch.int8).view(2, 5),
    "b": torch.full((2, 33), 1.5, dtype=torch.bfloat16),
    "scalar": torch.tensor(7.0, dtype=torch.float64),
    "empty": torch.zeros(0, 4),
}
TRAINED = {"a", "b", "scalar", "empty"}


def times(factor):
    return {name: (one * factor).to(one.dtype) for name, one in WEIGHTS.items()}


@pytest.fixture
def shared():
    layout = Layout.of(WEIGHTS, trained=TRAINED, slots=3)
    memory = SharedWeights.reserve(layout)
    yield memory
    memory.close()


def test_the_layout_is_the_one_by_hand():
    """Frozen: 10 bytes, so 64. A slot: a 12 -> 64, b 2 * 33 * 2 = 132 -> 192, scalar 8 -> 64, empty 0: 320."""
    layout = Layout.of(WEIGHTS, trained=TRAINED, slots=3)
    begins = {name: part.begin for name, part in layout.parts.items()}
    assert begins == {"frozen": 0, "a": 64, "b": 128, "scalar": 320, "empty": 384}
    assert (layout.stride, layout.size) == (320, 64 + 3 * 320)
    assert all(part.begin % ALIGNED == 0 for part in layout.parts.values())
    assert layout.stride % ALIGNED == 0


@pytest.mark.skipif(sys.platform != "linux", reason="memory of no file system that is a disk")
def test_the_memory_is_taken_before_it_is_written(shared):
    assert os.fstat(shared.descriptor).st_blocks * 512 >= shared.layout.size


def test_slots_are_apart_and_the_frozen_are_written_once(shared):
    for slot in range(3):
        shared.write(slot, times(slot + 1), frozen=slot == 0)
    for slot in range(3):
        expected = times(slot + 1) | {"frozen": WEIGHTS["frozen"]}
        read = shared.read(slot)
        assert read.keys() == expected.keys()
        for name, one in expected.items():
            assert (read[name].dtype, read[name].shape) == (one.dtype, one.shape)
            assert torch.equal(read[name], one), name
    assert shared.read(0)["frozen"].data_ptr() == shared.read(2)["frozen"].data_ptr()


def test_the_other_process_sees_the_same_memory(shared):
    other = SharedWeights(shared.layout, os.dup(shared.descriptor))
    seen = other.read(1)["b"]
    shared.write(1, times(2), frozen=False)
    assert torch.equal(seen, times(2)["b"])
    other.close()


def test_tied_weights_lie_once_and_a_quarter_precision_fits():
    model = nn.ModuleDict({"one": nn.Linear(2, 2, bias=False), "two": nn.Linear(2, 2, bias=False)})
    model["two"].weight = model["one"].weight
    named = dict(named_weights(model))
    assert list(named) == ["one.weight"]
    small = {"x": torch.ones(3).to(torch.float8_e4m3fn)}
    memory = SharedWeights.reserve(Layout.of(small, trained={"x"}, slots=2))
    memory.write(1, small, frozen=True)
    assert torch.equal(memory.read(1)["x"].float(), torch.ones(3))
    memory.close()


def test_an_adapter_takes_the_room_of_an_adapter():
    weights = {"base": torch.zeros(1000), "adapter": torch.zeros(16)}
    layout = Layout.of(weights, trained={"adapter"}, slots=5)
    assert layout.size == 4032 + 5 * 64  # 4000 bytes end at a multiple of 64


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_nothing_is_left():
    def held():
        gc.collect()
        maps = Path("/proc/self/maps").read_text().count("memfd:weights")
        return maps, len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))

    before = held()
    memory = SharedWeights.reserve(Layout.of(WEIGHTS, trained=TRAINED, slots=3))
    assert held()[0] == before[0] + 1
    assert held()[2] == before[2]
    view = memory.read(0)["a"]
    memory.close()
    memory.close()
    del memory
    assert held()[0] == before[0] + 1  # as long as a tensor shows it
    del view
    assert held() == before


def test_too_little_memory_is_a_sentence():
    layout = Layout.of({"x": torch.zeros(10**6)}, trained={"x"}, slots=3)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    descriptors = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else None
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, before[1]))
    try:
        with pytest.raises(MemoryError, match=r"max_staleness=2 keeps 3 versions .* 0\.0 GiB"):
            SharedWeights.reserve(layout)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    if descriptors is not None:
        assert len(os.listdir("/proc/self/fd")) == descriptors
