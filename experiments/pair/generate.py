"""The target's own generations, in large batches: ``python -m experiments.pair.generate``.

A row begins with given tokens and continues with the target's own, greedy or drawn at the row's temperature. An end of
sentence does not end a row: a new document begins, as in training windows. Every batch is a file of its own in
``output`` (format: `experiments.pair.data.generations`), so a killed run loses only the batch it was making, and shards
can share the folder. A batch's rows and draws depend on the settings and its number, not on the shard that makes it.
"""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import hydra
import mlx.core as mx
import numpy as np
from omegaconf import DictConfig, ListConfig
from rich.progress import track

from experiments.pair.data.beginnings import Beginnings, BeginningSource, PromptBeginnings, WindowBeginnings
from experiments.pair.data.documents import file_sha256, stable_hash
from experiments.pair.data.generations import Generations, load_generations, write_generations
from experiments.pair.training.batches import load_tokens
from experiments.results import write_json
from experiments.settings import default_dtype, parse_shard
from models import ModelError, load
from models.deepseek_v4 import LayerCache, Model
from models.deepseek_v4.moe import evaluate_every_expert
from models.formats.checkpoint import read_headers
from models.loading import DRAFTER_PREFIX, find_checkpoint
from spec.errors import UserError
from spec.measure.environment import backend
from spec.measure.repetition import repeated_ngram_share
from spec.programs.frame import run

PREFILL_TOKENS = 1 << 15  # tokens of a prefill pass: as many as a training step has, without its gradient
COUNTED_ROWS = 500  # greedy rows a class whose repetition the summary counts


