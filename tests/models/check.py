"""Compares caches of small random models with their specs; see `run`.

All tokens of a prompt are alike, so every position has the same hidden state in every layer (attention over equal values gives that
value), and keys differ by their rotation alone. Un-rotated by the spec's frequencies they must be equal.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "crates/kvasir-model/configs"
TOKENS, WINDOW = 40, 16
TURN = 2**64
# What `transformers` keeps in another order than engines that serve: the de-interleaved rotary key.
HALF = {"deepseek_v3", "kimi_k2", "glm4_moe_lite"}
# Frequencies that depend on the length: cases by the longest context, with the first position.
LENGTHS = {"phi-3.5-vision": [(4096, 0), (131072, 5000)]}
# Architectures and scalings without a file of their own in `configs`: changes to one that has.
VARIANTS = {
    "llama-dynamic-within": ("mistral-7b", {"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 8192}, [(8192, 0)]),
    "llama-linear": ("mistral-7b", {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, None),
    "qwen2-yarn": ("qwen2.5-7b", {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, None),
    "qwen2-windows": ("qwen2.5-7b", {"use_sliding_window": True, "max_window_layers": 3}, None),
    "qwen2-moe": ("qwen3-30b-a3b", {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 32}, None),
    "gemma": ("gemma-2-9b", {"model_type": "gemma", "sliding_window": None}, None),
    "olmo": ("olmo-2-7b", {"model_type": "olmo"}, None),
    "phi": ("gpt-neox-20b", {"model_type": "phi", "rope_parameters": None, "partial_rotary_factor": 0.5}, None),
    "glm": ("glm-4-9b", {"model_type": "glm"}, None),
    "glm-4.7-flash": ("deepseek-v3", {"model_type": "glm4_moe_lite"}, None),
    "phi-4-mini": ("phi-4", {"partial_rotary_factor": 0.75}, None),
    "falcon-40b": ("falcon-7b", {"new_decoder_architecture": True, "num_kv_heads": 4}, None),
    "falcon-alibi": ("falcon-7b", {"alibi": True}, None),
    "gemma-3-v5": ("gemma-3-12b", {"rope_scaling": None, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}, None),
}


def load(name: str) -> dict:
    """The text model's configuration, without its source."""
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    config |= config.get("text_config", {})
    for key in ("_source", "text_config", "quantization_config", "architectures"):
        config.pop(key, None)
    return config


def shrink(config: dict) -> dict:
    """The same kinds of layers and the same rope with few, small and random weights."""
    small = dict(config)
    heads = 4
    kind = small["model_type"]
    head_dim = small.get("head_dim")
    if head_dim is None and kind in ("gemma3_text", "gemma", "gemma2"):
        head_dim = 256
    head_dim = head_dim or small["hidden_size"] // small["num_attention_heads"]
    kv = small.get("num_key_value_heads")
    small |= {"num_attention_heads": heads, "hidden_size": heads * head_dim, "vocab_size": 64, "intermediate_size": 32}
    if kv is not None:
        small["num_key_value_heads"] = heads if kv == config["num_attention_heads"] else 2
    if kind == "gemma3_text":
        small |= {"vocab_size": 64, "num_key_value_heads": 2}
    if kind == "falcon":
        small["num_kv_heads"] = 2 if config.get("new_decoder_architecture") else heads
        small["ffn_hidden_size"] = 32
    layers = 7 if kind == "gemma3_text" else 5
    small["num_hidden_layers"] = layers
    for per_layer in ("layer_types", "no_rope_layers"):
        if small.get(per_layer):
            small[per_layer] = small[per_layer][:layers]
    if small.get("sliding_window") and small["sliding_window"] < 100_000 or small.get("use_sliding_window"):
        small["sliding_window"] = WINDOW
    if small.get("attention_chunk_size"):
        small["attention_chunk_size"] = WINDOW
    sizes = {"intermediate_size_mlp": 32, "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
             "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
             "v_head_dim": 16, "first_k_dense_replace": 1}
    small |= {key: value for key, value in sizes.items() if small.get(key) is not None}
    if small.get("kv_lora_rank"):
        small["hidden_size"] = 64
        small["num_key_value_heads"] = heads
    return small


def model_of(config: dict):
    """A random model."""
    torch.manual_seed(1)
    fields = {k: v for k, v in config.items() if k not in ("model_type", "torch_dtype", "dtype")}
    kind = {"kimi_k2": "deepseek_v3"}.get(config["model_type"], config["model_type"])
    if kind in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite"):
        fields |= {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}
    if kind == "glm4_moe_lite":
        fields.pop("first_k_dense_replace", None)
    fields |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    made = transformers.AutoConfig.for_model(kind, **fields)
    made._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        # Sinks take a share of the attention that depends on the position: their part of a cache is its values, not its layout.
        if "sinks" in name:
            parameter.data.fill_(-1e9)
        elif parameter.dim() > 1:
            parameter.data.normal_(0, 0.05)
    return model


def spec_of(kvasir: str, config: dict, context: int | None, pairing: str | None) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        command = [kvasir, "model", "spec", "--config", folder, "--weights", "small", "--revision", "1", "--kv-dtype", "f32", "--freqs"]
        command += ["--context", str(context)] if context else []
        command += ["--pairing", pairing] if pairing else []
        answer = subprocess.run(command, capture_output=True, text=True)
        if answer.returncode:
            raise SystemExit(f"{' '.join(command)}: {answer.stderr}")
    return json.loads(answer.stdout)


