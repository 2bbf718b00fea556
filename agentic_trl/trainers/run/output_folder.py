"""The output folder of a run: one run at a time, checkpoints that are whole, and nothing of an earlier run mixed in.

Contract:

- The first rank holds a lock on ``output_dir`` from the start of training to its end. The kernel drops it at any death of
  the process, and no child inherits it. A second run in the folder is refused on all its ranks.
- Whether a checkpoint is whole is seen from its files alone, without loading them: no weights, a truncated file or
  a state that is no JSON make it broken, and the sentence names the file.
"""

import json
import logging
import os
import socket
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate.utils import gather_object
from safetensors import SafetensorError, safe_open
from transformers.trainer import TRAINER_STATE_NAME

try:
    from fcntl import LOCK_EX, LOCK_NB, lockf
except ImportError:  # Windows: the folder is not locked there
    LOCKS = False
else:
    LOCKS = True

from agentic_trl.error_kinds import FolderInUseError
from agentic_trl.run_folder import EPISODES, FACTS, LOG, checkpoint_number, checkpoints

logger = logging.getLogger(__name__)

LOCK = "_agentic_trl.lock"
"""File in ``output_dir`` that the run holds, with the process and the machine of its owner."""

WEIGHTS = ("*.safetensors", "pytorch_model*", "adapter_model*", "global_step*")
"""Files or folders of which a checkpoint has one: weights whole or sharded, an adapter, FSDP's, DeepSpeed's."""

_held: set[Path] = set()
"""Locks of this process, in which the kernel would grant one twice."""


@contextmanager
def locked(output_dir: str, *, main: bool) -> Iterator[None]:
    """Own a folder while a run trains; at Ctrl-C say how it goes on.

    Args:
        output_dir: Folder of the run.
        main: Whether this is the first rank, which holds the lock.

    Raises:
        FolderInUseError: On all ranks, if another run owns it.
        KeyboardInterrupt: As it came.
    """
    path = Path(output_dir).resolve() / LOCK
    descriptor, problem = _acquire(path) if main else (None, "")
    problems = [one for one in gather_object([problem]) if one]
    try:
        if problems:
            raise FolderInUseError(problems[0])
        yield
    except KeyboardInterrupt:
        if main:
            logger.warning("The run was stopped. %s", _how_to_go_on(output_dir))
        raise
    finally:
        if descriptor is not None:
            path.unlink(
                missing_ok=True
            )  # before the lock is dropped: whoever opened it sees that it is gone
            os.close(descriptor)
            _held.discard(path)


def _how_to_go_on(output_dir: str) -> str:
    try:
        newest = newest_whole(output_dir)
    except ValueError:
        return f"{output_dir} holds no whole checkpoint: a new run begins anew. save_steps says how often one is written."
    return f"{newest} is whole: train(resume_from_checkpoint=True), of a recipe --resume_from_checkpoint true, goes on from there."


def _acquire(path: Path) -> tuple[int | None, str]:
    """Return the descriptor that holds a lock, or ``None`` and a sentence about who has it."""
    if not LOCKS:
        return None, ""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path in _held:  # closing any descriptor of the file would drop the lock
        return None, _taken(path, f"this process ({os.getpid()})")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        lockf(descriptor, LOCK_EX | LOCK_NB)
        if not path.exists() or not os.path.samestat(os.fstat(descriptor), path.stat()):
            os.close(descriptor)  # its owner removed it in between
            return _acquire(path)
    except BlockingIOError:
        owner = os.read(descriptor, 200).decode(errors="replace").strip()
        os.close(descriptor)
        return None, _taken(path, owner or "another process")
    except OSError as error:  # a file system without locks
        os.close(descriptor)
        logger.warning(
            "%s cannot be locked (%s): see that one run at a time uses it.", path.parent, error
        )
        return None, ""
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
    _held.add(path)
    return descriptor, ""


