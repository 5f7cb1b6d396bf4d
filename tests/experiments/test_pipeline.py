"""The whole way from packages to a measured pair, at toy size, through the programs' command lines.

Every program runs in an empty folder with the paths of its own configuration, so what one writes must lie where the
next looks for it; only sizes are overridden.
"""

import io
import json
import lzma
import random
import runpy
import sys
import tarfile
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from experiments.pair.data.documents import CLASSES, SPLITS, file_sha256, train_digest
from experiments.pair.data.generations import Generations, load_generations
from experiments.pair.training.curves import read_log
from models import load, load_dspark, load_model, load_mtp
from spec import DSparkDrafter, RandomStream
from spec.measure import read_lines
from spec.prompts import encode, load_prompts
from tests.spec.doubles import context_at

Step = Callable[..., None]

PAIR = "models/pretrained/tiny"
VOCABULARY, LENGTH, GAMMA, NEW_TOKENS, PROMPTS = 384, 64, 3, 48, 5
TARGET_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 32,
    "o_lora_rank": 16,
    "sliding_window": 12,
    "compress_ratios": "[0,4,16]",
    "index_n_heads": 4,
    "index_head_dim": 8,
    "index_topk": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_hash_layers": 1,
    "hc_sinkhorn_iters": 2,
}
NOUNS = "baker boat bridge candle castle child clock door farmer fire fox garden harbour horse keeper king letter"
NOUNS += " market miller mountain mouse painter prince queen river road sailor school ship tower village winter wolf"
VERBS = "asked brought built carried counted crossed feared followed found gave heard kept learned left lost made"
VERBS += " opened painted praised remembered saw showed sold taught told wanted watched"


def sentence(draw: random.Random) -> str:
    """Never the same twice: what shares 13 words with held-out text is cleared from the training text."""
    nouns, verbs = draw.choices(NOUNS.split(), k=6), draw.choices(VERBS.split(), k=2)
    subject = f"The {nouns[0]} of the {nouns[1]} {verbs[0]} a {nouns[2]}"
    return f"{subject} and the {nouns[3]} {verbs[1]} it to the {nouns[4]} by a {nouns[5]}."


def paragraph(draw: random.Random, count: int) -> str:
    return " ".join(sentence(draw) for _ in range(count))


def page(draw: random.Random) -> str:
    return "".join(f"<p>{paragraph(draw, 4)}</p>" for _ in range(3))


def module(draw: random.Random) -> str:
    functions = []
    for _ in range(4):
        name, *words = draw.choices(NOUNS.split(), k=9)
        lines = [f"def {draw.choice(VERBS.split())}_{name}({name}):", f"    for item in {name}:"]
        lines += [f"        {draw.choice(VERBS.split())}_{word} = {name}.{word}[item]" for word in words]
        functions.append("\n".join(lines))
    return "\n\n\n".join(functions) + "\n"


