//! The kernels: their sources, entry points and launch shapes.

use std::{collections::BTreeSet, fmt::Write};

use crate::{DECODE_THREADS, PRODUCT_THREADS, TILE_THREADS};

/// Every file of the device code: `(name, text)`. `.cu` files are translation units, `.cuh` files their headers.
pub const SOURCES: &[(&str, &str)] = &[
    ("format.cuh", include_str!("../cuda/format.cuh")),
    ("prelude.cuh", include_str!("../cuda/prelude.cuh")),
    ("entropy.cuh", include_str!("../cuda/entropy.cuh")),
    ("raw.cuh", include_str!("../cuda/raw.cuh")),
    ("pages.cuh", include_str!("../cuda/pages.cuh")),
    ("steps.cuh", include_str!("../cuda/steps.cuh")),
    ("decode.cu", include_str!("../cuda/decode.cu")),
    ("direct.cu", include_str!("../cuda/direct.cu")),
    ("scratch.cuh", include_str!("../cuda/scratch.cuh")),
    ("scatter.cu", include_str!("../cuda/scatter.cu")),
    ("lossless.cu", include_str!("../cuda/lossless.cu")),
    ("mma.cuh", include_str!("../cuda/mma.cuh")),
    ("synthesise.cu", include_str!("../cuda/synthesise.cu")),
    ("predict.cuh", include_str!("../cuda/predict.cuh")),
    ("rope.cuh", include_str!("../cuda/rope.cuh")),
    ("gather.cu", include_str!("../cuda/gather.cu")),
    ("analyse.cu", include_str!("../cuda/analyse.cu")),
    ("coder.cuh", include_str!("../cuda/coder.cuh")),
    ("encode.cu", include_str!("../cuda/encode.cu")),
    ("pack.cu", include_str!("../cuda/pack.cu")),
];

/// A `.cu` file with everything it includes from here, each header once: what a compiler without files takes.
pub fn translation_unit(source: &str) -> String {
    translation_unit_with(source, &[])
}

/// As [`translation_unit`], for a `.cu` file among `files`, which may include each other and the files from here.
pub fn translation_unit_with(source: &str, files: &[(&str, &str)]) -> String {
    let (mut out, mut seen) = (String::new(), BTreeSet::new());
    expand(source, files, &mut seen, &mut out);
    out
}

fn expand<'s>(name: &'s str, files: &[(&'s str, &'s str)], seen: &mut BTreeSet<&'s str>, out: &mut String) {
    let Some((own, text)) = files.iter().chain(SOURCES).find(|(own, _)| *own == name) else {
        // The compiler's own, or the emulator's behind an `#if`.
        let _ = writeln!(out, "#include \"{name}\"");
        return;
    };
    if !seen.insert(own) {
        return;
    }
    for line in text.lines().filter(|line| *line != "#pragma once") {
        match line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
            Some(header) => expand(header, files, seen, out),
            None => out.extend([line, "\n"]),
        }
    }
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $params:literal, $source:literal, $threads:expr;)*) => {
        /// An entry point. Its number is its place in [`KERNELS`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Kernel { $($(#[$doc])* $variant,)* }

        /// All kernels, by number.
        pub const KERNELS: &[Kernel] = &[$(Kernel::$variant,)*];

        impl Kernel {
            /// Name of the entry point.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Name of its parameter record.
            pub const fn params(self) -> &'static str {
                match self { $(Self::$variant => $params,)* }
            }

            /// The translation unit that holds it.
            pub const fn source(self) -> &'static str {
                match self { $(Self::$variant => $source,)* }
            }

            /// Threads of a CTA.
            pub const fn threads(self) -> u32 {
                match self { $(Self::$variant => $threads,)* }
            }
        }
    };
}

kernels! {
    /// One level to scratch.
    Decode1 = "kv_decode_1", "DecodeParams", "decode.cu", DECODE_THREADS;
    /// Two levels fused, to scratch.
    Decode2 = "kv_decode_2", "DecodeParams", "decode.cu", DECODE_THREADS;
    /// Three levels fused, to scratch.
    Decode3 = "kv_decode_3", "DecodeParams", "decode.cu", DECODE_THREADS;
    /// Four levels fused, to scratch.
    Decode4 = "kv_decode_4", "DecodeParams", "decode.cu", DECODE_THREADS;
    /// One level of a direct profile to pages.
    Direct1 = "kv_direct_1", "DecodeParams", "direct.cu", TILE_THREADS;
    /// Two levels of a direct profile to pages.
    Direct2 = "kv_direct_2", "DecodeParams", "direct.cu", TILE_THREADS;
    /// Three levels of a direct profile to pages.
    Direct3 = "kv_direct_3", "DecodeParams", "direct.cu", TILE_THREADS;
    /// Four levels of a direct profile to pages.
    Direct4 = "kv_direct_4", "DecodeParams", "direct.cu", TILE_THREADS;
    /// Angles of RoPE.
    Angles = "kv_angles", "AngleParams", "scatter.cu", TILE_THREADS;
    /// A direct profile's coefficients from scratch to pages.
    Scatter = "kv_scatter", "DecodeParams", "scatter.cu", TILE_THREADS;
    /// Exact tokens to pages.
    Exact = "kv_exact", "DecodeParams", "scatter.cu", TILE_THREADS;
    /// Differences of an exact level to cells.
    Cells = "kv_cells", "DecodeParams", "lossless.cu", TILE_THREADS;
    /// Cells and raw bits of an exact level to patterns.
    Patterns = "kv_patterns", "DecodeParams", "lossless.cu", TILE_THREADS;
    /// Patterns of an exact level to pages.
    Restore = "kv_restore", "DecodeParams", "lossless.cu", TILE_THREADS;
    /// A basis profile's values to operands.
    Prepare = "kv_prepare", "PrepareParams", "synthesise.cu", TILE_THREADS;
    /// The product, and its rows to pages.
    Synthesise = "kv_synthesise", "SynthesiseParams", "synthesise.cu", PRODUCT_THREADS;
    /// Rows in pages to finest steps, quantised values, or rows.
    Gather = "kv_gather", "GatherParams", "gather.cu", TILE_THREADS;
    /// Finest steps to coefficients.
    Analyse = "kv_analyse", "AnalyseParams", "analyse.cu", PRODUCT_THREADS;
    /// Coefficients to quantised values.
    Quantise = "kv_quantise", "QuantiseParams", "gather.cu", TILE_THREADS;
    /// Width of every coefficient of every section.
    Measure = "kv_measure", "EncodeParams", "encode.cu", DECODE_THREADS;
    /// Active coefficients and raw size of every piece.
    Cut = "kv_cut", "EncodeParams", "encode.cu", DECODE_THREADS;
    /// Streams of all levels.
    Encode = "kv_encode", "EncodeParams", "encode.cu", DECODE_THREADS;
    /// Pieces get their places in the output, and their heads.
    Place = "kv_place", "EncodeParams", "pack.cu", DECODE_THREADS;
    /// Streams to their places.
    Pack = "kv_pack", "EncodeParams", "pack.cu", DECODE_THREADS;
}
