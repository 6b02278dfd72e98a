"""A stack: target, drafter, correction head, tokenizer and tuned settings, loaded together."""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dartree.checkpoints import (
    load_drafter,
    load_target_model,
    read_drafter_config,
    read_target_config,
    warn_of_other_copies,
    weight_files,
)
from dartree.checks import CheckpointError, first_line, instance
from dartree.configs import check_headless, check_pair, read_json
from dartree.drafter import DFlashDrafter
from dartree.fused import FusedHead, fuse_head
from dartree.heads import DominoHead, Head, NoCorrection, check_head
from dartree.hub import Source, find_part, short_name
from dartree.methods import TABLE, check_method
from dartree.packed import pack as pack_linear_layers
from dartree.prompts import Prompt, encode_prompt, eos_ids
from dartree.settings import TreeSettings
from dartree.spread import target_of
from dartree.target import Target
from dartree.tensor_parallel import TENSOR_PARALLEL

# Ways of transformers to share out layers, and ours to split them.
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential", TENSOR_PARALLEL)
DEFAULT_STACK = "tiny"
STACK_PARTS = ("target", "drafter", "dflash")  # keys of stack.json that name folders


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
    """What one method runs on: a target tapped for one drafter, the drafter and its head.

    ``lacks_head``: the method asks for corrections, and the drafter has no head that makes any.
    """

    target: Target
    drafter: DFlashDrafter | Any  # None for `ar`
    head: Head
    label: str
    lacks_head: bool = False

    @property
    def drafts(self) -> int:
        """n: draft positions of a block; 0 without a drafter."""
        return 0 if self.drafter is None else self.drafter.config.drafts


@dataclass
class Stack:
    """Everything that generation needs; built by :func:`load_stack`.

    ``marginal`` is the pairing with the stack's head-less DFlash drafter, on which ``dflash``,
    ``ddtree`` and methods added with ``marginal=True`` run; None where the stack has none, and the
    main drafter's own marginals are used (its label then says so). ``sources`` says where target,
    drafter and dflash came from.
    """

    name: str
    main: Pairing
    marginal: Pairing | None = None
    tokenizer: Any = None
    settings: TreeSettings = field(default_factory=TreeSettings)
    tuned: dict[str, TreeSettings] = field(default_factory=dict)  # fastest by method, see its card
    files: tuple[Path, ...] = ()  # the weights of a bundled stack
    sources: dict[str, Source] = field(default_factory=dict)
    packed: bool = False  # whether the weights are laid out for oneDNN, see packed.py

    @property
    def fused(self) -> bool:
        """Whether the steps between the models are C functions, see fused.py."""
        return isinstance(self.main.head, FusedHead)

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
        """The pairing that ``method`` runs on, with a label that says which checkpoint it is.

        Raises ValueError for a name that is no method's.
        """
        if check_method(method) == "ar":
            return Pairing(self.main.target.without_taps(), None, NoCorrection(), "none")
        main = self.main
        headless = check_head(main.head).name == NoCorrection.name  # true of a compiled one, too
        if not TABLE[method].marginal:
            if headless:
                label = f"{main.label}, without a correction head"
                return replace(main, label=label, lacks_head=True)
            return main
        if self.marginal is not None:
            return self.marginal
        if headless:
            return main
        label = f"{main.label}, its marginals without the head"
        head = fuse_head(NoCorrection(), main.target.embedding) if self.fused else NoCorrection()
        return replace(main, head=head, label=label)

    def chosen_settings(self, given: TreeSettings | None) -> TreeSettings:
        """``given`` or, for None, the stack's own; ValueError for what are no TreeSettings."""
        return self.settings if given is None else instance("settings", given, TreeSettings)

    def encode(self, prompt: Prompt, raw: bool = False) -> list[int]:
        """Token ids of a prompt.

        A str is one user turn and a list of messages a conversation: the chat template is
        applied (thinking off) where the tokenizer has one. ``raw`` text and ids go in as they
        are. Raises ValueError for an empty prompt, unknown ids, or text without a tokenizer.
        """
        return encode_prompt(self.tokenizer, self.target.vocab_size, prompt, raw)

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


