"""Kvasir for Hugging Face transformers 5: loads caches of prompts from a store, and saves them to it.

``` python
from kvasir.transformers import KvasirCache

kv = KvasirCache(store, model, tokenizer)
with kv.reuse(model):
    model.generate(**tokenizer(prompt, return_tensors="pt"))
```
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import DynamicCache

from ._session import Save, Session
from ._settings import is_below
from ._spec import ModelSpec
from ._store import ProfileLike, Store
from .errors import InputError, KvasirError

__all__ = ["KvasirCache", "LastLoad"]

if transformers.__version__.split(".")[0] != "5":
    raise KvasirError(f"transformers {transformers.__version__} is not supported", "wrong_version", "install transformers>=5,<6")

_VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
# Earlier versions cached the keys and values of all heads for latent attention.
_LATENT_SINCE = (5, 15)
_KNOWN_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer"}
# A caller's own cache, whose name newer versions of transformers shorten.
_OWN_CACHE = ("past_key_values", "cache")
# Options that change the rows of a cache during generation, or use none, or one of another kind. "hybrid", which models with
# sliding windows on the Hub name, is none for transformers 5.
_UNKNOWN_WAYS = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "assistant_model": None,
    "prompt_lookup_num_tokens": None,
    "assistant_early_exit": None,
    "use_mtp": False,
    "use_cache": True,
    "cache_implementation": "hybrid",
}


@dataclass(frozen=True)
class LastLoad:
    """The result of the last load.

    Attributes
    ----------
    matched_tokens : list of int
        Leading tokens of each row that were stored.
    cached_tokens : int
        Positions of the cache, including padding.
    bytes : int
        Bytes received.
    seconds : float
        Duration of lookup and load.
    """

    matched_tokens: list[int]
    cached_tokens: int
    bytes: int
    seconds: float


class KvasirCache:
    """Loads and stores the caches of a model's prompts; the caches are plain `DynamicCache` objects.

    Layers with a sliding window are loaded with the rows of all tokens, so that tokens generated over them can be stored.

    Parameters
    ----------
    store : Store
        The service.
    model : PreTrainedModel
        A causal decoder.
    tokenizer : PreTrainedTokenizerBase, optional
        Its padding token identifies left padding if no attention mask is given.
    profile : Profile, bytes, path, or str, optional
        The profile to encode caches with: its file, or its id in the store. Default: as for `Store.model`.
    weights, revision, adapter : str, optional
        Identity of the weights, if the model's configuration does not contain it.
    chunk_tokens : int, optional
        Tokens of a stored chunk.
    prefill_tokens_per_s : float, optional
        Tokens that the model computes per second, as for `Store.model`.
    quality : str or None
        Lowest quality that loads bring, as for `Store.model`.
    soft_quality : str, optional
        A quality below `quality` that a load may fall to where `deadline` leaves no time for more, or `level` says so.
    deadline : float, optional
        Time limit of a load in seconds; the quality adapts to it, not below `quality`.
    level : int, optional
        Load everything at this level, however long it takes; at the coarsest one of `quality` if that is finer.

    Raises
    ------
    InputError
        ``unknown_layers`` for an encoder-decoder, a model on several devices, or layers whose cache does not consist of keys and
        values; ``invalid_config`` for a model with a LoRA without `adapter`, or one quantized when it was loaded without
        `revision`; ``invalid_setting`` for a `soft_quality` that is not below `quality`.
    """

    def __init__(
        self,
        store: Store,
        model: Any,
        tokenizer: Any = None,
        *,
        profile: ProfileLike | None = None,
        weights: str | None = None,
        revision: str | None = None,
        adapter: str | None = None,
        chunk_tokens: int | None = None,
        prefill_tokens_per_s: float | None = None,
        quality: str | None = "transparent",
        soft_quality: str | None = None,
        deadline: float | None = None,
        level: int | None = None,
    ) -> None:
        if getattr(model.config, "is_encoder_decoder", False):
            raise InputError("the model is an encoder-decoder", "unknown_layers", "use a causal decoder")
        # Each layer's cache must be on its layer's device.
        if len(set(map(str, (getattr(model, "hf_device_map", None) or {}).values()))) > 1:
            raise InputError("the model is on several devices", "unknown_layers", "load it on one device")
        if soft_quality is not None and not is_below(soft_quality, quality):
            what = f"soft_quality is {soft_quality!r}, and quality is {quality!r}"
            raise InputError(what, "invalid_setting", "give a soft_quality that is below quality, or none")
        spec = spec_of_model(model, weights=weights, revision=revision, adapter=adapter)
        self._model = store.model(
            spec, profile, chunk_tokens=chunk_tokens, prefill_tokens_per_s=prefill_tokens_per_s, quality=quality
        )
        self._spec = spec
        self._pad = getattr(tokenizer, "pad_token_id", None)
        self._dtype, self._device = model.dtype, model.device
        self._deadline, self._level, self._soft_quality = deadline, level, soft_quality
        self._sessions: list[Session] = []
        self.last = LastLoad([], 0, 0, 0.0)
        """The result of the last load."""

    def load(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> DynamicCache:
        """Load the longest stored prefix, at most all tokens except the last.

        Parameters
        ----------
        input_ids : Tensor, [batch, tokens]
            Prompts, padded on the left.
        attention_mask : Tensor, [batch, tokens], optional
            0 for padding.

        Returns
        -------
        DynamicCache
            For ``generate(past_key_values=…)``; empty for a miss. Rows of a batch have as many positions as each can fill.
        """
        started = time.monotonic()
        pads = self._paddings(input_ids, attention_mask)
        sessions = [self._model.session(ids[pad:]) for ids, pad in zip(input_ids, pads, strict=True)]
        ends = [pad + session.matched for pad, session in zip(pads, sessions, strict=True)]
        planes = self._planes(len(sessions), max(ends))
        usable, received = [], 0
        for row, (pad, end, session) in enumerate(zip(pads, ends, sessions, strict=True)):
            into = [(k[row, :, pad:end], v[row, :, pad:end]) for k, v in planes]
            loaded = session.load(into, deadline=self._deadline, level=self._level, soft_quality=self._soft_quality)
            usable.append(pad + min(session.matched, loaded.prefix_tokens))
            received += loaded.bytes
        positions = min(*usable, input_ids.shape[1] - 1)
        cache = DynamicCache()
        for layer, (k, v) in enumerate(planes if positions > 0 else []):
            cache.update(k[:, :, :positions].to(self._device), v[:, :, :positions].to(self._device), layer)
        self._sessions = sessions
        matched = [session.matched for session in sessions]
        self.last = LastLoad(matched, positions, received, time.monotonic() - started)
        return cache

    def store(self, output_ids: torch.Tensor, cache: DynamicCache, attention_mask: torch.Tensor | None = None) -> list[Save]:
        """Save tokens of the cache that are not stored yet, in the background.

        Parameters
        ----------
        output_ids : Tensor, [batch, tokens]
            Prompts and generated tokens, padded on the left.
        cache : DynamicCache
            Their cache, after ``generate``.
        attention_mask : Tensor, [batch, prompt tokens], optional
            As for `load`.

        Returns
        -------
        list of Save
            One per row; waiting for them is optional.

        Raises
        ------
        InputError
            ``unknown_layers`` naming a layer that does not have the rows of all tokens.
        """
        planes = [rows_of(layer, number) for number, layer in enumerate(cache.layers)]
        count = planes[0][0].shape[2] if planes else 0
        saves = []
        for row, (ids, pad) in enumerate(zip(output_ids, self._paddings(output_ids, attention_mask), strict=True)):
            tokens = ids[pad:count].tolist()
            kv = [(k[row, :, pad:], v[row, :, pad:]) for k, v in planes]
            saves.append(self._session(row, tokens).save_in_background(kv, len(tokens)))
        return saves

    @contextmanager
    def reuse(self, model: Any) -> Iterator[None]:
        """Make ``model.generate`` load before it generates, and save afterwards.

        Calls that pass or name their own cache, use none, use beam search, or speculate are unchanged, and so are those
        with more than one positional argument.

        Parameters
        ----------
        model : PreTrainedModel
            The model that this object was made for.
        """
        # The model's own where this is within another block, else its class's.
        generate, own = model.generate, model.__dict__.get("generate")

        def with_store(inputs: Any = None, *others: Any, **options: Any) -> Any:
            ids = options.pop("input_ids", inputs)
            mask = options.get("attention_mask")
            # Without a mask, transformers may number the positions of padding too.
            is_padded_unsaid = mask is None and ids is not None and len(ids) > 1
            has_own = any(options.get(name) is not None for name in _OWN_CACHE)
            if others or ids is None or is_padded_unsaid or has_own or not _is_usual(model, options):
                return generate(ids, *others, **options)
            cache = self.load(ids, mask)
            output = generate(ids, past_key_values=cache, **options)
            self.store(getattr(output, "sequences", output), cache, mask)
            return output

        model.generate = with_store
        try:
            yield
        finally:
            if own is None:
                del model.generate
            else:
                model.generate = own

    def drain(self) -> None:
        """Wait until all background saves have ended."""
        self._model.drain()

    def _paddings(self, ids: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
        """Count the padding tokens on the left of each row."""
        if ids.dim() != 2:
            raise InputError(f"input_ids has shape {list(ids.shape)}", "wrong_shape", "give [batch, tokens]")
        if mask is None:
            if self._pad is None or len(ids) == 1:
                return [0] * len(ids)
            mask = ids != self._pad
        real = mask.to(torch.int64)
        pads = real.argmax(dim=1)
        if bool((real.diff(dim=1) < 0).any()):
            raise InputError("a row is padded on the right or in the middle", "wrong_padding", 'tokenize with padding_side="left"')
        return [int(pad) for pad in pads]

    def _planes(self, rows: int, tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return zero-filled caches for the rows in CPU memory."""

        def plane(shape: tuple[int, int]) -> torch.Tensor:
            return torch.zeros(rows, shape[0], tokens, shape[1], dtype=self._dtype)

        return [(plane(k), plane(v)) for _, (k, v) in self._spec.layers]

    def _session(self, row: int, tokens: list[int]) -> Session:
        """Return the session of a row's load, which knows its loss, if the row continues it."""
        if row < len(self._sessions):
            session = self._sessions[row]
            known = len(session.tokens)
            if session.tokens == tokens[:known]:
                session.extend(tokens[known:])
                return session
            if session.tokens[: len(tokens)] == tokens:
                return session
        return self._model.session(tokens)


