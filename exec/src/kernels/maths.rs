//! Exponentials and what is made of them, for loops that a compiler turns into vector instructions.
//!
//! One law: no branches and no calls of the system's maths library; NaN stays NaN.

/// `exp(x)`, to 3e-7 relative between -87 and 88; beyond, what it is there (about 1e-38 and 1e38).
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts: the first product is exact.
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let p =
        1.0 + r * (1.0 + r * (0.5 + r * (0.166_666_67 + r * (0.041_666_67 + r * (0.008_333_334 + r * 0.001_388_9)))));
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    (1.0 + exp(-x)).recip()
}

/// The hyperbolic tangent.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    2.0 * sigmoid(2.0 * x) - 1.0
}

/// Distribution function and density of the standard normal distribution at `x`.
///
/// erf by Abramowitz and Stegun 7.1.26 (error below 1.5e-7), whose exponential is that of the density.
#[inline(always)]
pub(super) fn gauss(x: f32) -> (f32, f32) {
    const INV_SQRT_2PI: f32 = 0.398_942_3;
    let e = exp(-0.5 * x * x);
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = (1.0 + 0.327_591_1 * z).recip();
    let poly = t * (0.254_829_6 + t * (-0.284_496_74 + t * (1.421_413_7 + t * (-1.453_152 + t * 1.061_405_4))));
    let tail = 0.5 * poly * e;
    (if x < 0.0 { tail } else { 1.0 - tail }, INV_SQRT_2PI * e)
}

/// Partial sums kept side by side, so that a reduction fills vector registers.
const LANES: usize = 16;

/// The largest value.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> f32 {
    let mut tops = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (top, x) in tops.iter_mut().zip(block) {
            *top = if *x > *top { *x } else { *top };
        }
    }
    tops.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| a.max(*b))
}

/// The sum.
#[inline(always)]
pub(super) fn sum(x: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (sum, x) in sums.iter_mut().zip(block) {
            *sum += x;
        }
    }
    sums.iter().sum::<f32>() + rest.iter().sum::<f32>()
}

/// The sum of products.
#[inline(always)]
pub(super) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in xs.iter().zip(ys) {
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            *sum += x * y;
        }
    }
    sums.iter().sum::<f32>() + x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_to_float_precision() {
        for i in -87_000..88_000 {
            let x = i as f32 / 1000.0;
            let want = f64::from(x).exp();
            let error = (f64::from(exp(x)) - want).abs() / want;
            assert!(error < 3e-7, "exp({x}) is off by {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 2e-38 && exp(f32::INFINITY) > 1e38);
        assert!(exp(f32::NAN).is_nan(), "a NaN must stay visible");
    }

    #[test]
    fn what_is_made_of_it_is_right_too() {
        for i in -4000..4000 {
            let x = i as f32 / 200.0;
            let wide = f64::from(x);
            assert!((f64::from(tanh(x)) - wide.tanh()).abs() < 3e-7, "{x}");
            assert!((f64::from(sigmoid(x)) - 1.0 / (1.0 + (-wide).exp())).abs() < 2e-7, "{x}");
        }
        let x: Vec<f32> = (0..101).map(|i| ((i * 37 % 101) as f32) - 50.0).collect();
        assert_eq!((largest(&x), sum(&x)), (50.0, 0.0));
        assert_eq!(dot(&x, &x), x.iter().map(|x| x * x).sum::<f32>());
    }
}
