"""A stack: target, drafter, correction head, tokenizer and tuned settings, loaded together."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dartree.checkpoints import load_drafter, load_target_model, read_json, rope_theta_of
from dartree.drafter import DFlashDrafter
from dartree.heads import DominoHead, Head, NoCorrection
from dartree.proposers import MARGINAL_METHODS
from dartree.settings import CheckpointError, TreeSettings, first_line
from dartree.target import Target

Prompt = str | Sequence[int] | Sequence[dict[str, str]]


def data_dir() -> Path:
    """The project's data folder: $DARTREE_DATA, or ``data/`` beside the package."""
    named = os.environ.get("DARTREE_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parent.parent / "data"
    if not (folder / "stacks").is_dir():
        raise CheckpointError(
            f"{folder} holds no stacks; install from a checkout (pip install -e .) or set "
            "DARTREE_DATA to the checkout's data folder."
        )
    return folder


def bundled_stacks() -> list[str]:
    """Names of the stacks below ``data/stacks``."""
    return sorted(p.parent.name for p in (data_dir() / "stacks").glob("*/stack.json"))


@dataclass
class Pairing:
    """What one method runs on: a target tapped for one drafter, the drafter and its head."""

    target: Target
    drafter: DFlashDrafter | None
    head: Head
    label: str


@dataclass
class Stack:
    """Everything that generation needs; built by :func:`load_stack`.

    ``marginal`` is the pairing with the stack's head-less DFlash drafter, on which ``dflash``
    and ``ddtree`` run; None where the stack has none, and the main drafter's own marginals are
    used (its label then says so).
    """

    name: str
    main: Pairing
    marginal: Pairing | None = None
    tokenizer: Any = None
    settings: TreeSettings = field(default_factory=TreeSettings)

    @property
    def target(self) -> Target:
        """The target, tapped for the main drafter."""
        return self.main.target

    @property
    def drafter(self) -> DFlashDrafter:
        """The main drafter."""
        return self.main.drafter

    @property
    def head(self) -> Head:
        """The main drafter's correction head."""
        return self.main.head

    def pairing(self, method: str) -> Pairing:
        """The pairing that ``method`` runs on, with a label that says which checkpoint it is."""
        if method == "ar":
            return Pairing(self.main.target.without_taps(), None, NoCorrection(), "none")
        if method not in MARGINAL_METHODS:
            return self.main
        if self.marginal is not None:
            return self.marginal
        if isinstance(self.main.head, NoCorrection):
            return self.main
        label = f"{self.main.label}, its marginals without the head"
        return Pairing(self.main.target, self.main.drafter, NoCorrection(), label)

    def encode(self, prompt: Prompt, raw: bool = False) -> list[int]:
        """Token ids of a prompt.

        A str is one user turn and a list of messages a conversation: the chat template is
        applied (thinking off) where the tokenizer has one. ``raw`` text and ids go in as they
        are. Raises ValueError for an empty prompt, unknown ids, or text without a tokenizer.
        """
        try:
            if isinstance(prompt, bytes):
                raise TypeError
            parts = prompt if isinstance(prompt, str) else list(prompt)
            if isinstance(prompt, str) or (parts and isinstance(parts[0], dict)):
                ids = None
            else:
                ids = [operator.index(i) for i in parts]
        except TypeError:
            raise ValueError(
                f"prompt must be a text, token ids or messages, got {type(prompt).__name__}."
            ) from None
        ids = self._encode_text(parts, raw) if ids is None else ids
        if not ids:
            raise ValueError("prompt must not be empty.")
        vocabulary = self.target.vocab_size
        bad = [i for i in ids if not 0 <= i < vocabulary]
        if bad:
            raise ValueError(f"prompt ids must lie in 0..{vocabulary - 1}, got {bad[0]}.")
        return ids

    def _encode_text(self, prompt: str | Sequence[dict[str, str]], raw: bool) -> list[int]:
        if self.tokenizer is None:
            raise ValueError(f"stack {self.name!r} has no tokenizer: give the prompt as ids.")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        for message in messages:
            _check_message(message)
        text = prompt
        if not (raw and isinstance(prompt, str)):
            if self.tokenizer.chat_template:
                # Drafters of this family are trained with thinking off.
                text = self.tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=True,
                    enable_thinking=False,
                )  # fmt: skip
            else:
                text = "\n".join(str(m["content"]) for m in messages)
        # verbose=False: the length is checked where the context is known, in one sentence.
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def stop_ids(self) -> list[int]:
        """Stop ids of the target's generation config, in order, without duplicates."""
        return eos_ids(getattr(self.target.model, "generation_config", None))

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of ``ids``; without a tokenizer the ids themselves, blank-separated."""
        if self.tokenizer is None:
            return " ".join(str(i) for i in ids)
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )


def eos_ids(generation_config: Any) -> list[int]:
    """Stop ids of a generation config (an int, a list or None), in order, without duplicates."""
    ids = getattr(generation_config, "eos_token_id", None)
    if ids is None:
        return []
    return list(dict.fromkeys([ids] if isinstance(ids, int) else [int(i) for i in ids]))


def _check_message(message: Any) -> None:
    if not isinstance(message, dict) or not all(
        isinstance(message.get(name), str) for name in ("role", "content")
    ):
        raise ValueError(f"prompt messages must hold the texts role and content, got {message!r}.")
    content = message["content"]
    if not content.strip():
        raise ValueError("prompt must not be empty.")
    try:
        content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"prompt must be valid Unicode, got a lone surrogate at character {error.start}."
        ) from None


def load_stack(
    name: str | None = None,
    *,
    target: str | Path | None = None,
    drafter: str | Path | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
) -> Stack:
    """Load a bundled stack by ``name`` ("tiny"), or ``target`` and ``drafter`` by folder or hub id.

    ``dtype``: fp32 on a CPU and bf16 on a GPU unless given. Raises ValueError for unknown names
    and CheckpointError for anything wrong with the files.
    """
    where = _device("cpu" if device is None else device)
    kind = _dtype(dtype) or (torch.float32 if where.type == "cpu" else torch.bfloat16)
    if (target is None) != (drafter is None):
        raise ValueError("target and drafter must be given together.")
    if target is not None and name is not None:
        raise ValueError("give either the name of a stack or target and drafter, not both.")
    if target is not None:
        label = Path(str(drafter)).name
        folders = _local(target), _local(drafter)
        return _assemble(f"{Path(str(target)).name} + {label}", *folders, None, kind, where, label)
    name = "tiny" if name is None else name
    if name not in bundled_stacks():
        raise ValueError(f"stack must be one of {', '.join(bundled_stacks())}, got {name!r}.")
    folder = data_dir() / "stacks" / name
    card = read_json(folder / "stack.json")
    marginal = folder / card["dflash"] if "dflash" in card else None
    stack = _assemble(
        name, folder / card["target"], folder / card["drafter"], marginal, kind, where,
        f"{name}/{card['drafter']}",
    )  # fmt: skip
    stack.settings = TreeSettings(**card.get("settings", {}))
    return stack


def _assemble(name, target_dir, drafter_dir, marginal_dir, dtype, device, label) -> Stack:
    model = load_target_model(target_dir, dtype, device)
    main = _pair(model, target_dir, drafter_dir, dtype, device, label)
    marginal = None
    if marginal_dir is not None:
        marginal = _pair(
            model, target_dir, marginal_dir, dtype, device, f"{name}/{marginal_dir.name}"
        )
    return Stack(name, main, marginal, _tokenizer(target_dir))


def pair_with_model(model, drafter: str | Path) -> Pairing:
    """A loaded Qwen3ForCausalLM with a drafter (folder or hub id), in the model's dtype."""
    weight, folder = model.lm_head.weight, _local(drafter)
    return _pair(model, None, folder, weight.dtype, weight.device, Path(str(drafter)).name)


