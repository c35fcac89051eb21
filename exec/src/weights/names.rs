//! The names under which a tensor is found in published weights.
//!
//! One law: the name asked for comes first, so a file that has it is read by it.

/// Matrix of the output head.
pub(super) const OUTPUT_HEAD: &str = "lm_head.weight";

/// Names of the base model inside a model with a head: of GPT-2 and BLOOM, of Llama's kind, of GPT-NeoX. Weights saved
/// from the base model alone leave it out.
const BASE_MODELS: [&str; 3] = ["transformer.", "model.", "gpt_neox."];

/// Token embeddings, which a head tied to them has its numbers from.
const TOKEN_EMBEDDINGS: [&str; 3] = ["wte.weight", "embed_tokens.weight", "word_embeddings.weight"];

/// The name itself, then with the prefix of its base model taken away or put before it.
pub(super) fn variants(name: &str) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    match BASE_MODELS.iter().find_map(|base| name.strip_prefix(base)) {
        Some(rest) => names.push(rest.to_owned()),
        None => names.extend(BASE_MODELS.iter().map(|base| format!("{base}{name}"))),
    }
    names
}

/// The names of the token embedding, for a head that is tied to it.
pub(super) fn token_embeddings() -> impl Iterator<Item = String> {
    TOKEN_EMBEDDINGS.iter().flat_map(|name| variants(name))
}