def unrotated(keys: torch.Tensor, rope: dict, first: int) -> torch.Tensor:
    """Keys `[heads, tokens, elements]` turned back by the spec's exact phases."""
    freqs = [int(freq) for freq in rope["freqs"]]
    angle = [[(p * f % TURN) / TURN * math.tau for f in freqs] for p in range(first, first + keys.shape[1])]
    cos, sin = torch.tensor(angle, dtype=torch.float64).cos(), torch.tensor(angle, dtype=torch.float64).sin()
    pairs, out = len(freqs), keys.double().clone()
    if rope["pairing"] == "half":
        a, b = slice(0, pairs), slice(pairs, 2 * pairs)
    else:
        a, b = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    x, y = keys.double()[..., a], keys.double()[..., b]
    factor = rope.get("attention_factor", 1.0)
    out[..., a], out[..., b] = (x * cos + y * sin) / factor, (y * cos - x * sin) / factor
    return out


def spread(rows: torch.Tensor) -> float:
    """How far rows differ from the first, by their size."""
    return ((rows - rows[:, :1]).norm() / rows.norm()).item()


def compare(kvasir: str, name: str, config: dict, context: int | None, first: int) -> int:
    """Layers compared."""
    small = shrink(config)
    model = model_of(small)
    pairing = "half" if config["model_type"] in HALF else None
    spec = spec_of(kvasir, {"dtype": "float32", **small}, context, pairing)
    layers = [run for run in spec["layers"] for _ in range(run.get("count", 1))]
    ids = torch.full((1, TOKENS), 7)
    positions = torch.arange(first, first + TOKENS)[None]
    arguments = {} if config["model_type"] == "falcon" and config.get("alibi") else {"position_ids": positions}
    with torch.no_grad():
        cache = model(ids, use_cache=True, **arguments).past_key_values
    assert len(cache.layers) == len(layers), (name, len(cache.layers), len(layers))
    for index, (kept, layer) in enumerate(zip(cache.layers, layers)):
        where, layout = f"{name} layer {index}", layer["layout"]
        keys, values = kept.keys[0].double(), kept.values[0].double()
        rows = keys.shape[1]
        start = first + TOKENS - rows
        if layout["kind"] == "mla":
            assert keys.shape[2] == layout["latent"] and values.shape[2] == layout["rope_dims"] and keys.shape[0] == 1, where
            assert spread(keys) < 1e-5, f"{where}: latents are not rotated"
            keys = values
        else:
            assert keys.shape[2] == values.shape[2] == layout["head_dim"], (where, keys.shape, layout)
            # transformers repeats the heads of Falcon's new architecture; engines that serve do not.
            repeated = config.get("new_decoder_architecture", False)
            assert repeated or keys.shape[0] == values.shape[0] == layout["kv_heads"], (where, keys.shape, layout)
            window = getattr(kept, "sliding_window", None)
            slides = layout["kind"] == "sliding_window"
            assert slides == (window is not None and window < 100_000) or layout.get("window", 0) >= 100_000, (where, window, layout)
            assert not slides or window == layout["window"], (where, window, layout)
            assert spread(values) < 1e-4, f"{where}: {spread(values)}, values are not alike"
        if "rope" in layer:
            rope = spec["ropes"][layer["rope"]]
            back = spread(unrotated(keys, rope, start))
            assert spread(keys) > 1e-3, f"{where}: keys are not rotated"
            assert back < 2e-4, f"{where}: {back} after turning back"
        else:
            assert spread(keys) < 1e-4, f"{where}: {spread(keys)}, keys are rotated"
    return len(layers)


def frequencies(config: dict, first: int) -> dict:
    """What the model's rotary embedding has after a run at these positions."""
    model = model_of(shrink(config))
    with torch.no_grad():
        model(torch.full((1, 4), 7), position_ids=torch.arange(first, first + 4)[None])
    rotary = next(m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding"))
    buffers = {n: b for n, b in rotary.named_buffers() if n.endswith("inv_freq") and "original" not in n}
    names = {n: n.removesuffix("inv_freq").rstrip("_") or "all" for n in buffers}
    factor = lambda kind: getattr(rotary, "attention_scaling" if kind == "all" else f"{kind}_attention_scaling", 1.0)  # noqa: E731
    return {names[n]: {"attention_factor": float(factor(names[n])), "inv_freq": [float(repr_f32(v)) for v in b]} for n, b in buffers.items()}


def repr_f32(value: torch.Tensor) -> str:
    """The shortest decimal that is this f32."""
    return str(value.numpy())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("--golden", action="store_true")
    parser.add_argument("only", nargs="*")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    names = sorted(path.stem for path in CONFIGS.glob("*.json"))
    if arguments.golden:
        ropes = {}
        for name in names:
            for context, first in LENGTHS.get(name, [(None, 0)]):
                ropes[f"{name}@{context}" if context else name] = frequencies(load(name), first)
        made = f"tests/models/run --golden, transformers {transformers.__version__}, torch {torch.__version__}"
        text = json.dumps({"_made_by": made, "ropes": ropes})
        print(text.replace('}, "', '},\n"'))
        return 0
    cases = [(name, load(name), LENGTHS.get(name)) for name in names]
    cases += [(name, {k: v for k, v in {**load(base), **changes}.items() if v is not None}, lengths) for name, (base, changes, lengths) in VARIANTS.items()]
    failed, models, layers = [], 0, 0
    for name, config, lengths in cases:
        if arguments.only and name not in arguments.only:
            continue
        for context, first in lengths or [(None, 0), (None, 3000)]:
            try:
                layers += compare(arguments.kvasir, name, config, context, first)
                models += 1
            except Exception as error:  # noqa: BLE001
                failed.append(f"{name} at {first}: {type(error).__name__}: {error}")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: {models} caches of {len(cases)} configurations, {layers} layers alike")
    for failure in failed:
        print(f"NOT: {failure}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
