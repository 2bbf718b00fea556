"""The run-time type checker of the tests: beartype, with int accepted for float as Python does.

Tests put stand-ins in the place of objects of the host libraries, so these are not checked.
"""

from accelerate import Accelerator
from beartype import BeartypeConf, FrozenDict, beartype
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer

HOSTS = (PreTrainedModel, PeftModel, Accelerator, PreTrainedTokenizerBase, GRPOConfig, GRPOTrainer)

typechecker = beartype(
    conf=BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict(dict.fromkeys(HOSTS, object)))
)
