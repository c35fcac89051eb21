//! How the global batch is cut: replicas, accumulation rounds, microbatches.

use super::nearest_divisors;
use crate::fault::Fault;
use crate::scenario::Scenario;

/// The batch of one optimizer step, for one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Sequences of a microbatch.
    pub micro_batch_size: u32,
    /// Microbatches `m` of one pass of the pipeline.
    pub microbatches: u32,
    /// Passes whose gradients add up before the optimizer step.
    pub rounds: u32,
    /// Tokens of a sequence; 0 where the scenario does not say.
    pub seq_length: u32,
}

impl Batch {
    /// Tokens of one optimizer step.
    pub fn tokens(&self) -> u64 {
        let factors = [self.micro_batch_size, self.microbatches, self.rounds, self.seq_length].map(u64::from);
        factors.into_iter().fold(1, u64::saturating_mul)
    }

    /// Tokens of one microbatch.
    pub fn microbatch_tokens(&self) -> u64 {
        u64::from(self.micro_batch_size) * u64::from(self.seq_length)
    }
}

/// Code of a batch that cannot be cut as asked.
pub(super) const DIVIDE: &str = "training::divide";
pub(super) const GLOBAL: &str = "training.global_batch_size";
const MICRO: &str = "training.micro_batch_size";
const COUNT: &str = "training.num_microbatches";
const REPLICAS: &str = "parallel.data_parallel_size";

pub(super) fn resolve(scenario: &Scenario, replicas: u32, faults: &mut Vec<Fault>) -> Batch {
    let training = &scenario.training;
    let parallel = &scenario.parallel;
    for (value, path) in [
        (parallel.tensor_model_parallel_size, "parallel.tensor_model_parallel_size"),
        (parallel.virtual_pipeline_model_parallel_size, crate::schedules::CHUNKS),
        (parallel.context_parallel_size, "parallel.context_parallel_size"),
        (training.global_batch_size, GLOBAL),
        (training.micro_batch_size, MICRO),
        (training.num_microbatches, COUNT),
        (training.seq_length, "training.seq_length"),
        (parallel.data_parallel_size, REPLICAS),
        (parallel.expert_model_parallel_size, "parallel.expert_model_parallel_size"),
        (scenario.parallel.pipeline_model_parallel_size, crate::schedules::RANKS),
    ] {
        if value == Some(0) {
            faults.push(Fault::new(path, "scenario::zero", format!("{path} is 0"), "use 1 or more"));
        }
    }
    let seq_length = training.seq_length.unwrap_or(0);
    let some = |value: Option<u32>| value.map(|v| v.max(1));
    let (global, micro, count) =
        (some(training.global_batch_size), some(training.micro_batch_size), some(training.num_microbatches));
    let (micro_batch_size, microbatches, rounds) = match (global, micro, count) {
        (None, micro, Some(count)) => (micro.unwrap_or(1), count, 1),
        (None, _, None) => {
            let message = "the number of microbatches is not given";
            let help = format!("set {COUNT}, or {GLOBAL} and {MICRO}");
            faults.push(Fault::new("training", "training::microbatches", message, help));
            (1, 1, 1)
        }
        (Some(global), None, Some(count)) => {
            let parts = replicas.saturating_mul(count);
            divide(global, parts, faults, || {
                let message = format!(
                    "{global} sequences cannot be cut into {count} equal microbatches for {replicas} replicas: \
                     {global} % {parts} = {}",
                    global % parts
                );
                if !global.is_multiple_of(replicas) {
                    let (below, above) =
                        (global / replicas * replicas, (global / replicas + 1).saturating_mul(replicas));
                    let help =
                        format!("{global} is no multiple of {replicas} replicas: use {GLOBAL} = {below} or {above}");
                    return Fault::new(GLOBAL, DIVIDE, message, help);
                }
                let legal: Vec<String> =
                    nearest_divisors(global / replicas, count).iter().map(u32::to_string).collect();
                Fault::new(COUNT, DIVIDE, message, format!("use {} microbatches", legal.join(" or ")))
            });
            ((global / parts).max(1), count, 1)
        }
        (Some(global), micro, count) => {
            let micro = micro.unwrap_or(1);
            let parts = micro.saturating_mul(replicas);
            divide(global, parts, faults, || not_divisible(global, micro, replicas, None));
            let total = (global / parts).max(1);
            let count = count.unwrap_or(total);
            if global.is_multiple_of(parts) {
                divide(total, count, faults, || not_divisible(global, micro, replicas, Some(count)));
            }
            (micro, count, (total / count).max(1))
        }
    };
    Batch { micro_batch_size, microbatches, rounds, seq_length }
}

