//! Records that host and device share, declared once: Rust structs here, C structs in the generated header.

/// Declares `repr(C)` records without padding, their bytes, and a list of their fields for [`c_structs`](crate::c_structs).
#[macro_export]
macro_rules! device_records {
    ($list:ident: $($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:tt,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Debug, Clone, Copy, PartialEq, Default)]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

            // No padding: the bytes are the fields, in order.
            const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*);

            impl $crate::Record for $name {
                fn write(&self, out: &mut Vec<u8>) {
                    $($crate::Record::write(&self.$field, out);)*
                }
            }
        )*

        /// Name and fields `(C type, name)` of every record, in dependency order.
        pub(crate) const $list: &[(&str, &[(&str, &str)])] =
            &[$((stringify!($name), &[$(($crate::device_records!(@c $type), stringify!($field)),)*]),)*];
    };
    (@c PageParams) => { "PageParams" };
    (@c ScatterTask) => { "ScatterTask" };
    (@c u32) => { "uint32_t" };
    (@c i32) => { "int32_t" };
    (@c u64) => { "uint64_t" };
    (@c f32) => { "float" };
}

/// A record that a kernel reads.
pub trait Record: Copy {
    /// Appends the record as the device sees it.
    fn write(&self, out: &mut Vec<u8>);
}

macro_rules! scalar_records {
    ($($type:ty)*) => { $(impl Record for $type {
        fn write(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.to_le_bytes());
        }
    })* };
}
scalar_records!(u8 u16 u32 i32 u64 f32);

/// The bytes of an array of records.
pub fn record_bytes<R: Record>(records: &[R]) -> Vec<u8> {
    let mut out = Vec::with_capacity(size_of_val(records));
    records.iter().for_each(|record| record.write(&mut out));
    out
}

