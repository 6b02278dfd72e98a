"""CUDA graphs: on a CPU what a stand-in for them can show, on a GPU the text itself.

The stand-in does to callers what replays do: outputs lie in memory that every later run of any
graph overwrites, and a set of addresses that was not seen yet costs a recording.
"""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_flatten, tree_unflatten

import dartree
from dartree import compiled as module
from dartree import static_caches
from dartree.compiled import Graphs, compiled_stack, report, why_not
from dartree.decode import Decoding
from dartree.static_caches import KEPT, Buffers, StaticKVCache
from tests.reference import greedy, prompt, random_stack

SETTINGS = dartree.TreeSettings(width=3, candidates=5, budget=16)


class Replays:
    """Stands in for torch.compile with CUDA graphs."""

    def __init__(self) -> None:
        self.options, self.memory, self.recordings = [], [], 0

    def compile(self, function, *, dynamic, fullgraph, options):
        self.options.append(options)
        memory, addresses, calls = [], set(), 0

        def run(*inputs):
            nonlocal calls
            with torch.inference_mode():
                for tensor in self.memory:
                    tensor.fill_(-1)
                leaves, shape = tree_flatten(function(*inputs))
                if not memory:
                    memory.extend(leaf.clone() for leaf in leaves)
                    self.memory.extend(memory)
                for kept, leaf in zip(memory, leaves, strict=True):
                    kept.copy_(leaf)
            calls += 1
            seen = tuple(tensor.data_ptr() for tensor in fixed(inputs))
            if calls > 1 and seen not in addresses:
                addresses.add(seen)
                self.recordings += 1
                counters["inductor"]["cudagraph_recorded_non_static_inputs"] += 1
            return tree_unflatten(memory, shape)

        return run


def fixed(inputs) -> list[torch.Tensor]:
    """The tensors among a graph's inputs whose addresses are promised to stay."""
    inputs = [x._layers if isinstance(x, StaticKVCache) else x for x in inputs]
    tensors = (x for x in tree_flatten(inputs)[0] if isinstance(x, torch.Tensor))
    return [x for x in tensors if getattr(x, "_dynamo_static_input_type", None) == "unguarded"]


@pytest.fixture
def replays(monkeypatch):
    found = Replays()
    monkeypatch.setattr(torch, "compile", found.compile)
    monkeypatch.setattr(static_caches, "COLUMNS", 64)
    return found


@pytest.fixture
def pair():
    """A stack, and the same as if it could have CUDA graphs."""
    stack = random_stack()
    return stack, module._with_graphs(stack, "all", cuda_graphs=True)


@pytest.mark.parametrize("parts", ["all", "head"])
def test_they_are_refused_on_a_cpu(parts):
    with pytest.raises(ValueError, match="cuda_graphs must be False for a stack on cpu, got True"):
        compiled_stack(random_stack(), parts, cuda_graphs=True)


@pytest.mark.parametrize("cuda", [True, False])
def test_only_who_asks_for_them_has_them(monkeypatch, cuda):
    replays = Replays()
    monkeypatch.setattr(torch, "compile", replays.compile)
    Graphs(cuda).run("key", lambda x: x + 1, torch.ones(2))
    wanted = {"triton.cudagraphs": True, "graph_partition": False}
    assert [options == wanted for options in replays.options] == [cuda]


def test_prompts_one_after_the_other_share_what_was_recorded(replays, pair):
    stack, fast = pair
    for seed in range(3):
        for method in ("dartree", "ar", "ddtree"):
            out = dartree.generate(
                fast, prompt(6, seed), method=method, settings=SETTINGS, max_new_tokens=12, stop=[]
            )
            assert out.token_ids == greedy(stack.target.model, prompt(6, seed), 12)
    parts = (fast.target, fast.pairing("ar").target, fast.drafter, fast.head)
    assert [len(part.graphs.recorded) for part in parts] == [1, 1, 1, 1]
    assert replays.recordings == len(replays.options) == 4
    said = report(fast)
    assert said.count("(1 as CUDA graphs)") == 4 and "TORCH_LOGS" not in said


def test_two_generations_at_once_do_not_share_buffers(replays, pair):
    stack, fast = pair
    both = [
        Decoding(fast, prompt(6, seed), settings=SETTINGS, max_new_tokens=12, stop=[])
        for seed in (1, 2)
    ]
    rounds = [iter(one) for one in both]
    while any([next(one, None) for one in rounds]):
        pass
    for seed, one in zip((1, 2), both, strict=True):
        assert one.result.token_ids == greedy(stack.target.model, prompt(6, seed), 12)
    assert replays.recordings == 2 + 2 + 1  # the head has no buffers


def test_a_cache_that_grows_keeps_its_rows(replays, pair):
    stack, fast = pair
    ids = prompt(6)
    out = dartree.generate(fast, ids, settings=SETTINGS, max_new_tokens=90, stop=[])
    assert out.token_ids == greedy(stack.target.model, ids, 90)
    assert len(fast.drafter.graphs.recorded) == 2


def test_a_cache_that_grows_gives_back_what_is_too_small(replays, pair):
    _, fast = pair
    cache, context = fast.target.new_cache(3), fast.drafter.new_cache()
    context.reserve(3, torch.device("cpu"))
    small = [cache._layers[0][0], context._keys[0]]
    cache.reserve(cache.capacity + 1)
    context.reserve(65, torch.device("cpu"))
    again, beside = fast.target.new_cache(3), fast.drafter.new_cache()
    beside.reserve(3, torch.device("cpu"))
    assert again._layers[0][0] is small[0] and beside._keys[0] is small[1]


