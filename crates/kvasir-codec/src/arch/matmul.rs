//! Matrix products of `f32` on one thread: a safe face of the `gemm` crate's kernels.

/// A matrix in a slice: element `(row, column)` is at `row * row_stride + column * column_stride`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl Shape {
    /// Row after row.
    pub(crate) const fn row_major(rows: usize, columns: usize) -> Self {
        Self { rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// Column after column.
    pub(crate) const fn column_major(rows: usize, columns: usize) -> Self {
        Self { rows, columns, row_stride: 1, column_stride: rows }
    }

    /// A part of a row-major matrix with rows of `stride`; the slice begins with the part's first element.
    pub(crate) const fn part(rows: usize, columns: usize, stride: usize) -> Self {
        Self { rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// Elements that the slice has at least.
    fn extent(self) -> usize {
        match (self.rows.checked_sub(1), self.columns.checked_sub(1)) {
            (Some(row), Some(column)) => row * self.row_stride + column * self.column_stride + 1,
            _ => 0,
        }
    }
}

/// `out = a · b`.
pub(crate) fn multiply(out: (&mut [f32], Shape), a: (&[f32], Shape), b: (&[f32], Shape)) {
    product(out, a, b, None);
}

/// `out -= a · b`.
pub(crate) fn subtract_product(out: (&mut [f32], Shape), a: (&[f32], Shape), b: (&[f32], Shape)) {
    product(out, a, b, Some(-1.0));
}

/// `out = a · b`, or `out += factor · a · b`.
fn product(
    (out, to): (&mut [f32], Shape),
    (a, left): (&[f32], Shape),
    (b, right): (&[f32], Shape),
    factor: Option<f32>,
) {
    assert!(to.rows == left.rows && left.columns == right.rows && to.columns == right.columns, "shapes fit");
    assert!(out.len() >= to.extent() && a.len() >= left.extent() && b.len() >= right.extent(), "lengths fit");
    // Shapes are made of one stride of 1 and another of at least a row or a column, unless a part's stride is too small.
    assert!(
        to.row_stride >= to.columns || to.column_stride >= to.rows,
        "elements of the product must not overlap"
    );
    let stride = |stride: usize| stride as isize; // at most a slice's length, where there is more than one element
    let (read, alpha) = (factor.is_some(), f32::from(u8::from(factor.is_some())));
    // SAFETY: gemm reads `left.rows × left.columns` elements of `a` and `right.rows × right.columns` of `b` and writes
    // `to.rows × to.columns` of `out` at the given strides; the extents were checked above, `out` is borrowed mutably and so
    // overlaps neither, and its elements are distinct.
    unsafe {
        gemm::gemm(
            to.rows,
            to.columns,
            left.columns,
            out.as_mut_ptr(),
            stride(to.column_stride),
            stride(to.row_stride),
            read,
            a.as_ptr(),
            stride(left.column_stride),
            stride(left.row_stride),
            b.as_ptr(),
            stride(right.column_stride),
            stride(right.row_stride),
            alpha,
            factor.unwrap_or(1.0),
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `values[row][column]` in a given shape.
    fn laid_out(shape: Shape, values: &[f32]) -> Vec<f32> {
        let mut out = vec![7.0; shape.extent()];
        for (index, value) in values.iter().enumerate() {
            let (row, column) = (index / shape.columns, index % shape.columns);
            out[row * shape.row_stride + column * shape.column_stride] = *value;
        }
        out
    }

    proptest! {
        #[test]
        fn products_of_integers_are_exact_in_every_shape(
            (rows, inner, columns) in (0usize..40, 0usize..40, 0usize..40), kinds in any::<[u8; 3]>(), seed in any::<u32>(),
        ) {
            let shape = |kind: u8, rows: usize, columns: usize| match kind % 3 {
                0 => Shape::row_major(rows, columns),
                1 => Shape::column_major(rows, columns),
                _ => Shape::part(rows, columns, columns + 3),
            };
            let value = |i: usize| ((seed ^ i as u32).wrapping_mul(0x9e37_79b1) >> 27) as f32 - 16.0;
            let a: Vec<f32> = (0..rows * inner).map(value).collect();
            let b: Vec<f32> = (0..inner * columns).map(|i| value(i + 1_000)).collect();
            let (to, left, right) =
                (shape(kinds[0], rows, columns), shape(kinds[1], rows, inner), shape(kinds[2], inner, columns));
            let sum = |i: usize| (0..inner).map(|k| a[i / columns * inner + k] * b[k * columns + i % columns]).sum();
            let expected: Vec<f32> = (0..rows * columns).map(sum).collect();
            let (a, b) = (laid_out(left, &a), laid_out(right, &b));
            let mut out = laid_out(to, &vec![3.0; rows * columns]);
            multiply((&mut out, to), (&a, left), (&b, right));
            prop_assert_eq!(&out, &laid_out(to, &expected));
            subtract_product((&mut out, to), (&a, left), (&b, right));
            prop_assert_eq!(&out, &laid_out(to, &vec![0.0; rows * columns]));
        }
    }
}
