//! What the steps of a program do to the tensors of a microbatch: what an executor carries out, where a cost model needs
//! the kernels alone.
//!
//! Between two messages there is one tensor at hand. Forward it is what the next operation takes: hidden states, the
//! output of a norm, what a region of tensor parallelism makes; the residual stream stands beside it. In backward it is the
//! gradient of the same.

/// An operation. The [`Phase`](super::Phase) of its step says whether forward is meant, the gradient of the input, or
/// those of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// The rows of the tokens in the rank's shard of the embedding, zeros for tokens of other shards.
    Embedding,
    /// A norm of the residual stream.
    Norm(Site),
    /// Adds to the residual stream: positions to the embedding, the output of attention or MLP to what went in; bias and
    /// dropout with it.
    Residual(Site),
    /// From the hidden size to queries, keys and values.
    Projections,
    /// Rotary positions of queries and keys (latent attention: the heads put together of their parts).
    Rope,
    /// Core attention of the rank's queries with one block of keys and values: the only one, or this many steps round the
    /// ring.
    Core(u32),
    /// From the heads to the hidden size.
    Output,
    /// From the hidden size to the inner size.
    MlpUp,
    /// The activation between.
    Activation,
    /// From the inner size to the hidden size.
    MlpDown,
    /// Which experts a token goes to.
    Router,
    /// Tokens into the order of the experts, or back.
    Permute,
    /// The experts, the shared ones among them.
    Experts,
    /// From the hidden size to the rank's shard of the vocabulary.
    Head,
    /// The loss, as far as the rank's shard of the vocabulary tells.
    Loss,
    /// A weight's gradient added to those of the microbatches before by a pass of its own.
    Accumulate,
}

/// A place on the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Site {
    /// Behind the embedding.
    Embedding,
    /// At attention.
    Attention,
    /// At the MLP.
    Mlp,
    /// Before the head.
    Head,
}

impl Operation {
    /// The kind of block that it belongs to.
    pub fn block(self) -> BlockKind {
        match self {
            Operation::Embedding | Operation::Norm(Site::Embedding) | Operation::Residual(Site::Embedding) => {
                BlockKind::Embedding
            }
            Operation::Norm(Site::Head) | Operation::Head | Operation::Loss => BlockKind::Head,
            _ => BlockKind::Layer,
        }
    }

    /// The name of a segment that begins with it, for people.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Embedding => "embedding",
            Operation::Norm(_) => "norm",
            Operation::Residual(_) => "add",
            Operation::Projections | Operation::Rope | Operation::Output => "attention",
            Operation::Core(_) => "core attention",
            Operation::MlpUp | Operation::Activation | Operation::MlpDown => "mlp",
            Operation::Router | Operation::Permute => "router",
            Operation::Experts => "experts",
            Operation::Head => "head",
            Operation::Loss => "loss",
            Operation::Accumulate => "accumulate",
        }
    }
}

/// What a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operand {
    /// The tensor at hand.
    AtHand,
    /// The output of a norm, kept as a shard of the sequence, for the gradients of the weights behind it.
    Normed(Site),
    /// Queries, keys and values before the core, or their gradients behind its backward.
    Projected,
    /// The output of the core, or its gradient.
    Attended,
    /// A block of keys and values, the gradients gathered for the block before it, or both.
    Ring {
        /// Whether keys and values are in it.
        keys_and_values: bool,
        /// Whether gradients are.
        gradients: bool,
    },
    /// Tokens on their way to the experts, or back.
    Dispatched,
    /// Of each token the largest logit, the sum of exponentials, and the target's logit.
    Loss,
    /// The parameters of a block.
    Parameters(BlockKind),
    /// Their gradients.
    Gradients(BlockKind),
}

/// Kinds of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockKind {
    /// The embedding.
    Embedding,
    /// A transformer layer.
    Layer,
    /// The final norm, the head and the loss.
    Head,
}
