//! A pump around a node that echoes, on real sockets and a real ring.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use siloring_core::Generation;
use siloring_core::ids::ClusterId;
use siloring_core::limits::LEDGER_TICK;
use siloring_transport::net::{Accept, Listener, UnixName};

use super::*;

/// Answers bytes with themselves, mail with mail to the control thread, `At` when its time
/// comes.
#[derive(Default)]
struct Echo {
    space: Vec<u8>,
    unsent: Vec<(ConnId, Vec<u8>)>,
    dirty: Vec<ConnId>,
    at: Option<Moment>,
    effects: VecDeque<Effect<Self>>,
    slow: Option<Slow>,
}

/// Takes what came on a link in parts, each of which takes a whole loop's time, and then tells how
/// often the shard has slept.
struct Slow {
    shared: Arc<Shared>,
    parts_left: Vec<(ConnId, u32)>,
}

impl Slow {
    fn take(&mut self, conn: ConnId) -> Option<Mail> {
        let since = clock::now();
        while clock::now().since(since) < LOOP_TIME_MAX {}
        let (_, left) = self.parts_left.iter_mut().find(|(id, _)| *id == conn).unwrap();
        *left -= 1;
        (*left == 0).then(|| Mail::Taken { parks: parks_of(&self.shared) })
    }
}

fn parks_of(shared: &Shared) -> String {
    let text = shared.metrics_text();
    text.lines().find(|line| line.starts_with("siloring_shard_parks_total")).unwrap().to_owned()
}

#[derive(Debug, PartialEq)]
enum Mail {
    Ping(u32),
    At(Duration),
    Closed,
    /// Close all links with these last bytes.
    Close(&'static [u8]),
    /// All that came on a link is taken.
    Taken {
        parks: String,
    },
}

impl Node for Echo {
    type Mail = Mail;
    type ControlMail = Mail;
    type Link = ();

    fn attach(&mut self, _now: Moment, conn: ConnId, _link: ()) {
        self.unsent.push((conn, Vec::new()));
        if let Some(slow) = &mut self.slow {
            slow.parts_left.push((conn, 3));
        }
    }
    fn receive_space(&mut self, _now: Moment, _conn: ConnId) -> Option<&mut [u8]> {
        self.space.resize(4096, 0);
        Some(&mut self.space)
    }
    fn received(&mut self, _now: Moment, conn: ConnId, count: usize) {
        let (_, bytes) = self.unsent.iter_mut().find(|(id, _)| *id == conn).unwrap();
        bytes.extend_from_slice(&self.space[..count]);
        self.dirty.push(conn);
    }
    fn take_frames(&mut self, _now: Moment, conn: ConnId) -> Unread {
        let Some(slow) = &mut self.slow else { return Unread::None };
        let Some(taken) = slow.take(conn) else { return Unread::Some };
        self.effects.push_back(Effect::Control(taken));
        Unread::None
    }
    fn set_came_after(&mut self, _came_after: Moment) {}
    fn turns_per_look(&self) -> usize {
        1
    }
    fn worked(&mut self, _span: Duration) {}
    fn refused_count(&self) -> u64 {
        0
    }
    fn closed(&mut self, _now: Moment, _conn: ConnId, _reason: &str) {
        self.effects.push_back(Effect::Control(Mail::Closed));
    }
    fn unsent(&mut self, conn: ConnId) -> &[u8] {
        self.unsent.iter().find(|(id, _)| *id == conn).map_or(&[], |(_, bytes)| bytes)
    }
    fn backlog_bytes(&self, conn: ConnId) -> usize {
        self.unsent.iter().find(|(id, _)| *id == conn).map_or(0, |(_, bytes)| bytes.len())
    }
    fn frames_count(&self) -> u64 {
        0
    }

