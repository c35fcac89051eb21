//! Every combination of switches: each layer's operations are there, in order, once; I and W together are B.

use super::{Does, Event, events, model, programs};
use crate::mesh::Mesh;
use crate::model::{ModelShape, Normalization, PositionEmbedding};
use crate::scenario::{Attention, Recompute, SequenceParallel};
use crate::segments::{BlockKind, Cut, Operand, Operation, Phase, Site};
use crate::setup::Setup;

/// How sequences are shared out: the mesh, the kind, and whether Megatron's is on.
const SHARED: [(u32, u32, SequenceParallel, bool); 6] = [
    (1, 1, SequenceParallel::None, false),
    (2, 1, SequenceParallel::None, false),
    (2, 1, SequenceParallel::Megatron, true),
    (1, 4, SequenceParallel::Ring, false),
    (2, 2, SequenceParallel::Ulysses, false),
    (2, 2, SequenceParallel::Ring, true),
];

/// One combination of all switches.
struct Case {
    model: ModelShape,
    mesh: Mesh,
    setup: Setup,
}

fn cases() -> Vec<Case> {
    let gpt = model();
    let llama = ModelShape {
        normalization: Normalization::RmsNorm,
        position_embedding: PositionEmbedding::Rope,
        gated_linear_unit: true,
        add_bias_linear: false,
        add_qkv_bias: false,
        untie_embeddings_and_output_weights: true,
        ..model()
    };
    let mut cases = Vec::new();
    for (tensor, context, sequence_parallel, megatron_sequence_parallel) in SHARED {
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            for zero_stage in 0..4 {
                for fused in [true, false] {
                    for model in [&gpt, &llama] {
                        let setup = Setup {
                            attention: Attention::Standard,
                            recompute: vec![recompute],
                            sequence_parallel,
                            megatron_sequence_parallel,
                            zero_stage,
                            gradient_accumulation_fusion: fused,
                            overlap_grad_reduce: fused,
                            ..Setup::default()
                        };
                        let mesh = Mesh { tensor, context, data: 2, pipeline: 2, ..Mesh::default() };
                        cases.push(Case { model: model.clone(), mesh, setup });
                    }
                }
            }
        }
    }
    cases
}

impl Case {
    fn cores(&self) -> u32 {
        if self.setup.sequence_parallel == SequenceParallel::Ring { self.mesh.context } else { 1 }
    }

    fn rope(&self) -> Option<Operation> {
        (self.model.position_embedding == PositionEmbedding::Rope).then_some(Operation::Rope)
    }

    fn core(&self) -> impl Iterator<Item = Operation> + use<> {
        (0..self.cores()).map(Operation::Core)
    }

    fn forward(&self) -> Vec<Operation> {
        let mut list = vec![Operation::Norm(Site::Attention), Operation::Projections];
        list.extend(self.rope());
        list.extend(self.core());
        list.extend([Operation::Output, Operation::Residual(Site::Attention), Operation::Norm(Site::Mlp)]);
        list.extend([Operation::MlpUp, Operation::Activation, Operation::MlpDown, Operation::Residual(Site::Mlp)]);
        list
    }

    /// What gives the gradient of a layer's input.
    fn input(&self) -> Vec<Operation> {
        let mut list = vec![Operation::Residual(Site::Mlp), Operation::MlpDown, Operation::Activation];
        list.extend([Operation::MlpUp, Operation::Norm(Site::Mlp), Operation::Residual(Site::Attention)]);
        list.push(Operation::Output);
        list.extend(self.core());
        list.extend(self.rope());
        list.extend([Operation::Projections, Operation::Norm(Site::Attention)]);
        list
    }

    fn weight(&self) -> Vec<Operation> {
        let added = (!self.setup.gradient_accumulation_fusion).then_some(Operation::Accumulate);
        let linears = [Operation::MlpDown, Operation::MlpUp, Operation::Output, Operation::Projections];
        linears.into_iter().flat_map(|linear| [Some(linear), added]).flatten().collect()
    }

