"""dartree: learn, measure and extend tree-based speculative decoding (DARTree) on Qwen3."""

from dartree.api import corrected_logits, ddtree, draft, expand, verify
from dartree.checks import CheckpointError
from dartree.decode import Decoding, Generation, GenerationError, generate, stream
from dartree.drafter import Block
from dartree.hf import custom_generate
from dartree.methods import METHODS, add_method
from dartree.proposers import Proposal
from dartree.pruning import best_first, top_b
from dartree.records import RoundRecord, load_records, save_records
from dartree.settings import TreeSettings
from dartree.stack import Stack, data_dir, load_stack
from dartree.tree import DraftTree, Supertree

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Block",
    "CheckpointError",
    "Decoding",
    "DraftTree",
    "Generation",
    "GenerationError",
    "Proposal",
    "RoundRecord",
    "Stack",
    "Supertree",
    "TreeSettings",
    "add_method",
    "best_first",
    "corrected_logits",
    "custom_generate",
    "data_dir",
    "ddtree",
    "draft",
    "expand",
    "generate",
    "load_records",
    "load_stack",
    "save_records",
    "stream",
    "top_b",
    "verify",
]
