//! Text as training data: the target of a token is the token after it.
//!
//! One law: which text a sequence shows depends on the seed, the step and the sequence's place in the global batch
//! alone, so every cut of the batch into microbatches and replicas trains on the same sequences in the same order.

use crate::random::{below, stream};
use crate::tokenizer::{Tokenizer, TokenizerError};
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Vocabulary of byte-level text. A model that reads it needs a vocabulary at least this large.
pub const BYTE_VOCAB: u32 = 256;

/// Why there is no data.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file cannot be read.
    #[error("cannot read the text {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: std::io::Error,
    },
    /// There is nothing in it.
    #[error("the text {} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Not one sequence fits.
    #[error(
        "the text {} has {length} {unit}, but one sequence of seq_length {seq_length} needs {needed} (a target follows \
         every token)", path.display()
    )]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Its tokens.
        length: usize,
        /// What a token is: bytes, or tokens of a vocabulary.
        unit: &'static str,
        /// Tokens of a sequence.
        seq_length: usize,
        /// Tokens a sequence needs: `seq_length + 1`.
        needed: usize,
    },
    /// The text cannot be cut into tokens.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A token that no vocabulary of 32-bit numbers has.
    #[error("the text {} has the token {token}; the largest that can be is {}", path.display(), i32::MAX)]
    Token {
        /// The file.
        path: PathBuf,
        /// The token.
        token: u32,
    },
    /// A sequence must have a token.
    #[error("seq_length is 0: a sequence needs at least one token")]
    NoTokens,
}

/// A text from which sequences are drawn. A copy shares the tokens.
#[derive(Clone, Debug)]
pub struct TextData {
    tokens: Arc<[i32]>,
    vocab_size: u32,
    seq_length: usize,
    seed: u64,
}

impl TextData {
    /// Reads the text at `path`, every byte a token.
    ///
    /// # Errors
    /// As [`TextData::read_with`].
    pub fn read(path: &Path, seq_length: usize, seed: u64) -> Result<Self, DataError> {
        Self::read_with(&Tokenizer::Bytes, path, seq_length, seed)
    }

    /// Reads the text at `path` by the tokens of `tokenizer`.
    ///
    /// # Errors
    /// [`DataError::Unreadable`] with the system's reason, [`DataError::Tokenizer`]; otherwise as
    /// [`TextData::from_tokens`].
    pub fn read_with(tokenizer: &Tokenizer, path: &Path, seq_length: usize, seed: u64) -> Result<Self, DataError> {
        let bytes = std::fs::read(path).map_err(|reason| DataError::Unreadable { path: path.to_owned(), reason })?;
        match tokenizer {
            Tokenizer::Bytes => Self::from_bytes(bytes, path, seq_length, seed),
            Tokenizer::File(_) => Self::from_tokens(tokenizer.encode(&bytes, path)?, path, seq_length, seed),
        }
    }

    /// The text `bytes`, every byte a token; `path` names it in messages.
    ///
    /// # Errors
    /// [`DataError::Empty`], [`DataError::TooShort`], [`DataError::NoTokens`].
    pub fn from_bytes(bytes: Vec<u8>, path: &Path, seq_length: usize, seed: u64) -> Result<Self, DataError> {
        Self::of(bytes.into_iter().map(i32::from).collect(), "bytes", path, seq_length, seed)
    }

    /// The text of these tokens; `path` names it in messages.
    ///
    /// # Errors
    /// [`DataError::Empty`], [`DataError::TooShort`], [`DataError::NoTokens`], [`DataError::Token`].
    pub fn from_tokens(tokens: Vec<u32>, path: &Path, seq_length: usize, seed: u64) -> Result<Self, DataError> {
        let number = |token| i32::try_from(token).map_err(|_| DataError::Token { path: path.to_owned(), token });
        let tokens = tokens.into_iter().map(number).collect::<Result<_, _>>()?;
        Self::of(tokens, "tokens", path, seq_length, seed)
    }

    fn of(
        tokens: Arc<[i32]>,
        unit: &'static str,
        path: &Path,
        seq_length: usize,
        seed: u64,
    ) -> Result<Self, DataError> {
        let (length, needed) = (tokens.len(), seq_length.saturating_add(1));
        if tokens.is_empty() {
            return Err(DataError::Empty { path: path.to_owned() });
        }
        if seq_length == 0 {
            return Err(DataError::NoTokens);
        }
        if length < needed {
            return Err(DataError::TooShort { path: path.to_owned(), length, unit, seq_length, needed });
        }
        let vocab_size = tokens.iter().max().map_or(0, |token| token.unsigned_abs() + 1);
        Ok(Self { tokens, vocab_size, seq_length, seed })
    }

    /// Tokens of the text.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the text is empty; it never is.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The smallest vocabulary that has every token of the text: one more than the largest.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// Tokens of a sequence.
    pub fn seq_length(&self) -> usize {
        self.seq_length
    }

