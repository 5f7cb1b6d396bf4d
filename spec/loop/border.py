"""Checks at the loop's border: the parts it is given, and what they return."""

from collections.abc import Iterable
from typing import Any

from spec.errors import PartError, UserError
from spec.rounds import BlockPlan, Proposal, Request, Verdict


def check_part(role: str, part: Any, protocol: type) -> None:
    """Refuses a part that lacks something its protocol has.

    Args:
        role: of the part, for the message.
        part: the object.
        protocol: one of `spec.protocols`.

    Raises:
        PartError: something is missing, or a class was given in place of an instance.
    """
    if isinstance(part, type):
        raise PartError(f"{role}: wanted an instance, got the class {part.__name__}: call it")
    wanted = [name for name in (*protocol.__annotations__, *vars(protocol)) if not name.startswith("_")]
    missing = [name for name in wanted if not hasattr(part, name)]
    if missing:
        raise PartError(
            f"{role}: {type(part).__name__} lacks {', '.join(missing)}: wanted what spec.protocols.{protocol.__name__} "
            "has"
        )


def check_request(request: Request, vocab_size: int, context_length: int) -> None:
    """Refuses a request that the target cannot serve.

    Raises:
        UserError: the prompt is empty, fills the context or holds foreign ids, or max_tokens is not positive.
    """
    if len(request.prompt) == 0:
        raise UserError("the prompt is empty: wanted at least one token")
    if request.max_tokens < 1:
        raise UserError(f"max_tokens must be 1 or more, got {request.max_tokens}")
    if len(request.prompt) >= context_length:
        raise UserError(
            f"the prompt has {len(request.prompt)} tokens, the context holds {context_length} with at least one token "
            "of output: shorten the prompt"
        )
    if (wrong := not_ids(request.prompt)) or (wrong := foreign(request.prompt, vocab_size)):
        raise UserError(
            f"the prompt holds {wrong[0]!r}: wanted ids as Python integers in 0..{vocab_size - 1}, the target's "
            "vocabulary: encode it with the target's tokenizer"
        )


def check_plan(plan: Any, policy: Any) -> BlockPlan:
    """A block policy's plan, if it is one.

    Raises:
        PartError: it is none, or its gamma lies outside 0..max_gamma.
    """
    name = type(policy).__name__
    if not isinstance(plan, BlockPlan):
        raise PartError(f"block: {name}.plan must return a BlockPlan, got {_shown(plan)}")
    if type(plan.gamma) is not int or not 0 <= plan.gamma <= policy.max_gamma:
        raise PartError(f"block: {name}.plan wanted gamma in 0..{policy.max_gamma}, got {plan.gamma!r}")
    return plan


def check_proposal(proposal: Any, gamma: int, drafter: Any) -> Proposal:
    """A drafter's proposal, if it is one. Ids outside the vocabulary are the loop's own to count.

    Raises:
        PartError: it is none, is longer than ``gamma``, or its tokens are not Python integers.
    """
    name = type(drafter).__name__
    if not isinstance(proposal, Proposal):
        raise PartError(f"drafter: {name}.propose must return a Proposal, got {_shown(proposal)}")
    if not isinstance(proposal.tokens, tuple) or (wrong := not_ids(proposal.tokens)):
        shown = _shown(proposal.tokens) if not isinstance(proposal.tokens, tuple) else _shown(wrong[0])
        raise PartError(f"drafter: {name} must propose a tuple of Python integers, got {shown}: use .tolist()")
    if len(proposal.tokens) > gamma:
        raise PartError(f"drafter: {name} proposed {len(proposal.tokens)} tokens, wanted at most {gamma}")
    return proposal


def check_verdict(verdict: Any, proposal: Proposal, rows: int, vocab_size: int, verifier: Any) -> Verdict:
    """A verifier's verdict, if it is one.

    Raises:
        PartError: it is none, accepts more than was proposed, or its next token is no id of the vocabulary.
    """
    name, count = type(verifier).__name__, len(proposal.tokens)
    if not isinstance(verdict, Verdict):
        raise PartError(f"verifier: {name}.accept must return a Verdict, got {_shown(verdict)}")
    accepted, token = verdict.accepted, verdict.next_token
    if type(accepted) is not int or not 0 <= accepted <= count:
        wanted = f"an integer in 0..{count}"
        raise PartError(f"verifier: {name} accepted {_shown(accepted)} of {count} drafts, wanted {wanted}")
    has_none = token is None and accepted == rows  # no row is left for a bonus
    if not has_none and (type(token) is not int or not 0 <= token < vocab_size):
        wanted = f"a Python integer in 0..{vocab_size - 1}"
        raise PartError(f"verifier: {name} chose the next token {_shown(token)}, wanted {wanted}")
    return verdict


def not_ids(tokens: Iterable[Any]) -> list[Any]:
    """Those that are no Python integers: NumPy's and MLX's compare and hash in their own ways."""
    return [token for token in tokens if type(token) is not int]


def foreign(tokens: Iterable[int], vocab_size: int) -> list[int]:
    """Those that lie outside a vocabulary."""
    return [token for token in tokens if not 0 <= token < vocab_size]


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
