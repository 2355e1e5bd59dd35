"""Where the rows of tokens lie in vLLM's blocks: a table, and a check of it by vLLM's own writer.

NumPy moves them, and not torch: what torch computes in a thread of ours makes OpenMP threads there, and as soon as the process
has more of these than cores, those of vLLM sleep between operators instead of waiting awake.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from ..errors import InputError

logger = init_logger(__name__)

Array = np.ndarray[Any, Any]
Planes = tuple[Array, Array]
"""Keys and values of some layers, ``[layers, kv_heads, tokens, head_dim]``."""
Rows = list[Planes]
"""Keys and values of each layer, ``[kv_heads, tokens, head_dim]``."""
Taken = list[Array | None]
"""Of each group of layers copies of blocks as they lie, ``[layers, blocks, elements]``; none of a group that is left out."""
BlockTables = tuple[list[int], ...]
"""Of each group of layers the blocks of consecutive tokens."""
NULL_BLOCK = 0
"""What stands in a table for blocks that vLLM does not keep, because they lie behind a window."""
# What layers of a kind are called, and what to do about them.
_DECLINED = {
    MambaSpec: ("the model has Mamba layers, which keep one state and no rows of tokens", "serve this model without Kvasir"),
    ChunkedLocalAttentionSpec: (
        "vLLM gives up blocks of chunked local attention",
        "serve with --disable-hybrid-kv-cache-manager: vLLM keeps them then",
    ),
}


def check_groups(vllm_config: Any, kv_cache_config: Any) -> None:
    """Refuse what this connector does not know how to move.

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
            refuse(f"{name} is {getattr(parallel, name)}", "Kvasir knows tensor parallelism on one host only so far")
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    for spec in specs:
        if type(spec) in _DECLINED:
            refuse(*_DECLINED[type(spec)])
        # Where vLLM gives all layers the same blocks, a FullAttentionSpec may have a window, or chunks (Llama 4): all rows are
        # kept all the same.
        if type(spec) not in (FullAttentionSpec, SlidingWindowSpec, MLAAttentionSpec):
            remedy = "Kvasir moves caches of full, latent and sliding window attention only so far"
            refuse(f"a cache is of {type(spec).__name__}", remedy)
        if isinstance(spec, MLAAttentionSpec):
            if parallel.tensor_parallel_size > 1:
                refuse(f"latent attention on {parallel.tensor_parallel_size} ranks", "Kvasir knows it on one rank only so far")
            if not vllm_config.cache_config.enable_prefix_caching:
                # The reference kernels of vLLM's CPU build cannot begin behind a prefix.
                refuse("vLLM runs latent attention without prefix caching", "use a CPU with AMX, and --enable-prefix-caching")
            if spec.model_version is not None or spec.state_content_bytes is not None or spec.tokens_per_state != 1:
                refuse("the cache of latent attention is packed", "Kvasir moves latents of one token each, as the model has them")
        if spec.kv_quant_mode not in (KVQuantMode.NONE, KVQuantMode.FP8_PER_TENSOR):
            refuse(f"a cache is quantized as {spec.kv_quant_mode.name}", "use --kv-cache-dtype auto or fp8")
    if len({spec.block_size for spec in specs}) != 1:
        sizes = sorted({spec.block_size for spec in specs})
        refuse(f"blocks have {sizes} tokens", "Kvasir moves caches whose blocks have all the same number of tokens so far")


def window_of(kv_cache_config: Any) -> int | None:
    """Give the shortest window behind which vLLM gives blocks up, in tokens; none where it keeps all."""
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    return min((spec.sliding_window for spec in specs if isinstance(spec, SlidingWindowSpec)), default=None)


