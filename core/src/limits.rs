//! Every bound and every period, each with its reason, and the relations between them.
//!
//! A queue, map, retry or loop anywhere in the workspace takes its bound from here. A relation that
//! some argument of the design rests on is asserted at compile time at the end of the file.

use core::time::Duration;

// ---- names and addresses

/// Longest cluster id or silo name: fits a label in every monitoring system.
pub const NAME_BYTES_MAX: usize = 63;
/// Longest address, host part included: one dictionary frame carries it whole.
pub const ADDRESS_BYTES_MAX: usize = 512;
/// Longest text of a failure: enough for a cause, bounded so that a failure always fits a frame.
pub const FAILURE_DETAIL_BYTES_MAX: usize = 512;
/// Shards of one silo: more than the cores of any machine this was run on.
pub const SHARDS_MAX: u16 = 512;

// ---- frames and links

/// Header of every frame.
pub const HEADER_BYTES: usize = 64;
/// Frames are padded to this, so that every body is aligned in place.
pub const FRAME_ALIGN: usize = 16;
/// Largest frame, header and padding included. Larger deliveries are refused where they are sent.
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Largest body and extensions together.
pub const BODY_BYTES_MAX: usize = FRAME_BYTES_MAX - HEADER_BYTES - FRAME_ALIGN;
/// Largest frame before the handshake is done: an unknown peer may cost this much memory.
pub const HANDSHAKE_FRAME_BYTES_MAX: usize = 64 * 1024;
/// Bytes queued on one link before new requests on it are `Overloaded`.
pub const LINK_BACKLOG_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;
/// Bytes of one link's backlog kept free for replies and failures, which are never refused for
/// load.
pub const LINK_REPLY_RESERVE_BYTES: usize = 2 * FRAME_BYTES_MAX;
/// Bytes read from one link in one go: large enough to amortise the system call over many frames.
pub const READ_CHUNK_BYTES: usize = 256 * 1024;
/// Address strings that one link remembers in one direction; at the bound both sides start anew.
pub const LINK_DICTIONARY_MAX: usize = 64 * 1024;
/// A handshake not done by then is closed.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(3);
/// Handshakes under way that others dialled, at one silo: bounds what a connect flood costs. A
/// newcomer beyond it takes the place of another one.
pub const HANDSHAKES_PENDING_MAX: usize = 64;
/// Of which from one address, so that as many are left to all others. A host that dials with more
/// shards at once than this does so in waves: who is told `Busy` dials again.
pub const HANDSHAKES_PER_SOURCE_MAX: usize = HANDSHAKES_PENDING_MAX / 2;
/// Connections accepted in one look at a listener: whoever spoke is read before the next look.
pub const ACCEPTS_PER_LOOK_MAX: usize = 16;
/// No accepting for this long after descriptors ran out.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A dial not connected by then has failed: a one-way drop would hang it for minutes.
pub const DIAL_TIME_MAX: Duration = Duration::from_secs(2);
/// First wait after a failed dial; doubled up to [`DIAL_BACKOFF_MAX`].
pub const DIAL_BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Longest wait between dials.
pub const DIAL_BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Unacknowledged bytes older than this break a TCP link (`TCP_USER_TIMEOUT`).
pub const LINK_SILENCE_MAX: Duration = Duration::from_secs(5);
/// Hosted types listed in a handshake, each version of one for itself.
pub const HOSTED_TYPES_MAX: usize = 1024;
/// Longest host identity in a handshake: a boot id and a namespace number, with room.
pub const HOST_BYTES_MAX: usize = 128;
/// Shortest cluster secret: whoever records a handshake can try short ones out offline.
pub const SECRET_BYTES_MIN: usize = 16;
/// Cluster secrets of one silo: the one that signs, and those that a roll is leaving or going to.
pub const SECRETS_MAX: usize = 8;
/// An emptied send buffer gives back what it holds beyond this: one burst must not stay resident,
/// and the traffic of a busy link must not allocate.
pub const LINK_BUFFER_KEEP_BYTES: usize = 1024 * 1024;
/// A silent TCP link is probed after this long…
pub const LINK_KEEP_ALIVE_AFTER: Duration = Duration::from_secs(2);
/// …and then this often, until [`LINK_SILENCE_MAX`] breaks it.
pub const LINK_KEEP_ALIVE_PERIOD: Duration = Duration::from_secs(1);
/// What still waits on a link that is closed for the peer's fault is written before the reason only
/// if it is at most this much: what the kernel takes in one go.
pub const LINK_LAST_BYTES_MAX: usize = 64 * 1024;
/// Plaintext that one TLS link seals at a time: a busy shard's batch in one write. What is sealed
/// can no longer be taken back.
pub const TLS_SEAL_BYTES_MAX: usize = 256 * 1024;
/// Plaintext of one TLS record: the protocol's own bound. Fewer, larger records cost less.
pub const TLS_RECORD_BYTES_MAX: usize = 16 * 1024;
/// What a record may be longer than its plaintext: the protocol's own bound.
pub const TLS_RECORD_OVERHEAD_BYTES: usize = 5 + 256;
/// A silo's certificate with those between it and its CA: each handshake carries them, and a peer
/// that is not known yet may make us hold as many bytes as a handshake frame has.
pub const TLS_CHAIN_BYTES_MAX: usize = 16 * 1024;
/// A file of certificates or of a key: some hundred CA certificates.
pub const TLS_FILE_BYTES_MAX: u64 = 1024 * 1024;
/// How often the certificate files are looked at for a change: three calls to the file system.
pub const TLS_LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Bytes of a peer that come on a shard's links are told to the failure detector this often at
/// most, for each link: twice within a probe's period.
pub const HEARD_PERIOD: Duration = Duration::from_millis(250);
/// Connections that wait to be accepted.
pub const LISTEN_BACKLOG: i32 = 1024;

