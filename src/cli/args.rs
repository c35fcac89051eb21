//! The command line as typed.

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use pipewright::ir::scenario::Overlap;
use pipewright::ir::spec::Semantics;
use std::path::PathBuf;

/// Compare, simulate, draw and execute parallel training plans for large models.
#[derive(Parser)]
#[command(
    version,
    about,
    max_term_width = 100,
    after_help = "\
Examples:
  pipewright compare scenarios/01-quickstart.json      predict, really train, verify and draw four schedules
  pipewright simulate scenarios/02-four-schedules.json --plot out/four.svg
  pipewright explain scenarios/03-slow-links.json --schedule 1f1b
  pipewright show scenarios/02-four-schedules.json --schedule 1f1b --csv
  pipewright plan scenarios/bloom-176b.json            is it legal, and what does it come to?
  pipewright simulate scenarios/llama-3-70b.json --fits
  pipewright report scenarios/bloom-176b.json          where the time of a step goes, what each link carries
  pipewright list                                      the schedules, with papers and formulas

Exit codes: 0 fine; 1 the answer is no; 2 wrong usage or scenario; 3 execution failed; 70 a bug in pipewright."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Report every violation of the rules that a schedule must keep
    Check(CheckArgs),
    /// Say whether a plan is legal, with every fault, and what it comes to: devices, groups, layers, batch
    Plan(PlanArgs),
    /// Print the order of a schedule, one line a rank
    Show(ShowArgs),
    /// Predict time, bubble, memory and messages of each schedule
    Simulate(SimulateArgs),
    /// Predict every schedule side by side, and with `execute` also measure on this machine, verify and draw
    Compare(CompareArgs),
    /// Say where the idle time of each rank goes, by cause, and what would change it
    Explain(ExplainArgs),
    /// Say where the time of a step goes, how fast it is, and what is sent over which links
    Report(ReportArgs),
    /// Really train with one schedule
    #[cfg(feature = "exec")]
    Run(RunArgs),
    /// Prove that training with a schedule equals training on one device
    #[cfg(feature = "exec")]
    Verify(VerifyArgs),
    /// Measure what each task costs on this machine
    #[cfg(feature = "exec")]
    Profile(ProfileArgs),
    /// Compare predicted with measured step times of whole tables
    Accuracy(AccuracyArgs),
    /// Fit parameters of a software stack to tables of measured step times
    Fit(FitArgs),
    /// Count parameters and FLOPs of a scenario's model, stages and ranks, or of a Hugging Face config.json
    Model(ModelArgs),
    /// List the schedules with their papers and formulas
    List(ListArgs),
    /// Print the JSON schema of scenario files, or of schedule files
    Schema(SchemaArgs),
    /// Print completions for a shell
    Completions(CompletionArgs),
}

/// The scenario and which of its schedules.
#[derive(Args)]
pub(crate) struct Source {
    /// Scenario file; `-` reads stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: String,
    /// Only this schedule; may be repeated, and need not be in the scenario
    #[arg(long, value_name = "NAME")]
    pub(crate) schedule: Vec<String>,
}

/// How sends behave while a schedule is checked.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sends {
    /// All three
    All,
    /// A send is buffered and never waits
    Eager,
    /// A send waits for its receive
    Rendezvous,
    /// Messages of two ranks queue on one stream
    StreamFifo,
}

impl Sends {
    pub(crate) fn semantics(self) -> &'static [Semantics] {
        match self {
            Sends::All => &Semantics::ALL,
            Sends::Eager => &[Semantics::Eager],
            Sends::Rendezvous => &[Semantics::Rendezvous],
            Sends::StreamFifo => &[Semantics::StreamFifo],
        }
    }
}

/// How the parts of a compound action run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OverlapMode {
    /// One after another, each as soon as its own inputs are there
    Sequential,
    /// All together once the inputs of all are there, in the sum of their times
    Atomic,
    /// All together, in the time `costs.overlapped_forward_backward`
    Overlapped,
}

impl OverlapMode {
    pub(crate) fn overlap(self) -> Overlap {
        match self {
            OverlapMode::Sequential => Overlap::Sequential,
            OverlapMode::Atomic => Overlap::Atomic,
            OverlapMode::Overlapped => Overlap::Overlapped,
        }
    }
}

/// How sends behave in a prediction.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SendMode {
    /// A send is buffered and never waits
    Eager,
    /// A send waits for its receive; both ranks are busy for the hop
    Rendezvous,
    /// Messages of two ranks queue on one stream beside compute
    StreamFifo,
}

impl SendMode {
    pub(crate) fn semantics(self) -> Semantics {
        match self {
            SendMode::Eager => Semantics::Eager,
            SendMode::Rendezvous => Semantics::Rendezvous,
            SendMode::StreamFifo => Semantics::StreamFifo,
        }
    }
}

/// How many steps a prediction runs.
#[derive(Args)]
pub(crate) struct Repeat {
    /// Steps back to back
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) steps: u32,
    /// All ranks wait for each other between steps
    #[arg(long)]
    pub(crate) barrier: bool,
}

/// What a prediction assumes; overrides the scenario.
#[derive(Args)]
pub(crate) struct Assumptions {
    /// How the parts of compound actions run
    #[arg(long, value_enum)]
    pub(crate) overlap: Option<OverlapMode>,
    /// How a send behaves until its receive is there
    #[arg(long, value_enum)]
    pub(crate) sends: Option<SendMode>,
}