    fn sent(&mut self, conn: ConnId, count: usize) {
        let (_, bytes) = self.unsent.iter_mut().find(|(id, _)| *id == conn).unwrap();
        bytes.drain(..count);
    }
    fn mail(&mut self, now: Moment, mail: Mail) {
        match mail {
            Mail::Ping(_) => self.effects.push_back(Effect::Control(mail)),
            Mail::At(after) => self.at = Some(now + after),
            Mail::Close(last) => {
                let close = |(conn, _)| Effect::Close { conn, last: last.to_vec() };
                self.effects.extend(self.unsent.drain(..).map(close));
            }
            Mail::Closed | Mail::Taken { .. } => {}
        }
    }
    fn stored(&mut self, _now: Moment, _ticket: u64, _result: StoreResult) {}
    fn set_lease(&mut self, _until: Moment) {}
    fn is_ready(&self) -> bool {
        false
    }
    fn run(&mut self, _now: Moment) -> bool {
        false
    }
    fn tick(&mut self, now: Moment) {
        if let Some(at) = self.at.take_if(|at| *at <= now) {
            self.effects.push_back(Effect::Control(Mail::At(now.since(at))));
        }
    }
    fn next_deadline(&self) -> Moment {
        self.at.unwrap_or(Moment::NEVER)
    }
    fn take_dirty(&mut self, dirty: &mut Vec<ConnId>) {
        dirty.append(&mut self.dirty);
    }
    fn poll_effect(&mut self) -> Option<Effect<Self>> {
        self.effects.pop_front()
    }
}

struct Running {
    shard: Sender<Post<Echo>>,
    control: Receiver<Mail>,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

fn start_echo(idle: Idle) -> Running {
    start_node(idle, |_| Echo::default())
}

fn start_node(idle: Idle, make: fn(Arc<Shared>) -> Echo) -> Running {
    let (own, letterbox) = Letterbox::new().unwrap();
    let (control_sender, control) = mailbox(64, Arc::new(Signal::new().unwrap()));
    let shared = Arc::new(Shared::new(1, None));
    shared.set_serve_until(Moment::NEVER);
    let parts = Parts {
        index: ShardIndex(0),
        letterbox,
        shards: vec![own.clone()],
        control: control_sender,
        store: Box::new(|_, _, _| {}),
        shared: Arc::clone(&shared),
        idle,
    };
    let nodes = Arc::clone(&shared);
    let thread = start(Placement::Unbound, parts, move || Some(make(nodes))).unwrap();
    Running { shard: own, control, shared, thread }
}

impl Running {
    /// The next mail to the control thread; it must come within 10 s.
    fn next_mail(&mut self) -> Mail {
        let since = clock::now();
        loop {
            if let Some(mail) = self.control.receive() {
                return mail;
            }
            assert!(clock::now().since(since) < Duration::from_secs(10), "no mail came");
            std::thread::yield_now();
        }
    }

    fn link(&self, name: u64) -> UnixStream {
        let cluster = ClusterId::new(format!("shard-test-{}", std::process::id())).unwrap();
        let name = UnixName::of(&cluster, Generation(name), "nowhere");
        let mut listener = Listener::unix(&name).unwrap();
        let dialed = Socket::dial_unix(&name).unwrap();
        let Accept::Connection { socket, .. } = listener.accept().unwrap() else {
            panic!("dialed and not there");
        };
        let new = NewLink { socket, link: (), may_pause: true };
        self.shard.send(Post::Link(Box::new(new))).unwrap();
        let stream = UnixStream::from(OwnedFd::from(dialed));
        stream.set_nonblocking(false).unwrap();
        stream
    }

