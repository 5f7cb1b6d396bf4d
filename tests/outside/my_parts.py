"""Parts as someone outside writes them: one class each, a YAML each, a contract each (`test_my_parts`)."""

from dataclasses import dataclass

import mlx.core as mx

from spec import BlockPlan, Proposal, Sampling, Verdict
from spec.verifiers import processed_rows


class EchoDrafter:
    """Always proposes the anchor again."""

    tapped_layers, max_gamma = (), None

    def reset(self, prompt_length): ...

    def observe(self, tokens, features): ...

    def propose(self, context, gamma, admits=None):
        return Proposal(tokens=(context.anchor,) * gamma)


@dataclass(frozen=True)
class LenientVerifier:
    """Accepts a draft whose logit lies within a margin of the best one: more tokens a round, another text."""

    sampling: Sampling
    margin: float = 1.0
    guarantee = "none"

    def accept(self, proposal, logits, context):
        rows = processed_rows(self.sampling, proposal, logits, context)
        best, count = mx.max(rows, axis=-1), len(proposal.tokens)
        near = [(best[at] - rows[at, token]).item() <= self.margin for at, token in enumerate(proposal.tokens)]
        accepted = near.index(False) if False in near else count
        return Verdict(accepted=accepted, next_token=int(mx.argmax(rows[accepted])) if accepted < len(rows) else None)


@dataclass(frozen=True)
class AlternatingPolicy:
    """Drafts every second round; its state is whether the coming one is such."""

    max_gamma: int = 5

    def init(self):
        return True

    def plan(self, state, tokens_left):
        return BlockPlan(gamma=self.max_gamma) if state else BlockPlan(gamma=0, reason="every second round is plain")

    def admits(self, state, confidences):
        return True

    def after(self, state, finished):
        return not state