// ---- deliveries

/// Deadline of a request that names none; carried in the handshake, so that such requests need no
/// extension.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(30);
/// Longest deadline that a request may name.
pub const DEADLINE_MAX: Duration = Duration::from_hours(24);
/// The ledger looks at deadlines this often: an outcome comes at the latest one tick after its
/// deadline.
pub const LEDGER_TICK: Duration = Duration::from_millis(10);
/// Open deliveries of one shard: beyond it a new one is `Overloaded`.
pub const OPEN_DELIVERIES_MAX: usize = 256 * 1024;
/// Turns and spawned futures of one shard that are under way: beyond it nothing more is spawned. As
/// many as there are open deliveries, each awaited by a future of its own, and as many turns.
pub const SPAWNED_MAX: usize = 512 * 1024;
/// Futures spawned by one activation that have not ended; they are looked through when one ends.
pub const SPAWNED_PER_ACTIVATION_MAX: usize = 1024;
/// Free parcels that one thread keeps: as many as a busy shard has calls under way.
pub const PARCELS_POOLED_MAX: usize = 4 * 1024;
/// Lists of turns that one shard keeps for activations that begin some: as many as a busy shard has
/// under way.
pub const TURN_LISTS_POOLED_MAX: usize = 4 * 1024;
/// Open calls of one activation: a turn that fans out further hears `Overloaded`.
pub const OPEN_CALLS_PER_ACTIVATION_MAX: usize = 32 * 1024;
/// Requests that one shard keeps while the right to serve is out, for when it is back. What comes
/// from links is not read then, but mail of the silo's own threads is: a mailbox full of it fits.
pub const HELD_REQUESTS_MAX: usize = MAILBOX_MAX;
/// Requests waiting for one activation.
pub const ACTIVATION_QUEUE_MAX: usize = 8 * 1024;
/// Bytes waiting for one activation.
pub const ACTIVATION_QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Deliveries waiting for one hub.
pub const HUB_QUEUE_MAX: usize = 8 * 1024;
/// Activations of one shard.
pub const ACTIVATIONS_MAX: usize = 4 * 1024 * 1024;
/// Messages queued for one thread of a silo. Preallocated: it is most of an idle silo's memory.
pub const MAILBOX_MAX: usize = 16 * 1024;
/// Attempts that the router makes on transient refusals.
pub const ROUTER_ATTEMPTS_MAX: u32 = 7;
/// Wait after the first transient refusal; each next is [`RETRY_BACKOFF_FACTOR`] times as long:
/// seven attempts take about ten seconds.
pub const RETRY_BACKOFF_MIN: Duration = Duration::from_millis(50);
/// See [`RETRY_BACKOFF_MIN`].
pub const RETRY_BACKOFF_FACTOR: u32 = 3;
/// Longest wait between attempts.
pub const RETRY_BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Redirections that one delivery may follow, as in Orleans.
pub const FORWARDS_MAX: u8 = 2;
/// Ancestors that a call chain carries: longer chains are not checked for deadlock.
pub const CHAIN_MAX: usize = 32;
/// Header pairs in an envelope.
pub const HEADERS_MAX: usize = 64;
/// Bytes of identity and headers in an envelope.
pub const EXTENSION_BYTES_MAX: usize = 16 * 1024;
/// Longest key of a subscription: its length fits a byte of an event's extension.
pub const SUBSCRIPTION_KEY_BYTES_MAX: usize = 255;
/// Numbers of one origin that a consumer's activation or hub remembers, below the newest that it
/// has handled: a stream's owner has fewer under way for one subscription.
pub const EVENT_WINDOW: usize = 1024;
/// Windows of one activation or hub, one for each subscription and origin; the least recently used
/// one makes room. Each takes about 200 bytes.
pub const EVENT_WINDOWS_MAX: usize = 256;
/// Answers to events that one activation or hub remembers, where they are more than confirmations:
/// an owner that was lost had one under way for each subscription, and publishers that had not
/// heard theirs come within the seconds of their deadlines.
pub const EVENT_ANSWERS_MAX: usize = 256;
/// Bytes of these answers.
pub const EVENT_ANSWERS_BYTES_MAX: usize = 1024 * 1024;
/// Idempotency keys that one activation or hub remembers, with their outcomes: what a caller sends
/// again comes within the seconds of its deadline.
pub const IDEMPOTENCY_KEYS_MAX: usize = 1024;
/// Bytes of the outcomes that one activation or hub remembers by key.
pub const IDEMPOTENCY_BYTES_MAX: usize = 1024 * 1024;
/// Duplicates of one request that wait for its outcome; a further one is `Overloaded`.
pub const DUPLICATES_WAITING_MAX: usize = 16;
/// Outbound of a hub waits this long for its own claim, then it is sent, with an event.
pub const HUB_OUTBOUND_GATE_MAX: Duration = Duration::from_secs(2);

