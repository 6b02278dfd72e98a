"""`model.generate(..., custom_generate=...)`: the package's decoding behind transformers' own call.

transformers prepares inputs, config and stopping criteria and then calls the function made here.
What cannot be honoured is refused by name; nothing is left out silently.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from dartree.checks import LARGEST_SEED, instance
from dartree.decode import Decoding
from dartree.hub import find_part
from dartree.methods import check_method
from dartree.prompts import eos_ids
from dartree.settings import TreeSettings
from dartree.stack import Stack, pair_with_model
from dartree.target import cached_rows

# Other ways to search, and what only decoding with one forward a token can report.
_REFUSED = {
    "num_beams": 1, "num_return_sequences": 1, "return_dict_in_generate": False,
    "output_scores": False, "output_logits": False, "output_attentions": False,
    "output_hidden_states": False, "token_healing": False, "penalty_alpha": 0,
    "dola_layers": None,
}  # fmt: skip
_WARPERS = ("TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper")
_OWN_CRITERIA = ("MaxLengthCriteria", "EosTokenCriteria")  # the decode loop ends there by itself


def custom_generate(
    drafter: str | Path,
    settings: TreeSettings | None = None,
    *,
    method: str = "dartree",
    streamer: Any = None,
) -> Callable[..., torch.Tensor]:
    """A function for ``model.generate(ids, custom_generate=...)`` on a Qwen3ForCausalLM.

    ``drafter``: folder or hub id of a drafter made for that model. Greedy or sampled as the
    GenerationConfig says (temperature, top_k, top_p, min_p; seeded by torch's global generator);
    stopping criteria are asked after every token. One sequence at a time, without padding.
    A ``streamer`` may be given to ``generate`` as ever, or here, and gets the tokens of a round as
    they are committed. Not ``stop_strings``, for which transformers hands on no tokenizer: give a
    StopStringCriteria. Token ids equal those of ``model.generate`` at T = 0, up to the model's
    ``max_position_embeddings``: a warning says that it ended there. Raises ValueError for what
    cannot be honoured, here already for a drafter that cannot be found.
    """
    check_method(method)
    settings = instance("settings", TreeSettings() if settings is None else settings, TreeSettings)
    if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
        raise ValueError(f"streamer must have put and end, got {type(streamer).__name__}.")
    source = find_part("drafter", drafter)
    stacks: dict[int, Stack] = {}

    def run(
        model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs
    ) -> torch.Tensor:
        kept_back = _kept_back(sys._getframe(1))
        _check(input_ids, logits_processor, generation_config, kept_back | model_kwargs)
        outlet = kept_back.get("streamer")  # it had the prompt from generate
        if outlet is None and streamer is not None:
            outlet = streamer
            outlet.put(input_ids.cpu())
        if id(model) not in stacks:
            stacks.clear()  # one model at a time: a drafter belongs to one target
            stacks[id(model)] = Stack("custom_generate", pair_with_model(model, source))
        stack, prompt = stacks[id(model)], input_ids[0].tolist()
        decoding = Decoding(
            stack, prompt, method=method, settings=settings,
            max_new_tokens=generation_config.max_length - len(prompt),
            # Ids that no token has end nothing: -1 is written for "never".
            stop=[i for i in eos_ids(generation_config) if 0 <= i < stack.target.vocab_size],
            **_sampling(generation_config),
        )  # fmt: skip
        asked = [c for c in stopping_criteria if type(c).__name__ not in _OWN_CRITERIA]
        tokens = _tokens(decoding, input_ids, asked, outlet)
        if decoding.result.stop_reason == "context":
            warnings.warn(
                f"custom_generate ends at the model's {stack.target.max_positions} positions; "
                "generate goes on beyond them.",
                stacklevel=2,
            )
        return torch.cat([input_ids, input_ids.new_tensor([tokens])], dim=1)

    return run


def _tokens(decoding: Decoding, input_ids: torch.Tensor, asked: list, streamer: Any) -> list[int]:
    """New tokens up to the first that a criterion stops at; the streamer gets them as they come."""
    kept: list[int] = []
    rounds = iter(decoding)
    more = True
    while more:
        more = next(rounds, None) is not None
        for token in decoding.result.token_ids[len(kept) :]:
            kept.append(token)
            if streamer is not None:
                streamer.put(torch.tensor([token]))
            if asked and _is_stopped(asked, input_ids, kept):
                more = False
                break
    if streamer is not None:
        streamer.end()
    return kept


def _is_stopped(criteria: list, input_ids: torch.Tensor, kept: list[int]) -> bool:
    so_far = torch.cat([input_ids, input_ids.new_tensor([kept])], dim=1)
    return any(bool(criterion(so_far, None).any()) for criterion in criteria)


def _kept_back(caller: FrameType) -> dict[str, Any]:
    """What ``generate`` was given and hands on to no function: without a look at its frame a
    streamer would say nothing, and who reads from an iterator would wait for ever."""
    if caller.f_globals.get("__name__") != "transformers.generation.utils":
        return {}
    return {name: caller.f_locals.get(name) for name in ("streamer", "assistant_model")}


def _check(input_ids, logits_processor, config, model_kwargs: dict) -> None:
    for name, allowed in _REFUSED.items():
        value = getattr(config, name, None)
        if value is not None and value != allowed:
            raise ValueError(f"custom_generate cannot honour {name}={value!r}.")
    if input_ids.shape[0] != 1 or not input_ids.shape[1]:
        raise ValueError(
            f"custom_generate takes one sequence of ids at a time, got shape "
            f"{tuple(input_ids.shape)}."
        )
    for processor in logits_processor:
        if type(processor).__name__ not in _WARPERS:
            raise ValueError(f"custom_generate cannot honour {type(processor).__name__}.")
    for name in ("inputs_embeds", "assistant_model"):
        if model_kwargs.get(name) is not None:
            raise ValueError(f"custom_generate cannot honour {name}.")
    mask = model_kwargs.get("attention_mask")
    if mask is not None and not bool((mask == 1).all()):
        raise ValueError("custom_generate cannot honour an attention_mask with padding.")
    positions = model_kwargs.get("position_ids")
    if positions is not None and positions[0].tolist() != list(range(input_ids.shape[1])):
        raise ValueError("custom_generate cannot honour position_ids that do not count from 0.")
    if cached_rows(model_kwargs):
        raise ValueError("custom_generate cannot go on from a filled cache.")


def _sampling(config) -> dict[str, Any]:
    if not config.do_sample:
        return {}
    seed = int(torch.randint(LARGEST_SEED, (1,)))
    options = {"temperature": 1.0 if config.temperature is None else config.temperature}
    options |= {n: getattr(config, n, None) for n in ("top_k", "top_p", "min_p")}
    options["top_k"] = options["top_k"] or None
    return {**options, "seed": seed}
