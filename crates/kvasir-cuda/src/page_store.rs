//! An engine's paged cache on a device, as the destination of a client's loads.

use std::{
    ops::Range,
    sync::{Arc, Mutex, Once, PoisonError},
    time::Instant,
};

use kvasir_client::pages::{
    BlockTable, DeviceBytes, DeviceDecode, DeviceDecoder, DevicePart, DeviceTimes, PageRead, PageRef,
    PageRows, PageStore, PartOutcome, Shard,
};
use kvasir_codec::{KvSink, Profile};
use kvasir_kernels::Dtype;
use kvasir_types::{KvDtype, ModelSpec, Plane, ProfileHash};

use crate::{
    ChunkRequest, CudaDevice, CudaError, Device, KernelDecoder, PagedKv, PlaneLayout,
    decode_slots::DecodeSlots, limits::RESIDENT_PROFILES_MAX, page_claims::PageClaims, page_rows::PlaneRows,
};

const OTHER_MODEL: &str = "the pages hold the KV of another model";

type SharedDecoder<D> = Arc<KernelDecoder<Arc<D>>>;

/// Pages on an NVIDIA GPU.
pub type CudaPages = DevicePages<CudaDevice>;

/// The paged cache of one rank. Loads into its [tables](Self::table) are decoded on the device, straight into the pages.
/// What the device does not decode, because its memory is full for instance, is decoded on the CPU and copied there, which
/// is much slower, and [`LoadReport::device`](kvasir_client::report::LoadReport::device) says so.
///
/// Saves read out of tables ([`Session::save_pages`](kvasir_client::Session::save_pages)): rows are copied to the host beside
/// the device's kernels, and encoded there.
///
/// On the device it keeps the four profiles that were used last. What a decode takes is freed behind it, and at most four run at
/// a time, of at most 4,096 tokens or one chunk each. Pinned memory is the device's, shared by everything on it.
#[derive(Debug)]
pub struct DevicePages<D: Device> {
    device: Arc<D>,
    spec: Arc<ModelSpec>,
    shard: Shard,
    pages: PagedKv,
    claims: PageClaims,
    slots: DecodeSlots,
    /// The last used one is the last.
    decoders: Mutex<Vec<(ProfileHash, SharedDecoder<D>)>>,
    warned: Once,
}

impl<D: Device> DevicePages<D> {
    /// The pages of the rank that holds `shard` of a model. Every page has generation 0.
    ///
    /// # Safety
    /// The planes of `pages` are memory of this device with the layout that they say, for [`PagedKv::blocks`] blocks, until
    /// this is dropped; so is what lies between two values of a plane's block. While a load into a table runs, nobody else,
    /// kernels that were queued before included, reads or writes rows of its matched tokens, except to read those that it has
    /// reported as ready. While a save from a table runs, nobody, such kernels included, writes rows of its tokens: the copies
    /// wait for no kernel. Both end with the load or the save, or when the page was [reassigned](Self::reassign).
    ///
    /// # Errors
    /// [`CudaError::Pages`] if the planes are not those of the shard, or not of the model's type: loads round to that
    /// type only, and do not scale. [`CudaError::Device`] if the kernels cannot be made ready, which may take a minute.
    pub unsafe fn new(
        device: Arc<D>,
        spec: Arc<ModelSpec>,
        shard: Shard,
        pages: PagedKv,
    ) -> Result<Arc<Self>, CudaError> {
        pages.records()?;
        let wrong = |what| Err(CudaError::Pages { what });
        if pages.layers.len() != spec.layers.len() {
            return wrong(
                "there must be an entry for each layer of the model; those of other ranks are `None`",
            );
        }
        if pages.blocks > i32::MAX.unsigned_abs().into() {
            return wrong("there can be at most 2,147,483,647 blocks");
        }
        for (index, (planes, layer)) in pages.layers.iter().zip(&spec.layers).enumerate() {
            for (plane, (count, _)) in planes.iter().zip(layer.layout.planes()) {
                let held =
                    shard.layers.contains(&index).then(|| shard.heads_of(count)).filter(|h| !h.is_empty());
                if plane.as_ref().map(|plane| &plane.heads) != held.as_ref() {
                    return wrong(
                        "a plane must be there exactly if the shard holds it, with the shard's heads",
                    );
                }
                if plane.as_ref().is_some_and(|plane| Some(plane.dtype) != dtype_of(spec.kv_dtype)) {
                    return wrong("the values of the pages must have the model's type");
                }
                if plane.as_ref().is_some_and(|plane| plane.scale.to_bits() != 1f32.to_bits()) {
                    return wrong("loads do not scale values: the scale of every plane must be 1");
                }
            }
        }
        // Here, and not while a load holds pages.
        device.prepare()?;
        let claims = PageClaims::new(pages.blocks as usize);
        Ok(Arc::new(Self {
            device,
            spec,
            shard,
            pages,
            claims,
            slots: DecodeSlots::default(),
            decoders: Mutex::default(),
            warned: Once::new(),
        }))
    }

