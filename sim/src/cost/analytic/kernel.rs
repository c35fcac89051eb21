//! How long a kernel takes: roofline, with tile and wave quantisation of matrix multiplications.

use super::parameters::Parameters;
use pipewright_ir::scenario::Dtype;
use pipewright_ir::segments::{AttentionKernel, Kernel};

/// A GPU under a software stack.
#[derive(Clone, Debug)]
pub struct Device {
    /// Peak of the format that training uses \[FLOP/s\].
    pub peak_flops: f64,
    /// Memory bandwidth of the data sheet \[B/s\].
    pub memory_bandwidth: f64,
    /// Streaming multiprocessors.
    pub multiprocessors: f64,
    /// Format of weights and activations.
    pub dtype: Dtype,
    /// What the stack makes of it.
    pub parameters: Parameters,
}

/// Tile shapes that a library of matrix kernels has, with how often `tile_128` and `tile_64` slow them down: smaller tiles
/// load more bytes for each multiplication.
const TILES: [(u64, u64, i32, i32); 5] =
    [(128, 256, 0, 0), (256, 128, 0, 0), (128, 128, 1, 0), (128, 64, 1, 1), (64, 64, 1, 2)];

/// Parts that the sum may be split into where the grid would leave multiprocessors idle.
const SPLITS: [u64; 4] = [1, 2, 4, 8];
/// Least length of a part of the sum.
const SHORTEST_SUM: u64 = 1024;
/// Share of the multiprocessors below which a grid counts as thin.
const THIN: f64 = 0.75;

impl Device {
    /// Time of a kernel \[s\].
    pub fn kernel(&self, kernel: &Kernel) -> f64 {
        match kernel {
            Kernel::Gemm { m, n, k, count, grouped: false, .. } if *count > 1 => {
                self.roofline(self.batched(*m, *n, *k, *count), kernel) + self.parameters.launch.value
            }
            Kernel::Gemm { m, n, k, count, grouped, .. } => {
                let compute = self.gemm(*m, *n, *k, *count, *grouped);
                let groups = if *grouped { *count as f64 * self.parameters.expert_overhead.value } else { 0.0 };
                // Loads run beside multiplications, but not all of them.
                self.roofline(compute, kernel) + self.parameters.launch.value + groups
            }
            Kernel::Attention(attention) => self.attention(attention, kernel.flops()),
            Kernel::Elementwise { bytes, launches } => {
                self.memory(*bytes as f64) + f64::from(*launches) * self.parameters.launch.value
            }
        }
    }

    /// Time to read and write so many bytes of device memory \[s\].
    pub fn memory(&self, bytes: f64) -> f64 {
        bytes / (self.memory_bandwidth * self.parameters.memory_efficiency.value)
    }

    /// Multiplications of a time and the loads and stores beside them.
    fn roofline(&self, compute: f64, kernel: &Kernel) -> f64 {
        let (memory, norm) = (self.memory(kernel.bytes()), self.parameters.roofline_norm.value);
        let (long, short) = (compute.max(memory), compute.min(memory));
        // Scaled by the longer one, so that no power leaves the range of numbers.
        if long > 0.0 { long * (1.0 + (short / long).powf(norm)).powf(1.0 / norm) } else { 0.0 }
    }

    /// Waves of tiles over the multiprocessors, each tile a sum over `k` and a fixed part worth `gemm_fixed_k` more; the
    /// best of the tile shapes and splits of the sum.
    fn gemm(&self, m: u64, n: u64, k: u64, count: u64, grouped: bool) -> f64 {
        let p = &self.parameters;
        let mut best = f64::INFINITY;
        for (rows, columns, by_128, by_64) in TILES {
            let tiles = (m.div_ceil(rows) * n.div_ceil(columns)).saturating_mul(count) as f64;
            let rate =
                self.peak_flops * p.gemm_efficiency.value * p.tile_128.value.powi(by_128) * p.tile_64.value.powi(by_64);
            for split in SPLITS {
                let thin = tiles < THIN * self.multiprocessors;
                if split > 1 && (grouped || k / split < SHORTEST_SUM || !thin) {
                    break;
                }
                let waves = tiles * split as f64 / self.multiprocessors;
                let waves = (waves + p.wave_quantisation.value * (waves.ceil() - waves)).max(1.0);
                let length = k as f64 / split as f64 + p.gemm_fixed_k.value;
                let wave = 2.0 * self.multiprocessors * (rows * columns) as f64 * length;
                best = best.min(waves * wave / rate);
            }
        }
        best
    }

    /// The small multiplications of unfused attention, one a head: padded to whole tiles, and slower where a size is no
    /// multiple of 8 and the tensor cores cannot load it in one go.
    fn batched(&self, m: u64, n: u64, k: u64, count: u64) -> f64 {
        let padded = m.next_multiple_of(128) * n.next_multiple_of(64) * k.next_multiple_of(32);
        let aligned = [m, n, k].iter().all(|size| size.is_multiple_of(8));
        let slowdown = if aligned { 1.0 } else { self.parameters.unaligned_slowdown.value };
        2.0 * padded as f64 * count as f64 / (self.peak_flops * self.parameters.batched_gemm_efficiency.value)
            * slowdown
    }

    /// Fused attention. `flops` counts every (query, key) pair: the efficiencies are of a causal kernel, which skips half.
    fn attention(&self, a: &AttentionKernel, flops: f64) -> f64 {
        let p = &self.parameters;
        // A fused backward computes the scores once more: five multiplications, of which `flops` counts four.
        let (efficiency, flops) = if a.backward {
            (p.attention_backward_efficiency.value, flops * 1.25)
        } else {
            (p.attention_forward_efficiency.value, flops)
        };
        let latent = match (a.qk_dim == a.v_dim, a.backward) {
            (true, _) => 1.0,
            (false, false) => p.latent_attention_forward.value,
            (false, true) => p.latent_attention_backward.value,
        };
        let unmasked = if a.masked { 1.0 } else { 2.0 };
        unmasked * flops / (self.peak_flops * efficiency * latent) + p.attention_overhead.value
    }
}
