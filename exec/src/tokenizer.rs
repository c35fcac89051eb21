//! From text to tokens and back: a byte a token, or by a Hugging Face tokenizer.json.
//!
//! One law: the same text gives the same tokens on every machine, and none that were not in the text (no token for its
//! beginning or its end is put in).

use crate::atomic_file::FileError;
use crate::data::BYTE_VOCAB;
use std::fs;
use std::path::{Path, PathBuf};

/// Why there is no tokenizer, or no tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file system refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is not a tokenizer.json, or not one that gives the same tokens every time.
    #[error("{} is not a tokenizer.json that can be used: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer refused a text or tokens.
    #[error("{} cannot {action}: {reason}", path.display())]
    Refused {
        /// The file of the tokenizer.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What it said.
        reason: String,
    },
    /// A text that a tokenizer.json cannot be used for.
    #[error("{} is not UTF-8 from byte {valid} on; only the tokenizer of bytes reads such a text", path.display())]
    NotText {
        /// The text.
        path: PathBuf,
        /// Bytes in front that are UTF-8.
        valid: usize,
    },
    /// A token that is no byte.
    #[error("token {token} is no byte: there are {BYTE_VOCAB}")]
    NoByte {
        /// The token.
        token: u32,
    },
}

/// A way to cut text into tokens.
#[derive(Clone, Debug)]
pub enum Tokenizer {
    /// Every byte is a token.
    Bytes,
    /// A tokenizer.json.
    File(Box<TokenizerFile>),
}

/// A tokenizer.json that was read.
#[derive(Clone, Debug)]
pub struct TokenizerFile {
    path: PathBuf,
    tokenizer: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Reads the tokenizer.json at `path`, or that in the directory `path`. Cutting and padding that it asks for are left
    /// out: training cuts the text itself.
    ///
    /// # Errors
    /// [`TokenizerError::File`]; [`TokenizerError::Format`] also for one that draws at random (BPE dropout).
    pub fn open(path: &Path) -> Result<Self, TokenizerError> {
        let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        let bytes = fs::read(&path).map_err(FileError::of("read", &path))?;
        let mut tokenizer = match tokenizers::Tokenizer::from_bytes(bytes) {
            Ok(tokenizer) => tokenizer,
            Err(error) => return Err(TokenizerError::Format { path, reason: error.to_string() }),
        };
        if let tokenizers::ModelWrapper::BPE(model) = tokenizer.get_model()
            && let Some(dropout) = model.dropout.filter(|dropout| *dropout > 0.0)
        {
            let reason = format!("its merges are left out at random (dropout {dropout}); set model.dropout to null");
            return Err(TokenizerError::Format { path, reason });
        }
        tokenizer.with_padding(None);
        if let Err(error) = tokenizer.with_truncation(None) {
            return Err(TokenizerError::Format { path, reason: error.to_string() });
        }
        Ok(Self::File(Box::new(TokenizerFile { path, tokenizer })))
    }

    /// Size of the vocabulary that a model needs for it: one more than its largest token.
    pub fn vocab_size(&self) -> u32 {
        match self {
            Tokenizer::Bytes => BYTE_VOCAB,
            Tokenizer::File(file) => {
                file.tokenizer.get_vocab(true).into_values().max().map_or(0, |token| token.saturating_add(1))
            }
        }
    }

