"""Speculative decoding as interchangeable parts: target x drafter x verifier x loop x commit x replay x block policy.

`spec.protocols` says what each part is. The parts by import::

    from models import load
    from spec import FixedPolicy, FoldedLoop, GreedyVerifier, NgramDrafter, PrefixCommit, TargetSession, TokenReplay
    from spec import stream_text

    model, tokenizer = load("models/pretrained/tiny")
    loop = FoldedLoop(
        target=TargetSession(model, max_rollback=6),
        drafter=NgramDrafter(),
        verifier=GreedyVerifier(),
        commit=PrefixCommit(),
        replay=TokenReplay(),
        block=FixedPolicy(gamma=5),
    )
    rounds = loop.rounds(tokenizer.encode("Once"), max_tokens=64, eos=frozenset(tokenizer.eos_token_ids))
    for piece in stream_text(rounds, tokenizer):
        print(piece, end="", flush=True)
"""

from spec.blocks import (
    AutoPolicy,
    BreakEvenPolicy,
    CappedPolicy,
    ConfidencePolicy,
    Costs,
    Ds4SchedulerPolicy,
    FixedPolicy,
    SingleJumpPolicy,
    StagedPolicy,
    ThroughputPolicy,
    WindowPolicy,
)
from spec.clock import VirtualClock
from spec.commit import FullOnlyCommit, PrefixCommit, RollbackCommit
from spec.drafters import (
    DSparkDrafter,
    LanguageModelDrafter,
    MTPDrafter,
    NgramDrafter,
    NoneDrafter,
    OracleDrafter,
)
from spec.errors import UserError
from spec.folded import FoldedLoop
from spec.generation import Generation, collect
from spec.loop import SpeculativeLoop
from spec.measure.costs import CostTable
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
from spec.recording import Recording
from spec.replay import BatchReplay, TokenReplay
from spec.sampling import DraftSampler, RandomStream, Sampling
from spec.separate import SeparateLoop
from spec.session import TargetSession
from spec.text import StopStrings, TextStream, stream_text
from spec.verifiers import BlockVerifier, GreedyVerifier, RejectionVerifier, SampleMatchVerifier

__all__ = [
    "AutoPolicy",
    "BatchReplay",
    "BlockPlan",
    "BlockPolicy",
    "BlockVerifier",
    "BreakEvenPolicy",
    "CappedPolicy",
    "CommitPath",
    "ConfidencePolicy",
    "CostTable",
    "Costs",
    "DSparkDrafter",
    "DraftSampler",
    "Drafter",
    "Ds4SchedulerPolicy",
    "FixedPolicy",
    "FoldedLoop",
    "FullOnlyCommit",
    "Generation",
    "GreedyVerifier",
    "History",
    "LanguageModelDrafter",
    "Loop",
    "MTPDrafter",
    "NgramDrafter",
    "NoneDrafter",
    "OracleDrafter",
    "PrefixCommit",
    "Proposal",
    "RandomStream",
    "Recording",
    "RejectionVerifier",
    "Replay",
    "RollbackCommit",
    "Round",
    "SampleMatchVerifier",
    "Sampling",
    "SeparateLoop",
    "SingleJumpPolicy",
    "SpeculativeLoop",
    "StagedPolicy",
    "StopRule",
    "StopStrings",
    "Target",
    "TargetPass",
    "TargetSession",
    "TextStream",
    "ThroughputPolicy",
    "TokenReplay",
    "UserError",
    "Verdict",
    "Verifier",
    "VirtualClock",
    "WindowPolicy",
    "collect",
    "stream_text",
]
