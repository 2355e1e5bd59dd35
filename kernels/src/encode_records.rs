//! Records of the encoder's kernels.

use crate::records::PageParams;

device_records! { ENCODE_RECORDS:
    /// A head, or part of one, of a (scope, span) on its way from pages.
    pub struct GatherTask {
        /// Index of its placement; all tokens of the span are kept.
        pub placement: u32,
        /// Index of its member within the scope.
        pub member: u32,
        /// First element of the head.
        pub first: u32,
        /// Elements.
        pub count: u32,
        /// Tokens to read.
        pub tokens: u32,
        /// Tokens at the start whose values are 0: they are stored exactly.
        pub masked: u32,
        /// Index of the scope's first value, `[element][token]`; rows: `[member][token][element]`.
        pub values: u32,
        /// Index of the flag of the (scope, span).
        pub flag: u32,
        /// `kGather…`.
        pub kind: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// Parameters of `kv_gather`. `u64` are device addresses.
    pub struct GatherParams {
        /// `GatherTask[task_count]`.
        pub tasks: u64,
        /// Queue head, zero at launch.
        pub counter: u64,
        /// Out: values, 4 bytes each.
        pub values: u64,
        /// Out: flags, zero at launch; not 0 where a value is not finite or out of range.
        pub flags: u64,
        /// Where rows are.
        pub pages: PageParams,
        /// Tasks.
        pub task_count: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// A run of elements of a scope that this rank holds.
    pub struct ElementRange {
        /// First element.
        pub start: u32,
        /// Elements.
        pub count: u32,
    }

    /// 64 coefficients by 64 tokens of a (scope, span): what one CTA multiplies.
    pub struct AnalyseTask {
        /// Index of the scope's first value, f32 `[element][token]`.
        pub steps: u32,
        /// Index of the first coefficient, f32 `[coefficient][token]`.
        pub coefficients: u32,
        /// Index of the scope's matrix, `[element][coefficient]`.
        pub matrix: u32,
        /// Coefficients of a token.
        pub rank: u32,
        /// Tokens of the span.
        pub tokens: u32,
        /// First coefficient.
        pub first: u32,
        /// First token.
        pub first_token: u32,
        /// Index of the first element range.
        pub ranges: u32,
        /// Element ranges.
        pub range_count: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// Parameters of `kv_analyse`.
    pub struct AnalyseParams {
        /// `AnalyseTask[]`, one a CTA.
        pub tasks: u64,
        /// Finest steps, f32.
        pub steps: u64,
        /// Out: coefficients, f32.
        pub coefficients: u64,
        /// Analysis matrices of the profile, f32.
        pub matrices: u64,
        /// `ElementRange[]`.
        pub ranges: u64,
    }

    /// 8 coefficients of a (scope, span) to be quantised.
    pub struct QuantiseTask {
        /// Index of the scope's first coefficient, f32 `[coefficient][token]`.
        pub coefficients: u32,
        /// Index of the scope's first value, `[coefficient][token]` of the tokens that are no anchors.
        pub values: u32,
        /// Index of the scope's first anchor, `[coefficient][group]`.
        pub anchors: u32,
        /// First coefficient.
        pub first: u32,
        /// Coefficients of a token.
        pub rank: u32,
        /// Tokens of the span.
        pub tokens: u32,
        /// Tokens at the start whose values are 0.
        pub masked: u32,
        /// Tokens of a group, or 0: no anchors.
        pub group: u32,
        /// Anchor steps in a finest step.
        pub anchor_ratio: i32,
        /// Index of the flag of the (scope, span).
        pub flag: u32,
        /// Factors of a token, both tables together; 0: no token predictor.
        pub factors: u32,
        /// Index of the span's first factor.
        pub factor_rows: u32,
        /// Byte of the predictor's matrix.
        pub matrix: u32,
        /// Byte of its shifts.
        pub shifts: u32,
    }

    /// Parameters of `kv_quantise`.
    pub struct QuantiseParams {
        /// `QuantiseTask[task_count]`.
        pub tasks: u64,
        /// Queue head, zero at launch.
        pub counter: u64,
        /// Coefficients, f32.
        pub coefficients: u64,
        /// Out: values, `i32`.
        pub values: u64,
        /// Out: flags.
        pub flags: u64,
        /// Factors of the batch's tokens, `i8`.
        pub factors: u64,
        /// Matrices and shifts of token predictors, bytes.
        pub matrices: u64,
        /// Tasks.
        pub task_count: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// How a symbol is coded, whatever kind of table it is of.
    pub struct Symbol {
        /// First of its slots; stage tables: of its entries in the inverted table.
        pub start: u32,
        /// Its frequency; 0 where it cannot be coded.
        pub frequency: u32,
        /// `ceil(2^(31 + ceil(log2 frequency)) / frequency)`: division by multiplication, exact below 2^31.
        pub reciprocal: u32,
        /// Bits to shift its product's high word, and `kSymbolEscape`.
        pub shift: u32,
    }

    /// One section of one (scope, span).
    pub struct EncodePiece {
        /// Index of the section's first coefficient number.
        pub plan: u32,
        /// Index of its first coding word, one a coefficient of the plan.
        pub codings: u32,
        /// Coefficients.
        pub count: u32,
        /// Tokens.
        pub tokens: u32,
        /// Levels below the values'.
        pub up: u32,
        /// Index of the scope's first value, `[coefficient][token]`.
        pub values: u32,
        /// Index of its first width.
        pub widths: u32,
        /// Index of its first stream.
        pub streams: u32,
        /// Index of the flag of its (scope, span).
        pub flag: u32,
        /// Words set aside for each of its streams.
        pub stream_words: u32,
    }

    /// What became of a piece.
    pub struct PieceState {
        /// Coefficients up to the last that says something.
        pub active: u32,
        /// Bytes if raw.
        pub raw_bytes: u32,
        /// Bytes as stored.
        pub bytes: u32,
        /// Where in the output, a multiple of 4.
        pub offset: u32,
        /// `kStatus…`.
        pub code: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// One stream that a piece may have.
    pub struct StreamSlot {
        /// Index of its piece.
        pub piece: u32,
        /// Index within the piece.
        pub index: u32,
        /// Index of its first word in scratch.
        pub words: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// What became of a stream.
    pub struct StreamState {
        /// Words, at the end of what was set aside.
        pub count: u32,
        /// `kStatus…`; 0: the piece has no such stream.
        pub code: u32,
        /// Where its states go in the output, in bytes.
        pub states_at: u32,
        /// Where its words go in the output, in bytes.
        pub words_at: u32,
    }

    /// Parameters of `kv_measure` to `kv_pack`.
    pub struct EncodeParams {
        /// `EncodePiece[piece_count]`.
        pub pieces: u64,
        /// `StreamSlot[stream_count]`.
        pub slots: u64,
        /// Queue head, zero at launch.
        pub counter: u64,
        /// Quantised values, `i32`.
        pub values: u64,
        /// Coefficient numbers of the profile's plans.
        pub plans: u64,
        /// Coding words, one a plan entry.
        pub codings: u64,
        /// `Symbol[table][16]` of stages, then `Symbol[table][8]` of trits: 4 × context + digit + 1.
        pub symbols: u64,
        /// Inverted stage tables, `u16[table][4096]`.
        pub inverted: u64,
        /// Flags of (scope, span)s.
        pub flags: u64,
        /// Widths, bytes.
        pub widths: u64,
        /// `PieceState[piece_count]`.
        pub piece_states: u64,
        /// `StreamState[stream_count]`.
        pub stream_states: u64,
        /// Final coder states, `u32[stream][32]`.
        pub lanes: u64,
        /// Words of streams, `u16`.
        pub words: u64,
        /// The output, zero at launch.
        pub output: u64,
        /// Bytes of the output in use, zero at launch.
        pub output_used: u64,
        /// Bytes of the output.
        pub output_bytes: u32,
        /// Pieces.
        pub piece_count: u32,
        /// Streams that there may be.
        pub stream_count: u32,
        /// Stage tables of the bank.
        pub stage_tables: u32,
        /// Trit tables of the bank.
        pub trit_tables: u32,
        /// Zero.
        pub reserved: u32,
    }
}