class _Group:
    """Layers that vLLM gives the same blocks."""

    def __init__(self, vllm_config: Any, group: Any, caches: dict[str, torch.Tensor]) -> None:
        self.spec = group.kv_cache_spec
        self.is_windowed = isinstance(self.spec, SlidingWindowSpec)
        self.block_tokens: int = self.spec.block_size
        # Elements of a row of keys and of values; of latent attention, of the latent and of the rotary key.
        self.dims: tuple[int, int] = (self.spec.head_size, self.spec.head_size)
        self.is_latent = isinstance(self.spec, MLAAttentionSpec)
        # Bits of two bytes are moved as they are.
        self._dtype = "uint16" if self.spec.dtype.itemsize == 2 else str(self.spec.dtype).removeprefix("torch.")
        if self.is_latent:
            text = vllm_config.model_config.hf_text_config
            self.dims = text.kv_lora_rank, text.qk_rope_head_dim
        cache_dtype = vllm_config.cache_config.cache_dtype
        self._kernels = _kernels(self.spec, vllm_config.model_config.dtype, cache_dtype)
        self._check(vllm_config.model_config.dtype, cache_dtype)
        # Numbers of layers, and in the same order what is in their blocks.
        self.layers = [_number(name) for name in group.layer_names]
        self._caches = [self._flat(caches[name]) for name in group.layer_names]

    def empty(self, tokens: int) -> Planes:
        """Memory for the rows of whole blocks that hold so many tokens."""
        return self._empty_rows(len(self._caches), -(-tokens // self.block_tokens) * self.block_tokens)

    def _empty_rows(self, layers: int, tokens: int) -> Planes:
        keys, values = (np.empty((layers, self.spec.num_kv_heads, tokens, dim), self._dtype) for dim in self.dims)
        return keys, values

    def take(self, blocks: Sequence[int]) -> Array:
        """Copy blocks as they lie: ``[layers, blocks, elements]``."""
        taken = self._empty_blocks(len(self._caches), len(blocks))
        for cache, out in zip(self._caches, taken, strict=True):
            # Where it checks indices, NumPy fills a copy first.
            np.take(cache, blocks, axis=0, out=out, mode="clip")
        return taken

    def put(self, taken: Array, blocks: Sequence[int]) -> None:
        """Write blocks as they are to lie, but those that vLLM left out behind a window."""
        wanted = [n for n, block in enumerate(blocks) if block != NULL_BLOCK]
        if len(wanted) < len(blocks):
            taken = taken[:, wanted]
        index = [blocks[n] for n in wanted]
        for cache, of in zip(self._caches, taken, strict=True):
            cache[index] = of

    def to_rows(self, taken: Array, rows: Planes, first: int) -> None:
        """Write what blocks hold into rows from token ``first`` on."""
        for plane, of in self._pairs(taken, rows, first):
            np.copyto(of, plane)

    def from_rows(self, rows: Planes, first: int, count: int) -> Array:
        """Give ``count`` blocks of rows from token ``first`` on, as they are to lie."""
        taken = self._empty_blocks(len(rows[0]), count)
        for plane, of in self._pairs(taken, rows, first):
            np.copyto(plane, of)
        return taken

    def _empty_blocks(self, layers: int, count: int) -> Array:
        return np.empty((layers, count, self.spec.num_kv_heads * self.block_tokens * sum(self.dims)), self._dtype)

    def _pairs(self, taken: Array, rows: Planes, first: int) -> Iterator[Planes]:
        """Give views of one shape, of keys and of values: of blocks as they lie, and of the same tokens among rows."""
        end = first + taken.shape[1] * self.block_tokens
        for plane, of in zip(self._planes(taken), rows, strict=True):
            by_block = _split(of[:, :, first:end], 2, (-1, self.block_tokens)).swapaxes(1, 2)
            # Splits axes, which never takes a copy.
            yield plane, by_block.reshape(plane.shape)

    def _planes(self, blocks: Array) -> Planes:
        """Give keys and values of blocks ``[…, elements]`` as views ``[…, kv_heads, block_tokens…, head_dim…]``.

        A block says that it is ``[kv_heads, block_tokens, 2 * head_dim]``. vLLM's CPU kernels keep in it for each head the keys,
        and behind them the values, both in an order of their own. A block of latents is what it says: ``[1, block_tokens,
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
        """Give a layer's blocks as ``[blocks, elements]``, where they are what `_planes` knows."""
        heads, tokens = self.spec.num_kv_heads, self.block_tokens
        if cache.shape[1:] != (heads, tokens, sum(self.dims)) or not cache[0].is_contiguous():
            what = f"vLLM's blocks have the shape {list(cache.shape[1:])} and strides {list(cache.stride()[1:])}"
            raise InputError(what, "unknown_layout", "report this with vLLM's version; vLLM goes on without Kvasir")
        blocks: Array = cache.view(len(cache), -1).view(getattr(torch, self._dtype)).numpy()
        return blocks

    def _check(self, computed: torch.dtype, cache_dtype: str) -> None:
        """Let vLLM write two blocks of rows that it has computed, and read them by the table."""
        from vllm import _custom_ops as ops

        spec, tokens = self.spec, self.block_tokens
        heads, dim = spec.num_kv_heads, spec.head_size
        keys, values = (torch.randn(2 * tokens, heads, dim).to(computed) for _ in range(2))
        is_fp8 = spec.dtype == torch.uint8
        if is_fp8:
            # Without what vLLM's writer rounds.
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
            # As numbers: the writer does not keep the sign of 0.
            is_known &= torch.equal(found.view(torch.float8_e4m3fn).to(computed) if is_fp8 else found, wrote)
        if not is_known:
            what = f"vLLM's kernels {self._kernels} lay blocks out in a way that is not known"
            raise InputError(what, "unknown_layout", "report this with vLLM's version and the CPU; vLLM goes on without Kvasir")


@dataclass(frozen=True)
class BlockRows:
    """Rows that blocks are read into, or written from: of each group of layers, and the same memory of each layer."""

    groups: list[Planes]
    layers: Rows


class Blocks:
    """vLLM's blocks of every layer.

    Raises
    ------
    InputError
        ``unknown_layout`` where the table has no entry for the platform, or vLLM's writer puts rows elsewhere than it says.
    """

    def __init__(self, vllm_config: Any, kv_cache_config: Any, caches: dict[str, torch.Tensor]) -> None:
        check_groups(vllm_config, kv_cache_config)
        self._groups = [_Group(vllm_config, group, caches) for group in kv_cache_config.kv_cache_groups]
        self.block_tokens = self._groups[0].block_tokens
        self.has_windows = any(group.is_windowed for group in self._groups)
        # vLLM asks for whole loads where it has more than one table, and behind a part of a load there is no window.
        self.can_load_in_part = len(self._groups) == 1 and not self.has_windows
        groups = {layer: group for group in self._groups for layer in group.layers}
        names = [name for group in kv_cache_config.kv_cache_groups for name in group.layer_names]
        if sorted(groups) != list(range(len(names))):
            raise InputError(f"the cache is of layers {sorted(names)}", "unknown_layout", "vLLM goes on without Kvasir")
        self._group_of = [groups[layer] for layer in range(len(names))]
        self._windowed_layers = [layer for group in self._groups if group.is_windowed for layer in group.layers]

    def take(self, blocks: BlockTables, *, windowed: bool) -> Taken:
        """Copy blocks of layers with a window, or of those without one: quickly, a step waits for it."""
        groups = zip(self._groups, blocks, strict=True)
        return [group.take(ids) if ids and group.is_windowed == windowed else None for group, ids in groups]

    def put(self, taken: Taken, blocks: BlockTables) -> None:
        """Write blocks that `from_rows` gave."""
        for group, of_group, ids in zip(self._groups, taken, blocks, strict=True):
            if of_group is not None:
                group.put(of_group, ids)

    def to_rows(self, taken: Taken, rows: BlockRows, first: int) -> None:
        """Write what whole blocks hold into rows, from token ``first`` on, with which a block begins."""
        for group, of_group, planes in zip(self._groups, taken, rows.groups, strict=True):
            if of_group is not None:
                group.to_rows(of_group, planes, first)

    def from_rows(self, rows: BlockRows, first: int, count: int) -> Taken:
        """Give ``count`` whole blocks of rows from token ``first`` on, as they are to lie."""
        return [group.from_rows(planes, first, count) for group, planes in zip(self._groups, rows.groups, strict=True)]

    def begin_of(self, token: int) -> int:
        """Give the token that the block of a token begins with."""
        return token - token % self.block_tokens

    def copy_windowed(self, of: tuple[Rows, int], to: tuple[Rows, int], first: int, end: int) -> None:
        """Copy the rows of tokens ``first`` to ``end`` in layers with a window. Both come with the token that they begin with."""
        (of_rows, of_origin), (to_rows, to_origin) = of, to
        for layer in self._windowed_layers:
            for plane, copy in zip(of_rows[layer], to_rows[layer], strict=True):
                copy[:, first - to_origin : end - to_origin] = plane[:, first - of_origin : end - of_origin]

    def empty(self, tokens: int) -> BlockRows:
        """Memory for the rows of so many tokens. What is not written of it, the machine need not have."""
        groups = [group.empty(tokens) for group in self._groups]
        by_layer = {
            layer: planes
            for group, of_group in zip(self._groups, groups, strict=True)
            for layer, planes in zip(group.layers, zip(*of_group, strict=True), strict=True)
        }
        return BlockRows(groups, [by_layer[layer] for layer in range(len(by_layer))])

    def bytes_of(self, tokens: int, *, windowed: bool | None = None) -> int:
        """Bytes of the rows of so many tokens, in layers with a window, without one, or in all."""
        groups = [group for group in self._group_of if windowed in (None, group.is_windowed)]
        return int(tokens * sum(group.spec.num_kv_heads * sum(group.dims) * group.spec.dtype.itemsize for group in groups))


def _kernels(spec: Any, computed: torch.dtype, cache_dtype: str) -> str:
    """Give the kernels that vLLM chooses for this CPU, which decide where rows lie."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        what = f"caches in the memory of {current_platform.device_type} devices are not known yet"
        raise InputError(what, "unknown_layout", "vLLM goes on without Kvasir")
    if isinstance(spec, MLAAttentionSpec):
        return "amx_mla"
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    kernels = str(_get_attn_isa(computed, spec.block_size, spec.head_size, cache_dtype))
    if kernels not in _ORDERS:
        raise InputError(
            f"where vLLM's kernels {kernels} keep rows is not known yet", "unknown_layout", "vLLM goes on without Kvasir"
        )
    return kernels


def _split(array: Array, axis: int, into: tuple[int, ...]) -> Array:
    """Give a view with one axis split."""
    axis %= array.ndim
    return array.reshape(*array.shape[:axis], *into, *array.shape[axis + 1 :])


class _Vector:
    """Keys transposed, values as they are."""

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
    """Give the number of a layer, which its name holds."""
    numbers = [int(part) for part in layer_name.split(".") if part.isdigit()]
    if len(numbers) != 1:
        raise InputError(f"the layer {layer_name} has no number", "unknown_layout", "report this; vLLM goes on without Kvasir")
    return numbers[0]
