//! The table of a silo, and who writes each of its partitions.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use siloring_core::limits::SHARDS_MAX;
use siloring_core::{AddressHash, ShardIndex, ViewNumber};

use super::bucket::{Bucket, Entry, FREE, Found, Losses, Put, SLOTS};
use super::model::{AtomicU64, Ordering, spin_loop};
use super::{Gone, Liveness, Owned, SetVersion};

/// Looks at a bucket whose writer is there. A write is five stores: who meets one hardly ever meets
/// another after a pause, and who does is better off with `Unknown`.
pub const TRIES: usize = 4;

/// Streams of the capacity to a bucket. Of streams that hash evenly, at the full capacity one in
/// ninety meets a full bucket; with one more to a bucket it would be one in twenty.
pub const STREAMS_PER_BUCKET: usize = 2;

/// Memory of a stream at the full capacity.
pub const BYTES_PER_STREAM: usize = size_of::<CachePadded<Bucket>>() / STREAMS_PER_BUCKET;

/// Streams of one partition at most: the bucket is chosen by 32 bits of the hash, evenly while
/// there are far fewer buckets.
pub const CAPACITY_MAX: usize = 1 << 24;

#[cfg(not(loom))]
const _: () = assert!(BYTES_PER_STREAM <= 256, "what a subscription may cost");
#[cfg(not(loom))]
const _: () = assert!(STREAMS_PER_BUCKET < SLOTS, "room for uneven hashes");

/// What a silo knows of who subscribes to what: read from any thread.
#[derive(Debug)]
pub struct CheckCache {
    shards: u16,
    buckets_per_shard: u32,
    /// Of each shard.
    heads: Box<[CachePadded<Head>]>,
    /// Those of the first shard, then those of the second.
    buckets: Box<[CachePadded<Bucket>]>,
}

/// What the entries of a partition are judged by. The view rises with each change, so it also is
/// the sequence that tells a reader of one.
#[derive(Debug, Default)]
struct Head {
    view: AtomicU64,
    losses: AtomicU64,
}

impl CheckCache {
    /// An empty table with room for `capacity_per_shard` streams a shard, and the writers of its
    /// partitions in the order of shards.
    ///
    /// # Panics
    /// If `shards` is 0 or above [`SHARDS_MAX`], or the capacity 0 or above [`CAPACITY_MAX`].
    pub fn new(shards: u16, capacity_per_shard: usize) -> (Arc<Self>, Vec<CheckWriter>) {
        assert!(shards > 0 && shards <= SHARDS_MAX, "{shards} shards");
        assert!(capacity_per_shard > 0, "no capacity");
        assert!(capacity_per_shard <= CAPACITY_MAX, "capacity of {capacity_per_shard}");
        let buckets_per_shard = capacity_per_shard.div_ceil(STREAMS_PER_BUCKET);
        let heads = (0..shards).map(|_| CachePadded::default()).collect();
        let buckets = usize::from(shards) * buckets_per_shard;
        let buckets = (0..buckets).map(|_| CachePadded::default()).collect();
        let buckets_per_shard = u32::try_from(buckets_per_shard).expect("within the capacity");
        let cache = Arc::new(Self { shards, buckets_per_shard, heads, buckets });
        let writer = |shard| CheckWriter {
            cache: Arc::clone(&cache),
            shard: ShardIndex(shard),
            view: ViewNumber::ZERO,
            losses: Losses::default(),
            evicted_count: 0,
        };
        let writers = (0..shards).map(writer).collect();
        (cache, writers)
    }

    /// Whether `stream` has a live subscriber. No call, no lock, no allocation; a bounded number of
    /// loads.
    #[inline]
    pub fn check(&self, stream: AddressHash) -> Liveness {
        let shard = ShardIndex::of(stream.0, self.shards);
        let head = &self.heads[usize::from(shard.0)];
        let bucket = self.bucket(shard, stream);
        for _ in 0..TRIES {
            if let Some(liveness) = head.judge(bucket, name(stream)) {
                return liveness;
            }
            spin_loop();
        }
        Liveness::Unknown
    }

    /// The bucket of `stream`, by the lowest 32 bits of its hash. The highest of that half are the
    /// place on the ring: of the streams that one silo owns they are alike.
    #[inline]
    fn bucket(&self, shard: ShardIndex, stream: AddressHash) -> &Bucket {
        let bits = stream.0 & u128::from(u32::MAX);
        let within = (bits * u128::from(self.buckets_per_shard)) >> 32;
        let first = usize::from(shard.0) * self.buckets_per_shard as usize;
        &self.buckets[first + within as usize]
    }
}

