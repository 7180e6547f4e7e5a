//! The floor of a call across shards: two pinned threads that pass a number through two queues.

use std::hint::spin_loop;
use std::thread;

use crossbeam_queue::ArrayQueue;

use crate::support::{Effort, Sample, measure, pin};

/// Slots of each queue; one is ever used.
const SLOTS: usize = 64;
/// The number that ends the other thread.
const STOP: u64 = u64::MAX;

/// Round trips of a number from one thread to another and back.
pub(crate) fn ping_pong(effort: Effort) -> anyhow::Result<Sample> {
    let (there, back) = (ArrayQueue::new(SLOTS), ArrayQueue::new(SLOTS));
    thread::scope(|scope| {
        let other = scope.spawn(|| answer(&there, &back));
        pin(0)?;
        let mut number = 0;
        let sample = measure(effort, || {
            number += 1;
            put(&there, number);
            anyhow::ensure!(take(&back) == number, "the number came back changed");
            Ok(())
        });
        put(&there, STOP);
        other.join().expect("the other thread does not panic")?;
        sample
    })
}

fn answer(there: &ArrayQueue<u64>, back: &ArrayQueue<u64>) -> anyhow::Result<()> {
    pin(1)?;
    loop {
        match take(there) {
            STOP => return Ok(()),
            number => put(back, number),
        }
    }
}

fn put(queue: &ArrayQueue<u64>, number: u64) {
    queue.push(number).expect("one number is under way at a time");
}

fn take(queue: &ArrayQueue<u64>) -> u64 {
    loop {
        if let Some(number) = queue.pop() {
            return number;
        }
        spin_loop();
    }
}
