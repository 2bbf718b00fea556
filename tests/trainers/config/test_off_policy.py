"""Which correction and which old log-probabilities a configuration means, each cell written out.

Mutations seen red: TRL's fields read without vLLM; TRL's fields not winning when stale; the stale default without vLLM
alone; a bound dropped; the upper bound of a given mode left at TRL's; a correction beside the sampler's old
log-probabilities; recomputed left out with a correction, with vLLM, when stale; the first generation called stale; an
alias of another meaning taken, and looked for without vLLM; one of the same meaning refused; the old name of TRL's bound forgotten.
"""

import itertools

import pytest

from agentic_trl.ops.sampler_correction import CORRECTION_MODES
from agentic_trl.trainers.config.checks import check_environment_run
from agentic_trl.trainers.config.off_policy import (
    Correction,
    correction_of,
    needs_sampler_logprobs,
    old_logprobs_of,
    staleness,
)
from agentic_trl.trainers.config.off_policy_checks import off_policy_problems
from tests.tiny import make_args

VLLM = {"rollout_engine": "vllm", "vllm_mode": "server"}
STALE = {"max_staleness": 1}
TRL = Correction("sequence_mask", None, 3.0)
"""What TRL's defaults mean."""
OURS = Correction("token_truncate", None, 2.0)
SAMPLER = {"old_logprobs": "sampler"}
OFF = {"vllm_importance_sampling_correction": False}

CORRECTIONS = [
    ({}, None),
    (VLLM, TRL),
    (STALE, OURS),
    (VLLM | STALE, OURS),
    # TRL's fields say it with vLLM, stale or not.
    (VLLM | OFF, None),
    (VLLM | STALE | OFF, None),
    (
        VLLM | {"vllm_importance_sampling_mode": "token_mask"},
        Correction("token_mask", None, 3.0),
    ),
    (
        VLLM | STALE | {"vllm_importance_sampling_mode": "token_mask"},
        Correction("token_mask", None, 3.0),
    ),
    (
        VLLM
        | {"vllm_importance_sampling_clip_min": 0.5, "vllm_importance_sampling_clip_max": None},
        Correction("sequence_mask", 0.5, None),
    ),
    (VLLM | {"vllm_importance_sampling_cap": 5.0}, Correction("sequence_mask", None, 5.0)),
    (VLLM | STALE | {"vllm_importance_sampling_cap": 3.0}, TRL),
    # A choice of one's own.
    ({"sampler_correction": "none"} | STALE, None),
    ({"sampler_correction": "none"} | VLLM, None),
    ({"sampler_correction": "sequence_mask"}, Correction("sequence_mask", None, 2.0)),
    ({"sampler_correction": "sequence_mask"} | VLLM, Correction("sequence_mask", None, 2.0)),
    (
        {"sampler_correction": "token_mask", "sampler_correction_min": 0.25} | STALE,
        Correction("token_mask", 0.25, 2.0),
    ),
    # Bounds of one's own, of whatever "auto" is.
    (STALE | {"sampler_correction_max": 4.0}, Correction("token_truncate", None, 4.0)),
    (
        VLLM | {"sampler_correction_min": 0.0, "sampler_correction_max": 4.0},
        Correction("sequence_mask", 0.0, 4.0),
    ),
    # The sampler's old log-probabilities leave nothing to correct.
    (SAMPLER, None),
    (VLLM | SAMPLER, None),
    (STALE | SAMPLER, None),
    (VLLM | STALE | SAMPLER | OFF, None),
    (STALE | {"old_logprobs": "recomputed"}, OURS),
]
"""Settings, and the correction that they mean."""


def words(settings):
    """The id of a case: its settings, or what is expected."""
    if not isinstance(settings, dict):
        return str(settings)
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "nothing"


@pytest.mark.parametrize(("settings", "expected"), CORRECTIONS, ids=words)
@pytest.mark.filterwarnings("ignore:The `vllm_importance_sampling_cap` argument")
def test_the_correction_of_a_configuration(tmp_path, settings, expected):
    args = make_args(tmp_path, **settings)
    check_environment_run(args)
    assert correction_of(args) == expected
    unwanted = {None: None}.get(
        expected, "sampler_correction (vllm_importance_sampling_correction)"
    )
    said = "old_logprobs='sampler'" if settings.get("old_logprobs") == "sampler" else unwanted
    assert needs_sampler_logprobs(args) == said


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "exact"),
        (VLLM, "recomputed"),
        (VLLM | OFF, "recomputed"),
        (STALE, "recomputed"),
        (STALE | {"sampler_correction": "none"}, "recomputed"),
        ({"sampler_correction": "token_mask"}, "recomputed"),
        ({"old_logprobs": "recomputed"}, "recomputed"),
        (SAMPLER, "sampler"),
        (VLLM | STALE | SAMPLER, "sampler"),
    ],
    ids=words,
)
def test_the_old_log_probabilities_of_a_configuration(tmp_path, settings, expected):
    assert old_logprobs_of(make_args(tmp_path, **settings)) == expected


