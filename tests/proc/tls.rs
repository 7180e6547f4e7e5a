//! Silos inside TLS: linked, refused, their certificates renewed, and what the wire shows of them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use siloring_testkit::certificates::{Authority, Issued, Validity};
use siloring_testkit::process::Stream;
use tempfile::TempDir;

use crate::silo::{Cluster, Silo, until};

/// A silo that cannot link with the cluster has said so and ended by then.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(20);
/// Changed files are taken within two looks at them.
const RENEWAL_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a load goes on between two steps of a renewal.
const LOAD_TIME: Duration = Duration::from_millis(300);

/// The folder of a silo's certificates.
struct Folder(TempDir);

impl Folder {
    fn of(issued: &Issued) -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder can be made"));
        folder.write(issued);
        folder
    }

    fn write(&self, issued: &Issued) {
        issued.write(self.0.path()).expect("files can be written");
    }

    fn path(&self) -> &str {
        self.0.path().to_str().expect("a path of ASCII")
    }

    fn start(&self, cluster: &Cluster, name: &str) -> Silo {
        cluster.start_with(name, &["--link", "tcp", "--tls", self.path()])
    }
}

fn issue(authority: &Authority, cluster: &Cluster, name: &str, validity: Validity) -> Issued {
    authority.issue(&[&format!("siloring://{}/{name}", cluster.name())], validity)
}

/// Starts a silo that must fail; what it said, in one line.
fn refused(cluster: &Cluster, name: &str, arguments: &[&str]) -> String {
    let mut silo = cluster.program(name).arguments(arguments).start().expect("the program runs");
    let status = silo.wait_exit(REFUSAL_TIME_MAX).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(status.code(), Some(1), "{}", silo.log_text());
    let log = silo.log_text();
    let mut errors = log.lines().filter(|line| line.contains("ERROR"));
    errors.next().unwrap_or_else(|| panic!("no error in\n{log}")).to_owned()
}

#[test]
fn silos_inside_tls_call_each_other_and_those_without_it_or_of_another_ca_do_not_get_in() {
    let (cluster, authority) = (Cluster::new("tls"), Authority::new("ca"));
    let right = |name| Folder::of(&issue(&authority, &cluster, name, Validity::Now));
    let (ann_files, bob_files) = (right("ann"), right("bob"));
    let mut ann = ann_files.start(&cluster, "ann");
    // Those that the cluster refuses. What each says names both sides' remedy.
    let foreign = Authority::new("another");
    let of_another_ca = Folder::of(&issue(&foreign, &cluster, "carl", Validity::Now));
    let arguments = ["--link", "tcp", "--tls", of_another_ca.path()];
    let error = refused(&cluster, "carl", &arguments);
    assert!(error.contains("UnknownIssuer") && error.contains("CAs that both trust"), "{error}");
    let error = refused(&cluster, "carl", &["--link", "tcp"]);
    assert!(error.contains("set tls on both"), "{error}");
    assert!(ann.process.line_count(Stream::Error, "HandshakesFailed") >= 1, "and ann says so");
    // One that is right.
    let mut bob = bob_files.start(&cluster, "bob");
    for silo in [&mut ann, &mut bob] {
        for key in 0..8 {
            let ended = silo.outcome(&format!("call counter-{key} 10000"));
            assert_eq!(ended.how, "handled", "{ended:?}");
        }
    }
    assert_eq!(bob.hub("portal/bob", "claim"), "claimed");
    let ended = ann.outcome("send portal/bob 10000 15000000");
    assert_eq!(ended.how, "handled", "a body of many records: {ended:?}");
}