    fn again(&self) -> Vec<Operation> {
        match self.setup.recompute[0] {
            Recompute::None => Vec::new(),
            Recompute::Selective => self.core().collect(),
            Recompute::Full => self.forward(),
        }
    }

    fn named(&self) -> String {
        let (Mesh { tensor, context, .. }, setup) = (self.mesh, &self.setup);
        let (sequence, megatron) = (setup.sequence_parallel.name(), setup.megatron_sequence_parallel);
        let recompute = setup.recompute[0].name();
        format!("t{tensor} c{context} {sequence} megatron {megatron} {recompute} ZeRO {}", setup.zero_stage)
    }
}

/// The operations of a layer in a phase, in order, without those of the ends, which count to the layer beside them.
fn of_layer(events: &[Event], layer: u32, phase: Phase) -> Vec<Operation> {
    let ends = |operation: &Operation| {
        matches!(
            operation,
            Operation::Embedding
                | Operation::Head
                | Operation::Loss
                | Operation::Norm(Site::Embedding | Site::Head)
                | Operation::Residual(Site::Embedding)
        )
    };
    let mut found = Vec::new();
    let mut at_end = false;
    for event in events.iter().filter(|event| event.layer == layer && event.phase == phase) {
        let Does::Compute(operation) = event.does else { continue };
        // Gradients that are added up belong to the weights before them.
        at_end = ends(&operation) || operation == Operation::Accumulate && at_end;
        found.extend((!at_end).then_some(operation));
    }
    found
}

#[test]
fn every_layer_does_each_operation_once_in_order() {
    for case in cases() {
        let cut = Cut { model: &case.model, mesh: &case.mesh, setup: &case.setup, micro_batch_size: 1, seq_length: 64 };
        let programs = programs(&cut, true);
        for (s, stage) in programs.stages.iter().enumerate() {
            let [forward, backward] = [&stage.forward, &stage.backward].map(|list| events(&programs, list));
            let [input, weight] = [&stage.input, &stage.weight].map(|list| events(&programs, list));
            let layers = if s == 0 { 0..2 } else { 2..4 };
            assert!(forward.iter().chain(&backward).all(|event| layers.contains(&event.layer)), "{}", case.named());
            for layer in layers {
                let of = |events: &[Event], phase| of_layer(events, layer, phase);
                assert_eq!(of(&forward, Phase::Forward), case.forward(), "{} {layer}", case.named());
                for both in [&backward, &input] {
                    assert_eq!(of(both, Phase::Input), case.input(), "{} {layer}", case.named());
                    assert_eq!(of(both, Phase::Recompute), case.again(), "{} {layer}", case.named());
                }
                for both in [&backward, &weight] {
                    assert_eq!(of(both, Phase::Weight), case.weight(), "{} {layer}", case.named());
                }
            }
            // Layers follow one another forward and come back the other way.
            let place = |events: &[Event], operation| {
                let found = |event: &&Event| event.does == Does::Compute(operation);
                events.iter().filter(found).map(|event| event.layer).collect::<Vec<_>>()
            };
            let first = if s == 0 { 0 } else { 2 };
            assert_eq!(place(&forward, Operation::MlpDown), [first, first + 1]);
            assert!(place(&backward, Operation::Norm(Site::Mlp)).is_sorted_by(|a, b| a >= b));
        }
    }
}