def prefill(model: Model, tokens: mx.array) -> list[LayerCache]:
    """A cache that holds tokens (B, T) int32.

    Rows go through in groups, each in one pass from position 0, as training windows do; that bounds the memory of the
    passes whatever B is. Forces evaluation, group by group.
    """
    batch, count = tokens.shape
    if count == 0:
        return model.make_cache(max_rollback=0)
    size = max(PREFILL_TOKENS // count, 1)
    groups = []
    for start in range(0, batch, size):
        cache = model.make_cache(max_rollback=0)
        model(tokens[start : start + size], cache=cache)  # its logits are never evaluated
        mx.eval([layer.state for layer in cache])
        groups.append(cache)
    whole = groups[0]
    if len(groups) > 1:
        for layer, *others in zip(*groups, strict=True):
            layer.meta_state = layer.meta_state  # says which arrays the state has
            states = (layer.state, *(other.state for other in others))
            layer.state = [mx.concatenate(arrays) for arrays in zip(*states, strict=True)]
        mx.eval([layer.state for layer in whole])
    return whole


def draw(logits: mx.array, temperatures: mx.array | None, key: mx.array) -> mx.array:
    """One token for each row: the argmax where the temperature is 0, else a draw from softmax(logits / temperature).

    Args:
        logits: (B, V) float32. temperatures: (B, 1) float32; None where all are 0. key: of ``mx.random``.

    Returns:
        (B,) int32.
    """
    if temperatures is not None:
        # The argmax of logits / T + g is that of logits + T * g. Not for T = 0: g can be -inf, and 0 * -inf is NaN.
        noisy = logits + temperatures * mx.random.gumbel(logits.shape, key=key)
        logits = mx.where(temperatures > 0, noisy, logits)
    return mx.argmax(logits, axis=-1).astype(mx.int32)


def continue_rows(model: Model, beginnings: Beginnings, length: int, key: mx.array) -> np.ndarray:
    """Continues every row to a length.

    All rows are at the same position in every step, without padding: a row whose beginning is longer than the shortest
    takes its given tokens instead of drawn ones until they are used up.

    Args:
        model: the target. beginnings: of the rows. length: L, more than the longest beginning.
        key: of ``mx.random``; with a row's index and position it decides the draw.

    Returns:
        (B, L) uint16.
    """
    given, ends = mx.array(beginnings.tokens), mx.array(beginnings.lengths)
    shortest, longest = int(beginnings.lengths.min()), int(beginnings.lengths.max())
    temperatures = mx.array(beginnings.temperatures)[:, None] if beginnings.temperatures.any() else None
    keys = mx.random.split(key, length)
    cache = prefill(model, given[:, : shortest - 1])
    current = given[:, shortest - 1]
    columns: list[mx.array] = []
    for position in range(shortest, length):
        logits = model(current[:, None], cache=cache)[:, 0]
        current = draw(logits, temperatures, keys[position])
        if position < longest:
            current = mx.where(position < ends, given[:, position], current)
        mx.async_eval(current, [layer.state for layer in cache])
        if columns:
            mx.eval(columns[-1])  # at most one step runs while the host prepares the next: bounds memory
        columns.append(current)
    rows = mx.concatenate([given[:, :shortest], mx.stack(columns, axis=1)], axis=1)
    return np.array(rows.astype(mx.uint16))


def check(config: DictConfig) -> dict[str, float]:
    """Checks the numbers of the configuration; returns the shares above 0, by class.

    Raises:
        UserError: a number is invalid.
    """
    for name, least in (("prompt_length", 1), ("new_tokens", 1), ("batch_size", 1), ("batches", 1), ("seed", 0)):
        if type(config[name]) is not int or config[name] < least:
            raise UserError(f"{name}: wanted an integer of {least} or more, got {config[name]!r}")
    temperatures = config.temperatures
    if not isinstance(temperatures, ListConfig) or not temperatures or not all(map(_is_weight, temperatures)):
        raise UserError(f"temperatures: wanted a list of numbers of 0 or more, got {temperatures}")
    shares = {name: share for name, share in config.shares.items() if share != 0}
    if not shares or not all(map(_is_weight, shares.values())):
        raise UserError(f"shares: wanted numbers of 0 or more, not all 0, got {config.shares}")
    return shares


def _is_weight(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def target_sha256(folder: Path) -> str:
    """Digest of the files with the target's weights; a drafter's in the same folder are left out."""
    files = {header.file for name, header in read_headers(folder).items() if not name.startswith(DRAFTER_PREFIX)}
    return sha256(" ".join(file_sha256(file) for file in sorted(files)).encode()).hexdigest()


def summarize(rows: Generations, files: Sequence[Path]) -> dict[str, Any]:
    """Counts of rows and own tokens, digests of the files, and how much greedy rows repeat themselves."""
    repeated = {}
    for name in rows.class_names:
        greedy = rows.of(name, 0.0)[:COUNTED_ROWS]
        if len(greedy):
            shares = [repeated_ngram_share(rows.own(row).tolist()) for row in greedy]
            repeated[name] = {"rows": len(shares), "repeated_4grams": float(np.mean(shares))}
    return {
        "settings": rows.settings,
        "rows": len(rows),
        "own_tokens": rows.num_own,
        "rows_by_class": {
            name: {f"{one:g}": len(rows.of(name, one)) for one in np.unique(rows.temperatures).tolist()}
            for name in rows.class_names
        },
        "greedy": repeated,
        "sha256": {file.name: file_sha256(file) for file in files},
    }


def make_source(
    config: DictConfig, shares: dict[str, float], vocab_size: int, tokenizer: Any
) -> tuple[BeginningSource, Any]:
    """The source of beginnings that the configuration names, and the digests of its files.

    Raises:
        UserError: its files are missing, too short, or hold tokens outside the target's vocabulary.
    """
    if config.prompts is not None:
        prompts = PromptBeginnings(
            Path(config.prompts), tuple(shares), tokenizer, config.temperatures, config.prompt_length, config.batch_size
        )
        return prompts, {file.name: file_sha256(file) for file in prompts.files}
    tokens = load_tokens(config.tokens)
    windows = WindowBeginnings(
        tokens, shares, config.temperatures, config.prompt_length, config.batch_size, config.batches, config.seed
    )
    largest = max(int(tokens[name].max()) for name in shares)
    if largest >= vocab_size:
        raise UserError(
            f"{config.tokens} has token {largest}, the target a vocabulary of {vocab_size}: encode the corpus with the "
            "target's tokenizer"
        )
    return windows, file_sha256(Path(config.tokens))


def check_settings(files: Sequence[Path], settings: Mapping[str, Any]) -> None:
    """Checks that a folder's files were made with these settings.

    Raises:
        UserError: one was not; the message has its values.
    """
    for file in files:
        held = load_generations(file).settings
        differing = ", ".join(f"{name}={held.get(name)}" for name in settings if held.get(name) != settings[name])
        if differing:
            raise UserError(f"{file} was made with {differing}: remove {file.parent} or set output to another folder")


@hydra.main(version_base=None, config_path=str(Path(__file__).parent / "configs"), config_name="generate")
def main(config: DictConfig) -> None:
    """Makes the batches of one shard that are not there yet, and the summary of all that are."""
    shard, shards = parse_shard(config.shard)
    shares = check(config)
    dtype = config.dtype or default_dtype()
    model, tokenizer = load(config.target, dtype)
    # On a GPU three plain products instead of a gather a token.
    evaluate_every_expert(model, backend() != "cpu")
    source, digest = make_source(config, shares, model.args.vocab_size, tokenizer)
    settings = {
        "target": target_sha256(find_checkpoint(config.target)),
        "source": digest,
        "prompt_length": source.prompt_length,
        "dtype": dtype,
        "shares": shares,
        "temperatures": list(config.temperatures),
        **{name: config[name] for name in ("new_tokens", "batch_size", "seed")},
    }
    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    files = {number: folder / f"batch-{number:06d}.npz" for number in range(shard, source.batches, shards)}
    if not files:
        raise UserError(f"shard {config.shard} has nothing to do: there are {source.batches} batches in all")
    check_settings([file for file in files.values() if file.is_file()], settings)
    begun, made = time.perf_counter(), 0
    missing = [number for number, file in files.items() if not file.is_file()]
    for number in track(missing, description="batches", transient=True):
        beginnings = source.batch(number)
        key = mx.random.key(stable_hash(f"{config.seed}/{number}"))
        rows = Generations(
            tokens=continue_rows(model, beginnings, source.prompt_length + config.new_tokens, key),
            classes=beginnings.classes,
            class_names=source.class_names,
            temperatures=beginnings.temperatures,
            prompt_lengths=beginnings.lengths,
            prompt_length=source.prompt_length,
            origins=beginnings.origins,
            settings=settings,
        )
        write_generations(files[number], rows)
        made += rows.num_own
        if config.max_seconds is not None and time.perf_counter() - begun > config.max_seconds:
            break
    seconds = time.perf_counter() - begun
    whole = [file for file in files.values() if file.is_file()]
    summary = {"batches": len(whole), "batches_wanted": len(files), "device": str(mx.default_device())}
    summary |= {"this_run": {"own_tokens": made, "seconds": seconds, "own_tokens_per_s": made / seconds}}
    summary |= summarize(load_generations(whole), whole)
    write_json(folder / f"summary-{shard}-of-{shards}.json", summary)
    state = "finished" if len(whole) == len(files) else "stopped for time"
    print(f"{state}: {len(whole)} of {len(files)} batches in {folder}, {made / seconds:.0f} own tokens/s in this run")


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
