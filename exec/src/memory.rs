//! A counting global allocator: how many heap bytes each rank of this process holds, and the most it ever held.
//!
//! One law: a byte is charged to the slot of the thread that allocated it and credited to that same slot when it is
//! freed, whichever thread frees it; so a message that a peer frees still counts down at its sender.
#![expect(unsafe_code, reason = "implementing GlobalAlloc is unsafe by nature; the safety argument is below")]
//! # Why it is sound
//!
//! Every block is one block of [`System`] with a header in front: `header = max(align, 16)` bytes, and the slot number
//! in the last 8 of them. `align` is a power of two, so `header` is a multiple of `align` and the pointer handed out,
//! `base + header`, is aligned as asked; the system block is asked for with alignment `header`, so `base` is known to
//! be 16-aligned and the slot word at `base + header - 8` is 8-aligned and inside the header (`header >= 16`). The
//! size `header + size` is checked by [`Layout::from_size_align`]; if it overflows, the answer is null, which is what
//! the trait asks for. `dealloc` and `realloc` get the layout of the allocation (the caller's duty), so they compute
//! the same header and give [`System`] the very layout it was asked with. `realloc` hands the whole block, header
//! included, to [`System::realloc`], which keeps the old bytes, so the slot travels along; `alloc_zeroed` writes only
//! the header of a zeroed block. Counters are relaxed atomics: they order nothing. The thread-local slot is a
//! constant-initialised [`Cell`] without a destructor, so reading it neither allocates nor fails at thread exit.

use pipewright_ir::ids::Rank;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

/// Slots: slot 0 is "no rank", slot `r + 1` is rank `r`; ranks from 254 on share the last slot.
pub const SLOTS: usize = 256;

/// Two counters on a cache line (pair) of their own, so that ranks do not slow each other down.
#[repr(align(128))]
struct Counter {
    live: AtomicI64,
    peak: AtomicI64,
}

static COUNTERS: [Counter; SLOTS] = [const { Counter { live: AtomicI64::new(0), peak: AtomicI64::new(0) } }; SLOTS];
static REGISTERED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The allocator. Register it in the binary:
/// `#[global_allocator] static ALLOCATOR: CountingAllocator = CountingAllocator;`
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

/// While it lives, allocations of this thread are charged to a rank; dropping it restores the slot before.
#[derive(Debug)]
#[must_use = "the rank is left as soon as the guard is dropped"]
pub struct RankGuard {
    before: usize,
    /// The slot is the thread's own: the guard must not be dropped on another one.
    not_send: PhantomData<*const ()>,
}

impl Drop for RankGuard {
    fn drop(&mut self) {
        set_slot(self.before);
    }
}

/// Charges this thread's allocations to `rank` until the guard is dropped.
pub fn enter_rank(rank: Rank) -> RankGuard {
    let before = CURRENT.with(Cell::get);
    set_slot(slot_of(rank));
    RankGuard { before, not_send: PhantomData }
}

/// The slot of a rank.
pub fn slot_of(rank: Rank) -> usize {
    rank.index().saturating_add(1).min(SLOTS - 1)
}

/// Charges this thread's allocations to `slot` from now on (a slot past the end means the last one).
pub fn set_slot(slot: usize) {
    CURRENT.with(|c| c.set(slot.min(SLOTS - 1)));
}

/// Bytes of `slot` now in use \[B\]; 0 for a slot past the end or when nothing counts.
pub fn live(slot: usize) -> u64 {
    COUNTERS.get(slot).map_or(0, |c| unsigned(c.live.load(Relaxed)))
}

/// Most bytes `slot` had in use since the start or the last [`reset_peak`] \[B\].
pub fn peak(slot: usize) -> u64 {
    COUNTERS.get(slot).map_or(0, |c| unsigned(c.peak.load(Relaxed)))
}

/// Starts the peak of `slot` anew from what is in use now.
pub fn reset_peak(slot: usize) {
    if let Some(c) = COUNTERS.get(slot) {
        c.peak.store(c.live.load(Relaxed), Relaxed);
    }
}

/// Whether the binary registered [`CountingAllocator`]; if not, [`live`] and [`peak`] say 0.
pub fn is_counting() -> bool {
    REGISTERED.load(Relaxed)
}