def write_package(downloads: Path) -> None:
    """The one package of the toy corpus, where a download of it would lie."""
    draw = random.Random(0)
    files = {f"doc/{n}.html": page(draw) for n in range(60)} | {f"src/{n}.py": module(draw) for n in range(60)}
    folder = downloads / "npm-made-1"
    folder.mkdir(parents=True)
    with tarfile.open(folder / "made-1.tgz", "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))


def write_sampled(folder: Path) -> None:
    """Texts as `experiments.pair.sample_text` leaves them."""
    draw = random.Random(1)
    folder.mkdir(parents=True)
    with lzma.open(folder / "smollm2-0.jsonl.xz", "wt", encoding="utf-8") as file:
        for number in range(160):
            question = f"Why did the {draw.choice(NOUNS.split())} {draw.randrange(1000)} leave?"
            row = {"kind": ("prose", "chat")[number % 2], "id": str(number), "prompt": question}
            file.write(json.dumps(row | {"text": paragraph(draw, 9), "is_whole": True}) + "\n")


def read_json(path: str | Path) -> dict:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def check_corpus(step: Step) -> None:
    step(
        "pair.corpus",
        "~sources",
        "+sources.made={registry: npm, package: made, version: '1', licence: MIT, readers: ["
        "{_target_: experiments.pair.data.prose.HtmlPages}, {_target_: experiments.pair.data.code.SourceFiles}]}",
        *(f"class_bytes.{kind}=100_000" for kind in CLASSES),
        "max_record_chars=3000",
        "sampled.max_repeated=0.5",
        "split.min_bytes=9_000",
        "split.min_documents=10",
    )
    manifest = read_json("data/corpus/manifest.json")
    assert {(row["split"], row["class"]) for row in manifest["files"]} == {(s, c) for s in SPLITS for c in CLASSES}
    for row in manifest["files"]:
        assert file_sha256(Path("data/corpus", row["path"])) == row["sha256"]
        assert row["documents"] > 0


def check_tokens(step: Step) -> None:
    step("pair.tokenizer", f"vocabulary_size={VOCABULARY}")
    step("pair.tokens")
    summary = read_json("data/tokens/summary.json")
    assert summary["tokenizer_sha256"] == file_sha256(Path(PAIR, "tokenizer.json"))
    for split, entry in summary["splits"].items():
        file = Path("data/tokens", f"{split}.npz")
        assert entry["sha256"] == file_sha256(file)
        with np.load(file) as arrays:
            for kind in CLASSES:
                assert arrays[kind].dtype == np.uint16
                assert arrays[kind].max() < VOCABULARY
                assert len(arrays[kind]) == entry["classes"][kind]["tokens"] > 2 * LENGTH
                assert arrays[f"{kind}_bytes"] == entry["classes"][kind]["bytes"]
    step("ngram_baseline", f"vocabulary_size={VOCABULARY}")


def training_options(steps: int) -> list[str]:
    return [
        "batch_size=4",
        f"length={LENGTH}",
        "evaluation_windows=4",
        *(f"data.shares.{kind}=0.2" for kind in CLASSES),
        f"plan.steps={steps}",
        "plan.learning_rate=0.01",
        "plan.warmup_steps=5",
        "plan.dtype=float32",
        "plan.log_every=1",
        "plan.evaluate_every=1000",
    ]


def check_target(step: Step) -> None:
    step("pair.train_target", *training_options(40), *(f"model.{name}={value}" for name, value in TARGET_SIZES.items()))
    step("evaluate_target", f"length={LENGTH}", "windows=4")
    figures = read_json("data/evaluate_target/bits_per_byte.json")
    counts = read_json("data/tokens/summary.json")["splits"]["valid"]["classes"]
    assert set(figures["target"]) == set(figures["5-gram"]) == {*CLASSES, "all"}
    for kind in CLASSES:
        uniform = np.log2(VOCABULARY) * counts[kind]["tokens"] / counts[kind]["bytes"]
        assert 0 < figures["target"][kind] < 0.85 * uniform
        assert 0 < figures["5-gram"][kind] < uniform
    logged = [line["evaluation"] for line in read_log(Path("data/train_target")) if "evaluation" in line]
    assert logged[-1] == pytest.approx(figures["target"], rel=0.02)  # the export rounds the weights to bfloat16


def check_own_tokens(rows: Generations) -> None:
    """Every greedy token is the argmax of the target on its own row; drawn ones are not all so."""
    target = load_model(PAIR, "float32")
    logits = np.array(target(mx.array(rows.tokens.astype(np.int32))))
    best = np.sort(logits, axis=-1)[..., -1]
    is_own = np.arange(rows.tokens.shape[1]) >= rows.prompt_lengths[:, None]
    emitted = np.take_along_axis(logits[:, :-1], rows.tokens[:, 1:, None].astype(np.int64), axis=-1)[..., 0]
    gaps = np.where(is_own[:, 1:], best[:, :-1] - emitted, 0.0)
    is_greedy = rows.temperatures == 0
    assert is_greedy.any()
    assert gaps[is_greedy].max() < 1e-4  # a pass over many rows may round otherwise than a step
    if not is_greedy.all():
        assert gaps[~is_greedy].max() > 0.1


def check_generations(step: Step) -> None:
    shares = [f"shares.{kind}=0.2" for kind in CLASSES]
    common = (*shares, "prompt_length=40", "batch_size=60", "temperatures=[0.0,1.0]")
    step("pair.generate", *common, "new_tokens=24", "batches=2", "shard=0/2")
    step("pair.generate", *common, "new_tokens=24", "batches=2", "shard=1/2")
    held_out = ("tokens=data/tokens/valid.npz", "output=data/generations/calibration")
    step("pair.generate", *common, *held_out, f"new_tokens={NEW_TOKENS}", "batches=1")
    for name, split, count in (("train", "train", 120), ("calibration", "valid", 60)):
        rows = load_generations(f"data/generations/{name}")
        assert rows.tokens.shape[0] == count
        assert set(rows.class_names) == set(CLASSES)
        with np.load(f"data/tokens/{split}.npz") as text:
            for row, origin in zip(rows.tokens, rows.origins, strict=True):
                kind, start = str(origin).split("@")
                assert np.array_equal(row[:40], text[kind][int(start) : int(start) + 40])
        check_own_tokens(rows)


def check_drafters(step: Step) -> None:
    generated = [
        "anchors=6",
        "data.generations=data/generations/train",
        "data.held_out_generations=data/generations/calibration",
        "generated_batch_size=6",
        "generated_anchors=6",
    ]
    step(
        "pair.train_dspark",
        *training_options(30),
        *generated,
        "stages=2",
        f"model.dspark_block_size={GAMMA}",
        "model.dspark_target_layer_ids=[1,2]",
        "model.dspark_n_routed_experts=3",
        "model.dspark_num_experts_per_tok=1",
    )
    step("pair.train_mtp", *training_options(20), *generated, f"depth={GAMMA}")
    target = load_model(PAIR, "float32")
    assert load_dspark(target=target).block_size == GAMMA
    assert load_mtp(target=target).config.hidden_size == TARGET_SIZES["hidden_size"]
    for program in ("train_dspark", "train_mtp"):
        lines = read_log(Path("data", program))
        losses = [line["loss"] for line in lines if "loss" in line]
        assert np.mean(losses[-6:]) < np.mean(losses[:6])
        assert {line["is_generated"] for line in lines if "loss" in line} == {0.0, 1.0}
        figures = next(line["evaluation"] for line in lines if "evaluation" in line)
        assert set(figures) >= {*CLASSES, *(f"own_{kind}" for kind in CLASSES)}
        assert all(0 <= value <= GAMMA for value in figures.values())


def check_prompts(step: Step) -> None:
    step(
        "pair.prompts",
        f"prompts_per_class={PROMPTS}",
        "min_tokens={chat: 8, other: 40}",
        "max_tokens=400",
        "continuation_tokens=32",
    )
    _, tokenizer = load(PAIR)
    given = {}
    for kind in CLASSES:
        file = Path("configs/prompts", f"{kind}.jsonl")
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        assert len(rows) == PROMPTS
        assert all(row["overlap"]["train_sha256"] == train_digest(Path("data/corpus")) for row in rows)
        assert all(row["overlap"]["shared"] == 0 for row in rows)
        given |= {prompt.prompt_id: encode(prompt, tokenizer)[-96:] for prompt in load_prompts([str(file)], name=kind)}
    step(
        "pair.generate",
        "prompts=configs/prompts",
        "prompt_length=96",
        f"new_tokens={NEW_TOKENS}",
        "temperatures=[0.0,1.0]",
        "batch_size=64",
        "output=data/generations/prompts",
    )
    rows = load_generations("data/generations/prompts")
    assert len(rows) == 2 * len(given) == 2 * PROMPTS * len(CLASSES)
    for tokens, length, origin in zip(rows.tokens, rows.prompt_lengths, rows.origins, strict=True):
        assert tokens[:length].tolist() == given[str(origin)]
    check_own_tokens(rows)


def check_acceptance(step: Step) -> None:
    step("acceptance", "only=[stored,q8,mxfp4,mtp,ngram]", "limit=1")
    rows = read_json("outputs/acceptance.json")["rows"]
    assert {(row["drafter"], row["class"], row["temperature"]) for row in rows} == {
        (drafter, name, temperature)
        for drafter in ("stored", "q8", "mxfp4", "mtp", "ngram")
        for name in ("all", *CLASSES)
        for temperature in (0.0, 1.0)
    }
    for row in rows:
        assert row["tau"]["low"] <= row["tau"]["value"] <= row["tau"]["high"]
        assert 1 <= row["tau"]["value"] <= 6
        assert (row["accepted_drafts"] is None) == (row["drafter"] in ("mtp", "ngram"))
    positions = {row["num_positions"] for row in rows if row["class"] == "all" and row["accepted_drafts"]}
    assert len(positions) == 1


def check_calibration(step: Step) -> None:
    before = load_dspark(target=load_model(PAIR, "float32")).confidence_temperatures
    assert not before
    step("calibrate")
    temperatures = read_json(Path(PAIR, "config.json"))["dspark_confidence_temperatures"]
    assert set(temperatures) == {"greedy", "matched", "sampled"}
    assert all(len(values) == GAMMA and min(values) > 0 for values in temperatures.values())
    results = read_json("outputs/calibration.json")["results"]
    assert results.keys() == temperatures.keys()
    assert all(set(result["judged"]) == {"all", *CLASSES} for result in results.values())
    network = load_dspark(target=load_model(PAIR, "float32"))
    features = mx.random.normal((9, len(network.tapped_layers) * TARGET_SIZES["hidden_size"]), key=mx.random.key(0))
    logits = {}
    for name in (None, *temperatures):
        drafter = DSparkDrafter(network, calibration=name)
        drafter.reset(9)
        drafter.observe(range(9), features)
        sure = np.array(drafter.propose(context_at(20, 9, RandomStream(seed=0)), GAMMA).confidence)
        logits[name] = np.log(sure / (1 - sure))
    for name, divisors in temperatures.items():
        np.testing.assert_allclose(logits[name] * divisors, logits[None], rtol=1e-3, atol=1e-3)


def check_run(step: Step) -> None:
    paths = ",".join(f"configs/prompts/{kind}.jsonl" for kind in CLASSES)
    common = ("prompts=file", f"prompts.paths=[{paths}]", "prompts.limit=1", "max_tokens=24", "repeats=1")
    for drafter in ("dspark", "mtp"):
        options = (f"drafter={drafter}", f"block.gamma={GAMMA}", f"hydra.run.dir=outputs/{drafter}")
        step("spec.run", *common, "warmup_tokens=0", *options)
        texts: dict[str, dict[str, list[int]]] = defaultdict(dict)
        for row in read_lines(Path("outputs", drafter, "runs.jsonl")):
            texts[row["mode"]][row["prompt_id"]] = row["tokens"]
        assert len(texts["speculative"]) == len(CLASSES)
        assert texts["speculative"] == texts["baseline"]
        assert all(len(tokens) == 24 for tokens in texts["baseline"].values())
        assert read_json(Path("outputs", drafter, "summary.json"))["tau"] > 1


def test_from_packages_to_a_measured_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def step(program: str, *overrides: str) -> None:
        """``python -m`` of a program, in this process: starting one takes as long as most steps."""
        name = program if program.startswith("spec.") else f"experiments.{program}"
        quiet = ("hydra/job_logging=disabled", "hydra/hydra_logging=disabled")
        monkeypatch.setattr(sys, "argv", [name, *quiet, *overrides])
        code = None
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)
                runpy.run_module(name, run_name="__main__", alter_sys=True)
        except SystemExit as stopped:
            code = stopped.code
        assert not code, f"{name} {' '.join(overrides)} ended with {code}"

    write_package(Path("data/downloads"))
    write_sampled(Path("data/sampled"))
    check_corpus(step)
    check_tokens(step)
    check_target(step)
    check_generations(step)
    check_drafters(step)
    check_prompts(step)
    check_acceptance(step)
    check_calibration(step)
    check_run(step)