device_records! { RECORDS:
    /// One coded stream of one piece. All offsets count bytes from `DecodeParams::bytes`.
    pub struct Stream {
        /// States (4-aligned), or [`NONE`](crate::NONE): the piece is absent.
        pub states: u32,
        /// Words (2-aligned).
        pub words: u32,
        /// Words of the stream.
        pub word_count: u32,
        /// Coefficients of the task from this one on are inactive at this level.
        pub end: u32,
    }

    /// A run of coefficients of one scope and span at one or more levels: what one warp decodes.
    pub struct Task {
        /// Its first coefficient within the scope.
        pub first: u32,
        /// Coefficients.
        pub count: u32,
        /// Tokens of the span.
        pub tokens: u32,
        /// Index of its first stream, one a level.
        pub streams: u32,
        /// Index of its first coding word.
        pub codings: u32,
        /// Coding words from one level to the next.
        pub coding_stride: u32,
        /// Index of its first value in scratch, `[coefficient][token]`.
        pub values: u32,
        /// `kTask…` bits.
        pub flags: u32,
        /// Index of its placement.
        pub placement: u32,
        /// Index of its first coefficient's step.
        pub steps: u32,
    }

    /// What became of a stream: `kStatus…`, and detail.
    pub struct Status {
        /// `kStatus…`; 0 where no kernel came by.
        pub code: u32,
        /// See the header's comments.
        pub detail: u32,
    }

    /// Reconstruction of a coefficient at a level: `q · ratio − sign(q) · towards_zero`, in finest steps.
    pub struct Step {
        /// Finest steps in a step of the level.
        pub ratio: i32,
        /// Centroid shift in finest steps.
        pub towards_zero: i32,
    }

    /// An element of a scope: `value = steps · gain + mean`.
    pub struct Element {
        /// One finest step in the element's units.
        pub gain: f32,
        /// Static mean.
        pub mean: f32,
    }

    /// One head of a scope and its destination.
    pub struct Member {
        /// First element within the scope.
        pub start: u32,
        /// Elements.
        pub dim: u32,
        /// Index of its plane, or `NONE`: another rank's.
        pub plane: u32,
        /// Head within the plane (of this rank).
        pub head: u32,
        /// Index of its rotation, or `NONE`.
        pub rope: u32,
    }

    /// A rotary embedding and where its angles are.
    pub struct RopeShape {
        /// Pairs.
        pub pairs: u32,
        /// First rotated element of a head.
        pub offset: u32,
        /// 0: element `i` pairs with `i + pairs`; 1: `2 i` with `2 i + 1`.
        pub interleaved: u32,
        /// First column in a row of angles.
        pub column: u32,
        /// Factor on rotated elements.
        pub factor: f32,
    }

    /// Where the tokens of a (scope, span) go.
    pub struct Placement {
        /// Index of the first member of the scope.
        pub members: u32,
        /// Members of the scope.
        pub member_count: u32,
        /// First entry of the sequence's block table.
        pub blocks: u32,
        /// Slot (position in the sequence's pages) of token `keep_from`.
        pub slot: u32,
        /// First token of the span that is wanted.
        pub keep_from: u32,
        /// One past the last.
        pub keep_to: u32,
        /// Row of angles of the span's first token.
        pub angles: u32,
        /// Index of the scope's first element.
        pub elements: u32,
    }

    /// One plane (K or V) of one layer in an engine's paged cache. Strides count elements.
    pub struct PagePlane {
        /// Device address of block 0.
        pub base: u64,
        /// From a block to the next.
        pub block_stride: u64,
        /// From a token to the next.
        pub token_stride: u64,
        /// From a head to the next.
        pub head_stride: u64,
        /// From one group of `pack` elements of a head to the next.
        pub pack_stride: u64,
        /// Elements of a group (vLLM's `x`); 0 where a head's elements are contiguous.
        pub pack: u32,
        /// Tokens of a block.
        pub block_tokens: u32,
        /// `kDtype…`.
        pub dtype: u32,
        /// Values are divided by the scale before they are stored: its reciprocal.
        pub scale_inverse: f32,
        /// Stored values are multiplied by it when they are read.
        pub scale: f32,
        /// Zero.
        pub reserved: u32,
    }

    /// Where the rows of a batch are, for kernels that write or read them. `u64` are device addresses.
    pub struct PageParams {
        /// `Placement[]`.
        pub placements: u64,
        /// `Element[]`; encoders: the gain is that of the way back, finest steps in a unit.
        pub elements: u64,
        /// `Member[]`.
        pub members: u64,
        /// `PagePlane[]`.
        pub planes: u64,
        /// Block tables, `i32`.
        pub blocks: u64,
        /// `RopeShape[]`.
        pub ropes: u64,
        /// Angles, `float2[token][column]` of (sin, cos).
        pub angles: u64,
        /// Columns of a row of angles.
        pub angle_columns: u32,
        /// Elements that a tile of shared memory holds.
        pub tile_columns: u32,
    }

    /// Parameters of all kernels from streams to rows without a basis. `u64` are device addresses.
    pub struct DecodeParams {
        /// Compressed bytes.
        pub bytes: u64,
        /// `Task[task_count]`, longest first.
        pub tasks: u64,
        /// `Stream[]`.
        pub streams: u64,
        /// Coding words.
        pub codings: u64,
        /// `Status[]`, one a stream.
        pub statuses: u64,
        /// Stage tables, then trit tables, as in a bank.
        pub tables: u64,
        /// Queue head, zero at launch.
        pub counter: u64,
        /// Scratch, `i32`.
        pub values: u64,
        /// `Step[]`.
        pub steps: u64,
        /// Factors of tokens, `i8`; for `kv_scatter`, as the next.
        pub factors: u64,
        /// Matrices and shifts of token predictors, and floors of exact levels, bytes.
        pub matrices: u64,
        /// Where rows go.
        pub pages: PageParams,
        /// Tasks.
        pub task_count: u32,
        /// Stage tables of the bank.
        pub stage_tables: u32,
        /// Trit tables of the bank.
        pub trit_tables: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// Parameters of `kv_angles`.
    pub struct AngleParams {
        /// Positions, `u64[rows]`.
        pub positions: u64,
        /// Frequencies, `u64[columns]`.
        pub frequencies: u64,
        /// Out: `float2[rows][columns]`.
        pub angles: u64,
        /// Tokens.
        pub rows: u32,
        /// Pairs of all ropes.
        pub columns: u32,
    }

    /// One (scope, span, head) to be put together from scratch.
    pub struct ScatterTask {
        /// Index of its placement.
        pub placement: u32,
        /// Index of its member.
        pub member: u32,
        /// First element of the head that this task writes.
        pub first: u32,
        /// Elements.
        pub count: u32,
        /// Tokens of the span.
        pub tokens: u32,
        /// Index of the scope's first value in scratch, or [`NONE`](crate::NONE): all values are 0.
        pub values: u32,
        /// Index of the scope's first anchor in scratch.
        pub anchors: u32,
        /// Tokens of a group, or 0: no anchors.
        pub group: u32,
        /// Anchor steps in a finest step.
        pub anchor_ratio: i32,
        /// Index of the scope's first step.
        pub steps: u32,
        /// Coefficients of the scope.
        pub rank: u32,
        /// Factors of a token, both tables together; 0 without a token predictor.
        pub factors: u32,
        /// Index of the span's first factor: `[token][factor]`.
        pub factor_rows: u32,
        /// Index of the scope's `[factor][coefficient]`.
        pub matrix: u32,
        /// Index of the scope's shifts.
        pub shifts: u32,
    }

    /// Part of a head of a (scope, span) at the exact level: from differences to cells, and from patterns to pages.
    pub struct CellTask {
        /// What lies beneath the exact level.
        pub beneath: ScatterTask,
        /// Index of the scope's first difference in scratch, `[element][token]`; cells and patterns replace it.
        pub cells: u32,
        /// Index of the scope's floors among the matrices.
        pub floors: u32,
        /// Tokens at the start that are stored exactly.
        pub known: u32,
        /// `kDtype…` of the patterns.
        pub dtype: u32,
    }

    /// One (scope, span) at the exact level: from cells and raw bits to patterns.
    pub struct PatternTask {
        /// Index of the stream whose words are the raw bits; they are bytes, and so is their count.
        pub stream: u32,
        /// Index of the scope's first cell in scratch, `[element][token]`; patterns replace it.
        pub cells: u32,
        /// Index of the scope's floors among the matrices.
        pub floors: u32,
        /// Elements of the scope.
        pub elements: u32,
        /// Tokens of the span.
        pub tokens: u32,
        /// Tokens at the start that are stored exactly.
        pub known: u32,
        /// `kDtype…` of the patterns.
        pub dtype: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// One (scope, span) whose first tokens are stored exactly.
    pub struct ExactTask {
        /// Index of its placement.
        pub placement: u32,
        /// Byte offset of the values, `[member][token][element]`.
        pub values: u32,
        /// Exact tokens.
        pub tokens: u32,
        /// `kDtype…` of the values.
        pub dtype: u32,
        /// Index of its member.
        pub member: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// 32 tokens of a (scope, span) of a basis profile, to be made operands.
    pub struct PrepareTask {
        /// Index of the scope's first value in scratch.
        pub values: u32,
        /// Index of the scope's first step.
        pub steps: u32,
        /// Coefficients.
        pub rank: u32,
        /// Rounded up to a multiple of 32.
        pub rank_padded: u32,
        /// Tokens of the span.
        pub tokens: u32,
        /// First of the 32.
        pub first_token: u32,
        /// Index of the operands' first f16: `[rows][rank_padded]` low parts, then high parts.
        pub operands: u32,
        /// Rows of the operands: tokens rounded up to 128.
        pub rows: u32,
        /// Index of the first of a flag for each 32 coefficients.
        pub wide: u32,
        /// Factors of a token, both tables together; 0 without a token predictor.
        pub factors: u32,
        /// Index of the span's first factor: `[token][factor]`.
        pub factor_rows: u32,
        /// Index of the scope's `[factor][coefficient]`.
        pub matrix: u32,
        /// Index of the scope's shifts.
        pub shifts: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// Parameters of `kv_prepare`.
    pub struct PrepareParams {
        /// `PrepareTask[task_count]`.
        pub tasks: u64,
        /// Queue head, zero at launch.
        pub counter: u64,
        /// Scratch, `i32`.
        pub values: u64,
        /// `Step[]`.
        pub steps: u64,
        /// Factors of the batch's tokens, `i8`.
        pub factors: u64,
        /// Matrices and shifts of the profile's token predictors, bytes.
        pub matrices: u64,
        /// Out: operands, f16.
        pub operands: u64,
        /// Out: flags, zero at launch.
        pub wide: u64,
        /// Tasks.
        pub task_count: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// 128 tokens by up to 128 elements of a (scope, span): what one CTA multiplies.
    pub struct SynthesiseTask {
        /// Index of its placement.
        pub placement: u32,
        /// First element within the scope.
        pub first: u32,
        /// Elements.
        pub count: u32,
        /// Tokens of the span.
        pub tokens: u32,
        /// First of the 128.
        pub first_token: u32,
        /// Coefficients, rounded up.
        pub rank_padded: u32,
        /// Index of the operands' first f16.
        pub operands: u32,
        /// Rows of the operands.
        pub rows: u32,
        /// Index of the scope's basis, `[element][rank_padded]`.
        pub basis: u32,
        /// Index of the first of its flags.
        pub wide: u32,
    }

    /// Parameters of `kv_synthesise`.
    pub struct SynthesiseParams {
        /// `SynthesiseTask[]`, one a CTA.
        pub tasks: u64,
        /// Operands, f16.
        pub operands: u64,
        /// Flags.
        pub wide: u64,
        /// Bases of the profile, f16.
        pub basis: u64,
        /// Where rows go.
        pub pages: PageParams,
    }
}
