//! One piece on a device: the entropy stage alone, for differential tests on any device.

use kvasir_codec::rans::{Coding, PieceError, PiecePlan, TableBank, piece_parts};
use kvasir_kernels::{DecodeParams, Kernel, Record, Status, TASK_REFINES, record_bytes};

use crate::{
    CudaError, Device, DeviceMemory, DeviceReadback, Work,
    lower::{Lowered, PlacedPiece, ScopeCodings, lower, piece_error},
};

/// Offset of the piece among the uploaded bytes: errors must not count from there.
const OFFSET: usize = 12;

/// Decodes one piece as `kvasir_codec::rans::decode_piece` does: `before` are the values of the level before,
/// `[coefficient][token]`.
///
/// # Errors
/// The outer one is the device's; the inner one is the piece's, the same as on the CPU.
pub fn decode_piece<D: Device>(
    device: &D,
    bank: &TableBank,
    codings: &[Coding],
    tokens: usize,
    bytes: &[u8],
    before: &[i32],
) -> Result<Result<Vec<i32>, PieceError>, CudaError> {
    let parts = match piece_parts(bank, &PiecePlan { coefficients: codings, tokens }, bytes) {
        Ok(parts) => parts,
        Err(error) => return Ok(Err(error)),
    };
    let indices: Vec<usize> = (0..codings.len()).collect();
    let scope = ScopeCodings::new(codings.len(), std::iter::once((&indices[..], codings)));
    let piece = PlacedPiece { section: 0, offset: OFFSET as u32, parts };
    let mut work = match lower(&scope, 0, tokens, &[piece]) {
        Lowered::Fused(work) => work,
        Lowered::Staged(mut works) => works.remove(0),
    };
    work.tasks.iter_mut().for_each(|task| task.flags |= TASK_REFINES);
    let up = |label, bytes: Vec<u8>| device.upload(label, &bytes);
    let placed: [(usize, &[u8]); 2] = [(0, &[0xee; OFFSET]), (OFFSET, bytes)];
    let uploaded = device.upload_parts("bytes", OFFSET + bytes.len(), &placed)?;
    let streams = up("streams", record_bytes(&work.streams))?;
    let (tasks, words) =
        (up("tasks", record_bytes(&work.tasks))?, up("codings", record_bytes(&scope.words))?);
    let tables = up("tables", bank.to_bytes().split_off(4))?;
    let (values, counter) = (up("values", record_bytes(before))?, up("counter", vec![0; 4])?);
    let statuses = device.allocate("statuses", work.streams.len() * size_of::<Status>())?;
    let params = DecodeParams {
        bytes: uploaded.address(),
        tasks: tasks.address(),
        streams: streams.address(),
        codings: words.address(),
        statuses: statuses.address(),
        tables: tables.address(),
        counter: counter.address(),
        values: values.address(),
        task_count: work.tasks.len() as u32,
        stage_tables: bank.stage_tables().len() as u32,
        trit_tables: bank.trit_tables().len() as u32,
        ..DecodeParams::default()
    };
    let mut record = Vec::new();
    params.write(&mut record);
    // SAFETY: every address is that of a live buffer with the records that the kernel expects.
    unsafe { device.launch(Kernel::Decode1, Work::Warps(work.tasks.len()), bank.byte_len(), &record)? };
    let reported = device.read_back(&statuses, 0, work.streams.len() * size_of::<Status>())?.bytes()?;
    let out = device.read_back(&values, 0, before.len() * 4)?.bytes()?;
    for ((name, stream), word) in work.names.iter().zip(&work.streams).zip(reported.as_chunks::<8>().0) {
        let [a, b, c, d, e, f, g, h] = *word;
        let status =
            Status { code: u32::from_le_bytes([a, b, c, d]), detail: u32::from_le_bytes([e, f, g, h]) };
        let Some(name) = *name else { continue };
        match piece_error(status, *stream, name, || bytes) {
            None => return Err(CudaError::NoStatus { section: 0, span: 0 }),
            Some(Err(error)) => return Ok(Err(error)),
            Some(Ok(())) => {}
        }
    }
    Ok(Ok(out.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect()))
}
