"""SGLang: among a prompt's log-probabilities the last token of the vocabulary is called token 0.

What is told of a prompt is cleared of numbers that are no tokens, and the bound is one too low.
Whoever reads the prompt back from there scores another sequence than the engine did. Needs SGLang
where it can be imported; no model and no GPU. Exits with 1 while the fault is there, and with 0
once it is gone.
"""

import sys
from types import SimpleNamespace

from sglang.srt.managers.scheduler_components.logprob_result_processor import (
    SchedulerLogprobResultProcessor,
)

VOCABULARY = 512


def main() -> int:
    """Let SGLang tell of a prompt that has the last token."""
    prompt = [5, VOCABULARY - 2, VOCABULARY - 1, 7]
    request = SimpleNamespace(
        logprob=SimpleNamespace(),
        origin_input_ids=prompt,
        logprob_start_len=0,
        is_prefill_only=False,
    )
    config = SimpleNamespace(vocab_size=VOCABULARY)
    processor = SchedulerLogprobResultProcessor(model_config=config)

    processor._process_input_token_logprobs(request, [-1.0] * len(prompt))
    told = request.logprob.input_token_logprobs_idx
    print(f"the prompt as SGLang tells it: {told}")
    print(f"expected: {prompt}")
    return int(told != prompt)


if __name__ == "__main__":
    sys.exit(main())
