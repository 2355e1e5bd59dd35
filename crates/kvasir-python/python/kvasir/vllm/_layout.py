"""The layout of rows in vLLM's blocks: a table, verified with vLLM's own writer.

Rows are copied with NumPy rather than torch: computing with torch in one of our threads creates OpenMP threads for it, and once
the process has more of those than cores, vLLM's own sleep between operators instead of spinning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from ..errors import InputError

Array = np.ndarray[Any, Any]
Planes = tuple[Array, Array]
"""Keys and values of some layers, ``[layers, kv_heads, tokens, head_dim]``."""
Rows = list[Planes]
"""Keys and values of each layer, ``[kv_heads, tokens, head_dim]``."""
Taken = list[Array | None]
"""For each group of layers, raw copies of blocks, ``[layers, blocks, elements]``; None for an omitted group."""
BlockTables = tuple[list[int], ...]
"""For each group of layers, the blocks of consecutive tokens."""
NULL_BLOCK = 0
"""Placeholder in a table for blocks that vLLM has dropped because they are outside a sliding window."""
# Unsupported layers, and what to do about them.
_DECLINED = {
    MambaSpec: ("the model has Mamba layers, whose cache is a state and not rows of tokens", "serve this model without Kvasir"),
    ChunkedLocalAttentionSpec: (
        "vLLM drops blocks of chunked local attention",
        "serve with --disable-hybrid-kv-cache-manager: then vLLM keeps them",
    ),
}


def check_groups(vllm_config: Any, kv_cache_config: Any) -> None:
    """Reject caches that this connector does not support.

    Raises
    ------
    InputError
        ``unknown_layout`` naming it.
    """

    def refuse(what: str, remedy: str) -> None:
        raise InputError(what, "unknown_layout", remedy)

    parallel = vllm_config.parallel_config
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size", "nnodes"):
        if getattr(parallel, name, 1) > 1:
            refuse(f"{name} is {getattr(parallel, name)}", "Kvasir only supports tensor parallelism on one host so far")
    if not getattr(vllm_config.model_config, "is_prefix_caching_supported", True):
        # Such as the mean over a prompt: vLLM fails if a part of it was loaded.
        refuse("vLLM computes this model's prompts as a whole", "serve this model without Kvasir")
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    for spec in specs:
        if type(spec) in _DECLINED:
            refuse(*_DECLINED[type(spec)])
        # If vLLM uses the same blocks for all layers, a FullAttentionSpec may have a window, or chunks (Llama 4): all rows are
        # kept nevertheless.
        if type(spec) not in (FullAttentionSpec, SlidingWindowSpec, MLAAttentionSpec):
            remedy = "Kvasir only supports caches of full, latent and sliding window attention so far"
            refuse(f"a layer's cache has the type {type(spec).__name__}", remedy)
        if isinstance(spec, MLAAttentionSpec):
            if parallel.tensor_parallel_size > 1:
                refuse(f"latent attention on {parallel.tensor_parallel_size} ranks", "Kvasir only supports it on one rank so far")
            if not vllm_config.cache_config.enable_prefix_caching:
                # The reference kernels of vLLM's CPU build cannot start after a prefix.
                refuse("vLLM runs latent attention without prefix caching", "use a CPU with AMX, and --enable-prefix-caching")
            if spec.model_version is not None or spec.state_content_bytes is not None or spec.tokens_per_state != 1:
                refuse("the cache of latent attention is packed", "Kvasir only supports latents of one token each, as in the model")
        if spec.kv_quant_mode not in (KVQuantMode.NONE, KVQuantMode.FP8_PER_TENSOR):
            refuse(f"the cache is quantised as {spec.kv_quant_mode.name}", "use --kv-cache-dtype auto or fp8")
    if len({spec.block_size for spec in specs}) != 1:
        sizes = sorted({spec.block_size for spec in specs})
        refuse(f"blocks have {sizes} tokens", "Kvasir only supports caches whose blocks all have the same number of tokens so far")


def window_of(kv_cache_config: Any) -> int | None:
    """Return the shortest window, in tokens, outside which vLLM drops blocks; None if it keeps all."""
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    return min((spec.sliding_window for spec in specs if isinstance(spec, SlidingWindowSpec)), default=None)


class _Group:
    """Layers that share vLLM's blocks."""

    def __init__(self, vllm_config: Any, group: Any, caches: dict[str, torch.Tensor]) -> None:
        self.spec = group.kv_cache_spec
        self.is_windowed = isinstance(self.spec, SlidingWindowSpec)
        self.block_tokens: int = self.spec.block_size
        # Elements of a row of keys and of values; for latent attention, of the latent and of the rotary key.
        self.dims: tuple[int, int] = (self.spec.head_size, self.spec.head_size)
        self.is_latent = isinstance(self.spec, MLAAttentionSpec)
        # Two-byte values are copied as raw bits.
        self._dtype = "uint16" if self.spec.dtype.itemsize == 2 else str(self.spec.dtype).removeprefix("torch.")
        if self.is_latent:
            text = vllm_config.model_config.hf_text_config
            self.dims = text.kv_lora_rank, text.qk_rope_head_dim
        cache_dtype = vllm_config.cache_config.cache_dtype
        self._kernels = _kernels(self.spec, vllm_config.model_config.dtype, cache_dtype)
        self._check(vllm_config.model_config.dtype, cache_dtype)
        # Layer numbers, and in the same order the contents of their blocks.
        self.layers = [_number(name) for name in group.layer_names]
        self._caches = [self._flat(caches[name]) for name in group.layer_names]

    def empty(self, tokens: int) -> Planes:
        """Allocate memory for the rows of whole blocks with this many tokens."""
        return self._empty_rows(len(self._caches), -(-tokens // self.block_tokens) * self.block_tokens)

    def _empty_rows(self, layers: int, tokens: int) -> Planes:
        keys, values = (np.empty((layers, self.spec.num_kv_heads, tokens, dim), self._dtype) for dim in self.dims)
        return keys, values

    def take(self, blocks: Sequence[int]) -> Array:
        """Copy blocks in vLLM's layout: ``[layers, blocks, elements]``."""
        taken = self._empty_blocks(len(self._caches), len(blocks))
        for cache, out in zip(self._caches, taken, strict=True):
            # If it checks indices, NumPy fills a copy first.
            np.take(cache, blocks, axis=0, out=out, mode="clip")
        return taken

    def put(self, taken: Array, blocks: Sequence[int]) -> None:
        """Write blocks in vLLM's layout, except those that vLLM dropped outside a window."""
        wanted = [n for n, block in enumerate(blocks) if block != NULL_BLOCK]
        if len(wanted) < len(blocks):
            taken = taken[:, wanted]
        index = [blocks[n] for n in wanted]
        for cache, of in zip(self._caches, taken, strict=True):
            cache[index] = of

    def to_rows(self, taken: Array, rows: Planes, first: int) -> None:
        """Write the contents of blocks into rows, starting at token ``first``."""
        for plane, of in self._pairs(taken, rows, first):
            np.copyto(of, plane)

    def from_rows(self, rows: Planes, first: int, count: int) -> Array:
        """Return ``count`` blocks from rows starting at token ``first``, in vLLM's layout."""
        taken = self._empty_blocks(len(rows[0]), count)
        for plane, of in self._pairs(taken, rows, first):
            np.copyto(plane, of)
        return taken

    def _empty_blocks(self, layers: int, count: int) -> Array:
        return np.empty((layers, count, self.spec.num_kv_heads * self.block_tokens * sum(self.dims)), self._dtype)

    def _pairs(self, taken: Array, rows: Planes, first: int) -> Iterator[Planes]:
        """Return views of equal shape, of keys and of values: of raw blocks, and of the same tokens in rows."""
        end = first + taken.shape[1] * self.block_tokens
        for plane, of in zip(self._planes(taken), rows, strict=True):
            by_block = _split(of[:, :, first:end], 2, (-1, self.block_tokens)).swapaxes(1, 2)
            # Splits axes, which never copies.
            yield plane, by_block.reshape(plane.shape)

    def _planes(self, blocks: Array) -> Planes:
        """Return keys and values of blocks ``[…, elements]`` as views ``[…, kv_heads, block_tokens…, head_dim…]``.

        A block is declared as ``[kv_heads, block_tokens, 2 * head_dim]``. vLLM's CPU kernels store in it, for each head, the
        keys followed by the values, both in a private order. A block of latents is as declared: ``[1, block_tokens,
        latent + rotary key]``.
        """
        heads, tokens, dim = self.spec.num_kv_heads, self.block_tokens, self.spec.head_size
        if self.is_latent:
            rows = _split(blocks, -1, (1, tokens, dim))
            return rows[..., : self.dims[0]], rows[..., self.dims[0] :]
        halves = _split(blocks, -1, (heads, 2, tokens * dim))
        order = _ORDERS[self._kernels]
        return order.keys(halves[..., 0, :], tokens, dim), order.values(halves[..., 1, :], tokens, dim)

    def _flat(self, cache: torch.Tensor) -> Array:
        """Return a layer's blocks as ``[blocks, elements]``, if `_planes` supports their layout."""
        heads, tokens = self.spec.num_kv_heads, self.block_tokens
        if cache.shape[1:] != (heads, tokens, sum(self.dims)) or not cache[0].is_contiguous():
            what = f"vLLM's blocks have the shape {list(cache.shape[1:])} and strides {list(cache.stride()[1:])}"
            raise InputError(what, "unknown_layout", "report this with vLLM's version; vLLM continues without Kvasir")
        blocks: Array = cache.view(len(cache), -1).view(getattr(torch, self._dtype)).numpy()
        return blocks

    def _check(self, computed: torch.dtype, cache_dtype: str) -> None:
        """Let vLLM write two blocks of known rows, and read them back with the table."""
        from vllm import _custom_ops as ops

        spec, tokens = self.spec, self.block_tokens
        heads, dim = spec.num_kv_heads, spec.head_size
        keys, values = (torch.randn(2 * tokens, heads, dim).to(computed) for _ in range(2))
        is_fp8 = spec.dtype == torch.uint8
        if is_fp8:
            # Without values that vLLM's writer rounds.
            keys, values = (rows.to(torch.float8_e4m3fn).to(computed) for rows in (keys, values))
        slots = torch.arange(2 * tokens)
        if self.is_latent:
            keys, values = (torch.randn(2 * tokens, 1, of).to(computed) for of in self.dims)
            cache = torch.zeros(2, 1, tokens, dim, dtype=spec.dtype)
            ops.amx_mla_concat_and_cache(keys[:, 0], values[:, 0], cache.squeeze(1), slots)
        else:
            cache = torch.zeros(2, heads, tokens, 2 * dim, dtype=spec.dtype)
            halves = cache.view(2, heads, 2 * tokens, dim).chunk(2, dim=2)
            ops.cpu_attn_reshape_and_cache(keys, values, *halves, slots, self._kernels, kv_cache_dtype=cache_dtype)
        rows, blocks = self._empty_rows(1, 2 * tokens), self._flat(cache)[None]
        self.to_rows(blocks, rows, 0)
        is_known = np.array_equal(self.from_rows(rows, 0, 2), blocks)
        for wrote, plane in zip((keys, values), rows, strict=True):
            found = torch.from_numpy(plane[0]).view(spec.dtype).transpose(0, 1)
            # Compare as numbers: the writer does not preserve the sign of 0.
            is_known &= torch.equal(found.view(torch.float8_e4m3fn).to(computed) if is_fp8 else found, wrote)
        if not is_known:
            what = f"vLLM's kernels {self._kernels} use an unknown block layout"
            raise InputError(what, "unknown_layout", "report this with vLLM's version and the CPU; vLLM continues without Kvasir")


@dataclass(frozen=True)
class BlockRows:
    """Rows that blocks are read into or written from: by group of layers, and the same memory by layer."""

    groups: list[Planes]
    layers: Rows


class Blocks:
    """vLLM's blocks of every layer.

    Raises
    ------
    InputError
        ``unknown_layout`` if the table has no entry for the platform, or vLLM's writer disagrees with it.
    """

    def __init__(self, vllm_config: Any, kv_cache_config: Any, caches: dict[str, torch.Tensor]) -> None:
        check_groups(vllm_config, kv_cache_config)
        self._groups = [_Group(vllm_config, group, caches) for group in kv_cache_config.kv_cache_groups]
        self.block_tokens = self._groups[0].block_tokens
        self.has_windows = any(group.is_windowed for group in self._groups)
        # vLLM requires whole loads if it has more than one table, and a partial load has no valid window after it.
        self.can_load_in_part = len(self._groups) == 1 and not self.has_windows
        groups = {layer: group for group in self._groups for layer in group.layers}
        names = [name for group in kv_cache_config.kv_cache_groups for name in group.layer_names]
        if sorted(groups) != list(range(len(names))):
            raise InputError(f"the cache has the layers {sorted(names)}", "unknown_layout", "vLLM continues without Kvasir")
        self.layers = len(names)
        self._group_of = [groups[layer] for layer in range(len(names))]
        self._windowed_layers = [layer for group in self._groups if group.is_windowed for layer in group.layers]

    def take(self, blocks: BlockTables, *, windowed: bool) -> Taken:
        """Copy blocks of layers with a window, or of those without one. Must be fast: a step waits for it."""
        groups = zip(self._groups, blocks, strict=True)
        return [group.take(ids) if ids and group.is_windowed == windowed else None for group, ids in groups]

    def put(self, taken: Taken, blocks: BlockTables) -> None:
        """Write blocks that `from_rows` returned."""
        for group, of_group, ids in zip(self._groups, taken, blocks, strict=True):
            if of_group is not None:
                group.put(of_group, ids)

    def to_rows(self, taken: Taken, rows: BlockRows, first: int) -> None:
        """Write the contents of whole blocks into rows, starting at token ``first``, which begins a block."""
        for group, of_group, planes in zip(self._groups, taken, rows.groups, strict=True):
            if of_group is not None:
                group.to_rows(of_group, planes, first)

    def from_rows(self, rows: BlockRows, first: int, count: int) -> Taken:
        """Return ``count`` whole blocks from rows starting at token ``first``, in vLLM's layout."""
        return [group.from_rows(planes, first, count) for group, planes in zip(self._groups, rows.groups, strict=True)]

    def begin_of(self, token: int) -> int:
        """Return the first token of a token's block."""
        return token - token % self.block_tokens

    def copy_windowed(self, of: tuple[Rows, int], to: tuple[Rows, int], first: int, end: int) -> None:
        """Copy the rows of tokens ``first`` to ``end`` in layers with a window. Each side has the token that it begins with."""
        (of_rows, of_origin), (to_rows, to_origin) = of, to
        for layer in self._windowed_layers:
            for plane, copy in zip(of_rows[layer], to_rows[layer], strict=True):
                copy[:, first - to_origin : end - to_origin] = plane[:, first - of_origin : end - of_origin]

    def empty(self, tokens: int) -> BlockRows:
        """Allocate memory for the rows of this many tokens. Pages that are never written use no physical memory."""
        groups = [group.empty(tokens) for group in self._groups]
        by_layer = {
            layer: planes
            for group, of_group in zip(self._groups, groups, strict=True)
            for layer, planes in zip(group.layers, zip(*of_group, strict=True), strict=True)
        }
        return BlockRows(groups, [by_layer[layer] for layer in range(len(by_layer))])

    def bytes_of(self, tokens: int, *, windowed: bool | None = None) -> int:
        """Return the size of the rows of this many tokens, in layers with a window, without one, or in all."""
        groups = [group for group in self._group_of if windowed in (None, group.is_windowed)]
        return int(tokens * sum(group.spec.num_kv_heads * sum(group.dims) * group.spec.dtype.itemsize for group in groups))


def _kernels(spec: Any, computed: torch.dtype, cache_dtype: str) -> str:
    """Return the kernels that vLLM selects for this CPU; they determine the layout of rows."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        what = f"caches in the memory of {current_platform.device_type} devices are not supported yet"
        raise InputError(what, "unknown_layout", "vLLM continues without Kvasir")
    if isinstance(spec, MLAAttentionSpec):
        return "amx_mla"
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    kernels = str(_get_attn_isa(computed, spec.block_size, spec.head_size, cache_dtype))
    if kernels not in _ORDERS:
        raise InputError(
            f"the layout of vLLM's kernels {kernels} is not supported yet", "unknown_layout", "vLLM continues without Kvasir"
        )
    return kernels


def _split(array: Array, axis: int, into: tuple[int, ...]) -> Array:
    """Return a view with one axis split."""
    axis %= array.ndim
    return array.reshape(*array.shape[:axis], *into, *array.shape[axis + 1 :])


class _Vector:
    """Keys transposed, values unchanged."""

    @staticmethod
    def keys(half: Array, tokens: int, dim: int) -> Array:
        return _split(half, -1, (dim, tokens)).swapaxes(-1, -2)

    @staticmethod
    def values(half: Array, tokens: int, dim: int) -> Array:
        return _split(half, -1, (tokens, dim))


class _Tiles:
    """Operands of AMX: tiles of 16 rows of pairs that are multiplied together."""

    @staticmethod
    def keys(half: Array, tokens: int, dim: int) -> Array:
        # [tokens / 16, dim / 2, 16 tokens, 2 of dim]
        return _split(half, -1, (tokens // 16, dim // 2, 16, 2)).swapaxes(-3, -2)

    @staticmethod
    def values(half: Array, tokens: int, dim: int) -> Array:
        # [dim / 16, tokens / 2, 16 of dim, 2 tokens]
        return np.moveaxis(_split(half, -1, (dim // 16, tokens // 2, 16, 2)), (-3, -1), (-4, -3))


_ORDERS: dict[str, type[_Vector] | type[_Tiles]] = {"vec": _Vector, "vec16": _Vector, "amx": _Tiles}


def _number(layer_name: str) -> int:
    """Return the number of a layer from its name."""
    numbers = [int(part) for part in layer_name.split(".") if part.isdigit()]
    if len(numbers) != 1:
        raise InputError(f"the layer {layer_name} has no number", "unknown_layout", "report this; vLLM continues without Kvasir")
    return numbers[0]
