//! From an order to a simulated step, through the public interface alone.

use pipewright::ir::ids::{Rank, TaskId};
use pipewright::ir::memory;
use pipewright::ir::metrics::Metrics;
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::passes::add_send_recv;
use pipewright::ir::schedule::{Draft, Schedule};
use pipewright::ir::task::{Lane, MemoryClass};
use pipewright::ir::timeline::Timeline;
use pipewright::ir::unit_costs::UnitCosts;
use pipewright::ir::workload::{StageWorkload, Workload};
use pipewright::sim::cost::UnitCost;
use pipewright::sim::{Options, simulate};

/// F, I, W of one chunk action and the hop, as numbers that f64 holds exactly also after a division by `v`.
pub(crate) fn chunk_costs([f, i, w]: [f64; 3], hop: f64, v: u32) -> UnitCosts {
    let v = f64::from(v);
    UnitCosts { forward: f * v, backward_input: i * v, backward_weight: w * v, hop, ..UnitCosts::default() }
}

/// A simulated step.
pub(crate) struct Run {
    pub(crate) schedule: Schedule,
    pub(crate) timeline: Timeline,
    pub(crate) metrics: Metrics,
}

/// Simulates an order of compute actions; every chunk's activations weigh one byte.
pub(crate) fn run(order: &PipelineOrder, costs: &UnitCosts, options: &Options) -> Run {
    let stage = StageWorkload { activations: 1, ..StageWorkload::default() };
    let workload = Workload { stages: vec![stage; order.placement.stages() as usize], ..Workload::default() };
    let schedule = Draft::lower(&add_send_recv(order), &workload).seal().unwrap();
    let timeline = simulate(&schedule, &UnitCost::new(costs, &schedule), options);
    let metrics = Metrics::of(&schedule, &timeline);
    Run { schedule, timeline, metrics }
}

impl Run {
    /// Start and end of every compute task of a rank's first step, in program order, as `0F2`.
    pub(crate) fn spans(&self, rank: u32) -> Vec<(String, f64, f64)> {
        let compute = self.schedule.program(Rank(rank)).filter(|(_, t)| t.lane == Lane::Compute);
        compute.map(|(id, t)| (t.action.to_string(), self.span(id).0, self.span(id).1)).collect()
    }

    fn span(&self, id: TaskId) -> (f64, f64) {
        let span = self.timeline.span(0, id);
        (span.start, span.end)
    }

    /// One number a rank.
    pub(crate) fn each<T>(&self, number: impl Fn(u32) -> T) -> Vec<T> {
        (0..Rank::at(self.schedule.ranks()).0).map(number).collect()
    }

    /// Makespan minus the compute spans of each rank.
    pub(crate) fn idle(&self) -> Vec<f64> {
        self.each(|r| self.timeline.makespan() - self.spans(r).iter().map(|(_, start, end)| end - start).sum::<f64>())
    }

    /// First compute start of each rank.
    pub(crate) fn starts(&self) -> Vec<f64> {
        self.each(|r| self.spans(r).iter().map(|s| s.1).fold(f64::INFINITY, f64::min))
    }

    /// Last compute end of each rank.
    pub(crate) fn ends(&self) -> Vec<f64> {
        self.each(|r| self.spans(r).iter().map(|s| s.2).fold(0.0, f64::max))
    }

    /// Most activations alive on each rank, in chunks: from the program, and from the memory replayed over the timeline.
    pub(crate) fn peaks(&self) -> Vec<u32> {
        let position = memory::positions(&self.schedule);
        self.each(|r| {
            let counted = memory::peak_activations(&self.schedule, Rank(r));
            let replayed = memory::of_rank(&self.schedule, &self.timeline, Rank(r), &position);
            let live = replayed.points.iter().map(|point| point.live[MemoryClass::Activations.index()]).max();
            assert_eq!(live, Some(u64::from(counted)), "rank {r}: activations in memory and in the program");
            counted
        })
    }

    /// The numbers of [`Metrics`] must be those of the spans.
    pub(crate) fn assert_metrics_agree(&self, v: u32, what: &str) {
        let metric = |number: fn(&pipewright::ir::metrics::RankMetrics) -> f64| {
            self.metrics.ranks.iter().map(number).collect::<Vec<_>>()
        };
        assert_eq!(self.metrics.makespan, self.timeline.makespan(), "{what}");
        assert_eq!(metric(|r| r.idle), self.idle(), "{what}");
        assert_eq!(metric(|r| r.first_start), self.starts(), "{what}");
        assert_eq!(metric(|r| r.last_end), self.ends(), "{what}");
        let peaks: Vec<_> = self.peaks().into_iter().map(f64::from).collect();
        assert_eq!(
            metric(|r| r.peak_activations),
            peaks.iter().map(|n| n / f64::from(v)).collect::<Vec<_>>(),
            "{what}"
        );
    }
}