impl Head {
    /// What is to be said of a stream, unless somebody writes here meanwhile.
    #[inline]
    fn judge(&self, bucket: &Bucket, name: u64) -> Option<Liveness> {
        // Acquires the losses that came with the view.
        let view = self.view.load(Ordering::Acquire);
        let losses = Losses(self.losses.load(Ordering::Relaxed));
        let entry = match bucket.look(name) {
            Found::Entry(entry) => entry,
            Found::Nothing => return Some(Liveness::Unknown),
            Found::Torn => return None,
        };
        // An entry put in a later view is not this view's: the look acquired it with its view.
        if self.view.load(Ordering::Relaxed) != view {
            return None;
        }
        let (view, set) = (ViewNumber(view), entry.set);
        Some(match entry.live {
            _ if !entry.holds(losses) => Liveness::Unknown,
            0 => Liveness::None { view, set },
            live => Liveness::Live(live),
        })
    }
}

/// The name of a stream within its bucket: the half of its hash that does not choose the bucket. In
/// the one of 2^64 that would be the name of a free slot it is another.
#[inline]
fn name(stream: AddressHash) -> u64 {
    let half = (stream.0 >> 64) as u64;
    half.max(FREE + 1)
}

/// The one writer of a shard's partition. What it wrote stays when it is dropped.
#[derive(Debug)]
pub struct CheckWriter {
    cache: Arc<CheckCache>,
    shard: ShardIndex,
    view: ViewNumber,
    losses: Losses,
    evicted_count: u64,
}

impl CheckWriter {
    /// `stream` has `live` subscribers, of the set `set`, judged in the view that was told last. An
    /// older set than the one known is ignored. A full bucket forgets another stream for it.
    ///
    /// # Panics
    /// If the stream is another shard's.
    pub fn put(&mut self, stream: AddressHash, live: u32, owned: Owned, set: SetVersion) {
        let losses = self.losses;
        let entry = Entry { live, owned, losses, set };
        match self.bucket(stream).put(name(stream), entry, losses) {
            Put::Written | Put::Older => {}
            Put::Evicted => self.evicted_count += 1,
        }
    }

    /// Nothing is known of `stream` any more, nor of what set was.
    ///
    /// # Panics
    /// If the stream is another shard's.
    pub fn forget(&mut self, stream: AddressHash) {
        self.bucket(stream).forget(name(stream));
    }

    /// Nothing is known of any stream any more.
    pub fn forget_all(&mut self) {
        let count = self.cache.buckets_per_shard as usize;
        let first = usize::from(self.shard.0) * count;
        self.cache.buckets[first..first + count].iter().for_each(|bucket| bucket.forget_all());
    }

    /// What is told from now on is judged in `view`. If somebody is gone in it, each entry with
    /// owned rows is forgotten; entries of no owner stay.
    ///
    /// # Panics
    /// If the view is older than the last.
    pub fn view(&mut self, view: ViewNumber, gone: Gone) {
        assert!(self.view <= view, "views rise: {view} after {}", self.view);
        let head = &self.cache.heads[usize::from(self.shard.0)];
        match gone {
            Gone::Nobody => {}
            Gone::Somebody => {
                self.losses = self.losses.next();
                head.losses.store(self.losses.0, Ordering::Relaxed);
            }
        }
        self.view = view;
        // Releases the losses, so that no entry of before is judged in this view.
        head.view.store(view.0, Ordering::Release);
    }

    /// Entries that held and had to go for another stream's since the start. If it keeps rising,
    /// the capacity is too small for the streams that this silo publishes to.
    pub const fn evicted_count(&self) -> u64 {
        self.evicted_count
    }

