"""sentence-transformers, torchmetrics, datasets and safetensors with our device."""

from __future__ import annotations

from pathlib import Path

import datasets
import models
import pytest
import sentence_transformers
import torch
import torchmetrics
import transformers
from changes import without_changes
from safetensors import safe_open
from safetensors.torch import load_file, save_file

TEXTS = ["w1 w2 w3", "w4", "w5 w6"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder")
    models.bert().bert.save_pretrained(path)
    models.tokenizer().save_pretrained(path)
    return path


def encoder(folder: Path, device: str | None = None) -> sentence_transformers.SentenceTransformer:
    return sentence_transformers.SentenceTransformer(str(folder), device=device)


def test_sentences_are_encoded_on_our_device(folder: Path) -> None:
    ours, theirs = encoder(folder), encoder(folder, "cpu")
    assert ours.device.type == "remote"
    made = ours.encode(TEXTS, convert_to_tensor=True)
    assert made.device.type == "remote"
    expected = theirs.encode(TEXTS, convert_to_tensor=True)
    assert torch.allclose(made.cpu(), expected, atol=1e-6)
    assert ours.encode(TEXTS).shape == (3, models.SIZES["hidden_size"])  # an array of numpy
    close = ours.similarity(made, made)
    assert torch.allclose(close.cpu(), theirs.similarity(expected, expected), atol=1e-5)
    found = sentence_transformers.util.semantic_search(made, made, top_k=1)
    assert [each[0]["corpus_id"] for each in found] == [0, 1, 2]


def test_alone_sentences_are_encoded_on_the_cpu(folder: Path) -> None:
    with without_changes():
        assert encoder(folder).device.type == "cpu"


def test_metrics_are_those_of_the_cpu() -> None:
    scores, targets = torch.rand(64, 5), torch.randint(0, 5, (64,))
    made = [
        torchmetrics.MetricCollection(
            {
                "accuracy": torchmetrics.Accuracy("multiclass", num_classes=5),
                "f1": torchmetrics.F1Score("multiclass", num_classes=5, average="macro"),
                "auroc": torchmetrics.AUROC("multiclass", num_classes=5),
                "matrix": torchmetrics.ConfusionMatrix("multiclass", num_classes=5),
                "calibration": torchmetrics.CalibrationError("multiclass", num_classes=5),
            }
        ).to(device)
        for device in ("cpu", "remote")
    ]
    results = []
    for collection, device in zip(made, ("cpu", "remote"), strict=True):
        for part in range(0, 64, 16):
            part_of = slice(part, part + 16)
            collection.update(scores[part_of].to(device), targets[part_of].to(device))
        results.append(collection.compute())
    for name, expected in results[0].items():
        assert results[1][name].device.type == "remote"
        assert torch.allclose(results[1][name].cpu(), expected, atol=1e-6), name
    error = torchmetrics.MeanSquaredError().to("remote")
    assert error(torch.ones(3, device="remote"), torch.zeros(3, device="remote")).item() == 1.0


def test_a_dataset_gives_tensors_of_our_device() -> None:
    table = datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]})
    for device in ("remote", torch.device("remote", 0)):
        rows = table.with_format("torch", device=device)
        assert rows[0]["x"].device == torch.device("remote:0")
        batch = next(iter(torch.utils.data.DataLoader(rows, batch_size=2)))
        assert batch["x"].device.type == "remote"
        assert batch["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    doubled = rows.map(lambda row: {"z": row["x"].to("remote") * 2})
    assert doubled[1]["z"].tolist() == [6.0, 8.0]


@pytest.mark.parametrize("device", ["remote", "remote:0", torch.device("remote"), 0])
def test_safetensors_are_loaded_to_our_device(tmp_path: Path, device: str) -> None:
    file = tmp_path / "x.safetensors"
    save_file({"x": torch.arange(6.0).reshape(2, 3).to("remote")}, file)
    assert load_file(file, device=device)["x"].device == torch.device("remote:0")
    with safe_open(file, framework="pt", device=device) as opened:
        assert opened.get_slice("x")[:, 1:2].tolist() == [[1.0], [4.0]]
    if device == "remote":
        with without_changes(), pytest.raises(Exception, match="device remote is invalid"):
            load_file(file, device=device)


def test_safe_open_is_still_a_class(tmp_path: Path) -> None:
    """Libraries use it in annotations and in isinstance()."""
    save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    opened = safe_open(tmp_path / "x.safetensors", "pt", "remote")
    assert isinstance(opened, safe_open)
    assert not isinstance(tmp_path, safe_open | None)
    assert safe_open.__name__ == "safe_open"


def test_a_trainer_takes_a_dataset(tmp_path: Path) -> None:
    rows = models.examples()
    table = datasets.Dataset.from_list(
        [{**row, "input_ids": row["input_ids"].tolist()} for row in rows]
    )
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, report_to=[], disable_tqdm=True, save_strategy="no"
    )
    made = transformers.Trainer(models.bert(), arguments, train_dataset=table.with_format("torch"))
    assert made.train().metrics["train_loss"] > 0
