"""The weights of public checkpoints -> our modules, with every tensor accounted for.

They come from safetensors files only. What a config says is read in ``configs.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from dartree.checks import CheckpointError, first_line
from dartree.configs import check_target_config, parse_drafter_config, read_json
from dartree.drafter import DFlashDrafter, DrafterConfig
from dartree.heads import DominoHead, Head, MarkovHead, NoCorrection
from dartree.tensor_parallel import TENSOR_PARALLEL, tensor_parallel_options

# Frozen copies of the target's tables that some files carry.
_COPIES = ("embed_tokens.weight", "lm_head.weight")
NAMED_FAULTS = 3  # tensors that a message names of each kind
# Maps between a reduced draft vocabulary and the target's; of no use where it is not reduced.
_VOCABULARY_MAPS = ("d2t", "t2d")


def weight_files(folder: Path) -> list[Path]:
    """``model.safetensors``, or the shards of the index file; each is opened once as a check."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
    for name in names:
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist; weights are read from safetensors only.")
        try:
            with safe_open(path, framework="pt") as tensors:
                tensors.keys()
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{path} is not a readable safetensors file ({first_line(error)}): it may be "
                "truncated; download it again."
            ) from None
    return [folder / name for name in names]


def read_weights(
    folder: Path, dtype: torch.dtype | None = None, skip: tuple[str, ...] = ()
) -> dict[str, torch.Tensor]:
    """Tensors of a folder's ``model.safetensors`` or shards, all but ``skip``, cast to ``dtype``.

    The prefix ``logit_head.`` of training checkpoints is stripped. Raises CheckpointError where
    one name comes twice.
    """
    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for key in file.keys():
                name = key.removeprefix("logit_head.")
                if name in skip:
                    continue
                if name in tensors:
                    raise CheckpointError(f"{path} holds {name} a second time.")
                tensors[name] = file.get_tensor(key).to(dtype)
    return tensors


