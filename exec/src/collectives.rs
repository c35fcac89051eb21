//! Messages over a group of ranks, on top of messages between two.
//!
//! One law: what is summed is summed in the order of the ranks, so every member gets the same bits, and gets them again.
//!
//! A message is posted when its tensor is made, and taken in where the schedule waits for it: between the two the rank
//! computes. Every member sends its part to every other; each sums up for itself.

use crate::error::TaskError;
use crate::transport::{Payload, Tag, Transport};
use burn::tensor::{Device, Tensor};
use pipewright_ir::ids::Rank;
use pipewright_ir::segments::{CollectiveKind, Operand};
use std::time::Duration;

/// The members of a group, and which of them this rank is.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    ranks: Vec<Rank>,
    own: usize,
}

impl Members {
    /// A group; `own` must be in it.
    pub(crate) fn new(ranks: Vec<Rank>, own: Rank) -> Self {
        let own = ranks.iter().position(|rank| *rank == own).unwrap_or(0);
        Self { ranks, own }
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.ranks.len()
    }

    fn others(&self) -> impl Iterator<Item = (usize, Rank)> + '_ {
        self.ranks.iter().copied().enumerate().filter(|(i, _)| *i != self.own)
    }

    /// The neighbours in a ring: who is sent to and who is received from.
    fn neighbours(&self) -> (Rank, Rank) {
        let n = self.len();
        (self.ranks[(self.own + 1) % n], self.ranks[(self.own + n - 1) % n])
    }
}

/// A message that this rank has its part in and that is not taken in yet.
#[derive(Debug)]
pub(crate) struct Posted {
    kind: CollectiveKind,
    members: Members,
    tag: Tag,
    /// This rank's part: all of it, or what stays here.
    own: Tensor<2>,
}

/// Hands this rank's part `[R, W]` of a message out. What is scattered or goes to all stands rank after rank in the rows.
pub(crate) fn post<T: Transport>(
    transport: &T,
    members: &Members,
    kind: CollectiveKind,
    tag: Tag,
    tensor: Tensor<2>,
) -> Result<Posted, TaskError> {
    let n = members.len();
    let part = |tensor: &Tensor<2>, i: usize| {
        let [rows, width] = tensor.dims();
        let each = rows / n;
        tensor.clone().slice([i * each..(i + 1) * each, 0..width])
    };
    let own = match kind {
        CollectiveKind::AllReduce | CollectiveKind::AllGather => {
            let payload = Payload::from_tensor(tensor.clone())?;
            for (_, rank) in members.others() {
                transport.send(rank, tag, payload.clone())?;
            }
            tensor
        }
        CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => {
            for (i, rank) in members.others() {
                transport.send(rank, tag, Payload::from_tensor(part(&tensor, i))?)?;
            }
            part(&tensor, members.own)
        }
        CollectiveKind::Exchange => {
            if n > 1 {
                transport.send(members.neighbours().0, tag, Payload::from_tensor(tensor.clone())?)?;
            }
            tensor
        }
    };
    Ok(Posted { kind, members: members.clone(), tag, own })
}

impl Posted {
    /// Takes the others' parts in: the sum, what everyone has rank after rank in the rows, or what the neighbour sent.
    pub(crate) fn finish<T: Transport>(
        self,
        transport: &T,
        device: &Device,
        timeout: Duration,
    ) -> Result<Tensor<2>, TaskError> {
        let receive = |rank: Rank| -> Result<Tensor<2>, TaskError> {
            Ok(transport.receive(rank, self.tag, timeout)?.payload.into_tensor::<2>(device)?)
        };
        if self.members.len() == 1 {
            return Ok(self.own);
        }
        if self.kind == CollectiveKind::Exchange {
            return receive(self.members.neighbours().1);
        }
        let mut parts = Vec::with_capacity(self.members.len());
        for (i, rank) in self.members.ranks.iter().enumerate() {
            parts.push(if i == self.members.own { self.own.clone() } else { receive(*rank)? });
        }
        match self.kind {
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => {
                let mut parts = parts.into_iter();
                let first = parts.next().ok_or(TaskError::Missing("a member of the group"))?;
                Ok(parts.fold(first, |sum, part| sum + part))
            }
            _ => Ok(Tensor::cat(parts, 0)),
        }
    }
}

/// How a message is really made. Statistics of a loss are merged by their log-sum-exp, which every member does for itself.
pub(crate) fn kind_of(kind: CollectiveKind, operand: Operand) -> CollectiveKind {
    if operand == Operand::Loss { CollectiveKind::AllGather } else { kind }
}

/// The sum of a number over a group, in the order of the ranks.
pub(crate) fn sum<T: Transport>(
    transport: &T,
    members: &Members,
    tag: Tag,
    own: f64,
    timeout: Duration,
) -> Result<f64, TaskError> {
    // An fp64 number as the sum of two fp32 numbers: 48 bits of it.
    let high = own as f32;
    let low = (own - f64::from(high)) as f32;
    let payload = Payload::new(vec![2], vec![high, low])?;
    for (_, rank) in members.others() {
        transport.send(rank, tag, payload.clone())?;
    }
    let mut total = 0.0;
    for (i, rank) in members.ranks.iter().enumerate() {
        let part = if i == members.own { payload.clone() } else { transport.receive(*rank, tag, timeout)?.payload };
        total += part.values().iter().map(|x| f64::from(*x)).sum::<f64>();
    }
    Ok(total)
}