def test_a_generation_is_as_stale_as_there_are_generations_before_it(tmp_path):
    # Generation k from 1 is played with the weights after generation max(0, k - 1 - S), and trained after k - 1.
    for bound in (0, 1, 3):
        args = make_args(tmp_path, max_staleness=bound)
        for k in range(1, 7):
            assert staleness(args, k - 1) == (k - 1) - max(0, k - 1 - bound)


@pytest.mark.parametrize(
    "settings",
    [
        # One meaning, said twice.
        {"sampler_correction": "none", **OFF},
        {
            "sampler_correction": "token_mask",
            "sampler_correction_max": 3.0,
            "vllm_importance_sampling_mode": "token_mask",
        },
        {"sampler_correction_max": 5.0, "vllm_importance_sampling_clip_max": 5.0},
        {**SAMPLER, **OFF},
    ],
    ids=words,
)
@pytest.mark.parametrize("stale", [0, 1])
def test_names_of_one_meaning_are_taken(tmp_path, settings, stale):
    check_environment_run(make_args(tmp_path, max_staleness=stale, **VLLM, **settings))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"sampler_correction": "token_mask", **OFF},
            "vllm_importance_sampling_correction=False means no correction, but sampler_correction='token_mask' means "
            "token_mask in [0.0, 2.0]",
        ),
        (
            {"sampler_correction": "none", "vllm_importance_sampling_clip_max": None},
            "vllm_importance_sampling_clip_max=None means sequence_mask in [0.0, inf], but sampler_correction='none' "
            "means no correction",
        ),
        (
            {
                "sampler_correction_min": 0.1,
                "sampler_correction_max": 4.0,
                "vllm_importance_sampling_mode": "token_mask",
                "vllm_importance_sampling_clip_max": 5.0,
            },
            "vllm_importance_sampling_mode='token_mask' and vllm_importance_sampling_clip_max=5.0 means token_mask in "
            "[0.0, 5.0], but sampler_correction_min=0.1 and sampler_correction_max=4.0 means token_mask in [0.1, 4.0]",
        ),
        (
            {**SAMPLER, "vllm_importance_sampling_mode": "token_mask"},
            "vllm_importance_sampling_mode='token_mask' means token_mask in [0.0, 3.0], but old_logprobs='sampler' means "
            "no correction",
        ),
    ],
    ids=["off", "none", "bounds", "sampler"],
)
@pytest.mark.parametrize("stale", [0, 1])
def test_names_of_two_meanings_are_refused(tmp_path, settings, sentence, stale):
    args = make_args(tmp_path, max_staleness=stale, **VLLM, **settings)
    with pytest.raises(ValueError, match="This run cannot start") as error:
        check_environment_run(args)
    assert sentence in str(error.value)


def test_what_is_taken_acts_as_it_says(tmp_path):
    """Over all combinations: every setting that is given is what the run has, or the run is refused."""
    args, taken, refused = make_args(tmp_path), 0, 0
    choices = {
        "use_vllm": [False, True],
        "max_staleness": [0, 1],
        "sampler_correction": ["auto", "none", *CORRECTION_MODES],
        "sampler_correction_min": [None, 0.5, 3.0],
        "sampler_correction_max": [None, 2.0, 3.0],
        "old_logprobs": ["auto", "recomputed", "sampler"],
        "vllm_importance_sampling_correction": [True, False],
        "vllm_importance_sampling_mode": ["sequence_mask", "token_truncate"],
        "vllm_importance_sampling_clip_max": [3.0, 2.0],
    }
    for values in itertools.product(*choices.values()):
        for name, value in zip(choices, values, strict=True):
            setattr(args, name, value)
        if off_policy_problems(args):
            refused += 1
            continue
        taken, found = taken + 1, correction_of(args)
        if args.sampler_correction != "auto":
            assert getattr(found, "mode", "none") == args.sampler_correction
        for bound, held in (("min", "low"), ("max", "high")):
            given = getattr(args, f"sampler_correction_{bound}")
            assert given is None or getattr(found, held) == given
        assert found is None or args.old_logprobs != "sampler"
        assert found is None or (found.low or 0) <= found.high
        if args.use_vllm and values[-3:] != (True, "sequence_mask", 3.0):
            theirs = Correction(args.vllm_importance_sampling_mode, *(None, values[-1]))
            said = theirs if args.vllm_importance_sampling_correction else None
            assert found == said
    assert min(taken, refused) > 1000


def test_without_vllm_its_fields_contradict_nothing(tmp_path):
    args = make_args(tmp_path, **OFF, sampler_correction="token_mask")
    assert off_policy_problems(args) == []


def test_bounds_of_one_number_are_taken(tmp_path):
    one = {"sampler_correction_min": 1.5, "sampler_correction_max": 1.5}
    check_environment_run(make_args(tmp_path, sampler_correction="token_truncate", **one))