fn divide(whole: u32, parts: u32, faults: &mut Vec<Fault>, fault: impl FnOnce() -> Fault) {
    if !whole.is_multiple_of(parts) {
        faults.push(fault());
    }
}

/// `global_batch_size` is no multiple of `micro_batch_size x data_parallel_size (x num_microbatches)`.
fn not_divisible(global: u32, micro: u32, replicas: u32, count: Option<u32>) -> Fault {
    let [global, micro, replicas, count] = [global, micro, replicas, count.unwrap_or(1)].map(u64::from);
    let parts = micro.saturating_mul(replicas).saturating_mul(count);
    let product = if count > 1 { format!(" * num_microbatches {count}") } else { String::new() };
    let message = format!(
        "global_batch_size {global} is not a multiple of micro_batch_size {micro} * data_parallel_size {replicas}{product}: \
         {global} % {parts} = {}",
        global % parts
    );
    let (below, above) = (global / parts * parts, (global / parts + 1).saturating_mul(parts));
    let help = if below == 0 {
        format!("use global_batch_size {above}")
    } else {
        format!("use global_batch_size {below} or {above}")
    };
    Fault::new(GLOBAL, DIVIDE, message, help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(global: Option<u32>, micro: Option<u32>, count: Option<u32>, replicas: u32) -> Result<Batch, String> {
        let mut scenario = Scenario::default();
        scenario.training.global_batch_size = global;
        scenario.training.micro_batch_size = micro;
        scenario.training.num_microbatches = count;
        let mut faults = Vec::new();
        let batch = resolve(&scenario, replicas, &mut faults);
        faults.first().map_or(Ok(batch), |f| Err(format!("{} / {}", f.message, f.help)))
    }

    #[test]
    fn every_way_to_say_it() {
        let of = |b: Batch| (b.micro_batch_size, b.microbatches, b.rounds);
        assert_eq!(batch(None, None, Some(8), 1).map(of), Ok((1, 8, 1)));
        assert_eq!(batch(Some(32), Some(4), None, 1).map(of), Ok((4, 8, 1)));
        assert_eq!(batch(Some(64), Some(4), Some(8), 1).map(of), Ok((4, 8, 2)), "two rounds accumulate");
        assert_eq!(batch(Some(32), None, Some(8), 2).map(of), Ok((2, 8, 1)));
        assert_eq!(batch(Some(2048), Some(2), None, 8).map(of), Ok((2, 128, 1)));
    }

    #[test]
    fn a4f_and_a4l_name_the_remainder_and_the_way_out() {
        let text = batch(Some(2048), Some(3), None, 8).unwrap_err();
        assert!(text.contains("2048 % 24 = 8") && text.contains("2040 or 2064"), "{text}");
        let text = batch(Some(8), None, Some(3), 1).unwrap_err();
        assert!(text.contains("8 % 3 = 2") && text.contains("use 2 or 4 microbatches"), "{text}");
        let text = batch(Some(24), Some(2), Some(5), 1).unwrap_err();
        assert!(text.contains("24 % 10 = 4") && text.contains("20 or 30"), "{text}");
    }
}