#[test]
fn a_silo_with_tls_finds_no_way_into_a_cluster_without() {
    let (cluster, authority) = (Cluster::new("plain"), Authority::new("ca"));
    let mut ann = cluster.start_with("ann", &["--link", "tcp"]);
    let files = Folder::of(&issue(&authority, &cluster, "bob", Validity::Now));
    let error = refused(&cluster, "bob", &["--link", "tcp", "--tls", files.path()]);
    assert!(error.contains("set tls on both"), "{error}");
    drop(cluster.start_with("bob", &["--link", "tcp"]));
    assert_eq!(ann.outcome("call counter 10000").how, "handled");
}

#[test]
fn a_certificate_that_others_would_refuse_stops_the_start_with_the_remedy() {
    let (cluster, authority) = (Cluster::new("unfit"), Authority::new("ca"));
    let right = || issue(&authority, &cluster, "ann", Validity::Now);
    let uri = format!("URI:siloring://{}/ann", cluster.name());
    let cases = [
        (issue(&authority, &cluster, "ann", Validity::Past), "certificate.pem", "expired"),
        (issue(&authority, &cluster, "ann", Validity::Future), "certificate.pem", "not valid yet"),
        (issue(&authority, &cluster, "bob", Validity::Now), "certificate.pem", &*uri),
        (Issued { key: right().key, ..right() }, "key.pem", "not the one of the certificate"),
        (
            Issued { ca: Authority::new("b").pem(), ..right() },
            "certificate.pem",
            "CA of the CA file",
        ),
        (Issued { ca: String::new(), ..right() }, "ca.pem", "write it there as PEM"),
    ];
    for (issued, file, text) in cases {
        let error = refused(&cluster, "ann", &["--tls", Folder::of(&issued).path()]);
        assert!(error.contains(file) && error.contains(text), "{file}, {text}: {error}");
    }
    let error = refused(&cluster, "ann", &["--tls", "/nowhere"]);
    assert!(error.contains("/nowhere/ca.pem") && error.contains("correct the path"), "{error}");
    let files = Folder::of(&right());
    let address = "0.0.0.0:0";
    let arguments = ["--tls", files.path(), "--bind", address, "--advertise", "127.0.0.1:0"];
    drop(cluster.start_with("ann", &arguments));
}

/// Waits until both silos have taken (or kept) certificates so often.
fn renewed(silos: &mut [&mut Silo], event: &str, count: usize) {
    for silo in silos {
        until(event, RENEWAL_TIME_MAX, || silo.process.line_count(Stream::Error, event) >= count);
    }
}

/// The old CA makes room for a new one while both silos call without pause, and a newcomer links
/// with both after each step.
#[test]
fn a_ca_is_rolled_over_under_load_and_no_call_fails() {
    let cluster = Cluster::new("rollover");
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let both = old.pem() + &new.pem();
    let issue = |authority: &Authority, name: &str, ca: &str| Issued {
        ca: ca.to_owned(),
        ..issue(authority, &cluster, name, Validity::Now)
    };
    let steps = [(&old, &both), (&new, &both), (&new, &new.pem())];
    let files = ["ann", "bob"].map(|name| Folder::of(&issue(&old, name, &old.pem())));
    let [mut ann, mut bob] =
        [("ann", &files[0]), ("bob", &files[1])].map(|(name, files)| files.start(&cluster, name));
    for silo in [&mut ann, &mut bob] {
        silo.get("load 1 64");
    }
    // What cannot be used is not taken.
    for folder in &files {
        std::fs::write(folder.0.path().join("key.pem"), "no key").expect("files can be written");
    }
    renewed(&mut [&mut ann, &mut bob], "CertificatesKept", 1);
    for (step, (authority, ca)) in steps.into_iter().enumerate() {
        for (name, folder) in ["ann", "bob"].into_iter().zip(&files) {
            folder.write(&issue(authority, name, ca));
        }
        renewed(&mut [&mut ann, &mut bob], "CertificatesRenewed", step + 1);
        let name = format!("carl-{step}");
        let newcomer = Folder::of(&issue(authority, &name, ca));
        let mut carl = newcomer.start(&cluster, &name);
        carl.get("load 1 64");
        std::thread::sleep(LOAD_TIME);
        handled(&mut carl);
        carl.drain();
    }
    let late = Folder::of(&issue(&old, "late", &both));
    let error = refused(&cluster, "late", &["--link", "tcp", "--tls", late.path()]);
    assert!(error.contains("CAs that both trust"), "the old CA is trusted no more: {error}");
    let calls = handled(&mut ann) + handled(&mut bob);
    assert!(calls > 1_000, "the load was no load: {calls} calls");
}

