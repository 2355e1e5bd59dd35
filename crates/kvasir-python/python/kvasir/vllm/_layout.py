"""Where the rows of tokens lie in vLLM's blocks: a table, and a check of it by vLLM's own writer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.logger import init_logger

from ..errors import InputError

logger = init_logger(__name__)

Rows = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer, ``[kv_heads, tokens, head_dim]``, in the CPU's memory."""


def check_groups(vllm_config: Any, kv_cache_config: Any) -> None:
    """Refuse what this connector does not know how to move.

    Raises
    ------
    InputError
        ``unknown_layout`` naming it.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    def refuse(what: str, remedy: str) -> None:
        raise InputError(what, "unknown_layout", remedy)

    parallel = vllm_config.parallel_config
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            refuse(f"{name} is {getattr(parallel, name)}", "Kvasir moves caches of one rank only so far")
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        kinds = ", ".join(sorted({type(group.kv_cache_spec).__name__ for group in groups}))
        refuse(f"the cache has {len(groups)} groups ({kinds})", "Kvasir moves caches of one group of full attention only so far")
    spec = groups[0].kv_cache_spec
    if type(spec) is not FullAttentionSpec or spec.sliding_window is not None or spec.attention_chunk_size is not None:
        refuse(f"the cache is of {type(spec).__name__}", "Kvasir moves caches of full attention only so far")


class Blocks:
    """vLLM's blocks of every layer.

    Raises
    ------
    InputError
        ``unknown_layout`` where the table has no entry for the platform, or vLLM's writer puts rows elsewhere than it says.
    """

    def __init__(self, vllm_config: Any, kv_cache_config: Any, caches: dict[str, torch.Tensor]) -> None:
        check_groups(vllm_config, kv_cache_config)
        group = kv_cache_config.kv_cache_groups[0]
        self._spec = group.kv_cache_spec
        self.block_tokens: int = self._spec.block_size
        self._kernels = _kernels(self._spec, vllm_config.cache_config.cache_dtype)
        self._check()
        self._layers = [self._views(caches[name]) for name in sorted(group.layer_names, key=_number)]

    def gather(self, blocks: Sequence[int], first: int, end: int) -> Rows:
        """Copy the rows of tokens ``first`` to ``end``, whose blocks these are, out. Rows before ``first`` are not written."""
        index, rows = torch.tensor(blocks, dtype=torch.int64), self.empty(end)
        for planes, pair in zip(self._layers, rows, strict=True):
            for plane, to in zip(planes, pair, strict=True):
                to[:, first:end] = self._rows(plane[index])[:, : end - first]
        return rows

    def scatter(self, rows: Rows, blocks: Sequence[int], first: int) -> None:
        """Write whole blocks of rows from token ``first`` on."""
        index = torch.tensor(blocks, dtype=torch.int64)
        end = first + len(blocks) * self.block_tokens
        for planes, pair in zip(self._layers, rows, strict=True):
            for plane, of in zip(planes, pair, strict=True):
                by_block = of[:, first:end].unflatten(1, (len(blocks), self.block_tokens)).transpose(0, 1)
                plane[index] = by_block.reshape(len(blocks), *plane.shape[1:])

    def empty(self, tokens: int) -> Rows:
        """Memory for the rows of so many tokens. What is not written of it, the machine need not have."""
        heads, dim, dtype = self._spec.num_kv_heads, self._spec.head_size, self._spec.dtype

        def plane() -> torch.Tensor:
            return torch.empty(heads, tokens, dim, dtype=dtype)

        return [(plane(), plane()) for _ in self._layers]

    def bytes_of(self, tokens: int) -> int:
        """Bytes of the rows of so many tokens."""
        heads, dim, dtype = self._spec.num_kv_heads, self._spec.head_size, self._spec.dtype
        return int(2 * len(self._layers) * heads * tokens * dim * dtype.itemsize)

    def _rows(self, blocks: torch.Tensor) -> torch.Tensor:
        """Rows ``[kv_heads, tokens, head_dim]`` of blocks that `_views` gave."""
        heads, dim = self._spec.num_kv_heads, self._spec.head_size
        return blocks.reshape(len(blocks), heads, self.block_tokens, dim).transpose(0, 1).flatten(1, 2)

    def _views(self, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give a layer's keys and values as views ``[blocks, kv_heads, block_tokens…, head_dim…]`` of its blocks.

        A block says that it is ``[kv_heads, block_tokens, 2 * head_dim]``. vLLM's CPU kernels keep in it for each head the keys,
        and behind them the values, both in an order of their own.
        """
        heads, tokens, dim = self._spec.num_kv_heads, self.block_tokens, self._spec.head_size
        if cache.shape[1:] != (heads, tokens, 2 * dim) or cache.stride()[1:] != (2 * dim * tokens, 2 * dim, 1):
            what = f"vLLM's blocks have the shape {list(cache.shape[1:])} and strides {list(cache.stride()[1:])}"
            raise InputError(what, "unknown_layout", "report this with vLLM's version; vLLM goes on without Kvasir")
        keys, values = cache.view(-1, heads, 2, tokens * dim).unbind(2)
        order = _ORDERS[self._kernels]
        return order.keys(keys, tokens, dim), order.values(values, tokens, dim)

    def _check(self) -> None:
        """Let vLLM write two blocks of rows, and read them by the table."""
        from vllm import _custom_ops as ops

        spec, tokens = self._spec, self.block_tokens
        heads, dim = spec.num_kv_heads, spec.head_size
        keys, values = (torch.randn(2 * tokens, heads, dim).to(spec.dtype) for _ in range(2))
        cache = torch.zeros(2, heads, tokens, 2 * dim, dtype=spec.dtype)
        halves = cache.view(2, heads, 2 * tokens, dim).chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(keys, values, *halves, torch.arange(2 * tokens), self._kernels)
        for wrote, view in zip((keys, values), self._views(cache), strict=True):
            if not torch.equal(self._rows(view).transpose(0, 1), wrote):
                what = f"vLLM's kernels {self._kernels} lay blocks out in a way that is not known"
                raise InputError(what, "unknown_layout", "report this with vLLM's version and the CPU; vLLM goes on without Kvasir")


def _kernels(spec: Any, cache_dtype: str) -> str:
    """Give the kernels that vLLM chooses for this CPU, which decide where rows lie."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        what = f"caches in the memory of {current_platform.device_type} devices are not known yet"
        raise InputError(what, "unknown_layout", "vLLM goes on without Kvasir")
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    kernels = str(_get_attn_isa(spec.dtype, spec.block_size, spec.head_size, cache_dtype))
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