def load_stack(
    name: str | None = None,
    *,
    target: str | Path | None = None,
    drafter: str | Path | None = None,
    dflash: str | Path | None = None,
    dtype: torch.dtype | str | None = None,
    drafter_dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    device_map: str | dict[str, Any] | None = None,
    pack: bool | None = None,
    fuse: bool | None = None,
) -> Stack:
    """Load a bundled stack by ``name`` ("tiny"), or ``target`` and ``drafter`` by folder or hub id.

    Hub ids may pin a revision: ``owner/name@commit``. ``dflash``: a drafter without a head for
    ``dflash`` and ``ddtree``, beside one that has one. ``dtype``: fp32 on a CPU and bf16 on a GPU
    unless given; ``drafter_dtype``: the same unless given. ``device_map``: spreads the target
    over devices as transformers does ("auto", or a dict; needs accelerate); the drafter goes
    where the target's lm_head lies. ``pack``: whether weights are laid out for oneDNN
    (:mod:`dartree.packed`); None: in fp32 on a CPU without a ``device_map``, up to 1 GiB of them.
    ``fuse``: whether top-K and the steps of the head are C functions, built for this processor
    (:mod:`dartree.fused`); None: where that can be. Raises ValueError for unknown names and for
    packing and fusing that cannot work, CheckpointError for anything wrong with the files.
    """
    kind, where = placement(dtype, device, device_map)
    placing = (kind, torch_dtype(drafter_dtype) or kind, where, device_map, pack, fuse)
    if (target is None) != (drafter is None):
        raise ValueError("target and drafter must be given together.")
    if target is not None and name is not None:
        raise ValueError("give either the name of a stack or target and drafter, not both.")
    if target is not None:
        given: dict[str, Any] = {"target": target, "drafter": drafter, "dflash": dflash}
        sources = {part: find_part(part, p) for part, p in given.items() if p is not None}
        labels = {part: short_name(given[part]) for part in sources}
        return _assemble(pair_name(target, given["drafter"]), sources, labels, placing)
    if dflash is not None:
        raise ValueError("dflash is given together with target and drafter only.")
    name = DEFAULT_STACK if name is None else name
    card, sources = bundled_sources(name)
    labels = {part: source.name for part, source in sources.items()}
    stack = _assemble(name, sources, labels, placing)
    stack.settings = TreeSettings(**card.get("settings", {}))
    stack.tuned = {m: TreeSettings(**s) for m, s in card.get("tuned", {}).items()}
    stack.files = tuple(
        file for s in sources.values() for file in sorted(s.folder.glob("*.safetensors"))
    )
    return stack


def pair_name(target: str | Path, drafter: str | Path) -> str:
    """The name of a stack of one's own, from the folders or hub ids that it is loaded from."""
    return f"{short_name(target)} + {short_name(drafter)}"


def bundled_sources(name: str) -> tuple[dict[str, Any], dict[str, Source]]:
    """stack.json of a bundled stack and where its parts lie; ValueError for an unknown name."""
    if name not in bundled_stacks():
        raise ValueError(f"stack must be one of {', '.join(bundled_stacks())}, got {name!r}.")
    folder = data_dir() / "stacks" / name
    card = read_json(folder / "stack.json")
    return card, {
        part: Source(posixpath.normpath(f"{name}/{card[part]}"), folder / card[part])
        for part in STACK_PARTS
        if part in card
    }


def placement(
    dtype: torch.dtype | str | None,
    device: torch.device | str | None,
    device_map: str | dict[str, Any] | None,
) -> tuple[torch.dtype, torch.device]:
    """The dtype and the device that :func:`load_stack` takes for these arguments."""
    _check_device_map(device_map)
    where = _device("cpu" if device is None else device)
    if device is None and device_map is not None and torch.cuda.is_available():
        where = torch.device("cuda")
    return torch_dtype(dtype) or (torch.float32 if where.type == "cpu" else torch.bfloat16), where


def _check_device_map(value: str | dict[str, Any] | None) -> None:
    if isinstance(value, str) and value not in DEVICE_MAPS:
        try:
            _device(value)
        except ValueError:
            raise ValueError(
                f"device_map must be one of {', '.join(DEVICE_MAPS)}, or a device that torch can "
                f"use here, got {value!r}."
            ) from None