/// The ends: the first stage looks up, the last one has the final norm, the head and the loss, and goes back through them.
#[test]
fn the_ends_do_their_operations_once_and_before_or_behind_the_layers() {
    for case in cases() {
        let cut = Cut { model: &case.model, mesh: &case.mesh, setup: &case.setup, micro_batch_size: 1, seq_length: 64 };
        let programs = programs(&cut, true);
        let computed = |list, phase: Phase| -> Vec<Operation> {
            let of = |event: Event| match event.does {
                Does::Compute(operation) if event.phase == phase => Some(operation),
                _ => None,
            };
            events(&programs, list).into_iter().filter_map(of).filter(|o| *o != Operation::Accumulate).collect()
        };
        let [first, last] = [&programs.stages[0], &programs.stages[1]];
        let learned = case.model.position_embedding == PositionEmbedding::Learned;
        let mut embedding = vec![Operation::Embedding];
        embedding.extend(learned.then_some(Operation::Residual(Site::Embedding)));
        assert!(computed(&first.forward, Phase::Forward).starts_with(&embedding), "{}", case.named());
        assert!(computed(&last.forward, Phase::Forward).ends_with(&[
            Operation::Norm(Site::Head),
            Operation::Head,
            Operation::Loss
        ]));
        let back = [Operation::Loss, Operation::Head, Operation::Norm(Site::Head)];
        assert!(computed(&last.backward, Phase::Input).starts_with(&back), "{}", case.named());
        for list in [&first.backward, &first.weight] {
            assert_eq!(computed(list, Phase::Weight).last(), Some(&Operation::Embedding), "{}", case.named());
        }
        for list in [&last.backward, &last.weight] {
            assert_eq!(computed(list, Phase::Weight).first(), Some(&Operation::Head), "{}", case.named());
        }
    }
}

/// In B a weight's gradient comes behind that of its output, which its input's gradient stands beside.
#[test]
fn weights_come_behind_inputs_and_both_together_are_the_whole_backward() {
    for case in cases() {
        let cut = Cut { model: &case.model, mesh: &case.mesh, setup: &case.setup, micro_batch_size: 1, seq_length: 64 };
        let programs = programs(&cut, true);
        for stage in &programs.stages {
            let backward = events(&programs, &stage.backward);
            for (at, event) in backward.iter().enumerate().filter(|(_, event)| event.phase == Phase::Weight) {
                let is_linear = |operation| !matches!(operation, Operation::Accumulate | Operation::Embedding);
                let Does::Compute(operation) = event.does else { continue };
                let mate = |e: &Event| (e.layer, e.phase, e.does) == (event.layer, Phase::Input, event.does);
                assert!(!is_linear(operation) || backward[..at].iter().any(mate), "{} {event:?}", case.named());
            }
            let bag = |events: Vec<Event>| {
                let mut bag: Vec<_> = events.into_iter().map(|e| (e.layer, e.phase, e.does)).collect();
                bag.sort();
                bag
            };
            let parts = [&stage.input, &stage.weight].map(|list| events(&programs, list)).concat();
            assert_eq!(bag(parts), bag(backward), "{}", case.named());
        }
    }
}

/// ZeRO-3 gathers the parameters of each block before each use and scatters its gradients once; below it nothing is.
#[test]
fn zero_3_gathers_each_block_for_each_pass_and_scatters_it_once() {
    for case in cases() {
        let cut = Cut { model: &case.model, mesh: &case.mesh, setup: &case.setup, micro_batch_size: 1, seq_length: 64 };
        let programs = programs(&cut, true);
        let stage = &programs.stages[0];
        let sent = |list, operand: Operand| {
            events(&programs, list).into_iter().filter(|event| event.does == Does::Send(operand)).count()
        };
        let times = if case.setup.zero_stage == 3 { [2, 2, 2, 1, 0, 1] } else { [0; 6] };
        let found = [
            sent(&stage.forward, Operand::Parameters(BlockKind::Layer)),
            sent(&stage.backward, Operand::Parameters(BlockKind::Layer)),
            sent(&stage.backward, Operand::Gradients(BlockKind::Layer)),
            sent(&stage.forward, Operand::Parameters(BlockKind::Embedding)),
            sent(&stage.backward, Operand::Parameters(BlockKind::Embedding)),
            sent(&stage.backward, Operand::Gradients(BlockKind::Embedding)),
        ];
        assert_eq!(found, times, "{}", case.named());
    }
}
