"""Small random models of transformers, a tokenizer, and data."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ["[PAD]", "[UNK]", "[EOS]", *(f"w{index}" for index in range(29))]
SIZES: dict[str, Any] = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 2,
                         "num_attention_heads": 2, "intermediate_size": 32,
                         "max_position_embeddings": 64}  # fmt: skip


def bert(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **SIZES, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    return transformers.BertForSequenceClassification(config)


def llama(**options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SIZES, pad_token_id=0, eos_token_id=None, bos_token_id=1, **options
    )
    return transformers.LlamaForCausalLM(config).eval()


def t5() -> Any:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=len(WORDS), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).eval()


def tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]"
    )


def examples(count: int = 16) -> list[dict[str, Any]]:
    tokens = torch.randint(3, len(WORDS), (count, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": int(row.sum()) % 2} for row in tokens]