    /// The table of a context whose tokens are in these pages, in order. It ends with a page's next
    /// [reassignment](Self::reassign). Do not give it another shard: the pages are this rank's.
    ///
    /// # Errors
    /// [`CudaError::Pages`] for a page that does not exist.
    pub fn table(self: &Arc<Self>, pages: &[u32]) -> Result<BlockTable, CudaError>
    where
        D: 'static,
    {
        let missing = CudaError::Pages { what: "a page of the table does not exist" };
        let pages: Option<Vec<PageRef>> = pages.iter().map(|page| self.claims.page(*page)).collect();
        let store: Arc<dyn PageStore> = Arc::clone(self) as _;
        let table = BlockTable::new(store, pages.ok_or(missing)?, self.pages.block_tokens as usize);
        let table = table.map_err(|_| CudaError::Pages { what: "a block must have at least one token" })?;
        Ok(table.with_shard(self.shard.clone()))
    }

    /// Ends all tables that have one of these pages: loads no longer write them, and saves no longer read them. Waits for the
    /// decodes and copies that use them now, which takes milliseconds.
    pub fn reassign(&self, pages: &[u32]) {
        self.claims.reassign(pages);
    }

    /// The decoder of a profile, which is brought to the device if it is not there, and the bytes of all that stay there.
    fn decoder(
        &self,
        hash: ProfileHash,
        profile: &Arc<Profile>,
    ) -> Result<(SharedDecoder<D>, usize), String> {
        let mut decoders = self.decoders.lock().unwrap_or_else(PoisonError::into_inner);
        let decoder = match decoders.iter().position(|(resident, _)| *resident == hash) {
            Some(found) => decoders.remove(found).1,
            None => {
                if decoders.len() >= RESIDENT_PROFILES_MAX {
                    decoders.remove(0);
                }
                let (device, spec) = (Arc::clone(&self.device), Arc::clone(&self.spec));
                let made = KernelDecoder::new(device, spec, Arc::clone(profile));
                Arc::new(made.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?)
            }
        };
        decoders.push((hash, Arc::clone(&decoder)));
        let bytes = decoders.iter().map(|(_, decoder)| decoder.profile_bytes()).sum();
        Ok((decoder, bytes))
    }
}

const fn dtype_of(dtype: KvDtype) -> Option<Dtype> {
    match dtype {
        KvDtype::Bf16 => Some(Dtype::Bf16),
        KvDtype::F16 => Some(Dtype::F16),
        KvDtype::F32 => Some(Dtype::F32),
        KvDtype::Fp8E4m3 => Some(Dtype::Fp8E4m3),
        KvDtype::Int8 => None,
    }
}

