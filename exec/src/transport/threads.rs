//! The transport between threads of one process: a mailbox a rank.
//!
//! One law: a receive copies the data into memory of the receiving thread and drops the sender's buffer, so each
//! rank's bytes are its own.

use super::{AbortHandle, Payload, Received, Tag, Transport, TransportError};
use pipewright_ir::ids::Rank;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

struct Envelope {
    payload: Payload,
    sent: Instant,
}

#[derive(Default)]
struct Inbox {
    pending: BTreeMap<(Rank, Tag), VecDeque<Envelope>>,
    /// Ranks whose endpoint was dropped (the owner of this mailbox among them).
    gone: BTreeSet<Rank>,
}

impl Inbox {
    fn take(&mut self, from: Rank, tag: Tag) -> Option<Envelope> {
        let queue = self.pending.get_mut(&(from, tag))?;
        let envelope = queue.pop_front();
        if queue.is_empty() {
            self.pending.remove(&(from, tag));
        }
        envelope
    }
}

#[derive(Default)]
struct Mailbox {
    inbox: Mutex<Inbox>,
    changed: Condvar,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // Nothing panics while an inbox is locked and half changed, so a poisoned one is still whole.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The endpoint of one rank. Dropping it tells the others that the rank is gone.
pub struct ThreadTransport {
    rank: Rank,
    mailboxes: Arc<[Mailbox]>,
    abort: AbortHandle,
}

/// Endpoints of `n` ranks, each connected with all (itself too); endpoint `i` belongs to rank `i`.
pub fn mesh(n: usize) -> Vec<ThreadTransport> {
    let mailboxes: Arc<[Mailbox]> = (0..n).map(|_| Mailbox::default()).collect();
    let to_wake = Arc::clone(&mailboxes);
    let abort = AbortHandle::new(move || {
        for mailbox in to_wake.iter() {
            // Taking the lock closes the gap between a receiver's look at the handle and its wait.
            drop(mailbox.lock());
            mailbox.changed.notify_all();
        }
    });
    (0..n)
        .map(|i| ThreadTransport { rank: Rank::at(i), mailboxes: Arc::clone(&mailboxes), abort: abort.clone() })
        .collect()
}

impl ThreadTransport {
    fn mailbox(&self, of: Rank) -> Result<&Mailbox, TransportError> {
        let no_such_rank = TransportError::NoSuchRank { rank: self.rank, peer: of, size: self.mailboxes.len() };
        self.mailboxes.get(of.index()).ok_or(no_such_rank)
    }

