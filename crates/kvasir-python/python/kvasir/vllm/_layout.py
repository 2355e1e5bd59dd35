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
    """vLLM's blocks of every layer, as keys and values ``[blocks, kv_heads, block_tokens, head_dim]``.

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
        self._check(vllm_config)
        self._layers = [self._views(caches[name]) for name in sorted(group.layer_names, key=_number)]

    def gather(self, blocks: Sequence[int], first: int, end: int) -> Rows:
        """Copy the rows of tokens ``first`` to ``end``, whose blocks these are, out. Rows before ``first`` are not written."""
        index = torch.tensor(blocks, dtype=torch.int64)
        rows = self.empty(end)
        for layer, planes in enumerate(self._layers):
            for plane, to in zip(planes, rows[layer], strict=True):
                # [blocks, heads, tokens, dim] to [heads, blocks * tokens, dim]
                found = plane[index].transpose(0, 1).flatten(1, 2)
                to[:, first:end] = found[:, : end - first]
        return rows

    def scatter(self, rows: Rows, blocks: Sequence[int], first: int) -> None:
        """Write whole blocks of rows from token ``first`` on."""
        index = torch.tensor(blocks, dtype=torch.int64)
        end = first + len(blocks) * self.block_tokens
        for planes, pair in zip(self._layers, rows, strict=True):
            for plane, of in zip(planes, pair, strict=True):
                plane[index] = of[:, first:end].unflatten(1, (len(blocks), self.block_tokens)).transpose(0, 1)

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

    def _views(self, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Give a layer's keys and values as views of its blocks.

        A block says that it is ``[kv_heads, block_tokens, 2 * head_dim]``. vLLM's CPU kernels keep in it for each head the keys,
        transposed to ``[head_dim, block_tokens]``, and behind them the values, ``[block_tokens, head_dim]``.
        """
        heads, tokens, dim = self._spec.num_kv_heads, self.block_tokens, self._spec.head_size
        if cache.shape[1:] != (heads, tokens, 2 * dim) or cache.stride()[1:] != (2 * dim * tokens, 2 * dim, 1):
            what = f"vLLM's blocks have the shape {list(cache.shape[1:])} and strides {list(cache.stride()[1:])}"
            raise InputError(what, "unknown_layout", "report this with vLLM's version; vLLM goes on without Kvasir")
        halves = cache.view(-1, heads, 2, tokens * dim)
        keys = halves[:, :, 0].unflatten(-1, (dim, tokens)).transpose(-1, -2)
        return keys, halves[:, :, 1].unflatten(-1, (tokens, dim))

    def _check(self, vllm_config: Any) -> None:
        """Let vLLM write two blocks of rows, and read them by the table."""
        from vllm import _custom_ops as ops
        from vllm.platforms import current_platform
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        spec, tokens = self._spec, self.block_tokens
        if not current_platform.is_cpu():
            what = f"caches in the memory of {current_platform.device_type} devices are not known yet"
            raise InputError(what, "unknown_layout", "vLLM goes on without Kvasir")
        heads, dim = spec.num_kv_heads, spec.head_size
        keys, values = (torch.randn(2 * tokens, heads, dim).to(spec.dtype) for _ in range(2))
        cache = torch.zeros(2, heads, tokens, 2 * dim, dtype=spec.dtype)
        halves = cache.view(2, heads, 2 * tokens, dim).chunk(2, dim=2)
        isa = _get_attn_isa(spec.dtype, tokens, dim, vllm_config.cache_config.cache_dtype)
        ops.cpu_attn_reshape_and_cache(keys, values, *halves, torch.arange(2 * tokens), isa)
        for wrote, view in zip((keys, values), self._views(cache), strict=True):
            if not torch.equal(view.transpose(1, 2).flatten(0, 1), wrote):
                what = f"vLLM's kernels for {isa} lay blocks out in a way that is not known"
                raise InputError(what, "unknown_layout", "report this with vLLM's version and the CPU; vLLM goes on without Kvasir")


def _number(layer_name: str) -> int:
    """Give the number of a layer, which its name holds."""
    numbers = [int(part) for part in layer_name.split(".") if part.isdigit()]
    if len(numbers) != 1:
        raise InputError(f"the layer {layer_name} has no number", "unknown_layout", "report this; vLLM goes on without Kvasir")
    return numbers[0]