impl<D: Device> DeviceDecoder for DevicePages<D> {
    fn decode(&self, parts: &[DevicePart<'_>]) -> Result<DeviceDecode, String> {
        let Some(first) = parts.first() else { return Ok(DeviceDecode::default()) };
        for part in parts {
            self.check_cut(part.shard(), part.page_tokens())?;
        }
        let asked = Instant::now();
        let (decoder, profiles) = self.decoder(first.head().header.profile_hash, first.profile())?;
        // Before pages are claimed, so that whoever reassigns them waits for no other decode.
        let _slot = self.slots.take();
        let waited = asked.elapsed();
        let mut claimed = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            if let Some(claim) = self.claims.claim(part.pages()) {
                let blocks: Vec<i32> = part.pages().iter().map(|page| page.index.cast_signed()).collect();
                claimed.push((index, claim, blocks));
            }
        }
        let mut requests = Vec::with_capacity(claimed.len());
        for (index, _, blocks) in &claimed {
            let part = &parts[*index];
            requests.push(ChunkRequest {
                head: part.head(),
                object_prefix: part.object_prefix(),
                scopes: part.scopes().iter().map(|scope| (*scope, part.level())).collect(),
                tokens: part.tokens(),
                blocks,
                first_slot: u32::try_from(part.first_slot()).map_err(|_| "a page has too many tokens")?,
            });
        }
        // SAFETY: the memory is as `new` was promised, and the claims keep the pages ours until the rows are in place.
        let decoded = unsafe { decoder.decode_each(&requests, &self.pages) };
        let (results, scratch, [copies, kernels]) = decoded.map_err(|error| error.to_string())?;
        let mut outcomes = vec![PartOutcome::Stale; parts.len()];
        for ((index, ..), result) in claimed.iter().zip(results) {
            let refused = |error: CudaError| PartOutcome::Refused(error.to_string());
            outcomes[*index] = result.map_or_else(refused, |()| PartOutcome::Decoded);
        }
        let memory = DeviceBytes {
            scratch: scratch as u64,
            pinned: self.device.pinned_bytes() as u64,
            profiles: profiles as u64,
        };
        Ok(DeviceDecode { outcomes, memory, times: DeviceTimes { waited, copies, kernels } })
    }
}

impl<D: Device> PageStore for DevicePages<D> {
    fn write(&self, page: PageRef, rows: &PageRows<'_>) -> bool {
        let Some((plane, elements)) = self.plane(rows) else { return false };
        let held = [page];
        let Some(_claim) = self.claims.claim(&held) else { return false };
        let copy = RowCopy::new(plane, elements, page.index, rows);
        // SAFETY: inside the plane, as `plane` checked, which is as `new` was promised; the claim keeps the page ours.
        let written = unsafe { self.device.write(&copy.bytes, &copy.places) };
        if let Err(error) = &written {
            self.warned.call_once(|| {
                tracing::warn!(%error, "rows could not be copied to the device: loads into it are not used");
            });
        }
        written.is_ok()
    }

    fn device(&self) -> Option<&dyn DeviceDecoder> {
        Some(self)
    }

    fn read_rows(&self, rows: &PageRead<'_>, to: &mut dyn KvSink) -> Result<bool, String> {
        self.check_cut(rows.shard(), rows.page_tokens())?;
        if self.claims.claim(rows.pages()).is_none() {
            // A page that does not exist has no address either.
            return Ok(false);
        }
        let layer = rows.layer();
        for plane in Plane::ALL {
            let layout = self.pages.layers.get(layer).and_then(|planes| planes[plane as usize].as_ref());
            let Some(layout) = layout.filter(|layout| layout.heads == rows.heads(plane)) else {
                if rows.heads(plane).is_empty() {
                    continue;
                }
                return Err(OTHER_MODEL.into());
            };
            let (_, elements) = self.spec.layers[layer].layout.planes()[plane as usize];
            if elements != rows.elements(plane) {
                return Err(OTHER_MODEL.into());
            }
            let of_plane = PlaneRows { layer, plane, layout, elements };
            let pieces =
                of_plane.pieces(rows.slots()).ok_or("a row spans more bytes than are copied at a time")?;
            for piece in pieces {
                let mut bytes = vec![0; piece.bytes()];
                {
                    // Of one piece at a time, so that whoever reassigns pages waits for one copy.
                    let Some(_claim) = self.claims.claim(rows.pages()) else { return Ok(false) };
                    // SAFETY: inside the planes, of pages that exist, which are as `new` was promised; the claim keeps them ours.
                    unsafe { self.device.read(&mut bytes, &piece.places()) }
                        .map_err(|error| error.to_string())?;
                }
                piece.write_to(&of_plane, &bytes, to);
            }
        }
        Ok(true)
    }
}

