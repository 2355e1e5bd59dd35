//! Compares everything with the CPU codec: golden pieces, recipes, levels, encode and decode.

use std::{error::Error, fs, path::Path, sync::Arc};

use kvasir_codec::{
    ChunkDecoder, ChunkEncoder, ChunkInput, KvBuffer,
    container::Head,
    rans::{PieceDecoder, PiecePlan, TableBank},
};
use kvasir_cuda::{CudaDevice, KernelDecoder, KernelEncoder, decode_piece};
use kvasir_types::{ChainLink, Level, Loss};

use crate::{
    common::{Noise, Setup, cache, exact_setup, setups, typed},
    golden::{Golden, parse},
};

/// Whether all results are equal; prints the differences.
pub(crate) fn run(device: &Arc<CudaDevice>, golden: &Path) -> Result<bool, Box<dyn Error>> {
    let mut same = true;
    let pieces = golden_pieces(device, golden, &mut same)?;
    for (index, setup) in setups().iter().enumerate() {
        for (tokens, first) in
            [(1, 0), (300, 77_777), (1_536, 5)].into_iter().take(if index == 0 { 3 } else { 2 })
        {
            same &= chunk(device, setup, tokens, first)?;
        }
    }
    same &= an_exact_level(device)?;
    println!(
        "differential: {pieces} golden pieces, {} recipes at all levels, encoded and decoded",
        setups().len()
    );
    Ok(same)
}

fn golden_pieces(device: &Arc<CudaDevice>, folder: &Path, same: &mut bool) -> Result<usize, Box<dyn Error>> {
    let mut count = 0;
    for verdict in ["ok", "err"] {
        for entry in fs::read_dir(folder.join(verdict))? {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e != "piece") {
                continue;
            }
            let Golden { bank, tokens, codings, before, piece } = parse(&fs::read_to_string(&path)?);
            let Ok((bank, _)) = TableBank::from_bytes(&bank) else { continue };
            let (mut values, plan) = (before.clone(), PiecePlan { coefficients: &codings, tokens });
            let cpu = PieceDecoder::scalar().decode_piece(&bank, &plan, &piece, &mut values).map(|()| values);
            if decode_piece(device, &bank, &codings, tokens, &piece, &before)? != cpu {
                println!("FAIL {}", path.display());
                *same = false;
            }
            count += 1;
        }
    }
    Ok(count)
}

fn chunk(device: &Arc<CudaDevice>, setup: &Setup, tokens: usize, first: u64) -> Result<bool, Box<dyn Error>> {
    let (spec, profile) = (&setup.spec, &setup.profile);
    let decoder = KernelDecoder::new(Arc::clone(device), Arc::clone(spec), Arc::clone(profile))??;
    let encoder = KernelEncoder::new(Arc::clone(device), Arc::clone(spec), Arc::clone(profile))??;
    let text = Noise::new(tokens as u64).tokens(tokens);
    let kv = cache(spec, &text, 5);
    let cpu = setup.encode(&text, first, &kv);
    let input = ChunkInput {
        tokens: &text,
        preceding_token: (first > 0).then_some(3),
        first_position: first,
        link: ChainLink::first([9; 32].into()),
        beneath: Loss::NONE,
        kv: &kv,
    };
    let ours = encoder.encode(&input)?;
    let recipe = &profile.training().recipe;
    let mut same = !profile.is_direct() || ours == cpu;
    if !same {
        println!("FAIL encode {recipe}, {tokens} tokens: the bytes differ");
    }
    // Both decoders decode the GPU's output.
    same &= decodes(&decoder, setup, &ours)?;
    Ok(same)
}

/// An exact level, and those beneath, which are predicted from the text without a basis. No kernel encodes them.
fn an_exact_level(device: &Arc<CudaDevice>) -> Result<bool, Box<dyn Error>> {
    let setup = exact_setup();
    let decoder =
        KernelDecoder::new(Arc::clone(device), Arc::clone(&setup.spec), Arc::clone(&setup.profile))??;
    let text = Noise::new(300).tokens(300);
    let object = setup.encode(&text, 77_777, &typed(&setup.spec, &text, 5));
    decodes(&decoder, &setup, &object)
}

/// Compares all levels of a chunk with those that the CPU decodes.
fn decodes(
    decoder: &KernelDecoder<Arc<CudaDevice>>,
    setup: &Setup,
    object: &[u8],
) -> Result<bool, Box<dyn Error>> {
    let (profile, head) = (&setup.profile, Head::parse(object)?);
    let (tokens, recipe) = (head.header.token_count as usize, &profile.training().recipe);
    let mut same = true;
    for level in 0..profile.level_count() {
        let mut rows = KvBuffer::new(&setup.spec, tokens);
        decoder.decode(&head, object, Level(level as u8), 0..tokens, &mut rows)?;
        let expected = setup.decode(object, level)?;
        let scale = expected.as_slice().iter().fold(0f32, |most, v| most.max(v.abs()));
        let most = if profile.is_direct() { 0.0 } else { 4e-6 * scale };
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= most;
        if !expected.as_slice().iter().zip(rows.as_slice()).all(near) {
            println!("FAIL decode {recipe}, {tokens} tokens, level {level}");
            same = false;
        }
    }
    Ok(same)
}
