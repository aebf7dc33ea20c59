"""Hugging Face under redirect: load, train and generate with models of random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from redirecting import TARGETS, redirected

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2,
                         "num_attention_heads": 2, "intermediate_size": 64}  # fmt: skip


@pytest.fixture(params=TARGETS)
def used(request: pytest.FixtureRequest) -> Iterator[str]:
    with redirected(request.param) as device:
        yield device


def train(model: Any, tokens: torch.Tensor, **inputs: torch.Tensor) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        loss = model(input_ids=tokens, **inputs).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_bert_trains_and_loads(used: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL)
    model = transformers.BertForSequenceClassification(config).to("cuda")
    tokens = torch.arange(32, device="cuda").reshape(2, 16)
    losses = train(model, tokens, labels=torch.tensor([0, 1], device="cuda"))
    assert losses[-1] < losses[0]
    model.save_pretrained(tmp_path)
    assert list(tmp_path.glob("*.safetensors"))
    again = type(model).from_pretrained(tmp_path).to(torch.device("cuda")).eval()
    model.eval()
    assert str(again.device) == used
    assert torch.equal(model(tokens).logits, again(tokens).logits)


def test_llama_trains_and_generates(used: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, max_position_embeddings=64)
    model = transformers.LlamaForCausalLM(config).cuda()
    tokens = torch.arange(16, device="cuda").reshape(1, 16)
    losses = train(model, tokens, labels=tokens)
    assert losses[-1] < losses[0]
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).to("cuda").eval()
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    made = [each.generate(tokens[:, :4], **options) for each in (model.eval(), again)]
    assert str(made[0].device) == used
    assert made[0].tolist() == made[1].tolist()


def test_safetensors_load_where_cuda_goes(used: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = tmp_path / "x.safetensors"
    save_file({"x": torch.arange(4.0, device="cuda")}, file)
    loaded = load_file(file, device="cuda")["x"]
    assert loaded.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert str(loaded.to("cuda").device) == used
