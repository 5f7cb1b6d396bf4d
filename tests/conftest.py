"""Fixtures that all tests share: the CPU as device, random tiny models, prompts, one profile for property tests."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import settings

from models.deepseek_v4 import Model
from tests.random_checkpoint import write_checkpoint, write_mtp
from tests.random_models import random_model, tiny_config

mx.set_default_device(mx.cpu)  # the backend on which passes of any width agree to the bit
settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.load_profile("suite")

PROMPTS = [
    {"id": "one", "prompt": "a b a b a b a b"},
    {"id": "two", "prompt": "the cat and the cat and the"},
    {"id": "three", "prompt": "once upon a time once upon"},
]


@pytest.fixture(scope="session")
def tiny_model() -> Model:
    """A random target of a window-only, a CSA and an HCA layer; not to be changed by a test."""
    return random_model()


@pytest.fixture(scope="session")
def other_tiny_model() -> Model:
    """A smaller random target with the same vocabulary."""
    return random_model(tiny_config(num_hidden_layers=2, compress_ratios=(4, 16)), seed=1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random target, a random DSpark drafter and a tokenizer, laid out as what ships."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder)
    return folder


@pytest.fixture(scope="session")
def mtp_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random original MTP block for the target of `checkpoint`."""
    folder = tmp_path_factory.mktemp("mtp")
    write_mtp(folder)
    return folder


@pytest.fixture(scope="session")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL file of three prompts."""
    path = tmp_path_factory.mktemp("prompts") / "three.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in PROMPTS), encoding="utf-8")
    return path