    /// Tokens and targets, both `[B S]` row major, of a microbatch: sequences `microbatch * B .. (microbatch + 1) * B`
    /// of the step's global batch, where `microbatch` counts over all replicas and `B` is `micro_batch_size`.
    pub fn batch(&self, step: u64, microbatch: u64, micro_batch_size: usize) -> (Vec<i32>, Vec<i32>) {
        let mut tokens = Vec::with_capacity(micro_batch_size * self.seq_length);
        let mut targets = Vec::with_capacity(tokens.capacity());
        for i in 0..micro_batch_size as u64 {
            let window = self.sequence(step, microbatch * micro_batch_size as u64 + i);
            tokens.extend(window.iter().take(self.seq_length));
            targets.extend(window.iter().skip(1));
        }
        (tokens, targets)
    }

    /// [`TextData::batch`] as tensors `[B, S]` on `device`.
    pub fn batch_tensors(
        &self,
        step: u64,
        microbatch: u64,
        micro_batch_size: usize,
        device: &Device,
    ) -> (Tensor<2, Int>, Tensor<2, Int>) {
        let (tokens, targets) = self.batch(step, microbatch, micro_batch_size);
        let shape = [micro_batch_size, self.seq_length];
        (int_tensor(tokens, shape, device), int_tensor(targets, shape, device))
    }

    /// The `S + 1` tokens of sequence `index` of the step's global batch.
    fn sequence(&self, step: u64, index: u64) -> &[i32] {
        // The third word keeps data streams apart from those of parameters with the same seed.
        let mut rng = stream(self.seed, [step, index, u64::MAX]);
        let start = below(&mut rng, self.tokens.len() - self.seq_length);
        &self.tokens[start..=start + self.seq_length]
    }
}

/// Token numbers as a tensor `[B, S]`; `values` must have `B S` entries.
fn int_tensor(values: Vec<i32>, shape: [usize; 2], device: &Device) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(seq_length: usize) -> TextData {
        let bytes = (0..=255u8).cycle().take(1000).collect();
        TextData::from_bytes(bytes, Path::new("a.txt"), seq_length, 3).unwrap()
    }

    #[test]
    fn any_cut_of_the_batch_shows_the_same_sequences() {
        let text = text(16);
        let whole = text.batch(5, 0, 12);
        for size in [1usize, 2, 3, 4, 6] {
            let parts: Vec<_> = (0..12 / size as u64).map(|i| text.batch(5, i, size)).collect();
            assert_eq!(parts.iter().flat_map(|p| p.0.clone()).collect::<Vec<_>>(), whole.0);
            assert_eq!(parts.iter().flat_map(|p| p.1.clone()).collect::<Vec<_>>(), whole.1);
        }
        assert_ne!(text.batch(6, 0, 12), whole);
    }

    #[test]
    fn the_target_is_the_next_byte() {
        let (tokens, targets) = text(16).batch(0, 0, 4);
        assert_eq!((tokens.len(), targets.len()), (64, 64));
        assert!(tokens.iter().zip(&targets).all(|(a, b)| (a + 1) % 256 == *b));
    }

    #[test]
    fn the_shortest_text_gives_its_only_sequence() {
        let text = TextData::from_bytes(b"abc".to_vec(), Path::new("a"), 2, 0).unwrap();
        assert_eq!(text.batch(9, 9, 1), (vec![97, 98], vec![98, 99]));
        let (tokens, targets) = text.batch_tensors(0, 0, 3, &Device::flex());
        assert_eq!((tokens.dims(), targets.dims()), ([3, 2], [3, 2]));
    }

    #[test]
    fn tokens_of_a_tokenizer_take_the_place_of_bytes() {
        let (directory, tokenizer) = crate::tokenizer::tests::small();
        let path = directory.path().join("t.txt");
        std::fs::write(&path, "abc").unwrap();
        let text = TextData::read_with(&tokenizer, &path, 1, 0).unwrap();
        assert_eq!((text.len(), text.vocab_size(), text.batch(0, 0, 1)), (2, 5, (vec![4], vec![2])));
        let error = TextData::read_with(&tokenizer, &path, 2, 0).unwrap_err().to_string();
        assert!(error.contains("t.txt has 2 tokens, but one sequence of seq_length 2 needs 3"), "{error}");
        let error = TextData::from_tokens(vec![1, u32::MAX], &path, 1, 0).unwrap_err().to_string();
        assert!(error.contains("has the token 4294967295"), "{error}");
    }

    #[test]
    fn bad_texts_are_named_with_their_numbers() {
        let error =
            |bytes: &[u8], s| TextData::from_bytes(bytes.to_vec(), Path::new("t.txt"), s, 0).unwrap_err().to_string();
        assert_eq!(error(b"", 4), "the text t.txt is empty");
        assert!(error(b"abcd", 4).contains("t.txt has 4 bytes, but one sequence of seq_length 4 needs 5"));
        assert!(error(b"abcd", 0).contains("seq_length is 0"));
        let missing = TextData::read(Path::new("/no/such/text"), 4, 0).unwrap_err().to_string();
        assert!(missing.contains("/no/such/text") && missing.contains("No such file"), "{missing}");
    }
}
