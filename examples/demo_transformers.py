"""A small GPT-2 with random weights, trained and asked by code for CUDA. Needs transformers."""

import tempfile

import torch
import transformers

import TorchDevice

torch.manual_seed(0)
config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32)
model = transformers.GPT2LMHeadModel(config).to("cuda")
tokens = torch.arange(16, device="cuda").reshape(1, 16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for _ in range(20):
    loss = model(input_ids=tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} on {tokens.device}")
assert losses[-1] < losses[0] * 0.7
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    again = transformers.GPT2LMHeadModel.from_pretrained(folder).to("cuda").eval()
model.eval()
made = [m.generate(tokens[:, :4], max_new_tokens=4, do_sample=False, pad_token_id=0)
        for m in (model, again)]  # fmt: skip
assert made[0].tolist() == made[1].tolist()
print("generated", made[0].tolist()[0])
assert made[0].device == TorchDevice.TorchDevice().device
