"""Ids of a tokenizer and of a model: those that both know, and those that only one does."""

from transformers import PreTrainedTokenizerBase

from agentic_trl.trainers.config.host import Model

PROBE_IDS = 1000
"""Ids that checks draw from."""


def probe_ids(model: Model, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return ids for a check of a model: of ordinary text, the end of a turn, and one that the tokenizer lacks.

    Returns:
        Ids that stand for what contexts hold; the model's last one is among them if no token has it, since the
        policy may sample it.

    Raises:
        ValueError: If the tokenizer has ids that the model cannot read, or cannot decode those that the model can
            sample.
    """
    known = set(tokenizer.get_vocab().values())
    readable = int(model.get_input_embeddings().weight.shape[0])
    unused = set(tokenizer.get_added_vocab().values()) - {
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    }
    # An added token may be of a picture, which no text holds.
    needed = max(known - unused, default=0)
    if needed >= readable:
        raise ValueError(
            f"The tokenizer has ids up to {needed}, but {type(model).__name__} reads {readable} of them, expected "
            "a row of the embedding for each. Call model.resize_token_embeddings(len(tokenizer)), or pass the "
            "tokenizer that belongs to the model."
        )
    added = set(tokenizer.get_added_vocab().values()) | set(tokenizer.all_special_ids)
    text = sorted(known - added) or sorted(known)
    ids = text[:: max(len(text) // PROBE_IDS, 1)]
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    beyond = readable - 1
    if beyond not in known:
        _require_text(tokenizer, beyond)
        ids.append(beyond)
    return ids


def _require_text(tokenizer: PreTrainedTokenizerBase, beyond: int) -> None:
    """Refuse a tokenizer that cannot decode an id that the model can sample.

    Raises:
        ValueError: If it raises.
    """
    try:
        tokenizer.decode([beyond])
    except Exception as error:
        raise ValueError(
            f"The model can sample id {beyond}, which the tokenizer cannot decode ({type(error).__name__}: {error}), "
            "expected a text, if an empty one. Use a fast tokenizer (use_fast=True)."
        ) from error