def _has_tensors(given: Any) -> bool:
    if isinstance(given, dict):
        return any(map(_has_tensors, given.values()))
    return isinstance(given, torch.Tensor) or (isinstance(given, (list, tuple)) and any(map(_has_tensors, given)))


def _is_usual(model: Any, options: dict[str, Any]) -> bool:
    """Whether a call of ``generate`` keeps the rows of the cache in place, by its options and the underlying configuration."""
    # Images, embeddings and positions change rows that token ids do not tell apart.
    if any(_has_tensors(given) and name != "attention_mask" for name, given in options.items()):
        return False
    # What a given configuration leaves open is the model's.
    configs = (options.get("generation_config"), model.generation_config)

    def is_usual(name: str, usual: Any) -> bool:
        given = [options[name]] if name in options else [getattr(config, name, None) for config in configs]
        return bool(next((value for value in given if value is not None), usual) == usual)

    return all(is_usual(name, usual) for name, usual in _UNKNOWN_WAYS.items())


def spec_of_model(model: Any, *, weights: str | None = None, revision: str | None = None, adapter: str | None = None) -> ModelSpec:
    """Return the spec of a model's cache in transformers.

    Parameters
    ----------
    model : PreTrainedModel
        A causal decoder.
    weights, revision, adapter : str, optional
        Identity of the weights, if the model's configuration does not contain it.

    Raises
    ------
    InputError
        ``invalid_config`` for a model with a LoRA without `adapter`, or one quantized when it was loaded without `revision`;
        ``unknown_layers`` for layers without keys and values.
    """
    if adapter is None and getattr(model, "peft_config", None):
        raise InputError("the model has a LoRA, which changes its cache", "invalid_config", "give adapter=, its name and digest")
    # Otherwise the repository contains the quantized weights, and its commit identifies them.
    if revision is None and not getattr(getattr(model, "hf_quantizer", None), "pre_quantized", True):
        what = "the weights were quantized when they were loaded, which changes the cache"
        raise InputError(what, "invalid_config", "give revision=, one for this quantization")

    def read(pairing: str | None) -> ModelSpec:
        return ModelSpec.from_config(
            model.config,
            weights=weights,
            revision=revision,
            adapter=adapter,
            kv_dtype=str(model.dtype),
            pairing=pairing,
        )

    spec = read(None)
    kinds = [kind for kind, _ in spec.layers]
    if "none" in kinds:
        what = f"layer {kinds.index('none')} has no keys and values"
        raise InputError(what, "unknown_layers", "use a model whose layers all have")
    if "mla" in kinds:
        if _VERSION < _LATENT_SINCE:
            what = f"transformers {transformers.__version__} does not cache the latent of latent attention"
            raise KvasirError(what, "wrong_version", "install transformers>=5.15,<6 for this model")
        # transformers caches the rotary key of latent attention de-interleaved.
        return read("half")
    return spec


def rows_of(layer: Any, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of all tokens of a layer of a cache, in CPU memory."""
    kind = type(layer).__name__
    if kind not in _KNOWN_LAYERS:
        raise InputError(f"layer {number} is a {kind}", "unknown_layers", f"supported are {', '.join(sorted(_KNOWN_LAYERS))}")
    if layer.get_seq_length() != layer.keys.shape[2]:
        what = f"layer {number}, a {kind}, keeps only the last {layer.keys.shape[2]} of {layer.get_seq_length()} tokens"
        raise InputError(what, "unknown_layers", "generate with a cache from KvasirCache.load")
    return layer.keys.detach().cpu(), layer.values.detach().cpu()