// ---- logs

/// What repeats (terminal failures to one target, handshakes with one peer that fail for one
/// reason) is logged once in this window.
pub const LOG_WINDOW: Duration = Duration::from_mins(1);
/// Targets, or peers and reasons, that one log remembers for it.
pub const LOG_WINDOW_KEYS_MAX: usize = 1024;

// ---- turns

/// Steps that a shard takes before it looks at its links again, and held requests that it accepts.
pub const TURNS_PER_LOOP_MAX: usize = 256;
/// A shard looks at its links, and writes what it has for them, after this long: nobody waits for
/// the rest of a burst, and the writes are still few.
pub const LOOP_TIME_MAX: Duration = Duration::from_millis(1);
/// A shard reads the time after work that usually takes this long: late by no more than a fraction
/// of what it judges by it.
pub const LOOK_AFTER_WORK: Duration = Duration::from_micros(60);
/// Requests or mail taken before the time is read again: a thousandth of a microsecond for each.
pub const TURNS_PER_LOOK_MAX: usize = 32;
/// What comes to a shard may wait this long for it, unless it is told otherwise: the published
/// value, and more than at a load that the shard can serve.
pub const OVERLOAD_DELAY: Duration = Duration::from_millis(5);
/// The least that it may be told: a wait that is shorter than two loops is none.
pub const OVERLOAD_DELAY_MIN: Duration = Duration::from_millis(2);
/// Slow turns stretch that up to this: beyond it nobody calls a shard responsive.
pub const OVERLOAD_DELAY_MAX: Duration = Duration::from_secs(1);
/// What comes has waited too long for this long before any of it is refused: the published value,
/// and longer than most bursts take to be worked off.
pub const OVERLOAD_INTERVAL: Duration = Duration::from_millis(100);
/// Turns that one activation begins before others are served: a step of a shard.
pub const TURNS_PER_STEP_MAX: usize = 32;
/// Turns that begin inside the turn that called them: bounds the stack.
pub const INLINE_TURNS_MAX: u32 = 8;
/// An activation without a message for this long is collected.
pub const ACTIVATION_IDLE_MAX: Duration = Duration::from_mins(15);
/// A shard that makes no progress for this long is reported, with its grain.
pub const STALL_REPORT_AFTER: Duration = Duration::from_secs(2);
/// A shard that makes no progress for this long ends the process.
pub const STALL_ABORT_AFTER: Duration = Duration::from_secs(30);

// ---- threads

/// A shard that has had no input for this long slows its tick…
pub const SHARD_IDLE_AFTER: Duration = Duration::from_secs(1);
/// …to this: twenty wakes a second cost a thousandth of a core.
pub const SHARD_IDLE_TICK: Duration = Duration::from_millis(50);
/// Longest spin of a shard that waits for input: longer ones cost more than they win (measured).
pub const SHARD_SPIN_MAX: Duration = Duration::from_micros(100);
/// Between two looks of the control thread at the shards' progress.
pub const PROGRESS_PERIOD: Duration = Duration::from_millis(250);
/// Mail that a thread takes before it looks at its sockets again.
pub const MAIL_PER_LOOP_MAX: usize = 1024;
/// Links that a spinning shard reads one by one; beyond it, it asks the kernel which have input.
pub const HOT_LINKS_MAX: usize = 4;
/// An accepted link is not read while so many bytes of replies wait to be written to it.
pub const LINK_READ_PAUSE_BYTES: usize = 4 * 1024 * 1024;
/// Store requests that one thread has open: beyond it they are `NotSent` at once.
pub const STORE_OPEN_MAX: usize = 4 * 1024;
/// What is left to be written to links when a shard stops may take this long.
pub const LINK_LINGER_MAX: Duration = Duration::from_secs(1);

