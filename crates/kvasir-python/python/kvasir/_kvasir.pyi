"""The extension module behind the package. Its interface may change; use `kvasir`."""

from collections.abc import Awaitable, Callable
from os import PathLike
from typing import Any, Literal, final, overload

__all__ = [
    "Events",
    "Lookup",
    "Model",
    "Objects",
    "Profile",
    "Save",
    "Session",
    "Spec",
    "Store",
    "__version__",
    "connect",
    "decode",
    "encode",
    "inspect",
    "plan_json",
    "tokens_of",
]
__version__: str

_Yes = Literal[True]
_No = Literal[False]
_Progress = Callable[[str, float], object] | None

@final
class Spec:
    @staticmethod
    def from_json(text: str) -> Spec: ...
    @staticmethod
    def from_hf(
        config: str,
        weights: str,
        revision: str,
        adapter: str | None,
        kv_dtype: str | None,
        pairing: str | None,
        context: int | None,
    ) -> Spec: ...
    def to_json(self) -> str: ...
    @property
    def model_id(self) -> str: ...
    @property
    def kv_dtype(self) -> str: ...
    @property
    def bytes_per_token(self) -> int: ...
    @property
    def layers(self) -> list[tuple[str, list[tuple[int, int]]]]: ...

@final
class Profile:
    @staticmethod
    def from_bytes(data: bytes) -> Profile: ...
    @staticmethod
    def train_files(
        paths: list[str | PathLike[str]], recipe: str, finest_nmse: float | None, progress: _Progress
    ) -> tuple[Profile, Spec]: ...
    @staticmethod
    def train_tensors(
        spec: Spec, contexts: list[tuple[list[int], Any]], recipe: str, finest_nmse: float | None, progress: _Progress
    ) -> Profile: ...
    def to_bytes(self) -> bytes: ...
    @property
    def profile_id(self) -> str: ...
    @property
    def model_id(self) -> str: ...
    @property
    def recipe(self) -> str: ...
    @property
    def is_lossless(self) -> bool: ...
    @property
    def levels(self) -> list[tuple[float, float, float | None]]: ...

def encode(spec: Spec, profile: Profile, tokens: list[int], kv: Any) -> bytes: ...
def decode(spec: Spec, profile: Profile, object: bytes, level: int | None, into: Any) -> None: ...
def tokens_of(object: bytes) -> list[int]: ...
def inspect(object: bytes) -> str: ...
def plan_json(
    name: str | None,
    config: str | None,
    spec: Spec | None,
    parameters: float | None,
    tokens: int,
    bandwidths: list[float],
    slo: float | None,
    gpu: str,
    gpus: int,
    profile: Profile | None,
) -> str: ...
@overload
def connect(url: str, token: str | None, namespace: str, zone: str | None, is_async: _No) -> Store: ...
@overload
def connect(url: str, token: str | None, namespace: str, zone: str | None, is_async: _Yes) -> Awaitable[Store]: ...

