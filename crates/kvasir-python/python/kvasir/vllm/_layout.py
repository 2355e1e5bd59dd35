"""Where the rows of tokens lie in vLLM's blocks: a table, and a check of it by vLLM's own writer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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

Rows = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer, ``[kv_heads, tokens, head_dim]``, in the CPU's memory."""
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
        if self.is_latent:
            text = vllm_config.model_config.hf_text_config
            self.dims = text.kv_lora_rank, text.qk_rope_head_dim
        cache_dtype = vllm_config.cache_config.cache_dtype
        self._kernels = _kernels(self.spec, vllm_config.model_config.dtype, cache_dtype)
        self._check(vllm_config.model_config.dtype, cache_dtype)
        # By number.
        self.layers = {_number(name): self._views(caches[name]) for name in group.layer_names}

    def gather(self, rows: Rows, blocks: Sequence[int], first: int, end: int, origin: int) -> None:
        """Copy the rows of tokens ``first`` to ``end`` out, to rows from token ``origin`` on."""
        index, skipped = torch.tensor(blocks, dtype=torch.int64), first % self.block_tokens
        for layer, planes in self.layers.items():
            for plane, to in zip(planes, rows[layer], strict=True):
                to[:, first - origin : end - origin] = self._rows(plane[index])[:, skipped : skipped + end - first]

    def scatter(self, rows: Rows, blocks: Sequence[int], first: int) -> None:
        """Write whole blocks of rows from token ``first`` on, but those that vLLM left out behind a window."""
        wanted = [n for n, block in enumerate(blocks) if block != NULL_BLOCK]
        index = torch.tensor([blocks[n] for n in wanted], dtype=torch.int64)
        end = first + len(blocks) * self.block_tokens
        for layer, planes in self.layers.items():
            for plane, of in zip(planes, rows[layer], strict=True):
                by_block = of[:, first:end].unflatten(1, (len(blocks), self.block_tokens)).transpose(0, 1)[wanted]
                plane[index] = by_block.reshape(len(wanted), *plane.shape[1:])

    def _rows(self, blocks: torch.Tensor) -> torch.Tensor:
        """Rows ``[kv_heads, tokens, head_dim]`` of blocks that `_views` gave."""
        heads = self.spec.num_kv_heads
        return blocks.reshape(len(blocks), heads, self.block_tokens, -1).transpose(0, 1).flatten(1, 2)

    def _views(self, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give a layer's keys and values as views ``[blocks, kv_heads, block_tokens…, head_dim…]`` of its blocks.

        A block says that it is ``[kv_heads, block_tokens, 2 * head_dim]``. vLLM's CPU kernels keep in it for each head the keys,
        and behind them the values, both in an order of their own. A block of latents is what it says: ``[1, block_tokens,
        latent + rotary key]``.
        """
        heads, tokens, dim = self.spec.num_kv_heads, self.block_tokens, self.spec.head_size
        if self.is_latent and cache.shape[1:] == (1, tokens, sum(self.dims)) and cache.stride()[2:] == (dim, 1):
            latents, rotary = cache.split(self.dims, dim=-1)
            return latents, rotary
        if cache.shape[1:] != (heads, tokens, 2 * dim) or cache.stride()[1:] != (2 * dim * tokens, 2 * dim, 1):
            what = f"vLLM's blocks have the shape {list(cache.shape[1:])} and strides {list(cache.stride()[1:])}"
            raise InputError(what, "unknown_layout", "report this with vLLM's version; vLLM goes on without Kvasir")
        keys, values = cache.view(-1, heads, 2, tokens * dim).unbind(2)
        order = _ORDERS[self._kernels]
        return order.keys(keys, tokens, dim), order.values(values, tokens, dim)

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
        for wrote, view in zip((keys, values), self._views(cache), strict=True):
            found = self._rows(view).transpose(0, 1)
            # As numbers: the writer does not keep the sign of 0.
            if not torch.equal(found.view(torch.float8_e4m3fn).to(computed) if is_fp8 else found, wrote):
                what = f"vLLM's kernels {self._kernels} lay blocks out in a way that is not known"
                raise InputError(what, "unknown_layout", "report this with vLLM's version and the CPU; vLLM goes on without Kvasir")


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

    def gather(self, rows: Rows, blocks: BlockTables, first: int, end: int, *, windowed: bool, origin: int = 0) -> None:
        """Copy the rows of tokens ``first`` to ``end`` out of layers with a window, or of those without one.

        The blocks of each such group begin with that of token ``first``, the rows with token ``origin``.
        """
        for group, of_group in zip(self._groups, blocks, strict=True):
            if group.is_windowed == windowed and first < end:
                group.gather(rows, of_group, first, end, origin)

    def copy_windowed(self, of: tuple[Rows, int], to: tuple[Rows, int], first: int, end: int) -> None:
        """Copy the rows of tokens ``first`` to ``end`` in layers with a window. Both come with the token that they begin with."""
        (of_rows, of_origin), (to_rows, to_origin) = of, to
        # Rows that were copied during a step may be written in that mode alone.
        with torch.inference_mode():
            for layer in self._windowed_layers:
                for plane, copy in zip(of_rows[layer], to_rows[layer], strict=True):
                    copy[:, first - to_origin : end - to_origin] = plane[:, first - of_origin : end - of_origin]

    def scatter(self, rows: Rows, blocks: BlockTables, first: int) -> None:
        """Write whole blocks of rows from token ``first`` on."""
        for group, of_group in zip(self._groups, blocks, strict=True):
            group.scatter(rows, of_group, first)

    def empty(self, tokens: int) -> Rows:
        """Memory for the rows of so many tokens. What is not written of it, the machine need not have."""

        def plane(spec: Any, dim: int) -> torch.Tensor:
            return torch.empty(spec.num_kv_heads, tokens, dim, dtype=spec.dtype)

        return [(plane(group.spec, group.dims[0]), plane(group.spec, group.dims[1])) for group in self._group_of]

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


class _Vector:
    """Keys transposed, values as they are."""

    @staticmethod
    def keys(half: torch.Tensor, tokens: int, dim: int) -> torch.Tensor:
        return half.unflatten(-1, (dim, tokens)).transpose(-1, -2)

    @staticmethod
    def values(half: torch.Tensor, tokens: int, dim: int) -> torch.Tensor:
        return half.unflatten(-1, (tokens, dim))


class _Tiles:
    """Operands of AMX: tiles of 16 rows of pairs that are multiplied together."""

    @staticmethod
    def keys(half: torch.Tensor, tokens: int, dim: int) -> torch.Tensor:
        # [tokens / 16, dim / 2, 16 tokens, 2 of dim]
        return half.unflatten(-1, (tokens // 16, dim // 2, 16, 2)).permute(0, 1, 2, 4, 3, 5)

    @staticmethod
    def values(half: torch.Tensor, tokens: int, dim: int) -> torch.Tensor:
        # [dim / 16, tokens / 2, 16 of dim, 2 tokens]
        return half.unflatten(-1, (dim // 16, tokens // 2, 16, 2)).permute(0, 1, 3, 5, 2, 4)


_ORDERS: dict[str, type[_Vector] | type[_Tiles]] = {"vec": _Vector, "vec16": _Vector, "amx": _Tiles}


def _number(layer_name: str) -> int:
    """Give the number of a layer, which its name holds."""
    numbers = [int(part) for part in layer_name.split(".") if part.isdigit()]
    if len(numbers) != 1:
        raise InputError(f"the layer {layer_name} has no number", "unknown_layout", "report this; vLLM goes on without Kvasir")
    return numbers[0]