// ---- membership

/// Between two probes of one silo.
pub const PROBE_PERIOD: Duration = Duration::from_millis(500);
/// Probes missed in a row before a vote; the last is an indirect one.
pub const PROBE_MISSES: u32 = 4;
/// Silos that one silo probes.
pub const PROBE_TARGETS_MAX: usize = 10;
/// Votes that make a silo Dead, or all eligible accusers if they are fewer.
pub const VOTES_NEEDED: usize = 2;
/// Self-health stretches the time-outs of a slow silo up to this many times (Lifeguard).
pub const SELF_HEALTH_MAX: u32 = 8;
/// Between two writes of the heartbeat counter.
pub const HEARTBEAT_PERIOD: Duration = Duration::from_secs(5);
/// A vote is fresh while its author's counter is at most this far ahead of the vote's.
pub const VOTE_AGE_MAX_HEARTBEATS: u64 = 4;
/// Between two reads of the table when no gossip asks for one.
pub const TABLE_READ_PERIOD: Duration = Duration::from_secs(5);
/// A joiner evicts the rows of silos that neither beat for this long nor answer.
pub const JOIN_STALE_AFTER: Duration = Duration::from_secs(20);
/// A join not done by then has failed.
pub const JOIN_TIME_MAX: Duration = Duration::from_mins(1);
/// The right to serve lasts this long after its last renewal (the design's F).
pub const LEASE: Duration = Duration::from_millis(1500);
/// Between two renewals of the lease from the store while no peer renews it.
pub const LEASE_RENEW_PERIOD: Duration = Duration::from_millis(500);
/// Rows of dead silos are removed when this old…
pub const DEAD_ROW_AGE_MAX: Duration = Duration::from_hours(1);
/// …or when there are more than this many.
pub const DEAD_ROWS_MAX: usize = 64;
/// Silos of one cluster, dead rows aside.
pub const SILOS_MAX: usize = 1024;
/// Between two reads of the table while a silo is suspected: votes of others show within this.
pub const SUSPECT_READ_PERIOD: Duration = Duration::from_secs(1);
/// Least time between two reads that gossip asks for: a flood of hints costs the store no more.
pub const TABLE_READ_SPACING: Duration = Duration::from_millis(50);
/// A silo that hears less than half of those it probes may itself be the one that is cut off: it
/// waits this many times as long before it votes, so that the side with more silos votes first.
pub const ISOLATED_FACTOR: u32 = 2;
/// Heartbeat periods without a beat after which a silo's vote is neither needed nor counted.
pub const ELIGIBLE_HEARTBEATS: u32 = 3;
/// Third silos that one indirect probe goes through: one of them may itself be cut off.
pub const INDIRECT_THIRDS_MAX: usize = 2;
/// Probes that one silo sends for others at a time.
pub const RELAYS_MAX: usize = 64;
/// Dials of joiners' addresses that one silo makes at a time.
pub const INQUIRIES_MAX: usize = 64;
/// Longest random wait before a lost compare-and-set is tried again.
pub const CONFLICT_BACKOFF_MAX: Duration = Duration::from_millis(64);
/// Between two looks of a joiner at the table while it waits for others.
pub const JOIN_READ_PERIOD: Duration = Duration::from_millis(500);
/// A silo that died more than [`JOIN_LOOP_DEATHS_MAX`] times in this many versions is in a crash
/// loop…
pub const JOIN_LOOP_VERSIONS: u64 = 24;
/// …and waits before it joins again, so that it does not churn the view of all others.
pub const JOIN_LOOP_DEATHS_MAX: u32 = 3;
/// First such wait; doubled with each further death up to [`JOIN_LOOP_WAIT_MAX`].
pub const JOIN_LOOP_WAIT_MIN: Duration = Duration::from_secs(1);
/// Longest such wait.
pub const JOIN_LOOP_WAIT_MAX: Duration = Duration::from_secs(8);

// ---- directory