def _taken(path: Path, owner: str) -> str:
    return (
        f"output_dir {str(path.parent)!r} is in use by {owner}: two runs in one folder would remove and replace each "
        "other's checkpoints and trajectories. Choose another output_dir, or wait until that run has ended."
    )


def broken_file(checkpoint: Path) -> str:
    """Return what a checkpoint lacks, or which of its files is broken; empty if it is whole.

    Args:
        checkpoint: Its folder.
    """
    try:
        json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{TRAINER_STATE_NAME} ({type(error).__name__})"
    if not any(found for pattern in WEIGHTS for found in checkpoint.glob(pattern)):
        return "the weights, which are missing"
    for path in sorted(checkpoint.rglob("*")):
        if path.suffix == ".safetensors" and not _opens(path):
            return str(path.relative_to(checkpoint))
        if path.suffix in {".pt", ".pth", ".bin"} and _is_cut(path):
            return str(path.relative_to(checkpoint))
    return ""


def _opens(path: Path) -> bool:
    """Return whether a file has the size that its header of tensors says."""
    try:
        with safe_open(path, framework="pt"):
            return True
    except (SafetensorError, OSError):
        return False


def _is_cut(path: Path) -> bool:
    """Return whether a file that torch wrote, a zip archive with its table at the end, is shorter than it was."""
    with path.open("rb") as file:
        start = file.read(4)
    return not start or (start == b"PK\x03\x04" and not zipfile.is_zipfile(path))


def newest_whole(output_dir: str) -> str:
    """Return the newest checkpoint that is whole, with a warning for each newer one that is not.

    Args:
        output_dir: Folder of the run.

    Raises:
        ValueError: If there is none.
    """
    problems: list[str] = []
    for path in (one for one in checkpoints(Path(output_dir)) if checkpoint_number(one) >= 0):
        problem = broken_file(path)
        if not problem:
            for one in problems:
                logger.warning("%s; the run resumes from %s.", one, path)
            return str(path)
        problems.append(f"The checkpoint {path} is broken: {problem}")
    found = "; ".join(problems) or "it holds none"
    raise ValueError(
        f"resume_from_checkpoint=True: got output_dir {output_dir!r}, expected a whole checkpoint in it; {found}. Name "
        "another checkpoint, or start anew without resume_from_checkpoint."
    )


def require_whole(checkpoint: str) -> None:
    """Refuse a checkpoint that is not whole.

    Args:
        checkpoint: Its folder.

    Raises:
        ValueError: If it is missing or broken; the sentence names the file.
    """
    path = Path(checkpoint)
    problem = broken_file(path) if path.is_dir() else "the folder, which is missing"
    if problem:
        raise ValueError(
            f"resume_from_checkpoint: got {checkpoint!r}, expected a whole checkpoint; what is broken: {problem}. Name "
            "another checkpoint, or pass True for the newest whole one."
        )


def put_aside(output_dir: str) -> None:
    """Move what an earlier run wrote aside, all under one number, so that what a new one writes does not mix with it.

    Args:
        output_dir: Folder of the run.
    """
    names = (EPISODES, LOG, FACTS)
    found = [path for name in names if _holds(path := Path(output_dir, name))]
    if not found:
        return
    taken = {one.name for one in Path(output_dir).iterdir()}
    number = next(
        n for n in range(1, 10**6) if taken.isdisjoint(_numbered(one, n) for one in names)
    )
    aside = [path.rename(path.with_name(_numbered(path.name, number))) for path in found]
    logger.warning(
        "%s holds %s of an earlier run, now under the names %s.",
        output_dir,
        ", ".join(path.name for path in found),
        ", ".join(path.name for path in aside),
    )


def _holds(path: Path) -> bool:
    """Whether there is a file, or a folder with something in it."""
    return any(path.iterdir()) if path.is_dir() else path.is_file()


def _numbered(name: str, number: int) -> str:
    stem, ending = os.path.splitext(name)
    return f"{stem}-{number}{ending}"
