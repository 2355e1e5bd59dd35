//! The codec's trait over the kernels: rows of a host sink by way of the device.

use std::{collections::BTreeSet, ops::Range};

use kvasir_codec::{ChunkDecoder, DecodeError, HeadRows, KvSink, LayerGroup, Rows, container::Head};
use kvasir_types::{Level, Plane};

use crate::{ChunkRequest, CudaError, Device, DeviceMemory, DeviceReadback, KernelDecoder, dense::Dense};

/// Host rows of a decode: one contiguous f32 cache on the device, `[layer][plane][token][head][element]`.
impl<D: Device> KernelDecoder<D> {
    fn decode_to_sink(
        &self,
        head: &Head,
        object_prefix: &[u8],
        scopes: Vec<(usize, Level)>,
        tokens: Range<usize>,
        sink: &mut dyn KvSink,
    ) -> Result<(), CudaError> {
        let count = tokens.len();
        let views = scopes.iter().filter_map(|(scope, _)| self.cpu.scope_view(*scope));
        let wanted: BTreeSet<_> =
            views.flat_map(|view| view.members).map(|m| (m.layer, m.plane as usize, m.head)).collect();
        let dense = Dense::new(self.cpu.spec(), count);
        let memory = self.device.allocate("pages", dense.bytes())?;
        let pages = dense.pages(memory.address());
        let request =
            ChunkRequest { head, object_prefix, scopes, tokens: tokens.clone(), blocks: &[0], first_slot: 0 };
        // SAFETY: the pages are this function's own memory, of the size that the layout takes.
        unsafe { self.decode_into(&[request], &pages)? };
        let rows = self.device.read_back(&memory, 0, dense.bytes())?.bytes()?;
        let values: Vec<f32> = rows.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        self.write_rows(&values, &dense.starts, &wanted, tokens, sink);
        Ok(())
    }

    fn write_rows(
        &self,
        values: &[f32],
        starts: &[usize],
        wanted: &BTreeSet<(usize, usize, usize)>,
        tokens: Range<usize>,
        sink: &mut dyn KvSink,
    ) {
        for (layer, kv) in self.cpu.spec().layers.iter().enumerate() {
            for plane in Plane::ALL {
                let (heads, dim) = kv.layout.planes()[plane as usize];
                let start = starts[2 * layer + plane as usize];
                let wanted: Vec<usize> =
                    (0..heads).filter(|head| wanted.contains(&(layer, plane as usize, *head))).collect();
                for run in wanted.chunk_by(|a, b| a + 1 == *b) {
                    let values = &values[start + run[0] * dim..];
                    let shape = [run.len(), tokens.len(), dim];
                    if let Some(rows) = HeadRows::strided(values, shape, dim, heads * dim) {
                        sink.write_rows(layer, plane, run[0], tokens.start, Rows::F32(rows));
                    }
                }
            }
        }
    }
}

fn codec_error(error: CudaError) -> DecodeError {
    match error {
        CudaError::Decode(error) => error,
        other => DecodeError::Device { cause: other.to_string() },
    }
}

impl<D: Device> ChunkDecoder for KernelDecoder<D> {
    fn layer_groups(&self) -> &[LayerGroup] {
        self.cpu.layer_groups()
    }

    fn decode_group(
        &self,
        head: &Head,
        object_prefix: &[u8],
        group: &LayerGroup,
        level: Level,
        tokens: Range<usize>,
        sink: &mut dyn KvSink,
    ) -> Result<(), DecodeError> {
        let scopes = group.scopes.iter().map(|reach| (reach.scope, level)).collect();
        self.decode_to_sink(head, object_prefix, scopes, tokens, sink).map_err(codec_error)
    }

    fn level_kl(&self) -> Option<Vec<f64>> {
        self.cpu.level_kl()
    }

    /// As the CPU decoder; a fault of the device is [`DecodeError::Device`].
    fn decode(
        &self,
        head: &Head,
        object_prefix: &[u8],
        level: Level,
        tokens: Range<usize>,
        sink: &mut dyn KvSink,
    ) -> Result<(), DecodeError> {
        let scopes = self.all_scopes(level);
        self.decode_to_sink(head, object_prefix, scopes, tokens, sink).map_err(codec_error)
    }
}
