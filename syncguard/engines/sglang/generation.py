"""Sampling and scoring with SGLang's model runner: its batches, its forward, our random numbers."""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.engines.sglang.compat import extend_to, make_forward_batch

__all__ = ["generate"]


def generate(
    runner: Any, prompts: Sequence[Sequence[int]], tokens: int, seed: int
) -> list[tuple[list[int], NDArray[np.float64]]]:
    """Sample continuations and score prompts and continuations together.

    Prompts are scored by the prefill and sampled tokens by the decode steps that chose them.

    Args:
        runner: The model runner.
        prompts: Token ids, at least one each.
        tokens: How many to sample for each.
        seed: Of the samples; the same for any batch.

    Returns:
        Per prompt the whole sequence and the log-probability of each token after the first.
    """
    sequences = [list(map(int, prompt)) for prompt in prompts]
    try:
        with torch.no_grad():
            batch = _batch(runner, sequences)
            batch.prepare_for_extend()
            output = _forward(runner, batch)
            scores = _prompt_scores(output, sequences)
            generator = torch.Generator().manual_seed(seed)
            for step in range(tokens):
                chosen = _sample(output.next_token_logits, generator)
                for row, (token, score) in enumerate(chosen):
                    sequences[row].append(token)
                    scores[row].append(score)
                if step + 1 < tokens:
                    batch.input_ids = torch.tensor([token for token, _ in chosen])
                    for request, (token, _) in zip(batch.reqs, chosen, strict=True):
                        request.output_ids.append(token)
                    batch.prepare_for_decode()
                    output = _forward(runner, batch)
    finally:
        runner.req_to_token_pool.clear()
        runner.token_to_kv_pool_allocator.clear()
    return [
        (sequence, np.array(score, np.float64))
        for sequence, score in zip(sequences, scores, strict=True)
    ]


def _batch(runner: Any, sequences: Sequence[Sequence[int]]) -> Any:
    from sglang.benchmark.one_batch import TreeCacheNamespace
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    requests = []
    for number, ids in enumerate(sequences):
        request = Req(
            rid=str(number),
            origin_input_text="",
            origin_input_ids=array("q", ids),
            sampling_params=SamplingParams(temperature=1.0, max_new_tokens=1),
            return_logprob=True,
        )
        request.full_untruncated_fill_ids = request.origin_input_ids
        request.logprob_start_len = 0
        extend_to(request, len(ids))
        requests.append(request)
    cache = TreeCacheNamespace(
        page_size=1,
        device=runner.device,
        token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
    )
    return ScheduleBatch.init_new(
        reqs=requests,
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
        tree_cache=cache,
        model_config=runner.model_config,
        enable_overlap=False,
        spec_algorithm=SpeculativeAlgorithm.NONE,
    )


def _forward(runner: Any, batch: Any) -> Any:
    waiting = getattr(batch, "prefill_input_ids_cpu", None)
    if batch.input_ids is None and waiting is not None:
        batch.input_ids, batch.prefill_input_ids_cpu = waiting, None
    return runner.forward(make_forward_batch(batch, runner)).logits_output


def _prompt_scores(output: Any, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """The prefill scores each token of a prompt as the next one; the last has none."""
    values = output.input_token_logprobs.tolist()
    scores, first = [], 0
    for sequence in sequences:
        scores.append(values[first : first + len(sequence) - 1])
        first += len(sequence)
    return scores


def _sample(logits: torch.Tensor, generator: torch.Generator) -> list[tuple[int, float]]:
    """Sample by adding Gumbel noise, which asks for no finite probabilities, unlike a draw."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    uniform = torch.rand(logprobs.shape, generator=generator).clamp_min(1e-12)
    noisy = (logprobs - (-uniform.log()).log()).nan_to_num(nan=-torch.inf)
    tokens = noisy.argmax(dim=-1)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return list(zip(tokens.tolist(), chosen.tolist(), strict=True))