def warn_of_other_copies(
    folder: Path, tables: dict[str, torch.Tensor], drafter: str, target: str
) -> None:
    """Warn where a file's frozen copy of a target table is not the target's.

    ``tables``: embed_tokens.weight and lm_head.weight of the target, [V, H] each. 64 rows of
    each are read and compared in the copy's own dtype; the copy itself is never used.
    """
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in set(file.keys()) & set(_COPIES):
                theirs, ours = file.get_slice(name), tables[name]
                if list(theirs.get_shape()) == list(ours.shape):
                    rows = range(0, len(ours), max(1, len(ours) // 64))
                    copy = torch.cat([theirs[row : row + 1] for row in rows])
                    own = ours[list(rows)].to(device=copy.device, dtype=copy.dtype)
                    if torch.equal(copy, own):
                        continue
                warnings.warn(
                    f"{drafter} carries a {name} that is not {target}'s: it may have been "
                    "trained for another target, and few of its drafts would be accepted.",
                    stacklevel=4,
                )


def _fit(modules: dict[str, nn.Module], tensors: dict[str, torch.Tensor], source: str) -> None:
    """Load ``tensors`` into ``modules``; every missing, unexpected or misshapen key is named."""
    expected = {k: v for m in modules.values() for k, v in m.state_dict().items()}
    missing = sorted(expected.keys() - tensors.keys())
    unexpected = sorted(tensors.keys() - expected.keys())
    wrong = [
        f"{k} {list(tensors[k].shape)} instead of {list(v.shape)}"
        for k, v in sorted(expected.items())
        if k in tensors and tensors[k].shape != v.shape
    ]
    _refuse_faults(source, missing, unexpected, wrong)
    for module in modules.values():
        own = module.state_dict().keys()
        module.load_state_dict({k: tensors[k] for k in own}, assign=True)


def _refuse_faults(source: str, missing: list, unexpected: list, wrong: list) -> None:
    """CheckpointError that names the first tensors of each kind of fault, and counts the rest."""
    faults = []
    for label, keys in (("missing", missing), ("unexpected", unexpected), ("shape", wrong)):
        if keys:
            rest = len(keys) - NAMED_FAULTS
            more = f" and {rest} more" if rest > 0 else ""
            faults.append(f"{label}: {', '.join(keys[:NAMED_FAULTS])}{more}")
    if faults:
        raise CheckpointError(f"{source} does not match its config.json; {'; '.join(faults)}.")


def load_drafter(
    folder: str | Path, dtype: torch.dtype, device: torch.device | str
) -> tuple[DFlashDrafter, Head]:
    """Drafter and head of a local folder, in ``dtype`` on ``device``.

    Raises CheckpointError for unreadable files, unsupported configs and any tensor that is
    missing, unexpected or wrongly shaped. Frozen copies of the target's embedding and lm_head
    are dropped; the prefix ``logit_head.`` of training checkpoints is stripped.
    """
    folder = Path(folder)
    config = read_drafter_config(folder)
    tensors = read_weights(folder, dtype, skip=_COPIES + _VOCABULARY_MAPS)
    drafter, head = empty_drafter(config)
    modules: dict[str, nn.Module] = {"drafter": drafter}
    if isinstance(head, nn.Module):
        modules["head"] = head
    _fit(modules, tensors, str(folder))
    for module in modules.values():
        module.requires_grad_(False).to(device).eval()
    return drafter, head


def empty_drafter(config: DrafterConfig) -> tuple[DFlashDrafter, Head]:
    """Drafter and head of ``config`` on the meta device: names and shapes, no storage."""
    heads: dict[str, Callable[[DrafterConfig], Head]]
    heads = {"none": lambda _: NoCorrection(), "domino": DominoHead, "markov": MarkovHead}
    with torch.device("meta"):
        return DFlashDrafter(config), heads[config.head](config)


def read_target_config(folder: Path) -> dict[str, Any]:
    """config.json of a target's folder; CheckpointError where it cannot be used."""
    return check_target_config(read_json(folder / "config.json"), str(folder))


def read_drafter_config(folder: Path) -> DrafterConfig:
    """The config of a drafter's folder; CheckpointError says what is wrong with it."""
    return parse_drafter_config(read_json(folder / "config.json"), str(folder / "config.json"))


def load_target_model(
    folder: str | Path,
    dtype: torch.dtype,
    device: torch.device | str,
    device_map: str | dict[str, Any] | None = None,
) -> Any:
    """Qwen3ForCausalLM of a local folder; CheckpointError where anything does not fit.

    ``device_map``, as transformers takes it, spreads the layers in place of ``device``;
    "tensor-parallel" splits every layer over the processes that torchrun started.
    """
    from transformers import AutoConfig, Qwen3ForCausalLM
    from transformers.utils import logging

    folder = Path(folder)
    read_target_config(folder)
    weight_files(folder)  # a broken file is named before transformers looks at it
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # its warnings repeat what the check below reports
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        if device_map == TENSOR_PARALLEL:
            options = tensor_parallel_options(config, str(folder / "config.json"))
        else:
            options = {"device_map": device_map}
        load: Any = Qwen3ForCausalLM.from_pretrained  # typed as if output_loading_info were False
        model, info = load(
            folder,
            config=config,
            dtype=dtype,
            **options,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, with the other faults
        )
    except (CheckpointError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # configs of the wrong types raise many kinds; one sentence serves
        raise CheckpointError(
            f"{folder} cannot be loaded as a Qwen3 target: {first_line(error)}"
        ) from None
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    _refuse_faults(str(folder), *(sorted(map(_key_name, info.get(kind) or ())) for kind in kinds))
    model = model if device_map is not None else model.to(device)
    return model.requires_grad_(False).eval()


def _key_name(entry: str | tuple) -> str:
    """A key of transformers' loading report; misshapen ones come with both shapes."""
    if isinstance(entry, str):
        return entry
    return f"{entry[0]} {list(entry[1])} instead of {list(entry[2])}"
