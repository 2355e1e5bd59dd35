"""LMCache's CacheGen on the CPU, with LMCache's own code.

python cachegen.py encode FOLDER LAYERS HEADS DIM CHUNK_TOKENS
    turns FOLDER/0000.raw ... (bf16, [K and V][layer][token][channel]) into FOLDER/0000.cachegen ...
python cachegen.py load FOLDER LAYERS HEADS DIM CHUNK_TOKENS PORT SIZES
    fetches blobs of these sizes from the port and decodes each while the next ones come

The last line on standard output is {"seconds": ...}.
"""

import json, pathlib, queue, socket, sys, threading, time

import numpy, torch
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import BytesBufferMemoryObj, MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.naive_serde.cachegen_decoder import CacheGenDeserializer
from lmcache.v1.storage_backend.naive_serde.cachegen_encoder import CacheGenSerializer

# Its table of bins has this one by name.
MODEL = "mistralai/Mistral-7B-Instruct-v0.2"

job, folder = sys.argv[1], pathlib.Path(sys.argv[2])
layers, heads, dim, chunk_tokens = map(int, sys.argv[3:7])
metadata = LMCacheMetadata(MODEL, 1, 1, 0, 0, torch.bfloat16, (layers, 2, chunk_tokens, heads, dim), chunk_size=chunk_tokens)
config = LMCacheEngineConfig.from_defaults(chunk_size=chunk_tokens)


def encode():
    serializer = CacheGenSerializer(config, metadata)
    begun = time.monotonic()
    for path in sorted(folder.glob("*.raw")):
        raw = torch.from_numpy(numpy.fromfile(path, dtype=numpy.int16)).view(torch.bfloat16)
        raw = raw.reshape(2, layers, -1, heads * dim)
        about = MemoryObjMetadata(raw.shape, raw.dtype, -1, raw.numel() * 2, 1, fmt=MemoryFormat.KV_2LTD)
        coded = serializer.serialize(TensorMemoryObj(raw, about, None))
        path.with_suffix(".cachegen").write_bytes(bytes(coded.byte_array))
        path.unlink()
    return time.monotonic() - begun


def load(port, sizes):
    deserializer = CacheGenDeserializer(config, metadata)
    decode = lambda blob: deserializer.deserialize(BytesBufferMemoryObj(blob))
    # Compiles what has to be compiled.
    decode((folder / "0000.cachegen").read_bytes())
    come = queue.Queue()
    with socket.create_connection(("127.0.0.1", port)) as s:
        begun = time.monotonic()

        def fetch():
            s.sendall(b"\1")
            for size in sizes:
                blob, at = bytearray(size), 0
                while at < size:
                    read = s.recv_into(memoryview(blob)[at:])
                    assert read, "the connection ended early"
                    at += read
                come.put(bytes(blob))

        threading.Thread(target=fetch, daemon=True).start()
        for _ in sizes:
            decode(come.get())
        return time.monotonic() - begun


seconds = encode() if job == "encode" else load(int(sys.argv[7]), [int(size) for size in sys.argv[8].split(",")])
print(json.dumps({"seconds": seconds}))
