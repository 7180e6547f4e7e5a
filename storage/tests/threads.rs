//! The store's threads over real and scripted stores: each request is answered exactly once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use siloring_core::ClusterId;
use siloring_core::limits::{STORE_QUEUE_BYTES_MAX, STORE_QUEUE_MAX};
use siloring_core::ports::store::{Store, StoreAnswer, StoreRequest, StoreResult};
use siloring_core::{Generation, SiloStatus};
use siloring_storage::{Opener, StoreThreads};

use crate::fixture::{
    cluster, fence, is_not_sent, is_refused, is_unavailable, load, record, row, sqlite, state,
    write, write_row, written,
};

/// A store that blocks in each group until it is let go, and counts what it is asked.
struct Gated {
    cluster: ClusterId,
    gate: Arc<Mutex<Receiver<()>>>,
    groups: Arc<Mutex<Vec<usize>>>,
}

impl Store for Gated {
    fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    fn execute(&mut self, _: &StoreRequest) -> StoreResult {
        Ok(StoreAnswer::Done)
    }

    fn execute_group(&mut self, requests: &[StoreRequest]) -> Vec<StoreResult> {
        self.groups.lock().unwrap().push(requests.len());
        // Let go for good when the test drops its end.
        let _let_go = self.gate.lock().unwrap().recv();
        requests.iter().map(|request| self.execute(request)).collect()
    }
}

fn beat(counter: u64) -> StoreRequest {
    StoreRequest::Heartbeat { generation: Generation(1), counter }
}

#[test]
fn requests_from_many_threads_are_each_answered_once_and_in_groups() {
    let (url, _folder) = sqlite();
    let threads = StoreThreads::start(&url, &cluster("a"), |_| {}).unwrap();
    let answered = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (client, answered, sender) = (threads.client(), &answered, sender.clone());
            scope.spawn(move || {
                for index in 0..250 {
                    let (answered, sender) = (Arc::clone(answered), sender.clone());
                    let request = load(&format!("{thread}-{index}"), fence(1, 1));
                    client.submit(request, move |result| {
                        answered.fetch_add(1, Ordering::Relaxed);
                        sender.send(result).unwrap();
                    });
                }
            });
        }
    });
    drop(sender);
    let results: Vec<_> = receiver.iter().collect();
    assert_eq!((results.len(), answered.load(Ordering::Relaxed)), (1000, 1000));
    assert!(results.iter().all(|result| *result == state(None, 0)));
}

#[test]
fn the_workers_of_the_memory_url_share_one_store() {
    let threads = StoreThreads::start("memory:", &cluster("a"), |_| {}).unwrap();
    let client = threads.client();
    let ask = |request| {
        let (sender, receiver) = channel();
        client.submit(request, move |result| sender.send(result).unwrap());
        receiver.recv().unwrap()
    };
    assert_eq!(ask(load("g", fence(1, 1))), state(None, 0));
    assert_eq!(ask(write("g", fence(1, 1), 0, Some(record("x")))), written(1));
    assert_eq!(ask(load("g", fence(1, 1))), state(Some(record("x")), 1));
    ask(write_row(0, row("one", 1, SiloStatus::Active))).unwrap();
    assert!(is_refused(&ask(write_row(1, row("two", 2, SiloStatus::Active)))));
}

#[test]
fn a_full_queue_refuses_at_once_and_accepted_requests_are_still_answered() {
    let (go, gate) = channel();
    let groups = Arc::new(Mutex::new(Vec::new()));
    let threads = StoreThreads::with_opener(gated(gate, &groups), |_| {});
    let client = threads.client();
    let (sender, receiver) = channel();
    for counter in 0..STORE_QUEUE_MAX as u64 {
        let sender = sender.clone();
        client.submit(beat(counter), move |result| sender.send(result).unwrap());
    }
    let (refused, at_once) = channel();
    client.submit(beat(0), move |result| refused.send(result).unwrap());
    assert!(is_not_sent(&at_once.try_recv().expect("before submit returns")));
    drop((go, sender));
    let results: Vec<_> = receiver.iter().collect();
    assert_eq!(results.len(), STORE_QUEUE_MAX);
    assert!(results.iter().all(|result| *result == Ok(StoreAnswer::Done)));
    let groups = groups.lock().unwrap();
    assert!(groups.len() < STORE_QUEUE_MAX / 100, "grouped: {groups:?}");
}

#[test]
fn bytes_of_state_in_the_queue_are_bounded_too() {
    let (go, gate) = channel();
    let threads = StoreThreads::with_opener(gated(gate, &Arc::default()), |_| {});
    let client = threads.client();
    let (sender, receiver) = channel();
    let large = record(vec![0; STORE_QUEUE_BYTES_MAX / 16]);
    for etag in 0..17 {
        let sender = sender.clone();
        let request = write("g", fence(1, 1), etag, Some(large.clone()));
        // Those accepted are answered after the test has looked.
        client.submit(request, move |result| drop(sender.send((etag, result))));
    }
    let (etag, result) = receiver.try_recv().expect("refused before submit returned");
    assert_eq!(etag, 16);
    assert!(is_unavailable(&result));
    drop(go);
}

#[test]
fn dropping_the_threads_answers_all_and_later_requests_are_refused() {
    let (go, gate) = channel();
    let threads = StoreThreads::with_opener(gated(gate, &Arc::default()), |_| {});
    let client = threads.client();
    let (sender, receiver) = channel();
    for counter in 0..10 {
        let sender = sender.clone();
        client.submit(beat(counter), move |result| sender.send(result).unwrap());
    }
    drop(go);
    drop(threads);
    client.submit(beat(0), move |result| sender.send(result).unwrap());
    let results: Vec<_> = receiver.iter().collect();
    assert_eq!(results.len(), 11);
    assert!(results[..10].iter().all(Result::is_ok), "what is in is run first");
    assert!(is_unavailable(&results[10]));
}

#[test]
fn a_store_that_panics_costs_its_group_an_unknown_outcome_and_is_replaced() {
    struct Panics(ClusterId);
    impl Store for Panics {
        fn cluster(&self) -> &ClusterId {
            &self.0
        }
        fn execute(&mut self, request: &StoreRequest) -> StoreResult {
            assert_ne!(*request, beat(13), "a defect in a store");
            Ok(StoreAnswer::Done)
        }
    }
    let opener: Opener = Arc::new(|| Ok(Box::new(Panics(cluster("a")))));
    let threads = StoreThreads::with_opener(opener, |_| {});
    let client = threads.client();
    let ask = |counter| {
        let (sender, receiver) = channel();
        client.submit(beat(counter), move |result| sender.send(result).unwrap());
        receiver.recv().unwrap()
    };
    assert_eq!(ask(1), Ok(StoreAnswer::Done));
    assert!(is_unavailable(&ask(13)));
    assert_eq!(ask(2), Ok(StoreAnswer::Done));
}

fn gated(gate: Receiver<()>, groups: &Arc<Mutex<Vec<usize>>>) -> Opener {
    let (gate, groups) = (Arc::new(Mutex::new(gate)), Arc::clone(groups));
    Arc::new(move || {
        let (gate, groups) = (Arc::clone(&gate), Arc::clone(&groups));
        Ok(Box::new(Gated { cluster: cluster("a"), gate, groups }))
    })
}
