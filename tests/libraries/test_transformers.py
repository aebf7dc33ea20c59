"""transformers: Trainer, pipelines and loading use our device as they use CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import pytest
import torch
import transformers
from changes import without_changes
from transformers import trainer_utils, training_args
from transformers.integrations.accelerate import get_max_memory

import torch_remote

IDS = torch.arange(3, 11).reshape(1, 8)


def trainer(folder: Path, dropout: float = 0.0, **options: Any) -> transformers.Trainer:
    defaults = {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 0.01,
                "logging_steps": 1, "report_to": [], "disable_tqdm": True, "seed": 1}  # fmt: skip
    arguments = transformers.TrainingArguments(str(folder), **{**defaults, **options})
    data = models.examples()
    return transformers.Trainer(
        models.bert(dropout), arguments, train_dataset=data, eval_dataset=data
    )


def losses(made: transformers.Trainer) -> list[float]:
    return [float(row["loss"]) for row in made.state.log_history if "loss" in row]


def test_the_trainer_trains_on_our_device_as_on_the_cpu(tmp_path: Path) -> None:
    ours = trainer(tmp_path, save_strategy="no")
    assert ours.args.device == torch.device("remote:0")
    assert ours.args.n_gpu == 1
    ours.train()
    assert ours.model.device.type == "remote"
    assert set(ours.evaluate()) >= {"eval_loss"}
    theirs = trainer(tmp_path, save_strategy="no", use_cpu=True)
    assert theirs.args.device.type == "cpu"
    theirs.train()
    assert losses(ours) == losses(theirs)
    assert losses(ours)[-1] < losses(ours)[0]


def test_alone_the_trainer_uses_the_cpu(tmp_path: Path) -> None:
    with without_changes():
        assert trainer(tmp_path).args.device.type == "cpu"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_trainer_trains_with_mixed_precision(tmp_path: Path, precision: str) -> None:
    made = trainer(tmp_path, save_strategy="no", max_steps=3, **{precision: True})
    dtypes = []
    made.model.bert.encoder.layer[0].output.dense.register_forward_hook(
        lambda module, inputs, output: dtypes.append(output.dtype)
    )
    made.train()
    assert set(dtypes) == {torch.bfloat16 if precision == "bf16" else torch.float16}
    assert all(torch.isfinite(torch.tensor(losses(made))))


def test_alone_the_trainer_refuses_bf16(tmp_path: Path) -> None:
    with without_changes(), pytest.raises(ValueError, match="doesn't support bf16"):
        trainer(tmp_path, bf16=True)


def test_a_training_that_is_resumed_gives_the_same_losses(tmp_path: Path) -> None:
    """Dropout's random numbers are the server's: the checkpoint has the state of its generator."""
    options: dict[str, Any] = {"dropout": 0.3, "save_steps": 3, "save_strategy": "steps"}
    made = trainer(tmp_path, **options)
    made.train()
    again = trainer(tmp_path, **options)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert losses(again)[-3:] == losses(made)[-3:]
    saved = torch.load(tmp_path / "checkpoint-3/rng_state.pth", weights_only=False)
    assert "cuda" in saved  # transformers' name for the accelerator's state
    with without_changes():
        made._save_rng_state(str(tmp_path / "alone"))
        assert "cuda" not in torch.load(tmp_path / "alone/rng_state.pth", weights_only=False)


def test_memory_metrics_are_those_of_our_device(tmp_path: Path) -> None:
    made = trainer(tmp_path, save_strategy="no", max_steps=1, skip_memory_metrics=False)
    metrics = made.train().metrics
    assert metrics["init_mem_gpu_alloc_delta"] > 0  # the model
    assert metrics["train_mem_gpu_peaked_delta"] >= 0
    with without_changes():
        assert trainer_utils.TrainerMemoryTracker().torch is None


def test_tf32_is_allowed_by_the_device_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    major = 0
    monkeypatch.setattr("torch_remote._device.get_device_capability", lambda: (major, 0))
    assert not training_args.is_torch_tf32_available()
    major = 9
    assert training_args.is_torch_tf32_available()
    with without_changes():
        assert not training_args.is_torch_tf32_available()


def test_predictions_come_back_to_numpy(tmp_path: Path) -> None:
    made = trainer(tmp_path, eval_accumulation_steps=1)
    assert made.predict(models.examples(8)).predictions.shape == (8, 2)


@pytest.mark.parametrize("device_map", ["remote", "remote:0", "auto", 0, {"": "remote"}])
def test_a_model_is_loaded_to_our_device(tmp_path: Path, device_map: Any) -> None:
    expected = models.llama()
    expected.save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map=device_map)
    assert {each.device for each in model.parameters()} == {torch.device("remote:0")}
    assert torch.equal(model(IDS.to("remote")).logits.cpu(), expected(IDS).logits)


def test_alone_auto_means_the_cpu(tmp_path: Path) -> None:
    models.llama().save_pretrained(tmp_path)
    with without_changes():
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map="auto")
        assert model.device.type == "cpu"


def test_auto_counts_the_memory_that_the_server_has_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch_remote._device.mem_get_info", lambda device: (1000, 2000))
    monkeypatch.setattr("torch_remote._device.memory_reserved", lambda device: 50)
    monkeypatch.setattr("torch_remote._device.memory_allocated", lambda device: 20)
    assert get_max_memory()[0] == 1030
    with without_changes():
        assert 0 not in get_max_memory()


def test_auto_puts_what_does_not_fit_on_the_cpu(tmp_path: Path) -> None:
    expected = models.llama()
    expected.save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, device_map="auto", max_memory={0: 18_000, "cpu": 10**9}
    )
    assert set(model.hf_device_map.values()) == {0, "cpu"}
    assert torch.equal(model(IDS.to("remote")).logits.cpu(), expected(IDS).logits)


def classifier(**options: Any) -> Any:
    return transformers.pipeline(
        "text-classification", model=models.bert().eval(), tokenizer=models.tokenizer(), **options
    )


def test_a_pipeline_uses_our_device() -> None:
    for options in ({}, {"device": 0}, {"device": "remote"}, {"device": torch.device("remote", 0)}):
        made = classifier(**options)
        assert made.device.type == made.model.device.type == "remote"
    texts = ["w1 w2 w3", "w4 w5"]
    expected = classifier(device="cpu")(texts)
    assert [each["label"] for each in made(texts)] == [each["label"] for each in expected]
    for ours, theirs in zip(made(texts, batch_size=2), expected, strict=True):
        assert ours["score"] == pytest.approx(theirs["score"], abs=1e-6)


def test_a_pipeline_stays_on_the_cpu_if_told() -> None:
    assert classifier(device=-1).device.type == "cpu"
    assert classifier(device="cpu").device.type == "cpu"


def test_alone_a_pipeline_moves_a_remote_model_to_the_cpu() -> None:
    model = models.bert().to("remote")
    options = {"model": model, "tokenizer": models.tokenizer()}
    with without_changes():
        transformers.pipeline("text-classification", **options)
        assert model.device.type == "cpu"


def test_a_pipeline_of_a_model_with_a_device_map_uses_its_device(tmp_path: Path) -> None:
    models.bert().save_pretrained(tmp_path)
    models.tokenizer().save_pretrained(tmp_path)
    made = transformers.pipeline("text-classification", str(tmp_path), device_map="auto")
    assert made.device == torch.device("remote:0")
    assert set(made("w1 w2")[0]) == {"label", "score"}


def test_a_pipeline_of_a_model_in_parts_uses_the_device_of_the_first(tmp_path: Path) -> None:
    models.llama().save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, device_map="auto", max_memory={0: 18_000, "cpu": 10**9}
    )
    options = {"model": model, "tokenizer": models.tokenizer()}
    assert transformers.pipeline("text-generation", **options).device == torch.device("remote:0")
    with without_changes():
        assert transformers.pipeline("text-generation", **options).device.type == "cpu"


def test_a_mixture_of_experts_on_a_cpu_server_says_what_fails() -> None:
    """docs/libraries.md: transformers gives integers to histc() on every device but the CPU."""
    config = transformers.MixtralConfig(
        **models.SIZES, num_local_experts=2, num_experts_per_tok=1, num_key_value_heads=2
    )
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(config).eval()
    expected = model(IDS).logits
    model = model.to("remote")
    model.set_experts_implementation("eager")
    assert torch.allclose(model(IDS.to("remote")).logits.cpu(), expected, atol=1e-5)
    model.set_experts_implementation("grouped_mm")
    with pytest.raises(
        (NotImplementedError, torch_remote.RemoteError, RuntimeError), match="histc"
    ):
        model(IDS.to("remote")).logits.cpu()