def test_nothing_that_is_kept_is_overwritten(replays, pair):
    stack, fast = pair
    blocks = [(one, dartree.draft(one, prompt(6, 1))) for one in (stack, fast)]
    trees = [dartree.expand(one, block, SETTINGS) for one, block in blocks]
    drafts = [tree.path_tokens() for tree in trees]
    tree = dartree.ddtree(blocks[0][1], 16)
    logits = [dartree.verify(one, prompt(6, 1), tree) for one in (stack, fast)]
    dartree.generate(fast, prompt(9, 2), settings=SETTINGS, max_new_tokens=12, stop=[])
    assert drafts[0] == drafts[1] == trees[1].path_tokens()
    torch.testing.assert_close(blocks[1][1].hidden, blocks[0][1].hidden)
    torch.testing.assert_close(logits[1], logits[0])


def test_what_inductor_leaves_out_is_said(replays, pair, monkeypatch):
    _, fast = pair
    real = replays.compile

    def skips(function, **options):
        def run(*inputs):
            counters["inductor"]["cudagraph_skips"] += 1
            return function(*inputs)

        return run if function.__name__ == "_static_rows" else real(function, **options)

    monkeypatch.setattr(torch, "compile", skips)
    dartree.generate(fast, prompt(6), settings=SETTINGS, max_new_tokens=9, stop=[])
    said = re.sub(r"in \d+ s", "in 0 s", report(fast))
    assert said.startswith("torch.compile, graphs: target 1 in 0 s (0 as CUDA graphs), drafter 1")
    assert "drafter 1 in 0 s (1 as CUDA graphs)" in said
    assert said.endswith("; TORCH_LOGS=cudagraphs says why not all are CUDA graphs")


def test_what_is_dropped_later_is_no_longer_counted():
    made = Graphs(cuda=True)
    steps = iter(["cudagraph_recorded_non_static_inputs", "cudagraph_skips", None])

    def function(x):
        counters["inductor"] = counters["inductor"].copy()  # as inductor itself does at times
        if name := next(steps):
            counters["inductor"][name] += 1
        return x

    made._graphs["key"] = function
    assert [made.run("key", function, torch.ones(1)) and len(made.recorded) for _ in range(3)] == [
        1, 0, 0,
    ]  # fmt: skip


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_inductor_itself_leaves_out_what_runs_on_a_cpu():
    made = Graphs(cuda=True)
    assert torch.equal(made.run("key", lambda x: x + 1, torch.ones(3)), torch.full((3,), 2.0))
    assert made.seconds and not made.recorded


def test_all_large_inputs_of_graphs_have_fixed_addresses(monkeypatch, pair):
    """Others are copied before every replay, and one that is written to rules a CUDA graph out."""
    _, fast = pair
    copied, real = [], torch.compile

    def backend(graph, inputs):
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                fixed = "_dynamo_static_input_type" in node.meta["tensor_dict"]
                copied.extend([] if fixed else [node.meta["example_value"].numel()])
        return graph.forward

    monkeypatch.setattr(
        torch, "compile", lambda f, options, **kinds: real(f, backend=backend, **kinds)
    )
    dartree.generate(fast, prompt(6), settings=SETTINGS, max_new_tokens=5, stop=[])
    assert copied and max(copied) <= fast.drafter.config.drafts * fast.target.vocab_size


def test_buffers_of_dead_caches_come_back_empty():
    class Cache:
        pass

    kind, buffers = ((2, 3), torch.float32, torch.device("cpu")), Buffers(reuse=True)
    one, two = Cache(), Cache()
    lent = [buffers.lend(cache, 2, *kind) for cache in (one, two)]
    addresses = [[tensor.data_ptr() for tensor in each.tensors] for each in lent]
    lent[1].tensors[0].fill_(torch.nan)
    assert addresses[0] != addresses[1]
    del lent, two
    gc.collect()
    third = buffers.lend(three := Cache(), 2, *kind)
    assert [tensor.data_ptr() for tensor in third.tensors] == addresses[1]
    assert not any(tensor.any() for tensor in third.tensors)
    third.give_back()  # and not once more when the cache dies
    del three
    assert len(buffers._free) == 1


def test_only_a_few_sets_of_buffers_wait():
    class Cache:
        pass

    buffers, caches = Buffers(reuse=True), [Cache() for _ in range(2 * KEPT)]
    for rows, cache in enumerate(caches):
        buffers.lend(cache, 1, (rows + 1,), torch.float32, torch.device("cpu"))
    del cache
    while caches:
        caches.pop(0)
    buffers.lend(buffers, 1, (99,), torch.float32, torch.device("cpu"))
    assert [free.kind[1] for free in buffers._free] == [(n,) for n in range(KEPT + 1, 2 * KEPT + 1)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("parts", ["all", "head"])
def test_on_a_gpu_the_text_is_that_of_plain_greedy(parts):
    folder = Path(__file__).parent / "data" / "domino-shift"
    stack = dartree.load_stack(
        target=folder / "target", drafter=folder / "drafter", device="cuda", dtype="float32"
    )
    fast = compiled_stack(stack, parts, cuda_graphs=True)
    options = dict(settings=SETTINGS, max_new_tokens=40, stop=[])
    for seed in range(3):
        plain = dartree.generate(stack, prompt(6, seed), method="ar", **options)
        for method in ("dartree", "ar"):
            out = dartree.generate(fast, prompt(6, seed), method=method, **options)
            assert out.token_ids == plain.token_ids
    assert "head 1 in " in report(fast) and "TORCH_LOGS" not in report(fast)
