"""Messages between the scheduler and the workers. Sent between processes, so without objects of the extension."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from .._session import Session


@dataclass(frozen=True)
class Prompt:
    """Tokens, and what restricts the sharing of their cache.

    Attributes
    ----------
    tokens : list of int
        Token ids.
    salt : bytes or None
        A secret of the users who may share it, combined with the prompt's non-token inputs.
    adapter : str or None
        Name and digest of a LoRA.
    """

    tokens: list[int]
    salt: bytes | None = None
    adapter: str | None = None


@dataclass(frozen=True)
class LoadPlan:
    """A load of tokens ``start`` to ``end``, both at block boundaries, into ``blocks``, within ``budget_s`` seconds.

    For each group of layers, the blocks are those of these tokens. The session is that of the scheduler's lookup, for a worker in
    the same process; other workers look the prompt up again.
    """

    request_id: str
    prompt: Prompt
    start: int
    end: int
    blocks: tuple[list[int], ...]
    budget_s: float
    session: Session | None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"session": None}


@dataclass(frozen=True)
class CopyPlan:
    """A copy of the rows of tokens ``first`` to ``end`` in layers with a window, before vLLM drops their blocks.

    For each group of layers, the blocks begin with that of token ``first``; layers without a window have none.
    """

    request_id: str
    first: int
    end: int
    blocks: tuple[list[int], ...]


@dataclass(frozen=True)
class SavePlan:
    """A save of tokens ``first`` to the last one of ``prompt``; earlier ones are stored.

    For each group of layers, the blocks begin with that of token ``first``; in layers with a window, with that of
    token ``windowed_first``: rows before it were copied at earlier steps, or vLLM does not have them.

    If it ``releases`` them, vLLM keeps the blocks of a finished request until they are copied. The worker reports its ``number``
    once they are stored.
    """

    number: int
    request_id: str
    prompt: Prompt
    first: int
    windowed_first: int
    blocks: tuple[list[int], ...]
    releases: bool


@dataclass
class StepPlan(KVConnectorMetadata):
    """Loads, saves and copies of a step. A copy covers tokens after the save of its request.

    ``prefill`` are the first token that the step computes and the one after the last, if it computes a part of one prompt and
    nothing else.
    """

    loads: list[LoadPlan] = field(default_factory=list)
    saves: list[SavePlan] = field(default_factory=list)
    copies: list[CopyPlan] = field(default_factory=list)
    prefill: tuple[int, int] | None = None


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):
    """A worker's report to the scheduler.

    Attributes
    ----------
    failed : set of str
        Requests whose load skipped blocks; they are not retried.
    stored : set of int
        Numbers of saves that are durable.
    unusable : str or None
        Why the worker is disabled.
    """

    failed: set[str] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)
    unusable: str | None = None

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        """Merge the reports of two workers."""
        assert isinstance(other, WorkerReport)
        return WorkerReport(self.failed | other.failed, self.stored | other.stored, self.unusable or other.unusable)