#[derive(Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Under which semantics of sends the schedule must not deadlock
    #[arg(long, value_enum, default_value = "all")]
    pub(crate) sends: Sends,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Print JSON; where the plan is refused, all its faults
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    /// In which form
    #[arg(long, value_enum, default_value = "grid")]
    pub(crate) format: Format,
    /// The same as --format csv
    #[arg(long, conflicts_with = "format")]
    pub(crate) csv: bool,
    /// Also messages, reductions and the optimizer; JSON and DOT always have them
    #[arg(long)]
    pub(crate) comms: bool,
}

/// Forms of a schedule.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// An aligned grid, one line a rank
    Grid,
    /// CSV, one line a rank, in PyTorch's notation
    Csv,
    /// CSV with only what PyTorch itself reads: without OPTIMIZER_STEP and REDUCE_TIED
    TorchCsv,
    /// The whole task graph with memory, as JSON; `pipewright schema schedule` describes it
    Json,
    /// The task graph of a small schedule, for Graphviz
    Dot,
}

#[derive(Args)]
pub(crate) struct SchemaArgs {
    /// Of which file
    #[arg(value_enum, default_value = "scenario")]
    pub(crate) of: SchemaOf,
}

/// Files with a schema.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaOf {
    /// What the verbs read
    Scenario,
    /// What `show --format json` writes, and a custom schedule may be read from
    Schedule,
    /// A cluster of one's own
    Cluster,
}

/// Details of a simulation.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Detail {
    /// F, B, I and W of a stage are one task each
    Stage,
    /// Each run of kernels between two messages is a task, and so is each message
    Segment,
}

#[derive(Args)]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) repeat: Repeat,
    /// Let all ranks share this many cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cores: Option<u32>,
    #[command(flatten)]
    pub(crate) assumptions: Assumptions,
    /// How finely the work of a stage is shown; segments need a model and a cluster
    #[arg(long, value_enum, default_value = "stage")]
    pub(crate) detail: Detail,
    /// Simulate every device of the mesh, not one of equal replicas
    #[arg(long, conflicts_with = "cores")]
    pub(crate) full: bool,
    /// Also say whether each plan fits in the memory of its GPUs, why the heaviest rank is, and what would help; exit
    /// code 1 if one does not
    #[arg(long)]
    pub(crate) fits: bool,
    /// Write a Chrome trace, to open in Perfetto; with several schedules one file each
    #[arg(long, value_name = "OUT.json")]
    pub(crate) trace: Option<PathBuf>,
    /// Draw the timeline; with several schedules all on one time axis
    #[arg(long, value_name = "OUT.svg|.png")]
    pub(crate) plot: Option<PathBuf>,
    /// Draw memory over time; with several schedules one file each
    #[arg(long, value_name = "OUT.svg|.png")]
    pub(crate) memory_plot: Option<PathBuf>,
    /// Draw step time over peak memory, a point a schedule, with the Pareto front
    #[arg(long, value_name = "OUT.svg|.png")]
    pub(crate) pareto: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) assumptions: Assumptions,
    /// Draw where the time of a step goes, a bar a schedule
    #[arg(long, value_name = "OUT.svg|.png")]
    pub(crate) plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) repeat: Repeat,
    #[command(flatten)]
    pub(crate) assumptions: Assumptions,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where and how long to execute; overrides the scenario.
#[derive(Args, Default)]
pub(crate) struct ExecuteArgs {
    /// Device to run on
    #[arg(long, value_enum)]
    pub(crate) device: Option<Device>,
    /// Optimizer steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: Option<u32>,
    /// Let several ranks share one GPU
    #[arg(long)]
    pub(crate) share_devices: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// One core a rank
    Cpu,
    /// One NVIDIA GPU a rank
    Cuda,
}

#[derive(Args)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) execute: ExecuteArgs,
    #[command(flatten)]
    pub(crate) assumptions: Assumptions,
    /// Only predict, even where the scenario says how to execute
    #[arg(long)]
    pub(crate) predict_only: bool,
    /// Folder for pictures, traces and costs
    #[arg(long, value_name = "FOLDER", default_value = "out")]
    pub(crate) out: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(feature = "exec")]
#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) execute: ExecuteArgs,
    /// Folder for the timeline
    #[arg(long, value_name = "FOLDER", default_value = "out")]
    pub(crate) out: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(feature = "exec")]
#[derive(Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) execute: ExecuteArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(feature = "exec")]
#[derive(Args)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) execute: ExecuteArgs,
    /// File to write the costs to
    #[arg(short, long, value_name = "COSTS.json")]
    pub(crate) output: PathBuf,
}

#[derive(Args)]
pub(crate) struct AccuracyArgs {
    /// Tables of measurements: a base scenario, and rows that change some of its knobs
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Predict with this software stack: a known name, or a file of one's own
    #[arg(long, value_name = "NAME|FILE.json")]
    pub(crate) stack: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a page in Markdown
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,
}

#[derive(Args)]
pub(crate) struct FitArgs {
    /// Tables of measurements: a base scenario, and rows that change some of its knobs
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Parameters to fit, separated by commas; those joined by `+` change by the same factor, the others stay
    #[arg(long, value_name = "A,B,..", required = true, value_delimiter = ',')]
    pub(crate) parameters: Vec<String>,
    /// Where to start: a known software stack, or a file of one's own. Default: the stack of the first row
    #[arg(long, value_name = "NAME|FILE.json")]
    pub(crate) stack: Option<String>,
    /// Steps of the search
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) rounds: usize,
    /// Where to write the fitted stack. Default: stdout
    #[arg(short, long, value_name = "STACK.json")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct CompletionArgs {
    /// The shell
    pub(crate) shell: Shell,
}