def _assemble(name: str, sources: dict[str, Source], labels: dict[str, str], placing) -> Stack:
    dtype, drafter_dtype, device, device_map, pack, fuse = placing
    _check_pairs(sources)
    model = load_target_model(sources["target"].folder, dtype, device, device_map)
    device = model.lm_head.weight.device  # a device_map decides where that is
    if device.type == "meta":
        raise ValueError(f"device_map must keep lm_head in memory, got {device_map!r}.")
    pairs = {
        part: _pair(model, sources["target"], sources[part], drafter_dtype, device, labels[part])
        for part in ("drafter", "dflash")
        if part in sources
    }
    tokenizer = _tokenizer(sources["target"].folder)
    stack = Stack(name, pairs["drafter"], pairs.get("dflash"), tokenizer, sources=sources)
    if pack or (pack is None and device_map is None):
        models = [model, *(pair.drafter for pair in pairs.values())]
        stack.packed = pack_linear_layers(models, asked=bool(pack))
    if fuse is not False:
        like = model.lm_head.weight
        for pair in pairs.values():
            pair.head = fuse_head(pair.head, like, asked=bool(fuse))
    return stack


def _check_pairs(sources: dict[str, Source]) -> None:
    """Refuse what cannot work together by the configs and file headers, before weights are read."""
    target = sources["target"]
    raw = read_target_config(target.folder)
    for part, source in sources.items():
        weight_files(source.folder)
        if part == "target":
            continue
        config = read_drafter_config(source.folder)
        check_pair(config, raw, source.name, target.name)
        if part == "dflash":
            check_headless(config, source.name)


def pair_with_model(model: Any, source: Source) -> Pairing:
    """A loaded Qwen3ForCausalLM with a drafter, in the model's dtype."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind != "qwen3":
        raise CheckpointError(f"the loaded model must be a Qwen3 model, got model_type {kind!r}.")
    weight = model.lm_head.weight
    pairing = _pair(model, None, source, weight.dtype, weight.device, Path(source.name).name)
    return replace(pairing, head=fuse_head(pairing.head, weight))


def _pair(model, target: Source | None, source: Source, dtype, device, label) -> Pairing:
    drafter, head = load_drafter(source.folder, dtype, device)
    name = "the loaded model" if target is None else target.name
    check_pair(drafter.config, model.config.to_dict(), source.name, name)
    tapped = target_of(model, drafter.config.target_layer_ids)
    tables = {"embed_tokens.weight": tapped.embedding, "lm_head.weight": model.lm_head.weight}
    warn_of_other_copies(source.folder, tables, source.name, name)
    if isinstance(head, DominoHead):
        head.attach(tapped.embedding)
    return Pairing(tapped, drafter, head, label)


def _tokenizer(folder: Path) -> Any:
    if not any((Path(folder) / f).exists() for f in ("tokenizer.json", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # tokenizer files raise many kinds; one sentence serves all
        raise CheckpointError(
            f"{folder} has an unreadable tokenizer: {first_line(error)}"
        ) from None


def _device(value: torch.device | str) -> torch.device:
    try:
        device = torch.device(value)
        torch.empty(1, device=device).cpu()
    except Exception as error:  # torch raises many kinds for devices that are not there
        hint = "" if torch.version.cuda else " (this torch has no CUDA: make setup TORCH=cuda)"
        raise ValueError(
            f"device must be one that torch can use here, got {value!r}: {first_line(error)}{hint}"
        ) from None
    return device


def torch_dtype(value: torch.dtype | str | None) -> torch.dtype | None:
    """A dtype by name; None stays None. Raises ValueError for what no model is kept in."""
    if value is None or isinstance(value, torch.dtype):
        return value
    names = {
        "float32": torch.float32, "fp32": torch.float32, "float64": torch.float64,
        "bfloat16": torch.bfloat16, "bf16": torch.bfloat16,
        "float16": torch.float16, "fp16": torch.float16,
    }  # fmt: skip
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"dtype must be one of {', '.join(names)}, got {value!r}.")
    return names[value]


def describe(name: str) -> dict[str, Any]:
    """What a bundled stack holds, from file headers alone; no weights are read."""
    from safetensors import safe_open

    folder = data_dir() / "stacks" / name
    card = read_json(folder / "stack.json")
    parts = []
    for part in STACK_PARTS:
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