impl<D: Device> DevicePages<D> {
    fn check_cut(&self, shard: &Shard, page_tokens: usize) -> Result<(), String> {
        if *shard == self.shard && page_tokens == self.pages.block_tokens as usize {
            Ok(())
        } else {
            Err("the table was cut in another way than its pages: use tables as `DevicePages::table` makes them".into())
        }
    }

    /// The plane of these rows and the elements of a row; `None` if they do not fit into a page of it.
    fn plane(&self, rows: &PageRows<'_>) -> Option<(&PlaneLayout, usize)> {
        let layer = rows.layer().checked_add(self.shard.layers.start)?;
        let plane = self.pages.layers.get(layer)?[rows.plane() as usize].as_ref()?;
        let (_, elements) = self.spec.layers[layer].layout.planes()[rows.plane() as usize];
        let fits = rows.elements() == elements
            && rows.heads().end <= plane.heads.len()
            && rows.slots().end <= self.pages.block_tokens as usize
            && rows.values().dtype() == self.spec.kv_dtype;
        fits.then_some((plane, elements))
    }
}

/// Rows in the order of their addresses, and where each run of them goes.
struct RowCopy {
    bytes: Vec<u8>,
    /// Address, and the bytes for it.
    places: Vec<(u64, Range<usize>)>,
}

impl RowCopy {
    fn new(plane: &PlaneLayout, elements: usize, page: u32, rows: &PageRows<'_>) -> Self {
        let size = plane.dtype.bytes();
        let (heads, slots) = (rows.heads(), rows.slots());
        let row_bytes = elements * size;
        let mut dense = vec![0; heads.len() * slots.len() * row_bytes];
        rows.copy_to_bytes(&mut dense, slots.len() * row_bytes, row_bytes);
        // A head's elements are one group unless packed.
        let (group, group_stride) =
            plane.pack.map_or((elements, 0), |(count, stride)| (count as usize, stride));
        let block = plane.base + u64::from(page) * plane.block_stride * size as u64;
        let mut groups = Vec::with_capacity(heads.len() * slots.len() * elements.div_ceil(group.max(1)));
        for (row, head) in heads.enumerate() {
            for (token, slot) in slots.clone().enumerate() {
                let of_row = head as u64 * plane.head_stride + slot as u64 * plane.token_stride;
                let first = (row * slots.len() + token) * row_bytes;
                for (index, start) in (0..elements).step_by(group.max(1)).enumerate() {
                    let end = (start + group).min(elements);
                    let address = block + (of_row + index as u64 * group_stride) * size as u64;
                    groups.push((address, first + start * size..first + end * size));
                }
            }
        }
        groups.sort_unstable_by_key(|(address, _)| *address);
        let mut copy = Self { bytes: Vec::with_capacity(dense.len()), places: Vec::new() };
        for (address, from) in groups {
            let start = copy.bytes.len();
            copy.bytes.extend_from_slice(&dense[from]);
            match copy.places.last_mut().filter(|(first, run)| first + run.len() as u64 == address) {
                Some((_, run)) => run.end = copy.bytes.len(),
                None => copy.places.push((address, start..copy.bytes.len())),
            }
        }
        copy
    }
}
