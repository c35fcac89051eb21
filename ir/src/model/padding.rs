//! Padding of the vocabulary, so that tensor-parallel ranks hold equally many tokens.
//!
//! One law: no vocabulary is padded twice; this is called once, on the vocabulary as the model has it.

/// The vocabulary padded to the next multiple of `divisible_by x tp` (Megatron's `make_vocab_size_divisible_by`).
pub fn padded_vocab_size(vocab_size: u32, divisible_by: u32, tp: u32) -> u64 {
    let multiple = u64::from(divisible_by.max(1)) * u64::from(tp.max(1));
    u64::from(vocab_size).div_ceil(multiple).saturating_mul(multiple)
}

#[cfg(test)]
mod tests {
    use super::padded_vocab_size;

    #[test]
    fn a12_vocabularies_are_padded_as_megatron_pads_them() {
        let gpt2 = [1, 2, 4, 8].map(|tp| padded_vocab_size(50257, 128, tp));
        assert_eq!(gpt2, [50304, 50432, 50688, 51200]);
        assert_eq!(padded_vocab_size(128_256, 64, 8), 128_512);
        assert_eq!(padded_vocab_size(32002, 128, 2), 32256);
        assert_eq!(padded_vocab_size(65535, 1, 2), 65536);
        assert_eq!(padded_vocab_size(151_936, 128, 2), 152_064);
        assert_eq!(padded_vocab_size(250_680, 128, 4), 250_880, "A6");
        assert_eq!(padded_vocab_size(50304, 128, 1), 50304, "a multiple stays");
    }
}
