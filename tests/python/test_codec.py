"""Codec, profiles and arithmetic without a service, compared with the command."""

import json
import subprocess
import sys

import numpy as np
import pytest

import kvasir
from toy_model import TOKENS, make_kv, make_profile, make_spec, make_tokens, same


def read_dump(path) -> dict[str, np.ndarray]:
    """A safetensors file; bf16 as uint16."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    dtypes = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U32": np.uint32, "I32": np.int32}
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], dtypes[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in tensors.items()
    }


CODED = [
    ("float32", "direct"),
    ("bfloat16", "direct"),
    ("bfloat16", "exact-residual"),
    ("float16", "exact-residual"),
    ("float16", "basis"),
]


@pytest.mark.parametrize(("kv_dtype", "recipe"), CODED)
def test_decoded_rows_are_those_of_the_command(tmp_path, kv_dtype, recipe):
    spec = make_spec(kv_dtype)
    profile, tokens, kv = make_profile(spec, recipe), make_tokens(), make_kv(spec)
    object = kvasir.encode(tokens, kv, model=spec, profile=profile)
    found = kvasir.inspect(object)
    assert (found.model_id, found.profile_id, found.tokens) == (spec.model_id, profile.profile_id, TOKENS)
    assert found.level_bytes[-1] == found.object_bytes == len(object)
    profile.save(tmp_path / "profile.kvp")
    (tmp_path / "spec.json").write_text(spec.to_json())
    (tmp_path / "object.kvc").write_bytes(object)
    for level, size in enumerate(found.level_bytes):
        ours = kvasir.decode(object[:size], model=spec, profile=profile, level=level)
        command = [kvasir.testing.binary(), "object", "decode", tmp_path / "object.kvc", "--profile", tmp_path / "profile.kvp"]
        command += ["--spec", tmp_path / "spec.json", "--level", str(level), "-o", tmp_path / "back.safetensors"]
        subprocess.run(command, check=True, capture_output=True)
        theirs = read_dump(tmp_path / "back.safetensors")
        assert theirs["tokens"].tolist() == tokens
        for layer, (k, v) in enumerate(ours):
            np.testing.assert_array_equal(k, theirs[f"k.{layer}"], f"level {level} layer {layer}")
            np.testing.assert_array_equal(v, theirs[f"v.{layer}"], f"level {level} layer {layer}")
    assert same(ours, kv, TOKENS) == profile.is_lossless
    assert profile.is_lossless == (recipe == "exact-residual")


def test_dumps_train_the_same_profile(tmp_path, spec, profile):
    paths = []
    for seed in (1, 2, 3):
        # Made by the command, from an object that holds every bit.
        object = kvasir.encode(make_tokens(seed=seed), make_kv(spec, seed=seed), model=spec, profile=profile)
        (tmp_path / "object.kvc").write_bytes(object)
        (tmp_path / "spec.json").write_text(spec.to_json())
        profile.save(tmp_path / "profile.kvp")
        paths.append(tmp_path / f"{seed}.safetensors")
        command = [kvasir.testing.binary(), "object", "decode", tmp_path / "object.kvc", "--profile", tmp_path / "profile.kvp"]
        subprocess.run([*command, "--spec", tmp_path / "spec.json", "-o", paths[-1]], check=True, capture_output=True)
    told, options = [], {"recipe": "exact-residual", "finest_nmse": 2.5e-4}
    again = kvasir.Profile.train(paths, **options, progress=lambda what, share: told.append((what, share)))
    assert again == profile
    assert told and all(0 <= share <= 1 for _, share in told)


def test_an_exception_of_the_callback_is_raised(spec, tokens, kv):
    def stop(what, share):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        kvasir.Profile.train([(tokens, kv)] * 3, model=spec, recipe="direct", progress=stop)


class Bar:
    """What is used of a tqdm."""

    def __init__(self):
        self.n, self.total, self.described = 0.0, 50, []

    def set_description(self, what, refresh=True):
        self.described.append(what)

    def update(self, more):
        self.n += more


def test_progress_moves_a_bar_and_is_written_where_nothing_draws(spec, tokens, kv, monkeypatch, capsys):
    bar, train = Bar(), lambda **options: kvasir.Profile.train([(tokens, kv)] * 3, model=spec, recipe="direct", **options)
    train(progress=bar)
    assert bar.n == pytest.approx(50) and bar.described
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    train(progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].endswith(": 100 %") and len(lines) == len(set(lines))


def test_damage_and_strangers_are_named(spec, profile, tokens, kv):
    object = bytearray(kvasir.encode(tokens, kv, model=spec, profile=profile))
    with pytest.raises(kvasir.DataError) as caught:
        kvasir.Profile(b"nothing of the kind")
    assert caught.value.code == "invalid_profile" and "magic" in caught.value.message
    object[-20] ^= 1
    with pytest.raises(kvasir.DataError) as caught:
        kvasir.inspect(bytes(object))
    assert caught.value.code == "invalid_object"
    with pytest.raises(kvasir.DataError) as caught:
        kvasir.decode(bytes(object), model=spec, profile=profile)
    assert caught.value.code == "not_decodable" and caught.value.remedy
    with pytest.raises(kvasir.DataError, match="was trained for model"):
        kvasir.encode(tokens, make_kv(make_spec("bfloat16")), model=make_spec("bfloat16"), profile=profile)
    with pytest.raises(kvasir.InputError, match="1 to 16384 tokens"):
        kvasir.encode([], spec.empty(0), model=spec, profile=profile)


def test_configurations_are_read_and_refused(tmp_path):
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "torch_dtype": "float32"}
    with pytest.raises(kvasir.InputError, match="weights and revision"):
        kvasir.ModelSpec.from_config(config)
    with pytest.raises(kvasir.InputError, match="model_type"):
        kvasir.ModelSpec.from_config({**config, "model_type": "t5"}, weights="a", revision="1")
    folder = tmp_path / "models--org--name" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    found = json.loads(kvasir.ModelSpec.from_config(folder).to_json())
    assert (found["weights"], found["revision"]) == ("org/name", "abc")
    adapted = kvasir.ModelSpec.from_config(folder, adapter="lora@1")
    assert adapted.model_id != kvasir.ModelSpec.from_config(folder).model_id
    assert kvasir.ModelSpec.from_json(adapted.to_json()) == adapted


def test_layers_are_as_they_are_declared(spec):
    assert spec.layers == [("gqa", ((2, 16), (2, 16)))] * 3


def test_a_plan_is_that_of_the_command():
    ours = kvasir.plan("llama-3.1-8b", tokens=4096, bandwidth=[1e9, 1e10], slo=0.5, gpu="a100", gpus=2)
    command = [kvasir.testing.binary(), "plan", "--model", "llama-3.1-8b", "--tokens", "4096", "--bandwidth", "1gbit,10gbit"]
    command += ["--slo", "500ms", "--gpu", "a100", "--gpus", "2", "--json"]
    assert ours == json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    with pytest.raises(kvasir.InputError, match="there is no known GPU abacus"):
        kvasir.plan("llama-3.1-8b", gpu="abacus")


def test_pictures_hold_every_level(spec, profile, tokens, kv):
    found = kvasir.inspect(kvasir.encode(tokens, kv, model=spec, profile=profile))
    assert found._repr_html_().count("<rect") == len(found.level_bytes) == len(profile.levels)
    assert profile._repr_html_().count("<rect") == len(profile.levels)
    assert kvasir.plan("llama-3.1-8b")._repr_html_().count("<tr>") > 3
