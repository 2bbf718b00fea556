"""Every class of causal language models: the table of docs/models.md, and no class that is wrong in silence.

Mutations seen red: a row of the table changed; slots forced on GPT-Neo, whose drift is then .9 nats.
"""

import re
import warnings

import pytest
import torch

from agentic_trl.batching import build_rows, pad_rows
from agentic_trl.rollout.engines.base import Sampling
from agentic_trl.rollout.engines.transformers.engine import TransformersEngine
from agentic_trl.trainers.model.forward import fused_scores, whole_scores
from agentic_trl.trainers.model.plain_passes import (
    mean_difference,
    plain_logits,
    plain_scores,
    quiet,
)
from agentic_trl.trainers.model.precision import ROUNDING
from agentic_trl.types import StopReason, Trajectory, Turn
from tests.model_classes import CLASSES, PAGE, build, limited, result_of, survey
from tests.rollout.engines.models import play

pytestmark = pytest.mark.slow

ROW = re.compile(r"^\| `(\S+)` \| `(\w+)` \| ([\w ]+) \| (.*) \|$", re.MULTILINE)
KNOWN = {kind: outcome for kind, _, outcome, _ in ROW.findall(PAGE.read_text())}
FINE = [kind for kind, outcome in KNOWN.items() if outcome not in {"refused", "not built"}]


def test_the_table_names_every_class():
    assert set(KNOWN) == set(CLASSES)
    assert len(FINE) > 150


@pytest.mark.parametrize("kind", KNOWN)
def test_a_class_does_what_the_table_says(kind):
    assert result_of(kind)[0] == KNOWN[kind]


@pytest.mark.parametrize("kind", FINE)
def test_longer_episodes_are_sampled_and_scored_as_full_forwards_say(kind):
    """Contexts of 50 to 90 tokens, where windows and chunks are 8: longer than what the choice was made by."""
    with warnings.catch_warnings(), limited():
        warnings.simplefilter("ignore")
        model = build(kind)
        choice, head, _ = survey(model)
    engine = TransformersEngine(
        model, pad_id=0, stop_ids=frozenset({1}), sampling=Sampling(), cache=choice
    )
    with quiet(model):
        record = play(engine, [5, 1, 4, 2])
        sampled = torch.tensor([one for _, sample in record for one in sample.logprobs])
        rows = build_rows([_as_trajectory(asked, sample) for asked, sample in record])
        batch = pad_rows(rows, pad_id=0)
        plain = plain_scores(plain_logits(model, rows), rows, temperature=1.0)
        ways = [whole_scores, *([fused_scores] if head.fused else [])]
        scored = [way(model, batch, temperature=1.0, head=head).logprob for way in ways]
    expected = plain[batch.turn_of_token >= 0]
    assert float((sampled - expected).abs().mean()) < ROUNDING
    for found in scored:
        assert mean_difference(found, plain, batch) < ROUNDING
    assert max(len(row) for row in rows) > 40  # five windows and chunks


def _as_trajectory(asked, sample):
    turn = Turn(
        observation_ids=asked.context_ids,
        response_ids=sample.ids,
        response_logprobs=sample.logprobs,
        token_kinds=(1,) * len(sample.ids),
        reward=0.0,
        extends=False,
    )
    return Trajectory(
        turns=(turn,), group=0, member=0, stop=StopReason.TERMINATED, success=False, score=0.0
    )
