"""A stand-in for SGLang's host memory in its page-first layout: K and V of a page are in two places."""

from __future__ import annotations

from typing import Any

import torch

PAGE = 16


class HostPool:
    """Has what storages use of SGLang's `HostKVCache`."""

    layout = "page_first"
    page_size = PAGE
    layer_num = 4
    heads = 2
    width = 32

    def __init__(
        self, pages: int = 64, dtype: torch.dtype = torch.bfloat16, parts: int = 2, page_size: int = PAGE, **others: Any
    ) -> None:
        """`others` are further attributes."""
        self.dtype, self.page_size = dtype, page_size
        if parts == 2:
            # SGLang's pools of latents and of states have neither.
            self.head_num, self.head_dim = self.heads, self.width
        vars(self).update(others)
        row = self.layer_num * self.heads * self.width
        self.buffer = torch.zeros((parts, pages, page_size * row), dtype=dtype)

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        """Addresses and sizes of all parts, page by page."""
        places = [int(index) // self.page_size for index in indices[:: self.page_size]]
        parts = [self.buffer[part, place] for place in places for part in range(len(self.buffer))]
        return [part.data_ptr() for part in parts], [part.nbytes for part in parts]

    def indices(self, pages: list[int]) -> torch.Tensor:
        """Of all tokens of these pages."""
        return torch.cat([torch.arange(page * self.page_size, (page + 1) * self.page_size) for page in pages])

    def fill(self, pages: list[int], seed: int) -> None:
        self.buffer[:, pages] = torch.randn(
            self.buffer[:, pages].shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32
        ).to(self.dtype)
