"""Caches of equal tokens are distinguished: adapters by their files, images by content and position, models by their files."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import torch
from engine import MODEL, Engine, make_exact_profile, make_tokens, wait_until_stored
from safetensors.torch import save_file
from vllm.lora.request import LoRARequest

from kvasir.vllm._identity import Adapters, files_digest, prompt_of

RANK = 8


def make_adapter(folder, seed):
    """Write a LoRA with random weights, large enough to change the text."""
    config = json.loads((MODEL / "config.json").read_text())
    hidden, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
    out = heads * config.get("head_dim", hidden // heads)
    dice = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, hidden, generator=dice)
        weights[f"{name}.lora_B.weight"] = torch.randn(out, RANK, generator=dice)
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return folder


def test_adapters(service, store, tmp_path):
    exact = {"quality": "exact", "profile": make_exact_profile(tmp_path / "exact.kvp")}
    engine = Engine(service.url, extra=exact, enable_lora=True, max_loras=2, max_lora_rank=RANK)
    engine.wait_until_connected()
    folders = [make_adapter(tmp_path / name, seed) for seed, name in enumerate(("one", "two"))]
    # The second has the name of the first, and other files.
    first, second = [LoRARequest("helper", n + 1, str(folder)) for n, folder in enumerate(folders)]
    tokens = make_tokens(700, seed=1)
    cold = engine.run(tokens, lora=first)
    engine.settle()
    wait_until_stored(store)
    for lora, is_known in [(first, True), (second, False), (None, False)]:
        engine.forget()
        warm = engine.run(tokens, lora=lora)
        assert (warm.cached > 0) == is_known, lora
        assert (warm.tokens == cold.tokens) == is_known, lora


def request(salt=None, *features):
    features = [
        SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=offset, length=length))
        for name, offset, length in features
    ]
    return SimpleNamespace(prompt_token_ids=[1, 2], lora_request=None, cache_salt=salt, mm_features=features)


def test_images():
    requests = [
        request(),
        request("a"),
        request(None, ("cat", 4, 16)),
        request("a", ("cat", 4, 16)),
        request(None, ("dog", 4, 16)),
        request(None, ("cat", 5, 16)),
        request(None, ("cat", 4, 17)),
        request(None, ("cat", 4, 16), ("dog", 30, 16)),
    ]
    adapters = Adapters()
    salts = [prompt_of(each, adapters).salt for each in requests]
    assert len(set(salts)) == len(salts)
    assert salts[2] == prompt_of(request(None, ("cat", 4, 16)), adapters).salt


def test_models(tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(MODEL, copy)
    assert files_digest(copy) == files_digest(MODEL)
    [weights, *_] = sorted(copy.glob("*.safetensors"))
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    assert files_digest(copy) != files_digest(MODEL)
