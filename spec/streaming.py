"""The front doors, in mlx-lm's shape: a prompt in, text out, with statistics of the speculation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from spec.loop import FoldedLoop
from spec.prompts import encode_messages, encode_text
from spec.protocols import BlockPolicy, Drafter, Target, Verifier
from spec.randomness import RandomStream
from spec.rounds import FinishReason, Request
from spec.sampling import Sampling
from spec.text import StopStrings, TextStream
from spec.verifiers import GreedyVerifier, SampleMatchVerifier

PromptLike = str | Sequence[int] | Sequence[Mapping[str, str]]
"""A text, token ids, or the messages of a chat (``role`` and ``content``)."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """What one round adds to the text, and the statistics so far; the last one has the finish reason.

    Attributes:
        text: the text that became certain; what may yet become a stop string is withheld.
        tokens: the round's tokens.
        finish_reason: why the generation ended; None before it has.
        prompt_tokens: tokens of the prompt.
        prompt_tps: prompt tokens a second.
        generation_tokens: tokens emitted so far.
        generation_tps: tokens a second after the first one; None before there are any.
        tau: mean tokens a round, next token included; None before the first round.
        acceptance_rate: accepted over proposed tokens; None if nothing was proposed.
        peak_memory: of MLX, in GB.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float | None
    tau: float | None
    acceptance_rate: float | None
    peak_memory: float


def stream_generate(
    model: nn.Module | Target,
    tokenizer: Any,
    prompt: PromptLike,
    drafter: Drafter | None = None,
    *,
    max_tokens: int = 256,
    stop: Sequence[str] = (),
    seed: int = 0,
    verifier: Verifier | None = None,
    block: BlockPolicy | None = None,
    **sampling: Any,
) -> Iterator[Segment]:
    """Generates text speculatively, a segment a round.

    Args:
        model: the target, as ``models.load`` returns it, or a session of one.
        tokenizer: mlx-lm's wrapper.
        prompt: a text, token ids or chat messages.
        drafter: proposes; None decodes plainly.
        max_tokens: most tokens to emit.
        stop: strings that end the text and are not shown.
        seed: of the random draws.
        verifier: by default greedy at temperature 0, else sample-and-match: the very tokens of plain sampling.
        block: chooses how many tokens to draft; by default as many as the drafter can.
        **sampling: fields of `Sampling` by name, for example ``temperature=0.8, top_p=0.95``. A verifier that is given
            has its own.

    Yields:
        A `Segment` a round, the prefill's first.

    Raises:
        UserError: the prompt is empty or too long, or a value lies outside its range.
    """
    if verifier is None:
        chosen = Sampling(**sampling)
        verifier = (GreedyVerifier if chosen.is_greedy else SampleMatchVerifier)(sampling=chosen)
    elif sampling:
        raise TypeError(
            f"a verifier has its own sampling, got {', '.join(sampling)} beside it: give it to the verifier"
        )
    loop = FoldedLoop(model, drafter, verifier=verifier, block=block)
    tokens = _encode(prompt, tokenizer)
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    request = Request(
        prompt=tokens,
        max_tokens=max_tokens,
        eos=frozenset(tokenizer.eos_token_ids),
        stop=StopStrings(tokenizer, stop) if stop else None,
        random=RandomStream(seed=seed),
    )
    stream = TextStream(tokenizer, stop)
    num_tokens = num_rounds = decoded = proposed = accepted = 0
    decode_s, prompt_s = 0.0, 0.0
    for item in loop.rounds(request):
        num_tokens += len(item.tokens)
        if item.outcome == "prefill":
            prompt_s = item.duration_s
        else:
            num_rounds, decoded, decode_s = num_rounds + 1, decoded + len(item.tokens), decode_s + item.duration_s
            proposed, accepted = proposed + len(item.proposed), accepted + item.accepted
        text = stream.push(item.tokens)
        if item.finish_reason is not None:
            text += stream.finish()
        yield Segment(
            text=text,
            tokens=item.tokens,
            finish_reason=item.finish_reason,
            prompt_tokens=len(tokens),
            prompt_tps=len(tokens) / prompt_s if prompt_s else 0.0,
            generation_tokens=num_tokens,
            generation_tps=decoded / decode_s if decode_s else None,
            tau=decoded / num_rounds if num_rounds else None,
            acceptance_rate=accepted / proposed if proposed else None,
            peak_memory=mx.get_peak_memory() / 1e9,
        )


def generate(
    model: nn.Module | Target,
    tokenizer: Any,
    prompt: PromptLike,
    drafter: Drafter | None = None,
    *,
    verbose: bool = False,
    **options: Any,
) -> str:
    """The whole text of `stream_generate`, whose arguments and errors these are.

    Args:
        model, tokenizer, prompt, drafter, **options: as there.
        verbose: prints the text as it comes, and a line of statistics.
    """
    text = ""
    for segment in stream_generate(model, tokenizer, prompt, drafter, **options):
        text += segment.text
        if verbose:
            print(segment.text, end="", flush=True)
    if verbose:
        print(f"\n{describe(segment)}")
    return text


def describe(segment: Segment) -> str:
    """The statistics of a segment in one line, as of the last one of a generation."""
    parts = [f"{segment.generation_tokens} tokens"]
    if segment.generation_tps is not None:
        parts.append(f"{segment.generation_tps:.1f} tokens/s")
    if segment.acceptance_rate is not None:
        parts.append(f"tau {segment.tau:.2f}, {100 * segment.acceptance_rate:.0f}% of the drafts accepted")
    return ", ".join([*parts, f"ended by {segment.finish_reason}"])


def _encode(prompt: PromptLike, tokenizer: Any) -> list[int]:
    if isinstance(prompt, str):
        return encode_text(prompt, tokenizer)
    if len(prompt) and isinstance(prompt[0], Mapping):
        return encode_messages(prompt, tokenizer)
    return [int(token) for token in prompt]
