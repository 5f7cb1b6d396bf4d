"""Speculative decoding as interchangeable parts: target x drafter x verifier x loop x commit x replay x block policy.

`spec.reference` is the whole idea in one page, `spec.protocols` says what each part is. In research code::

    from models import load, load_dspark
    from spec import DSparkDrafter, stream_generate

    model, tokenizer = load("models/pretrained/tiny")
    for segment in stream_generate(model, tokenizer, "Once", drafter=DSparkDrafter(load_dspark(target=model))):
        print(segment.text, end="", flush=True)

and below the text, round by round: ``for finished in FoldedLoop(model, drafter).rounds(Request(prompt=ids))``.
"""

from spec.blocks import (
    AutoPolicy,
    BreakEvenPolicy,
    CappedPolicy,
    ConfidencePolicy,
    Costs,
    Ds4SchedulerPolicy,
    FixedPolicy,
    FullBlockPolicy,
    SingleJumpPolicy,
    StagedPolicy,
    ThroughputPolicy,
    WindowPolicy,
)
from spec.costs import CostTable
from spec.drafters import (
    DSparkDrafter,
    LanguageModelDrafter,
    MTPDrafter,
    NgramDrafter,
    NoneDrafter,
    OracleDrafter,
)
from spec.errors import PartError, UserError
from spec.loop import (
    BatchReplay,
    FoldedLoop,
    FullOnlyCommit,
    PrefixCommit,
    RollbackCommit,
    SeparateLoop,
    SpeculativeLoop,
    Stopwatch,
    TokenReplay,
)
from spec.measure.generation import Generation, collect
from spec.protocols import BlockPolicy, CommitPath, Drafter, Loop, Replay, Target, Verifier
from spec.randomness import RandomStream
from spec.rounds import BlockPlan, Context, Proposal, Request, Round, StopRule, TargetPass, Verdict
from spec.sampling import DraftSampler, Sampling
from spec.simulation.recording import Recording
from spec.streaming import Segment, generate, stream_generate
from spec.targets import RecordedTarget, TargetSession
from spec.text import StopStrings, TextStream, stream_text
from spec.verifiers import BlockVerifier, GreedyVerifier, RejectionVerifier, SampleMatchVerifier
