"""Speculative decoding as interchangeable parts: target x drafter x verifier x loop x commit x replay x block policy.

`spec.protocols` says what each part is. The parts by import::

    from models import load
    from spec import FixedBlock, FoldedLoop, GreedyVerifier, NgramDrafter, PrefixCommit, TargetSession, TokenReplay
    from spec import stream_text

    model, tokenizer = load("models/pretrained/tiny")
    loop = FoldedLoop(
        target=TargetSession(model, max_rollback=6),
        drafter=NgramDrafter(),
        verifier=GreedyVerifier(),
        commit=PrefixCommit(),
        replay=TokenReplay(),
        block=FixedBlock(gamma=5),
    )
    rounds = loop.rounds(tokenizer.encode("Once"), max_tokens=64, eos=frozenset(tokenizer.eos_token_ids))
    for piece in stream_text(rounds, tokenizer):
        print(piece, end="", flush=True)
"""

from spec.blocks import FixedBlock
from spec.commit import PrefixCommit
from spec.drafters import DSparkDrafter, NgramDrafter, NoneDrafter, OracleDrafter
from spec.errors import UserError
from spec.generation import Generation, collect
from spec.loop import FoldedLoop
from spec.protocols import (
    BlockPlan,
    BlockPolicy,
    CommitPath,
    Drafter,
    History,
    Loop,
    Proposal,
    Replay,
    Round,
    StopRule,
    Target,
    TargetPass,
    Verdict,
    Verifier,
)
from spec.replay import BatchReplay, TokenReplay
from spec.sampling import Draws, Sampling
from spec.session import TargetSession
from spec.text import StopStrings, TextStream, stream_text
from spec.verifiers import GreedyVerifier, SampleMatchVerifier

__all__ = [
    "BatchReplay",
    "BlockPlan",
    "BlockPolicy",
    "CommitPath",
    "DSparkDrafter",
    "Drafter",
    "Draws",
    "FixedBlock",
    "FoldedLoop",
    "Generation",
    "GreedyVerifier",
    "History",
    "Loop",
    "NgramDrafter",
    "NoneDrafter",
    "OracleDrafter",
    "PrefixCommit",
    "Proposal",
    "Replay",
    "Round",
    "SampleMatchVerifier",
    "Sampling",
    "StopRule",
    "StopStrings",
    "Target",
    "TargetPass",
    "TargetSession",
    "TextStream",
    "TokenReplay",
    "UserError",
    "Verdict",
    "Verifier",
    "collect",
    "stream_text",
]
