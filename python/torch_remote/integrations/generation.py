"""transformers' `generate()`: how often it waits for the server to know whether to stop.

transformers 5.22.2 decides with a `StopCheck` (generation/utils.py:385), which reads a value after
each token, and reads each token once more for a streamer. Its `DeferredStopCheck`, made for MPS,
is told how many steps it has to undo; ours uses the same place to read only every k tokens.
"""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Any

import torch

from .._backend import name
from .._patches import patch, patch_item
from .choice import change_modules

_every = 1


class _StopCheckEvery:
    """Restores the number of before, at the end of a `with` block."""

    def __init__(self, before: int) -> None:
        self._before = before

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _every
        _every = self._before


def stop_check_every(tokens: int) -> _StopCheckEvery:
    """Makes `generate()` of transformers ask only every so many tokens whether it may stop.

    Each question is a wait for the server. The tokens are the same; those made after the end, at
    most `tokens - 1`, are thrown away, but they take time and random numbers. A streamer gets its
    tokens together. Holds for all threads, from the call on or for a `with` block:

        with torch_remote.stop_check_every(16):
            model.generate(**inputs, max_new_tokens=200)
    """
    global _every
    if tokens < 1:
        raise ValueError(f"stop_check_every({tokens}): the number of tokens must be 1 or more")
    before, _every = _every, tokens
    return _StopCheckEvery(before)


class _StopCheck:
    """Used by one call of `generate()`. Reads what several steps have made in one wait."""

    def __init__(self, every: int, max_length: int | None, cache: Any, streamer: Any) -> None:
        self._every = every
        self._max_length = max_length
        self._cache = cache  # None unless the caller gets it
        self._streamer = streamer
        self._steps: list[torch.Tensor] = []  # for each: is all finished, then the new tokens
        self._to_undo = 0
        if cache is not None:
            cache.activate_past_recording()  # so that layers with a window can go back too

    def __call__(self, unfinished: torch.Tensor, tokens: torch.Tensor, length: int) -> bool:
        is_finished = (unfinished.max() == 0).to(tokens.dtype).reshape(1)
        self._steps.append(
            torch.cat((is_finished, tokens)) if self._streamer is not None else is_finished
        )
        is_last = self._max_length is not None and length >= self._max_length
        if len(self._steps) < self._every and not is_last:
            return False
        return self._read() or is_last

    def _read(self) -> bool:
        """Whether one of the steps was the last."""
        steps = torch.stack(self._steps).cpu()
        self._steps.clear()
        ends = steps[:, 0].nonzero().flatten().tolist()
        used = ends[0] + 1 if ends else len(steps)
        self._to_undo = len(steps) - used
        if self._streamer is not None:
            for tokens in steps[:used, 1:]:
                self._streamer.put(tokens)
        if self._cache is not None and not ends:
            self._cache.crop(0)  # forgets what was recorded for going back
        return bool(ends)

    def finish(self) -> int:
        """How many steps `generate()` has to undo."""
        if self._steps:  # something else has ended the loop
            self._read()
        if self._cache is not None:
            self._cache.crop(-self._to_undo)
            for layer in self._cache.layers:
                if hasattr(layer, "record_past"):
                    layer.record_past = False
        return self._to_undo


class _Checks:
    """In place of the class DeferredStopCheck: makes ours for our device."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._original, attribute)

    def is_supported(
        self, device: torch.device, cache: Any, cache_is_returned: bool, is_assistant: bool
    ) -> bool:
        if device.type != name():
            return bool(self._original.is_supported(device, cache, cache_is_returned, is_assistant))
        # With steps to undo, a cache that the caller gets must be able to go back.
        can_undo = cache is None or not cache_is_returned or cache.is_croppable
        return not is_assistant and (_every == 1 or bool(can_undo))

    def __call__(
        self,
        input_ids: torch.Tensor,
        max_length: int,
        cache: Any,
        cache_is_returned: bool,
        streamer: Any = None,
    ) -> Any:
        if input_ids.device.type != name():
            return self._original(input_ids, max_length, cache, cache_is_returned, streamer)
        must_undo = _every > 1 and cache_is_returned
        return _StopCheck(_every, max_length, cache if must_undo else None, streamer)


def _without_reading(sdpa_mask: Any) -> Any:
    """Makes the mask of one new token from a padding mask without a look at its values.

    transformers looks whether anything is padded, to leave out a mask that masks nothing. On our
    device this is a wait for each token. `generate()` itself leaves out such a mask at its start.
    """

    @functools.wraps(sdpa_mask)
    def make(*args: Any, **options: Any) -> Any:
        padding = options.get("attention_mask")
        is_ours = isinstance(padding, torch.Tensor) and padding.device.type == name()
        if is_ours and options.get("q_length") == 1:
            options.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        return sdpa_mask(*args, **options)

    return make


def _change_masks(module: Any) -> None:
    # masking_utils.py:271 and :333, _ignore_causal_mask_sdpa and _ignore_bidirectional_mask_sdpa.
    # The table is transformers' own place for other makers of masks.
    makers = module.AttentionMaskInterface._global_mapping
    patch_item(makers, "sdpa", _without_reading(makers["sdpa"]))


def _change(module: Any) -> None:
    # generation/utils.py:3214, _sample: a name of the module, looked up in each call.
    if hasattr(module, "DeferredStopCheck"):  # older versions read a value after each token
        patch(module, "DeferredStopCheck", _Checks(module.DeferredStopCheck))


def install() -> None:
    change_modules(
        {
            "transformers.generation.utils": _change,
            "transformers.masking_utils": _change_masks,
        }
    )