/// Points of each silo on the ring.
pub const RING_POINTS: u32 = 30;
/// Bytes of one piece of a hand-over.
pub const HANDOVER_PIECE_BYTES_MAX: usize = 1024 * 1024;
/// A recovery answer not in by then is asked for through a third silo.
pub const RECOVERY_RELAY_AFTER: Duration = Duration::from_secs(2);
/// A recovery answer not in by then brings a vote against the silent silo.
pub const RECOVERY_ACCUSE_AFTER: Duration = Duration::from_secs(10);
/// A directory request without an answer is sent again after this long: the control lane may have
/// broken.
pub const DIRECTORY_RESEND_AFTER: Duration = Duration::from_millis(500);
/// Directory messages that wait for the control lane to one silo.
pub const DIRECTORY_WAITING_MAX: usize = 4 * 1024;
/// Cached places of one shard.
pub const PLACE_CACHE_MAX: usize = 256 * 1024;
/// A hub's claim is re-asserted at least this often.
pub const CLAIM_LEASE: Duration = Duration::from_secs(30);
/// A released address is remembered this long.
pub const TOMBSTONE_TIME: Duration = Duration::from_mins(10);
/// Tombstones of one range owner.
pub const TOMBSTONES_MAX: usize = 64 * 1024;
/// Requests that one range owner keeps until it has the asker's view or the range; beyond it askers
/// ask again by their timers.
pub const DIRECTORY_PARKED_MAX: usize = 64 * 1024;
/// Superseded homes that a range owner reminds until they confirm: more than hubs of one silo are
/// ever taken over at once.
pub const EVICTIONS_MAX: usize = 16 * 1024;
/// Entries looked at in one go for homes on a silo that left: about a tenth of a millisecond.
pub const DIRECTORY_SWEEP_MAX: usize = 4 * 1024;
/// Between two such goes: a million entries take a quarter of a second.
pub const DIRECTORY_SWEEP_PERIOD: Duration = Duration::from_millis(1);
/// After a change of owners, registrations are asserted with the new ones this much later: by then
/// most ranges have moved.
pub const ASSERT_DELAY: Duration = Duration::from_secs(1);
/// Registrations looked at in one go for asserting: one message per owner, well below a piece.
pub const ASSERT_ITEMS_MAX: usize = 1024;
/// Between two such goes, so that they do not crowd out traffic.
pub const ASSERT_PERIOD: Duration = Duration::from_millis(10);
/// Held claims whose range has a new owner are asserted within this time per Active silo…
pub const CLAIM_JITTER_PER_SILO: Duration = Duration::from_millis(10);
/// …at most within this: a lost claim is back before a caller's retries end.
pub const CLAIM_JITTER_MAX: Duration = Duration::from_secs(1);
/// A claim sent so often without an answer is reported, and again each time that number doubles.
pub const CLAIM_TRIES_QUIET: u32 = 8;

// ---- streams

