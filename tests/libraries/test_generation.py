"""`generate()` of transformers: how often it waits, and that the tokens are the CPU's."""

from __future__ import annotations

from typing import Any

import models
import pytest
import torch
import transformers
from changes import without_changes

import torch_remote

IDS = torch.arange(3, 11).reshape(2, 4)
GREEDY = {"do_sample": False, "pad_token_id": 0}


def generate(model: Any, ids: torch.Tensor = IDS, **options: Any) -> Any:
    return model.generate(ids.to(model.device), **{**GREEDY, **options})


def waits(model: Any, tokens: int, **options: Any) -> int:
    with torch_remote.count() as counted:
        generate(model, max_new_tokens=tokens, **options)
    return counted.syncs


def waits_per_token(model: Any, **options: Any) -> float:
    """Without those that a call has however many tokens it makes."""
    return (waits(model, 24, **options) - waits(model, 8, **options)) / 16


@pytest.fixture(scope="module")
def model() -> Any:
    return models.llama().to("remote")


class Collector(transformers.TextStreamer):
    """A streamer that keeps what it would print."""

    def __init__(self, **options: Any) -> None:
        super().__init__(models.tokenizer(), **options)
        self.pieces: list[str] = []

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.pieces.append(text)

    @property
    def text(self) -> str:
        return "".join(self.pieces).strip()


def test_a_token_is_one_wait_at_most(model: Any) -> None:
    for options in ({}, {"do_sample": True, "top_k": 5}, {"repetition_penalty": 1.2}):
        assert waits_per_token(model, **options) <= 1.0
    assert waits(model, 8) <= 8 + 6
    assert waits_per_token(models.t5().to("remote")) <= 1.0


def test_with_a_check_every_8_tokens_8_tokens_are_one_wait(model: Any) -> None:
    with torch_remote.stop_check_every(8):
        assert waits_per_token(model) == 1 / 8
        assert waits_per_token(model, eos_token_id=31) <= 1 / 8
        assert waits_per_token(model, ids=IDS[:1], streamer=Collector()) == 1 / 8
    assert waits_per_token(model) == 1.0


def first_token_that_is_new(tokens: list[int], after: int) -> int:
    """The index, at or behind `after`, of a token that does not come before it."""
    return next(i for i in range(after, len(tokens)) if tokens[i] not in tokens[:i])


@pytest.mark.parametrize("every", [1, 2, 5, 100])
def test_the_tokens_are_the_same_however_often_it_checks(every: int) -> None:
    cpu = models.llama()
    remote = models.llama().to("remote")
    made = generate(cpu, ids=IDS[:1], max_new_tokens=12)[0, 4:].tolist()
    with torch_remote.stop_check_every(every):
        assert (
            generate(remote, max_new_tokens=11).tolist()
            == generate(cpu, max_new_tokens=11).tolist()
        )
        for last in {made[0], made[first_token_that_is_new(made, 2)]}:
            for ids in (IDS[:1], IDS):
                options = {"ids": ids, "max_new_tokens": 12, "eos_token_id": last}
                assert generate(remote, **options).tolist() == generate(cpu, **options).tolist()


@pytest.mark.parametrize("every", [1, 4])
def test_what_was_made_after_the_end_is_in_no_output(every: int) -> None:
    cpu, remote = models.llama(), models.llama().to("remote")
    made = generate(cpu, ids=IDS[:1], max_new_tokens=12)[0, 4:].tolist()
    options = {"ids": IDS[:1], "max_new_tokens": 12, "output_scores": True, "output_logits": True,
               "return_dict_in_generate": True,
               "eos_token_id": made[first_token_that_is_new(made, 2)]}  # fmt: skip
    expected = generate(cpu, **options)
    with torch_remote.stop_check_every(every):
        actual = generate(remote, **options)
    assert actual.sequences.tolist() == expected.sequences.tolist()
    assert len(actual.scores) == len(expected.scores)
    assert len(actual.logits) == len(expected.logits)
    lengths = [each.past_key_values.get_seq_length() for each in (actual, expected)]
    assert lengths[0] == lengths[1]
    # The cache can be used to go on.
    more = [
        model.generate(
            each.sequences, past_key_values=each.past_key_values, max_new_tokens=3, **GREEDY
        ).tolist()
        for model, each in ((remote, actual), (cpu, expected))
    ]
    assert more[0] == more[1]


