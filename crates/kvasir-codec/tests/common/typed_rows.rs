//! A sink that keeps a type of rows.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part")]

use half::{bf16, f16};
use kvasir_codec::{KvBuffer, KvSink, Rows, e4m3};
use kvasir_types::{KvDtype, ModelSpec, Plane};

/// Types of caches that are read as values.
pub const DTYPES: [KvDtype; 4] = [KvDtype::Bf16, KvDtype::F16, KvDtype::F32, KvDtype::Fp8E4m3];

/// A sink that takes rows of one type only, and holds their values.
pub struct TypedRows {
    pub dtype: KvDtype,
    pub kv: KvBuffer,
}

impl TypedRows {
    pub fn new(dtype: KvDtype, spec: &ModelSpec, tokens: usize) -> Self {
        Self { dtype, kv: KvBuffer::new(spec, tokens) }
    }

    /// Whether it holds f32 values as this type has them, bit for bit.
    pub fn holds(&self, values: &KvBuffer) -> bool {
        let rounded = |x: &f32| match self.dtype {
            KvDtype::Bf16 => bf16::from_f32(*x).to_f32(),
            KvDtype::F16 => f16::from_f32(*x).to_f32(),
            KvDtype::Fp8E4m3 => e4m3::decode(e4m3::encode(*x)),
            KvDtype::F32 | KvDtype::Int8 => *x,
        };
        let mut pairs = self.kv.as_slice().iter().zip(values.as_slice());
        self.kv.tokens() == values.tokens() && pairs.all(|(x, y)| x.to_bits() == rounded(y).to_bits())
    }
}

impl KvSink for TypedRows {
    fn write(&mut self, _: usize, _: Plane, _: usize, _: usize, _: &[f32]) {
        panic!("rows of the sink's own type were asked for");
    }

    fn dtype(&self) -> KvDtype {
        self.dtype
    }

    fn write_rows(
        &mut self,
        layer: usize,
        plane: Plane,
        first_head: usize,
        first_token: usize,
        rows: Rows<'_>,
    ) {
        assert_eq!(rows.dtype(), self.dtype);
        for head in 0..rows.heads() {
            self.kv.write(layer, plane, first_head + head, first_token, &rows.head_f32(head));
        }
    }
}