/// An event's body: what is left of a frame for the rest of its batch's header and consumers.
pub const EVENT_BYTES_MAX: usize = BODY_BYTES_MAX / 4;
/// Events of one stream that are not closed.
pub const QUEUE_EVENTS_MAX: usize = 16 * 1024;
/// Bytes of them.
pub const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Events before one consumer: beyond it the stream's policy decides.
pub const CONSUMER_BACKLOG_MAX: u64 = 8 * 1024;
/// Events that one frame takes to a silo: enough to share its cost, few enough to be handled in
/// milliseconds.
pub const BATCH_EVENTS_MAX: usize = 256;
/// Bytes of them; one event alone may exceed it.
pub const BATCH_BYTES_MAX: usize = BODY_BYTES_MAX / 4;
/// How often an event is handed to a consumer that may have run it, before it is a dead letter.
pub const EVENT_ATTEMPTS_MAX: u8 = 5;
/// Closed events that a stream keeps for who begins at an earlier one.
pub const RETAINED_EVENTS: usize = 256;
/// Bytes of them.
pub const RETAINED_BYTES: usize = 256 * 1024;
/// Publishers, each one silo's one shard, that a stream tells apart.
pub const LANES_MAX: usize = 4 * 1024;
/// Events of a publisher that wait for an earlier one of it, and outcomes kept for it.
pub const LANE_HELD_MAX: usize = 16 * 1024;
/// How long they wait: an earlier one that is sent again and again is there by then.
pub const LANE_HOLD_MAX: Duration = Duration::from_secs(10);
/// After so long they are asked for anew, as the earlier one may have its outcome since: longer
/// than the first wait before an event is sent again, so that this is seldom.
pub const LANE_ASK_AFTER: Duration = Duration::from_millis(100);
/// First wait before an event is handed out again.
pub const REDELIVERY_BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Longest such wait.
pub const REDELIVERY_BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Failed consumers that a publisher is told by name; the others are counted.
pub const PUBLISH_FAILURES_MAX: usize = 16;
/// Bytes that the open publishes of one shard keep.
pub const PUBLISH_WINDOW_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Open publishes of one shard to one stream.
pub const PUBLISHES_OPEN_MAX: usize = 16 * 1024;
/// How long consumers of a frame that are done wait for the others: longer than a turn that waits
/// for nothing, shorter than anybody notices.
pub const FRAME_PATIENCE: Duration = Duration::from_millis(10);
/// How long the owner of a stream waits for what is under way when its silo leaves: far longer than
/// a turn that waits for nothing, and far shorter than turns may take.
pub const OWNER_LEAVES_AFTER: Duration = Duration::from_secs(1);
/// Subscriptions of one stream.
pub const SUBSCRIPTIONS_MAX: usize = 64 * 1024;
/// Silos that a stream's owner tells of changes of its set.
pub const STREAM_WATCHERS_MAX: usize = SILOS_MAX;
/// Writes of a subscription, or of a dead letter, that are tried while others change it.
pub const REGISTRY_TRIES_MAX: u32 = 5;
/// Between two readings of the registry that are to tell what became of a write.
pub const REGISTRY_READ_AGAIN: Duration = Duration::from_millis(250);
/// Streams that one shard's part of the subscriber check holds, unless it is told otherwise: a
/// megabyte.
pub const CHECK_ENTRIES: usize = 16 * 1024;
/// From the first word of a changed row to the reading of them: many changes cost one.
pub const REFRESH_DELAY: Duration = Duration::from_millis(500);
/// Between two tries of a sweep while the registry does not answer.
pub const SWEEP_RETRY_AFTER: Duration = Duration::from_secs(5);

// ---- store

/// Requests queued for the store's threads.
pub const STORE_QUEUE_MAX: usize = 16 * 1024;
/// Requests that one transaction takes.
pub const STORE_GROUP_MAX: usize = 1024;
/// One statement.
pub const STORE_STATEMENT_TIME_MAX: Duration = Duration::from_secs(5);
/// One request, queueing included.
pub const STORE_REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// First wait before reconnecting.
pub const STORE_RECONNECT_MIN: Duration = Duration::from_millis(100);
/// Longest wait before reconnecting.
pub const STORE_RECONNECT_MAX: Duration = Duration::from_secs(2);
/// A connection attempt to the store's server.
pub const STORE_CONNECT_TIME_MAX: Duration = Duration::from_secs(3);
/// Waiting for a lock inside one statement: a silo that is stopped while it holds one must not stop
/// the others for a whole statement.
pub const STORE_LOCK_TIME_MAX: Duration = Duration::from_secs(2);
/// A store's thread that has not come back by then is given up, with its connection: a server that
/// accepts and says nothing ends no read by itself.
pub const STORE_HANG_AFTER: Duration = Duration::from_secs(8);
/// Threads of one lane that were given up and have not ended yet.
pub const STORE_RETIRED_MAX: usize = 4;
/// Bytes of state that one transaction takes; one record alone may exceed it.
pub const STORE_GROUP_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of state queued for the store's threads: room for several of the largest records.
pub const STORE_QUEUE_BYTES_MAX: usize = 16 * BODY_BYTES_MAX;
/// Settings that silos of a cluster must agree on.
pub const SETTINGS_MAX: usize = 64;
/// Name and value of one setting; the longest is the table of hub kinds.
pub const SETTING_BYTES_MAX: usize = 64 * 1024;
/// Filter of a subscription: it is judged for each event, so a longer one belongs in the consumer.
pub const SUBSCRIPTION_FILTER_BYTES_MAX: usize = 4 * 1024;
/// Subscriptions or dead letters in one answer to a list: a few megabytes of rows at most.
pub const REGISTRY_PAGE_MAX: u32 = 1024;
/// Owners whose subscriptions one sweep removes: a whole cluster that was killed at once.
pub const SWEEP_OWNERS_MAX: usize = SILOS_MAX;
/// Between two looks at the newest version of the registry: word of a change that was lost is made
/// up for within this.
pub const REGISTRY_POLL_PERIOD: Duration = Duration::from_secs(2);
/// One phase of a migration, waiting for another runner included.
pub const MIGRATE_PHASE_TIME_MAX: Duration = Duration::from_mins(1);

// ---- leaving