def _pair(model, target_dir: Path | None, drafter_dir: Path, dtype, device, label) -> Pairing:
    drafter, head = load_drafter(drafter_dir, dtype, device)
    c, t = drafter.config, model.config
    theirs = rope_theta_of(t.to_dict())
    if theirs is None and target_dir is not None:
        theirs = rope_theta_of(read_json(Path(target_dir) / "config.json"))
    for what, ours, other in (
        ("hidden_size", c.hidden_size, t.hidden_size),
        ("vocab_size", c.vocab_size, t.vocab_size),
        ("num_target_layers", c.num_target_layers, t.num_hidden_layers),
        ("rope_theta", c.rope_theta, float(theirs or c.rope_theta)),
    ):
        if ours != other:
            raise CheckpointError(
                f"{drafter_dir} was made for another target: its {what} is {ours}, "
                f"the target's is {other}."
            )
    target = Target(model, c.target_layer_ids)
    if isinstance(head, DominoHead):
        head.attach(target.embedding)
    return Pairing(target, drafter, head, label)


def _tokenizer(folder: Path):
    if not any((Path(folder) / f).exists() for f in ("tokenizer.json", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # tokenizer files raise many kinds; one sentence serves all
        raise CheckpointError(
            f"{folder} has an unreadable tokenizer: {first_line(error)}"
        ) from None


def _local(source: str | Path) -> Path:
    """A local folder for a folder or hub id (downloaded through huggingface_hub)."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if str(source).count("/") != 1 or str(source).startswith((".", "/", "~")):
        raise CheckpointError(f"{source} is neither a folder nor a hub id (owner/name).")
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.safetensors", "merges.txt", "*.jinja"]
        return Path(snapshot_download(str(source), allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds; one sentence serves all
        raise CheckpointError(
            f"{source} is no folder and could not be fetched: {first_line(error)}"
        ) from None


def _device(value: torch.device | str) -> torch.device:
    try:
        device = torch.device(value)
        torch.empty(1, device=device).cpu()
    except Exception as error:  # torch raises many kinds for devices that are not there
        raise ValueError(
            f"device must be one that torch can use here, got {value!r}: {first_line(error)}"
        ) from None
    return device


def _dtype(value: torch.dtype | str | None) -> torch.dtype | None:
    if value is None or isinstance(value, torch.dtype):
        return value
    names = {
        "float32": torch.float32, "fp32": torch.float32, "float64": torch.float64,
        "bfloat16": torch.bfloat16, "bf16": torch.bfloat16,
        "float16": torch.float16, "fp16": torch.float16,
    }  # fmt: skip
    if value not in names:
        raise ValueError(f"dtype must be one of {', '.join(names)}, got {value!r}.")
    return names[value]


def describe(name: str) -> dict[str, Any]:
    """What a bundled stack holds, from file headers alone; no weights are read."""
    from safetensors import safe_open

    folder = data_dir() / "stacks" / name
    card = read_json(folder / "stack.json")
    parts = []
    for part in ("target", "drafter", "dflash"):
        if part not in card:
            continue
        files = sorted((folder / card[part]).glob("*.safetensors"))
        parameters = 0
        for file in files:
            with safe_open(file, framework="pt") as tensors:
                shapes = [tensors.get_slice(key).get_shape() for key in tensors.keys()]
            parameters += sum(math.prod(shape) for shape in shapes)
        parts.append({
            "name": part,
            "folder": str(folder / card[part]),
            "parameters": parameters,
            "bytes": sum(file.stat().st_size for file in files),
        })  # fmt: skip
    return {
        "name": name,
        "description": card.get("description", ""),
        "settings": card.get("settings", {}),
        "parts": parts,
    }