    fn bucket(&self, stream: AddressHash) -> &Bucket {
        let shard = ShardIndex::of(stream.0, self.cache.shards);
        assert_eq!(shard, self.shard, "the stream is another shard's");
        self.cache.bucket(shard, stream)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const VIEW: ViewNumber = ViewNumber(5);

    /// A stream of the name `name` that falls into the bucket of `bits`.
    fn stream(name: u64, bits: u32) -> AddressHash {
        AddressHash(u128::from(name) << 64 | u128::from(bits))
    }

    fn one_shard(capacity: usize) -> (Arc<CheckCache>, CheckWriter) {
        let (cache, mut writers) = CheckCache::new(1, capacity);
        let mut writer = writers.pop().expect("there is one shard");
        writer.view(VIEW, Gone::Nobody);
        (cache, writer)
    }

    #[test]
    fn what_was_put_is_answered_and_the_rest_is_unknown() {
        let (cache, mut writer) = one_shard(100);
        let [full, empty, other] = [1, 2, 3].map(|name| stream(name, 7));
        writer.put(full, 3, Owned::Yes, SetVersion(1));
        writer.put(empty, 0, Owned::No, SetVersion(2));
        assert_eq!(cache.check(full), Liveness::Live(3));
        assert_eq!(cache.check(empty), Liveness::None { view: VIEW, set: SetVersion(2) });
        assert_eq!(cache.check(other), Liveness::Unknown);
        writer.forget(full);
        assert_eq!(cache.check(full), Liveness::Unknown);
    }

    #[test]
    fn a_free_slot_is_nobodys() {
        let (cache, mut writer) = one_shard(1);
        assert_eq!(cache.check(AddressHash::NONE), Liveness::Unknown);
        writer.put(AddressHash::NONE, 1, Owned::No, SetVersion(1));
        assert_eq!(cache.check(AddressHash::NONE), Liveness::Live(1));
    }

    #[test]
    fn an_older_set_is_ignored_and_the_same_set_counted_anew() {
        let (cache, mut writer) = one_shard(100);
        writer.put(stream(1, 1), 3, Owned::No, SetVersion(9));
        writer.put(stream(1, 1), 0, Owned::No, SetVersion(8));
        assert_eq!(cache.check(stream(1, 1)), Liveness::Live(3));
        writer.put(stream(1, 1), 2, Owned::No, SetVersion(9));
        assert_eq!(cache.check(stream(1, 1)), Liveness::Live(2));
    }

    #[test]
    fn a_view_in_which_somebody_is_gone_ends_what_is_owned() {
        let (cache, mut writer) = one_shard(100);
        let [owned, empty] = [1, 2].map(|name| stream(name, 1));
        writer.put(owned, 1, Owned::Yes, SetVersion(1));
        writer.put(empty, 0, Owned::No, SetVersion(2));
        writer.view(ViewNumber(6), Gone::Nobody);
        assert_eq!(cache.check(owned), Liveness::Live(1));
        writer.view(ViewNumber(7), Gone::Somebody);
        assert_eq!(cache.check(owned), Liveness::Unknown);
        let (view, set) = (ViewNumber(7), SetVersion(2));
        assert_eq!(cache.check(empty), Liveness::None { view, set });
        writer.put(owned, 0, Owned::Yes, SetVersion(1));
        let set = SetVersion(1);
        assert_eq!(cache.check(owned), Liveness::None { view, set });
    }

    #[test]
    #[should_panic(expected = "views rise")]
    fn a_view_never_goes_back() {
        one_shard(1).1.view(ViewNumber(4), Gone::Nobody);
    }

    #[test]
    fn each_shard_writes_its_own_streams() {
        let (cache, mut writers) = CheckCache::new(3, 10);
        for (name, writer) in (0..).zip(&mut writers) {
            writer.put(
                stream(name, 0),
                10 + u32::try_from(name).unwrap(),
                Owned::No,
                SetVersion(1),
            );
        }
        let answers = [0, 1, 2].map(|name| cache.check(stream(name, 0)));
        assert_eq!(answers, [10, 11, 12].map(Liveness::Live));
    }

    #[test]
    #[should_panic(expected = "another shard's")]
    fn nobody_writes_the_streams_of_another_shard() {
        let (_, mut writers) = CheckCache::new(2, 10);
        writers[0].put(stream(1, 0), 1, Owned::No, SetVersion(1));
    }

    /// Method: as many streams as the capacity, first of all hashes, then of those that lie within
    /// a millionth of the ring, as the streams that a silo owns lie in parts of it.
    #[test]
    fn a_full_table_answers_nearly_all() {
        const CAPACITY: u64 = 20_000;
        for mask in [u64::MAX, u64::MAX >> 20] {
            let (cache, mut writer) = one_shard(usize::try_from(CAPACITY).unwrap());
            let mut random = fastrand::Rng::with_seed(11);
            let mut draw = || {
                AddressHash(u128::from(random.u64(..)) << 64 | u128::from(random.u64(..) & mask))
            };
            let streams: Vec<_> = (0..CAPACITY).map(|_| draw()).collect();
            for (set, stream) in (0..).zip(&streams) {
                writer.put(*stream, 1, Owned::No, SetVersion(set));
            }
            let unknown =
                streams.iter().filter(|stream| cache.check(**stream) == Liveness::Unknown);
            let unknown_count = u64::try_from(unknown.count()).unwrap();
            assert_eq!(unknown_count, writer.evicted_count());
            assert!(unknown_count * 80 < CAPACITY, "{unknown_count} unknown");
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Put { stream: u64, live: u32, owned: Owned, set: u64 },
        Forget { stream: u64 },
        View(Gone),
    }

    fn step() -> impl Strategy<Value = Step> {
        let stream = 1..6_u64;
        let owned = prop_oneof![Just(Owned::Yes), Just(Owned::No)];
        let put = (stream.clone(), 0..3_u32, owned, 0..6_u64);
        prop_oneof![
            6 => put.prop_map(|(stream, live, owned, set)| Step::Put { stream, live, owned, set }),
            1 => stream.prop_map(|stream| Step::Forget { stream }),
            1 => Just(Step::View(Gone::Nobody)),
            1 => Just(Step::View(Gone::Somebody)),
        ]
    }

    /// What a stream's answer is made of: the count if it holds, who owns, the set.
    type Known = (Option<u32>, Owned, u64);

    fn apply(known: &mut BTreeMap<u64, Known>, step: Step) {
        match step {
            Step::Put { stream, live, owned, set } => {
                if known.get(&stream).is_none_or(|(_, _, known)| *known <= set) {
                    known.insert(stream, (Some(live), owned, set));
                }
            }
            Step::Forget { stream } => _ = known.remove(&stream),
            Step::View(Gone::Nobody) => {}
            Step::View(Gone::Somebody) => {
                let owned = known.values_mut().filter(|(_, owned, _)| *owned == Owned::Yes);
                owned.for_each(|(live, _, _)| *live = None);
            }
        }
    }

    proptest! {
        /// Method: five streams in the one bucket of a table, beside a map of what was put last.
        #[test]
        fn a_bucket_answers_as_a_map_would(steps in prop::collection::vec(step(), 0..60)) {
            let (cache, mut writer) = one_shard(1);
            let (mut known, mut view) = (BTreeMap::new(), VIEW);
            for step in steps {
                apply(&mut known, step);
                match step {
                    Step::Put { stream: name, live, owned, set } => {
                        writer.put(stream(name, 0), live, owned, SetVersion(set));
                    }
                    Step::Forget { stream: name } => writer.forget(stream(name, 0)),
                    Step::View(gone) => {
                        view.0 += 1;
                        writer.view(view, gone);
                    }
                }
                for name in 1..6 {
                    let expected = match known.get(&name) {
                        None | Some((None, _, _)) => Liveness::Unknown,
                        Some((Some(0), _, set)) => Liveness::None { view, set: SetVersion(*set) },
                        Some((Some(live), _, _)) => Liveness::Live(*live),
                    };
                    prop_assert_eq!(cache.check(stream(name, 0)), expected, "stream {}", name);
                }
            }
        }
    }
}

/// How to run these: see those of the buckets.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::check::model::explore;

    const STREAM: AddressHash = AddressHash(1);
    const TWO: (ViewNumber, Gone) = (ViewNumber(2), Gone::Somebody);

    /// A table of one bucket, in view 1.
    fn table() -> (Arc<CheckCache>, CheckWriter) {
        let (cache, mut writers) = CheckCache::new(1, 1);
        let mut writer = writers.pop().unwrap();
        writer.view(ViewNumber(1), Gone::Nobody);
        writer.put(STREAM, 0, Owned::Yes, SetVersion(1));
        (cache, writer)
    }

    #[test]
    fn a_view_and_a_put_are_never_answered_for_one_another() {
        explore(|| {
            let (cache, mut writer) = table();
            let thread = loom::thread::spawn(move || {
                writer.view(TWO.0, TWO.1);
                writer.put(STREAM, 0, Owned::Yes, SetVersion(2));
            });
            match cache.check(STREAM) {
                Liveness::Live(live) => panic!("{live} live"),
                Liveness::None { view, set } => assert_eq!(view.0, set.0, "of another view"),
                Liveness::Unknown => {}
            }
            thread.join().unwrap();
            let (view, set) = (ViewNumber(2), SetVersion(2));
            assert_eq!(cache.check(STREAM), Liveness::None { view, set });
        });
    }

    #[test]
    fn who_knows_of_a_view_gets_nothing_that_it_ended() {
        explore(|| {
            let (cache, mut writer) = table();
            let told = Arc::new(AtomicU64::new(0));
            let telling = Arc::clone(&told);
            let thread = loom::thread::spawn(move || {
                writer.view(TWO.0, TWO.1);
                telling.store(TWO.0.0, Ordering::Release);
            });
            if told.load(Ordering::Acquire) == TWO.0.0 {
                assert_eq!(cache.check(STREAM), Liveness::Unknown);
            }
            thread.join().unwrap();
        });
    }

    #[test]
    fn a_reader_ends_though_the_writer_does_not() {
        explore(|| {
            let (cache, _writer) = table();
            cache.bucket(ShardIndex(0), STREAM).stop_in_a_write();
            assert_eq!(cache.check(STREAM), Liveness::Unknown);
        });
    }
}
