"""Kvasir under Hugging Face transformers, versions 5: caches of prompts come from a store, and go there.

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
from ._spec import ModelSpec
from ._store import ProfileLike, Store
from .errors import InputError, KvasirError

__all__ = ["KvasirCache", "LastLoad"]

if transformers.__version__.split(".")[0] != "5":
    raise KvasirError(f"transformers {transformers.__version__} is not known here", "wrong_version", "install transformers>=5,<6")

_VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
# Before it, layers of latent attention kept the keys and values of all heads.
_LATENT_SINCE = (5, 15)
_KNOWN_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer"}
# What changes the rows of a cache while it generates.
_UNKNOWN_WAYS = {"num_beams": 1, "num_return_sequences": 1, "assistant_model": None, "prompt_lookup_num_tokens": None}


@dataclass(frozen=True)
class LastLoad:
    """What the last load brought.

    Attributes
    ----------
    matched_tokens : list of int
        Leading tokens of each row that were stored.
    cached_tokens : int
        Positions of the cache, padding included.
    bytes : int
        Bytes that arrived.
    seconds : float
        How long lookup and load took.
    """

    matched_tokens: list[int]
    cached_tokens: int
    bytes: int
    seconds: float


class KvasirCache:
    """Loads and stores the caches of a model's prompts; the caches are plain `DynamicCache` objects.

    Layers with a sliding window are loaded with the rows of all tokens, so that text generated over them can be stored.

    Parameters
    ----------
    store : Store
        The service.
    model : PreTrainedModel
        A causal decoder.
    tokenizer : PreTrainedTokenizerBase, optional
        Its padding token tells left padding apart where no attention mask is given.
    profile : Profile, bytes, path, or str, optional
        The profile for encoding; its file, or its id in the store. The default is that of `Store.model`.
    weights, revision, adapter : str, optional
        Identity of the weights, where the model's configuration does not say it.
    chunk_tokens : int, optional
        Tokens of a stored chunk.
    prefill_tokens_per_s : float, optional
        Tokens that the model computes in a second, as `Store.model` says.
    quality : str, optional
        Worst quality that loads bring, as `Store.model` says.
    deadline : float, optional
        Seconds that a load may take; the quality is what there is time for.
    level : int, optional
        Load everything at this level, however long it takes.

    Raises
    ------
    InputError
        ``unknown_layers`` for an encoder-decoder or layers whose cache is not of keys and values.
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
        quality: str | None = None,
        deadline: float | None = None,
        level: int | None = None,
    ) -> None:
        if getattr(model.config, "is_encoder_decoder", False):
            raise InputError("the model is an encoder-decoder", "unknown_layers", "use a causal decoder")
        spec = spec_of_model(model, weights=weights, revision=revision, adapter=adapter)
        self._model = store.model(
            spec, profile, chunk_tokens=chunk_tokens, prefill_tokens_per_s=prefill_tokens_per_s, quality=quality
        )
        self._spec = spec
        self._pad = getattr(tokenizer, "pad_token_id", None)
        self._dtype, self._device = model.dtype, model.device
        self._deadline, self._level = deadline, level
        self._sessions: list[Session] = []
        self.last = LastLoad([], 0, 0, 0.0)
        """What the last load brought."""

    def load(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> DynamicCache:
        """Load the longest stored prefix, at most all tokens but the last.

        Parameters
        ----------
        input_ids : Tensor, [batch, tokens]
            Prompts, padded on the left.
        attention_mask : Tensor, [batch, tokens], optional
            0 where there is padding.

        Returns
        -------
        DynamicCache
            For ``generate(past_key_values=…)``; empty for a miss. Rows of a batch have as many positions as all of them can fill.
        """
        started = time.monotonic()
        pads = self._paddings(input_ids, attention_mask)
        sessions = [self._model.session(ids[pad:]) for ids, pad in zip(input_ids, pads, strict=True)]
        ends = [pad + session.matched for pad, session in zip(pads, sessions, strict=True)]
        planes = self._planes(len(sessions), max(ends))
        usable, received = [], 0
        for row, (pad, end, session) in enumerate(zip(pads, ends, sessions, strict=True)):
            into = [(k[row, :, pad:end], v[row, :, pad:end]) for k, v in planes]
            loaded = session.load(into, deadline=self._deadline, level=self._level)
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
        """Save what the cache holds and the store does not, in the background.

        Parameters
        ----------
        output_ids : Tensor, [batch, tokens]
            Prompts and what was generated, padded on the left.
        cache : DynamicCache
            Their cache, after ``generate``.
        attention_mask : Tensor, [batch, prompt tokens], optional
            As for `load`.

        Returns
        -------
        list of Save
            One a row; wait for them, or do not.

        Raises
        ------
        InputError
            ``unknown_layers`` naming a layer that has not the rows of all tokens.
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
        """Let ``model.generate`` load before it generates, and store afterwards.

        Calls that bring a cache of their own, search with beams, or speculate are left as they are.

        Parameters
        ----------
        model : PreTrainedModel
            The model that this object was made for.
        """
        generate = model.generate

        def with_store(inputs: Any = None, **options: Any) -> Any:
            ids = options.pop("input_ids", inputs)
            if ids is None or not _is_usual(model, options) or options.get("past_key_values") is not None:
                return generate(ids, **options)
            mask = options.get("attention_mask")
            cache = self.load(ids, mask)
            output = generate(ids, past_key_values=cache, **options)
            self.store(getattr(output, "sequences", output), cache, mask)
            return output

        model.generate = with_store
        try:
            yield
        finally:
            del model.generate

    def drain(self) -> None:
        """Wait until nothing is left to be saved."""
        self._model.drain()

    def _paddings(self, ids: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
        """Padding tokens on the left of each row."""
        if ids.dim() != 2:
            raise InputError(f"input_ids has shape {list(ids.shape)}", "wrong_shape", "give [batch, tokens]")
        if mask is None:
            if self._pad is None or len(ids) == 1:
                return [0] * len(ids)
            mask = ids != self._pad
        real = mask.to(torch.int64)
        pads = real.argmax(dim=1)
        if bool((real.diff(dim=1) < 0).any()):
            raise InputError("a row is padded on the right or between", "wrong_padding", 'tokenize with padding_side="left"')
        return [int(pad) for pad in pads]

    def _planes(self, rows: int, tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Zeros for the rows' caches in the CPU's memory."""

        def plane(shape: tuple[int, int]) -> torch.Tensor:
            return torch.zeros(rows, shape[0], tokens, shape[1], dtype=self._dtype)

        return [(plane(k), plane(v)) for _, (k, v) in self._spec.layers]

    def _session(self, row: int, tokens: list[int]) -> Session:
        """The session of a row's load, which knows what it was loaded at, where the row goes on from there."""
        if row < len(self._sessions):
            session = self._sessions[row]
            known = len(session.tokens)
            if session.tokens == tokens[:known]:
                session.extend(tokens[known:])
                return session
            if session.tokens[: len(tokens)] == tokens:
                return session
        return self._model.session(tokens)


def _is_usual(model: Any, options: dict[str, Any]) -> bool:
    """Whether a call of ``generate`` leaves each row of the cache what it is, by its options and the configuration beneath them."""
    config = options.get("generation_config") or model.generation_config
    return all(options.get(name, getattr(config, name, None)) in (None, usual) for name, usual in _UNKNOWN_WAYS.items())


def spec_of_model(model: Any, *, weights: str | None = None, revision: str | None = None, adapter: str | None = None) -> ModelSpec:
    """Give the spec of the cache that transformers makes of a model.

    Parameters
    ----------
    model : PreTrainedModel
        A causal decoder.
    weights, revision, adapter : str, optional
        Identity of the weights, where the model's configuration does not say it.
    """

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
            what = f"transformers {transformers.__version__} does not keep the latent of latent attention"
            raise KvasirError(what, "wrong_version", "install transformers>=5.15,<6 for this model")
        # transformers keeps the rotary key of latent attention de-interleaved.
        return read("half")
    return spec


def rows_of(layer: Any, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the keys and values of a layer of a cache, of all its tokens, in the CPU's memory."""
    kind = type(layer).__name__
    if kind not in _KNOWN_LAYERS:
        raise InputError(f"layer {number} is a {kind}", "unknown_layers", f"known are {', '.join(sorted(_KNOWN_LAYERS))}")
    if layer.get_seq_length() != layer.keys.shape[2]:
        what = f"layer {number}, a {kind}, keeps only the last {layer.keys.shape[2]} of {layer.get_seq_length()} tokens"
        raise InputError(what, "unknown_layers", "generate with a cache that KvasirCache.load made")
    return layer.keys.detach().cpu(), layer.values.detach().cpu()