    /// The tokens of a text of any bytes; `path` names it in messages.
    ///
    /// # Errors
    /// [`TokenizerError::NotText`] where a tokenizer.json is to read what is not UTF-8, [`TokenizerError::Refused`].
    pub fn encode(&self, text: &[u8], path: &Path) -> Result<Vec<u32>, TokenizerError> {
        let Tokenizer::File(file) = self else {
            return Ok(text.iter().copied().map(u32::from).collect());
        };
        let text = std::str::from_utf8(text)
            .map_err(|error| TokenizerError::NotText { path: path.to_owned(), valid: error.valid_up_to() })?;
        // Places in the text are not needed, so the faster way is taken.
        let encoding =
            file.tokenizer.encode_fast(text, false).map_err(|error| file.refused("encode the text", &*error))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, special ones with it. Bytes that are not UTF-8 are shown by the replacement character.
    ///
    /// # Errors
    /// [`TokenizerError::NoByte`], [`TokenizerError::Refused`].
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        match self {
            Tokenizer::Bytes => {
                let byte = |token: &u32| u8::try_from(*token).map_err(|_| TokenizerError::NoByte { token: *token });
                let bytes: Vec<u8> = tokens.iter().map(byte).collect::<Result<_, _>>()?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Tokenizer::File(file) => {
                file.tokenizer.decode(tokens, false).map_err(|error| file.refused("decode the tokens", &*error))
            }
        }
    }
}

impl TokenizerFile {
    fn refused(&self, action: &'static str, reason: &dyn std::error::Error) -> TokenizerError {
        TokenizerError::Refused { path: self.path.clone(), action, reason: reason.to_string() }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;
    use tempfile::{TempDir, tempdir};

    /// A small byte-level tokenizer as GPT-2's, with one merge and a special token.
    pub(crate) fn small() -> (TempDir, Tokenizer) {
        let mut vocab = serde_json::Map::new();
        for (id, letter) in ["a", "b", "c", "\u{120}", "ab"].into_iter().enumerate() {
            vocab.insert(letter.to_owned(), json!(id));
        }
        let byte_level =
            json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
        let file = json!({
            "version": "1.0",
            "truncation": { "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 },
            "padding": null,
            "added_tokens": [{
                "id": 5, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true
            }],
            "normalizer": null,
            "pre_tokenizer": byte_level,
            "post_processor": null,
            "decoder": byte_level,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "vocab": vocab, "merges": ["a b"]
            }
        });
        let directory = tempdir().unwrap();
        fs::write(directory.path().join("tokenizer.json"), file.to_string()).unwrap();
        let tokenizer = Tokenizer::open(directory.path()).unwrap();
        (directory, tokenizer)
    }

    #[test]
    fn bytes_are_their_own_tokens() {
        let text = "caf\u{e9}";
        let tokens = Tokenizer::Bytes.encode(text.as_bytes(), Path::new("t")).unwrap();
        assert_eq!(tokens, [99, 97, 102, 0xc3, 0xa9]);
        assert_eq!(Tokenizer::Bytes.decode(&tokens).unwrap(), text);
        assert_eq!(Tokenizer::Bytes.vocab_size(), 256);
        assert!(Tokenizer::Bytes.decode(&[97, 256]).unwrap_err().to_string().contains("token 256 is no byte"));
    }

    #[test]
    fn a_tokenizer_json_merges_and_gives_the_text_back_uncut() {
        let (_directory, tokenizer) = small();
        let tokens = tokenizer.encode(b"abc ab<end>cb", Path::new("t")).unwrap();
        assert_eq!(tokens, [4, 2, 3, 4, 5, 2, 1]);
        assert_eq!(tokenizer.decode(&tokens).unwrap(), "abc ab<end>cb");
        assert_eq!(tokenizer.vocab_size(), 6);
    }

    #[test]
    fn what_is_no_tokenizer_or_no_text_is_named() {
        let (directory, tokenizer) = small();
        let error = tokenizer.encode(b"ab\xffab", Path::new("raw.bin")).unwrap_err().to_string();
        assert!(error.starts_with("raw.bin is not UTF-8 from byte 2 on"), "{error}");
        let path = directory.path().join("bad.json");
        fs::write(&path, "{\"model\": 3}").unwrap();
        let error = Tokenizer::open(&path).unwrap_err().to_string();
        assert!(error.contains("bad.json is not a tokenizer.json that can be used: "), "{error}");
        let text = fs::read_to_string(directory.path().join("tokenizer.json")).unwrap();
        fs::write(&path, text.replace("\"dropout\":null", "\"dropout\":0.5")).unwrap();
        let error = Tokenizer::open(&path).unwrap_err().to_string();
        assert!(error.ends_with("left out at random (dropout 0.5); set model.dropout to null"), "{error}");
        fs::write(&path, text.replace("\"dropout\":null", "\"dropout\":0.0")).unwrap();
        Tokenizer::open(&path).unwrap();
        let error = Tokenizer::open(Path::new("/no/such")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read /no/such: No such file"), "{error}");
    }
}
