"""How near two results of one formula are: exactly so in float64, within rounding in float32.

Two orders of one sum differ by rounding, and by how much is the processor's: its kernels, the width of its
vectors, the number of threads. So a claim of exactness is tested with ``doubles``, where rounding is far below
``EXACT`` everywhere and a wrong formula far above; a test that must compute in float32 takes its tolerance
from the size of its numbers with ``assert_rounding``.

Mutations seen red in ``test_tolerances``: a tolerance without eps, without scale, of another type; signs
dropped; a mode that leaves ``float``, arguments or keywords alone; the default type not put back.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode

EXACT = 1e-9
"""What float64 results may differ by, for numbers up to 100: their eps is 2.2e-16, so that 1e-9 leaves room for 4 million
eps. A worst case of tens of thousands of summed terms through a tiny model stays below it on every processor."""

ULPS = 16
"""Multiples of eps for each root of a number of terms; see ``tolerance``."""


class Doubles(TorchFunctionMode):
    """Reads float32 as float64 in every call of torch."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = torch.Tensor.double if func is torch.Tensor.float else func
        wide = (torch.float64 if one is torch.float32 else one for one in args)
        named = {
            name: torch.float64 if one is torch.float32 else one
            for name, one in (kwargs or {}).items()
        }
        return func(*wide, **named)


run_backward = torch.autograd._engine_run_backward


def backward_in_doubles(*arguments, **keywords):
    """A call is handled with the mode off, and a backward calls again what checkpointing left out."""
    with Doubles():
        return run_backward(*arguments, **keywords)


@contextmanager
def doubles() -> Iterator[None]:
    """Compute in float64 what the package, Transformers, TRL and PEFT would compute in float32.

    New tensors and models are float64, and what asks for float32 (a norm layer, logits, a column of a batch)
    gets float64. bfloat16 stays. The trainers take a sampler in float64 for exact, as one in float32.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    generation = sys.modules.get("agentic_trl.trainers.update.rows")
    try:
        with pytest.MonkeyPatch.context() as patch, Doubles():
            patch.setattr(torch.autograd, "_engine_run_backward", backward_in_doubles)
            if generation is not None:
                patch.setattr(generation, "in_float32", lambda trainer: True)
            yield
    finally:
        torch.set_default_dtype(before)


def tolerance(scale, *, terms=1, dtype=torch.float32):
    """Largest difference by rounding of a sum of ``terms`` products, in any order, of results up to ``scale``.

    Each of n additions rounds by at most eps / 2 of the partial sum; the errors of n terms have random signs
    and add up like sqrt(n) (Higham and Mary, 2019: below ``lambda sqrt(n) eps`` with a probability of
    ``1 - 2 exp(-lambda^2 / 2)``). ``ULPS`` is that lambda, with room for the few functions behind the sum.

    Args:
        scale: Largest magnitude of what is summed or comes out, whichever is larger.
        terms: How many terms are summed on the longest way: for a model, the widest layer times the layers.
        dtype: Type in which it was computed.
    """
    return ULPS * math.sqrt(terms) * torch.finfo(dtype).eps * scale


def assert_rounding(actual, expected, *, terms=1, scale=None, dtype=torch.float32):
    """Fail unless numbers differ by rounding alone.

    Args:
        actual: A tensor, a number, or numbers in a list or in a dictionary by name.
        expected: The same.
        terms: As in ``tolerance``.
        scale: As in ``tolerance``; ``None`` is the largest of all ``expected``.
        dtype: As in ``tolerance``.
    """
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        actual = [actual[name] for name in expected]
        expected = list(expected.values())
    got, wanted = flat(actual), flat(expected)
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    scale = wanted.abs().max().item() if scale is None else scale
    difference = (got - wanted).abs().max().item()
    limit = tolerance(scale, terms=terms, dtype=dtype)
    assert difference <= limit, f"differ by {difference:.3g}, rounding explains {limit:.3g}"


def flat(numbers):
    """All numbers behind one another, in float64."""
    if isinstance(numbers, (list, tuple)):
        return torch.cat([flat(one) for one in numbers])
    return torch.as_tensor(numbers).detach().to(torch.float64).flatten()
