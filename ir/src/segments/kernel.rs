//! The kernels that a device runs and the messages that it takes part in, by their sizes.

use crate::mesh::{Axis, Mesh};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A kernel: what a cost model gives a time to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    /// `count` multiplications `[M, K] x [K, N]`.
    Gemm {
        /// Rows of the result.
        m: u64,
        /// Columns of the result.
        n: u64,
        /// What is summed over.
        k: u64,
        /// Multiplications of this size in one launch: heads, or experts.
        count: u64,
        /// Bytes of one number of the operands \[B\].
        width: u64,
        /// Bytes read and written for one number of the result: more than `width` where it is added to what is there
        /// \[B\].
        output: u64,
        /// Whether the multiplications are of experts, which get their own rows each.
        grouped: bool,
    },
    /// Core attention in one kernel, without the `S x S` matrix.
    Attention(AttentionKernel),
    /// Work that memory bandwidth limits.
    Elementwise {
        /// Bytes read and written \[B\].
        bytes: u64,
        /// Launches.
        launches: u32,
    },
}

/// Fused attention of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionKernel {
    /// Sequences.
    pub batch: u64,
    /// Query heads.
    pub heads: u64,
    /// Query tokens of a sequence.
    pub queries: u64,
    /// Key tokens of a sequence.
    pub keys: u64,
    /// Size of a query and key head.
    pub qk_dim: u64,
    /// Size of a value head.
    pub v_dim: u64,
    /// Whether the causal mask leaves out half of the (query, key) pairs.
    pub masked: bool,
    /// Backward: five multiplications in the place of two.
    pub backward: bool,
}

impl Kernel {
    /// Floating-point operations, masked ones included; those that a fused backward only repeats are not.
    pub fn flops(&self) -> f64 {
        match self {
            Kernel::Gemm { m, n, k, count, .. } => 2.0 * product(&[*m, *n, *k, *count]),
            Kernel::Attention(a) => {
                let forward = 2.0 * product(&[a.batch, a.heads, a.queries, a.keys, a.qk_dim + a.v_dim]);
                if a.backward { 2.0 * forward } else { forward }
            }
            Kernel::Elementwise { .. } => 0.0,
        }
    }

    /// Bytes that it must at least read and write \[B\].
    pub fn bytes(&self) -> f64 {
        match self {
            Kernel::Gemm { m, n, k, count, width, output, .. } => {
                let operands = (product(&[*m, *k]) + product(&[*k, *n])) * product(&[*width]);
                (operands + product(&[*m, *n, *output])) * product(&[*count])
            }
            Kernel::Attention(a) => {
                let tensors = product(&[a.queries, a.qk_dim + a.v_dim]) + product(&[a.keys, a.qk_dim + a.v_dim]);
                let passes = if a.backward { 2.0 } else { 1.0 };
                2.0 * passes * tensors * product(&[a.batch, a.heads])
            }
            Kernel::Elementwise { bytes, .. } => product(&[*bytes]),
        }
    }
}

fn product(factors: &[u64]) -> f64 {
    factors.iter().map(|n| *n as f64).product()
}

/// Kinds of messages over a group of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CollectiveKind {
    /// Everyone ends with the sum of everyone's tensor.
    AllReduce,
    /// Everyone ends with everyone's shard.
    AllGather,
    /// Everyone ends with its shard of the sum.
    ReduceScatter,
    /// Everyone sends everyone else a part.
    AllToAll,
    /// Everyone sends to the next in the ring and receives from the one before.
    Exchange,
}

impl CollectiveKind {
    /// Its name for people and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all-reduce",
            CollectiveKind::AllGather => "all-gather",
            CollectiveKind::ReduceScatter => "reduce-scatter",
            CollectiveKind::AllToAll => "all-to-all",
            CollectiveKind::Exchange => "exchange",
        }
    }
}

/// A message over the groups of one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    /// What it does.
    pub kind: CollectiveKind,
    /// Over which axis.
    pub axis: Axis,
    /// Size of the whole tensor: reduced, gathered, to be scattered, held before an all-to-all, or sent on \[B\].
    pub bytes: u64,
}

impl Collective {
    /// Bytes that one rank sends, and as many that it receives \[B\]: of a tensor of `n` bytes over `r` ranks an
    /// all-reduce `2 n (r - 1) / r`, an exchange `n`, the others `n (r - 1) / r` (Thakur et al. 2005).
    pub fn sent(&self, mesh: &Mesh) -> u64 {
        let ranks = u128::from(mesh.size(self.axis).max(1));
        let bytes = u128::from(self.bytes);
        let sent = match self.kind {
            CollectiveKind::AllReduce => 2 * bytes * (ranks - 1) / ranks,
            CollectiveKind::Exchange if ranks > 1 => bytes,
            CollectiveKind::Exchange => 0,
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => {
                bytes * (ranks - 1) / ranks
            }
        };
        u64::try_from(sent).unwrap_or(u64::MAX)
    }
}
