//! Matrix multiplication onto a part of a buffer.
//!
//! One law: every address that is read or written lies within the slices given, or nothing is.

use super::cpu::Rows;

/// A matrix in a slice.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) values: &'a [f32],
    /// Rows and columns.
    pub(super) dims: [usize; 2],
    /// From one row, and from one column, to the next.
    pub(super) strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    pub(super) fn of(rows: &'a Rows) -> Self {
        Self { values: rows.storage(), dims: rows.dims, strides: rows.strides }
    }

    /// Row after row, side by side.
    pub(super) fn dense(values: &'a [f32], dims: [usize; 2]) -> Self {
        Self { values, dims, strides: [dims[1], 1] }
    }

    pub(super) fn transposed(self) -> Self {
        let ([rows, columns], [row, column]) = (self.dims, self.strides);
        Self { values: self.values, dims: [columns, rows], strides: [column, row] }
    }

    /// Rows from `row` on and columns from `column` on, so many of each.
    pub(super) fn part(self, [row, column]: [usize; 2], dims: [usize; 2]) -> Self {
        let from = row * self.strides[0] + column * self.strides[1];
        Self { values: self.values.get(from..).unwrap_or(&[]), dims, strides: self.strides }
    }
}

/// Values that a matrix reaches over, from its first on.
fn reach([rows, columns]: [usize; 2], [row, column]: [usize; 2]) -> usize {
    if rows == 0 || columns == 0 { 0 } else { (rows - 1) * row + (columns - 1) * column + 1 }
}

/// `out = a b scale`, or with `onto` `out + a b scale`. `out` is row major, its rows `stride` apart.
pub(super) fn multiply(out: &mut [f32], stride: usize, onto: bool, a: Matrix<'_>, b: Matrix<'_>, scale: f32) {
    let ([m, k], [inner, n]) = (a.dims, b.dims);
    let fits = k == inner
        && stride >= n
        && reach([m, n], [stride, 1]) <= out.len()
        && reach(a.dims, a.strides) <= a.values.len()
        && reach(b.dims, b.strides) <= b.values.len();
    debug_assert!(fits, "{:?} x {:?} into {} values, rows {stride} apart", a.dims, b.dims, out.len());
    if !fits || m == 0 || n == 0 {
        return;
    }
    let step = usize::cast_signed;
    // The crate takes raw pointers. What it reads are the elements (i, j) of `a` and `b` at `i * row + j * column`, what it
    // reads and writes those of `out` at `i * stride + j`; the largest of each offset is below the length of its slice
    // (`reach` above), all strides are non-negative and far below `isize::MAX`, `out` is borrowed alone, and rows of it do
    // not overlap (`stride >= n`). With `onto` false it does not read `out`.
    #[expect(unsafe_code, reason = "the library's interface; see above")]
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            step(stride),
            onto,
            a.values.as_ptr(),
            step(a.strides[1]),
            step(a.strides[0]),
            b.values.as_ptr(),
            step(b.strides[1]),
            step(b.strides[0]),
            1.0,
            scale,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_transposes_and_sums_are_right() {
        let a: Vec<f32> = (0..35).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..42).map(|i| (i % 5) as f32).collect();
        let (a, b) = (Matrix::dense(&a, [5, 7]), Matrix::dense(&b, [6, 7]));
        // Rows 1 to 3 and columns 2 to 6 of a, times the same columns of all rows of b.
        let (left, right) = (a.part([1, 2], [3, 4]), b.part([0, 2], [6, 4]).transposed());
        let mut out = vec![1.0; 3 * 8];
        multiply(&mut out, 8, true, left, right, 0.5);
        for (i, row) in out.chunks_exact(8).enumerate() {
            for (j, got) in row.iter().enumerate() {
                let product = |l: usize| a.values[(i + 1) * 7 + l + 2] * b.values.get(j * 7 + l + 2).unwrap_or(&0.0);
                let want = if j < 6 { 1.0 + 0.5 * (0..4).map(product).sum::<f32>() } else { 1.0 };
                assert_eq!(*got, want, "{i} {j}");
            }
        }
        multiply(&mut out, 8, false, left, right, 1.0);
        assert_eq!((out[0], out[6]), ((0..4).map(|l| a.values[9 + l] * b.values[2 + l]).sum::<f32>(), 1.0));
    }
}
