# ruff: noqa: F401
"""The public names. The package loads this module when one of them is first used."""

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
