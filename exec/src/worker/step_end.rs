//! The end of a step: gradients reduced, clipped, and the optimizer.
//!
//! Reductions run beside each other: all of a kind are posted, and taken in when a task of another kind comes.

use super::{Batches, Reduced, Reduction, Worker};
use crate::collectives::{self, Posted};
use crate::error::TaskError;
use crate::parameter::Copies;
use crate::pieces::{self, Piece};
use crate::stage_module::StageModule;
use crate::transport::{MessageKind, Payload, Tag, Transport};
use crate::update::{self, Standing};
use burn::tensor::Tensor;
use pipewright_ir::action::{Action, Op};
use pipewright_ir::ids::{Pipe, Rank, Stage, TaskId};
use pipewright_ir::mesh::Axis;
use pipewright_ir::segments::CollectiveKind;

impl<M: StageModule, T: Transport, B: Batches + ?Sized> Worker<'_, M, T, B> {
    /// A task that stands once a step.
    pub(super) fn end_task(&mut self, id: TaskId) -> Result<(), TaskError> {
        let action = self.context.schedule.task(id).action;
        if self.reductions.iter().any(|reduction| reduction.action.op != action.op) {
            self.finish_reductions()?;
        }
        // ZeRO-3: what was scattered is complete before anything looks at it.
        self.finish_scattered(|_| true)?;
        let since = self.now();
        let what = match action.op {
            Op::ReduceGrad | Op::ReduceTied => {
                self.begin_pair(action)?;
                Reduced::Pair
            }
            Op::ReduceData => Reduced::Blocks(self.begin_blocks(id, action)?),
            Op::ReduceTensor => Reduced::Tensor(self.begin_tensor(id, action)?),
            Op::GatherParam => Reduced::Gather(self.begin_gather(id, action)?),
            Op::ClipGrad => return self.noted(id, Self::clip),
            Op::OptimizerStep => return self.noted(id, |worker| worker.optimizer_step(action.stage)),
            _ => return Err(TaskError::Missing("a task that stands once a step")),
        };
        self.reductions.push(Reduction { task: id, action, what, since });
        Ok(())
    }

    /// Takes in what the others have posted, in order.
    pub(super) fn finish_reductions(&mut self) -> Result<(), TaskError> {
        for Reduction { task, action, what, since } in std::mem::take(&mut self.reductions) {
            self.noted(task, |worker| match what {
                Reduced::Pair => worker.reduce_pair(action),
                Reduced::Blocks(posted) => worker.finish_blocks(action.stage, posted),
                Reduced::Tensor(posted) => worker.finish_tensor(action.stage, posted),
                Reduced::Gather(posted) => worker.finish_gather(action.stage, posted),
            })?;
            self.began(since);
        }
        Ok(())
    }

    /// Buckets of gradients that are complete behind a task are sent beside what follows.
    pub(super) fn send_buckets(&mut self, after: TaskId) -> Result<(), TaskError> {
        let Some(buckets) = self.triggers.get(&after).cloned() else { return Ok(()) };
        for id in buckets {
            let (since, action) = (self.now(), self.context.schedule.task(id).action);
            let posted = self.begin_blocks(id, action)?;
            self.sent_early.insert(id, (posted, since));
        }
        Ok(())
    }

    /// Posts the gradients of a bucket, or of all blocks of a stage.
    fn begin_blocks(&mut self, id: TaskId, action: Action) -> Result<Vec<(usize, Posted)>, TaskError> {
        if let Some((posted, _)) = self.sent_early.remove(&id) {
            return Ok(posted);
        }
        let task = self.context.schedule.task(id);
        let blocks = self.module(action.stage)?.blocks().len();
        let range = match task.step.program() {
            // Buckets stand in the order of the backward.
            Some(_) => {
                let at = blocks.saturating_sub(1 + task.step.place as usize);
                at..at + 1
            }
            None => 0..blocks,
        };
        let (device, axis) = (self.device.clone(), Axis::DataContext);
        let scatter = self.context.setup.zero_stage > 0;
        let mut posted = Vec::new();
        for (part, index) in range.rev().enumerate() {
            let tag = self.group_tag(action, id, part);
            let block = self.module(action.stage)?.blocks_mut().get_mut(index);
            let block = block.ok_or(TaskError::Missing("the block of a bucket"))?;
            let (kind, tensor) = if scatter {
                (CollectiveKind::ReduceScatter, block.take_gradient_pieces(&device))
            } else {
                let flat = block.take_flat_gradients(&device);
                let [n] = flat.dims();
                (CollectiveKind::AllReduce, flat.reshape([1, n]))
            };
            posted.push((index, collectives::post(&self.transport, self.place.members(axis), kind, tag, tensor)?));
        }
        Ok(posted)
    }

    fn finish_blocks(&mut self, stage: Stage, posted: Vec<(usize, Posted)>) -> Result<(), TaskError> {
        let scatter = self.context.setup.zero_stage > 0;
        for (index, posted) in posted {
            let tensor = posted.finish(&self.transport, &self.device, self.context.timeout)?;
            let block = self.module(stage)?.blocks_mut().get_mut(index);
            let block = block.ok_or(TaskError::Missing("the block of a bucket"))?;
            if scatter {
                block.add_reduced(tensor);
            } else {
                let [_, n] = tensor.dims();
                block.set_flat_gradients(&tensor.reshape([n]));
            }
        }
        Ok(())
    }

    /// Posts the gradients of what tensor-parallel ranks hold copies of and have seen different parts of.
    fn begin_tensor(&mut self, id: TaskId, action: Action) -> Result<Option<Posted>, TaskError> {
        let parts: Vec<Tensor<1>> = self.summed(action.stage)?.into_iter().map(|(.., part)| part).collect();
        if parts.is_empty() {
            return Ok(None);
        }
        let flat = Tensor::cat(parts, 0);
        let [n] = flat.dims();
        let tag = self.group_tag(action, id, 0);
        let members = self.place.members(Axis::Tensor);
        // Everyone gets everyone's, and sums those of its neighbours or of all.
        let posted = collectives::post(&self.transport, members, CollectiveKind::AllGather, tag, flat.reshape([1, n]))?;
        Ok(Some(posted))
    }

    /// Block, parameter, where in its gradient, who has copies, and the numbers.
    #[expect(clippy::type_complexity, reason = "read in two places, next to this one")]
    fn summed(&mut self, stage: Stage) -> Result<Vec<(usize, usize, usize, Copies, Tensor<1>)>, TaskError> {
        let mut found = Vec::new();
        for (i, block) in self.module(stage)?.blocks().iter().enumerate() {
            for (j, parameter) in block.parameters.iter().enumerate() {
                let Some(gradient) = parameter.final_gradient() else { continue };
                for (held, range, at) in parameter.owned_parts().filter(|(held, ..)| held.summed) {
                    found.push((i, j, at, held.copies, gradient.clone().slice([at..at + range.len()])));
                }
            }
        }
        Ok(found)
    }

    fn finish_tensor(&mut self, stage: Stage, posted: Option<Posted>) -> Result<(), TaskError> {
        let Some(posted) = posted else { return Ok(()) };
        let all = posted.finish(&self.transport, &self.device, self.context.timeout)?;
        let rank = self.place.tensor_rank() as usize;
        let ranks = self.place.members(Axis::Tensor).len();
        let mut column = 0;
        for (i, j, at, copies, part) in self.summed(stage)? {
            let [len] = part.dims();
            let neighbours = match copies {
                Copies::Neighbours(n) => {
                    let n = (n as usize).max(1);
                    rank / n * n..(rank / n + 1) * n
                }
                _ => 0..ranks,
            };
            let rows = neighbours.map(|r| all.clone().slice([r..r + 1, column..column + len]).reshape([len]));
            let sum = rows.reduce(|sum: Tensor<1>, part| sum + part).ok_or(TaskError::Missing("a neighbour"))?;
            column += len;
            let parameter = self.module(stage)?.blocks_mut().get_mut(i).and_then(|block| block.parameters.get_mut(j));
            let parameter = parameter.ok_or(TaskError::Missing("the parameter"))?;
            let gradient = parameter.take_final_gradient().ok_or(TaskError::Missing("the gradient"))?;
            parameter.set_final_gradient(gradient.slice_assign([at..at + len], sum));
        }
        Ok(())
    }

    /// Posts this device's share of all weights of a stage.
    fn begin_gather(&mut self, id: TaskId, action: Action) -> Result<Vec<(usize, Posted)>, TaskError> {
        let mut posted = Vec::new();
        for index in 0..self.module(action.stage)?.blocks().len() {
            let tag = self.group_tag(action, id, index);
            let block = self.module(action.stage)?.blocks().get(index).ok_or(TaskError::Missing("the block"))?;
            let pieces = block.main_pieces().ok_or(TaskError::Missing("the shares of the weights"))?;
            let members = self.place.members(Axis::DataContext);
            let sent = collectives::post(&self.transport, members, CollectiveKind::AllGather, tag, pieces)?;
            posted.push((index, sent));
        }
        Ok(posted)
    }

    fn finish_gather(&mut self, stage: Stage, posted: Vec<(usize, Posted)>) -> Result<(), TaskError> {
        for (index, posted) in posted {
            let tensor = posted.finish(&self.transport, &self.device, self.context.timeout)?;
            if let Some(block) = self.module(stage)?.blocks_mut().get_mut(index) {
                block.set_from_pieces(&tensor);
            }
        }
        Ok(())
    }

    /// Sends this rank's part of a reduction of two stages, where the other part lives elsewhere.
    fn begin_pair(&mut self, action: Action) -> Result<(), TaskError> {
        let (_, peer) = self.partner(action)?;
        if peer == self.place.rank() {
            return Ok(());
        }
        let own = self.pair_gradient(action.op, action.stage)?;
        let tag = self.pair_tag(action.op, action.stage);
        Ok(self.transport.send(self.place.endpoint(peer), tag, Payload::from_tensor(own)?)?)
    }

    /// The gradients of a stage that its copy has too, or that of a tied embedding.
    fn pair_gradient(&mut self, op: Op, stage: Stage) -> Result<Tensor<1>, TaskError> {
        let device = self.device.clone();
        let module = self.module(stage)?;
        if op == Op::ReduceTied {
            let (block, parameter) = module.tied().ok_or(TaskError::Missing("the tied weight"))?;
            let parameter = module.blocks().get(block).and_then(|block| block.parameters.get(parameter));
            return parameter
                .and_then(crate::parameter::Parameter::final_gradient)
                .ok_or(TaskError::Missing("its gradient"));
        }
        let mut parts = Vec::new();
        for block in module.blocks_mut() {
            let flat = block.take_flat_gradients(&device);
            block.set_flat_gradients(&flat);
            parts.push(flat);
        }
        Ok(Tensor::cat(parts, 0))
    }

    fn set_pair_gradient(&mut self, op: Op, stage: Stage, sum: &Tensor<1>) -> Result<(), TaskError> {
        let module = self.module(stage)?;
        if op == Op::ReduceTied {
            let (block, parameter) = module.tied().ok_or(TaskError::Missing("the tied weight"))?;
            let parameter = module.blocks_mut().get_mut(block).and_then(|block| block.parameters.get_mut(parameter));
            parameter.ok_or(TaskError::Missing("the tied weight"))?.set_final_gradient(sum.clone());
            return Ok(());
        }
        let mut at = 0;
        for block in module.blocks_mut() {
            let len = block.gradient_len();
            block.set_flat_gradients(&sum.clone().slice([at..at + len]));
            at += len;
        }
        Ok(())
    }

    /// Sums the gradients of two stages and gives both the sum. Adding two numbers gives the same bits in either order,
    /// so both ranks have the same sum.
    fn reduce_pair(&mut self, action: Action) -> Result<(), TaskError> {
        let (stage, (partner, peer)) = (action.stage, self.partner(action)?);
        let here = peer == self.place.rank();
        let own = self.pair_gradient(action.op, stage)?;
        let other = if here {
            self.pair_gradient(action.op, partner)?
        } else {
            let (from, tag) = (self.place.endpoint(peer), self.pair_tag(action.op, partner));
            self.transport.receive(from, tag, self.context.timeout)?.payload.into_tensor::<1>(&self.device)?
        };
        if own.dims() != other.dims() {
            return Err(TaskError::Copies { own: own.dims()[0], other: other.dims()[0] });
        }
        let sum = own + other;
        if here {
            self.set_pair_gradient(action.op, partner, &sum)?;
        }
        self.set_pair_gradient(action.op, stage, &sum)
    }

    /// The stage that a reduction sums with, and its pipeline rank.
    fn partner(&self, action: Action) -> Result<(Stage, Rank), TaskError> {
        let placement = self.context.schedule.placement();
        let partner = placement.reduced_with(action.op, action.stage);
        let found = partner.and_then(|stage| Some((stage, placement.rank_of(stage)?)));
        found.ok_or(TaskError::Missing("the other copy of the gradients"))
    }

    fn pair_tag(&self, op: Op, stage: Stage) -> Tag {
        let kind = if op == Op::ReduceGrad { MessageKind::StageGradients } else { MessageKind::TiedGradient };
        Tag { kind, stage, microbatch: None, step: self.step }
    }

    /// Brings the norm of all gradients down to its limit.
    fn clip(&mut self) -> Result<(), TaskError> {
        let placement = self.context.schedule.placement();
        let mut squares = 0.0;
        for (stage, module) in &self.stages {
            let standing = Standing {
                tensor_rank: self.place.tensor_rank(),
                replica: self.place.replica(),
                is_copy: stage.pipe() == Pipe::Up,
            };
            // Of a tied weight the embedding's copy counts.
            let tied = module.tied().filter(|_| placement.is_last(*stage) && !placement.is_first(*stage));
            squares += update::squares(module.blocks(), standing, tied);
        }
        let tag = Tag { kind: MessageKind::Squares, stage: Stage::new(0), microbatch: None, step: self.step };
        let total = collectives::sum(&self.transport, self.place.world(), tag, squares, self.context.timeout)?;
        let norm = total.sqrt();
        self.norm = Some(norm);
        let factor = self.context.setup.clip_grad.map_or(1.0, |limit| update::clip_factor(norm, limit));
        if factor < 1.0 {
            self.stages.values_mut().for_each(|module| update::scale(module.blocks_mut(), factor));
        }
        Ok(())
    }

    fn optimizer_step(&mut self, stage: Stage) -> Result<(), TaskError> {
        if self.context.keep_gradients {
            let gradients: Vec<Piece> = pieces::gradients(self.module(stage)?.blocks());
            self.gradients.extend(gradients);
        }
        let (config, step) = (*self.context.optimizer, self.step + 1);
        update::update(self.module(stage)?.blocks_mut(), &config, step)
    }
}