/// Ends a silo's load, of which every call was handled; how many there were.
fn handled(silo: &mut Silo) -> u64 {
    let load = silo.get("rest");
    let ends = load["ends"].as_object().map_or(0, serde_json::Map::len);
    assert_eq!(ends, 1, "calls failed: {load}");
    load["ends"]["handled"].as_u64().unwrap_or(0)
}

/// Passes bytes on and keeps what has passed, in either direction.
struct Wire {
    address: String,
    passed: Arc<Mutex<Vec<u8>>>,
}

impl Wire {
    /// Before a silo that will listen on `target`.
    fn before(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let passed = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&passed);
        std::thread::spawn(move || {
            for dialer in listener.incoming().map_while(Result::ok) {
                let Ok(acceptor) = TcpStream::connect(&target) else { continue };
                let ends = [(&dialer, &acceptor), (&acceptor, &dialer)];
                for (from, to) in ends {
                    let clone = |end: &TcpStream| end.try_clone().expect("a descriptor is free");
                    let (from, to, kept) = (clone(from), clone(to), Arc::clone(&kept));
                    std::thread::spawn(move || pass(from, to, &kept));
                }
            }
        });
        Self { address, passed }
    }

    fn shows(&self, text: &[u8]) -> bool {
        let passed = self.passed.lock().expect("no holder panics");
        passed.windows(text.len()).any(|bytes| bytes == text)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, kept: &Mutex<Vec<u8>>) {
    let mut chunk = vec![0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut chunk) {
        kept.lock().expect("no holder panics").extend_from_slice(&chunk[..count]);
        if to.write_all(&chunk[..count]).is_err() {
            return;
        }
    }
}

/// Whether the wire shows a hub's address, and whether the body of a call to it.
fn shown(cluster: &Cluster, ann: Option<&Folder>, bob: Option<&Folder>) -> (bool, bool) {
    // Free a moment ago; the silo behind the wire takes it at once.
    let free = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let bind = free.local_addr().expect("it is bound").to_string();
    drop(free);
    let wire = Wire::before(bind.clone());
    let mut arguments = vec!["--link", "tcp", "--bind", &*bind, "--advertise", &*wire.address];
    arguments.extend(ann.iter().flat_map(|files| ["--tls", files.path()]));
    let mut ann = cluster.start_with("ann", &arguments);
    let mut arguments = vec!["--link", "tcp"];
    arguments.extend(bob.iter().flat_map(|files| ["--tls", files.path()]));
    let mut bob = cluster.start_with("bob", &arguments);
    assert_eq!(ann.hub("portal/seen-on-the-wire", "claim"), "claimed");
    let ended = bob.outcome("send portal/seen-on-the-wire 10000 4096");
    assert_eq!(ended.how, "handled", "{ended:?}");
    let body = vec![7; 256];
    (wire.shows(b"portal/seen-on-the-wire"), wire.shows(&body))
}

#[test]
fn the_wire_shows_neither_address_nor_body_inside_tls_and_both_without() {
    let cluster = Cluster::new("seen");
    assert_eq!(shown(&cluster, None, None), (true, true));
    let (cluster, authority) = (Cluster::new("unseen"), Authority::new("ca"));
    let [ann, bob] =
        ["ann", "bob"].map(|name| Folder::of(&issue(&authority, &cluster, name, Validity::Now)));
    assert_eq!(shown(&cluster, Some(&ann), Some(&bob)), (false, false));
}