/// The whole drain; its parts are below and add up.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(25);
/// Of which: handing over ranges.
pub const DRAIN_HANDOVER_TIME_MAX: Duration = Duration::from_secs(8);
/// Of the hand-over's part: waiting for the view that shows the silo Draining.
pub const DRAIN_VIEW_TIME_MAX: Duration = Duration::from_secs(2);
/// Of the hand-over's part: waiting, with nothing left, for callers to close their links.
pub const DRAIN_CALLERS_TIME_MAX: Duration = Duration::from_secs(2);
/// Of which: finishing turns.
pub const DRAIN_TURNS_TIME_MAX: Duration = Duration::from_secs(12);
/// Of which: closing hubs and saying goodbye.
pub const DRAIN_CLOSE_TIME_MAX: Duration = Duration::from_secs(5);
/// Of the closing's part: turns that began before the hubs closed, of grains that are called until
/// then, come to their end. They wait for hubs at most, which have just been ended.
pub const DRAIN_LAST_TURNS_TIME_MAX: Duration = Duration::from_secs(1);

// ---- relations

const _: () = {
    assert!(HEADER_BYTES.is_multiple_of(FRAME_ALIGN), "the body must start aligned");
    assert!(FRAME_BYTES_MAX.is_multiple_of(FRAME_ALIGN), "the largest frame must be a frame");
    assert!(
        LINK_BACKLOG_BYTES_MAX >= FRAME_BYTES_MAX,
        "a frame that is not TooLarge must fit an empty link"
    );
    assert!(
        LINK_REPLY_RESERVE_BYTES >= FRAME_BYTES_MAX,
        "a reply must fit a link that is full of requests"
    );
    assert!(
        FAILURE_DETAIL_BYTES_MAX + HEADER_BYTES + 256 < FRAME_BYTES_MAX,
        "the failure of a delivery that was TooLarge must itself fit"
    );
    assert!(
        ADDRESS_BYTES_MAX + HEADER_BYTES + 64 < HANDSHAKE_FRAME_BYTES_MAX,
        "a dictionary frame carries an address whole"
    );
    assert!(
        HOSTED_TYPES_MAX * 16 + HOST_BYTES_MAX + 2 * NAME_BYTES_MAX + 1024
            < HANDSHAKE_FRAME_BYTES_MAX,
        "the largest honest handshake must fit its frame"
    );
    assert!(
        LINK_KEEP_ALIVE_AFTER.as_millis() + LINK_KEEP_ALIVE_PERIOD.as_millis()
            < LINK_SILENCE_MAX.as_millis(),
        "a silent link is probed before it is broken"
    );
    assert!(
        ACCEPTS_PER_LOOK_MAX < HANDSHAKES_PER_SOURCE_MAX,
        "whoever speaks is read before those accepted with it can take its place"
    );
    // The earliest possible Dead comes after the lease of the accused has ended.
    assert!(
        LEASE.as_millis() < PROBE_PERIOD.as_millis() * PROBE_MISSES as u128,
        "a silo must fence itself before it can be declared Dead"
    );
    assert!(
        LEASE_RENEW_PERIOD.as_millis() * 2 < LEASE.as_millis(),
        "one lost renewal must not fence a silo"
    );
    assert!(
        HEARD_PERIOD.as_millis() < PROBE_PERIOD.as_millis(),
        "a silo whose links speak is heard within each probe's period"
    );
    assert!(
        MAILBOX_MAX.is_power_of_two() && STORE_OPEN_MAX.is_power_of_two(),
        "a mailbox is a ring whose slots are found by a mask"
    );
    assert!(
        LOOK_AFTER_WORK.as_nanos() < LOOP_TIME_MAX.as_nanos(),
        "a loop that takes too long is noticed while it does"
    );
    assert!(
        2 * LOOP_TIME_MAX.as_nanos() <= OVERLOAD_DELAY_MIN.as_nanos(),
        "what came during one loop is not late in the next"
    );
    assert!(
        OVERLOAD_DELAY_MIN.as_nanos() <= OVERLOAD_DELAY.as_nanos(),
        "what is there without being told may be told"
    );
    assert!(
        OVERLOAD_DELAY.as_nanos() < OVERLOAD_INTERVAL.as_nanos(),
        "a wait that is too long can be seen to last"
    );
    assert!(
        STALL_REPORT_AFTER.as_millis() < STALL_ABORT_AFTER.as_millis(),
        "a stall is reported before it ends the process"
    );
    assert!(
        JOIN_STALE_AFTER.as_millis() > HEARTBEAT_PERIOD.as_millis() * 3,
        "three heartbeats may be lost before a row looks stale"
    );
    assert!(
        JOIN_STALE_AFTER.as_millis() < JOIN_TIME_MAX.as_millis(),
        "a joiner must have time to evict stale rows"
    );
    assert!(
        JOIN_LOOP_WAIT_MAX.as_millis() + JOIN_STALE_AFTER.as_millis() < JOIN_TIME_MAX.as_millis(),
        "a crash loop's wait must leave time to evict stale rows"
    );
    assert!(
        DRAIN_HANDOVER_TIME_MAX.as_millis()
            + DRAIN_TURNS_TIME_MAX.as_millis()
            + DRAIN_CLOSE_TIME_MAX.as_millis()
            <= DRAIN_TIME_MAX.as_millis(),
        "the parts of a drain must fit its budget"
    );
    assert!(
        DRAIN_VIEW_TIME_MAX.as_millis() + DRAIN_CALLERS_TIME_MAX.as_millis()
            < DRAIN_HANDOVER_TIME_MAX.as_millis(),
        "announcing a drain is part of its hand-over"
    );
    assert!(
        2 * DRAIN_LAST_TURNS_TIME_MAX.as_millis() <= DRAIN_CLOSE_TIME_MAX.as_millis(),
        "the last turns leave time to say goodbye"
    );
    assert!(
        LINK_READ_PAUSE_BYTES < LINK_REPLY_RESERVE_BYTES,
        "a link is no longer read before its replies fill their reserve"
    );
    assert!(
        RECOVERY_RELAY_AFTER.as_millis() < RECOVERY_ACCUSE_AFTER.as_millis(),
        "a silo is asked through a third one before it is accused"
    );
    assert!(
        STORE_STATEMENT_TIME_MAX.as_millis() < STORE_REQUEST_TIME_MAX.as_millis(),
        "a request outlives one statement"
    );
    assert!(
        STORE_LOCK_TIME_MAX.as_millis() < STORE_STATEMENT_TIME_MAX.as_millis(),
        "a statement outlives its wait for a lock"
    );
    assert!(
        STORE_CONNECT_TIME_MAX.as_millis() + STORE_STATEMENT_TIME_MAX.as_millis()
            <= STORE_HANG_AFTER.as_millis(),
        "a thread that connects and runs one statement in time is not given up"
    );
    assert!(
        STORE_HANG_AFTER.as_millis() < STORE_REQUEST_TIME_MAX.as_millis(),
        "a hanging thread is given up before the requests behind it expire"
    );
    assert!(
        ADDRESS_BYTES_MAX + SUBSCRIPTION_KEY_BYTES_MAX + NAME_BYTES_MAX < 2704,
        "cluster, stream and key fit an index entry of Postgres"
    );
    assert!(
        REGISTRY_PAGE_MAX as usize * (2 * ADDRESS_BYTES_MAX + SUBSCRIPTION_FILTER_BYTES_MAX)
            < STORE_GROUP_BYTES_MAX,
        "a page of subscriptions is no larger than a group"
    );
    assert!(OPEN_DELIVERIES_MAX < SPAWNED_MAX, "each open delivery may have a future that waits");
    assert!(EVENT_WINDOW.is_multiple_of(64), "a window is made of whole words");
    assert!(STORE_GROUP_BYTES_MAX <= STORE_QUEUE_BYTES_MAX, "a whole group fits the queue");
    assert!(TLS_CHAIN_BYTES_MAX < HANDSHAKE_FRAME_BYTES_MAX, "our certificate fits a handshake");
    assert!(TLS_SEAL_BYTES_MAX.is_multiple_of(TLS_RECORD_BYTES_MAX), "a batch is whole records");
    assert!(
        DIAL_TIME_MAX.as_millis() < HANDSHAKE_TIME_MAX.as_millis(),
        "a dial fails before the whole handshake does"
    );
    assert!(
        EVENT_BYTES_MAX + BATCH_BYTES_MAX <= BODY_BYTES_MAX / 2,
        "a batch with its consumers fits a frame"
    );
    assert!(
        PUBLISHES_OPEN_MAX <= LANE_HELD_MAX,
        "whatever a publisher may ask again has room at the owner"
    );
    assert!(
        LANE_HOLD_MAX.as_millis() > 2 * REDELIVERY_BACKOFF_MAX.as_millis(),
        "an event waits for one that its publisher has to send again"
    );
    assert!(
        LANE_ASK_AFTER.as_millis() > REDELIVERY_BACKOFF_MIN.as_millis(),
        "what is sent again comes before anybody asks for what waits for it"
    );
    assert!(
        CONSUMER_BACKLOG_MAX <= QUEUE_EVENTS_MAX as u64,
        "a slow consumer is noticed before the queue is full"
    );
};