/// Tells the C library to keep freed memory instead of giving it back to the system: a training step frees and
/// allocates the same large blocks over and over, and fresh pages cost more than the arithmetic on them (attention
/// forward and backward took 1.7 times as long). Call it once, before threads start. `false` where the C library has
/// no such setting.
pub fn keep_freed_memory() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` takes plain numbers, changes settings under the allocator's own lock and touches no memory of
    // ours; unknown settings are answered with 0.
    let kept =
        unsafe { libc::mallopt(libc::M_MMAP_MAX, 0) == 1 && libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX) == 1 };
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let kept = false;
    kept
}

fn unsigned(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn current_slot() -> usize {
    CURRENT.try_with(Cell::get).unwrap_or(0)
}

fn charge(slot: usize, bytes: i64) {
    if let Some(c) = COUNTERS.get(slot) {
        let now = c.live.fetch_add(bytes, Relaxed) + bytes;
        // A plain load first: the peak is seldom passed, and a read-modify-write is dear.
        if now > c.peak.load(Relaxed) {
            c.peak.fetch_max(now, Relaxed);
        }
    }
}

fn header(layout: Layout) -> usize {
    layout.align().max(16)
}

/// The system layout of a block of `size` user bytes behind `header`, or `None` on overflow.
fn outer(size: usize, header: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(header)?, header).ok()
}

impl CountingAllocator {
    fn allocate(layout: Layout, from: unsafe fn(&System, Layout) -> *mut u8) -> *mut u8 {
        let header = header(layout);
        let Some(outer) = outer(layout.size(), header) else {
            return std::ptr::null_mut();
        };
        // SAFETY: `outer` has a size of at least 16.
        let base = unsafe { from(&System, outer) };
        if base.is_null() {
            return base;
        }
        if !REGISTERED.load(Relaxed) {
            REGISTERED.store(true, Relaxed);
        }
        let slot = current_slot();
        charge(slot, signed(layout.size()));
        // SAFETY: the block is `header + size` bytes; see the module's text for the alignment of the slot word.
        unsafe {
            let user = base.add(header);
            user.sub(8).cast::<usize>().write(slot);
            user
        }
    }
}

// SAFETY: see "Why it is sound" above.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::allocate(layout, System::alloc)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // Zero pages straight from the system stay untouched until used.
        Self::allocate(layout, System::alloc_zeroed)
    }

    unsafe fn dealloc(&self, user: *mut u8, layout: Layout) {
        let header = header(layout);
        // SAFETY: `user` came from `allocate` or `realloc` with this layout, so the header is before it and
        // `header + size` did not overflow then.
        unsafe {
            let slot = user.sub(8).cast::<usize>().read();
            charge(slot, -signed(layout.size()));
            let outer = Layout::from_size_align_unchecked(layout.size() + header, header);
            System.dealloc(user.sub(header), outer);
        }
    }

    unsafe fn realloc(&self, user: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let header = header(layout);
        let Some(new) = outer(new_size, header) else {
            return std::ptr::null_mut();
        };
        // SAFETY: as for `dealloc`; the new size was checked just above. On null the old block stays as it is.
        unsafe {
            let slot = user.sub(8).cast::<usize>().read();
            let old = Layout::from_size_align_unchecked(layout.size() + header, header);
            let base = System.realloc(user.sub(header), old, new.size());
            if base.is_null() {
                return base;
            }
            charge(slot, signed(new_size) - signed(layout.size()));
            base.add(header)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    /// Slots no other test uses (tests run at the same time).
    const A: usize = 201;
    const B: usize = 202;

    #[test]
    fn bytes_are_charged_to_the_allocating_rank_wherever_they_are_freed() {
        assert!(is_counting());
        std::thread::scope(|s| {
            s.spawn(|| {
                let guard = enter_rank(Rank(200));
                assert_eq!(slot_of(Rank(200)), A);
                let before = live(A);
                let block = vec![1u8; 1 << 20];
                assert_eq!(live(A) - before, 1 << 20);
                drop(guard);
                let other = enter_rank(Rank(201));
                let at_b = live(B);
                drop(block);
                assert_eq!(live(A), before);
                assert_eq!(live(B), at_b, "a free must not touch the freeing rank");
                assert!(peak(A) >= 1 << 20);
                reset_peak(A);
                assert_eq!(peak(A), live(A));
                drop(other);
            });
        });
    }

    #[test]
    fn growing_keeps_contents_and_owner() {
        std::thread::scope(|s| {
            s.spawn(|| {
                set_slot(210);
                let before = live(210);
                let mut v: Vec<u32> = (0..100).collect();
                v.reserve_exact(1_000_000);
                assert_eq!(live(210) - before, 4 * v.capacity() as u64);
                assert!(v.iter().copied().eq(0..100));
                v.shrink_to_fit();
                assert_eq!(live(210) - before, 4 * v.capacity() as u64);
            });
        });
    }

    #[test]
    fn alignment_is_kept_and_zeroed_blocks_are_zero() {
        for align in [1usize, 2, 8, 16, 32, 64, 256, 4096] {
            let layout = Layout::from_size_align(1000, align).unwrap();
            // SAFETY: nonzero size; freed with the same layout below (after realloc with the new size).
            unsafe {
                let p = std::alloc::alloc_zeroed(layout);
                assert_eq!(p as usize % align, 0);
                assert!((0..1000).all(|i| *p.add(i) == 0));
                p.add(999).write(7);
                let q = std::alloc::realloc(p, layout, 5000);
                assert_eq!(q as usize % align, 0);
                assert_eq!(*q.add(999), 7);
                std::alloc::dealloc(q, Layout::from_size_align(5000, align).unwrap());
            }
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn freed_memory_is_kept() {
        assert!(keep_freed_memory());
    }

    #[test]
    fn an_impossible_size_is_null_not_a_crash() {
        let layout = Layout::from_size_align(isize::MAX as usize - 4, 1).unwrap();
        assert!(CountingAllocator::allocate(layout, System::alloc).is_null());
        assert_eq!(live(SLOTS + 5), 0);
        assert_eq!(slot_of(Rank(100_000)), SLOTS - 1);
    }
}