@final
class Store:
    @property
    def url(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @overload
    def request(self, name: str, body: str, is_async: _No) -> str: ...
    @overload
    def request(self, name: str, body: str, is_async: _Yes) -> Awaitable[str]: ...
    @overload
    def put_object(self, key: str, data: bytes | bytearray | memoryview, is_async: _No) -> bool: ...
    @overload
    def put_object(self, key: str, data: bytes | bytearray | memoryview, is_async: _Yes) -> Awaitable[bool]: ...
    @overload
    def put_objects(self, objects: list[tuple[str, bytes | bytearray | memoryview]], is_async: _No) -> dict[str, str]: ...
    @overload
    def put_objects(
        self, objects: list[tuple[str, bytes | bytearray | memoryview]], is_async: _Yes
    ) -> Awaitable[dict[str, str]]: ...
    @overload
    def get_object(self, key: str, is_async: _No) -> bytes: ...
    @overload
    def get_object(self, key: str, is_async: _Yes) -> Awaitable[bytes]: ...
    @overload
    def read_objects(self, keys: list[str], is_async: _No) -> list[bytes]: ...
    @overload
    def read_objects(self, keys: list[str], is_async: _Yes) -> Awaitable[list[bytes]]: ...
    def objects(self) -> Objects: ...
    @overload
    def events(self, query: str, is_async: _No) -> Events: ...
    @overload
    def events(self, query: str, is_async: _Yes) -> Awaitable[Events]: ...
    @overload
    def profile(self, model_id: str, profile_id: str, is_async: _No) -> Profile: ...
    @overload
    def profile(self, model_id: str, profile_id: str, is_async: _Yes) -> Awaitable[Profile]: ...
    @overload
    def model(
        self,
        spec: Spec,
        profile: Profile | None,
        chunk_tokens: int | None,
        prefill_tokens_per_s: float | None,
        quality: str | None,
        is_async: _No,
    ) -> Model: ...
    @overload
    def model(
        self,
        spec: Spec,
        profile: Profile | None,
        chunk_tokens: int | None,
        prefill_tokens_per_s: float | None,
        quality: str | None,
        is_async: _Yes,
    ) -> Awaitable[Model]: ...

@final
class Objects:
    def encoded(
        self, dtype: str, shape: tuple[int, int, int, int], order: str, quality: str, model: tuple[str, str]
    ) -> Objects: ...
    @overload
    def find(self, rows: list[list[str]], gaps: bool, time: float, is_async: _No) -> list[list[int | None]]: ...
    @overload
    def find(self, rows: list[list[str]], gaps: bool, time: float, is_async: _Yes) -> Awaitable[list[list[int | None]]]: ...
    @overload
    def load(self, keys: list[str], pages: list[list[Any]], time: float, is_async: _No) -> list[str]: ...
    @overload
    def load(self, keys: list[str], pages: list[list[Any]], time: float, is_async: _Yes) -> Awaitable[list[str]]: ...
    @overload
    def store(self, keys: list[str], pages: list[list[Any]], time: float, is_async: _No) -> list[str]: ...
    @overload
    def store(self, keys: list[str], pages: list[list[Any]], time: float, is_async: _Yes) -> Awaitable[list[str]]: ...
    @overload
    def delete(self, keys: list[str], time: float, is_async: _No) -> list[bool]: ...
    @overload
    def delete(self, keys: list[str], time: float, is_async: _Yes) -> Awaitable[list[bool]]: ...

@final
class Events:
    @overload
    def next(self, is_async: _No) -> str | None: ...
    @overload
    def next(self, is_async: _Yes) -> Awaitable[str | None]: ...

@final
class Model:
    @property
    def spec(self) -> Spec: ...
    @property
    def profile(self) -> Profile | None: ...
    def observe_prefill(self, start: int, end: int, took: float) -> None: ...
    def prefill_seconds(self, start: int, end: int) -> float: ...
    @overload
    def session(
        self,
        tokens: list[int],
        kind: str | None,
        turn: int,
        salt: bytes | None,
        adapter: str | None,
        timeout: float | None,
        is_async: _No,
    ) -> Session: ...
    @overload
    def session(
        self,
        tokens: list[int],
        kind: str | None,
        turn: int,
        salt: bytes | None,
        adapter: str | None,
        timeout: float | None,
        is_async: _Yes,
    ) -> Awaitable[Session]: ...
    def look_up(self, tokens: list[int], salt: bytes | None, adapter: str | None, timeout: float) -> Lookup: ...
    @overload
    def drain(self, is_async: _No) -> None: ...
    @overload
    def drain(self, is_async: _Yes) -> Awaitable[None]: ...

@final
class Lookup:
    @property
    def found(self) -> tuple[int | None, float, str | None, int] | None: ...
    @property
    def session(self) -> Session | None: ...

@final
class Session:
    @property
    def matched(self) -> int: ...
    @property
    def below_quality(self) -> int: ...
    def lookup_error(self) -> Exception | None: ...
    def extend(self, tokens: list[int]) -> None: ...
    def reused(self, kl: float, error: int, hops: int) -> None: ...
    @overload
    def load(
        self,
        into: Any,
        deadline: float | None,
        level: int | None,
        present: int,
        rank: tuple[int, int] | None,
        soft_quality: str | None,
        is_async: _No,
    ) -> str: ...
    @overload
    def load(
        self,
        into: Any,
        deadline: float | None,
        level: int | None,
        present: int,
        rank: tuple[int, int] | None,
        soft_quality: str | None,
        is_async: _Yes,
    ) -> Awaitable[str]: ...
    @overload
    def save(self, kv: Any, tokens: int, is_async: _No) -> str: ...
    @overload
    def save(self, kv: Any, tokens: int, is_async: _Yes) -> Awaitable[str]: ...
    def save_in_background(self, kv: Any, tokens: int) -> Save: ...

@final
class Save:
    @property
    def is_done(self) -> bool: ...
    @overload
    def wait(self, is_async: _No) -> str: ...
    @overload
    def wait(self, is_async: _Yes) -> Awaitable[str]: ...
