"""`dartree train tokenizer`: a byte-level BPE tokenizer of about 4,000 entries, in ChatML form."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dartree.training.common import preset_folder, read_jsonl, replace_folder, write_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 4094  # with the model's 4096 rows; the last row is the drafter's mask token
MODEL_ROWS = 4096
MASK_TOKEN_ID = MODEL_ROWS - 1
# `enable_thinking` is accepted, as by Qwen3's template, and changes nothing.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def chat(prompt: str, answer: str | None = None, system: str | None = None) -> str:
    """The text of one turn as the template makes it; without an answer, up to where one starts."""
    text = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    text += f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    return text if answer is None else f"{text}{answer}<|im_end|>\n"


def train(texts: Iterator[str], size: int = VOCABULARY) -> Tokenizer:
    """A tokenizers.Tokenizer of at most `size` entries; every UTF-8 text survives a round trip."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    # Qwen's way to split, with single digits: columns of numbers then line up for the model
    split = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(split), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json: what AutoTokenizer of transformers 4 and 5 reads."""
    end, start, stop = SPECIAL
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1024,
        "eos_token": stop, "pad_token": end, "additional_special_tokens": [start, stop],
        "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip

    def write(temporary: Path) -> None:
        tokenizer.save(str(temporary / "tokenizer.json"))
        write_json(temporary / "tokenizer_config.json", config)

    replace_folder(folder, write)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--size", type=int, default=VOCABULARY, help="entries, special ones included"
    )


def run(args: argparse.Namespace) -> None:
    if not 256 + len(SPECIAL) <= args.size <= MASK_TOKEN_ID:
        raise ValueError(
            f"size is {args.size}; allowed are {256 + len(SPECIAL)} to {MASK_TOKEN_ID}"
        )
    folder = preset_folder(args.preset, args.out)
    rows = read_jsonl(folder / "corpus" / "train.jsonl")
    tokenizer = train((f"{row['prompt']}\n{row['answer']}" for row in rows), args.size)
    save(tokenizer, folder / "tokenizer")
    print(f"tokenizer: {tokenizer.get_vocab_size()} entries, in {folder / 'tokenizer'}")