    fn stop(self) {
        self.shard.send(Post::Stop).unwrap();
        self.thread.join().unwrap();
    }
}

fn echo(stream: &mut UnixStream, bytes: &[u8]) {
    use std::io::{Read, Write};
    stream.write_all(bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, bytes);
}

#[test]
fn bytes_cross_a_shard_whether_it_sleeps_or_spins() {
    for (name, idle) in [(1, Idle::Park), (2, Idle::Spin), (3, Idle::default())] {
        let running = start_echo(idle);
        let mut streams: Vec<_> = (0..8).map(|link| running.link(name * 100 + link)).collect();
        for round in 0..50 {
            for stream in &mut streams {
                echo(stream, &[round; 300]);
            }
        }
        running.stop();
    }
}

#[test]
fn mail_wakes_a_sleeping_shard_before_its_tick() {
    let mut running = start_echo(Idle::Park);
    let mut fast = 0;
    for round in 0..50 {
        let since = clock::now();
        running.shard.send(Post::Mail(Mail::Ping(round))).unwrap();
        assert_eq!(running.next_mail(), Mail::Ping(round));
        fast += u32::from(clock::now().since(since) < LEDGER_TICK / 2);
    }
    assert!(fast > 25, "only {fast} of 50 came before half a tick");
    running.stop();
}

#[test]
fn a_deadline_between_two_ticks_wakes_a_sleeping_shard() {
    let mut running = start_echo(Idle::Park);
    let late = (0..20).map(|_| {
        running.shard.send(Post::Mail(Mail::At(Duration::from_micros(500)))).unwrap();
        match running.next_mail() {
            Mail::At(late) => late,
            other @ (Mail::Ping(_) | Mail::Closed | Mail::Close(_) | Mail::Taken { .. }) => {
                panic!("{other:?}")
            }
        }
    });
    let mut late: Vec<_> = late.collect();
    late.sort_unstable();
    assert!(late[10] < LEDGER_TICK / 4, "the median deadline came {:?} late", late[10]);
    running.stop();
}

#[test]
fn a_fenced_shard_reads_no_link_but_its_mail() {
    use std::io::{Read, Write};
    let mut running = start_echo(Idle::Park);
    let mut stream = running.link(1000);
    echo(&mut stream, b"served");
    running.shared.set_serve_until(Moment::ZERO);
    running.shard.send(Post::Mail(Mail::Ping(1))).unwrap();
    assert_eq!(running.next_mail(), Mail::Ping(1));
    stream.write_all(b"fenced").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut back = [0; 6];
    assert!(stream.read_exact(&mut back).is_err());
    running.shared.set_serve_until(Moment::NEVER);
    stream.set_read_timeout(None).unwrap();
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"fenced");
    running.stop();
}

#[test]
fn a_peer_that_is_gone_is_told_to_the_node_at_once() {
    let mut running = start_echo(Idle::Park);
    let mut stream = running.link(2000);
    echo(&mut stream, b"there");
    drop(stream);
    assert_eq!(running.next_mail(), Mail::Closed);
    running.stop();
}

#[test]
fn a_link_is_closed_behind_its_last_bytes() {
    use std::io::Read;
    let running = start_echo(Idle::Park);
    let mut stream = running.link(4000);
    echo(&mut stream, b"there");
    running.shard.send(Post::Mail(Mail::Close(b"why"))).unwrap();
    let mut last = Vec::new();
    stream.read_to_end(&mut last).unwrap();
    assert_eq!(last, b"why");
    running.stop();
}

#[test]
fn what_a_peer_does_not_take_is_kept_and_written_later() {
    use std::io::{Read, Write};
    let running = start_echo(Idle::Park);
    let stream = running.link(3000);
    let mut writing = stream.try_clone().unwrap();
    let total = 8 * 1024 * 1024;
    let write = move || writing.write_all(&vec![7; total]).unwrap();
    let writer = threads::start("writer".into(), write).unwrap();
    let mut reading = stream;
    let mut left = total;
    let mut chunk = vec![0; 64 * 1024];
    while left > 0 {
        let count = reading.read(&mut chunk).unwrap();
        assert!(count > 0 && chunk[..count].iter().all(|byte| *byte == 7));
        left -= count;
    }
    writer.join().unwrap();
    running.stop();
}

#[test]
fn a_shard_does_not_sleep_while_what_it_has_read_is_not_taken() {
    use std::io::Write;
    let mut running = start_node(Idle::Park, |shared| Echo {
        slow: Some(Slow { shared, parts_left: Vec::new() }),
        ..Echo::default()
    });
    let links = 5000..5000 + 2 * HOT_LINKS_MAX as u64;
    let mut streams: Vec<_> = links.map(|link| running.link(link)).collect();
    running.shared.set_serve_until(Moment::ZERO);
    running.shard.send(Post::Mail(Mail::Ping(1))).unwrap();
    assert_eq!(running.next_mail(), Mail::Ping(1));
    for stream in &mut streams {
        stream.write_all(b"taken in parts").unwrap();
    }
    running.shared.set_serve_until(Moment::NEVER);
    let first = running.next_mail();
    for _ in 1..streams.len() {
        assert_eq!(running.next_mail(), first);
    }
    running.stop();
}

#[test]
fn a_shard_does_not_sleep_before_it_has_told_of_a_link_that_a_write_has_lost() {
    use std::io::Write;
    let mut running = start_echo(Idle::Park);
    let mut fast = 0;
    for round in 0..10 {
        let mut stream = running.link(6000 + round);
        stream.set_write_timeout(Some(2 * LEDGER_TICK)).unwrap();
        // Until it is not read any more, as nobody takes what comes back.
        while stream.write(&[7; 16 * 1024]).is_ok() {}
        let since = clock::now();
        drop(stream);
        assert_eq!(running.next_mail(), Mail::Closed);
        fast += u32::from(clock::now().since(since) < LEDGER_TICK / 2);
    }
    assert!(fast > 5, "only {fast} of 10 came before half a tick");
    running.stop();
}
