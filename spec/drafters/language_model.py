"""The classic drafter: a smaller language model with the target's tokenizer.

Leviathan et al. 2023 (arXiv 2211.17192). Its cache is an ordinary one in mlx-lm's protocol. Between rounds it holds
every committed token; drafting runs ahead of that, and what is accepted of a draft keeps its rows.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from spec.drafters.networks import check_anchor
from spec.errors import UserError
from spec.rounds import Admits, Context, Proposal


class LanguageModelDrafter:
    """Drafts by argmax, one pass of the model a token.

    Args:
        model: callable as ``model(tokens (B, T), cache=...) -> logits (B, T, V)``, as mlx-lm's models and this
            library's target are.
        max_gamma: longest block. This library's caches take back 32 tokens, the block and its anchor, unless asked for
            more; a plain KV cache takes back any number.

    Raises:
        UserError: the model's cache cannot take tokens back.
    """

    tapped_layers: tuple[int, ...] = ()

    def __init__(self, model: Any, *, max_gamma: int | None = 31) -> None:
        self.model = model
        self.max_gamma = max_gamma
        self.reset(0)
        _check_trimmable(self._cache)

    @classmethod
    def load(
        cls,
        target: Any,
        load_model: Callable[..., tuple[Any, Any]],
        load_tokenizer: Callable[[Path, int], Any],
        path: str,
        max_gamma: int | None = 31,
    ) -> "LanguageModelDrafter":
        """Loads a model and checks that its tokenizer is the target's.

        Args:
            target: the model to draft for, from a folder.
            load_model: ``models.load``, or ``mlx_lm.load`` for any other architecture: (model, tokenizer) of a path.
            load_tokenizer: tokenizer of a folder and a vocabulary size, for the target's.
            path: the drafter's checkpoint.
            max_gamma: longest block.

        Raises:
            UserError: the tokenizers differ, the drafter's vocabulary is too small, the target came from no folder, or
                the model's cache cannot take tokens back.
        """
        if target.path is None:
            raise UserError(
                "the target was loaded from no folder, so there is no tokenizer to compare: load it from one"
            )
        model, tokenizer = load_model(path)
        vocabulary = load_tokenizer(Path(target.path), target.args.vocab_size).get_vocab()
        _check_vocabulary(vocabulary, tokenizer.get_vocab(), model, path)
        return cls(model, max_gamma=max_gamma)

    def reset(self, prompt_length: int) -> None:
        """Forgets the sequence: a new cache."""
        # Imported here: mlx-lm brings transformers along, which takes seconds.
        from mlx_lm.models.cache import make_prompt_cache

        self._cache = make_prompt_cache(self.model)
        self._length = 0  # committed tokens, all of them in the cache
        self._ahead: tuple[int, ...] = ()  # tokens in the cache after them: an anchor and its drafts but the last

    def observe(self, tokens: Sequence[int], features: mx.array | None) -> None:
        """Keeps the rows of what was accepted of the draft and makes those of the other committed tokens.

        After a fully accepted block that is the last draft, which was proposed and never fed.

        Args:
            tokens: S ids, at the positions that follow those observed before.
            features: not used.
        """
        held = 0
        while held < min(len(self._ahead), len(tokens)) and self._ahead[held] == tokens[held]:
            held += 1
        self._rewind(self._length + held)
        self._ahead, self._length = (), self._length + held
        if held < len(tokens):
            # The logits stay unevaluated: only what the next token needs is computed, and within the drafter's time.
            self.model(mx.array([tokens[held:]], dtype=mx.int32), cache=self._cache)
            mx.eval([entry.state for entry in self._cache])
            self._length += len(tokens) - held

    def propose(self, context: Context, gamma: int, admits: Admits | None = None) -> Proposal:
        """The model's own continuation. Forces evaluation: the tokens are inputs of the verify pass.

        Raises:
            ValueError: the anchor does not follow the tokens observed so far.
        """
        check_anchor(context, self._length)
        self._rewind(self._length)
        self._ahead = ()
        token, drafted = mx.array([[context.anchor]], dtype=mx.int32), []
        for _ in range(gamma):
            token = mx.argmax(self.model(token, cache=self._cache), axis=-1)
            drafted.append(token)
        tokens = tuple(mx.concatenate(drafted, axis=1)[0].tolist())
        self._ahead = (context.anchor, *tokens[:-1])
        return Proposal(tokens=tokens)

    @property
    def cache(self) -> list[Any]:
        """The model's cache."""
        return self._cache

    def _rewind(self, offset: int) -> None:
        """Returns every layer to ``offset``."""
        for entry in _entries(self._cache):
            if entry.offset > offset:
                entry.trim(entry.offset - offset)


def _entries(cache: Sequence[Any]) -> Iterator[Any]:
    """The caches of all layers, nested ones flattened."""
    from mlx_lm.models.cache import CacheList

    for entry in cache:
        if isinstance(entry, CacheList):
            yield from _entries(entry.caches)
        else:
            yield entry


def _check_trimmable(cache: Sequence[Any]) -> None:
    """Refuses caches that cannot take back rejected drafts.

    Raises:
        UserError: there is one. A rotating cache counts: it can take tokens back only until it has wrapped.
    """
    from mlx_lm.models.cache import RotatingKVCache

    for entry in _entries(cache):
        if isinstance(entry, RotatingKVCache) or not entry.is_trimmable():
            raise UserError(
                f"the drafter's cache ({type(entry).__name__}) cannot take back rejected tokens: take a model of full "
                "attention (mlx-lm's KVCache) or a DeepSeek-V4 of this library as drafter=language_model"
            )


def _check_vocabulary(wanted: dict[str, int], found: dict[str, int], model: Any, path: str) -> None:
    """Refuses a drafter whose vocabulary differs from the target's.

    Args:
        wanted: ids of the target's tokens.
        found: ids of the drafter's.
        model: the drafter; only the shape of its logits is asked for, nothing is computed.
        path: names the drafter.

    Raises:
        UserError: a token has another id or is missing on one side, or the model has fewer ids than the tokenizer.
    """
    differing = sorted(token for token in wanted.keys() | found.keys() if wanted.get(token) != found.get(token))
    remedy = "take a model that was trained with the target's tokenizer"
    if differing:
        token = differing[0]
        raise UserError(
            f"drafter.path: {path} has another tokenizer than the target: {len(differing)} tokens differ, {token!r} is "
            f"id {found.get(token)} there and {wanted.get(token)} for the target; {remedy}"
        )
    width = model(mx.zeros((1, 1), dtype=mx.int32)).shape[-1]
    if width <= max(wanted.values()):
        raise UserError(
            f"drafter.path: {path} predicts {width} ids, the tokenizer has {max(wanted.values()) + 1}: {remedy}"
        )