@pytest.mark.parametrize("every", [1, 3])
def test_a_streamer_gets_each_token_in_its_order(every: int) -> None:
    texts = []
    for model in (models.llama(), models.llama().to("remote")):
        made = generate(model, ids=IDS[:1], max_new_tokens=10)[0, 4:].tolist()
        last = made[first_token_that_is_new(made, 2)]
        for options in ({}, {"eos_token_id": last}):
            streamer = Collector(skip_prompt=True)
            with torch_remote.stop_check_every(every):
                generate(model, ids=IDS[:1], max_new_tokens=10, streamer=streamer, **options)
            texts.append(streamer.text)
    assert texts[:2] == texts[2:]
    assert texts[0].startswith(texts[1]) and texts[1]


def test_a_streamer_costs_no_wait_of_its_own(model: Any) -> None:
    options = {"ids": IDS[:1], "streamer": Collector()}
    assert waits_per_token(model, **options) <= 1.0
    with without_changes():
        assert waits_per_token(model, **options) == 2.0


def test_beams_are_as_on_the_cpu() -> None:
    made = [
        generate(each, num_beams=3, max_new_tokens=6).tolist()
        for each in (models.llama(), models.llama().to("remote"))
    ]
    assert made[0] == made[1]


def test_a_pipeline_generates() -> None:
    options = {"model": models.llama(), "tokenizer": models.tokenizer()}
    pipe = transformers.pipeline("text-generation", **options)
    assert pipe.device.type == "remote"
    made = pipe("w1 w2", max_new_tokens=4, do_sample=False)[0]["generated_text"]
    options["model"] = models.llama()
    alone = transformers.pipeline("text-generation", device="cpu", **options)
    assert made == alone("w1 w2", max_new_tokens=4, do_sample=False)[0]["generated_text"]


def test_the_number_of_tokens_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"stop_check_every\(0\)"):
        torch_remote.stop_check_every(0)


def test_without_a_block_the_number_stays() -> None:
    before = torch_remote.stop_check_every(7)
    try:
        with torch_remote.stop_check_every(2):
            pass
        with torch_remote.stop_check_every(3) as nothing:
            assert nothing is None
        assert torch_remote.integrations.generation._every == 7
    finally:
        with before:
            pass
    assert torch_remote.integrations.generation._every == 1


@pytest.mark.parametrize("kind", [models.llama, models.t5])
def test_a_padded_batch_is_one_wait_for_a_token_too(kind: Any) -> None:
    cpu, remote = kind(), kind().to("remote")
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    ours = {"attention_mask": mask.to("remote")}
    assert (
        generate(remote, max_new_tokens=6, **ours).tolist()
        == generate(cpu, max_new_tokens=6, attention_mask=mask).tolist()
    )
    assert waits_per_token(remote, **ours) <= 1.0
    with torch_remote.stop_check_every(8):
        assert waits_per_token(remote, **ours) <= 1 / 8
    with without_changes():  # it looks at the mask for each token
        assert waits_per_token(remote, **ours) >= 2.0


def test_an_offloaded_cache_gives_the_same_tokens(model: Any) -> None:
    options: dict[str, Any] = {"max_new_tokens": 4, "cache_implementation": "offloaded"}
    expected = generate(models.llama(), max_new_tokens=4)
    assert generate(model, **options).tolist() == expected.tolist()
    with without_changes(), pytest.raises((AssertionError, RuntimeError), match="CUDA"):
        generate(model, **options)
