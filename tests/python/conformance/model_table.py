"""Real models of the installed transformers as small random configurations. Nothing is downloaded.

A model's class computes its own loss from `inputs()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf

BATCH = 2
LENGTH = 12
VOCABULARY = 99
PIXELS = 32

Inputs = dict[str, Any]

# Most text models use these names for their sizes.
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
SMALL_BERT: dict[str, Any] = SMALL | {
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
SMALL_LLAMA: dict[str, Any] = SMALL | {"num_key_value_heads": 2, "attention_dropout": 0.1}
SMALL_BART: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": VOCABULARY,
}
# Generation never meets these, so every run makes the requested number of tokens.
NO_END: dict[str, Any] = {"eos_token_id": None, "bos_token_id": 1, "pad_token_id": 0}


@dataclass(frozen=True)
class Model:
    name: str
    build: Callable[[], torch.nn.Module]
    inputs: Callable[[], Inputs]
    prompt: Callable[[], Inputs] | None = None  # for generators
    # How often its own code reads a value in a training step, where any accelerator waits.
    reads: int = 0
    # torch.Tensor(n), which makes a parameter, ignores `torch.device`, as on CUDA.
    starts_on_host: bool = False
    # Why its compiled steps round otherwise than the model, on a local device too.
    rounds_otherwise: str = ""
    # Dynamo takes one local variable for another after a graph break under a TorchFunctionMode.
    loses_values_under_modes: bool = False


def _tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length))


def _pixels() -> torch.Tensor:
    return torch.randn(BATCH, 3, PIXELS, PIXELS)


def _text() -> Inputs:
    """The second row is padded at its end, where its labels do not count."""
    tokens = _tokens()
    mask = torch.ones_like(tokens)
    mask[1, -3:] = 0
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "labels": tokens.masked_fill(mask == 0, -100),
    }


def _prompt() -> Inputs:
    """The first row is padded at its start, for generation."""
    tokens = _tokens(6)
    mask = torch.ones_like(tokens)
    mask[0, :2] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def _pair() -> Inputs:
    return _text() | {"labels": _tokens(7)}


def _routed_text() -> Inputs:
    return _text() | {"output_router_logits": True}  # adds the loss that balances the experts


def _image_class() -> Inputs:
    return {"pixel_values": _pixels(), "labels": torch.randint(0, 5, (BATCH,))}


def _segments() -> Inputs:
    return {"pixel_values": _pixels(), "labels": torch.randint(0, 5, (BATCH, PIXELS, PIXELS))}


def _image_and_text() -> Inputs:
    return {"pixel_values": _pixels(), "input_ids": _tokens(), "return_loss": True}


def _boxes() -> Inputs:
    labels = [
        {"class_labels": torch.randint(0, 5, (count,)), "boxes": torch.rand(count, 4) * 0.4 + 0.3}
        for count in (2, 3)
    ]
    return {"pixel_values": _pixels(), "labels": labels}


def _spectrum() -> Inputs:
    return {"input_features": torch.randn(BATCH, 8, 48), "labels": _tokens(7)}


def _spectrum_prompt() -> Inputs:
    return {"input_features": torch.randn(BATCH, 8, 48)}


def _sound() -> Inputs:
    return {"input_values": torch.randn(BATCH, 1600), "labels": _tokens(4)}


def _bert() -> torch.nn.Module:
    return hf.BertForMaskedLM(hf.BertConfig(**SMALL_BERT))


def _roberta() -> torch.nn.Module:
    return hf.RobertaForMaskedLM(hf.RobertaConfig(**SMALL_BERT))


def _gpt2() -> torch.nn.Module:
    config = hf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, **NO_END
    )
    return hf.GPT2LMHeadModel(config)


def _llama() -> torch.nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL_LLAMA, **NO_END))


def _mistral() -> torch.nn.Module:
    return hf.MistralForCausalLM(hf.MistralConfig(**SMALL_LLAMA, **NO_END, sliding_window=8))


# Unless the device is named "cpu", its default counts tokens with a histogram of int32, for which
# CPU servers have no kernel.
def _mixtral(experts: str) -> torch.nn.Module:
    config = hf.MixtralConfig(
        **SMALL_LLAMA, **NO_END, num_local_experts=4, experts_implementation=experts
    )
    return hf.MixtralForCausalLM(config)


def _qwen() -> torch.nn.Module:
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**SMALL_LLAMA, **NO_END, head_dim=8))


def _t5() -> torch.nn.Module:
    config = hf.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0, **NO_END,
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config)


def _bart() -> torch.nn.Module:
    config = hf.BartConfig(
        **SMALL_BART, **NO_END, max_position_embeddings=64, decoder_start_token_id=2,
        forced_eos_token_id=None,
    )  # fmt: skip
    return hf.BartForConditionalGeneration(config)


def _vit() -> torch.nn.Module:
    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        image_size=PIXELS, patch_size=8, num_labels=5, hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )  # fmt: skip
    return hf.ViTForImageClassification(config)


def _clip() -> torch.nn.Module:
    vision = {
        key: SMALL[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    }
    vision |= {"intermediate_size": 48, "image_size": PIXELS, "patch_size": 8}
    text = SMALL | {"attention_dropout": 0.1, "eos_token_id": 2, "bos_token_id": 1}
    config = hf.CLIPConfig(
        text_config=text, vision_config=vision | {"attention_dropout": 0.1}, projection_dim=16
    )
    return hf.CLIPModel(config)


def _whisper() -> torch.nn.Module:
    config = hf.WhisperConfig(
        **SMALL_BART, **NO_END, num_mel_bins=8, max_source_positions=24, max_target_positions=48,
        decoder_start_token_id=1, dropout=0.1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return hf.WhisperForConditionalGeneration(config)


def _wav2vec2() -> torch.nn.Module:
    config = hf.Wav2Vec2Config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, conv_dim=(16, 16, 16), conv_stride=(5, 4, 4), conv_kernel=(10, 8, 4),
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, mask_time_length=2,
    )  # fmt: skip
    return hf.Wav2Vec2ForCTC(config)


def _resnet_sizes() -> dict[str, Any]:
    return {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}


def _detr() -> torch.nn.Module:
    backbone = hf.ResNetConfig(
        **_resnet_sizes(), layer_type="basic", out_features=["stage2", "stage3", "stage4"]
    )
    config = hf.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=backbone,
        num_queries=6, num_labels=5, auxiliary_loss=True,
        **{key: value for key, value in SMALL_BART.items() if key != "vocab_size"},
    )  # fmt: skip
    return hf.DetrForObjectDetection(config)


def _resnet() -> torch.nn.Module:
    return hf.ResNetForImageClassification(hf.ResNetConfig(**_resnet_sizes(), num_labels=5))


def _convnext() -> torch.nn.Module:
    config = hf.ConvNextConfig(
        hidden_sizes=[8, 12, 16, 24], depths=[1, 1, 2, 1], num_labels=5, drop_path_rate=0.2
    )
    return hf.ConvNextForImageClassification(config)


def _segformer() -> torch.nn.Module:
    config = hf.SegformerConfig(
        hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16, num_labels=5, drop_path_rate=0.2, hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )  # fmt: skip
    return hf.SegformerForSemanticSegmentation(config)


def _mamba() -> torch.nn.Module:
    config = hf.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8, **NO_END
    )
    return hf.MambaForCausalLM(config)


# For graphs with LayerDrop, which breaks them at each layer.
_GRADIENTS_BY_LAYER = "gradients of one tensor are added in a graph before they are added to others"
_INTERPOLATES = "PyTorch has a decomposition of bilinear interpolation, in Python"

MODELS = [
    Model("BERT", _bert, _text, reads=1),
    Model("RoBERTa", _roberta, _text, reads=1),
    Model("GPT-2", _gpt2, _text, _prompt, reads=2),
    Model("Llama", _llama, _text, _prompt, reads=2),
    Model("Mistral", _mistral, _text, _prompt),
    Model(
        "Mixtral",
        lambda: _mixtral("eager"),
        _routed_text,
        _prompt,
        reads=44,
        rounds_otherwise="its experts break the graph; which sum differs was not looked for",
        loses_values_under_modes=True,
    ),
    Model("Mixtral, batched", lambda: _mixtral("batched_mm"), _routed_text, _prompt, reads=2),
    Model("Qwen", _qwen, _text, _prompt, reads=2),
    Model("T5", _t5, _pair, _prompt, reads=2),
    Model("BART", _bart, _pair, _prompt, reads=3, rounds_otherwise=_GRADIENTS_BY_LAYER),
    Model("ViT", _vit, _image_class),
    Model("CLIP", _clip, _image_and_text),
    Model("Whisper", _whisper, _spectrum, _spectrum_prompt),
    Model("Wav2Vec2", _wav2vec2, _sound, starts_on_host=True, reads=5),
    Model("DETR", _detr, _boxes, reads=14),
    Model("ResNet", _resnet, _image_class),
    Model("ConvNeXt", _convnext, _image_class),
    Model("SegFormer", _segformer, _segments, rounds_otherwise=_INTERPOLATES),
    Model("Mamba", _mamba, _text, _prompt),
]
