"""Samples stories, essays and answers from SmolLM2-135M-Instruct: `python -m experiments.pair.sample_text`.

The registries have little plain modern English under a permissive license, and no conversations. Prompts are made of
templates and word lists of `configs/sample_text.yaml`; the answers, in large batches on a GPU, are the text. Writes
`<output>/smollm2-<shard>.jsonl.xz`, one object a line: `kind`, `id`, `prompt`, `text`, `is_whole`. Answers that
`max_tokens` cut off are cut back to their last whole sentence. Runs beside others as `shard=1/4` and so on; a second
run of the same shard goes on.
"""

import json
import logging
import lzma
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import hydra
import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache
from omegaconf import DictConfig, OmegaConf

from experiments.pair.data.documents import stable_hash
from experiments.pair.data.smollm import find_gguf, load_llama, user_turn
from experiments.settings import parse_shard
from models import ModelError
from spec.programs.frame import run

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """One text to be sampled. Attributes: number: of the request, in all shards together. kind: its prompt class."""

    number: int
    kind: str
    prompt: str


def make_request(
    number: int, templates: Mapping[str, Mapping], words: Mapping[str, Sequence[str]], seed: int
) -> TextRequest:
    """Request `number`: a kind by its share, one of its templates, and a word for each `{list}` in it."""
    draw = random.Random(f"{seed}/{number}")
    kinds = sorted(templates)
    kind = draw.choices(kinds, [templates[name]["share"] for name in kinds])[0]
    template = draw.choice(templates[kind]["prompts"])
    prompt = re.sub(r"\{(\w+)\}", lambda match: draw.choice(words[match[1]]), template)
    return TextRequest(number=number, kind=kind, prompt=prompt[0].upper() + prompt[1:])


def equal_lengths(
    requests: Iterator[TextRequest], encode, batch_size: int
) -> Iterator[tuple[list[TextRequest], list[list[int]]]]:
    """Batches of prompts of the same number of tokens, so that none needs padding; endless if the requests are."""
    waiting: dict[int, list[tuple[TextRequest, list[int]]]] = defaultdict(list)
    for request in requests:
        tokens = encode(request.prompt)
        group = waiting[len(tokens)]
        group.append((request, tokens))
        if len(group) == batch_size:
            yield [request for request, _ in group], [tokens for _, tokens in group]
            del waiting[len(tokens)]


def sample_batch(
    model: nn.Module, prompts: list[list[int]], *, temperature: float, max_tokens: int, end_id: int, key: mx.array
) -> list[tuple[list[int], bool]]:
    """Samples a continuation of every prompt.

    Args:
        model: mlx-lm's, of the Llama family. prompts: token ids, all of one length. temperature: above 0.
        max_tokens: of a continuation. end_id: token that ends it. key: of the draws.

    Returns:
        By prompt, the tokens before the end token and whether it came.
    """
    check_every = 32  # steps between two looks at which rows have ended: each look waits for the GPU
    cache = [KVCache() for _ in model.layers]
    rows = list(range(len(prompts)))
    ended: set[int] = set()
    tokens = mx.array(prompts, dtype=mx.int32)
    written: dict[int, list[int]] = {row: [] for row in rows}
    steps: list[mx.array] = []
    keys = mx.random.split(key, max_tokens)
    for step in range(max_tokens):
        logits = model(tokens, cache=cache)[:, -1].astype(mx.float32) * (1.0 / temperature)
        tokens = mx.random.categorical(logits, key=keys[step])[:, None].astype(mx.int32)
        steps.append(tokens)
        mx.async_eval(tokens)
        if len(steps) < check_every and step + 1 < max_tokens:
            continue
        for row, new in zip(rows, mx.concatenate(steps, axis=1).tolist(), strict=True):
            if row in ended:
                continue
            written[row] += new
            if end_id in new:
                written[row] = written[row][: written[row].index(end_id)]
                ended.add(row)
        steps = []
        alive = [place for place, row in enumerate(rows) if row not in ended]
        if not alive:
            break
        if len(alive) < 0.8 * len(rows):  # rows that have ended cost as much as the others
            keep = mx.array(alive)
            tokens = tokens[keep]
            for layer in cache:
                layer.keys, layer.values = layer.keys[keep], layer.values[keep]
            rows = [rows[place] for place in alive]
    return [(tokens, row in ended) for row, tokens in sorted(written.items())]


def whole_sentences(text: str) -> str:
    """The text up to its last sentence's end; empty when none ends."""
    ends = [match.end() for match in re.finditer(r"[.!?][\"'”’)]*(?=\s|$)", text)]
    return text[: ends[-1]] if ends else ""


def append_rows(output: Path, rows: Sequence[Mapping]) -> None:
    """Adds one compressed stream of JSON lines to a file; xz reads all streams of a file as one."""
    with lzma.open(output, "at", encoding="utf-8", preset=1) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


@hydra.main(version_base="1.3", config_path=str(Path(__file__).parent / "configs"), config_name="sample_text")
def main(config: DictConfig) -> None:
    """Samples until the shard has its batches or its time is over."""
    shard, shards = parse_shard(config.shard)
    language_model = load_llama(find_gguf(Path(config.downloads)), config.dtype)
    tokenizer = language_model.tokenizer
    templates = OmegaConf.to_container(config.templates, resolve=True)
    words = OmegaConf.to_container(config.words, resolve=True)
    output = Path(config.output) / f"smollm2-{shard}.jsonl.xz"
    output.parent.mkdir(parents=True, exist_ok=True)
    progress = output.with_suffix(".json")
    done = json.loads(progress.read_text(encoding="utf-8"))["batches"] if progress.is_file() else 0

    def requests() -> Iterator[TextRequest]:
        number = shard
        while True:
            yield make_request(number, templates, words, config.seed)
            number += shards

    def encode(prompt: str) -> list[int]:
        return tokenizer.encode(user_turn(prompt), add_special_tokens=False).ids

    begun, sampled = time.perf_counter(), 0
    for batch, (group, prompts) in enumerate(equal_lengths(requests(), encode, config.batch_size)):
        if batch == config.batches or time.perf_counter() - begun > (config.max_seconds or float("inf")):
            break
        if batch < done:
            continue
        answers = sample_batch(
            language_model.model,
            prompts,
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            end_id=language_model.end_id,
            key=mx.random.key(stable_hash(f"{config.seed}/{shard}/{batch}")),
        )
        texts = tokenizer.decode_batch([tokens for tokens, _ in answers])
        rows = []
        for request, text, (_, is_whole) in zip(group, texts, answers, strict=True):
            text = text.strip() if is_whole else whole_sentences(text.strip())
            row = {"kind": request.kind, "id": str(request.number), "prompt": request.prompt, "text": text}
            if text:
                rows.append(row | {"is_whole": is_whole})
        append_rows(output, rows)
        progress.write_text(json.dumps({"batches": batch + 1}) + "\n", encoding="utf-8")
        sampled += sum(len(tokens) for tokens, _ in answers)
        whole = sum(is_whole for _, is_whole in answers)
        seconds = time.perf_counter() - begun
        logger.info("batch %d: %d of %d ended, %.0f tokens/s", batch, whole, len(group), sampled / seconds)


if __name__ == "__main__":
    sys.exit(run(main, ModelError))
