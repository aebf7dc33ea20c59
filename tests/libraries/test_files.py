"""Models of transformers whose weights are files of the server's: docs/libraries.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM as Auto
from transformers import GPT2Config, LlamaConfig, PreTrainedModel

import torch_remote

sys.path.append(str(Path(__file__).parent.parent / "python"))
from helpers import serving

LLAMA = LlamaConfig(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=1000,
    tie_word_embeddings=True,
)
GPT2 = GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=1000, n_positions=64)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[torch.device]:
    with (
        serving(f"unix://{tmp_path}/s", "--files", str(tmp_path)) as url,
        torch_remote.connect(url) as machine,
    ):
        yield machine.devices[0]


def tokens() -> torch.Tensor:
    return torch.arange(12)[None] * 7


def bytes_of(model: torch.nn.Module) -> int:
    return sum(value.nbytes for value in model.state_dict().values())


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("shard", ["1GB", "1MB"])
def test_a_model_of_transformers(
    tmp_path: Path, device: torch.device, config: Any, shard: str
) -> None:
    source: PreTrainedModel = Auto.from_config(config).eval()
    source.save_pretrained(tmp_path, max_shard_size=shard)
    index = tmp_path / "model.safetensors.index.json"
    assert index.exists() == (shard == "1MB")
    with torch_remote.count() as counted:
        state = torch_remote.load(
            index.name if index.exists() else "model.safetensors", device=device
        )
        model = type(source).from_pretrained(
            None, config=config, state_dict=state, device_map=device
        )
        model.eval()
        torch_remote.synchronize()
    assert counted.bytes_sent + counted.bytes_received < bytes_of(source) // 20
    assert torch.equal(model(tokens().to(device)).logits.cpu(), source(tokens()).logits)