    /// Waits until the envelope is there, with the lock released while it waits.
    fn wait_for(&self, from: Rank, tag: Tag, timeout: Duration) -> Result<Envelope, TransportError> {
        self.mailbox(from)?;
        let start = Instant::now();
        let mailbox = self.mailbox(self.rank)?;
        let mut inbox = mailbox.lock();
        loop {
            self.abort.check(self.rank)?;
            if let Some(envelope) = inbox.take(from, tag) {
                return Ok(envelope);
            }
            if inbox.gone.contains(&from) {
                return Err(TransportError::PeerGone { rank: self.rank, peer: from, tag });
            }
            let waited = start.elapsed();
            let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Err(TransportError::TimedOut { rank: self.rank, from, tag, waited });
            };
            inbox = mailbox.changed.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Transport for ThreadTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> usize {
        self.mailboxes.len()
    }

    fn send(&self, to: Rank, tag: Tag, payload: Payload) -> Result<(), TransportError> {
        self.abort.check(self.rank)?;
        let mailbox = self.mailbox(to)?;
        let mut inbox = mailbox.lock();
        if inbox.gone.contains(&to) {
            return Err(TransportError::PeerGone { rank: self.rank, peer: to, tag });
        }
        let envelope = Envelope { payload, sent: Instant::now() };
        inbox.pending.entry((self.rank, tag)).or_default().push_back(envelope);
        drop(inbox);
        mailbox.changed.notify_all();
        Ok(())
    }

    fn receive(&self, from: Rank, tag: Tag, timeout: Duration) -> Result<Received, TransportError> {
        let Envelope { payload, sent } = self.wait_for(from, tag, timeout)?;
        // The copy is this thread's allocation; the sender's buffer is freed right after (see the law above).
        let (shape, values) = (payload.shape().to_vec(), payload.values().to_vec());
        Ok(Received { payload: Payload::new(shape, values)?, sent })
    }

    fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }
}

impl Drop for ThreadTransport {
    fn drop(&mut self) {
        for (i, mailbox) in self.mailboxes.iter().enumerate() {
            let mut inbox = mailbox.lock();
            inbox.gone.insert(self.rank);
            if i == self.rank.index() {
                inbox.pending.clear();
            }
            drop(inbox);
            mailbox.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MessageKind;
    use super::*;
    use crate::memory;
    use pipewright_ir::ids::{Microbatch, Stage};

    const LONG: Duration = Duration::from_secs(20);

    fn tag(microbatch: u32) -> Tag {
        Tag {
            kind: MessageKind::Activation,
            stage: Stage::new(0),
            microbatch: Some(Microbatch::new(microbatch)),
            step: 0,
        }
    }

    fn payload(x: f32) -> Payload {
        Payload::new(vec![1], vec![x]).unwrap()
    }

    #[test]
    fn messages_are_picked_up_by_tag_in_any_order() {
        let ends = mesh(2);
        for i in 0..4 {
            ends[0].send(Rank(1), tag(i), payload(i as f32)).unwrap();
        }
        ends[0].send(Rank(1), tag(2), payload(20.0)).unwrap();
        for (i, x) in [(3, 3.0), (0, 0.0), (2, 2.0), (2, 20.0), (1, 1.0)] {
            let got = ends[1].receive(Rank(0), tag(i), LONG).unwrap();
            assert_eq!(got.payload, payload(x));
            assert!(got.sent <= Instant::now());
        }
    }

    #[test]
    fn a_message_of_another_rank_with_the_same_tag_is_not_taken() {
        let ends = mesh(3);
        ends[2].send(Rank(1), tag(0), payload(2.0)).unwrap();
        let error = ends[1].receive(Rank(0), tag(0), Duration::from_millis(10)).unwrap_err();
        assert!(matches!(error, TransportError::TimedOut { from: Rank(0), .. }));
        assert!(error.to_string().contains("\"activation of stage 0, microbatch 0, step 0\" from rank 0"), "{error}");
    }

    #[test]
    fn a_gone_peer_delivers_what_it_sent_and_nothing_more() {
        let mut ends = mesh(2);
        let one = ends.pop().unwrap();
        let zero = ends.pop().unwrap();
        zero.send(Rank(1), tag(0), payload(1.0)).unwrap();
        drop(zero);
        assert!(one.receive(Rank(0), tag(0), LONG).is_ok());
        let gone = TransportError::PeerGone { rank: Rank(1), peer: Rank(0), tag: tag(1) };
        assert_eq!(one.receive(Rank(0), tag(1), LONG).unwrap_err(), gone);
        assert_eq!(one.send(Rank(0), tag(1), payload(0.0)).unwrap_err(), gone);
        assert!(matches!(one.send(Rank(7), tag(1), payload(0.0)), Err(TransportError::NoSuchRank { size: 2, .. })));
    }

    #[test]
    fn an_abort_ends_a_waiting_receive_at_once() {
        let mut ends = mesh(2);
        let one = ends.pop().unwrap();
        let waiter = std::thread::spawn(move || (one.receive(Rank(0), tag(0), LONG), Instant::now()));
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        ends[0].abort_handle().abort(Rank(0), "task 7 failed");
        let (result, end) = waiter.join().unwrap();
        assert!(matches!(result, Err(TransportError::Aborted { by: Rank(0), .. })));
        assert!(end.duration_since(start) < Duration::from_millis(100));
        assert!(matches!(ends[0].send(Rank(1), tag(0), payload(0.0)), Err(TransportError::Aborted { .. })));
    }

    #[test]
    fn a_received_buffer_belongs_to_the_receiver() {
        let (send_slot, receive_slot) = (220, 221);
        let mut ends = mesh(2);
        let one = ends.pop().unwrap();
        let zero = ends.pop().unwrap();
        let (n, bytes) = (1 << 18, 1 << 20);
        std::thread::scope(|s| {
            s.spawn(move || {
                memory::set_slot(send_slot);
                zero.send(Rank(1), tag(0), Payload::new(vec![n], vec![0.5; n]).unwrap()).unwrap();
                assert!(memory::live(send_slot) >= bytes);
            })
            .join()
            .unwrap();
            s.spawn(move || {
                memory::set_slot(receive_slot);
                let got = one.receive(Rank(0), tag(0), LONG).unwrap();
                assert!(memory::live(receive_slot) >= bytes);
                assert!(memory::live(send_slot) < bytes);
                drop(got);
                assert!(memory::live(receive_slot) < bytes);
            });
        });
    }
}
